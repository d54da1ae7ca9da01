//! Indentation and comments of emitted text, so that no template has to care.

/// Longest line of emitted text.
const COLUMNS: usize = 100;
/// Columns of one level.
const INDENT: usize = 4;

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
        let kept = open.len().saturating_sub(closers);
        let outer = open.get(kept).map_or(0, |closed| closed.deeper);
        open.truncate(kept);
        let levels = depth(&open) + outer;
        if let Some(comment) = line.strip_prefix("// ") {
            push_comment(&mut out, levels, comment);
        } else {
            let indents = !code.starts_with("namespace ");
            let first = Bracket { line: number, indents, deeper: outer };
            push_code(&mut out, (line, levels), (&mut open, closers), first);
        }
    }
    out
}

/// Appends a line in pieces that fit, and opens and closes brackets behind those that begin it.
fn push_code(
    out: &mut String,
    (line, levels): (&str, usize),
    (open, mut closers): (&mut Vec<Bracket>, usize),
    first: Bracket,
) {
    for (deeper, piece) in pieces(line, COLUMNS.saturating_sub(levels * INDENT)) {
        out.push_str(&" ".repeat((levels + deeper) * INDENT));
        out.push_str(piece);
        out.push('\n');
        let here = Bracket { deeper: first.deeper + deeper, ..first };
        track(open, without_comment(piece).chars().skip(closers), here);
        closers = 0;
    }
    // What a statement governs is one level in, in however many pieces its head is.
    let governs = open.iter().filter(|bracket| bracket.line == first.line).count() == 1;
    if governs && let Some(block) = open.last_mut() {
        block.deeper = first.deeper;
    }
}

#[derive(Clone, Copy)]
struct Bracket {
    line: usize,
    indents: bool,
    /// How much further in the piece of the line begins that it stands in.
    deeper: usize,
}

/// Brackets that were opened on one line indent once.
fn depth(open: &[Bracket]) -> usize {
    let indents: Vec<&Bracket> = open.iter().filter(|bracket| bracket.indents).collect();
    let lines = indents.chunk_by(|one, other| one.line == other.line);
    lines.map(|line| 1 + line.iter().map(|bracket| bracket.deeper).max().unwrap_or(0)).sum()
}

fn track(open: &mut Vec<Bracket>, code: impl Iterator<Item = char>, here: Bracket) {
    let mut in_string = false;
    for letter in code {
        match letter {
            '"' => in_string = !in_string,
            '(' | '{' | '[' if !in_string => open.push(here),
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

fn push_comment(out: &mut String, levels: usize, comment: &str) {
    let indent = " ".repeat(levels * INDENT);
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

/// A line in pieces that fit, each with how much further in it begins: those that the same brackets are
/// open around begin alike.
fn pieces(line: &str, room: usize) -> Vec<(usize, &str)> {
    let mut pieces = Vec::new();
    let mut outer: Vec<i32> = Vec::new();
    let (mut rest, mut depth) = (line, 0);
    loop {
        let room = room.saturating_sub(outer.len() * INDENT);
        let fits = rest.len() <= room || rest.starts_with("//");
        let Some(end) = (if fits { None } else { break_at(rest, room, depth) }) else {
            pieces.push((outer.len(), rest));
            return pieces;
        };
        let (piece, tail) = rest.split_at(end.at);
        pieces.push((outer.len(), piece.trim_end()));
        (rest, depth) = (tail.trim_start(), end.depth);
        outer.retain(|open| *open < end.level);
        outer.push(end.level);
    }
}

/// Where a line ends, and the next one goes on.
struct Break {
    at: usize,
    /// Brackets open there.
    depth: i32,
    /// What goes on there begins further in than what is of a lower level.
    level: i32,
}

/// The end of a line of `room` columns with so many brackets open before it: behind what is assigned
/// to, if the rest fits then; else where as few brackets as can be are open, after a comma rather than
/// before an operator or behind the bracket around them.
fn break_at(line: &str, room: usize, mut depth: i32) -> Option<Break> {
    const ASSIGNS: &str = " = ";
    const ASSIGNED: i32 = -1;
    const OPERATORS: [&str; 4] = [" + ", " && ", " ? ", " : "];
    // Nobody breaks inside of a template's brackets who can break elsewhere.
    const TEMPLATE: i32 = 3;
    let mut best: Option<(i32, Break)> = None;
    let mut before = ' ';
    for (at, letter) in line.char_indices() {
        let starts = |sign: &str| line[at..].starts_with(sign);
        match letter {
            '(' | '{' | '[' => depth += 1,
            ')' | '}' | ']' => depth -= 1,
            // Those of templates stand at a name, others and arrows apart from it.
            '<' if before != ' ' && before != '<' => depth += TEMPLATE,
            '>' if before != ' ' && before != '-' => depth -= TEMPLATE,
            _ => {}
        }
        let (at, level) = match letter {
            ',' | ';' => (at + 1, 2 * depth),
            '(' if before != ' ' => (at + 1, 2 * depth),
            ' ' if OPERATORS.into_iter().any(starts) => (at, 2 * depth + 1),
            ' ' if depth == 0 && starts(ASSIGNS) => (at + ASSIGNS.len() - 1, ASSIGNED),
            _ => (line.len(), 0),
        };
        before = letter;
        let cost = match letter {
            '(' => level + 1,
            _ if level == ASSIGNED && line.len() - at > room.saturating_sub(INDENT) => 3,
            _ => level,
        };
        let fits = at <= room && at + 1 < line.len();
        if fits && best.as_ref().is_none_or(|(least, _)| cost <= *least) {
            best = Some((cost, Break { at, depth, level }));
        }
    }
    best.map(|(_, end)| end)
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
    fn what_a_broken_line_opens_is_further_in() {
        let (name, value) = ("n".repeat(60), "v".repeat(40));
        let laid = lay_out(&format!("{name} = {value}([&] {{\nbody();\n}});\nnext();"));
        assert_eq!(
            laid,
            format!("{name} =\n    {value}([&] {{\n        body();\n    }});\nnext();\n")
        );
        let laid = lay_out(&format!("{name} = f<a, b>({value}, c);"));
        assert_eq!(laid, format!("{name} =\n    f<a, b>({value}, c);\n"));
        let laid = lay_out(&format!("{{\nfor ({name}; {value}; c) {{\nbody();\n}}\n}}"));
        assert_eq!(
            laid,
            format!("{{\n    for ({name};\n        {value}; c) {{\n        body();\n    }}\n}}\n")
        );
        let laid = lay_out(&format!("{name}<a, b>({value}, c);"));
        assert_eq!(laid, format!("{name}<a, b>(\n    {value}, c);\n"));
    }

    #[test]
    fn laid_out_text_stays_as_it_is() {
        let once = lay_out("void f(int a) {\nif (a) {\ng({1,\n2});\n}\n}");
        assert_eq!(lay_out(&once), once);
    }
}
