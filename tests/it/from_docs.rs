//! Pipelines as authors write them from the manual alone: what the compiler says to first attempts, and
//! programs of every kind, which leave what was worked out for them by hand.

mod all_gather;
mod broadcast;
mod butterfly;
mod by_hand;
mod capped_rows;
mod computed_peer;
mod computed_rows;
mod dense;
mod drop;
mod exchange_scan;
mod expert_choice;
mod forwarder;
mod fragments;
mod gate;
mod global_load;
mod local_combine;
mod max_over_ranks;
mod nested;
mod next_rank;
mod planted;
mod prefetch;
mod private_count;
mod quantised_shift;
mod reduce_scatter;
mod remote_lookup;
mod scaled_combine;
mod sparse_sum;
mod two_channels;
mod two_payloads;
mod two_sources;
mod ulysses;
mod weight_histogram;

use std::fs;
use std::path::Path;

use ep_codegen::{expansion, lower, render, syntax};
use ep_tests::rust_files;

/// Diagnostics of a file, and for an accepted one the number of its texts.
fn verdict(source: &str) -> String {
    let blocks = syntax::blocks(source).expect("the text is made of Rust tokens");
    let mut lines = Vec::new();
    for block in blocks {
        let (file, errors) =
            expansion::front_end(block, &|path| Err(format!("{path} is not here")));
        if !errors.is_empty() {
            lines.push(errors.to_text(source));
            continue;
        }
        for pipeline in &file.pipelines {
            let ir = lower::lower(&file, pipeline);
            let rendered =
                ir.choices().iter().filter_map(|c| render::body(&ir.select(c)).ok()).count();
            lines.push(format!("{}: {rendered} of {} texts", ir.name, ir.choices().len()));
        }
    }
    lines.join("\n")
}

#[test]
fn the_first_and_last_attempts_read_as_their_snapshots() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("inputs/from_docs");
    for path in rust_files(&folder) {
        let source = fs::read_to_string(&path).expect("the fixture is a text");
        let mut settings = insta::Settings::clone_current();
        settings.set_input_file(&path);
        settings.set_snapshot_suffix(path.file_name().unwrap_or_default().to_string_lossy());
        settings.bind(|| insta::assert_snapshot!(verdict(&source)));
    }
}

macro_rules! programs {
    ($($name:ident),* $(,)?) => {$(
        #[test]
        fn $name() {
            $name::by_hand().check();
        }
    )*

        #[test]
        fn programs_leave_the_same_on_gpus() {
            if let Some(_turn) = crate::gpus::turn() {
                $($name::by_hand().check_on_gpus();)*
            }
        }
    };
}

programs! {
    all_gather, broadcast, butterfly, capped_rows, computed_peer, computed_rows, dense, drop, exchange_scan, expert_choice, forwarder,
    fragments, gate, global_load, local_combine, max_over_ranks, nested, next_rank, prefetch, private_count, quantised_shift,
    reduce_scatter, remote_lookup, scaled_combine, sparse_sum, two_channels, two_payloads, two_sources, ulysses, weight_histogram,
}

/// Fields of which lanes copy units of 16 bytes, and single elements where there are no whole units.
#[test]
fn a_wide_field_arrives_as_it_was_sent() {
    if crate::host::programs().is_none() {
        return;
    }
    let source = include_str!("from_docs/two_payloads.rs").replace("8..=512 step 8", "8..=512");
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wide_field.rs");
    fs::write(&path, source).expect("a file for the declaration");
    for rope in [512, 264, 267] {
        let line = format!(
            "epforge bench wide-field --declarations {} --backend host --ranks 2 --iterations 0 --tokens 40 \
             --sms 2 --set hidden=64 --set rope_dim={rope}",
            path.display()
        );
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = ep_cli::run(line.split_whitespace(), &[], &mut out, &mut err);
        assert_eq!(code, 0, "{}{}", String::from_utf8_lossy(&out), String::from_utf8_lossy(&err));
    }
}
