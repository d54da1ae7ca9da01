//! The one table of helpers: what an expression may call. Adding a helper is a row here and a
//! device function of the same name; the grammar knows none of them.

use super::parts::Code;
use super::{Expr, Fold, walk};

/// What a helper takes or gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number: an index, a count, a float.
    Number,
    /// `true` or `false`.
    Bool,
    /// A number, or a row of numbers taken element by element.
    Elementwise,
    /// A row of expert numbers, `-1` where there is none.
    ExpertRow,
    /// A row with one number per expert of the group.
    RowOverExperts,
    /// A row with one number per expert of one rank.
    RowOverLocalExperts,
    /// A row of floats.
    FloatRow,
    /// A row of a composite element: `x` and `scale`.
    ScaledRow,
    /// `bits[n]`.
    Bits,
    /// A field of a gathered part: one value, or one row, per part.
    Parts,
    /// A field of one gathered part, of any type, because a helper copies it unchanged.
    Part,
}

/// A helper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Helper {
    /// Name in expressions.
    pub name: &'static str,
    /// Parameters in order: name for messages, and kind.
    pub params: &'static [(&'static str, Kind)],
    /// Kind of the result. For [`Kind::Elementwise`], [`Kind::Parts`] and [`Kind::Part`] it is that of the argument.
    pub result: Kind,
    /// One line for the reference.
    pub doc: &'static str,
}

use Kind::{
    Bits, Bool, Elementwise, ExpertRow, FloatRow, Number, Part, Parts, RowOverExperts,
    RowOverLocalExperts, ScaledRow,
};

#[rustfmt::skip] // A table: one row per helper.
const HELPERS: &[Helper] = &[
    Helper { name: "align", params: &[("n", Number), ("multiple", Number)], result: Number, doc: "`n` rounded up to a multiple" },
    Helper { name: "alive", params: &[("rank", Number)], result: Bool, doc: "whether the rank takes part in this call" },
    Helper { name: "any", params: &[("bits", Bits)], result: Bool, doc: "whether a bit is set" },
    Helper { name: "bit_xor", params: &[("a", Number), ("b", Number)], result: Number, doc: "the bits that are set in exactly one of two whole numbers" },
    Helper { name: "cast_e4m3", params: &[("row", FloatRow), ("block", Number)], result: ScaledRow, doc: "the row in e4m3 with one scale per block" },
    Helper { name: "cast_logfmt10", params: &[("row", FloatRow), ("block", Number)], result: ScaledRow, doc: "the row in ten bits per value: its logarithm between the least and the greatest of a block" },
    Helper { name: "ceil", params: &[("a", Number), ("b", Number)], result: Number, doc: "`a / b` rounded up" },
    Helper { name: "first", params: &[("field", Part)], result: Part, doc: "the field of the first gathered part, unchanged" },
    Helper { name: "has", params: &[("bits", Bits), ("index", Number)], result: Bool, doc: "whether the bit of `index` is set" },
    Helper { name: "listed", params: &[("experts", ExpertRow), ("expert", Number)], result: Bool, doc: "whether the expert is in the list" },
    Helper { name: "local", params: &[("expert", Elementwise), ("rank", Number)], result: Elementwise, doc: "the expert's index on the rank, or -1 when it lives elsewhere" },
    Helper { name: "local_rank", params: &[("rank", Number)], result: Number, doc: "the rank's index in its node" },
    Helper { name: "max", params: &[("a", Number), ("b", Number)], result: Number, doc: "the greater whole number" },
    Helper { name: "max", params: &[("field", Parts)], result: Parts, doc: "the greatest value of the gathered parts" },
    Helper { name: "min", params: &[("a", Number), ("b", Number)], result: Number, doc: "the lesser whole number" },
    Helper { name: "min", params: &[("field", Parts)], result: Parts, doc: "the least value of the gathered parts" },
    Helper { name: "node", params: &[("rank", Number)], result: Number, doc: "the rank's node" },
    Helper { name: "owned", params: &[("row", RowOverExperts), ("rank", Number)], result: RowOverLocalExperts, doc: "the entries of the experts that live on the rank" },
    Helper { name: "owner", params: &[("expert", Number)], result: Number, doc: "the rank on which the expert lives" },
    Helper { name: "rank_at", params: &[("node", Number), ("local", Number)], result: Number, doc: "the rank with this index in its node" },
    Helper { name: "routed", params: &[("experts", ExpertRow), ("rank", Number)], result: Bool, doc: "whether one of the experts lives on the rank" },
    Helper { name: "routed_bits", params: &[("experts", ExpertRow), ("node", Number)], result: Bits, doc: "the ranks of the node on which one of the experts lives, by their index in the node" },
    Helper { name: "routed_node", params: &[("experts", ExpertRow), ("node", Number)], result: Bool, doc: "whether one of the experts lives on a rank of the node" },
    Helper { name: "sum", params: &[("field", Parts)], result: Parts, doc: "the sum over the gathered parts, in order of the axis" },
];

/// Every helper in order of name.
pub fn all() -> &'static [Helper] {
    HELPERS
}

/// The helper of this name, the one with so many parameters if there are two.
pub fn find(name: &str, args: usize) -> Option<&'static Helper> {
    let mut named = HELPERS.iter().filter(|helper| helper.name == name);
    named.clone().find(|helper| helper.params.len() == args).or_else(|| named.next())
}

/// What a helper casts rows to, if it does.
pub fn casts_to(helper: &str) -> Option<Code> {
    let name = helper.strip_prefix("cast_")?;
    [Code::E4m3, Code::Logfmt10].into_iter().find(|code| code.name() == name)
}

/// The call that takes the first part of a gather as it is: in the IR, a field of a part that stands in no fold.
pub const FIRST: &str = "first";

/// The fields of `part` that stand in no fold, of all expressions that `visit` shows, outer ones first.
pub fn taken_of_part<'a>(
    part: &str,
    visit: impl FnOnce(&mut dyn FnMut(&'a Expr)),
) -> Vec<&'a Expr> {
    let (mut folded, mut taken): (Vec<&Expr>, Vec<&Expr>) = Default::default();
    visit(&mut |inner| match inner {
        Expr::Call { helper, args } if Fold::of_parts(helper, args).is_some() => {
            args.iter().for_each(|arg| walk::expr(arg, &mut |own| folded.push(own)));
        }
        Expr::Field { of, .. }
            if of == part && !folded.iter().any(|own| std::ptr::eq(*own, inner)) =>
        {
            taken.push(inner);
        }
        _ => {}
    });
    taken
}

impl Fold {
    /// All folds.
    pub const ALL: [Fold; 4] = [Fold::Max, Fold::Min, Fold::PrefixSum, Fold::Sum];

    /// The word that folds a value over a binder, `sum(b in domain: value)`, or, but for the sum of those
    /// before, over the parts of a gather, `sum(part.field)`.
    pub fn word(self) -> &'static str {
        match self {
            Fold::Sum => "sum",
            Fold::PrefixSum => "prefix_sum",
            Fold::Max => "max",
            Fold::Min => "min",
        }
    }

    /// The fold of this word.
    pub fn of_word(word: &str) -> Option<Fold> {
        Fold::ALL.into_iter().find(|fold| fold.word() == word)
    }

    /// The fold over the parts of a gather that a call stands for, if it is one.
    pub fn of_parts(helper: &str, args: &[Expr]) -> Option<Fold> {
        let fold = Fold::of_word(helper).filter(|fold| *fold != Fold::PrefixSum);
        fold.filter(|_| args.len() == 1)
    }
}

/// Whether a fold over the parts of a gather is in an expression.
pub fn folds_parts(whole: &Expr) -> bool {
    walk::any_expr(
        whole,
        &mut |part| matches!(part, Expr::Call { helper, args } if Fold::of_parts(helper, args).is_some()),
    )
}

/// The call that stands for a slot index of several axes (`at [expert, token]`, `rows[e, s]`).
pub const SLOT: &str = "slot";

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use super::*;

    #[test]
    fn helpers_are_unique_and_in_order() {
        let key = |helper: &Helper| (helper.name, Reverse(helper.params.len()));
        assert!(HELPERS.windows(2).all(|pair| key(&pair[0]) < key(&pair[1])));
    }
}
