//! What checks have compared, and what differs.

use std::fmt;

use crate::oracle::Differences;

/// What was compared, and what differs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Findings {
    /// Name of a check, and what it found.
    pub checks: Vec<(String, Differences)>,
}

impl Findings {
    /// Whether everything was as the oracle says.
    pub fn is_good(&self) -> bool {
        self.checks.iter().all(|(_, differences)| differences.is_empty())
    }

    pub(crate) fn add(&mut self, name: impl Into<String>, differences: Differences) {
        self.checks.push((name.into(), differences));
    }

    /// Takes what other checks have found as well.
    pub fn merge(&mut self, other: Findings) {
        self.checks.extend(other.checks);
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wrong: Vec<_> = self.checks.iter().filter(|(_, d)| !d.is_empty()).collect();
        let compared: u64 = self.checks.iter().map(|(_, d)| d.compared).sum();
        if wrong.is_empty() {
            return write!(f, "{} checks, {compared} values equal", self.checks.len());
        }
        write!(f, "{} of {} checks failed", wrong.len(), self.checks.len())?;
        wrong.iter().try_for_each(|(name, differences)| write!(f, "\n{name}: {differences}"))
    }
}
