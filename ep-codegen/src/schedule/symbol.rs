//! What emitted text names: functions, classes and constants, and what each takes from what stands in
//! front of the roles.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::library::{ALWAYS, Entity, ep};
use super::step::{Copy, Lambda, Loop, ParamType, Step, Takers};
use super::term::{Node, Term};
use crate::ir::naming::{
    camel, constant, counted_constant, field_constant, number_constant, struct_of,
};
use crate::ir::{Channel, Elem, Role};

/// A function that is called, or the class of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Symbol {
    /// The function or class itself.
    pub root: Root,
    /// The template arguments.
    pub of: Vec<Of>,
    /// Whether nothing changes the object.
    pub fixed: bool,
}

/// What a [`Symbol`] is before its template arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// Of the device library.
    Library(Entity),
    /// `object.method`.
    Method(String, &'static str),
    /// Of the text itself, or of C++.
    Text(String),
}

/// A template argument.
#[derive(Debug, Clone, PartialEq)]
pub enum Of {
    /// A type of elements.
    Elem(Elem),
    /// A struct of constants, or one.
    Constant(Constant),
    /// A number.
    Number(Term),
    /// A class.
    Class(Symbol),
}

impl Symbol {
    /// A function of the text itself.
    pub fn text(name: impl Into<String>) -> Symbol {
        Symbol::from(Root::Text(name.into()))
    }

    /// `object.method`.
    pub fn method(object: impl Into<String>, method: &'static str) -> Symbol {
        Symbol::from(Root::Method(object.into(), method))
    }

    /// This symbol with one more template argument.
    pub fn of(mut self, argument: impl Into<Of>) -> Symbol {
        self.of.push(argument.into());
        self
    }

    /// The class of an object that nothing changes.
    pub fn fixed(self) -> Symbol {
        Symbol { fixed: true, ..self }
    }

    /// Whether it is this item, whatever its template arguments are.
    pub fn is(&self, item: Entity) -> bool {
        self.root == Root::Library(item)
    }

    /// Whether it is this method of any object.
    pub fn is_method(&self, name: &str) -> bool {
        matches!(&self.root, Root::Method(_, method) if *method == name)
    }
}

impl Entity {
    /// The item with a template argument.
    pub fn of(self, argument: impl Into<Of>) -> Symbol {
        Symbol::from(self).of(argument)
    }
}

impl From<Root> for Symbol {
    fn from(root: Root) -> Symbol {
        Symbol { root, of: Vec::new(), fixed: false }
    }
}

impl From<Entity> for Symbol {
    fn from(item: Entity) -> Symbol {
        Symbol::from(Root::Library(item))
    }
}

impl From<&Elem> for Of {
    fn from(elem: &Elem) -> Of {
        Of::Elem(elem.clone())
    }
}

impl From<Constant> for Of {
    fn from(constant: Constant) -> Of {
        Of::Constant(constant)
    }
}

impl From<Term> for Of {
    fn from(number: Term) -> Of {
        Of::Number(number)
    }
}

impl From<Symbol> for Of {
    fn from(class: Symbol) -> Of {
        Of::Class(class)
    }
}

/// How many ranks there are.
pub(crate) const RANKS: Constant = Constant::known("", "kRanks");

/// How many threads a block has.
pub(crate) const THREADS: Constant = Constant::known("", "kThreads");

/// The counters that a block adds to in shared memory.
pub(crate) const COUNTED: Constant = Constant::known("Counted", "");

/// The tensors whose words are awaited.
pub(crate) const WORDS: Constant = Constant::known("Words", "");

/// A member of `Cfg`, one of a struct in it, or such a struct.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Constant {
    /// The struct in `Cfg`; empty: `Cfg` itself.
    pub group: Cow<'static, str>,
    /// The member; empty: the struct as a whole.
    pub member: Cow<'static, str>,
}

impl Constant {
    /// A constant that is known when the program is compiled.
    pub const fn known(group: &'static str, member: &'static str) -> Constant {
        Constant { group: Cow::Borrowed(group), member: Cow::Borrowed(member) }
    }

    /// A number of the shape or a tune.
    pub fn number(name: &str) -> Constant {
        Constant { group: Cow::Borrowed(""), member: Cow::Owned(number_constant(name)) }
    }

    /// The struct of a channel.
    pub fn of_channel(channel: &Channel) -> Constant {
        Constant::of_struct(struct_of(&camel(&channel.name)))
    }

    /// The struct of a role.
    pub fn of_role(role: &Role) -> Constant {
        Constant::of_struct(struct_of(&role.name))
    }

    fn of_struct(group: String) -> Constant {
        Constant { group: Cow::Owned(group), member: Cow::Borrowed("") }
    }

    /// Where a field of a message is.
    pub fn field(message: &str, field: &str) -> Constant {
        Constant::of_struct(struct_of(message)).at(field_constant(field))
    }

    /// How many values a field of a message has.
    pub fn field_count(message: &str, field: &str) -> Constant {
        Constant::of_struct(struct_of(message)).at(count_of(field))
    }

    /// Which counter of a block is the first of a tensor.
    pub fn counted(tensor: &str) -> Constant {
        COUNTED.at(counted_constant(tensor))
    }

    /// The number of a tensor whose words are awaited.
    pub fn word(tensor: &str) -> Constant {
        WORDS.at(constant(tensor))
    }

    /// A member of the struct.
    pub fn at(self, member: impl Into<Cow<'static, str>>) -> Constant {
        Constant { member: member.into(), ..self }
    }
}

/// The name of the constant that says how many values a field has.
pub fn count_of(field: &str) -> String {
    format!("{}Count", field_constant(field))
}

impl std::fmt::Display for Constant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cfg")?;
        let parts = [&self.group, &self.member].into_iter().filter(|part| !part.is_empty());
        parts.into_iter().try_for_each(|part| write!(f, "::{part}"))
    }
}

/// What some text takes from the device library and from `Cfg`.
#[derive(Debug, Clone, Default)]
pub struct Needs {
    headers: BTreeSet<&'static str>,
    constants: BTreeSet<Constant>,
    /// The classes of objects, in order of the text.
    pub(super) classes: Vec<&'static str>,
}

impl Needs {
    /// The headers in the order in which they are included.
    pub fn headers(&self) -> Vec<&'static str> {
        let own = self.headers.iter().filter(|header| !ALWAYS.contains(header));
        own.copied().chain(ALWAYS).collect()
    }

    /// The constants.
    pub fn constants(&self) -> Vec<Constant> {
        self.constants.iter().cloned().collect()
    }

    /// Something of the device library.
    pub fn item(&mut self, item: Entity) {
        self.headers.insert(item.header);
    }

    /// A constant.
    pub fn constant(&mut self, constant: &Constant) {
        self.constants.insert(constant.clone());
    }

    /// What steps name.
    pub fn steps(&mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Object { class, .. } => {
                    self.class(class);
                    self.symbol(class);
                }
                Step::Copy(Copy { .. }) => self.item(ep::copy_row),
                Step::Loop(Loop { turns: Takers::Wide | Takers::WideChunks, .. }) => {
                    self.item(ep::kWide);
                }
                _ => {}
            }
            step.terms().into_iter().for_each(|term| self.term(term));
            self.steps(step.inner());
        }
    }

    /// What a value names.
    pub fn term(&mut self, term: &Term) {
        match &term.node {
            Node::Constant(constant) => self.constant(constant),
            Node::Library(item) => self.item(*item),
            Node::Call(function, _) => self.symbol(function),
            Node::Lambda(function) => self.lambda(function),
            _ => {}
        }
        term.inner().into_iter().for_each(|inner| self.term(inner));
    }

    fn class(&mut self, class: &Symbol) {
        if let Root::Library(item) = class.root
            && !self.classes.contains(&item.name)
        {
            self.classes.push(item.name);
        }
    }

    fn symbol(&mut self, symbol: &Symbol) {
        if let Root::Library(item) = symbol.root {
            self.item(item);
        }
        for of in &symbol.of {
            match of {
                Of::Elem(_) => {}
                Of::Constant(constant) => self.constant(constant),
                Of::Number(number) => self.term(number),
                Of::Class(class) => self.symbol(class),
            }
        }
    }

    fn lambda(&mut self, function: &Lambda) {
        for param in &function.params {
            match param.kind {
                ParamType::Object(item) => self.item(item),
                ParamType::Wide(_) | ParamType::WideSum => self.item(ep::Wide),
                _ => {}
            }
        }
        self.steps(&function.body);
        function.gives.iter().for_each(|gives| self.term(gives));
    }
}
