//! Lookups in a selected pipeline for the rule that finds dispatches in one launch.

use crate::ir::{Channel, DimKind, Expr, Message, Pipeline, Source, Stmt, Tensor, WellKnown, walk};
use crate::schedule::WhyNot;
use crate::schedule::extents::range_of;

/// Ranks of which a lane has a set in registers: two words.
pub(super) const RANKS_MAX: i64 = 128;

pub(super) type Checked = Result<(), WhyNot>;

/// A pipeline that is asked about.
pub(super) struct Facts<'a> {
    pub(super) ir: &'a Pipeline,
}

impl<'a> Facts<'a> {
    /// A reason at the place with this source.
    pub(super) fn refuse<T>(&self, at: &Source, why: &str) -> Result<T, WhyNot> {
        Err(WhyNot::new(at, why))
    }

    /// A statement of another form.
    pub(super) fn no_form(&self, stmt: &Stmt) -> WhyNot {
        WhyNot::new(&stmt.at, "the rule does not know this form of the statement")
    }

    fn lacks(&self, what: &str, name: &str) -> WhyNot {
        let at = Source { line: 0, text: self.ir.name.clone() };
        WhyNot::new(&at, &format!("no {what} `{name}`"))
    }

    pub(super) fn tensor(&self, name: &str) -> Result<&'a Tensor, WhyNot> {
        let found = self.ir.tensors.iter().find(|tensor| tensor.name == name);
        found.ok_or_else(|| self.lacks("tensor", name))
    }

    pub(super) fn message(&self, channel: &Channel) -> Result<&'a Message, WhyNot> {
        let found = self.ir.messages.iter().find(|message| message.name == channel.message);
        found.ok_or_else(|| self.lacks("message", &channel.message))
    }

    pub(super) fn ranks_max(&self) -> i64 {
        let ranks = self.ir.dims.iter().find(|dim| WellKnown::Ranks.is(&dim.name));
        match ranks.map(|dim| &dim.kind) {
            Some(DimKind::Given { .. }) => {
                range_of(self.ir, WellKnown::Ranks.name()).map_or(0, |(_, high)| high)
            }
            _ => 0,
        }
    }

    /// The most that an extent may be in any shape.
    pub(super) fn most(&self, extent: &Expr) -> i64 {
        match extent {
            Expr::Int { value } => *value,
            Expr::Name { name, .. } => {
                range_of(self.ir, name).map_or(i64::from(i32::MAX), |(_, high)| high)
            }
            _ => i64::from(i32::MAX),
        }
    }

    /// Nothing that may be absent is read where nothing is skipped.
    pub(super) fn refuse_optional(&self, stmt: &Stmt, whole: &Expr) -> Checked {
        let mut optional = false;
        walk::expr(whole, &mut |part| {
            optional |= matches!(part, Expr::Element { tensor, .. }
                if self.tensor(tensor).is_ok_and(|tensor| tensor.optional));
        });
        if optional {
            return self.refuse(
                &stmt.at,
                "an optional tensor can be used only in a statement that can be skipped",
            );
        }
        Ok(())
    }
}

pub(super) fn is_name(expr: &Expr, name: &str) -> bool {
    matches!(expr, Expr::Name { name: own, .. } if own == name)
}
