//! Results as a picture: calls back to back by their SMs, and calls in graphs by their tokens, beside what
//! other systems take for the same rows.

mod by_sms;
mod by_tokens;

use std::fmt::Write as _;

use crate::results::read;
use crate::svg::{picture, text};

/// What other systems take, on the machine and for the shapes that their lines name.
const RIVALS: &str = include_str!("../../results/rivals.jsonl");

/// Space above the panels of a group for one line, and for each line more.
const HEAD: f64 = 34.0;
const HEAD_LINE: f64 = 15.0;

/// Of what is measured beside calls, and of remarks.
const PALE: &str = "#777777";

/// Colours, the same in every panel: of our ways and of other systems.
const COLOURS: [(&str, &str); 7] = [
    ("direct", "#1f6fb4"),
    ("ring", "#c2571a"),
    ("per-rank", "#1f6fb4"),
    ("per-rank-late", "#c2571a"),
    ("per-expert", "#0d8a8a"),
    ("DeepEP V1", "#3a7d34"),
    ("DeepEP V2", "#9c2f6b"),
];

fn colour_of(name: &str) -> &'static str {
    COLOURS.iter().find(|(own, _)| *own == name).map_or("black", |(_, colour)| colour)
}

/// Panels of one kind, and what is said of all of them.
struct Group {
    head: Vec<String>,
    /// Of a panel.
    size: [f64; 2],
    columns: usize,
    panels: Vec<String>,
}

impl Group {
    /// In as few columns as give no more rows than `most` columns.
    fn new(head: Vec<String>, size: [f64; 2], most: usize, panels: Vec<String>) -> Group {
        let columns = panels.len().div_ceil(panels.len().div_ceil(most));
        Group { head, size, columns, panels }
    }

    fn head_height(&self) -> f64 {
        HEAD + HEAD_LINE * (self.head.len() - 1) as f64
    }

    fn width(&self) -> f64 {
        self.columns as f64 * self.size[0]
    }

    fn height(&self) -> f64 {
        self.head_height() + self.panels.len().div_ceil(self.columns) as f64 * self.size[1]
    }

    fn draw(&self, top: f64, out: &mut String) {
        for (index, line) in self.head.iter().enumerate() {
            let colour = if index == 0 { "black" } else { PALE };
            text(out, 10.0, top + 21.0 + HEAD_LINE * index as f64, "start", colour, line);
        }
        let top = top + self.head_height();
        for (index, panel) in self.panels.iter().enumerate() {
            let (column, row) = (index % self.columns, index / self.columns);
            let (x, y) = (column as f64 * self.size[0], top + row as f64 * self.size[1]);
            let _ = writeln!(out, "<g transform=\"translate({x:.0} {y:.0})\">\n{panel}</g>");
        }
    }
}

/// The chart of results as `bench --json` prints them; the error is a sentence.
pub(super) fn svg(results: &str) -> Result<String, String> {
    let (results, rivals) = (read(results)?, read(RIVALS)?);
    let groups = [by_sms::group(&results, &rivals), by_tokens::group(&results, &rivals)];
    let groups: Vec<Group> = groups.into_iter().flatten().collect();
    if groups.is_empty() {
        return Err("there are no times of back-to-back calls or graphs to draw".to_owned());
    }
    let width = groups.iter().map(Group::width).fold(0.0, f64::max);
    let (mut height, mut out) = (0.0, String::new());
    for group in &groups {
        group.draw(height, &mut out);
        height += group.height();
    }
    Ok(picture(width.ceil(), height.ceil(), &out))
}

/// The one that `is_it` knows, or else a new one at the end.
fn find_or_add<T>(all: &mut Vec<T>, is_it: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> &mut T {
    let index = all.iter().position(is_it).unwrap_or_else(|| {
        all.push(new());
        all.len() - 1
    });
    &mut all[index]
}

/// A line through points.
fn polyline(points: &[[f64; 2]], colour: &str, dashes: Option<&str>, out: &mut String) {
    let joined: Vec<String> = points.iter().map(|[x, y]| format!("{x:.1},{y:.1}")).collect();
    let dashes = dashes.map(|dashes| format!(" stroke-dasharray=\"{dashes}\""));
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"{}/>",
        joined.join(" "),
        dashes.unwrap_or_default()
    );
}

/// A mark at each of the points.
fn circles(points: &[[f64; 2]], colour: &str, out: &mut String) {
    for [x, y] in points {
        let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_verify::selftest::Operation;

    /// Calls of 4096 tokens back to back.
    pub(super) fn line(op: &str, via: &str, sms: u32, us: &str) -> String {
        format!(
            "{{\"op\":\"{op}\",\"mode\":\"loop\",\"payload\":\"bf16\",\"via\":\"{via}\",\"ranks\":4,\
             \"tokens\":4096,\"hidden\":7168,\"topk\":8,\"experts\":256,\"sms\":{sms},\"us\":{us},\
             \"wire_us\":460.5}}\n"
        )
    }

    /// Calls of few tokens in a graph.
    pub(super) fn few(op: &str, payload: &str, tokens: u32, us: &str) -> String {
        format!(
            "{{\"op\":\"{op}\",\"mode\":\"loop\",\"graph\":40,\"payload\":\"{payload}\",\"via\":\"direct\",\
             \"ranks\":2,\"tokens\":{tokens},\"hidden\":7168,\"topk\":8,\"experts\":288,\
             \"routing\":\"even\",\"sms\":24,\"us\":{us},\"floor_us\":3.76,\"best_floor_us\":3.61}}\n"
        )
    }

    /// Below 1024 tokens a call from Python costs more than what it calls: only graphs are compared there.
    #[test]
    fn other_systems_are_shown_as_they_were_measured() {
        let rivals = read(RIVALS).unwrap();
        let timed = RIVALS.lines().filter(|line| !line.contains("\"about\""));
        assert_eq!(rivals.len(), timed.count(), "a line lacks its time or its shape");
        for rival in &rivals {
            let known = Operation::ALL.iter().any(|known| known.name() == rival.operation);
            assert!(known && !rival.machine.is_empty() && rival.us > 0.0, "{rival:?}");
            assert!(rival.tokens >= 1024 || rival.graph > Some(0), "{rival:?}");
        }
        assert_eq!(rivals.iter().filter(|rival| rival.graph.is_some()).count(), 36);
    }

    #[test]
    fn calls_and_graphs_are_drawn_together() {
        let results = line("combine", "direct", 24, "520") + &few("combine", "bf16", 8, "6.84");
        let drawn = svg(&results).unwrap();
        let [calls, graphs] = ["back to back: 4 ranks", "in a CUDA graph (us) by tokens: 2 ranks"]
            .map(|head| drawn.find(head).expect(head));
        assert!(calls < graphs);
        assert_eq!(drawn.matches("<g ").count(), 2);
        // The panels of graphs are the wider ones, and stand below those of calls.
        assert!(drawn.contains("width=\"480\"") && drawn.contains("translate(0 333)"), "{drawn}");
    }

    #[test]
    fn panels_stand_in_as_few_columns_as_give_no_more_rows() {
        let columns = |panels: usize| {
            Group::new(Vec::new(), [1.0, 1.0], 3, vec![String::new(); panels]).columns
        };
        assert_eq!([1, 2, 3, 4, 5, 7].map(columns), [1, 2, 3, 2, 3, 3]);
    }

    #[test]
    fn what_cannot_be_drawn_is_said() {
        let error = svg(&line("combine", "direct", 8, "null")).unwrap_err();
        assert_eq!(error, "there are no times of back-to-back calls or graphs to draw");
        let error = svg(&few("combine", "bf16", 8, "6.84").replace("loop", "iso")).unwrap_err();
        assert_eq!(error, "there are no times of back-to-back calls or graphs to draw");
        let error = svg("\n{\"op\"").unwrap_err();
        assert!(error.starts_with("line 2: "), "{error}");
    }
}
