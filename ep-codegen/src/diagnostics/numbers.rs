//! Numbers of the shape, tunes, args and sizes.

use std::fmt::Display;

use super::Diagnostic;
use crate::ast::{Arg, Ident, Int, Number, Span, TokenRange, Tune};

/// A range whose end lies below its begin.
pub(crate) fn empty_range<T: Display>(
    at: impl Into<TokenRange>,
    least: T,
    greatest: T,
    name: &Ident,
) -> Diagnostic {
    Diagnostic::new(at, format!("the range of `{name}` is empty: {greatest} is less than {least}"))
        .help(format!("{greatest}..={least}"))
}

/// A step that leads nowhere.
pub(crate) fn step_not_positive(step: &Int, name: &Ident) -> Diagnostic {
    Diagnostic::new(
        step,
        format!("the step of `{name}` is {}, and it must be at least 1", step.value),
    )
    .help("step 1")
}

/// A count below zero.
pub(crate) fn negative(value: &Int, name: &Ident) -> Diagnostic {
    Diagnostic::new(value, format!("`{name}` is a count and cannot be {}", value.value))
}

/// A count that does not fit the kernel's 32-bit numbers.
pub(crate) fn too_great(value: &Int, name: &Ident) -> Diagnostic {
    Diagnostic::new(value, format!("`{name}` is at most {}, the greatest `i32`", i32::MAX))
        .help(i32::MAX.to_string())
}

/// A tune without values.
pub(crate) fn no_choices(name: &Ident, default: i64) -> Diagnostic {
    Diagnostic::new(name, format!("the tune `{name}` has no legal values"))
        .help(format!("{name}: {default} in [{default}]"))
}

/// A default that may not be chosen.
pub(crate) fn default_not_in_list(tune: &Tune) -> Diagnostic {
    let mut values: Vec<i64> = tune.choices.iter().map(|choice| choice.value).collect();
    values.push(tune.default.value);
    values.sort_unstable();
    values.dedup();
    let list = values.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
    let message = format!(
        "the default of `{}` is {}, which is not in its list",
        tune.name, tune.default.value
    );
    Diagnostic::new(&tune.default, message)
        .help(format!("{}: {} in [{list}]", tune.name, tune.default.value))
}

/// A value listed twice.
pub(crate) fn choice_twice(choice: &Int, name: &Ident) -> Diagnostic {
    Diagnostic::new(choice, format!("the list of `{name}` has {} twice", choice.value))
        .help("remove it")
}

/// A list out of order.
pub(crate) fn choices_not_ascending(choice: &Int, name: &Ident, sorted: &[i64]) -> Diagnostic {
    let list = sorted.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
    Diagnostic::new(choice, format!("the list of `{name}` is not in ascending order"))
        .help(format!("[{list}]"))
}

/// An element type that a run-time number cannot have.
pub(crate) fn arg_elem(at: Span, name: &Ident) -> Diagnostic {
    Diagnostic::new(at, format!("the arg `{name}` must be an `i32`, `i64`, `u8` or `f32`"))
        .help("i32")
}

/// A default that the caller may not give.
pub(crate) fn default_out_of_range(arg: &Arg) -> Diagnostic {
    let (low, high) = (arg.low.value, arg.high.value);
    let default = arg.default.value;
    let message =
        format!("the default of `{}` is {default}, which is not in {low}..={high}", arg.name);
    let nearest = if default.order(low).is_lt() { low } else { high };
    Diagnostic::new(&arg.default, message).help(nearest.to_string())
}

/// A decimal number of an arg that is whole.
pub(crate) fn decimal_of_whole(number: &Number, elem: Span) -> Diagnostic {
    let value = number.value;
    Diagnostic::new(
        number,
        format!("{value} is a decimal number, and this arg takes only whole numbers"),
    )
    .also(elem, "an arg of `f32` takes decimal numbers")
}

/// A number that its type cannot hold.
pub(crate) fn does_not_fit(
    at: impl Into<TokenRange>,
    value: impl Display,
    elem: Span,
) -> Diagnostic {
    Diagnostic::new(at, format!("{value} does not fit the element type"))
        .also(elem, "this element type has a smaller range")
}

/// A shape that would depend on an arm.
pub(crate) fn shape_in_arm(at: Span, axis: &Ident) -> Diagnostic {
    Diagnostic::new(at, format!("numbers of the shape cannot depend on the variant `{axis}`"))
        .help("move them out of the `when`, where only a `require` may stay")
}

/// A variant that would depend on an arm.
pub(crate) fn variant_in_arm(name: &Ident, axis: &Ident) -> Diagnostic {
    Diagnostic::new(name, format!("the variant `{name}` cannot depend on the variant `{axis}`"))
        .help("move it out of the `when`")
}

/// A size that would depend on an arm.
pub(crate) fn size_in_arm(name: &Ident, axis: &Ident) -> Diagnostic {
    Diagnostic::new(name, format!("the size `{name}` cannot depend on the variant `{axis}`"))
        .help("move it out of the `when`")
}

/// Formulas that need each other.
pub(crate) fn recursion(name: &Ident, others: &[&Ident]) -> Diagnostic {
    let Some((next, _)) = others.split_first() else {
        return Diagnostic::new(name, format!("`{name}` is computed from itself"));
    };
    let mut error =
        Diagnostic::new(name, format!("`{name}` is computed from itself, through `{next}`"));
    for other in others {
        error = error
            .also(*other, format!("`{other}` is computed from `{name}`, directly or indirectly"));
    }
    error
}

/// A formula above what it needs.
pub(crate) fn declared_later(mention: &Ident, name: &Ident, used: &Ident) -> Diagnostic {
    Diagnostic::new(mention, format!("`{name}` is computed before `{mention}` is known"))
        .help(format!("move `let {name} = ..` below `{used}`"))
        .also(used, format!("`{used}` is declared here"))
}

/// A number of a call in a number of the shape.
pub(crate) fn not_of_the_shape(name: &Ident, what: &str) -> Diagnostic {
    Diagnostic::new(
        name,
        format!(
            "`{name}` is a {what}, which is known only in a call, and this has to be a number of \
        the shape"
        ),
    )
}

/// A division that has no result for some legal shape.
pub(crate) fn divisor_may_be_zero(at: TokenRange, divisor: &str) -> Diagnostic {
    Diagnostic::new(at, format!("`{divisor}` is a divisor here, and some legal shape makes it 0"))
        .help(format!("max({divisor}, 1)"))
}

/// A condition that no legal shape meets.
pub(crate) fn contradiction(at: TokenRange, condition: &str) -> Diagnostic {
    Diagnostic::new(at, format!("no legal shape meets `{condition}`"))
        .help("widen the ranges above, or remove the condition")
}
