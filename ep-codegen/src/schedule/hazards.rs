//! What one warp writes no other one reads while it may: nothing orders the two.

use super::{Lowered, RoleLowering};
use crate::ir::{
    Action, Blocks, Domain, Elem, ElemType, Expr, Memory, NameKind, Place, Role, Share, Stmt,
    Tensor, walk,
};
use crate::schedule::limit::Limit;

/// Tensors that a role both writes and reads.
pub(super) fn reread(role: &Role) -> Vec<String> {
    let mut written: Vec<String> = Vec::new();
    walk::stmts(&role.body, &mut |stmt| {
        written.extend(walk::target(stmt).map(|place| place.tensor.clone()));
    });
    let mut found: Vec<String> = Vec::new();
    for (tensor, _) in elements(role) {
        if written.contains(&tensor) && !found.contains(&tensor) {
            found.push(tensor);
        }
    }
    found
}

/// Whether a value is made of elements of a tensor.
pub(super) fn reads(value: &Expr, tensor: &str) -> bool {
    walk::any_expr(
        value,
        &mut |part| matches!(part, Expr::Element { tensor: own, .. } if own == tensor),
    )
}

/// The elements that a role reads.
fn elements(role: &Role) -> Vec<(String, Vec<Expr>)> {
    let mut found = Vec::new();
    walk::stmts(&role.body, &mut |stmt| {
        walk::exprs(stmt, &mut |part| {
            if let Expr::Element { tensor, indices } = part {
                found.push((tensor.clone(), indices.clone()));
            }
        });
    });
    found
}

impl RoleLowering<'_> {
    /// Refuses reads of what another warp writes in the same call.
    pub(super) fn check_hazards(&mut self) {
        let mut wrong = Vec::new();
        let role = self.role;
        walk::stmts(&role.body, &mut |stmt| {
            walk::exprs(stmt, &mut |part| {
                if let Expr::Element { tensor, indices } = part
                    && let Err(why) = self.check_read(tensor, indices)
                {
                    wrong.push((stmt.at.clone(), why));
                }
            });
            if let Action::Add { target, .. } = &stmt.action
                && self.is_shared(target)
                && !self.is_added_to(&target.tensor)
            {
                wrong.push((stmt.at.clone(), Limit::AddedByWarps.into()));
            }
        });
        for (at, why) in wrong {
            self.refuse(&at, why);
        }
    }

    fn check_read(&self, tensor: &str, indices: &[Expr]) -> Lowered<()> {
        for other in &self.ir.roles {
            if other.name == self.role.name {
                continue;
            }
            let ordered = self.role.blocks == Blocks::Last && other.blocks != Blocks::Last;
            if !ordered && other.phase == self.role.phase && walk::writes(&other.body, tensor) {
                return Err(Limit::WrittenByRole.of(&[&other.name, tensor]));
            }
        }
        if self.single || self.cut || !self.reread.iter().any(|name| name == tensor) {
            return Ok(());
        }
        let mut all = self.is_own(indices);
        walk::stmts(&self.role.body, &mut |stmt| {
            if let Some(place) = walk::target(stmt).filter(|place| place.tensor == tensor) {
                all &= self.is_own(&place.indices) && same_owner(&place.indices, indices);
            }
        });
        match all {
            true => Ok(()),
            false => Err(Limit::WrittenByWarp.of(&[tensor])),
        }
    }

    /// Whether several warps of the role may add to one element.
    pub(super) fn is_shared(&self, target: &Place) -> bool {
        !matches!(self.role.share, Share::Team | Share::BlockPerToken)
            && !self.is_own(&target.indices)
    }

    /// Whether the device adds to elements of a tensor as a whole.
    fn is_added_to(&self, tensor: &str) -> bool {
        let adds = |elem: &ElemType| {
            matches!(elem, ElemType::Scalar { elem: Elem::I32 | Elem::I64 | Elem::F32 })
        };
        let of = |known: &&Tensor| known.name == tensor && known.memory == Memory::Device;
        self.ir.tensors.iter().filter(of).any(|known| adds(&known.elem))
    }

    /// Whether elements with these indices belong to one unit of the role's work.
    fn is_own(&self, indices: &[Expr]) -> bool {
        let has = |name: &str| {
            indices.iter().any(|index| match index {
                Expr::Name { kind: NameKind::Stripe, .. } => name == "stripe",
                Expr::Name { name: own, .. } => {
                    own == name || (name == "stripe" && self.is_of_stripe(own))
                }
                _ => false,
            })
        };
        match &self.role.share {
            Share::Peer { binder, .. } => has(binder) && has("stripe"),
            Share::Stripe | Share::Token => has("stripe"),
            Share::SourceStripe => has("source") && has("stripe"),
            Share::Indices { names } => names.iter().all(|name| has(name)),
            Share::BlockPerToken | Share::Team => false,
        }
    }

    /// Whether the name runs over the rows of a stripe.
    fn is_of_stripe(&self, name: &str) -> bool {
        let mut found = false;
        walk::stmts(&self.role.body, &mut |stmt: &Stmt| {
            found |= matches!(&stmt.action, Action::For { binder, domain: Domain::Stripe, .. }
                | Action::Gather { binder, domain: Domain::Stripe, .. } if binder == name);
        });
        found
    }
}

/// Whether two places that each belong to a unit belong to one: they are told apart by the same names.
fn same_owner(a: &[Expr], b: &[Expr]) -> bool {
    a.iter().zip(b).any(|(a, b)| a == b && matches!(a, Expr::Name { .. }))
}
