//! Work on another stream while calls run: what a model does between and beside them.

use std::sync::Arc;

use crate::findings::Findings;
use crate::oracle::Differences;
use ep_runtime::backend::{Backend, BackendError, Block, Code, KernelLaunch, Stream};
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::memory::DeviceMemory;

/// The kernel.
pub(crate) const TEXT: &str = include_str!("load.cu");

const BLOCK: Block = Block { threads: 256, shared_bytes: 2 * 32 * 32 * 4 };

/// A product of matrices that every local rank makes on a stream of its own.
pub struct Load {
    backend: Arc<dyn Backend>,
    ranks: Vec<RankLoad>,
    size: usize,
    turns: u32,
}

struct RankLoad {
    rank: usize,
    code: Code,
    stream: Stream,
    a: DeviceMemory,
    b: DeviceMemory,
    c: DeviceMemory,
}

impl Load {
    /// Matrices of `size` rows, a multiple of 32; each launch makes the product `turns` times.
    pub fn new(group: &Group, size: usize, turns: u32) -> Result<Load, CallError> {
        let backend = Arc::clone(group.backend());
        let image = backend.compile("load_product", TEXT)?;
        let mut load = Load { backend, ranks: Vec::new(), size, turns };
        for rank in group.local() {
            let backend = &load.backend;
            let matrix = |value: fn(usize, usize) -> f32| {
                let memory = DeviceMemory::new(backend, rank, 4 * (size * size) as u64)?;
                let places = (0..size).flat_map(|y| (0..size).map(move |x| (y, x)));
                let bytes: Vec<u8> = places.flat_map(|(y, x)| value(y, x).to_le_bytes()).collect();
                memory.write(0, &bytes)?;
                Ok::<DeviceMemory, CallError>(memory)
            };
            let (a, b, c) = (matrix(left)?, matrix(right)?, matrix(|_, _| f32::NAN)?);
            // What was written must be there before another stream reads it.
            backend.sync(rank, Stream::OWN)?;
            let code = backend.load(rank, &image, "load_product", BLOCK)?;
            let stream = backend.create_stream(rank)?;
            load.ranks.push(RankLoad { rank, code, stream, a, b, c });
        }
        Ok(load)
    }

    /// Queues one launch on a rank.
    pub(super) fn launch(&self, rank: usize) -> Result<(), CallError> {
        let Some(own) = self.ranks.iter().find(|own| own.rank == rank) else { return Ok(()) };
        let mut args = Vec::new();
        for memory in [&own.a, &own.b, &own.c] {
            args.extend(memory.address().to_le_bytes());
        }
        args.extend((self.size as u32).to_le_bytes());
        args.extend(self.turns.to_le_bytes());
        let blocks = self.backend.sms(rank);
        let launch = KernelLaunch {
            code: own.code,
            blocks,
            waits: false,
            enters: false,
            phases: 1,
            args: &args,
        };
        Ok(self.backend.launch(rank, own.stream, &launch)?)
    }

    /// Waits for all launches and compares the products.
    pub(super) fn check(&self) -> Result<Findings, CallError> {
        let mut findings = Findings::default();
        for own in &self.ranks {
            self.backend.sync(own.rank, own.stream)?;
            let mut bytes = vec![0; 4 * self.size * self.size];
            own.c.read(0, &mut bytes)?;
            let mut found = Differences::default();
            for (place, word) in bytes.chunks_exact(4).enumerate() {
                let (y, x) = (place / self.size, place % self.size);
                let got = f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                // Both factors repeat, so that a sum is made of 12 different terms.
                let period: f32 = (0..12).map(|k| left(y, k) * right(k, x)).sum();
                let rest: f32 = (0..self.size % 12).map(|k| left(y, k) * right(k, x)).sum();
                let want = period * (self.size / 12) as f32 + rest;
                found.note(got == want, || format!("row {y} column {x}: {got}, not {want}"));
            }
            findings.add(format!("product beside the calls, rank {}", own.rank), found);
        }
        Ok(findings)
    }
}

/// Small whole numbers: their sums are exact.
fn left(y: usize, k: usize) -> f32 {
    ((y + k) % 4) as f32
}

fn right(k: usize, x: usize) -> f32 {
    ((k + 2 * x) % 3) as f32
}

impl Drop for Load {
    fn drop(&mut self) {
        for own in &self.ranks {
            // What is in flight uses the memory; a failure means that the device is lost.
            let _: Result<(), BackendError> = self.backend.sync(own.rank, own.stream);
            let _ = self.backend.unload(own.rank, own.code);
            let _ = self.backend.destroy_stream(own.rank, own.stream);
        }
    }
}
