//! Declarations in the text of a Rust file, for tools that are not the macro.

use proc_macro2::{LexError, TokenStream, TokenTree};

/// The insides of every `pipeline! { .. }` of a Rust file, in order.
pub fn blocks(source: &str) -> Result<Vec<TokenStream>, LexError> {
    let trees: Vec<TokenTree> = source.parse::<TokenStream>()?.into_iter().collect();
    let inside = trees.windows(3).filter_map(|window| match window {
        [TokenTree::Ident(name), TokenTree::Punct(bang), TokenTree::Group(group)]
            if name == "pipeline" && bang.as_char() == '!' =>
        {
            Some(group.stream())
        }
        _ => None,
    });
    Ok(inside.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_macros_are_left_alone() {
        let found =
            blocks("use a::pipeline; pipeline! { pipeline A {} } other! { x } pipeline! {}")
                .expect("the test's brackets are balanced");
        assert_eq!(found.len(), 2);
        assert!(found[1].is_empty());
    }
}
