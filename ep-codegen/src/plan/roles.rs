//! Which warps of which blocks run a role.

use crate::ir::{Blocks, Expr, Pipeline, Role};
use crate::schedule::Ways;

/// The warps of one role inside each of its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleWarps {
    /// Role name.
    pub name: String,
    /// First warp.
    pub first: i64,
    /// Number of warps.
    pub count: i64,
}

/// What a role needs from the device library, and so from shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoleUse {
    /// It moves rows piece by piece.
    pub mover: bool,
    /// It reads the rows of parts through shared memory.
    pub parts: bool,
    /// Its warps complete positions of rings out of order.
    pub sequence: bool,
    /// Every block knows where all tokens go.
    pub routes: bool,
    /// Rows go one piece at a time.
    pub packs: bool,
}

impl RoleUse {
    /// Whether rows pass through shared memory of its own.
    pub fn has_stages(&self) -> bool {
        self.mover || self.parts
    }

    /// Whether it has memory of its own in the block.
    pub fn has_memory(&self) -> bool {
        self.has_stages() || self.sequence
    }
}

/// What `role` of the selected pipeline needs.
pub fn role_use(ways: &Ways, role: &Role) -> RoleUse {
    // A role keeps in registers all that no rule stages.
    let routes = ways.routes();
    RoleUse {
        mover: ways.staged(&role.name).is_some() || routes.is_some(),
        parts: ways.parts(&role.name).is_some(),
        sequence: ways.rings(&role.name).is_some(),
        routes: routes.is_some(),
        packs: routes.is_some_and(|routes| routes.packs),
    }
}

/// Whether the warps of some role complete positions out of order.
pub fn has_sequences(ir: &Pipeline, ways: &Ways) -> bool {
    ir.roles.iter().any(|role| role_use(ways, role).sequence)
}

/// Whether two roles may share a block: phases never do.
fn may_meet(a: &Role, b: &Role) -> bool {
    if a.phase != b.phase {
        return false;
    }
    match (&a.blocks, &b.blocks) {
        (Blocks::Last, other) | (other, Blocks::Last) => *other == Blocks::Last,
        (Blocks::Even, Blocks::Odd) | (Blocks::Odd, Blocks::Even) => false,
        (Blocks::Range { .. }, Blocks::Other) | (Blocks::Other, Blocks::Range { .. }) => false,
        (Blocks::Range { low: la, high: ha }, Blocks::Range { low: lb, high: hb }) => {
            !(at_most(ha, lb) || at_most(hb, la))
        }
        _ => true,
    }
}

/// Whether two roles that never meet run one after the other on a block if there is no other one.
pub(super) fn may_follow(a: &Role, b: &Role) -> bool {
    let apart = matches!(
        (&a.blocks, &b.blocks),
        (Blocks::Range { .. }, Blocks::Other) | (Blocks::Other, Blocks::Range { .. })
    );
    apart && a.phase == b.phase
}

/// Whether two roles may run one after the other on a block, and differ in what a warp keeps: what a warp of one
/// of them still uses, another warp in the other role may write.
fn may_overlap(ways: &Ways, a: &Role, b: &Role) -> bool {
    let keeps = |role: &Role| (ways.staged(&role.name).cloned(), ways.parts(&role.name).cloned());
    may_follow(a, b) && keeps(a) != keeps(b)
}

/// Whether `a <= b` can be read off the two expressions.
fn at_most(a: &Expr, b: &Expr) -> bool {
    match (a, b) {
        (Expr::Int { value: a }, Expr::Int { value: b }) => a <= b,
        _ => a == b,
    }
}

/// Groups roles with memory of their own that may share a block, in order of declaration: roles of
/// one group need it side by side, groups replace one another.
pub fn block_groups(ir: &Pipeline, ways: &Ways) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (index, role) in ir.roles.iter().enumerate() {
        if !role_use(ways, role).has_memory() {
            continue;
        }
        let shares = |other: &usize| {
            may_meet(&ir.roles[*other], role) || may_overlap(ways, &ir.roles[*other], role)
        };
        let meets = |group: &Vec<usize>| group.iter().any(shares);
        let (joined, apart): (Vec<_>, Vec<_>) = groups.into_iter().partition(meets);
        groups = apart;
        let mut group: Vec<usize> = joined.into_iter().flatten().collect();
        group.push(index);
        group.sort_unstable();
        groups.push(group);
    }
    groups.sort();
    groups
}

/// First warp of each role: behind the roles declared earlier that may share a block with it.
pub(super) fn first_warps(roles: &[Role], counts: &[i64]) -> Vec<i64> {
    let mut firsts: Vec<i64> = Vec::new();
    for (index, role) in roles.iter().enumerate() {
        let earlier = roles[..index].iter().enumerate();
        let shared = earlier.filter(|(_, other)| may_meet(other, role));
        firsts.push(shared.map(|(other, _)| firsts[other] + counts[other]).max().unwrap_or(0));
    }
    firsts
}
