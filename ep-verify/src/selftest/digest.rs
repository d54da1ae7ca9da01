//! One number for all that a dispatch and a combine leave on a rank, so that groups which have
//! nothing in common but the problem can be compared.

use sha2::{Digest, Sha256};

use super::{POISON, Selftest};
use ep_runtime::buffer::{CombineInput, Handle, Received};
use ep_runtime::error::CallError;

impl Selftest {
    /// Runs a dispatch and a combine into poisoned outputs and gives a digest of them for each rank
    /// of the group.
    pub fn output_digests(&self) -> Result<Vec<u64>, CallError> {
        self.poison()?;
        self.ranks.iter().try_for_each(|data| data.poison_sums(POISON))?;
        let dispatched = self.dispatch()?;
        let offered = self.offer_rows()?;
        self.for_each_rank(&|rank| {
            let index = self.group.local_index(rank)?;
            self.combine(&dispatched[index].handle, CombineInput::Offered(&offered[index]))
        })?;
        self.settle()?;
        let local = self.for_each_rank(&|rank| {
            let dispatched = &dispatched[self.group.local_index(rank)?];
            self.digest(&dispatched.handle, &dispatched.received)
        })?;
        // A process brings one number: with one rank each, that is all of them.
        match local[..] {
            [one] => Ok(self.group.backend().gather("compare outputs", one)?),
            _ => Ok(local),
        }
    }

    /// The rows of an output without what pads them, and the sums.
    fn digest(&self, handle: &Handle, received: &Received) -> Result<u64, CallError> {
        let (rank, options) = (handle.rank(), &self.case.options);
        let rows = handle.counts()?.received;
        let (backend, mut hash) = (self.group.backend(), Sha256::new());
        let mut add = |at: u64, stride: usize, width: usize, rows: usize| {
            let mut bytes = vec![0; rows * stride];
            backend.read(rank, at, &mut bytes)?;
            bytes.chunks(stride.max(1)).for_each(|row| hash.update(&row[..width]));
            Ok::<(), CallError>(())
        };
        let (x, value_bytes) = (received.x()?, options.payload.value_bytes() as usize);
        add(x.address, x.row_stride as usize * value_bytes, options.hidden * value_bytes, rows)?;
        let scales =
            options.payload.scales(options.hidden) * options.payload.scale_bytes() as usize;
        if scales > 0 {
            add(received.scale()?.address, scales, scales, rows)?;
        }
        let (topk, tokens) = (options.topk, self.case.tokens[rank]);
        add(received.topk_idx()?, 8 * topk, 8 * topk, rows)?;
        let data = self.rank(rank)?;
        if options.weights {
            add(received.topk_weights()?, 4 * topk, 4 * topk, rows)?;
            add(data.combined_weights.address(), 4 * topk, 4 * topk, tokens)?;
        }
        add(data.combined.address(), 2 * options.hidden, 2 * options.hidden, tokens)?;
        let digest: [u8; 32] = hash.finalize().into();
        let [a, b, c, d, e, f, g, h, ..] = digest;
        Ok(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }
}
