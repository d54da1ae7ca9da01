//! In which choices of arms something is lacking, in words.

use super::model::{Choice, View};

/// `None` if every view that has the thing (`here`) also has what it needs (`has`); otherwise
/// where it lacks: empty if everywhere, else ` when \`axis\` is \`Arm\``.
pub(super) fn lacking(
    views: &[View<'_>],
    here: &dyn Fn(&View<'_>) -> bool,
    has: &dyn Fn(&View<'_>) -> bool,
) -> Option<String> {
    let declared: Vec<&View<'_>> = views.iter().filter(|view| here(view)).collect();
    let lacking: Vec<&&View<'_>> = declared.iter().filter(|view| !has(view)).collect();
    let first = lacking.first()?;
    if lacking.len() == declared.len() {
        return Some(String::new());
    }
    // One arm that explains it reads better than a whole choice.
    for (axis, arm) in &first.choice {
        let of_arm = |view: &&&View<'_>| {
            view.choice
                .iter()
                .any(|(other, chosen)| other.name == axis.name && chosen.name == arm.name)
        };
        if declared.iter().filter(of_arm).all(|view| !has(view)) {
            return Some(format!(" when `{}` is `{}`", axis.name, arm.name));
        }
    }
    Some(choice_words(&first.choice))
}

/// A choice of arms in words: empty without axes, else ` when ..`.
pub(super) fn choice_words(choice: &Choice<'_>) -> String {
    if choice.is_empty() {
        return String::new();
    }
    let arms: Vec<String> =
        choice.iter().map(|(axis, arm)| format!("`{}` is `{}`", axis.name, arm.name)).collect();
    format!(" when {}", arms.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::super::tests::said_to;

    #[test]
    fn the_arm_that_lacks_something_is_named() {
        let stored = |arms: &str| {
            said_to(&format!(
                "shape {{ ranks: 1..=8 }} variant a {{ X, Y }} variant b {{ P, Q }}
                 output n: i32[ranks], kept: i32[ranks];
                 role R on all blocks {{ count kept[0]; when {arms} {{ count n[0]; }} }}"
            ))
        };
        assert_eq!(stored("a is X | Y"), [""; 0]);
        assert_eq!(stored("a is X"), ["no role stores the output `n` when `a` is `Y`"]);
        assert_eq!(stored("b is Q"), ["no role stores the output `n` when `b` is `P`"]);
    }
}
