//! What a plan refuses, in which words, and with which kind of error.

use ep_runtime::ir::Transport;
use ep_runtime::jit::Arch;
use ep_runtime::pipelines::{
    Expand, Layout, LowLatencyCombine, LowLatencyDispatch, NodeDispatch, NvlCombine, NvlDispatch,
    PackedDispatch,
};
use ep_runtime::plan::{Body, Config, Plan, PlanError, plan};
use ep_runtime::{AnyPipeline, Pipeline};

use crate::emitted::shaped;

/// The plan of `entry` with these names set on top of the reference shape.
fn planned(entry: &AnyPipeline, arch: Arch, set: &[(&str, &str)]) -> Result<Plan, PlanError> {
    let ir = entry.ir();
    let mut config = shaped(entry, Config::new(&ir, arch), &[]);
    for (name, value) in set {
        config.set(&ir, name, value)?;
    }
    plan(&ir, &config)
}

/// The sentence of a refusal, and whether it is wrong use.
fn refusal(entry: &AnyPipeline, set: &[(&str, &str)]) -> String {
    let error = planned(entry, Arch::Sm90a, set).expect_err("it is refused");
    let kind = if error.is_wrong_use() { "wrong use" } else { "does not fit" };
    format!("{set:?}\n  {kind}: {error}\n")
}

const DISPATCH: AnyPipeline = AnyPipeline::of::<NvlDispatch>();

/// Kernels that move rows between ranks are begun as a whole, those around them need not be.
#[test]
fn only_rows_need_all_blocks_at_once() {
    let waits = |entry: &AnyPipeline, set: &[(&str, &str)]| {
        planned(entry, Arch::Sm90a, set).unwrap_or_else(|error| panic!("{error}")).waits
    };
    for entry in [AnyPipeline::of::<Layout>(), AnyPipeline::of::<Expand>()] {
        assert!(!waits(&entry, &[]), "{}", entry.name);
    }
    for via in ["direct", "ring"] {
        assert!(waits(&DISPATCH, &[("via", via)]), "{via}");
    }
    for via in ["pull", "ring"] {
        assert!(waits(&AnyPipeline::of::<NvlCombine>(), &[("via", via)]), "{via}");
    }
}

/// Phases that meet in slots alone are one kernel for who asks for both; a hop that hands tables on is not.
#[test]
fn phases_of_few_tokens_are_one_kernel() {
    let joined = |entry: &AnyPipeline, set: &[(&str, &str)]| {
        planned(entry, Arch::Sm90a, set).unwrap_or_else(|error| panic!("{error}")).joined
    };
    for payload in ["bf16", "fp8", "fp8-packed"] {
        let found = joined(&AnyPipeline::of::<LowLatencyDispatch>(), &[("payload", payload)]);
        assert_eq!(found.as_deref(), Some("low_latency_dispatch"), "{payload}");
    }
    for wire in ["bf16", "logfmt"] {
        let found = joined(&AnyPipeline::of::<LowLatencyCombine>(), &[("wire", wire)]);
        assert_eq!(found.as_deref(), Some("low_latency_combine"), "{wire}");
    }
    assert_eq!(joined(&AnyPipeline::of::<NodeDispatch>(), &[]), None);
    assert_eq!(joined(&DISPATCH, &[]), None, "one phase is one kernel anyway");
}

#[test]
fn wrong_names_and_values_say_what_is_taken() {
    let refusals: Vec<String> = [
        [("rank", "8")].as_slice(),
        &[("ranks", "0")],
        &[("ranks", "65")],
        &[("ranks", "eight")],
        &[("hidden", "2881")],
        &[("payload", "fp16")],
        &[("stages", "5")],
        &[("via", "ring"), ("stripes", "64")],
        &[("topk_idx", "2")],
    ]
    .into_iter()
    .map(|set| refusal(&DISPATCH, set))
    .collect();
    insta::assert_snapshot!(refusals.concat());
}

#[test]
fn limits_name_the_statement_and_the_numbers() {
    let ring = [("via", "ring"), ("depth", "16"), ("chunk", "16")];
    let direct = [("send_warps", "16"), ("stages", "6"), ("piece", "7168")];
    let refusals = [refusal(&DISPATCH, &ring), refusal(&DISPATCH, &direct)];
    insta::assert_snapshot!(refusals.concat());
}

/// One network carries the rows of a kernel: one that all of its channels to other machines list.
#[test]
fn what_carries_rows_is_listed_by_every_channel() {
    let entry = AnyPipeline::of::<LowLatencyDispatch>();
    let carrier = |set: &[(&str, &str)]| planned(&entry, Arch::Sm90a, set).map(|it| it.carrier);
    assert_eq!(carrier(&[]), Ok(Some(Transport::Rdma)), "whatever the order of the list");
    assert_eq!(carrier(&[("network", "ibgda")]), Ok(Some(Transport::Ibgda)));
    let constant = |set: &[(&str, &str)]| {
        let plan = planned(&entry, Arch::Sm90a, set).unwrap_or_else(|error| panic!("{error}"));
        let mut members = plan.cfg.iter().flat_map(|group| &group.members);
        members.find(|member| member.name == "kIbgda").map(|member| member.value)
    };
    assert_eq!((constant(&[("network", "ibgda")]), constant(&[])), (Some(1), Some(0)));
    let mut ir = NodeDispatch::ir();
    let mut config = shaped(&AnyPipeline::of::<NodeDispatch>(), Config::new(&ir, Arch::Sm90a), &[]);
    let far = ir.channels.iter_mut().find(|channel| channel.over.contains(&Transport::Rdma));
    far.expect("the rail").over = vec![Transport::Rdma];
    config.carrier = Some(Transport::Ibgda);
    let text = "NodeDispatch: `network` is ibgda, it takes what every channel to other machines lists: rdma";
    let error = plan(&ir, &config).expect_err("one of them is not over ibgda");
    assert_eq!(error.to_string(), text);
    assert!(error.is_wrong_use());
}

#[test]
fn a_shape_number_without_a_value_is_named() {
    let entry = AnyPipeline::of::<Layout>();
    let ir = entry.ir();
    let error = plan(&ir, &Config::new(&ir, Arch::Sm90a)).expect_err("no number is given");
    assert_eq!(error.to_string(), "Layout: `ranks` has no value; give it with --set ranks=N");
    assert!(error.is_wrong_use());
}

#[test]
fn derived_numbers_cannot_be_set() {
    let entry = AnyPipeline::of::<LowLatencyDispatch>();
    let error = planned(&entry, Arch::Sm90a, &[("local_experts", "4")]).expect_err("it is derived");
    assert!(error.is_wrong_use() && error.to_string().contains("derived"), "{error}");
}

/// The widest rows, the most ranks and the most choices: what does not fit says so, nothing overflows or
/// panics, and what fits is within what CUDA takes. The smallest of each fits everywhere.
#[test]
fn every_corner_of_the_shape_plans_or_says_why() {
    for entry in ep_runtime::pipelines::ALL {
        let ir = entry.ir();
        for choice in ir.choices() {
            for arch in Arch::ALL {
                for high in [false, true] {
                    let mut config = Config { choice: choice.clone(), ..Config::new(&ir, arch) };
                    for dim in &ir.dims {
                        if let ep_runtime::ir::DimKind::Given { low, high: top, .. } = dim.kind {
                            config.dims.insert(dim.name.clone(), if high { top } else { low });
                        }
                    }
                    match plan(&ir, &config) {
                        Ok(plan) => {
                            assert!(plan.threads % 32 == 0 && (32..=1024).contains(&plan.threads));
                            assert!((72..=4096).contains(&plan.args_bytes), "{}", plan.args_bytes);
                            let ends = plan.window.iter().map(|it| it.offset + it.bytes);
                            assert!(ends.max().unwrap_or(0) <= plan.window_bytes);
                        }
                        Err(error) => {
                            assert!(high && !error.is_wrong_use(), "{} {arch:?}: {error}", ir.name);
                        }
                    }
                }
            }
        }
    }
}

/// Fewer tensors need no more of anything.
#[test]
fn absent_tensors_cost_nothing() {
    let entry = AnyPipeline::of::<NvlCombine>();
    let all = planned(&entry, Arch::Sm90a, &[]).expect("the reference shape fits");
    let bare = planned(&entry, Arch::Sm90a, &[("bias", "0"), ("weights", "0")]).expect("it fits");
    let meta = |plan: &Plan| plan.messages.iter().map(|it| it.meta_bytes).collect::<Vec<_>>();
    assert_eq!((meta(&all), meta(&bare)), (vec![32], vec![0]));
    assert_eq!(bare.shared_bytes, all.shared_bytes, "weights go by registers");
    assert_eq!(bare.window_bytes, all.window_bytes, "rows are read where they lie");
}

/// Rows through a ring whose consumer reads nothing by lanes, so that no fence has to come before the
/// stores into its slots.
mod waiving {
    ep_runtime::pipeline! {
        pub pipeline Passing {
            shape { ranks: 1..=64, hidden: 16..=32768 step 16 }
            tune { stripes: 4 in [4, 12], depth: 64 in [32, 48, 64], chunk: 8 in [4, 8] }
            size tokens;
            size received = num_rows[0, 0];
            input x: bf16[tokens, hidden], in_rank: bool[tokens, ranks];
            input first_row: i32[ranks, stripes], num_rows: i32[ranks, stripes];
            output recv_x: bf16[received, hidden];
            message Token { row x: bf16[hidden] }
            channel ring: ring<Token> over nvlink from Send to Recv per all {
                depth: depth, chunk: chunk, header: [first, count],
                waive: credit_fence "slots are read by bulk copies alone",
            };
            role Send[peer] on even blocks {
                announce ring[peer] { first: first_row[peer, stripe], count: num_rows[peer, stripe] };
                for token in stripe where in_rank[token, peer] {
                    push ring[peer] { x: x[token] };
                }
            }
            role Recv[peer] on odd blocks {
                for message in ring[peer] at ring[peer].first {
                    store recv_x[message.row] = message.x;
                }
            }
        }
    }
}

#[test]
fn a_waiver_comes_with_the_plan_and_the_text() {
    let entry = AnyPipeline::of::<waiving::Passing>();
    let plan = planned(&entry, Arch::Sm90a, &[("ranks", "2"), ("hidden", "64")]).expect("a plan");
    let [(channel, waiver)] = plan.waivers.as_slice() else { panic!("{:?}", plan.waivers) };
    assert_eq!((channel.as_str(), waiver.policy.as_str()), ("ring", "credit_fence"));
    let line = "// Waived for ring: credit_fence, slots are read by bulk copies alone\n";
    let cuda = plan.cuda(&Body::default());
    assert!(cuda.contains(line), "{cuda}");
}

#[test]
fn a_ring_has_a_power_of_two_slots() {
    let entry = AnyPipeline::of::<waiving::Passing>();
    let error = planned(&entry, Arch::Sm90a, &[("ranks", "2"), ("hidden", "64"), ("depth", "48")]);
    let error = error.expect_err("positions wrap at 2^32").to_string();
    assert!(error.contains("64 slots") && error.contains("there are 48"), "{error}");
    assert!(error.contains("power of two"), "{error}");
}

/// Between many ranks messages are filled once for all far ones, and so are those whose slots would take too much memory.
#[test]
fn an_outbox_holds_tokens_or_slots_of_ranks() {
    let outbox = |entry: &AnyPipeline, set: &[(&str, &str)]| {
        let plan = planned(entry, Arch::Sm90a, set).unwrap_or_else(|error| panic!("{error}"));
        let found = plan.network.iter().find(|region| region.name == "rows.outbox");
        found.map(|region| region.formula.clone()).unwrap_or_default()
    };
    let per_expert = |ranks, nodes, tokens, once| {
        let set = [("payload", "fp8"), ("ranks", ranks), ("nodes", nodes), ("max_tokens", tokens)];
        let set = [&set[..], &[("once", once)]].concat();
        outbox(&AnyPipeline::of::<LowLatencyDispatch>(), &set)
    };
    let per_rank = |ranks, nodes| {
        let set = [("payload", "fp8"), ("via", "slots"), ("ranks", ranks), ("nodes", nodes)];
        let set = [&set[..], &[("max_tokens", "128")]].concat();
        outbox(&AnyPipeline::of::<PackedDispatch>(), &set)
    };
    assert_eq!(per_expert("16", "2", "128", "32"), "2 epochs x 8 peers x 2048 slots x 7424");
    assert_eq!(per_expert("16", "2", "128", "1"), "2 epochs x 128 messages x 7424");
    assert_eq!(per_expert("16", "2", "160", "32"), "2 epochs x 160 messages x 7424");
    assert_eq!(per_expert("64", "8", "128", "32"), "2 epochs x 128 messages x 7424");
    assert_eq!(per_expert("64", "8", "64", "2048"), "2 epochs x 56 peers x 256 slots x 7424");
    assert_eq!(per_expert("8", "1", "128", "1"), "");
    assert_eq!(per_rank("16", "2"), "2 epochs x 8 peers x 128 slots x 7552");
    assert_eq!(per_rank("64", "8"), "2 epochs x 128 messages x 7552");
}
