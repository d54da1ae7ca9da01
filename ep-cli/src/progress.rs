//! A progress bar on standard error, where that is a terminal; nothing is drawn elsewhere.

use indicatif::{ProgressBar, ProgressStyle};

/// How far a long command is.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(crate) fn new(total: u64) -> Progress {
        let style = ProgressStyle::with_template("[{bar:24}] {pos}/{len} {msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("#>.");
        Progress { bar: ProgressBar::new(total).with_style(style) }
    }

    /// On a terminal that a test looks at.
    #[cfg(test)]
    pub(crate) fn on(terminal: &indicatif::InMemoryTerm, total: u64) -> Progress {
        let progress = Progress::new(total);
        let target =
            indicatif::ProgressDrawTarget::term_like_with_hz(Box::new(terminal.clone()), 255);
        progress.bar.set_draw_target(target);
        progress
    }

    /// How many there are.
    #[cfg(test)]
    pub(crate) fn total(&self) -> Option<u64> {
        self.bar.length()
    }

    /// Names the part that runs now.
    pub(crate) fn begin(&self, part: impl Into<String>) {
        self.bar.set_message(part.into());
    }

    /// One more is done, of the part called `part`.
    pub(crate) fn step(&self, part: &str) {
        self.bar.set_message(part.to_owned());
        self.bar.inc(1);
    }

    /// Does something that prints, while the bar is out of the way.
    pub(crate) fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }
}

/// Other output follows.
impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::InMemoryTerm;

    #[test]
    fn a_terminal_shows_how_far_it_is_and_nothing_behind_the_end() {
        let terminal = InMemoryTerm::new(4, 80);
        let progress = Progress::on(&terminal, 8);
        (0..4).for_each(|_| progress.step("schedules"));
        progress.bar.tick();
        assert_eq!(terminal.contents(), "[############>...........] 4/8 schedules");
        progress.aside(|| assert_eq!(terminal.contents(), "", "it is out of the way"));
        drop(progress);
        assert_eq!(terminal.contents(), "");
    }
}
