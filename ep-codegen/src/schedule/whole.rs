//! Roles that the device library does as a whole: the classes that carry them, and the functions that these
//! call for each row, token and peer.
//!
//! `rules` says for which roles there is such a way. What stands here makes their steps; one printer writes
//! them and those of composed roles.

mod fields;
mod one_launch;
mod packed;
mod published;

use super::rules::OneLaunch;
use super::scope::Scope;
use super::step::{Lambda, Param, ParamType, Step};
use super::term::{Node, Term};
use super::{Lowered, RoleLowering};
use crate::ir::{BinaryOp, Channel, Elem, Expr, Source, Stmt, Tensor};
use crate::schedule::limit::broken;
use crate::schedule::symbol::{Constant, Symbol};

pub(super) use one_launch::tables;

/// The steps of a dispatch in one launch.
pub(super) fn steps(role: &mut RoleLowering<'_>) -> Lowered<Vec<Step>> {
    let one = OneLaunch::of(role.ir).ok_or(broken("no class of the library does it"))?;
    let mut steps = Vec::new();
    Whole::of(role).one_launch(&one, &mut steps)?;
    Ok(steps)
}

/// What every block does as it enters the kernel of such roles.
pub(super) fn entered(role: &mut RoleLowering<'_>) -> Lowered<Vec<Step>> {
    let one = OneLaunch::of(role.ir).ok_or(broken("they do nothing"))?;
    let mut steps = Vec::new();
    Whole::of(role).counts_routes(&one, &mut steps)?;
    Ok(steps)
}

/// A role on its way to such steps.
struct Whole<'r, 'a> {
    role: &'r mut RoleLowering<'a>,
}

/// A parameter of a function, before it has a name of its own.
type Wanted<'w> = (ParamType, &'w str);

impl<'r, 'a> Whole<'r, 'a> {
    fn of(role: &'r mut RoleLowering<'a>) -> Whole<'r, 'a> {
        Whole { role }
    }

    // ---- Names ----

    /// The Cfg struct of the role.
    fn cfg(&self) -> Constant {
        Constant::of_role(self.role.role)
    }

    /// A function with these parameters, which carries out `says`. Its names are its own.
    fn function(
        &mut self,
        says: &[&Source],
        params: &[Wanted<'_>],
        make: impl FnOnce(&mut Self, &[Term], &mut Vec<Step>) -> Lowered<Option<Term>>,
    ) -> Lowered<Term> {
        let outer = self.role.names.clone();
        let (mut named, mut terms) = (Vec::new(), Vec::new());
        for (kind, wanted) in params {
            let name = self.role.names.fresh(wanted);
            terms.push(match kind {
                ParamType::Index | ParamType::Place => Term::index(&name),
                ParamType::Value(elem) | ParamType::Wide(elem) => Term::name(&name, elem.clone()),
                ParamType::WideSum => Term::name(&name, Elem::F32),
                ParamType::Bytes | ParamType::Object(_) | ParamType::Class(_) => {
                    Term::name(&name, Elem::U8)
                }
            });
            named.push(Param { kind: kind.clone(), name });
        }
        let mut body = Vec::new();
        let gives = make(self, &terms, &mut body)?;
        self.role.names = outer;
        let says = says.iter().map(|source| (*source).clone()).collect();
        Ok(Term::lambda(Lambda { says, params: named, body, gives }))
    }

    // ---- Places ----

    /// The address of a row of one part of a tensor.
    fn row(
        &mut self,
        scope: &Scope,
        (tensor, part): (&str, usize),
        indices: &[Expr],
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let tensor = self.role.tensor(tensor)?;
        let at = self.role.indices(scope, indices, out)?;
        Ok(self.role.place(tensor, part, None, at, Some(Term::int(0)))?.address())
    }

    /// How far apart two elements of a row are.
    fn column(&mut self, tensor: &Tensor, part: usize) -> Lowered<Term> {
        if part == 0 {
            return Ok(Term::int(1));
        }
        let name = self.role.part_name(tensor, part);
        Ok(Term::name(format!("args.{name}_block_stride"), Elem::I64))
    }

    /// How many rows the stripes share.
    fn striped(&mut self, scope: &Scope, out: &mut Vec<Step>) -> Lowered<Term> {
        Ok(self.role.striped(scope, out)?.converted(&Elem::I32))
    }

    /// What is left at the end of a stripe of what `stmt` does row by row.
    fn ending(&self, stmt: &Stmt) -> Step {
        let text = stmt.at.text.as_str();
        let head = text.split([';', '{']).next().unwrap_or(text);
        let head = head.split(" at ").next().unwrap_or(head).trim_end();
        Step::Remark(format!("+{}  {head}: what is left", stmt.at.line))
    }
}

/// The Cfg struct of a channel.
fn cfg_of(channel: &Channel) -> Constant {
    Constant::of_channel(channel)
}

/// The team of the role.
fn team() -> Term {
    name("team")
}

/// Something that the text knows under this name.
fn name(name: &str) -> Term {
    Term::name(name, Elem::I32)
}

/// `class name(args);`
fn object(class: Symbol, name: &str, args: Vec<Term>) -> Step {
    Step::Object { class, name: name.to_string(), args }
}

/// A call that gives a number, or nothing.
fn call(function: impl Into<Symbol>, args: Vec<Term>) -> Term {
    Term::call(function, args, Elem::I32)
}

/// The same of an object.
fn method(object: &str, function: &'static str, args: Vec<Term>) -> Term {
    Term::method(object, function, args, Elem::I32)
}

/// An operation of C++ as it stands there.
fn binary(op: BinaryOp, left: Term, right: Term) -> Term {
    let elem = left.elem.clone();
    Term { node: Node::Binary(op, Box::new(left), Box::new(right)), elem, range: None }
}
