//! The rows that steps move through shared memory, and the memory that they come from and go to.

use super::super::copies::copy_of;
use super::{Object, Staging};
use crate::ir::walk::{is_read, writers};
use crate::ir::{Action, Expr, Memory, Stmt, Tensor, TensorKind};
use crate::schedule::channels::End;
use crate::schedule::step::{Copy, Step};
use crate::schedule::symbol::Symbol;
use crate::schedule::term::{Node, Term};

impl<'a> Staging<'a> {
    /// The copies that are staged.
    pub(super) fn moved(&self, steps: &[Step], found: &mut Vec<Copy>) {
        for step in steps {
            found.extend(self.staged(step));
            self.moved(step.inner(), found);
        }
    }

    /// The row that a step copies, if it goes through shared memory: whole, from or to a channel, out of
    /// memory that nothing writes meanwhile, and to memory that nothing reads.
    pub(super) fn staged(&self, step: &Step) -> Option<Copy> {
        let Step::Loop(repeat) = step else { return None };
        let names: Vec<String> = self.pointers.keys().cloned().collect();
        let copy = copy_of(repeat, &names)?;
        let arrives = self.slot(&copy.from).is_some_and(|(object, _)| object.end == End::In);
        let from = arrives || self.tensor(&copy.from).is_some_and(|tensor| self.is_still(tensor));
        let leaves = self.sends(&copy).is_some();
        let to = leaves || self.tensor(&copy.to).is_some_and(|tensor| self.is_left(tensor));
        let whole = copy.elem == self.elem && copy.count == self.count;
        (whole && from && to && (arrives || leaves)).then_some(copy)
    }

    /// The peer to which a copy goes, by the object of its channel; slots have it themselves.
    pub(super) fn sends(&self, copy: &Copy) -> Option<(&Object, Option<&Term>)> {
        self.slot(&copy.to).filter(|(object, _)| object.end == End::Out)
    }

    /// The end of a channel whose row is at an address, and its peer.
    fn slot(&self, address: &Term) -> Option<(&Object, Option<&Term>)> {
        let Node::Name(name) = &address.node else { return None };
        let Node::Call(function, args) = &self.pointers.get(name)?.node else { return None };
        let object = self.ends.iter().find(|end| {
            let place = if end.kind.traits().lands { "row" } else { "slot" };
            end.message == self.message && *function == Symbol::method(&end.name, place)
        })?;
        Some((object, args.first()))
    }

    /// The tensor in which an address lies.
    pub(super) fn tensor(&self, address: &Term) -> Option<&'a Tensor> {
        let name = address.root()?;
        self.ir.tensors.iter().find(|tensor| name == format!("args.{}", tensor.name))
    }

    /// Whether nothing writes a tensor during the call.
    fn is_still(&self, tensor: &Tensor) -> bool {
        tensor.kind == TensorKind::Input && writers(self.ir, tensor).is_empty()
    }

    /// Whether one statement alone writes a tensor, a row of it for each message, and none reads it.
    fn is_left(&self, tensor: &Tensor) -> bool {
        let writes = writers(self.ir, tensor);
        let [Stmt { action: Action::Store { target, .. }, .. }] = writes.as_slice() else {
            return false;
        };
        let [Expr::Field { field, .. }] = target.indices.as_slice() else { return false };
        !is_read(self.ir, tensor) && field == "row" && tensor.memory != Memory::Host
    }
}
