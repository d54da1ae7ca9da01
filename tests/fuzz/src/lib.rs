//! Inputs that nobody thought of: made from kept ones and from seeds, over and over, and given to
//! something that must not panic.
//!
//! What a target says to an input is what guides the search: an input that is answered in a new way
//! is changed further. A failing input is written to `tests/corpus/TARGET`, whose files are tried
//! first in every run. A run is repeated by its seed.
//!
//! | variable | |
//! |---|---|
//! | `EPFORGE_FUZZ_INPUTS` | inputs for each target; 2000 if nothing is said |
//! | `EPFORGE_FUZZ_SECONDS` | or as many as fit into this time |
//! | `EPFORGE_FUZZ_SEED` | the seed; 1 if nothing is said |
//! | `EPFORGE_FUZZ_KEEP` | so many of the short inputs that are answered in a new way are kept too |
//! | `EPFORGE_FUZZ_LAST` | a file that each input is written to before it is tried, for those that end the process |

mod change;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use change::{Random, change};

/// The longest input that is made.
const LONGEST: usize = 1 << 14;

/// The longest input that is kept for its answer alone.
const SHORT: usize = 400;

/// Inputs that are changed further, at most.
const POOL: usize = 4096;

/// The longest that one input may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Something that takes inputs from outside.
pub struct Target<'a> {
    /// Its name, and that of its folder below `tests/corpus`.
    pub name: &'a str,
    /// Inputs to begin with.
    pub seeds: Vec<Vec<u8>>,
    /// Words that mean something to it.
    pub words: &'a [&'a str],
}

/// How long to go on.
enum Budget {
    Inputs(u64),
    Until(Instant),
}

impl Budget {
    fn of_environment() -> Budget {
        match (number("EPFORGE_FUZZ_SECONDS"), number("EPFORGE_FUZZ_INPUTS")) {
            (Some(seconds), _) => Budget::Until(Instant::now() + Duration::from_secs(seconds)),
            (None, inputs) => Budget::Inputs(inputs.unwrap_or(2000)),
        }
    }

    fn is_spent(&self, tried: u64) -> bool {
        match self {
            Budget::Inputs(inputs) => tried >= *inputs,
            Budget::Until(end) => Instant::now() >= *end,
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is a number, not `{value}`")))
}

impl Target<'_> {
    /// Tries the kept inputs, the seeds, and what comes of them. `check` panics if something is wrong,
    /// and else says what became of the input, in few different ways.
    ///
    /// # Panics
    ///
    /// When `check` does, with the name of the file that holds the input.
    pub fn run(&self, check: impl Fn(&[u8]) -> String) {
        let seed = number("EPFORGE_FUZZ_SEED").unwrap_or(1);
        let mut random = Random::new(seed);
        let mut pool = self.kept();
        pool.extend(self.seeds.iter().cloned());
        let mut answers = BTreeSet::new();
        for input in &pool {
            answers.insert(self.attempt(&check, input));
        }
        if pool.is_empty() {
            pool.push(Vec::new());
        }
        let (budget, begun, mut tried) = (Budget::of_environment(), Instant::now(), 0);
        let mut keeps = number("EPFORGE_FUZZ_KEEP").unwrap_or(0);
        while !budget.is_spent(tried) {
            let mut input = random.one_of(&pool).clone();
            for _ in 0..=random.below(6) {
                change(&mut input, &pool, self.words, &mut random);
            }
            input.truncate(LONGEST);
            if answers.insert(self.attempt(&check, &input)) && pool.len() < POOL {
                if keeps > 0 && input.len() <= SHORT {
                    self.keep(&input);
                    keeps -= 1;
                }
                pool.push(input);
            }
            tried += 1;
        }
        // Past the capture of the harness, which hides what passing tests print.
        let _ = writeln!(
            std::io::stderr(),
            "{}: {tried} inputs of seed {seed}, {} different answers, {:.1} s",
            self.name,
            answers.len(),
            begun.elapsed().as_secs_f64()
        );
    }

    /// The folder of the kept inputs.
    fn folder(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus").join(self.name)
    }

    /// The kept inputs, in the order of their names.
    fn kept(&self) -> Vec<Vec<u8>> {
        let Ok(entries) = fs::read_dir(self.folder()) else { return Vec::new() };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        let read =
            |path: &PathBuf| fs::read(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        paths.iter().map(read).collect()
    }

    /// What `check` says; an input that it fails for is kept.
    fn attempt(&self, check: &impl Fn(&[u8]) -> String, input: &[u8]) -> String {
        if let Some(last) = env::var_os("EPFORGE_FUZZ_LAST") {
            fs::write(&last, input).unwrap_or_else(|error| panic!("{last:?}: {error}"));
        }
        let begun = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| check(input)));
        let took = begun.elapsed();
        match outcome {
            Ok(answer) if took < PATIENCE => answer,
            Ok(_) => panic!("{} takes {took:?} for {}", self.name, self.keep(input)),
            Err(_) => panic!("{} panics for {}", self.name, self.keep(input)),
        }
    }

    /// Writes an input to the folder; gives its path.
    fn keep(&self, input: &[u8]) -> String {
        let name = input.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let path = self.folder().join(format!("{name:016x}"));
        let written = fs::create_dir_all(self.folder()).and_then(|()| fs::write(&path, input));
        match written {
            Ok(()) => path.display().to_string(),
            Err(error) => format!("{input:?}, which cannot be kept: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn target(name: &str) -> Target<'_> {
        Target { name, seeds: vec![b"depth=4".to_vec()], words: &["depth", "stages"] }
    }

    /// The search gets to inputs that are answered in a new way, one step at a time.
    #[test]
    fn the_search_finds_its_way() {
        let best = Cell::new(0);
        target("none").run(|input| {
            let same = input.iter().zip(b"stages=").take_while(|(a, b)| a == b).count();
            best.set(best.get().max(same));
            same.to_string()
        });
        assert_eq!(best.get(), 7);
    }

    #[test]
    fn a_failing_input_is_kept_and_tried_first() {
        let name = format!("../../target/fuzz-{}", std::process::id());
        let target = target(&name);
        let check = |input: &[u8]| {
            assert!(input.len() < 12, "it is too long");
            String::new()
        };
        let failed = catch_unwind(AssertUnwindSafe(|| target.run(check)));
        let said = failed.unwrap_err();
        let said = said.downcast_ref::<String>().cloned().unwrap_or_default();
        let kept = target.kept();
        assert_eq!((kept.len(), said.contains("panics for")), (1, true), "{said}");
        let tried = Cell::new(0);
        let again = catch_unwind(AssertUnwindSafe(|| {
            target.run(|input| {
                tried.set(tried.get() + 1);
                check(input)
            });
        }));
        fs::remove_dir_all(target.folder()).unwrap();
        assert!(again.is_err() && tried.get() == 1);
    }
}
