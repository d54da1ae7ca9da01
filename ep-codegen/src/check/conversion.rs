//! The cast that makes a value fit the place it is stored to, for the help of an error.

use super::types::Scalar;
use crate::ast::{Expr, ExprKind};
use crate::syntax::reprint::expr as text;

/// How `value` can be made to fit, if a cast does it.
pub(super) fn conversion(to: &Scalar<'_>, from: &Scalar<'_>, value: &Expr) -> Option<String> {
    let written = match value.kind {
        ExprKind::Binary { .. } | ExprKind::Cast { .. } => format!("({})", text(value)),
        _ => text(value),
    };
    let castable = from.is_numeric() || matches!(from, Scalar::Bool);
    match to.plain() {
        Scalar::Int(_) | Scalar::F32 | Scalar::Bf16 if castable => {
            Some(format!("{written} as {to}"))
        }
        Scalar::Axis(_, [_, .., scale]) if from.is_float() => {
            let block = scale.block.as_ref().map_or(128, |block| block.value);
            Some(format!("cast_{}({written}, {block})", to.code()?.name()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::said_to;

    /// What is said to `store out[row] = value` with `out: elem[tokens, hidden]`.
    fn stored(elem: &str, value: &str) -> Vec<String> {
        said_to(&format!(
            "shape {{ hidden: 16..=64, let half = ceil(hidden, 2) }}
             variant payload {{ Fp8 {{ x: e4m3, scale: f32 block 128 }} }}
             variant wire {{ L {{ x: u8, upper: u8 block 4, low: f32 block 128, step: f32 block 128 }} }}
             size tokens;
             input b: bf16[tokens, hidden], f: f32[tokens, hidden], n: i64[tokens, hidden],
                   h: f32[tokens, ceil(hidden, 2)], p: payload[tokens, hidden], w: wire[tokens, hidden];
             output out: {elem};
             role R on all blocks, one block a token {{
                 for t in tokens {{ store out[t] = {value}; }}
             }}"
        ))
    }

    #[test]
    fn values_fit_without_a_cast_only_if_nothing_is_lost_unseen() {
        for (elem, value) in [
            ("bf16[tokens, hidden]", "b[t] + b[t]"),
            ("f32[tokens, hidden]", "b[t] * f[t]"),
            ("i32[tokens, hidden]", "n[t]"),
            ("bf16[tokens, hidden]", "f[t] as bf16"),
            ("payload[tokens, hidden]", "cast_e4m3(b[t], 128)"),
            ("wire[tokens, hidden]", "cast_logfmt10(b[t], 128)"),
            ("f32[tokens, hidden]", "p[t] as f32 + (w[t] as f32)"),
            ("f32[tokens, half]", "h[t]"),
            ("bool[tokens]", "n[t, 0] > 0 && !(n[t, 1] == 2)"),
        ] {
            assert_eq!(stored(elem, value), [""; 0], "{value}");
        }
        assert_eq!(
            stored("bf16[tokens, hidden]", "f[t]"),
            ["`out` is `bf16[hidden]`, and this is `f32[hidden]`"]
        );
        assert_eq!(
            stored("wire[tokens, hidden]", "cast_e4m3(b[t], 128)"),
            ["`out` is `wire[hidden]`, and this is `e4m3[hidden] with a scale per 128`"]
        );
        assert_eq!(
            stored("wire[tokens, hidden]", "cast_logfmt10(b[t], 64)"),
            ["this cast makes one scale per 64 elements, and `step` has one per 128"]
        );
        for (elem, value) in
            [("f32[tokens]", "w[t, 1] as f32"), ("i32[tokens, hidden]", "w[t] as i32")]
        {
            assert!(stored(elem, value)[0].contains("cannot be cast"), "{value}");
        }
        assert_eq!(
            stored("payload[tokens, hidden]", "b[t]"),
            ["`out` is `payload[hidden]`, and this is `bf16[hidden]`"]
        );
    }
}
