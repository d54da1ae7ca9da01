//! What 16 more bytes a row cost on GPUs: `TaggedDispatch` beside the `NvlDispatch` that it was made
//! from, on the same rows in the same run. The speed belongs to the compiler, not to the preset.
//!
//! ```sh
//! cargo run --release -p own-pipeline --bin tag_cost          # on all GPUs; RANKS=2 on two
//! ```

use std::error::Error;
use std::io::{Write, stdout};
use std::sync::Arc;

use ep_runtime::AnyPipeline;
use ep_runtime::backend::{Backend, Event, Stream};
use ep_runtime::gpu::{self, GpuBackend, GpuOptions, compile_with};
use ep_runtime::group::{Group, GroupOptions};
use ep_runtime::jit::{Cache, Jit, Nvrtc};
use ep_runtime::pipelines::NvlDispatch;
use own_pipeline::TaggedDispatch;
use own_pipeline::run::{Dispatch, Ranks, Sent, Shape};

const SHAPE: Shape = Shape { tokens: 4096, hidden: 7168, topk: 8, experts: 256 };
const BLOCKS: u32 = 24;
const WARMUP: usize = 5;
const CALLS: usize = 40;
/// Measurements of each, in turn: what drifts meets both.
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let found = gpu::devices().map_or(0, |devices| devices.len());
    let asked = std::env::var("RANKS").ok().map(|count| count.parse()).transpose()?;
    let count: usize = asked.unwrap_or(found);
    if count == 0 {
        writeln!(stdout(), "skipped: no GPU found")?;
        return Ok(());
    }
    let jit = Jit::new(Nvrtc::find()?, Cache::at(None)?);
    let backend = GpuBackend::new(&GpuOptions::spread(count)?, compile_with(Arc::new(jit)))?;
    let backend: Arc<dyn Backend> = Arc::new(backend);
    let group = Group::new(backend, GroupOptions::default())?;
    let ranks = Ranks::new(&group, Sent::random(SHAPE, count, 1), BLOCKS)?;
    let ring = [("payload", "bf16"), ("via", "ring"), ("mode", "fresh")];
    let plain = ranks.prepare(&AnyPipeline::of::<NvlDispatch>(), &ring)?;
    let tagged = ranks.prepare(&AnyPipeline::of::<TaggedDispatch>(), &[])?;
    let mut best = [f64::INFINITY; 2];
    for _ in 0..ROUNDS {
        for (best, (dispatch, has_tags)) in best.iter_mut().zip([(&plain, false), (&tagged, true)])
        {
            *best = best.min(microseconds(&group, &ranks, dispatch, has_tags)?);
        }
    }
    let [plain, tagged] = best;
    let ratio = tagged / plain;
    writeln!(
        stdout(),
        "{{\"op\": \"own-dispatch\", \"via\": \"ring\", \"ranks\": {count}, \"sms\": {BLOCKS}, \
         \"plain_us\": {plain:.2}, \"tagged_us\": {tagged:.2}, \"ratio\": {ratio:.4}}}"
    )?;
    Ok(())
}

/// Time of one call, back to back, on the slowest rank; the last one is compared.
fn microseconds(
    group: &Group,
    ranks: &Ranks,
    dispatch: &Dispatch,
    has_tags: bool,
) -> Result<f64, Box<dyn Error>> {
    let backend = group.backend();
    let events =
        || group.local().map(|rank| backend.create_event(rank)).collect::<Result<Vec<Event>, _>>();
    let record = |events: &[Event]| {
        let mut each = group.local().zip(events);
        each.try_for_each(|(rank, event)| backend.record(rank, Stream::OWN, event))
    };
    ranks.poison(dispatch)?;
    let (begun, ended) = (events()?, events()?);
    for call in 0..WARMUP + CALLS {
        if call == WARMUP {
            record(&begun)?;
        }
        group.local().try_for_each(|rank| ranks.launch(dispatch, rank, BLOCKS))?;
    }
    record(&ended)?;
    ranks.sync()?;
    let mut slowest = 0f64;
    for (rank, (from, to)) in group.local().zip(begun.iter().zip(&ended)) {
        slowest = slowest.max(backend.elapsed(rank, from, to)?.as_secs_f64());
    }
    for (rank, event) in group.local().zip(begun).chain(group.local().zip(ended)) {
        backend.destroy_event(rank, event)?;
    }
    match ranks.wrong_rows(dispatch, has_tags)? {
        0 => Ok(slowest * 1e6 / CALLS as f64),
        wrong => Err(format!("{wrong} of {} rows are wrong", ranks.rows()).into()),
    }
}
