//! What a schedule is looked at for, and how its kernels are compiled for that.

use clap::ValueEnum;
use ep_runtime::host::Build;

/// So many schedules take longer than to compile for them.
const MANY: u64 = 50;

/// What is looked for besides wrong results, deadlocks and accesses of flags outside their memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Mode {
    /// No extra checks: as many schedules as possible
    Fast,
    /// Happens-before: find accesses that nothing orders
    Hb,
    /// Run the address and undefined-behavior sanitizers
    Asan,
}

impl Mode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Mode::Fast => "fast",
            Mode::Hb => "hb",
            Mode::Asan => "asan",
        }
    }

    /// How texts are compiled that run in so many schedules.
    pub(super) fn build(self, schedules: u64) -> Build {
        match self {
            Mode::Fast if schedules < MANY => Build::Plain,
            Mode::Fast => Build::Fast,
            Mode::Hb => Build::Checked,
            Mode::Asan => Build::Sanitized,
        }
    }
}
