//! `epforge check --courses`: runs the courses of mutations without any mutation. They are calls of every arm,
//! each way in which kernels are made, shapes that drawn ones seldom have, and the functions of the device library.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use ep_runtime::host::Programs;

use super::fault::Fault;
use super::mutate::{Course, Way, courses};
use super::pool::on_all_cores;
use super::trial::{LIMIT, STRIKES, struck_seed};
use super::{Tally, show_report};
use crate::failure::Failure;
use crate::json::{Object, Value};
use crate::problem::no_machine;
use crate::progress::Progress;

/// What strikes a rank, where a course has faults, beside a run without.
const FAULTS: [Fault; 2] = [Fault::StoppedRank, Fault::DeadRank];

/// Runs every course under `schedules` schedules from `seed` on.
pub(super) fn run(
    schedules: u64,
    seed: u64,
    json: bool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let started = Instant::now();
    let programs = Programs::find().map_err(no_machine)?;
    let courses = courses(&programs)?;
    let mut tallies: Vec<Tally> = courses.iter().map(|_| Tally::default()).collect();
    let each = usize::try_from(schedules).unwrap_or(usize::MAX);
    let place = |number: usize| (number / each, seed + (number % each) as u64);
    let work = |number: usize| {
        let (index, seed) = place(number);
        schedule(&courses[index], &programs, seed)
    };
    let progress = Progress::new(courses.len() as u64 * schedules);
    on_all_cores(courses.len().saturating_mul(each), work, |number, outcome| {
        let (index, seed) = place(number);
        tallies[index].done += 1;
        match outcome {
            Ok(steps) => tallies[index].steps += steps,
            Err(report) => drop(tallies[index].failures.insert(seed, report)),
        }
        progress.step(&courses[index].name);
    });
    drop(progress);
    for (course, tally) in courses.iter().zip(&tallies) {
        show(&course.name, tally, json, out)?;
    }
    let (failed, all) =
        (tallies.iter().filter(|it| !it.failures.is_empty()).count(), courses.len());
    if !json {
        let seconds = started.elapsed().as_secs_f64();
        writeln!(
            out,
            "{schedules} schedules of each, {failed} of {all} courses failed, {seconds:.1} s"
        )?;
    }
    match failed {
        0 => Ok(()),
        _ => Err(Failure::Failed(format!("{failed} of {all} courses failed"))),
    }
}

/// Runs a course under a schedule, and with each fault if it has any. Gives the steps of the first run.
fn schedule(course: &Course, programs: &Arc<Programs>, seed: u64) -> Result<u64, String> {
    let mut way = Way {
        build: course.build(),
        seed,
        mutation: 0,
        struck: None,
        max_steps: u64::MAX,
        isolation: Some(LIMIT),
    };
    let steps = course.run(programs, way)??;
    let strikes = FAULTS.into_iter().flat_map(|fault| (0..STRIKES).map(move |turn| (fault, turn)));
    for (fault, turn) in strikes.filter(|_| course.has_faults()) {
        let place = fault.drawn(course.ranks(), struck_seed(seed, turn), steps);
        way.struck = Some((fault, place));
        let struck = course.run(programs, way)?;
        struck.map_err(|report| format!("with {}: {report}", fault.name()))?;
    }
    Ok(steps)
}

fn show(name: &str, tally: &Tally, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let steps = tally.steps as f64 / 1e6;
    let replay = |seed: u64| format!("epforge check --courses 1 --seed {seed}");
    if json {
        let object = Object::new()
            .with("course", name)
            .with("schedules", tally.done)
            .with("million_steps", Value::Tenths(steps));
        writeln!(out, "{}", tally.with_failure(object, replay))?;
        return Ok(());
    }
    let Some((seed, report)) = tally.failures.first_key_value() else {
        writeln!(out, "  ok      {name:46} {steps:.1} million steps")?;
        return Ok(());
    };
    writeln!(out, "  FAILED  {name:46} with seed {seed}")?;
    show_report(report, &replay(*seed), out)
}

#[cfg(test)]
mod tests {
    use ep_runtime::host::mutant::{DEVICE_LIBRARY, Mutant};

    use super::*;

    /// Bugs that were planted without a look at the courses, and those that found them when they had calls for it:
    /// fewer tokens between two calls of many, a bound beyond the tokens, several tiles, one long stripe.
    const PLANTED: [(&str, &str); 22] = [
        (
            "decode-combine, many rows of a warp",
            "== more slices are held than there are lanes\nin ep/slot_rows.cuh\n\
             - if (held_ + count > kLanes) tell_slices();\n+ \n",
        ),
        (
            "node-dispatch, tight",
            "== slots are given back before their small fields are read\nin node_dispatch.cu\n\
             - rail.release(source);\n+ if (!takes) rail.release(source);\nand\n\
             - ep::copy_row<ep::e4m3, 4>(team, slot_2, slot, Cfg::kHidden);\n\
             + ep::copy_row<ep::e4m3, 4>(team, slot_2, slot, Cfg::kHidden);\n\
             + rail.release(source);\n",
        ),
        (
            "expand, much padding",
            "== a warp fills once what an expert leaves free\nin expand.cu\n\
             - place < place_end; ++place) {\n+ place < place_end; place += 65536) {\n",
        ),
        (
            "functions, one launch as words",
            "== few rows go as words in call 0\nin ep/one_launch.cuh\n\
             - as_words_(are_words<Rows>(team.epoch, tokens)) {\n\
             + as_words_(tokens <= Rows::kFewTokens) {\n",
        ),
        (
            "nvl-combine, in order",
            "== a bias is added before the parts\nin nvl_combine.cu\n\
             - decltype(i)> sum(0.0f);\n\
             + decltype(i)> sum(0.0f);\n\
             + for (int copy = 0; copy < args.bias_count; ++copy) sum += ep::to_float(ep::get_wide<ep::bf16>(\n\
             + &args.bias[copy][token * args.bias_stride], i, Cfg::kHidden));\nand\n\
             - sum_2 += ep::to_float(\n+ (void)ep::to_float(\n",
        ),
        (
            "node-dispatch, tight",
            "== slots are given back while their row is loaded\nin node_dispatch.cu\n\
             - inner.release_after(part, mover.rows_begun());\n\
             + inner.release_after(part, mover.rows_loaded());\n",
        ),
        (
            "low-latency-dispatch without a rank",
            "== a rank that takes no part is told as well\nin ep/slot_rows.cuh\n\
             - const bool drops = !some || team_.stopped || !End::joins(peer) || End::missed(peer);\n\
             + const bool drops = !some || team_.stopped || End::missed(peer);\n",
        ),
        (
            "expand, short of room",
            "== who fills does not ask for room\nin expand.cu\n\
             - pad(const Args& args, ep::Team& team) {\n\
             -     ep::require_room(team, args.expert_first[Cfg::kLocalExperts], args.expanded_capacity);\n\
             + pad(const Args& args, ep::Team& team) {\n",
        ),
        (
            "low-latency-combine, tiles",
            "== the tile before is awaited\nin low_latency_combine.cu\n\
             - + row / 64], args.done_at,\n\
             + + (row - first) / 64], args.done_at,\n",
        ),
        (
            "low-latency-combine, tiles",
            "== a tile is awaited at its first row only\nin low_latency_combine.cu\n\
             - if (args.tile_done == nullptr || ep::await_word(team,\n\
             + if (args.tile_done == nullptr || (row != first && row % 64 != 0) || ep::await_word(team,\n",
        ),
        (
            "low-latency-combine, tiles",
            "== a share waits at the first rows of a tile only\nin low_latency_combine.cu\n\
             - if (args.tile_done == nullptr || ep::await_word(team,\n\
             + if (args.tile_done == nullptr || row % 64 >= Cfg::kShares || ep::await_word(team,\n",
        ),
        (
            "node-combine",
            "== a stripe without tokens does not keep where its rings stand\nin node_combine.cu\n\
             - const int token_begin = rows.begin;\n\
             + if (rows.begin == rows.end) continue;\n\
             + const int token_begin = rows.begin;\n",
        ),
        (
            "packed-dispatch, few of many",
            "== rows are offered by the bound of the tokens\nin packed_dispatch.cu\n\
             - once_offer<Cfg::Rows>(args.group, args.came_at, tokens);\n\
             + once_offer<Cfg::Rows>(args.group, args.came_at, args.tokens);\n",
        ),
        (
            "low-latency-dispatch, tiles",
            "== a tile is counted within its source\nin low_latency_dispatch.cu\n\
             - ep::i64{expert} * Cfg::kTiles + ep::i64{row} / 64\n\
             + ep::i64{expert} * Cfg::kTiles + (share + turn * Cfg::kShares) / 64\n",
        ),
        (
            "functions, warps",
            "== the longest stripe is rounded down\nin ep/rows.cuh\n\
             - (rows + stripes - 1) / stripes;\n\
             + rows < stripes ? rows : rows / stripes;\n",
        ),
        (
            "expand, short of room",
            "== a row more than there is room for goes by\nin ep/places.cuh\n\
             - if (rows <= capacity || team.stopped) return;\n\
             + if (rows <= capacity + 1 || team.stopped) return;\n",
        ),
        (
            "low-latency-dispatch, wide",
            "== the first of two kernels ends the call\nin low_latency_dispatch.cu\n\
             - call.ends = false;\n\
             + call.ends = true;\n",
        ),
        (
            "nvl-dispatch, wide plain",
            "== scales are taken from one block of each row\nin nvl_dispatch.cu\n\
             - + i * args.recv_x_scale_block_stride]\n\
             + + 0 * args.recv_x_scale_block_stride]\n",
        ),
        (
            "low-latency-dispatch, tiles",
            "== one lane tells of a row that others may still store\nin low_latency_dispatch.cu\n\
             - ep::raise_word(team,\n\
             -                     &args.arrived_rows[ep::i64{expert} * Cfg::kTiles + ep::i64{row} / 64]);\n\
             + if (team.leader() && !team.stopped) ep::add_release_gpu(reinterpret_cast<ep::u32*>(\n\
             +     &args.arrived_rows[ep::i64{expert} * Cfg::kTiles + ep::i64{row} / 64]), 1u);\n",
        ),
        (
            "a rank without tokens",
            "== a rank without tokens does not wait until others have read\nin nvl_combine.cu\n\
             -     ep::pull_wait_released<Cfg::Parts>(team);\n\
             +     if (ep::rows_of(args.tokens, args.tokens_from) > 0) {\n\
             +         ep::pull_wait_released<Cfg::Parts>(team);\n\
             +     }\n",
        ),
        (
            "node-combine, tight",
            "== slots are given back before the weights in them are read\nin node_combine.cu\n\
             -                         rail.publish((node + stripe) % Cfg::kNodes);\n\
             -                     }\n\
             -                     parts.close();\n\
             +                         rail.publish((node + stripe) % Cfg::kNodes);\n\
             +                     }\n\
             and\n\
             -                         for (int base_2 = 0; base_2 < Cfg::Part::kWeightsCount;\n\
             +                         parts.close();\n\
             +                         for (int base_2 = 0; base_2 < Cfg::Part::kWeightsCount;\n",
        ),
        (
            "expand without a rank",
            "== nobody counts the call\nin expand.cu\n- ep::leave(args.group, call);\n+ (void)call;\n",
        ),
    ];

    #[test]
    fn courses_find_what_was_planted_blind_at_length() {
        let Ok(programs) = Programs::find() else { return };
        let all = courses(&programs).unwrap_or_else(|_| panic!("every course has a plan"));
        for (name, planted) in PLANTED {
            let course = all.iter().find(|course| course.name == name).expect(name);
            let planted = &Mutant::parse(planted).unwrap()[0];
            let report = schedule(course, &programs.planted(planted), 1).expect_err(name);
            assert!(!report.contains("does not compile") && !report.contains("occurs"), "{report}");
        }
    }

    #[test]
    fn the_too_small_error_works_for_every_channel_kind_at_length() {
        let Ok(programs) = Programs::find() else { return };
        let all = courses(&programs).unwrap_or_else(|_| panic!("every course has a plan"));
        let unheard = "== nobody looks at the room\nin ep/places.cuh\n\
                       - if (rows <= capacity || team.stopped) return;\n+ return;\n";
        let unheard = programs.planted(&Mutant::parse(unheard).unwrap()[0]);
        // In direct channels senders look.
        let looks = |it: &&Course| it.name.contains("short of room") && !it.name.contains("direct");
        let short: Vec<&Course> = all.iter().filter(looks).collect();
        assert_eq!(short.len(), 6);
        let deaf = |course: &&Course| schedule(course, &unheard, 1).is_ok();
        let deaf: Vec<&str> =
            short.into_iter().filter(deaf).map(|course| course.name.as_str()).collect();
        assert!(deaf.is_empty(), "{deaf:?}");
    }

    #[test]
    fn a_course_is_good_and_finds_a_planted_bug_at_length() {
        let Ok(programs) = Programs::find() else { return };
        let all = courses(&programs).unwrap_or_else(|_| panic!("every course has a plan"));
        let counts = all.iter().find(|course| course.name == "functions, counts").unwrap();
        assert!(schedule(counts, &programs, 3).unwrap() > 0);
        let planted = Mutant::parse(DEVICE_LIBRARY).unwrap();
        let name = "counters: a block begins with what another one has counted";
        let planted = planted.iter().find(|mutant| mutant.name == name).unwrap();
        assert!(schedule(counts, &programs.planted(planted), 3).is_err());
    }
}
