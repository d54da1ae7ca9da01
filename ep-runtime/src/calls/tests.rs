//! Tests what a typed call refuses before it launches anything, and with which bytes it launches otherwise.

use std::time::Duration;

use super::spec::WORDS;
use super::{BoundCall, CallKernel, CallOptions, CallProgram, Held, Loader, Room};
use crate::error::CallError;
use crate::fake::FakeBackend;
use crate::group::{Group, GroupOptions};
use crate::join::{Member, Store, UniqueId};
use crate::pipeline::AnyPipeline;
use crate::pipelines::{
    Layout, LocalLayout, LowLatencyDispatch, NvlCombine, NvlDispatch, layout, local_layout,
    low_latency_dispatch, nvl_combine, nvl_dispatch,
};
use crate::tensor::{Bf16, DeviceTensor};
use nvl_dispatch::places as at;

const TOKENS: usize = 8;
const HIDDEN: usize = 64;
const SHAPE: nvl_dispatch::Shape = nvl_dispatch::Shape {
    hidden: HIDDEN,
    topk: 2,
    experts: 4,
    tokens: TOKENS,
    received: 2 * TOKENS,
};

fn group() -> Group {
    Group::new(FakeBackend::new(2), GroupOptions::default()).unwrap()
}

/// A dispatch with everything that a call of rank 0 takes.
struct Calls {
    group: Group,
    kernel: nvl_dispatch::Kernel,
    inputs: nvl_dispatch::Inputs,
    outputs: nvl_dispatch::Outputs,
    routes: layout::Handle,
}

impl Calls {
    fn new(options: nvl_dispatch::Options) -> Calls {
        let group = group();
        let kernel = NvlDispatch::prepare(&group, SHAPE, options).unwrap();
        let stripes = kernel.tunes().stripes as usize;
        let counts = layout::Shape { topk: 2, experts: 4, stripes, tokens: TOKENS };
        let layout = Layout::prepare(&group, counts, layout::Options::default()).unwrap();
        let topk_idx = DeviceTensor::zeros(&group, 0, [TOKENS, 2]).unwrap();
        let expert_begin = DeviceTensor::from_slice(&group, 0, [3], &[0, 2, 4]).unwrap();
        let to = layout::Inputs { topk_idx: topk_idx.clone(), expert_begin: expert_begin.clone() };
        let counts = layout.outputs(0).unwrap();
        let call = CallOptions::default();
        let routes = layout.launch(0, &call, &to, &counts, &layout::Args::default()).unwrap();
        let x = DeviceTensor::zeros(&group, 0, [TOKENS, HIDDEN]).unwrap();
        let inputs = nvl_dispatch::Inputs {
            x: nvl_dispatch::PayloadTensor::Bf16 { x },
            topk_idx: Some(topk_idx),
            topk_weights: Some(DeviceTensor::zeros(&group, 0, [TOKENS, 2]).unwrap()),
            expert_begin,
        };
        let outputs = kernel.outputs(0).unwrap();
        Calls { group, kernel, inputs, outputs, routes }
    }

    fn launch(&self) -> Result<nvl_dispatch::Handle, CallError> {
        let (call, args) = (CallOptions::default(), nvl_dispatch::Args::default());
        self.kernel.launch(0, &call, &self.inputs, &self.outputs, &self.routes, None, &args)
    }

    /// What a call says after `change`.
    fn said(change: impl FnOnce(&mut Calls)) -> String {
        let mut calls = Calls::new(nvl_dispatch::Options::default());
        change(&mut calls);
        calls.launch().err().map_or_else(String::new, |error| error.to_string())
    }
}

fn bf16(group: &Group, extents: [usize; 2]) -> nvl_dispatch::PayloadTensor<2> {
    let x = DeviceTensor::<Bf16, 2>::zeros(group, 0, extents).unwrap();
    nvl_dispatch::PayloadTensor::Bf16 { x }
}

#[test]
fn a_call_leaves_tables_of_its_sizes() {
    let calls = Calls::new(nvl_dispatch::Options::default());
    let handle = calls.launch().unwrap();
    assert_eq!(handle.send_row.extents(), [TOKENS as u64, 2]);
    assert_eq!(handle.recv_src.extents(), [2 * TOKENS as u64]);
    assert_eq!(handle.send_head.address(), 0, "it belongs to the other arm");
    // One handle may live; it is given back when it is dropped.
    let error = calls.launch().unwrap_err().to_string();
    assert_eq!(error, "rank 0: all 1 handles are in use; drop one, or make more");
    let (send_row, _) = (handle.send_row.clone(), drop(handle));
    assert!(calls.launch().is_err(), "a table holds its place");
    drop(send_row);
    let handle = calls.launch().unwrap();
    let (call, args) = (CallOptions::default(), nvl_dispatch::Args::default());
    let Calls { kernel, inputs, outputs, routes, .. } = &calls;
    kernel.launch_into(0, &call, inputs, outputs, routes, None, &args, &handle).unwrap();
}

/// A fresh call records a table that a cached one reads.
#[test]
fn a_cached_call_takes_the_table_of_an_earlier_one() {
    let calls = Calls::new(nvl_dispatch::Options::default());
    let (fresh, mode) = (calls.launch().unwrap(), nvl_dispatch::Mode::Cached);
    let Calls { group, inputs, routes, .. } = &calls;
    let options = nvl_dispatch::Options { mode, ..nvl_dispatch::Options::default() };
    let cached = NvlDispatch::prepare(group, SHAPE, options).unwrap();
    let (outputs, args) = (cached.outputs(0).unwrap(), nvl_dispatch::Args::default());
    let call = CallOptions::default();
    let launch = |earlier| cached.launch(0, &call, inputs, &outputs, routes, earlier, &args);
    let left = launch(Some(&fresh)).unwrap();
    assert_eq!(left.send_row.address(), 0, "it does not record the table again");
    drop(left);
    let error = launch(None).unwrap_err().to_string();
    assert_eq!(error, "NvlDispatch: `send_row` is absent");
}

#[test]
fn extents_are_compared_by_name() {
    assert_eq!(Calls::said(|_| ()), "");
    let wide = Calls::said(|it| it.inputs.x = bf16(&it.group, [TOKENS, HIDDEN + 16]));
    assert_eq!(wide, "NvlDispatch: `x` has extents [8, 80], not [8, 64]");
    let short =
        Calls::said(|it| it.inputs.topk_idx = it.inputs.topk_idx.as_ref().map(|x| x.first(3)));
    assert_eq!(short, "NvlDispatch: `topk_idx` has extents [3, 2], not [8, 2]");
    let many = Calls::said(|it| it.inputs.x = bf16(&it.group, [TOKENS + 1, HIDDEN]));
    assert_eq!(many, "9 tokens, and the maximum is 8");
    // Tables of a call with another number of tokens.
    let other = Calls::said(|it| it.routes.in_rank = it.routes.in_rank.first(2));
    assert_eq!(other, "NvlDispatch: `in_rank` has extents [2, 2], not [8, 2]");
    let stripes = Calls::said(|it| it.routes.stripe_prefix = it.routes.stripe_prefix.first(1));
    assert_eq!(stripes, "NvlDispatch: `stripe_prefix` has extents [1, 64], not [2, 64]");
    let none = Calls::said(|it| it.routes.rank_prefix = DeviceTensor::default());
    assert_eq!(none, "NvlDispatch: `rank_prefix` has extents [0, 0], not [3, 2]");
}

#[test]
fn what_lies_wrong_is_refused() {
    let raw = |extents: [u64; 2], strides: [i64; 2], at: u64| {
        // SAFETY: nothing is launched with it.
        unsafe { DeviceTensor::<Bf16, 2>::from_raw(at, extents, strides) }
    };
    let with = |strides: [i64; 2], at: u64| {
        Calls::said(|it| {
            let x = raw([TOKENS as u64, HIDDEN as u64], strides, at);
            it.inputs.x = nvl_dispatch::PayloadTensor::Bf16 { x };
        })
    };
    assert_eq!(with([72, 1], 1 << 20), "", "rows may lie apart");
    let overlap = with([32, 1], 1 << 20);
    let text =
        "NvlDispatch: `x` has strides [32, 1], and its rows have to be 64 or more elements apart";
    assert_eq!(overlap, text);
    assert!(with([1, 8], 1 << 20).contains("has strides [1, 8]"));
    assert_eq!(with([64, 1], 0), "NvlDispatch: `x` is absent");
    let odd = with([65, 1], 1 << 20);
    assert!(odd.ends_with("rows 130 bytes apart: both have to be multiples of 16"), "{odd}");
    let broadcast = Calls::said(|it| {
        // SAFETY: nothing is launched with it.
        it.routes.in_rank = unsafe { DeviceTensor::from_raw(1 << 20, [TOKENS as u64, 2], [0, 1]) };
    });
    let text =
        "NvlDispatch: `in_rank` has strides [0, 1], and its rows have to be 2 elements apart";
    assert_eq!(broadcast, text);
    let outside = Calls::said(|it| it.outputs.recv_x = bf16(&it.group, [2 * TOKENS, HIDDEN]));
    assert!(outside.ends_with("outside of the window that peers can access"), "{outside}");
}

#[test]
fn optional_tensors_come_as_the_options_say() {
    let absent = Calls::said(|it| it.inputs.topk_weights = None);
    assert_eq!(absent, "NvlDispatch: `topk_weights` is absent");
    let options = nvl_dispatch::Options {
        topk_weights: false,
        recv_topk_weights: false,
        ..nvl_dispatch::Options::default()
    };
    let mut calls = Calls::new(options);
    assert!(calls.outputs.recv_topk_weights.is_none());
    let given = calls.launch().unwrap_err().to_string();
    assert_eq!(given, "NvlDispatch: `topk_weights` is given, but these options do not take it");
    calls.inputs.topk_weights = None;
    calls.launch().unwrap();
    // Another arm's elements.
    let (x, scale) = (DeviceTensor::default(), DeviceTensor::default());
    calls.inputs.x = nvl_dispatch::PayloadTensor::Fp8 { x, scale };
    let error = calls.launch().unwrap_err().to_string();
    assert_eq!(error, "NvlDispatch: `x` holds e4m3, not bf16");
}

#[test]
fn args_and_tunes_keep_their_ranges() {
    let Calls { group, inputs, .. } = &Calls::new(nvl_dispatch::Options::default());
    let (call, args) = (CallOptions::default(), layout::Args::default());
    assert_eq!(args.alignment, 1);
    let args = layout::Args { alignment: 0, ..args };
    let counts = layout::Shape { topk: 2, experts: 4, stripes: 64, tokens: TOKENS };
    let layout = Layout::prepare(group, counts, layout::Options::default()).unwrap();
    let topk_idx = inputs.topk_idx.clone().unwrap();
    let to = layout::Inputs { topk_idx, expert_begin: inputs.expert_begin.clone() };
    let error = layout.launch(0, &call, &to, &layout.outputs(0).unwrap(), &args).unwrap_err();
    assert_eq!(error.to_string(), "Layout: `alignment` is 0, it takes 1..=65536");
    let tunes = nvl_dispatch::TuneOptions { depth: Some(32), ..Default::default() };
    let idle = nvl_dispatch::Options { tunes, ..Default::default() };
    let error = NvlDispatch::prepare(group, SHAPE, idle).err().unwrap().to_string();
    let text = "NvlDispatch with these arms has no `depth`; it takes piece, stages, stripes, \
                send_warps, unit";
    assert_eq!(error, text);
    let none = nvl_dispatch::Options { live: 0, ..nvl_dispatch::Options::default() };
    let error = NvlDispatch::prepare(group, SHAPE, none).err().unwrap().to_string();
    assert_eq!(error, "nvl-dispatch with 0 live handles cannot make a call");
}

/// Memory in the window has the stride that peers count on, and several of a tensor come as an array.
#[test]
fn a_combine_reads_what_its_kernel_offers() {
    let group = group();
    let shape = nvl_combine::Shape { hidden: 80, topk: 2, tokens: TOKENS, received: 2 * TOKENS };
    let options = nvl_combine::Options { bias: 1, ..nvl_combine::Options::default() };
    let kernel = NvlCombine::prepare(&group, shape, options).unwrap();
    let offers = kernel.offers(0).unwrap();
    assert_eq!(offers.x.strides(), [128, 1], "whole lines of 128 bytes");
    let bias = DeviceTensor::zeros(&group, 0, [TOKENS, 80]).unwrap();
    let inputs =
        nvl_combine::Inputs { x: offers.x, weights: offers.weights, bias: [Some(bias), None] };
    let outputs = kernel.outputs(0).unwrap();
    let none = kernel.offers(0).unwrap_err().to_string();
    assert_eq!(none, "rank 0: all 1 places in the window are in use; drop one, or make more");
    let rank_prefix = DeviceTensor::zeros(&group, 0, [3, 2]).unwrap();
    let routes = layout::Handle { rank_prefix, ..layout::Handle::default() };
    let send_row = DeviceTensor::zeros(&group, 0, [TOKENS, 2]).unwrap();
    let sent = nvl_dispatch::Handle { send_row, ..nvl_dispatch::Handle::default() };
    let (call, args) = (CallOptions::default(), nvl_combine::Args::default());
    kernel.launch(0, &call, &inputs, &outputs, &routes, &sent, &args).unwrap();
    let absent = nvl_dispatch::Handle::default();
    let error = kernel.launch(0, &call, &inputs, &outputs, &routes, &absent, &args).unwrap_err();
    assert_eq!(error.to_string(), "NvlCombine: `send_row` has extents [0, 0], not [8, 2]");
    let few = nvl_combine::Inputs { bias: [None, None], ..inputs };
    let error = kernel.launch(0, &call, &few, &outputs, &routes, &sent, &args).unwrap_err();
    assert_eq!(error.to_string(), "NvlCombine: `bias` is absent");
}

/// Between the phases of a call other work runs; another call of the pipeline does not.
#[test]
fn phases_are_launched_apart() {
    let backend = FakeBackend::new(2);
    let group = Group::new(backend.clone(), GroupOptions::default()).unwrap();
    let launches = || backend.launches.load(std::sync::atomic::Ordering::Relaxed);
    let shape = low_latency_dispatch::Shape {
        nodes: 1,
        hidden: 128,
        topk: 2,
        experts: 4,
        max_tokens: TOKENS,
        tokens: TOKENS,
    };
    let options = low_latency_dispatch::Options { live: 2, ..Default::default() };
    let kernel = LowLatencyDispatch::prepare(&group, shape, options).unwrap();
    let inputs = low_latency_dispatch::Inputs {
        x: DeviceTensor::zeros(&group, 0, [3, 128]).unwrap(),
        topk_idx: DeviceTensor::zeros(&group, 0, [3, 2]).unwrap(),
        expert_begin: DeviceTensor::from_slice(&group, 0, [3], &[0, 2, 4]).unwrap(),
    };
    let outputs = kernel.outputs(0).unwrap();
    let (call, args) = (CallOptions::default(), low_latency_dispatch::Args::default());
    let sent = kernel.send(0, &call, &inputs, &outputs, &args).unwrap();
    assert_eq!(launches(), 1);
    let early = kernel.send(0, &call, &inputs, &outputs, &args).err().unwrap().to_string();
    let text = "low_latency_dispatch_recv is next, and low_latency_dispatch_send was launched";
    assert_eq!((early.as_str(), launches()), (text, 1));
    let handle = sent.recv(&call).unwrap();
    assert_eq!(handle.src_info.extents(), [2, 2 * TOKENS as u64]);
    assert!(sent.recv(&call).is_err() && launches() == 2);
    kernel.launch(0, &call, &inputs, &outputs, &args).map(drop).unwrap();
    assert_eq!(launches(), 3, "one kernel is both");
    // More calls than there are handles, with tables of the caller's.
    let tables = || low_latency_dispatch::Handle {
        src_info: DeviceTensor::zeros(&group, 0, [2, 2 * TOKENS]).unwrap(),
        range_first: DeviceTensor::zeros(&group, 0, [2, 2]).unwrap(),
        range_count: DeviceTensor::zeros(&group, 0, [2, 2]).unwrap(),
    };
    let kept: Vec<low_latency_dispatch::Handle> = (0..3).map(|_| tables()).collect();
    for into in &kept {
        let sent = kernel.send_into(0, &call, &inputs, &outputs, &args, into).unwrap();
        assert_eq!(sent.recv(&call).unwrap().src_info.address(), 0);
    }
    assert_eq!(launches(), 9);
    // Times are for who asks: each call brings a place for them, or none.
    let wait_ns = DeviceTensor::<i64, 1>::zeros(&group, 0, [2]).unwrap();
    let timed = low_latency_dispatch::Outputs { wait_ns: Some(wait_ns.clone()), ..outputs.clone() };
    let few = low_latency_dispatch::Outputs { wait_ns: Some(wait_ns.first(1)), ..outputs.clone() };
    kernel.launch(0, &call, &inputs, &timed, &args).map(drop).unwrap();
    let error = kernel.launch(0, &call, &inputs, &few, &args).map(drop).unwrap_err();
    let text = "LowLatencyDispatch: `wait_ns` has extents [1], not [2]";
    assert_eq!((error.to_string().as_str(), launches()), (text, 10));
    let short = low_latency_dispatch::Handle { src_info: kept[0].src_info.first(1), ..tables() };
    let error = kernel.send_into(0, &call, &inputs, &outputs, &args, &short).err().unwrap();
    let text = "LowLatencyDispatch: `src_info` has extents [1, 16], not [2, 16]";
    assert_eq!((error.to_string().as_str(), launches()), (text, 10));
}

/// Kernels know where the rows of each expert begin: its scales lie by row or by column.
#[test]
fn lists_of_rows_lie_one_behind_another() {
    let group = group();
    let shape = low_latency_dispatch::Shape {
        nodes: 1,
        hidden: 256,
        topk: 2,
        experts: 4,
        max_tokens: TOKENS,
        tokens: TOKENS,
    };
    let payload = low_latency_dispatch::Payload::Fp8;
    let options = low_latency_dispatch::Options { payload, live: 9, ..Default::default() };
    let kernel = LowLatencyDispatch::prepare(&group, shape, options).unwrap();
    let inputs = low_latency_dispatch::Inputs {
        x: DeviceTensor::zeros(&group, 0, [3, 256]).unwrap(),
        topk_idx: DeviceTensor::zeros(&group, 0, [3, 2]).unwrap(),
        expert_begin: DeviceTensor::from_slice(&group, 0, [3], &[0, 2, 4]).unwrap(),
    };
    let rows = 2 * TOKENS as i64;
    let said = |strides: [i64; 3]| {
        let outputs = kernel.outputs(0).unwrap();
        let packed_x = outputs.packed_x;
        let low_latency_dispatch::PayloadTensor::Fp8 { x, scale } = packed_x else { panic!() };
        // SAFETY: nothing is launched with it.
        let scale = unsafe { DeviceTensor::from_raw(scale.address(), scale.extents(), strides) };
        let packed_x = low_latency_dispatch::PayloadTensor::Fp8 { x, scale };
        let outputs = low_latency_dispatch::Outputs { packed_x, ..outputs };
        let (call, args) = (CallOptions::default(), low_latency_dispatch::Args::default());
        let launched = kernel.launch(0, &call, &inputs, &outputs, &args);
        launched.err().map_or_else(String::new, |error| error.to_string())
    };
    assert_eq!(said([2 * rows, 2, 1]), "");
    assert_eq!(said([2 * rows, 1, rows]), "", "a column of each expert behind another");
    for strides in
        [[rows, 1, 2 * rows], [2 * rows, 1, rows + 1], [2 * rows + 2, 2, 1], [2 * rows, 3, 1]]
    {
        let text = format!(
            "has strides {strides:?}, and has to consist of consecutive lists of rows of 32 elements each"
        );
        assert!(said(strides).ends_with(&text), "{}", said(strides));
    }
}

/// The kernels of one window, with room for two calls of each.
fn in_one_window(group: &Group) -> (nvl_dispatch::Kernel, nvl_combine::Kernel) {
    let room = Room { tables: 2, window: 2 };
    let dispatch = nvl_dispatch::Kernel::chosen(&SHAPE, &Default::default(), |chosen| {
        CallProgram::emit(group, &AnyPipeline::of::<NvlDispatch>(), chosen, room).unwrap()
    });
    let back = nvl_combine::Shape { hidden: HIDDEN, topk: 2, tokens: TOKENS, received: 2 * TOKENS };
    let weightless = nvl_combine::Options {
        weights: false,
        combined_weights: false,
        bias: 0,
        ..Default::default()
    };
    let combine = nvl_combine::Kernel::chosen(&back, &weightless, |chosen| {
        CallProgram::emit(group, &AnyPipeline::of::<NvlCombine>(), chosen, room).unwrap()
    });
    let mut loader = Loader::new(group, &[&dispatch, &combine]).unwrap();
    let dispatch = nvl_dispatch::Kernel { core: loader.load(dispatch, 12).unwrap() };
    let combine = nvl_combine::Kernel { core: loader.load(combine, 12).unwrap() };
    (dispatch, combine)
}

/// What one kernel leaves in a window another one reads there, and each has regions of its own.
#[test]
fn kernels_of_one_window_read_what_the_others_leave() {
    let calls = Calls::new(nvl_dispatch::Options::default());
    let (dispatch, combine) = in_one_window(&calls.group);
    let call = CallOptions::default();
    let outputs = dispatch.outputs(0).unwrap();
    let sent = dispatch.launch(
        0,
        &call,
        &calls.inputs,
        &outputs,
        &calls.routes,
        None,
        &Default::default(),
    );
    let sent = sent.unwrap();
    let combined = DeviceTensor::zeros(&calls.group, 0, [TOKENS, HIDDEN]).unwrap();
    let sums = nvl_combine::Outputs { combined, combined_weights: None };
    let back = |rows: &nvl_dispatch::PayloadTensor<2>| {
        let nvl_dispatch::PayloadTensor::Bf16 { x } = rows else { panic!("another payload") };
        let x = x.clone();
        let rows = nvl_combine::Inputs { x, weights: None, bias: [None, None] };
        let args = nvl_combine::Args { tokens: TOKENS, ..Default::default() };
        combine.launch(0, &call, &rows, &sums, &calls.routes, &sent, &args)
    };
    back(&outputs.recv_x).unwrap();
    let elsewhere = back(&calls.outputs.recv_x).unwrap_err().to_string();
    assert!(
        elsewhere.contains("`x` is at") && elsewhere.contains("outside of the window"),
        "{elsewhere}"
    );
    let regions = [dispatch.outputs(0).unwrap().recv_x, outputs.recv_x.clone()].map(|rows| {
        let nvl_dispatch::PayloadTensor::Bf16 { x } = rows else { panic!("another payload") };
        x
    });
    let bytes = (2 * TOKENS * HIDDEN * 2) as u64;
    let mut at = regions.iter().map(DeviceTensor::address).collect::<Vec<_>>();
    let offers = [0, 1].map(|_| combine.offers(0).unwrap().x);
    at.extend(offers.iter().map(DeviceTensor::address));
    at.sort_unstable();
    // The offers lie behind the outputs, and the window ends with them.
    let window = &combine.core.inner.window;
    at.push(window.own(0).unwrap() + window.bytes());
    assert!(at.windows(2).all(|two| two[1] - two[0] >= bytes), "{at:x?}");
}

/// Nothing of several calls is launched until all of them are checked.
#[test]
fn a_call_is_checked_apart_from_its_launch() {
    let calls = Calls::new(nvl_dispatch::Options { live: 2, ..Default::default() });
    let tables = calls.kernel.tables(0).unwrap();
    assert_eq!(tables.send_row.extents(), [TOKENS as u64, 2]);
    let call = CallOptions::default();
    let Calls { kernel, inputs, outputs, routes, group } = &calls;
    let args = nvl_dispatch::Args::default();
    let wrong = layout::Handle::default();
    let refused = kernel.bind_into(0, &call, inputs, outputs, &wrong, None, &args, &tables).err();
    assert!(refused.is_some_and(|error| error.to_string().contains("`in_rank`")));
    let bound = kernel.bind_into(0, &call, inputs, outputs, routes, None, &args, &tables).unwrap();
    let turn = group.begin(0, &call, || Box::new(())).unwrap();
    bound.launch(&turn, &call).unwrap();
    group.end(turn, &call).unwrap();
    drop(bound);
    // The tables hold one of two places.
    let handle = calls.launch().unwrap();
    assert!(handle.send_row.address() != tables.send_row.address());
    assert!(calls.launch().is_err() && calls.kernel.tables(0).is_err());
    drop(tables);
    calls.launch().unwrap();
}

/// Tables and outputs of a caller of many calls.
fn hold(calls: &Calls, tables: &nvl_dispatch::Handle) -> Result<Held, CallError> {
    let Calls { kernel, inputs, outputs, routes, .. } = calls;
    let mut given = nvl_dispatch::Kernel::NO_TENSORS;
    at::expert_begin.put(&inputs.expert_begin, &mut given);
    at::recv_x.put(&outputs.recv_x, &mut given);
    at::recv_topk_idx.put(outputs.recv_topk_idx.as_ref(), &mut given);
    at::recv_topk_weights.put(outputs.recv_topk_weights.as_ref(), &mut given);
    at::rows_records.put(outputs.rows_records.as_ref(), &mut given);
    at::in_rank.put(&routes.in_rank, &mut given);
    at::stripe_tokens.put(&routes.stripe_tokens, &mut given);
    at::rank_prefix.put(&routes.rank_prefix, &mut given);
    at::stripe_prefix.put(&routes.stripe_prefix, &mut given);
    at::recv_src.put(&tables.recv_src, &mut given);
    at::send_head.put(&tables.send_head, &mut given);
    at::send_row.put(&tables.send_row, &mut given);
    kernel.core.hold(0, &given)
}

/// A caller that owns tensors has them checked once; its calls check the rest.
#[test]
fn what_is_held_is_checked_once() {
    let mut calls = Calls::new(nvl_dispatch::Options { live: 3, ..Default::default() });
    let tables = [(); 2].map(|()| calls.kernel.tables(0).unwrap());
    let held = hold(&calls, &tables[0]).unwrap();
    let (call, args) = (CallOptions::default(), nvl_dispatch::Args::default());
    let numbers = nvl_dispatch::Kernel::numbers(&args);
    // What the kernel reads of a call, and its sizes.
    let words = |calls: &Calls, bound: Result<BoundCall<'_>, CallError>| {
        let (bound, spec) =
            (bound.map_err(|error| error.to_string())?, &calls.kernel.core.inner.spec);
        let read = bound.values.iter().zip(&spec.is_read).filter(|(_, is_read)| **is_read);
        Ok::<_, String>((read.map(|(word, _)| *word).collect::<Vec<u64>>(), bound.left.sizes))
    };
    let with = |calls: &Calls, held: &[&Held], rows: usize| {
        let nvl_dispatch::PayloadTensor::Bf16 { x } = &calls.inputs.x else { panic!("{rows}") };
        let x = nvl_dispatch::PayloadTensor::Bf16 { x: x.first(rows) };
        let topk_idx = calls.inputs.topk_idx.as_ref().map(|idx| idx.first(rows));
        let weights = calls.inputs.topk_weights.as_ref().map(|it| it.first(rows));
        let mut given = nvl_dispatch::Kernel::NO_TENSORS;
        at::x.put(&x, &mut given);
        at::topk_idx.put(topk_idx.as_ref(), &mut given);
        at::topk_weights.put(weights.as_ref(), &mut given);
        words(calls, calls.kernel.core.bind_with(0, &call, held, &given, &numbers))
    };
    let brought = |calls: &Calls, into: &nvl_dispatch::Handle| {
        let Calls { kernel, inputs, outputs, routes, .. } = calls;
        words(calls, kernel.bind_into(0, &call, inputs, outputs, routes, None, &args, into))
    };
    let other = brought(&calls, &tables[1]).unwrap();
    assert_eq!(with(&calls, &[&held], TOKENS), brought(&calls, &tables[0]));
    assert_ne!(with(&calls, &[&held], TOKENS).unwrap(), other);
    let (_, sizes) = with(&calls, &[&held], 3).unwrap();
    assert_eq!(sizes[..2], [3, 2 * TOKENS as u64], "fewer tokens than the tables have room for");
    let absent = with(&calls, &[], TOKENS).unwrap_err();
    assert_eq!(absent, "NvlDispatch: `expert_begin` is absent");
    // Outputs say how many rows there may be.
    let whole = calls.outputs.recv_topk_idx.take();
    calls.outputs.recv_topk_idx = whole.as_ref().map(|it| it.first(5));
    let few = hold(&calls, &tables[0]).unwrap();
    assert_eq!(with(&calls, &[&few], TOKENS).unwrap().1[1], 5);
    calls.routes.in_rank = calls.routes.in_rank.first(2);
    let error = hold(&calls, &tables[0]).unwrap_err().to_string();
    assert_eq!(error, "NvlDispatch: `in_rank` has extents [2, 2], not [8, 2]");
    let mut given = nvl_dispatch::Kernel::NO_TENSORS;
    at::x.put(&calls.inputs.x, &mut given);
    let error = calls.kernel.core.hold(0, &given).unwrap_err().to_string();
    assert_eq!(error, "NvlDispatch: `x` is a different tensor in each call");
}

/// Libraries give an empty tensor no address, and a kernel takes a tensor without one for absent: its rank would
/// receive no experts and weights from others.
#[test]
fn a_tensor_without_elements_is_there() {
    let calls = Calls::new(nvl_dispatch::Options { live: 2, ..Default::default() });
    let tables = calls.kernel.tables(0).unwrap();
    let held = hold(&calls, &tables).unwrap();
    let nvl_dispatch::PayloadTensor::Bf16 { x } = &calls.inputs.x else { unreachable!() };
    let x = nvl_dispatch::PayloadTensor::Bf16 { x: x.first(0) };
    // SAFETY: they have no elements.
    let (topk_idx, weights) = unsafe {
        (
            DeviceTensor::<i64, 2>::from_raw(0, [0, 2], [2, 1]),
            DeviceTensor::<f32, 2>::from_raw(0, [0, 2], [2, 1]),
        )
    };
    let mut given = nvl_dispatch::Kernel::NO_TENSORS;
    at::x.put(&x, &mut given);
    at::topk_idx.put(&topk_idx, &mut given);
    at::topk_weights.put(&weights, &mut given);
    let numbers = nvl_dispatch::Kernel::numbers(&nvl_dispatch::Args::default());
    let core = &calls.kernel.core;
    let bound = core.bind_with(0, &CallOptions::default(), &[&held], &given, &numbers).unwrap();
    for name in ["topk_idx", "topk_weights"] {
        let place = core.inner.spec.names.iter().position(|it| it.name == name).unwrap();
        assert_ne!(bound.values[WORDS * place], 0, "{name}");
    }
}

/// A kernel knows one row stride for all copies: it would read the second one wrongly.
#[test]
fn copies_of_a_tensor_have_one_row_stride() {
    let calls = Calls::new(nvl_dispatch::Options::default());
    let (dispatch, _) = in_one_window(&calls.group);
    let outputs = dispatch.outputs(0).unwrap();
    let call = CallOptions::default();
    let Calls { inputs, routes, group, .. } = &calls;
    let sent =
        dispatch.launch(0, &call, inputs, &outputs, routes, None, &Default::default()).unwrap();
    let shape =
        nvl_combine::Shape { hidden: HIDDEN, topk: 2, tokens: TOKENS, received: 2 * TOKENS };
    let combine = NvlCombine::prepare(group, shape, Default::default()).unwrap();
    let offers = combine.offers(0).unwrap();
    let args = nvl_combine::Args { tokens: TOKENS, ..Default::default() };
    let said = |apart: [i64; 2]| {
        // SAFETY: nothing is launched that follows the address.
        let bias = apart.map(|row| unsafe {
            DeviceTensor::from_raw(1 << 20, [TOKENS as u64, HIDDEN as u64], [row, 1])
        });
        let (x, weights) = (offers.x.clone(), offers.weights.clone());
        let inputs = nvl_combine::Inputs { x, weights, bias: bias.map(Some) };
        let outputs = combine.outputs(0).unwrap();
        let made = combine.launch(0, &call, &inputs, &outputs, routes, &sent, &args);
        made.err().map_or_else(String::new, |error| error.to_string())
    };
    assert_eq!(said([72, 72]), "");
    assert_eq!(said([64, 72]), "NvlCombine: all tensors of `bias` need the same row stride");
}

/// The other process joins, and makes neither the kernel nor the call.
#[test]
fn a_kernel_without_channels_is_prepared_and_launched_by_one_process_alone() {
    let id = UniqueId::local().unwrap();
    let join = |rank| {
        let member = Member { rank, ranks: 2 };
        let store = Store::join(&id, member, Duration::from_secs(60)).unwrap();
        Group::new(FakeBackend::joined(store), GroupOptions::default()).unwrap()
    };
    let (group, _other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| join(1));
        (join(0), other.join().unwrap())
    });
    let shape = local_layout::Shape { nodes: 1, topk: 2, experts: 4, stripes: 2, tokens: TOKENS };
    let options = local_layout::Options::default();
    let core = local_layout::Kernel::chosen(&shape, &options, |it| {
        CallKernel::prepare_alone(&group, AnyPipeline::of::<LocalLayout>(), it)
    });
    let kernel = local_layout::Kernel { core: core.unwrap() };
    let inputs = local_layout::Inputs {
        topk_idx: DeviceTensor::zeros(&group, 0, [TOKENS, 2]).unwrap(),
        expert_begin: DeviceTensor::from_slice(&group, 0, [3], &[0, 2, 4]).unwrap(),
    };
    let outputs = kernel.outputs(0).unwrap();
    kernel.launch(0, &CallOptions::sms(1), &inputs, &outputs, &Default::default()).unwrap();

    let counts = layout::Shape { topk: 2, experts: 4, stripes: 2, tokens: TOKENS };
    let refused = layout::Kernel::chosen(&counts, &Default::default(), |it| {
        CallKernel::prepare_alone(&group, AnyPipeline::of::<Layout>(), it).err()
    });
    assert_eq!(
        refused.unwrap().to_string(),
        "layout has channels to other ranks: prepare it in all processes together"
    );
}
