//! `protocol.md`: every signal of the kept configurations, who gives it, and who waits for it.

use std::collections::BTreeSet;
use std::fmt::Write;

use ep_runtime::ir::facts::{End, facts};
use ep_runtime::ir::{Pipeline, text};

const HEAD: &str = "\
# Signals and their waits

What the ranks of each pipeline wait for, as its declaration implies it. A number stands at both ends in the emitted text; lines count
from that of the `pipeline`. `messages` have come, a `header` says how many there will be, what is `ready` may be written or read, and a
`credit` gives room back. How each travels is at the head of the header of its channel's kind.
";

/// The signals of pipelines, one choice of arms after the other.
#[derive(Default)]
pub(crate) struct Protocol {
    sections: String,
    told: BTreeSet<(String, String)>,
}

impl Protocol {
    /// Adds those of a selected pipeline, unless another choice of arms has the same.
    pub(crate) fn add(&mut self, name: &str, arms: &str, selected: &Pipeline) {
        let pairs = facts(selected).pairs;
        let mut rows = String::new();
        for pair in &pairs {
            let (publish, consume) = (end(&pair.publish), end(&pair.consume));
            let (number, what, channel) = (pair.number, pair.what.name(), &pair.channel);
            let _ = writeln!(rows, "| W{number} | {what} of `{channel}` | {publish} | {consume} |");
        }
        if pairs.is_empty() || !self.told.insert((name.to_owned(), rows.clone())) {
            return;
        }
        let _ = write!(self.sections, "\n## {name}");
        if !arms.is_empty() {
            let _ = write!(self.sections, ", {arms}");
        }
        self.sections.push_str("\n\n```text\n");
        for channel in &selected.channels {
            let _ = writeln!(self.sections, "{}", text::channel(channel));
        }
        self.sections.push_str("```\n\n| | what | given by | awaited by |\n|---|---|---|---|\n");
        self.sections.push_str(&rows);
    }

    /// The whole of it.
    pub(crate) fn text(self) -> String {
        format!("{HEAD}{}", self.sections)
    }
}

/// A statement of a role, in a cell of a table.
fn end(end: &End) -> String {
    let text = end.text.replace('|', "\\|");
    format!("`{}` +{}: `{text}`", end.role, end.line)
}

#[cfg(test)]
mod tests {
    use ep_runtime::Pipeline as _;
    use ep_runtime::pipelines::{LowLatencyDispatch, NodeDispatch};

    use super::*;

    #[test]
    fn every_signal_is_told_once() {
        let mut protocol = Protocol::default();
        let mut count = 0;
        for ir in [NodeDispatch::ir(), LowLatencyDispatch::ir()] {
            let selected = ir.select(&ir.choices()[0]);
            count += facts(&selected).pairs.len();
            protocol.add(&ir.name, "", &selected);
            protocol.add(&ir.name, "again", &selected);
        }
        let text = protocol.text();
        assert_eq!(text.matches("\n| W").count(), count, "{text}");
        assert!(text.contains("| W1 | ") && text.contains(" of `rail` | `RdmaSend` +"), "{text}");
        assert!(!text.contains("again"), "{text}");
    }
}
