//! Expressions whose types do not go together.

use std::fmt::Display;

use super::names::suggest;
use super::{Diagnostic, listed};
use crate::ast::{CudaFn, CudaParam, Elem, Ident, Int, TokenRange};

/// Something else than a `bool` as a condition.
pub(crate) fn not_a_condition(at: TokenRange, found: &impl Display, expr: &str) -> Diagnostic {
    Diagnostic::new(at, format!("a condition has to be a `bool`, and this is {found}"))
        .help(format!("{expr} != 0"))
}

/// Something else than a whole number where one is needed.
pub(crate) fn not_whole(at: TokenRange, what: &str, found: &impl Display) -> Diagnostic {
    Diagnostic::new(at, format!("{what} has to be a whole number, and this is {found}"))
}

/// Something a loop cannot run over.
pub(crate) fn not_a_domain(
    at: TokenRange,
    expr: &str,
    found: &impl Display,
    whole: bool,
) -> Diagnostic {
    let error = Diagnostic::new(at, format!("a loop cannot run over `{expr}`, which is {found}"));
    if whole {
        error.help(format!("0..{expr}"))
    } else {
        error.help("name a number, a row of numbers or a channel")
    }
}

/// An index behind something that has none.
pub(crate) fn not_indexed(at: TokenRange, expr: &str) -> Diagnostic {
    Diagnostic::new(at, format!("`{expr}` cannot be indexed"))
        .help("index a tensor, a channel or a field")
}

/// An index of the name of a `let`.
pub(crate) fn index_of_let(at: TokenRange, name: &str) -> Diagnostic {
    Diagnostic::new(
        at,
        format!("`{name}` is the name of a value, and only a tensor or a field takes an index"),
    )
    .help(format!("index what the `let` of `{name}` names, as in `x[row, i]`"))
}

/// More indices than extents.
pub(crate) fn too_many_indices(
    at: TokenRange,
    name: &str,
    value: &impl Display,
    given: usize,
) -> Diagnostic {
    Diagnostic::new(at, format!("`{name}` is `{value}` and does not take {given} indices"))
        .help("remove this index")
}

/// An index that counts something else than the extent does.
pub(crate) fn index_of_another(
    at: TokenRange,
    index: &str,
    counted: &str,
    name: &str,
    extent: &impl Display,
) -> Diagnostic {
    Diagnostic::new(
        at,
        format!("`{index}` counts `{counted}`, and this extent of `{name}` is `{extent}`"),
    )
}

/// A field of something that has none.
pub(crate) fn no_fields(field: &Ident, base: &str, value: &impl Display) -> Diagnostic {
    Diagnostic::new(field, format!("`{base}` is {value} and has no field `{field}`"))
}

/// A field that the message does not have.
pub(crate) fn unknown_field(field: &Ident, message: &Ident, known: Vec<String>) -> Diagnostic {
    let error = Diagnostic::new(field, format!("`{message}` has no field `{field}`"));
    suggest(error, field, &known)
        .unresolved()
        .also(message, format!("the fields of `{message}` are declared here"))
}

/// A field that stripes do not have.
pub(crate) fn unknown_of_stripe(field: &Ident, known: &[&str]) -> Diagnostic {
    let known: Vec<String> = known.iter().map(|name| name.to_string()).collect();
    let error = Diagnostic::new(field, format!("`stripe` has no field `{field}`"));
    suggest(error, field, &known).unresolved()
}

/// The rows of a stripe where no size says how many there are.
pub(crate) fn stripe_of_nothing(field: &Ident) -> Diagnostic {
    let message = format!("`stripe.{field}` needs a size, whose rows the stripes share");
    Diagnostic::new(field, message).help("size tokens;")
}

/// `1 is`, `2 are`
fn counted(given: usize) -> String {
    if given == 1 { "1 is".to_string() } else { format!("{given} are") }
}

/// The wrong number of arguments.
pub(crate) fn wrong_arguments(name: &Ident, params: &[&str], given: usize) -> Diagnostic {
    let takes =
        if params.len() == 1 { "1 argument" } else { &format!("{} arguments", params.len()) };
    Diagnostic::new(name, format!("`{name}` takes {takes}, and {} given", counted(given)))
        .help(format!("{name}({})", params.join(", ")))
}

/// An argument of the wrong type.
pub(crate) fn wrong_argument(
    at: TokenRange,
    name: &Ident,
    param: &str,
    wanted: &str,
    found: &impl Display,
) -> Diagnostic {
    Diagnostic::new(at, format!("`{param}` of `{name}` is {wanted}, and this is {found}"))
}

/// The wrong number of arguments of a user's function.
pub(crate) fn wrong_cuda_arguments(at: TokenRange, cuda_fn: &CudaFn, given: usize) -> Diagnostic {
    let name = &cuda_fn.name;
    let params: Vec<String> = cuda_fn.params.iter().map(|param| param.name.to_string()).collect();
    let takes = if params.len() == 1 {
        "1 argument".to_string()
    } else {
        format!("{} arguments", params.len())
    };
    Diagnostic::new(at, format!("`{name}` takes {takes}, and {} given", counted(given)))
        .help(format!("{name}({})", params.join(", ")))
        .also(name, format!("`{name}` is declared with {takes}"))
}

/// An argument of the wrong type for a user's function.
pub(crate) fn wrong_cuda_argument(
    at: TokenRange,
    cuda_fn: &CudaFn,
    param: &CudaParam,
    found: &impl Display,
) -> Diagnostic {
    let (name, param_name) = (&cuda_fn.name, &param.name);
    let elem = match &param.elem {
        Elem::Name(elem) => elem.to_string(),
        Elem::Bits { .. } => "bits".to_string(),
    };
    Diagnostic::new(at, format!("`{param_name}` of `{name}` is `{elem}`, and this is {found}"))
        .also(param_name, format!("`{param_name}` is declared as `{elem}`"))
}

/// A sum, product or comparison of something that is no number.
pub(crate) fn not_numeric(at: TokenRange, operation: &str, found: &impl Display) -> Diagnostic {
    Diagnostic::new(at, format!("`{operation}` needs numbers, and this is {found}"))
}

/// Rows of different extents.
pub(crate) fn operands_differ(
    at: TokenRange,
    sign: &str,
    left: &impl Display,
    right: &impl Display,
) -> Diagnostic {
    Diagnostic::new(
        at,
        format!("`{sign}` needs equal extents, and these are `{left}` and `{right}`"),
    )
}

/// Values of an `if` that are not of one kind.
pub(crate) fn choices_differ(
    (at, found): (TokenRange, &impl Display),
    (place, other): (TokenRange, &impl Display),
    help: Option<String>,
) -> Diagnostic {
    let said = format!(
        "both values of an `if` need the same type: this one is `{found}`, and the other is `{other}`"
    );
    let error = Diagnostic::new(at, said).also(place, format!("this value is `{other}`"));
    match help {
        Some(help) => error.help(help),
        None => error,
    }
}

/// A value of an `if` that is neither a number nor a condition.
pub(crate) fn not_chosen(at: TokenRange, found: &impl Display) -> Diagnostic {
    Diagnostic::new(at, format!("the values of an `if` are numbers or `bool`, and this is {found}"))
        .help("write the statement in the blocks of an `if`")
}

/// A cast of something that has no single value.
pub(crate) fn cast_of(elem: &Ident, found: &impl Display) -> Diagnostic {
    Diagnostic::new(elem, format!("{found} cannot be cast to `{elem}`"))
}

/// A cast to a type that means nothing without scales.
pub(crate) fn cast_without_scale(elem: &Ident, value: &str) -> Diagnostic {
    Diagnostic::new(elem, format!("a cast to `{elem}` needs scales, which `as` does not compute"))
        .help(format!("cast_e4m3({value}, 128)"))
}

/// A cast to `bool`.
pub(crate) fn cast_to_bool(elem: &Ident, value: &str) -> Diagnostic {
    Diagnostic::new(elem, "a cast cannot turn a number into a `bool`").help(format!("{value} != 0"))
}

/// A message, part or channel where a value is needed.
pub(crate) fn not_a_value(
    at: TokenRange,
    what: &str,
    target: &impl Display,
    found: &impl Display,
) -> Diagnostic {
    Diagnostic::new(at, format!("{what} is `{target}`, and this is {found}"))
        .help("name a field of it")
}

/// A row where a number is needed, or the other way round.
pub(crate) fn wrong_rank(
    at: TokenRange,
    what: &str,
    target: &impl Display,
    found: &impl Display,
) -> Diagnostic {
    Diagnostic::new(at, format!("{what} takes `{target}` here, and this is `{found}`"))
        .help("write one index for each extent that differs")
}

/// A value of another element type.
pub(crate) fn wrong_type(
    at: TokenRange,
    what: &str,
    target: &impl Display,
    found: &impl Display,
    help: Option<String>,
) -> Diagnostic {
    let error = Diagnostic::new(at, format!("{what} is `{target}`, and this is `{found}`"));
    match help {
        Some(help) => error.help(help),
        None => error,
    }
}

/// A cast with another scale block than the element type has.
pub(crate) fn block_differs(
    at: TokenRange,
    block: i64,
    declared: &Int,
    scale: &Ident,
) -> Diagnostic {
    let wanted = declared.value;
    Diagnostic::new(
        at,
        format!(
            "this cast makes one scale per {block} elements, and `{scale}` has one per {wanted}"
        ),
    )
    .help(wanted.to_string())
    .also(declared, format!("`{scale}` has one value per {wanted} elements"))
}

/// A row of another length.
pub(crate) fn wrong_extent(
    at: TokenRange,
    what: &str,
    target: &impl Display,
    found: &impl Display,
) -> Diagnostic {
    Diagnostic::new(at, format!("{what} is `{target}`, and this row is `{found}`"))
}

/// A name for something that has no value.
pub(crate) fn let_of(at: TokenRange, found: &impl Display) -> Diagnostic {
    Diagnostic::new(at, format!("`let` gives a value a name, and this is {found}"))
        .help("name a field of it")
}

/// `at` behind something that has no positions.
pub(crate) fn position_without_messages(at: TokenRange) -> Diagnostic {
    let has =
        "only a loop over messages, or over a number of the shape inside a stripe, has positions";
    Diagnostic::new(at, has).help("remove the `at`")
}

/// `add` or `count` into something that holds no single number.
pub(crate) fn not_countable(name: &Ident, word: &str, found: &impl Display) -> Diagnostic {
    let wanted = if word == "add" { "numbers" } else { "one whole number" };
    let scalar = listed(&["i32".to_string(), "i64".to_string()], "or");
    let error = Diagnostic::new(name, format!("`{word}` needs {wanted}, and this is `{found}`"));
    if word == "add" {
        error
    } else {
        error.help(format!("give all indices of an {scalar} tensor"))
    }
}

/// A field of a part where one value is wanted.
pub(crate) fn bare_part(at: TokenRange, part: &Ident, field: &Ident) -> Diagnostic {
    Diagnostic::new(at, format!("`{part}.{field}` has one value for each part"))
        .help(format!("first({part}.{field}), or a fold such as sum({part}.{field})"))
}

/// The peer of a part where one number is wanted.
pub(crate) fn bare_peer(peer: &Ident, part: &Ident) -> Diagnostic {
    Diagnostic::new(peer, format!("`{peer}` has one value for each part"))
        .help(format!("fold it with the parts, as in sum({part}.x * scale[{peer}])"))
}
