//! All ranks make the same buffer, or each of them learns which rank makes another one.

use sha2::{Digest, Sha256};

use super::options::{BufferOptions, Payload, Via};
use super::programs::Programs;
use crate::error::CallError;
use crate::group::Group;

/// A number of a buffer, and what it says to a reader.
struct Number {
    what: &'static str,
    value: u64,
    words: fn(u64) -> String,
}

fn numbers(options: &BufferOptions, ranks: usize) -> Vec<Number> {
    let number = |what, value: usize| Number { what, value: value as u64, words: plain };
    let place = |at: Option<usize>| at.unwrap_or(0) as u64;
    let payload = Payload::ALL.iter().position(|payload| *payload == options.payload);
    let via = Via::ALL.iter().position(|via| *via == options.via);
    vec![
        number("hidden", options.hidden),
        number("topk", options.topk),
        number("experts", options.experts),
        number("tokens", options.tokens),
        Number { what: "payload", value: place(payload), words: payload_words },
        Number { what: "via", value: place(via), words: via_words },
        number("capacity", options.capacity(ranks)),
        number("live", options.live),
        number("handles", options.handles()),
        number("shared_rows", usize::from(options.shared_rows)),
        number("graphs_keep", usize::from(options.graphs_keep)),
        number("weights", usize::from(options.weights)),
        number("biases", options.biases),
        number("cached", usize::from(options.cached)),
        choice("one_launch", options.one_launch),
        choice("push_combine", options.push_combine),
        number("alignment", usize::try_from(options.alignment).unwrap_or(0)),
        digest("placement", options.placement(ranks).begin().iter().map(i32::to_string)),
        digest("tunes", [format!("{:?}", options.tunes)].into_iter()),
    ]
}

/// Something that the buffer decides unless it is said.
fn choice(what: &'static str, said: Option<bool>) -> Number {
    Number { what, value: said.map_or(2, u64::from), words: choice_words }
}

/// Something whose value is too long for a sentence.
fn digest(what: &'static str, parts: impl Iterator<Item = String>) -> Number {
    let mut all = Sha256::new();
    for part in parts {
        all.update((part.len() as u64).to_le_bytes());
        all.update(part);
    }
    let bytes: [u8; 32] = all.finalize().into();
    let mut first = [0; 8];
    first.copy_from_slice(&bytes[..8]);
    Number { what, value: u64::from_le_bytes(first), words: |value| format!("#{value:016x}") }
}

fn plain(value: u64) -> String {
    value.to_string()
}

fn payload_words(value: u64) -> String {
    let payload = usize::try_from(value).ok().and_then(|index| Payload::ALL.get(index).copied());
    payload.map_or_else(|| plain(value), |payload| payload.name().to_string())
}

fn choice_words(value: u64) -> String {
    let words = ["off", "on", "left open"];
    usize::try_from(value)
        .ok()
        .and_then(|at| words.get(at))
        .map_or_else(|| plain(value), |it| (*it).to_string())
}

fn via_words(value: u64) -> String {
    let via = usize::try_from(value).ok().and_then(|index| Via::ALL.get(index).copied());
    via.map_or_else(|| plain(value), |via| via.name().to_string())
}

/// Compares what a buffer is made for with the other processes; they are asked for each number only
/// when the digests differ.
pub(super) fn agree_on_options(group: &Group, options: &BufferOptions) -> Result<(), CallError> {
    let numbers = numbers(options, group.ranks());
    let all = digest("options", numbers.iter().map(|number| number.value.to_string()));
    if same(&group.gather("make a buffer", all.value)?) {
        return Ok(());
    }
    for number in &numbers {
        compare(group, number)?;
    }
    Ok(())
}

/// Compares the kernels, which differ where the processes are not of one build.
pub(super) fn agree_on_programs(group: &Group, programs: &Programs) -> Result<(), CallError> {
    for program in programs.all() {
        let emitted = program.emitted();
        let parts = [emitted.cuda.clone(), format!("{:?}", emitted.plan)];
        compare(group, &digest("kernels", parts.into_iter()))?;
    }
    Ok(())
}

fn compare(group: &Group, number: &Number) -> Result<(), CallError> {
    let all = group.gather(&format!("compare the {} of a buffer", number.what), number.value)?;
    let first = group.local().start;
    // Each process drives one rank, or one process all of them.
    let own =
        if all.len() > 1 { all.get(first).copied().unwrap_or(number.value) } else { number.value };
    match all.iter().position(|value| *value != own) {
        None => Ok(()),
        Some(other) => Err(CallError::Disagreement {
            what: number.what,
            rank: first,
            value: (number.words)(own),
            other,
            other_value: (number.words)(all[other]),
        }),
    }
}

fn same(all: &[u64]) -> bool {
    all.windows(2).all(|pair| pair[0] == pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{Buffer, BufferTunes, BuiltIn, Emit, StandardPipeline};
    use crate::emit::Emitted;
    use crate::fake::FakeBackend;
    use crate::group::GroupOptions;
    use crate::join::{Member, Store, UniqueId};
    use ep_codegen::plan::Config;
    use std::sync::{Arc, Barrier};
    use std::time::Duration;

    /// Makes a buffer in each of three processes, all of which come, and gives what each of them says.
    fn made(
        options: impl Fn(usize) -> BufferOptions + Sync,
        emit: impl Fn(usize) -> Box<dyn Emit> + Sync,
    ) -> Vec<String> {
        let alike = |_: usize, _: &FakeBackend| ();
        made_within(Duration::from_secs(60), (options, emit), alike, |_| ())
    }

    /// Makes a buffer in each of three processes, and gives what each of them says. A process waits for
    /// the others for at most `deadline`. Each process calls `prepare` before it makes its group and its
    /// buffer, and calls `end` afterwards.
    fn made_within(
        deadline: Duration,
        (options, emit): (
            impl Fn(usize) -> BufferOptions + Sync,
            impl Fn(usize) -> Box<dyn Emit> + Sync,
        ),
        prepare: impl Fn(usize, &FakeBackend) + Sync,
        end: impl Fn(usize) + Sync,
    ) -> Vec<String> {
        let id = UniqueId::local().unwrap();
        let make = |rank: usize| {
            let member = Member { rank, ranks: 3 };
            let store = Store::join(&id, member, deadline).unwrap();
            let backend = FakeBackend::joined(store);
            prepare(rank, &backend);
            let group = Group::new(backend, GroupOptions::default()).unwrap();
            let made = Buffer::new(&group, options(rank), emit(rank).as_ref());
            end(rank);
            made.map_or_else(|error| error.to_string(), |_| "made".to_string())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|rank| scope.spawn(move || make(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn standard(_: usize) -> Box<dyn Emit> {
        Box::new(BuiltIn)
    }

    #[test]
    fn another_shape_on_one_rank_is_named_on_all() {
        let usual = || BufferOptions::new(8, 64, 2, 6);
        let odd = |rank: usize| BufferOptions {
            hidden: if rank == 2 { 128 } else { 64 },
            // A rank whose own options are wrong says so only when the others agree with them.
            live: if rank == 2 { 0 } else { 1 },
            ..usual()
        };
        let text = |rank: usize| {
            format!(
                "rank 2 makes a buffer with hidden 128, and rank {rank} makes one with hidden 64"
            )
        };
        let own = "rank 0 makes a buffer with hidden 64, and rank 2 makes one with hidden 128";
        assert_eq!(made(odd, standard), [text(0), text(1), own.to_string()]);
        let payload = |rank: usize| BufferOptions {
            payload: if rank == 0 { Payload::Fp8 } else { Payload::Bf16 },
            ..usual()
        };
        let said = made(payload, standard);
        assert_eq!(
            said[1],
            "rank 0 makes a buffer with payload fp8, and rank 1 makes one with payload bf16"
        );
        assert_eq!(made(|_| usual(), standard), ["made"; 3]);
        let one_launch = |rank: usize| BufferOptions {
            one_launch: if rank == 1 { Some(false) } else { None },
            ..usual()
        };
        let said = made(one_launch, standard);
        let text = "rank 1 makes a buffer with one_launch off, and rank 0 makes one with one_launch left \
                open";
        assert_eq!(said[0], text);
        let tuned = |rank: usize| {
            let mut tunes = BufferTunes::default();
            tunes.nvl_dispatch.stages = Some(if rank == 1 { 4 } else { 3 });
            BufferOptions { tunes, ..usual() }
        };
        let said = made(tuned, standard);
        assert!(said[0].starts_with("rank 1 makes a buffer with tunes #"), "{said:?}");
    }

    /// Rank 1 comes from another build.
    struct Other(bool);

    impl Emit for Other {
        fn emit(&self, pipeline: StandardPipeline, config: &Config) -> Result<Emitted, CallError> {
            let mut emitted = BuiltIn.emit(pipeline, config)?;
            if self.0 && pipeline == StandardPipeline::Layout {
                emitted.cuda.push(' ');
            }
            Ok(emitted)
        }
    }

    #[test]
    fn other_kernels_on_one_rank_are_named_on_all() {
        let said = made(|_| BufferOptions::new(8, 64, 2, 6), |rank| Box::new(Other(rank == 1)));
        assert!(said[2].starts_with("rank 1 makes a buffer with kernels #"), "{said:?}");
        assert!(said[1].starts_with("rank 0 makes a buffer with kernels #"), "{said:?}");
    }

    /// Rank 2 compiles until the others have given up. No clock decides who comes when: all are at the same
    /// step before the others begin to wait.
    #[test]
    fn a_rank_that_still_compiles_is_named() {
        let (compiling, given_up) = (Arc::new(Barrier::new(3)), Arc::new(Barrier::new(3)));
        let prepare = |rank: usize, backend: &FakeBackend| {
            let (compiling, given_up) = (Arc::clone(&compiling), Arc::clone(&given_up));
            let before = move || {
                compiling.wait();
                if rank == 2 {
                    given_up.wait();
                }
            };
            backend.before_layout.set(Box::new(before)).ok().unwrap();
        };
        let end = |rank: usize| {
            if rank != 2 {
                given_up.wait();
            }
        };
        let usual = (|_: usize| BufferOptions::new(8, 64, 2, 6), standard);
        let said = made_within(Duration::from_secs(2), usual, prepare, end);
        let text = "rank 2 did not join within 2s; what rank 2 said last is `compile DecodeCombine, \
                DecodeDispatch, Layout, NvlDispatch`";
        assert_eq!(said[..2], [text, text]);
    }
}
