//! Indentation and comments of emitted text, so that no template has to care.

/// Longest line of emitted text.
const COLUMNS: usize = 100;

/// Indents every line by the brackets open around it, folds runs of blank lines, wraps comments.
pub(super) fn lay_out(text: &str) -> String {
    let mut out = String::new();
    let mut open: Vec<Bracket> = Vec::new();
    let mut blank = false;
    for (number, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() {
            blank = true;
            continue;
        }
        let code = without_comment(line);
        // A blank line parts items and steps; none follows an opening bracket or precedes a closing.
        let opens = out.trim_end().ends_with(['{', '(', ',']);
        if blank && !out.is_empty() && !opens && !code.starts_with(['}', ')']) {
            out.push('\n');
        }
        blank = false;
        let closers = code.chars().take_while(|c| matches!(c, ')' | '}' | ']')).count();
        open.truncate(open.len().saturating_sub(closers));
        push_line(&mut out, depth(&open), line);
        track(&mut open, code.chars().skip(closers), number, code.starts_with("namespace "));
    }
    out
}

struct Bracket {
    line: usize,
    indents: bool,
}

/// Brackets that were opened on one line indent once.
fn depth(open: &[Bracket]) -> usize {
    let mut lines: Vec<usize> = open.iter().filter(|b| b.indents).map(|b| b.line).collect();
    lines.dedup();
    lines.len()
}

fn track(open: &mut Vec<Bracket>, code: impl Iterator<Item = char>, line: usize, flat: bool) {
    let mut in_string = false;
    for letter in code {
        match letter {
            '"' => in_string = !in_string,
            '(' | '{' | '[' if !in_string => open.push(Bracket { line, indents: !flat }),
            ')' | '}' | ']' if !in_string => {
                open.pop();
            }
            _ => {}
        }
    }
}

fn without_comment(line: &str) -> &str {
    line.split("//").next().unwrap_or(line).trim_end()
}

fn push_line(out: &mut String, depth: usize, line: &str) {
    let indent = "    ".repeat(depth);
    let Some(comment) = line.strip_prefix("// ") else {
        push_code(out, &indent, line);
        return;
    };
    let mut start = format!("{indent}// ");
    let mut current = start.clone();
    for word in comment.split(' ') {
        let fresh = current == start;
        if !fresh && current.len() + 1 + word.len() > COLUMNS {
            out.push_str(current.trim_end());
            out.push('\n');
            start = format!("{indent}//     ");
            current = start.clone();
        } else if !fresh {
            current.push(' ');
        }
        current.push_str(word);
    }
    out.push_str(current.trim_end());
    out.push('\n');
}

/// Breaks a line that is too long: inside as few brackets as possible, and then as late as it may.
fn push_code(out: &mut String, indent: &str, line: &str) {
    let room = COLUMNS.saturating_sub(indent.len());
    let at = if line.len() > room && !line.starts_with("//") { break_at(line, room) } else { None };
    let (head, tail) = line.split_at(at.unwrap_or(line.len()));
    out.push_str(indent);
    out.push_str(head.trim_end());
    out.push('\n');
    if !tail.is_empty() {
        push_code(out, &format!("{indent}    "), tail.trim_start());
    }
}

/// Where a line of `room` columns ends: after a comma, or before an operator; else behind a bracket.
fn break_at(line: &str, room: usize) -> Option<usize> {
    let mut depth = 0;
    let mut best: Option<(i32, usize)> = None;
    let mut bracket = None;
    let mut before = ' ';
    for (at, letter) in line.char_indices() {
        match letter {
            '(' | '{' | '[' => depth += 1,
            ')' | '}' | ']' => depth -= 1,
            // Those of templates stand at a name, others and arrows apart from it.
            '<' if before != ' ' && before != '<' => depth += 1,
            '>' if before != ' ' && before != '-' => depth -= 1,
            _ => {}
        }
        before = letter;
        if letter == '(' && at < room && bracket.is_none() {
            bracket = Some(at + 1);
        }
        let end = match letter {
            ',' | ';' => at + 1,
            _ if [" + ", " && ", " ? ", " : "].iter().any(|sign| line[at..].starts_with(sign)) => {
                at
            }
            _ => continue,
        };
        let shallow = best.is_none_or(|(least, _)| depth <= least);
        if end <= room && end + 1 < line.len() && shallow {
            best = Some((depth, end));
        }
    }
    best.map(|(_, end)| end).or(bracket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_opened_on_one_line_indent_once() {
        let laid = lay_out("call(a, [&](int i) {\nbody(i);\n});\nnext();");
        assert_eq!(laid, "call(a, [&](int i) {\n    body(i);\n});\nnext();\n");
    }

    #[test]
    fn comments_and_namespaces_do_not_indent() {
        let laid = lay_out("namespace a {\n\n\n// open (\nint b;\n\n\nint c;\n}");
        assert_eq!(laid, "namespace a {\n// open (\nint b;\n\nint c;\n}\n");
    }

    #[test]
    fn long_lines_break_outside_of_brackets_first() {
        let name = "n".repeat(60);
        let laid = lay_out(&format!("f({name}, g({name}, b), c);"));
        assert_eq!(laid, format!("f({name},\n    g({name}, b), c);\n"));
    }

    #[test]
    fn laid_out_text_stays_as_it_is() {
        let once = lay_out("void f(int a) {\nif (a) {\ng({1,\n2});\n}\n}");
        assert_eq!(lay_out(&once), once);
    }
}
