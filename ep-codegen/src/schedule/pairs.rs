//! Units of work that the warps of a role share: `warps shared by (a, b)`.

use super::cut::shares_units;
use super::scope::{Meaning, Scope};
use super::step::{Loop, Step, Takers};
use super::symbol::Root;
use super::term::{Node, Term, arithmetic};
use super::{Lowered, RoleLowering};
use crate::ir::slots::{shared_axis, shared_sources};
use crate::ir::stripes::is_by_stripe;
use crate::ir::{BinaryOp, Elem, PeerSet, WellKnown};
use crate::schedule::library::ep;
use crate::schedule::limit::broken;

/// The most warps that share a unit of work.
const MOST_SHARES: i64 = 1 << 13;

impl RoleLowering<'_> {
    /// `warps shared by (a, b)`: each warp takes pairs in turn. Without `stripe` among them, where the
    /// body speaks of one, a block takes stripes and its warps the rest.
    pub(super) fn pairs(
        &mut self,
        scope: &Scope,
        names: &[String],
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let has_stripe = names.contains(&"stripe".to_string());
        let shares = self.shares_rings();
        let (names, extents) = self.of_warps(names)?;
        let product = extents.iter().cloned().fold(Term::int(1), Term::times);
        let served =
            names.iter().zip(&extents).map(|(name, extent)| match self.shares_others(name) {
                true => arithmetic(BinaryOp::Sub, extent.clone(), Term::int(1)),
                false => extent.clone(),
            });
        let served = served.fold(Term::int(1), Term::times);
        let by_block = shares || (is_by_stripe(self.ir, self.role) && !has_stripe);
        let shared = !by_block && shares_units(self.ir, self.role, self.rules);
        let pair = self.names.fresh("unit");
        self.closers = Some(match by_block {
            true => self.number(WellKnown::Stripes.name()).times(served),
            false => served,
        });
        let mut rest = match product.elem {
            Elem::I64 => Term::name(&pair, Elem::I64),
            _ => Term::index(&pair),
        };
        let (mut inner, mut body) = (scope.clone(), Vec::new());
        let (mut all, mut share) = (product.clone(), None);
        if shared {
            let own;
            (own, rest) = self.share(&rest, &product, out, &mut body);
            all = all.times(own.1.clone());
            share = Some(own);
        }
        let stripes = match by_block {
            true => {
                let (repeat, with_stripe) = self.stripes_loop(scope, Takers::Blocks)?;
                inner = with_stripe;
                Some(repeat)
            }
            false => None,
        };
        self.bind_indices((&names, &extents), rest, &mut inner, &mut body);
        match share {
            Some(share) => self.share_of_unit(&inner, share, &mut body)?,
            None => self.carry(&inner, &mut body)?,
        }
        let closes = if by_block || shared { Vec::new() } else { closes_after(&mut body) };
        let of_block = if shares { Takers::Parts } else { Takers::WarpsOfBlock };
        let of_grid = if shared { Takers::Spread } else { Takers::Warps };
        let turns = if by_block { of_block } else { of_grid };
        let elem = all.elem.clone();
        let units =
            Step::Loop(Loop { binder: pair, elem, from: Term::int(0), to: all, turns, body });
        match stripes {
            Some(mut repeat) => {
                repeat.body = vec![units];
                out.push(Step::Loop(repeat));
            }
            None => out.push(units),
        }
        out.extend(closes);
        Ok(())
    }

    /// Binds the indices of the unit with this number. The first index changes fastest.
    fn bind_indices(
        &mut self,
        (names, extents): (&[String], &[Term]),
        unit: Term,
        inner: &mut Scope,
        body: &mut Vec<Step>,
    ) {
        let mut rest = unit;
        for (name, extent) in names.iter().zip(extents) {
            let own = arithmetic(BinaryOp::Rem, rest.clone(), extent.clone());
            let high = extent.range.map_or(i64::from(i32::MAX), |(_, high)| high - 1);
            let value = self.named(name, own.converted(&Elem::I32), body);
            let value = Term { range: Some((0, high)), ..value };
            if self.shares_others(name) {
                body.push(Step::SkipUnless(value.clone().test(BinaryOp::Ne, self.me())));
            }
            inner.bind(name, Meaning::Value(value));
            rest = arithmetic(BinaryOp::Div, rest, extent.clone());
        }
    }

    /// Returns the share and the number of shares, and the unit, that a turn stands for. Steps in front of the loop go to `out`.
    fn share(
        &mut self,
        turn: &Term,
        units: &Term,
        out: &mut Vec<Step>,
        body: &mut Vec<Step>,
    ) -> ((Term, Term), Term) {
        let args = vec![Term::name("team", Elem::I32), units.clone().converted(&Elem::I32)];
        let shares = Term::call(ep::shares_of, args, Elem::I32);
        let shares = Term { range: Some((1, MOST_SHARES)), ..shares };
        let shares = self.named("shares", shares, out);
        let of = |op| arithmetic(op, turn.clone(), shares.clone());
        let own = self.named("share", of(BinaryOp::Rem).converted(&Elem::I32), body);
        let unit = self.named("own_unit", of(BinaryOp::Div).converted(&units.elem), body);
        ((own, shares), unit)
    }

    /// The numbers that the warps of a block share, with how many values each has: where they share stripes, the block
    /// takes these.
    fn of_warps(&mut self, names: &[String]) -> Lowered<(Vec<String>, Vec<Term>)> {
        let shares = self.shares_rings();
        let is_theirs = |name: &&String| !shares || *name != "stripe";
        let names: Vec<String> = names.iter().filter(is_theirs).cloned().collect();
        let extents = names.iter().map(|name| self.extent_of(name)).collect::<Lowered<_>>()?;
        Ok((names, extents))
    }

    /// How many values an index of a share has.
    pub(super) fn extent_of(&mut self, name: &str) -> Lowered<Term> {
        if name == "source" {
            let channel = shared_sources(self.ir, self.role);
            return self.known(channel.map_or(&PeerSet::All, |channel| &channel.per).number());
        }
        if let Some((channel, axis)) = shared_axis(self.ir, self.role, name) {
            return self.scalar(&Scope::default(), &channel.slot[axis], &mut Vec::new());
        }
        let plural = format!("{name}s");
        let known = self.ir.dims.iter().map(|dim| &dim.name);
        let mut known = known.chain(self.ir.tunes.iter().map(|tune| &tune.name));
        match known.any(|own| *own == plural) {
            true => Ok(self.number(&plural)),
            false => Err(broken(format!("nothing says how many values `{name}` has"))),
        }
    }

    /// Whether this rank is none of the sources that the warps of the role share.
    fn shares_others(&self, name: &str) -> bool {
        let channel = shared_sources(self.ir, self.role).filter(|_| name == "source");
        channel.is_some_and(|channel| channel.per == PeerSet::Others)
    }
}

/// Takes the statement that closes slots from the end of a unit: each warp closes once, after all of its units.
fn closes_after(unit: &mut Vec<Step>) -> Vec<Step> {
    let is_close = |step: &Step| {
        matches!(step, Step::Do(Term { node: Node::Call(function, closers), .. })
            if closers.len() == 1 && matches!(&function.root, Root::Method(_, "close")))
    };
    let [.., Step::Says(_), last] = unit.as_slice() else { return Vec::new() };
    if !is_close(last) {
        return Vec::new();
    }
    let mut closes = unit.split_off(unit.len() - 2);
    if let [_, Step::Do(Term { node: Node::Call(_, args), .. })] = closes.as_mut_slice() {
        *args = vec![Term::method("team", "count", Vec::new(), Elem::I32)];
    }
    closes
}
