//! Functions, places and calls in the steps of a dispatch in one launch.

use crate::ir::{BinaryOp, Channel, Elem, Expr, Source, Stmt, Tensor};
use crate::schedule::scope::Scope;
use crate::schedule::step::{Lambda, Param, ParamType, Step};
use crate::schedule::symbol::{Constant, Symbol};
use crate::schedule::term::{Node, Term};
use crate::schedule::{Lowered, RoleLowering};

/// A parameter of a function, before it has a name of its own.
pub(super) type Wanted<'w> = (ParamType, &'w str);

impl<'a> RoleLowering<'a> {
    /// The Cfg struct of the role.
    pub(super) fn cfg(&self) -> Constant {
        Constant::of_role(self.role)
    }

    /// A function with these parameters, which carries out `says`. Its names are its own.
    pub(super) fn function(
        &mut self,
        says: &[&Source],
        params: &[Wanted<'_>],
        make: impl FnOnce(&mut Self, &[Term], &mut Vec<Step>) -> Lowered<Option<Term>>,
    ) -> Lowered<Term> {
        let outer = self.names.clone();
        let (mut named, mut terms) = (Vec::new(), Vec::new());
        for (kind, wanted) in params {
            let name = self.names.fresh(wanted);
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
        self.names = outer;
        let says = says.iter().map(|source| (*source).clone()).collect();
        Ok(Term::lambda(Lambda { says, params: named, body, gives }))
    }

    /// The address of a row of one part of a tensor.
    pub(super) fn row(
        &mut self,
        scope: &Scope,
        (tensor, part): (&str, usize),
        indices: &[Expr],
        out: &mut Vec<Step>,
    ) -> Lowered<Term> {
        let tensor = self.tensor(tensor)?;
        let at = self.indices(scope, indices, out)?;
        Ok(self.place(tensor, part, None, at, Some(Term::int(0)))?.address())
    }

    /// How far apart two elements of a row are.
    pub(super) fn column(&mut self, tensor: &Tensor, part: usize) -> Lowered<Term> {
        if part == 0 {
            return Ok(Term::int(1));
        }
        let name = self.part_name(tensor, part);
        Ok(Term::name(format!("args.{name}_block_stride"), Elem::I64))
    }

    /// A remark at the end of a stripe: the rest of what `stmt` does row by row follows.
    pub(super) fn ending(&self, stmt: &Stmt) -> Step {
        let text = stmt.at.text.as_str();
        let head = text.split([';', '{']).next().unwrap_or(text);
        let head = head.split(" at ").next().unwrap_or(head).trim_end();
        Step::Remark(format!("+{}  {head}: what is left", stmt.at.line))
    }
}

/// The Cfg struct of a channel.
pub(super) fn cfg_of(channel: &Channel) -> Constant {
    Constant::of_channel(channel)
}

/// The team of the role.
pub(super) fn team() -> Term {
    name("team")
}

/// Something that the text knows under this name.
pub(super) fn name(name: &str) -> Term {
    Term::name(name, Elem::I32)
}

/// `class name(args);`
pub(super) fn object(class: Symbol, name: &str, args: Vec<Term>) -> Step {
    Step::Object { class, name: name.to_string(), args }
}

/// A call that gives a number, or nothing.
pub(super) fn call(function: impl Into<Symbol>, args: Vec<Term>) -> Term {
    Term::call(function, args, Elem::I32)
}

/// A call of a method of an object.
pub(super) fn method(object: &str, function: &'static str, args: Vec<Term>) -> Term {
    Term::method(object, function, args, Elem::I32)
}

/// An operation of C++ as it stands there.
pub(super) fn binary(op: BinaryOp, left: Term, right: Term) -> Term {
    let elem = left.elem.clone();
    Term { node: Node::Binary(op, Box::new(left), Box::new(right)), elem, range: None }
}
