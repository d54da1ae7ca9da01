//! Between the IR and its text: what every role does, step by step.
//!
//! A role body is lowered statement by statement. One warp carries each unit of the work that the
//! role's share deals out, and does its statements in order: loops over numbers go over its lanes,
//! everything else the warp does as a whole. Channels are objects with one interface. So every
//! declaration that can have a text has one; faster ways of some roles are in `render`.

mod channels;
pub(crate) mod declaration;
pub(crate) mod extents;
mod gather;
mod hazards;
mod loops;
mod names_in_text;
mod role;
pub mod rules;
mod scope;
mod statements;
mod step;
mod term;
pub(crate) mod typed;
mod value;
mod ways;

pub use rules::{Staged, Uses};
pub use step::{Copy, Loop, Step, Takers};
pub use term::{Node, Term};
pub use ways::{RoleRule, RuleSet, Ways};

use std::cell::Cell;

use crate::ir::{Channel, Elem, Message, Pipeline, Role, Source, Tensor};
use scope::Names;

/// The steps of one role.
#[derive(Debug, Clone, PartialEq)]
pub struct RoleSteps {
    /// What every warp of the role does.
    pub steps: Vec<Step>,
    /// Whether they ask which rank this is.
    pub uses_me: bool,
    /// What the rules that made them need.
    pub uses: Uses,
}

/// Why a statement has no steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The statement, or the role or channel as a whole.
    pub at: Source,
    /// The reason, in one sentence.
    pub why: String,
}

/// A part of a statement, or why there is none.
type Lowered<T> = Result<T, String>;

/// Everything that prevents a text of a selected pipeline.
pub fn refusals(ir: &Pipeline) -> Vec<Refusal> {
    let mut found = declaration::check(ir);
    for own in &ir.roles {
        let more = role(ir, own, RuleSet::None).err().unwrap_or_default();
        found.extend(
            more.into_iter().filter(|refusal| !found.contains(refusal)).collect::<Vec<_>>(),
        );
    }
    found
}

/// The steps of `role` of a selected pipeline as `rules` rewrite them, or everything that prevents them.
pub fn role(ir: &Pipeline, role: &Role, rules: RuleSet) -> Result<RoleSteps, Vec<Refusal>> {
    let (steps, refusals) = draft(ir, role, rules);
    if refusals.is_empty() { Ok(steps) } else { Err(refusals) }
}

/// The steps of all statements of `role` that have any, and everything that prevents a text. Rules
/// rewrite what has one.
pub fn draft(ir: &Pipeline, role: &Role, rules: RuleSet) -> (RoleSteps, Vec<Refusal>) {
    let taken = ir.cuda_fns.iter().map(|own| own.name.clone());
    let mut lowering = RoleLowering {
        ir,
        role,
        names: Names::beside(taken),
        refusals: Vec::new(),
        objects: Vec::new(),
        reread: hazards::reread(role),
        single: false,
        closers: None,
        places: Vec::new(),
        uses_me: Cell::new(false),
    };
    let steps = lowering.role();
    let (steps, uses) = match lowering.refusals.is_empty() {
        true => rules::rewrite(&mut lowering, steps, rules),
        false => (steps, Default::default()),
    };
    (RoleSteps { steps, uses_me: lowering.uses_me.get(), uses }, lowering.refusals)
}

/// A role on its way to steps.
struct RoleLowering<'a> {
    ir: &'a Pipeline,
    role: &'a Role,
    names: Names,
    refusals: Vec<Refusal>,
    /// The objects of the channels at whose ends the role is.
    objects: Vec<channels::Object>,
    /// Tensors that the role both writes and reads.
    reread: Vec<String>,
    /// Whether one warp does all the work of the role.
    single: bool,
    /// How many times the body's statements run in a call, by all warps of all blocks.
    closers: Option<Term>,
    /// The objects that deal out places, by the loop that they belong to.
    places: Vec<(Source, String)>,
    /// Whether some step asks which rank this is.
    uses_me: Cell<bool>,
}

impl<'a> RoleLowering<'a> {
    fn refuse(&mut self, at: &Source, why: String) {
        let refusal = Refusal { at: at.clone(), why };
        if !self.refusals.contains(&refusal) {
            self.refusals.push(refusal);
        }
    }

    fn tensor(&self, name: &str) -> Lowered<&'a Tensor> {
        let found = self.ir.tensors.iter().find(|tensor| tensor.name == name);
        found.ok_or_else(|| format!("no tensor `{name}`"))
    }

    /// A channel, and the message that it carries.
    fn carried(&self, channel: &str) -> Lowered<(&'a Channel, &'a Message)> {
        self.ir.carried(channel).ok_or_else(|| format!("no channel `{channel}`"))
    }
}

/// C++ name of a scalar type.
pub fn elem_type(elem: &Elem) -> &'static str {
    match elem {
        Elem::Bool => "bool",
        Elem::U8 => "ep::u8",
        Elem::I32 => "ep::i32",
        Elem::I64 => "ep::i64",
        Elem::F32 => "float",
        Elem::Bf16 => "ep::bf16",
        Elem::E4m3 => "ep::e4m3",
        Elem::Ue8m0 => "ep::ue8m0",
    }
}
