//! Tokens as a reader would have typed them: the same tokens give the same text, whatever the
//! white space was.

use proc_macro2::{Delimiter, LexError, Spacing, TokenStream, TokenTree};

/// Words after which a bracket or minus sign begins something new instead of going on.
const OPENERS: &[&str] = &[
    "in", "at", "by", "where", "as", "from", "across", "to", "block", "blocks", "beyond", "let",
    "require", "fill", "step", "size",
];

/// Words that take a message in angle brackets.
const GENERIC: &[&str] = &["ring", "slots", "direct", "pull"];

/// The text of `tokens` on one line.
pub fn tokens(tokens: impl IntoIterator<Item = TokenTree>) -> String {
    let mut printer = Printer { out: String::new(), last: Last::Start, angle: false };
    printer.trees(tokens.into_iter().collect());
    printer.out
}

/// `source` with its white space folded.
pub fn text(source: &str) -> Result<String, LexError> {
    Ok(tokens(source.parse::<TokenStream>()?))
}

/// What stands to the left of the next token.
#[derive(Clone, PartialEq)]
enum Last {
    /// Nothing, or an opening bracket.
    Start,
    /// A word.
    Word(String),
    /// A number, text, or a closing bracket: something an operator can follow.
    Value,
    /// A binary operator, comma, or another sign that a space follows.
    Sign,
    /// A sign that clings to what follows: `.`, `..`, a unary minus.
    Tight,
}

struct Printer {
    out: String,
    last: Last,
    /// Inside `ring<..>`.
    angle: bool,
}

impl Printer {
    fn trees(&mut self, trees: Vec<TokenTree>) {
        let mut trees = trees.into_iter().peekable();
        while let Some(tree) = trees.next() {
            match tree {
                TokenTree::Ident(ident) => self.word(&ident.to_string()),
                TokenTree::Literal(literal) => {
                    self.space_before_word();
                    self.out.push_str(&literal.to_string());
                    self.last = Last::Value;
                }
                TokenTree::Group(group) => self.group(group.delimiter(), group.stream()),
                TokenTree::Punct(punct) => {
                    let mut sign = String::from(punct.as_char());
                    let mut joint = punct.spacing() == Spacing::Joint;
                    while joint && let Some(TokenTree::Punct(next)) = trees.peek() {
                        if !is_sign(&sign, next.as_char()) {
                            break;
                        }
                        sign.push(next.as_char());
                        joint = next.spacing() == Spacing::Joint;
                        trees.next();
                    }
                    self.sign(&sign);
                }
            }
        }
    }

    fn word(&mut self, word: &str) {
        self.space_before_word();
        self.out.push_str(word);
        self.last = Last::Word(word.to_string());
    }

    fn space_before_word(&mut self) {
        if !matches!(self.last, Last::Start | Last::Tight) {
            self.out.push(' ');
        }
    }

    fn group(&mut self, delimiter: Delimiter, inner: TokenStream) {
        let (open, close) = match delimiter {
            Delimiter::Parenthesis => ("(", ")"),
            Delimiter::Bracket => ("[", "]"),
            Delimiter::Brace => ("{ ", " }"),
            Delimiter::None => ("", ""),
        };
        let clings = match &self.last {
            Last::Start | Last::Tight => true,
            Last::Value => delimiter != Delimiter::Brace,
            // The first word of a line may name a fragment.
            Last::Word(word) => {
                let opens = OPENERS.contains(&word.as_str()) && self.out != *word;
                delimiter != Delimiter::Brace && !opens
            }
            Last::Sign => false,
        };
        if !clings {
            self.out.push(' ');
        }
        if inner.is_empty() {
            self.out.push_str(open.trim());
            self.out.push_str(close.trim());
        } else {
            self.out.push_str(open);
            self.last = Last::Start;
            let mut inner: Vec<TokenTree> = inner.into_iter().collect();
            // A comma at the end says only that the list was written on several lines.
            if matches!(inner.last(), Some(TokenTree::Punct(last)) if last.as_char() == ',') {
                inner.pop();
            }
            self.trees(inner);
            self.out.push_str(close);
        }
        self.last = Last::Value;
    }

    fn sign(&mut self, sign: &str) {
        let after_value = match &self.last {
            Last::Value => true,
            Last::Word(word) => !OPENERS.contains(&word.as_str()),
            _ => false,
        };
        match sign {
            "," | ";" | ":" => {
                self.out.push_str(sign);
                self.last = Last::Sign;
            }
            "." | "::" => self.tight(sign),
            ".." | "..=" => {
                // `..message` after a comma is apart from it, a range clings to both ends.
                if self.last == Last::Sign || (!after_value && self.last != Last::Start) {
                    self.out.push(' ');
                }
                self.tight(sign);
            }
            "!" | "-" | "#" if !after_value => {
                self.space_before_word();
                self.tight(sign);
            }
            "<" if matches!(&self.last, Last::Word(word) if GENERIC.contains(&word.as_str())) => {
                self.angle = true;
                self.tight(sign);
            }
            ">" if self.angle => {
                self.angle = false;
                self.out.push('>');
                self.last = Last::Value;
            }
            _ => {
                self.space_before_word();
                self.out.push_str(sign);
                self.last = Last::Sign;
            }
        }
    }

    fn tight(&mut self, sign: &str) {
        self.out.push_str(sign);
        self.last = Last::Tight;
    }
}

/// Whether `sign` followed by `next` is one longer sign.
fn is_sign(sign: &str, next: char) -> bool {
    const LONG: &[&str] = &["..=", "..", "::", "->", "==", "!=", "<=", ">=", "&&", "||"];
    let mut longer = sign.to_string();
    longer.push(next);
    LONG.contains(&longer.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(source: &str) -> String {
        text(source).expect("the test's text has balanced brackets")
    }

    #[test]
    fn printing_is_stable_and_reads_as_typed() {
        for text in [
            "push ring[peer] { x: x[token], src: token };",
            "for token in stripe where in_rank[token, peer] && !done",
            "push local[peer] { ..message, experts: local(message.experts, peer) };",
            "store combined[token] = sum(part.x) + bias[token];",
            "let first = -1 - recv_first[peer, stripe];",
            "for row in 0..recv_count[peer, stripe] + 1",
            "channel ring: ring<Token> over nvlink | rdma from Send, Local to Recv per all { header: [first, count] };",
            "stripes: 12 in [4, 6, 8]",
            "hidden: 16..=32768 step 16",
            "require ranks < 64 && experts >= ranks",
            "role Unpack on other blocks, 4 warps, warps shared by (source, stripe)",
            "record rank_prefix[source, dest] = prefix_sum(source in ranks: counts[source].per_rank[dest]);",
            "push back[source] at [expert, src_info[row]] { x: x[row] as bf16 };",
            "recv_topk_idx: optional i64[received, topk] fill -1 beyond received",
            "fragment unpack(message: message, to: tensor, body: block) { store to_x[message.row] = message.x; body(); }",
            "fill(message, local(message.experts, me), recv_x, { count seen[0]; });",
            "items payload { variant payload { Bf16 { x: bf16 } } }",
            "use payload;",
            "fragments from \"src/moe.pipe\";",
        ] {
            assert_eq!(print(text), text);
            assert_eq!(print(&text.replace(' ', "  \n")), text);
            assert_eq!(print(&text.replace(" }", ", }").replace(']', ",]")), text);
        }
    }
}
