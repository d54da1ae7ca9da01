//! Measures what 16 more bytes per row cost on GPUs: `TaggedDispatch` compared with the `NvlDispatch` that it
//! was copied from, on the same rows in the same run. The compiler makes a pipeline fast, not the preset.
//!
//! ```sh
//! cargo run --release -p own-pipeline --bin tag_cost          # on all GPUs; RANKS=2 on two
//! ```

use std::error::Error;
use std::io::{Write, stdout};

use ep_runtime::backend::{Event, Stream};
use ep_runtime::buffer::Placement;
use ep_runtime::calls::CallOptions;
use ep_runtime::error::CallError;
use ep_runtime::gpu;
use ep_runtime::group::Group;
use ep_runtime::pipelines::{Layout, NvlDispatch, layout, nvl_dispatch};
use ep_runtime::tensor::{Bf16, DeviceTensor};
use ep_verify::oracle::{Random, RoutingOptions};
use own_pipeline::{TaggedDispatch, tagged_dispatch};

const TOKENS: usize = 4096;
const HIDDEN: usize = 7168;
const TOPK: usize = 8;
const EXPERTS: usize = 256;
const SMS: u32 = 24;
const WARMUP: usize = 5;
const CALLS: usize = 40;
/// Measurements of each, in turn: what drifts meets both.
const ROUNDS: usize = 5;

/// The two dispatches, and the counts that both need.
struct Kernels {
    layout: layout::Kernel,
    tagged: tagged_dispatch::Kernel,
    plain: nvl_dispatch::Kernel,
}

/// The calls of one rank.
struct Rank {
    routes: layout::Handle,
    tagged: (tagged_dispatch::Inputs, tagged_dispatch::Outputs),
    plain: (nvl_dispatch::Inputs, nvl_dispatch::Outputs),
}

fn main() -> Result<(), Box<dyn Error>> {
    let found = gpu::devices().map_or(0, |devices| devices.len());
    let asked = std::env::var("RANKS").ok().map(|count| count.parse()).transpose()?;
    let count: usize = asked.unwrap_or(found);
    if count == 0 {
        writeln!(stdout(), "skipped: no GPU found")?;
        return Ok(());
    }
    let group = Group::on_gpus(count)?;
    let kernels = Kernels::prepare(&group)?;
    let ranks = group.local().map(|rank| Rank::new(&group, rank, &kernels));
    let ranks = ranks.collect::<Result<Vec<_>, _>>()?;
    let call = CallOptions::sms(SMS);
    let run_tagged = |rank: usize, own: &Rank| {
        let ((inputs, outputs), args) = (&own.tagged, tagged_dispatch::Args::default());
        kernels.tagged.launch(rank, &call, inputs, outputs, &own.routes, &args).map(drop)
    };
    let run_plain = |rank: usize, own: &Rank| {
        let ((inputs, outputs), args) = (&own.plain, nvl_dispatch::Args::default());
        kernels.plain.launch(rank, &call, inputs, outputs, &own.routes, None, &args).map(drop)
    };
    let mut best = [f64::INFINITY; 2];
    for _ in 0..ROUNDS {
        best[0] = best[0].min(microseconds(&group, &ranks, &run_plain)?);
        best[1] = best[1].min(microseconds(&group, &ranks, &run_tagged)?);
    }
    let (wrong, rows) = wrong_rows(&group, &ranks)?;
    if wrong > 0 || rows == 0 {
        return Err(format!("{wrong} of {rows} rows are wrong").into());
    }
    let [plain, tagged] = best;
    let ratio = tagged / plain;
    writeln!(
        stdout(),
        "{{\"op\": \"own-dispatch\", \"via\": \"ring\", \"ranks\": {count}, \"sms\": {SMS}, \
         \"plain_us\": {plain:.2}, \"tagged_us\": {tagged:.2}, \"ratio\": {ratio:.4}}}"
    )?;
    Ok(())
}

impl Kernels {
    fn prepare(group: &Group) -> Result<Kernels, CallError> {
        let received = TOKENS * group.ranks();
        let (hidden, topk, experts, tokens) = (HIDDEN, TOPK, EXPERTS, TOKENS);
        let shape = tagged_dispatch::Shape { hidden, topk, experts, tokens, received };
        let tagged = TaggedDispatch::prepare(group, shape, tagged_dispatch::Options::default())?;
        let shape = nvl_dispatch::Shape { hidden, topk, experts, tokens, received };
        let ring = nvl_dispatch::Options { via: nvl_dispatch::Via::Ring, ..Default::default() };
        let plain = NvlDispatch::prepare(group, shape, ring)?;
        let stripes = tagged.tunes().stripes as usize;
        let shape = layout::Shape { tokens, topk, experts, stripes };
        let layout = Layout::prepare(group, shape, layout::Options::default())?;
        Ok(Kernels { layout, tagged, plain })
    }
}

impl Rank {
    /// Random rows and routing, and the counts for them.
    fn new(group: &Group, rank: usize, kernels: &Kernels) -> Result<Rank, CallError> {
        let mut random = Random::new(rank as u64);
        let routing = RoutingOptions::even(TOPK, EXPERTS).routing(TOKENS, &mut random);
        let topk_idx = DeviceTensor::from_slice(group, rank, [TOKENS, TOPK], &routing.experts)?;
        let weights = DeviceTensor::from_slice(group, rank, [TOKENS, TOPK], &routing.weights)?;
        let placement = Placement::even(EXPERTS, group.ranks());
        let begin = placement.begin();
        let expert_begin = DeviceTensor::from_slice(group, rank, [begin.len()], begin)?;
        let x: Vec<Bf16> = (0..TOKENS * HIDDEN).map(|_| Bf16(random.bits() as u16)).collect();
        let tag: Vec<i32> = x.chunks(HIDDEN).flat_map(tag_of).collect();
        let x = DeviceTensor::from_slice(group, rank, [TOKENS, HIDDEN], &x)?;
        let tag = DeviceTensor::from_slice(group, rank, [TOKENS, 4], &tag)?;
        let Kernels { layout, tagged, plain } = kernels;
        let to = layout::Inputs { topk_idx: topk_idx.clone(), expert_begin: expert_begin.clone() };
        let (counts, call) = (layout.outputs(rank)?, CallOptions::sms(SMS));
        let routes = layout.launch(rank, &call, &to, &counts, &layout::Args::default())?;
        let (topk_idx, topk_weights) = (Some(topk_idx), Some(weights));
        let standard = nvl_dispatch::Inputs {
            x: nvl_dispatch::PayloadTensor::Bf16 { x: x.clone() },
            topk_idx: topk_idx.clone(),
            topk_weights: topk_weights.clone(),
            expert_begin: expert_begin.clone(),
        };
        let own = tagged_dispatch::Inputs { x, tag, topk_idx, topk_weights, expert_begin };
        let (tagged, plain) = ((own, tagged.outputs(rank)?), (standard, plain.outputs(rank)?));
        Ok(Rank { routes, tagged, plain })
    }
}

/// Time of one call, back to back, on the slowest rank.
fn microseconds(
    group: &Group,
    ranks: &[Rank],
    launch: &dyn Fn(usize, &Rank) -> Result<(), CallError>,
) -> Result<f64, Box<dyn Error>> {
    let backend = group.backend();
    let events =
        || group.local().map(|rank| backend.create_event(rank)).collect::<Result<Vec<Event>, _>>();
    let record = |events: &[Event]| {
        let mut each = group.local().zip(events);
        each.try_for_each(|(rank, event)| backend.record(rank, Stream::OWN, event))
    };
    let (begun, ended) = (events()?, events()?);
    for call in 0..WARMUP + CALLS {
        if call == WARMUP {
            record(&begun)?;
        }
        group.local().zip(ranks).try_for_each(|(rank, own)| launch(rank, own))?;
    }
    record(&ended)?;
    group.local().try_for_each(|rank| group.sync(rank))?;
    let mut slowest = 0f64;
    for (rank, (from, to)) in group.local().zip(begun.iter().zip(&ended)) {
        slowest = slowest.max(backend.elapsed(rank, from, to)?.as_secs_f64());
    }
    for (rank, event) in group.local().zip(begun).chain(group.local().zip(ended)) {
        backend.destroy_event(rank, event)?;
    }
    Ok(slowest * 1e6 / CALLS as f64)
}

/// The tag of a row says how it begins.
fn tag_of(row: &[Bf16]) -> impl Iterator<Item = i32> {
    row.iter().take(4).map(|value| i32::from(value.0))
}

/// How many rows of the two dispatches differ, or have come with the tag of another one; and how many
/// there are.
fn wrong_rows(group: &Group, ranks: &[Rank]) -> Result<(usize, usize), CallError> {
    let (mut wrong, mut all) = (0, 0);
    for (rank, own) in group.local().zip(ranks) {
        let totals = group.ranks() * group.ranks();
        let rows = own.routes.rank_prefix.read()?[totals + rank] as usize;
        let nvl_dispatch::PayloadTensor::Bf16 { x } = &own.plain.1.recv_x else { continue };
        let (plain, tagged) = (x.first(rows).read()?, own.tagged.1.recv_x.first(rows).read()?);
        let tags = own.tagged.1.recv_tag.first(rows).read()?;
        let rows = plain.chunks(HIDDEN).zip(tagged.chunks(HIDDEN)).zip(tags.chunks(4));
        wrong += rows
            .clone()
            .filter(|((x, y), tag)| x != y || !tag_of(x).eq(tag.iter().copied()))
            .count();
        all += rows.count();
    }
    Ok((wrong, all))
}
