//! The numbers that a text gives names in its structs, where a mutation of them would be no change.

use std::collections::BTreeMap;

use super::parse::Parsed;

/// The constants of a text's structs, by their full names: `Cfg::Send::kFirstWarp`.
pub(super) fn constants(parsed: &Parsed<'_>) -> BTreeMap<String, u64> {
    let (mut all, mut scopes, mut is_constant) = (BTreeMap::new(), Vec::new(), false);
    for at in 0..parsed.tokens.len() {
        match parsed.word(at) {
            "{" => {
                let is_struct = at >= 2 && parsed.word(at - 2) == "struct";
                scopes.push(is_struct.then(|| parsed.word(at - 1)));
                is_constant = false;
            }
            "}" => {
                scopes.pop();
                is_constant = false;
            }
            "constexpr" => is_constant = true,
            ";" => {
                if let Some((name, value)) = is_constant.then(|| named(parsed, at)).flatten() {
                    let structs: Vec<&str> = scopes.iter().flatten().copied().collect();
                    all.insert([structs.as_slice(), &[name]].concat().join("::"), value);
                }
                is_constant = false;
            }
            _ => {}
        }
    }
    all
}

/// The name and the number of the `name = number` before a token.
fn named<'a>(parsed: &'a Parsed<'_>, end: usize) -> Option<(&'a str, u64)> {
    let [name, sign, value] = [3, 2, 1].map(|back| end.checked_sub(back).map(|at| parsed.word(at)));
    if sign != Some("=") {
        return None;
    }
    let value = value?;
    let number = match value.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => value.parse().ok()?,
    };
    Some((name?, number))
}
