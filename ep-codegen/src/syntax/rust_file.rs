//! Declarations in the text of a Rust file, for tools that are not the macro.

use proc_macro2::{LexError, TokenStream, TokenTree};

/// The insides of every `pipeline! { .. }` of a Rust file, those in modules included, in order.
pub fn blocks(source: &str) -> Result<Vec<TokenStream>, LexError> {
    let mut found = Vec::new();
    blocks_in(source.parse()?, &mut found);
    Ok(found)
}

fn blocks_in(tokens: TokenStream, found: &mut Vec<TokenStream>) {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    for window in trees.windows(3) {
        match window {
            [TokenTree::Ident(name), TokenTree::Punct(bang), TokenTree::Group(group)]
                if name == "pipeline" && bang.as_char() == '!' =>
            {
                found.push(group.stream());
            }
            [TokenTree::Ident(word), TokenTree::Ident(_), TokenTree::Group(group)]
                if word == "mod" =>
            {
                blocks_in(group.stream(), found);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_macros_are_left_alone() {
        let found = blocks(
            "use a::pipeline; pipeline! { pipeline A {} } other! { x } mod m { pipeline! {} }",
        )
        .expect("the test's brackets are balanced");
        assert_eq!(found.len(), 2);
        assert!(found[1].is_empty());
    }
}
