//! Which expressions are rows, and how long these are.

use crate::ir::{Expr, Fold, WellKnown};
use crate::schedule::limit::broken;
use crate::schedule::scope::{Arrived, Meaning, Scope};
use crate::schedule::term::Term;
use crate::schedule::{Lowered, RoleLowering};

impl<'a> RoleLowering<'a> {
    /// Whether the expression gives a row, and not one value.
    pub(in crate::schedule) fn is_row(&self, scope: &Scope, expr: &Expr) -> Lowered<bool> {
        Ok(match expr {
            Expr::Element { tensor, indices } => indices.len() < self.tensor(tensor)?.dims.len(),
            Expr::Field { of, field, indices } => match scope.find(of) {
                Some(Meaning::Message(arrived)) => {
                    let (_, layout) = self.carried(&arrived.channel)?;
                    let known = layout.fields.iter().find(|known| known.name == *field);
                    known.is_some_and(|known| indices.len() < known.dims.len())
                }
                None => indices.len() < self.tensor(of)?.dims.len(),
                _ => false,
            },
            Expr::OfChannel { channel, field, indices, .. } => {
                let (_, layout) = self.carried(channel)?;
                let known = layout.fields.iter().find(|known| known.name == *field);
                known.is_some_and(|known| indices.len() < known.dims.len())
            }
            Expr::Name { name, .. } => match scope.find(name) {
                Some(Meaning::Row(row, there)) => self.is_row(there, row)?,
                _ => false,
            },
            Expr::Call { helper, .. }
                if ["listed", "routed", "routed_bits", "routed_node"].contains(&&**helper) =>
            {
                false
            }
            Expr::Call { helper, args } => {
                let mut row = helper == "owned";
                let inner = in_fold(scope, helper, args);
                for arg in args {
                    row |= self.is_row(&inner, arg)?;
                }
                row
            }
            Expr::Cast { value, .. } | Expr::Not { value } => self.is_row(scope, value)?,
            Expr::Binary { left: one, right: other, .. } | Expr::If { yes: one, no: other, .. } => {
                self.is_row(scope, one)? || self.is_row(scope, other)?
            }
            Expr::Fold { body, .. } => self.is_row(scope, body)?,
            Expr::Int { .. } | Expr::Real { .. } | Expr::Bool { .. } => false,
        })
    }

    /// How many elements a row has.
    pub(in crate::schedule) fn row_width(&mut self, scope: &Scope, row: &Expr) -> Lowered<Term> {
        let nothing = &mut Vec::new();
        let dims = match row {
            Expr::Element { tensor, indices } => {
                let tensor = self.tensor(tensor)?;
                tensor.dims[indices.len().min(tensor.dims.len())..].to_vec()
            }
            Expr::Field { of, field, indices } => match scope.find(of) {
                Some(Meaning::Message(arrived)) => {
                    let (_, layout) = self.carried(&arrived.channel)?;
                    let known = layout.fields.iter().find(|known| known.name == *field);
                    let known = known.ok_or_else(|| broken(format!("no field `{field}`")))?;
                    known.dims[indices.len().min(known.dims.len())..].to_vec()
                }
                _ => self.tensor(of)?.dims.get(indices.len()..).unwrap_or_default().to_vec(),
            },
            Expr::Name { name, .. } => match scope.find(name).cloned() {
                Some(Meaning::Row(row, there)) => return self.row_width(&there, &row),
                _ => Vec::new(),
            },
            Expr::OfChannel { channel, field, indices, .. } => {
                let (_, layout) = self.carried(channel)?;
                let known = layout.fields.iter().find(|known| known.name == *field);
                known
                    .map(|known| known.dims[indices.len().min(known.dims.len())..].to_vec())
                    .unwrap_or_default()
            }
            Expr::Call { helper, .. } if helper == "owned" => {
                return self.known(WellKnown::LocalExperts);
            }
            Expr::Call { helper, args } => {
                return self.widest(&in_fold(scope, helper, args), args.iter());
            }
            Expr::Cast { value, .. } | Expr::Not { value } => return self.row_width(scope, value),
            Expr::Binary { left: one, right: other, .. } | Expr::If { yes: one, no: other, .. } => {
                return self.widest(scope, [&**one, &**other].into_iter());
            }
            _ => Vec::new(),
        };
        let mut width = Term::int(1);
        for dim in &dims {
            width = width.times(self.scalar(&Scope::default(), dim, nothing)?);
        }
        Ok(width)
    }

    fn widest<'e>(&mut self, scope: &Scope, of: impl Iterator<Item = &'e Expr>) -> Lowered<Term> {
        let mut found = Term::int(1);
        for expr in of {
            let width = self.row_width(scope, expr)?;
            if !width.is(1) {
                found = width;
            }
        }
        Ok(found)
    }
}

/// The scope of a call's arguments. In a fold over the parts of a gather, the name of the part stands for a message.
fn in_fold(scope: &Scope, helper: &str, args: &[Expr]) -> Scope {
    match &scope.parts {
        Some(parts) if Fold::of_parts(helper, args).is_some() => {
            let message = Arrived {
                channel: parts.channel.clone(),
                row: Term::int(0),
                meta: Term::int(0),
                numbers: Vec::new(),
            };
            scope.with(&parts.part, Meaning::Message(message))
        }
        _ => scope.clone(),
    }
}
