//! Roles that wait for one another.

use super::Diagnostic;
use crate::ast::Ident;

/// What keeps a role from going on.
pub(crate) enum Waits {
    /// Something that another role does.
    For(String),
    /// The statements above.
    Turn,
    /// The phases before.
    Phase,
    /// All roles that are not on the last block.
    Others,
}

/// One wait of a circle.
pub(crate) struct Link<'a> {
    /// The word that stands for the statement that waits.
    pub(crate) word: &'a Ident,
    /// The role that waits.
    pub(crate) role: &'a Ident,
    /// What it waits for.
    pub(crate) what: Waits,
}

impl Link<'_> {
    fn sentence(&self) -> String {
        let role = self.role;
        match &self.what {
            Waits::For(what) => format!("`{role}` waits here for {what}"),
            Waits::Turn => {
                format!("`{role}` reaches this statement only after the statements above")
            }
            Waits::Phase => format!("`{role}` begins only after the phases above"),
            Waits::Others => format!("`{role}` begins only when all other roles are done"),
        }
    }
}

/// A circle of waits; `own`: the ring through which a role waits for itself, and whether it passes on what it takes.
pub(crate) fn circle(links: &[Link<'_>], own: Option<(&Ident, bool)>) -> Diagnostic {
    let waits: Vec<(&Ident, &str)> = links
        .iter()
        .filter_map(|link| match &link.what {
            Waits::For(what) => Some((link.role, what.as_str())),
            Waits::Turn | Waits::Phase | Waits::Others => None,
        })
        .collect();
    let sentence = |(index, (role, what)): (usize, &(&Ident, &str))| match index {
        0 => format!("`{role}` waits forever for {what}"),
        _ => format!("`{role}` for {what}"),
    };
    let sentences: Vec<String> = waits.iter().enumerate().map(sentence).collect();
    let first = links.iter().position(|link| matches!(link.what, Waits::For(_))).unwrap_or(0);
    let at = links
        .get(first)
        .map_or_else(|| proc_macro2::Span::call_site().into(), |link| link.word.span());
    let phases = links.iter().any(|link| matches!(link.what, Waits::Phase));
    let last = links.iter().any(|link| matches!(link.what, Waits::Others));
    let help = match (own, waits.len()) {
        _ if last => "give the role on the last block its own blocks".to_string(),
        _ if phases => "empty the ring in the phase that fills it, or use `slots`".to_string(),
        (Some((ring, true)), _) => {
            format!("make `{ring}` a `slots` channel, which has a place for each message of a call")
        }
        (Some((ring, false)), _) => format!("fill and empty `{ring}` in two roles, or use `slots`"),
        (None, 1) => "move this below the statement that it waits for".to_string(),
        (None, _) => "empty channels in the order in which they are filled".to_string(),
    };
    let mut error = Diagnostic::new(at, sentences.join(", and ")).help(help);
    for (_, link) in links.iter().enumerate().filter(|(index, _)| *index != first) {
        error = error.also(link.word, link.sentence());
    }
    error
}
