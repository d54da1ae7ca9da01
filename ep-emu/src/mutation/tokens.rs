//! A text of C++ as tokens. Comments and lines of the preprocessor are none.

use std::ops::Range;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Word,
    Number,
    Quoted,
    Sign,
}

/// A token, by where it is.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) bytes: Range<usize>,
    /// From 1 on.
    pub(super) line: u32,
    /// Whether white space or a comment stands before it: what tells `a < b` from `a<b>`.
    pub(super) spaced: bool,
}

/// Signs of more than one letter, longest first. `>>` is two signs, as it may close two lists of
/// template arguments.
const LONG_SIGNS: [&str; 23] = [
    "<<=", ">>=", "...", "->", "++", "--", "&&", "||", "==", "!=", "<=", ">=", "+=", "-=", "*=",
    "/=", "%=", "&=", "|=", "^=", "<<", "::", "##",
];

/// The tokens of `text`.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let bytes = text.as_bytes();
    let (mut all, mut at, mut line, mut spaced) = (Vec::new(), 0, 1, true);
    while at < bytes.len() {
        let rest = &text[at..];
        let (kind, length) = match bytes[at] {
            b'\n' => {
                (at, line, spaced) = (at + 1, line + 1, true);
                continue;
            }
            b' ' | b'\t' | b'\r' => {
                (at, spaced) = (at + 1, true);
                continue;
            }
            b'/' if rest.starts_with("//") => {
                at += rest.find('\n').unwrap_or(rest.len());
                continue;
            }
            b'/' if rest.starts_with("/*") => {
                let length = rest.find("*/").map_or(rest.len(), |end| end + 2);
                line += rest[..length].matches('\n').count() as u32;
                (at, spaced) = (at + length, true);
                continue;
            }
            b'#' => {
                let length = directive(rest);
                line += rest[..length].matches('\n').count() as u32;
                at += length;
                continue;
            }
            b'"' | b'\'' => (Kind::Quoted, quoted(rest)),
            b'0'..=b'9' => (Kind::Number, number(rest)),
            byte if is_word(byte) => {
                (Kind::Word, rest.bytes().take_while(|byte| is_word(*byte)).count())
            }
            _ => {
                let sign = LONG_SIGNS.iter().find(|sign| rest.starts_with(**sign));
                let one = rest.chars().next().map_or(1, char::len_utf8);
                (Kind::Sign, sign.map_or(one, |sign| sign.len()))
            }
        };
        all.push(Token { kind, bytes: at..at + length, line, spaced });
        (at, spaced) = (at + length, false);
    }
    all
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Bytes of a line of the preprocessor, with those that it goes on in.
fn directive(rest: &str) -> usize {
    let mut length = 0;
    for line in rest.split_inclusive('\n') {
        length += line.len();
        if !line.trim_end().ends_with('\\') {
            // The end of the line is counted by the caller.
            return length - usize::from(line.ends_with('\n'));
        }
    }
    length
}

fn quoted(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut at = 1;
    while at < bytes.len() && bytes[at] != bytes[0] {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

fn number(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let signed = matches!(bytes[at], b'+' | b'-')
            && matches!(bytes[at - 1], b'e' | b'E' | b'p' | b'P')
            && !(rest.starts_with("0x") && matches!(bytes[at - 1], b'e' | b'E'));
        if !(is_word(bytes[at]) || matches!(bytes[at], b'.' | b'\'') || signed) {
            break;
        }
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut() {
        let text = "#pragma x \\\n y\na<b> >>= 1e-3f; // c\n/* \n */ p->q(\"a\\\"b\", 0x1e-2) x>>1";
        let all = tokens(text);
        let words: Vec<&str> = all.iter().map(|token| &text[token.bytes.clone()]).collect();
        let want = "a < b > >>= 1e-3f ; p -> q ( \"a\\\"b\" , 0x1e - 2 ) x > > 1";
        assert_eq!(words.join(" "), want);
        assert_eq!((all[0].line, all[7].line), (3, 5));
        assert!(!all[1].spaced && all[4].spaced);
    }
}
