//! Between the IR and its text: what every role does, step by step.
//!
//! A role body is lowered statement by statement. One warp carries each unit of the work that the
//! role's share deals out, and does its statements in order: loops over numbers go over its lanes,
//! everything else the warp does as a whole. Channels are objects with one interface. So every
//! declaration that can have a text has one; rules make it fast.

mod bounds;
mod channels;
pub(crate) mod cut;
pub(crate) mod declaration;
pub(crate) mod extents;
mod gather;
mod hazards;
pub mod library;
mod limit;
mod looks;
mod loops;
mod names_in_text;
mod one_warp;
mod pairs;
mod recipe;
mod role;
pub mod rules;
#[cfg(any(test, feature = "sabotage"))]
pub mod sabotage;
mod scope;
mod statements;
mod step;
mod symbol;
mod term;
mod uniform;
mod unsent;
mod value;
mod ways;

pub use limit::{Limit, Why};
pub use recipe::{Recipe, RoleRecipe, Routes, Warning, Warps, WhyNot};
pub use rules::{Carried, Staged, Uses};
pub use step::{Copy, CopyBy, Lambda, Loop, Param, ParamType, Step, Takers};
#[cfg(feature = "render")]
pub(crate) use symbol::{COUNTED, THREADS};
pub use symbol::{Constant, Needs, Of, Root, Symbol, count_of};
pub use term::{Node, Term};
pub use ways::{RoleRule, RuleSet, Ways};

use std::cell::Cell;

use crate::ir::slots::comes_in_words;
use crate::ir::{Channel, Domain, Elem, Expr, Message, Pipeline, Role, Source, Tensor};
use limit::broken;
use scope::{Names, Scope};

/// The steps of one role.
#[derive(Debug, Clone, PartialEq)]
pub struct RoleSteps {
    /// What every warp of the role does.
    pub steps: Vec<Step>,
    /// Whether they ask which rank this is.
    pub uses_me: bool,
    /// What the rules that made them need.
    pub uses: Uses,
    /// The warps that they deal the role's work to.
    pub warps: Warps,
    /// Statements that one warp does alone.
    pub why_not: Vec<WhyNot>,
    /// The other functions of a dispatch in one launch; `None`: the role is no such dispatch.
    pub at_once: Option<AtOnce>,
    /// Why the warps of a team that sends and takes rows meet.
    pub meets: Option<WhyNot>,
}

/// The parts of a dispatch in one launch that are not in the function of its role.
#[derive(Debug, Clone, PartialEq)]
pub struct AtOnce {
    /// The routes that every block counts.
    pub routes: Routes,
    /// Steps that every block runs on entry to the kernel.
    pub entered: OwnSteps,
    /// Steps that only the last block runs.
    pub tables: OwnSteps,
}

/// Steps that the text has outside the function of a role.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnSteps {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Whether they ask which rank this is.
    pub uses_me: bool,
}

/// Why a statement has no steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The statement, or the role or channel as a whole.
    pub at: Source,
    /// The reason, in one sentence.
    pub why: Why,
}

/// A part of a statement, or why there is none.
type Lowered<T> = Result<T, Why>;

/// Everything that prevents a text of a selected pipeline.
pub fn refusals(ir: &Pipeline) -> Vec<Refusal> {
    let mut found = declaration::check(ir);
    for own in &ir.roles {
        let more = role(ir, own, RuleSet::None).err().unwrap_or_default();
        found.extend(
            more.into_iter().filter(|refusal| !found.contains(refusal)).collect::<Vec<_>>(),
        );
    }
    // What lacks the steps of a refused statement has no reason of its own.
    if found.iter().any(|refusal| refusal.why.limit.is_some()) {
        found.retain(|refusal| refusal.why.limit.is_some());
    }
    found
}

/// The steps of `role` of a selected pipeline as `rules` rewrite them, or everything that prevents them.
pub fn role(ir: &Pipeline, role: &Role, rules: RuleSet) -> Result<RoleSteps, Vec<Refusal>> {
    let (steps, refusals) = draft(ir, role, rules);
    if refusals.is_empty() { Ok(steps) } else { Err(refusals) }
}

/// How many tokens the role has that gathers the messages of a channel, if they may come as words.
pub fn tokens_of_words(ir: &Pipeline, channel: &Channel) -> Option<Term> {
    let role = ir.roles.iter().find(|role| role.name == channel.to)?;
    let mut lowering = RoleLowering::new(ir, role, RuleSet::None);
    let mut ahead = Vec::new();
    let tokens = lowering.numbers(&Scope::default(), &Domain::Tokens, &mut ahead).ok()?.to;
    (comes_in_words(ir, channel) && ahead.is_empty()).then(|| tokens.converted(&Elem::I32))
}

/// An expression over numbers of the shape and of a call.
pub fn number(ir: &Pipeline, role: &Role, expr: &Expr) -> Option<Term> {
    let mut ahead = Vec::new();
    let value =
        RoleLowering::new(ir, role, RuleSet::None).scalar(&Scope::default(), expr, &mut ahead).ok();
    value.filter(|_| ahead.is_empty())
}

/// The steps of all statements of `role` that have any, and everything that prevents a text. Rules
/// rewrite what has one.
pub fn draft(ir: &Pipeline, role: &Role, rules: RuleSet) -> (RoleSteps, Vec<Refusal>) {
    let meets = match cut::one_launch(ir, role, rules) {
        Some(Ok(steps)) => return (steps, Vec::new()),
        other => other.and_then(Result::err),
    };
    let mut lowering = RoleLowering::new(ir, role, rules);
    lowering.cut = cut::is_cut(ir, role, rules);
    if lowering.cut {
        lowering.forwards = cut::forwards(ir, &role.body);
    }
    let mut steps = lowering.role();
    if lowering.cut && !lowering.refusals.is_empty() {
        // What cannot be cut, one warp does as it is declared.
        lowering = RoleLowering::new(ir, role, rules);
        steps = lowering.role();
    }
    let (steps, uses) = rewritten(&mut lowering, steps);
    let whole_stripes = matches!(cut::sends_parts(ir, role, rules), Some(Err(_)));
    let warps = match (uses.claims > 0 || uses.slices) && !whole_stripes {
        true => Warps::All,
        false => lowering.warps(),
    };
    let refusals = std::mem::take(&mut lowering.refusals);
    let steps = RoleSteps { meets, ..lowering.finished(steps, uses, warps) };
    (steps, refusals)
}

/// The steps of a role as its rules rewrite them, and what they need then.
fn rewritten(lowering: &mut RoleLowering<'_>, steps: Vec<Step>) -> (Vec<Step>, Uses) {
    let rules = lowering.rules;
    let (steps, mut uses) = match lowering.refusals.is_empty() {
        true => rules::rewrite(lowering, steps, rules),
        false => (steps, Default::default()),
    };
    uses.meets = lowering.meets;
    uses.rings = lowering.shares.take().map(|(_, rings)| rings);
    let steps = unsent::sent_before_waits(lowering, steps);
    let steps = bounds::named(&mut lowering.names, steps);
    if lowering.refusals.is_empty()
        && let Some(why) = uniform::misfit(&steps)
    {
        lowering.refuse(&lowering.role.at, broken(why));
    }
    let mut steps = steps;
    if rules.has(RoleRule::Wide) {
        steps = rules::stretches::rewrite(rules::ahead::rewrite(steps));
        steps = rules::elements::rewrite(steps, &lowering.inouts());
        steps = rules::bools::rewrite(steps);
    }
    if rules.has(RoleRule::Staged) && uses.staged.is_none() {
        (steps, uses.parts) = rules::staged_parts::rewrite(lowering, steps);
        uses.all_staged = uses.parts.is_some() && !rules::staged_parts::reads_others(&steps);
    }
    if rules.has(RoleRule::Wide) {
        steps = rules::part_values::rewrite(lowering, steps);
    }
    #[cfg(any(test, feature = "sabotage"))]
    let steps = sabotage::spoiled(steps);
    (steps, uses)
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
    /// The rules that may be used.
    rules: RuleSet,
    /// Whether one warp does all the work of the role.
    single: bool,
    /// Whether the statements of the role, which is one team, are dealt to all of its warps.
    cut: bool,
    /// Whether the team is one block, so that no other one takes a part of its loops.
    of_block: bool,
    /// Tables whose elements are computed where they are read.
    forwards: Vec<cut::Forward>,
    /// How many times all warps of the role meet.
    meets: usize,
    /// The direct channels whose ends know the first position of the run that is being pushed.
    in_runs: Vec<String>,
    /// The number of this warp's share of the rows of a stripe, and the number of shares.
    share: Option<(Term, Term)>,
    /// The object by which the warps of a block share rings, and what it needs.
    shares: Option<(String, rules::Rings)>,
    /// Where warps share the turns of a stripe: the kind of turn whose steps are being emitted.
    turn: Option<cut::Pushing>,
    /// Statements that one warp does alone although the role has more.
    why_not: Vec<WhyNot>,
    /// How many times the body's statements run in a call, by all warps of all blocks.
    closers: Option<Term>,
    /// The objects that deal out places, by the loop that they belong to.
    places: Vec<(Source, String)>,
    /// The object that knows the experts of this rank, where the role has one.
    own_experts: Option<String>,
    /// Whether some step asks which rank this is.
    uses_me: Cell<bool>,
}

impl<'a> RoleLowering<'a> {
    fn new(ir: &'a Pipeline, role: &'a Role, rules: RuleSet) -> RoleLowering<'a> {
        let taken = ir.cuda_fns.iter().map(|own| own.name.clone());
        RoleLowering {
            ir,
            role,
            names: Names::beside(taken),
            refusals: Vec::new(),
            objects: Vec::new(),
            reread: hazards::reread(role),
            rules,
            single: false,
            cut: false,
            of_block: false,
            forwards: Vec::new(),
            meets: 0,
            in_runs: Vec::new(),
            share: None,
            shares: None,
            turn: None,
            why_not: Vec::new(),
            closers: None,
            places: Vec::new(),
            own_experts: None,
            uses_me: Cell::new(false),
        }
    }

    fn finished(self, steps: Vec<Step>, uses: Uses, warps: Warps) -> RoleSteps {
        let (uses_me, why_not) = (self.uses_me.get(), self.why_not);
        RoleSteps { steps, uses_me, uses, warps, why_not, at_once: None, meets: None }
    }

    fn refuse(&mut self, at: &Source, why: Why) {
        let refusal = Refusal { at: at.clone(), why };
        if !self.refusals.contains(&refusal) {
            self.refusals.push(refusal);
        }
    }

    fn tensor(&self, name: &str) -> Lowered<&'a Tensor> {
        let found = self.ir.tensors.iter().find(|tensor| tensor.name == name);
        found.ok_or_else(|| broken(format!("no tensor `{name}`")))
    }

    /// A channel, and the message that it carries.
    fn carried(&self, channel: &str) -> Lowered<(&'a Channel, &'a Message)> {
        self.ir.carried(channel).ok_or_else(|| broken(format!("no channel `{channel}`")))
    }
}

/// C++ name of a scalar type.
pub fn elem_type(elem: &Elem) -> &'static str {
    match elem {
        Elem::Bool => "bool",
        Elem::U8 => "ep::u8",
        Elem::I8 => "ep::i8",
        Elem::I32 => "ep::i32",
        Elem::I64 => "ep::i64",
        Elem::F32 => "float",
        Elem::Bf16 => "ep::bf16",
        Elem::E4m3 => "ep::e4m3",
        Elem::Ue8m0 => "ep::ue8m0",
    }
}
