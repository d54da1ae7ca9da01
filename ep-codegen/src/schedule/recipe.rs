//! How each role of a selected pipeline is carried out. The plan, the header of an emitted text, `explain`,
//! `list` and the warnings of the macro read this; nobody else derives it.

use super::library::{Entity, ep};
use super::rules::Uses;
use super::symbol::Needs;
use super::{RuleSet, one_warp};
use crate::ir::{Blocks, Expr, Pipeline, Role, Source, Stmt, text, walk};

/// Classes that stand for numbers and warps, and carry nothing.
const NO_CARRIERS: [Entity; 11] = [
    ep::Shares,
    ep::SlicedSpan,
    ep::SlotWords,
    ep::Span,
    ep::StripePart,
    ep::StripeParts,
    ep::StripeSlices,
    ep::Team,
    ep::Units,
    ep::Wide,
    ep::WideAt,
];

/// How the roles of a selected pipeline are carried out, in order of declaration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recipe {
    /// A recipe for each role.
    pub roles: Vec<RoleRecipe>,
}

/// How one role is carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleRecipe {
    /// Name of the role.
    pub role: String,
    /// The routes that every block counts, if the role is a dispatch in one launch.
    pub routes: Option<Routes>,
    /// Classes of the device library that the role uses, in the order of its text.
    pub classes: Vec<&'static str>,
    /// The blocks of the role.
    pub blocks: Blocks,
    /// The warps of these blocks that have a part of the work.
    pub warps: Warps,
    /// Statements that one warp does alone.
    pub why_not: Vec<WhyNot>,
    /// Why the warps of a team that sends and takes rows meet: what keeps it from being a dispatch in one launch.
    pub meets: Option<WhyNot>,
    /// What to warn about, if one warp of the grid does what other ranks wait for.
    pub warning: Option<Warning>,
    /// What the steps of a composed role need from the plan.
    pub uses: Uses,
}

/// The channels and counters of a dispatch in one launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routes {
    /// The channel of the counts.
    pub slots: String,
    /// The channel of the rows.
    pub rows: String,
    /// The number of values that are counted, if any are.
    pub values: Option<String>,
    /// Whether the receiver packs rows as they come.
    pub packs: bool,
}

/// The warps of a role's blocks that have a part of its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warps {
    /// All warps.
    All,
    /// All warps of one block for each of so many stripes.
    Blocks(Expr),
    /// One warp for each unit; the number of units is the product of these numbers.
    Each(Vec<Expr>),
    /// One warp of all blocks together.
    One,
}

/// A statement that one warp does alone, or that keeps a role from a faster way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WhyNot {
    /// The statement, or the role or channel as a whole.
    pub at: Source,
    /// The reason, in one sentence.
    pub reason: String,
    /// The channel that the statement sends to or takes from, if it does.
    pub channel: Option<String>,
}

/// A role with channels whose work one warp of the grid does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The statement that is the reason.
    pub at: Source,
    /// What happens and what to write instead.
    pub sentence: String,
}

impl WhyNot {
    pub(super) fn new(at: &Source, reason: &str) -> WhyNot {
        WhyNot { at: at.clone(), reason: reason.to_string(), channel: None }
    }
}

impl Recipe {
    /// What `rules` make of the roles of a selected pipeline.
    pub fn of(ir: &Pipeline, rules: RuleSet) -> Recipe {
        Recipe { roles: ir.roles.iter().map(|role| RoleRecipe::of(ir, role, rules)).collect() }
    }

    /// The recipe of a role.
    pub fn role(&self, name: &str) -> Option<&RoleRecipe> {
        self.roles.iter().find(|role| role.role == name)
    }

    /// The warnings about all roles.
    pub fn warnings(&self) -> impl Iterator<Item = &Warning> {
        self.roles.iter().filter_map(|role| role.warning.as_ref())
    }
}

impl RoleRecipe {
    fn of(ir: &Pipeline, role: &Role, rules: RuleSet) -> RoleRecipe {
        // A role that is refused has no steps, and no recipe that matters.
        let steps = super::role(ir, role, rules).ok();
        let mut needs = Needs::default();
        steps.iter().for_each(|steps| needs.steps(&steps.steps));
        let carries = |class: &&str| !NO_CARRIERS.iter().any(|other| other.name == *class);
        let classes = needs.classes.into_iter().filter(carries).collect();
        let (name, blocks) = (role.name.clone(), role.blocks.clone());
        let mut recipe = RoleRecipe {
            role: name,
            routes: None,
            classes,
            blocks,
            warps: Warps::All,
            why_not: Vec::new(),
            meets: None,
            warning: None,
            uses: Uses::default(),
        };
        if let Some(steps) = steps {
            recipe.routes = steps.at_once.map(|own| own.routes);
            (recipe.warps, recipe.why_not) = (steps.warps, steps.why_not);
            (recipe.meets, recipe.uses) = (steps.meets, steps.uses);
        }
        recipe.warned(role)
    }

    /// `composed: ep::OnceOut, ep::OnceIn`
    pub fn how(&self) -> String {
        match self.classes.as_slice() {
            [] => "composed".to_string(),
            classes => format!("composed: {}", classes.join(", ")),
        }
    }

    /// The warps that have a part of the work, of so many in each block: one, or those of one block, for each of so many
    /// units, if the role deals out units.
    pub fn who(&self, warps: i64, units: Option<i64>) -> String {
        let blocks = text::blocks(&self.blocks);
        let all = match warps {
            1 => format!("1 warp on {blocks}"),
            _ => format!("{warps} warps on {blocks}"),
        };
        match &self.warps {
            Warps::All => all,
            Warps::Blocks(stripes) => {
                let number = units.map(|units| format!(" = {units}")).unwrap_or_default();
                format!("{all}, a block for each of {}{number}", text::expr(stripes))
            }
            Warps::One if one_warp::is_one_block(&self.blocks) => format!("one of {all}"),
            Warps::One => format!("one warp of the grid ({all})"),
            Warps::Each(numbers) => {
                let named: Vec<String> = numbers.iter().map(text::expr).collect();
                let units = units.map(|units| format!(" = {units}")).unwrap_or_default();
                format!("a warp for each of {}{units} ({all})", named.join(" x "))
            }
        }
    }

    /// A line for each statement that one warp does alone, and for what makes its warps meet.
    pub fn reasons(&self) -> Vec<String> {
        let alone = self.why_not.iter().map(|it| quoted(&it.at, &it.reason));
        let meets = self.meets.iter().map(|it| quoted(&it.at, &meets(&it.reason)));
        alone.chain(meets).collect()
    }

    /// The recipe with its warning: at the statement that makes its warps meet, or else at the first one with a channel
    /// that one warp does. A role on one block has few warps by its declaration.
    fn warned(mut self, role: &Role) -> RoleRecipe {
        let alone = self.why_not.iter().find(|it| it.channel.is_some());
        let Some(alone) = alone.filter(|_| !one_warp::is_one_block(&self.blocks)) else {
            return self;
        };
        let (name, mut at) = (&role.name, &alone.at);
        let what = match self.warps {
            Warps::One => format!("`{name}` runs on one warp of the grid"),
            _ => format!("this part of `{name}` runs on one warp of the grid"),
        };
        let mut sentence = format!("{what}: {}", alone.reason);
        if let Some(other) = &self.meets {
            sentence += &format!("; {}", meets(&other.reason));
            let is_its = |stmt: &Stmt| stmt.at == other.at;
            walk::stmts(&role.body, &mut |stmt| at = if is_its(stmt) { &other.at } else { at });
        }
        sentence += &format!(
            "; share the work, as with `{name}[peer]` or `warps shared by`, or write `on block 0, 1 \
            warps` if you want one warp"
        );
        self.warning = Some(Warning { at: at.clone(), sentence });
        self
    }
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&quoted(&self.at, &self.sentence))
    }
}

/// The sentence that says why the warps of a team meet.
fn meets(why: &str) -> String {
    format!("the warps of the role meet between its statements: {why}")
}

/// `` +31 `push ..`: why ``
fn quoted(at: &Source, why: &str) -> String {
    format!("+{} `{}`: {why}", at.line, at.text.trim_end_matches(';'))
}
