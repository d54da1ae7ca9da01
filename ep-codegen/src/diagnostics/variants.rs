//! Variants, their arms and the parts of arms.

use super::{Diagnostic, listed};
use crate::ast::{Arm, Ident, Int, Part, Span, TokenRange, Variant};

/// A variant that offers nothing.
pub(crate) fn no_arms(name: &Ident) -> Diagnostic {
    Diagnostic::new(name, format!("the variant `{name}` has no arms"))
        .help(format!("variant {name} {{ First, Second }}"))
}

/// More compiled texts than a pipeline may have.
pub(crate) fn too_many_texts(
    name: &Ident,
    texts: usize,
    max: usize,
    axes: &[(String, usize)],
) -> Diagnostic {
    let product: Vec<String> =
        axes.iter().map(|(axis, arms)| format!("`{axis}` ({arms} arms)")).collect();
    let message = format!(
        "{} make {texts} kernel texts, and a pipeline can have at most {max}",
        listed(&product, "and")
    );
    Diagnostic::new(name, message)
        .help("turn an axis into a number with `tune` or `arg`, or split the pipeline")
}

/// An arm that says nothing where the axis is an element type.
pub(crate) fn arm_without_parts(
    arm: &Arm,
    axis: &Variant,
    used: &Ident,
    model: Option<&Arm>,
) -> Diagnostic {
    let (arm, axis) = (&arm.name, &axis.name);
    let row = model.and_then(|model| model.parts.first()).map(|part| part.name.to_string());
    Diagnostic::new(
        arm,
        format!("the arm `{arm}` of `{axis}` has no parts, and `{used}` needs them"),
    )
    .help(format!("{arm} {{ {}: bf16 }}", row.unwrap_or_else(|| "x".to_string())))
    .also(used, format!("`{used}` has `{axis}` as its element type"))
}

/// A scale for blocks of nothing.
pub(crate) fn empty_block(at: impl Into<TokenRange>, block: i64) -> Diagnostic {
    Diagnostic::new(
        at,
        format!(
            "a scale block must have at least one element, and this one has \
    {block}"
        ),
    )
    .help("128")
}

/// A scale block on the row itself.
pub(crate) fn row_with_block(at: &Int, part: &Part) -> Diagnostic {
    Diagnostic::new(at, format!("`{}` is the row itself and cannot have a block", part.name))
        .help("put `block` on the parts that follow the row")
}

/// A part that neither is the row nor says how it goes with it.
pub(crate) fn part_without_block(part: &Part) -> Diagnostic {
    let name = &part.name;
    Diagnostic::new(
        name,
        format!("`{name}` needs `block n`, the number of elements that share one value"),
    )
    .help(format!("{name}: f32 block 128"))
}

/// A part whose type is not a single element.
pub(crate) fn part_not_scalar(at: Span, elem: &str) -> Diagnostic {
    Diagnostic::new(at, format!("a part needs an element type, and `{elem}` is not one"))
        .help("bf16")
}
