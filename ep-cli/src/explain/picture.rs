//! `explain --svg`: the roles of a pipeline side by side, and below them what goes from one to another.

use std::fmt::Write as _;

use ep_runtime::ir::facts::Published;
use ep_runtime::ir::{Blocks, Channel, Pipeline, Role, text as words};
use ep_runtime::plan::{Plan, RoleWarps, eval};

use super::options;
use super::wire::Traffic;
use crate::plan_text::headline;
use crate::svg::{picture, rectangle, text};

/// Sizes in pixels: from one column to the next, a role's box, a line of words.
const COLUMN: f64 = 330.0;
const BOX: [f64; 2] = [250.0, 110.0];
const LINE: f64 = 15.0;
const LEFT: f64 = 24.0;
const TOP: f64 = 52.0;

/// Letters that fit between two columns.
const LETTERS: usize = 52;

const ROLE: &str = "#e8f0f8";
const THERE: &str = "#1f6fb4";
const ELSEWHERE: &str = "#ffffff";
const QUIET: &str = "#666666";
const CREDIT: &str = "#c2571a";

/// A role at its place among the columns.
struct Column<'a> {
    role: &'a Role,
    /// The role stands here a second time: what it does for what comes from its own kind.
    is_again: bool,
}

/// A channel between two columns.
struct Lane<'a> {
    channel: &'a Channel,
    from: Vec<usize>,
    to: usize,
}

/// The picture of a selected pipeline.
pub(super) fn svg(ir: &Pipeline, plan: &Plan) -> String {
    let (columns, lanes) = arranged(ir);
    let mut out = String::new();
    let title = wrapped(&headline(plan), LETTERS * columns.len().max(2));
    for (index, line) in title.iter().enumerate() {
        text(&mut out, LEFT, 20.0 + LINE * index as f64, "start", "black", line);
    }
    let top = TOP + LINE * (title.len() - 1) as f64;
    let mut y = top + BOX[1] + 2.0 * LINE;
    let mut marks = String::new();
    for lane in &lanes {
        y = lane.draw(ir, plan, y, &mut marks);
    }
    for (index, column) in columns.iter().enumerate() {
        let x = middle(index);
        let _ = writeln!(
            out,
            "<path d=\"M{x:.1} {:.1}V{y:.1}\" stroke=\"#bbbbbb\" fill=\"none\"/>",
            top + BOX[1]
        );
        column.draw(ir, plan, [x - BOX[0] / 2.0, top], &mut out);
    }
    out.push_str(&marks);
    let shared = format!(
        "{} threads a block, {} bytes of shared memory; {} bytes of control memory in the window of every rank",
        plan.threads, plan.shared_bytes, plan.window_bytes
    );
    for line in wrapped(&shared, LETTERS * columns.len().max(2)) {
        y += LINE;
        text(&mut out, LEFT, y, "start", QUIET, &line);
    }
    picture(LEFT + COLUMN * columns.len().max(2) as f64, y + LINE, &out)
}

fn middle(column: usize) -> f64 {
    LEFT + BOX[0] / 2.0 + COLUMN * column as f64
}

/// Roles from those that only send to those that only receive, then those without a channel. A role
/// that receives what comes from a column at its right or from itself stands there again.
fn arranged(ir: &Pipeline) -> (Vec<Column<'_>>, Vec<Lane<'_>>) {
    let mut columns: Vec<Column> = Vec::new();
    let mut lanes = Vec::new();
    let role = |name: &str| ir.roles.iter().find(|role| role.name == name);
    for channel in &ir.channels {
        let mut from = Vec::new();
        for producer in channel.from.iter().filter_map(|name| role(name)) {
            // What a role sends to its own kind leaves its first place and comes to its second.
            let place = match producer.name == channel.to {
                true => first_place(&columns, producer),
                false => last_place(&columns, producer),
            };
            from.push(place.unwrap_or_else(|| {
                columns.push(Column { role: producer, is_again: false });
                columns.len() - 1
            }));
        }
        let (Some(consumer), Some(right)) = (role(&channel.to), from.iter().max().copied()) else {
            continue; // The choice of arms has one end of it only.
        };
        let place = last_place(&columns, consumer);
        let to = place.filter(|place| *place > right).unwrap_or_else(|| {
            columns.push(Column { role: consumer, is_again: place.is_some() });
            columns.len() - 1
        });
        lanes.push(Lane { channel, from, to });
    }
    for role in &ir.roles {
        if last_place(&columns, role).is_none() {
            columns.push(Column { role, is_again: false });
        }
    }
    (columns, lanes)
}

fn first_place(columns: &[Column], role: &Role) -> Option<usize> {
    columns.iter().position(|column| column.role.name == role.name)
}

fn last_place(columns: &[Column], role: &Role) -> Option<usize> {
    columns.iter().rposition(|column| column.role.name == role.name)
}

impl Column<'_> {
    /// The box of a role: what it shares, and on which blocks and warps it runs.
    fn draw(&self, ir: &Pipeline, plan: &Plan, corner: [f64; 2], out: &mut String) {
        let [x, y] = corner;
        rectangle(out, corner, BOX, ROLE, THERE);
        let declared = words::role(self.role);
        let (name, rest) = declared.split_once(" on ").unwrap_or((&declared, ""));
        let again = if self.is_again { " of the peers" } else { "" };
        text(out, x + 8.0, y + 16.0, "start", "black", &format!("{name}{again}"));
        for (index, line) in wrapped(&format!("on {rest}"), 38).iter().take(2).enumerate() {
            text(out, x + 8.0, y + 31.0 + LINE * index as f64, "start", QUIET, line);
        }
        let blocks = plan.blocks_min.clamp(8, 24);
        text(out, x + 8.0, y + 67.0, "start", QUIET, "blocks");
        strip(out, [x + 52.0, y + 58.0], blocks, |block| is_on(ir, plan, self.role, block, blocks));
        let Some(RoleWarps { first, count, .. }) =
            plan.roles.iter().find(|planned| planned.name == self.role.name)
        else {
            return;
        };
        text(out, x + 8.0, y + 87.0, "start", QUIET, "warps");
        let all = plan.threads / 32;
        strip(out, [x + 52.0, y + 78.0], all.min(24), |warp| {
            (*first..first + count).contains(&warp)
        });
        let words = format!("{first}..{} of {all}", first + count);
        text(out, x + 52.0, y + 102.0, "start", QUIET, &words);
    }
}

/// A row of little squares, filled where `is_there`.
fn strip(out: &mut String, corner: [f64; 2], count: i64, is_there: impl Fn(i64) -> bool) {
    for index in 0..count {
        let place = [corner[0] + 8.0 * index as f64, corner[1]];
        rectangle(
            out,
            place,
            [7.0, 9.0],
            if is_there(index) { THERE } else { ELSEWHERE },
            "#9db8d2",
        );
    }
}

/// Whether a role runs on a block of so many.
fn is_on(ir: &Pipeline, plan: &Plan, role: &Role, block: i64, blocks: i64) -> bool {
    match &role.blocks {
        Blocks::All => true,
        Blocks::Even => block % 2 == 0,
        Blocks::Odd => block % 2 == 1,
        Blocks::Last => block == blocks - 1,
        Blocks::Range { low, high } => {
            let end = |end| eval(end, &plan.numbers);
            end(low).is_none_or(|low| low <= block) && end(high).is_none_or(|high| block < high)
        }
        Blocks::Other => {
            let is_range = |other: &&Role| matches!(other.blocks, Blocks::Range { .. });
            !ir.roles.iter().filter(is_range).any(|other| is_on(ir, plan, other, block, blocks))
        }
    }
}

impl Lane<'_> {
    /// Draws the channel from `y` on; what it returns lies below it.
    fn draw(&self, ir: &Pipeline, plan: &Plan, y: f64, out: &mut String) -> f64 {
        let Lane { channel, from, to } = self;
        let nearest = from.iter().max().copied().unwrap_or_default();
        let (left, right) = (middle(nearest), middle(*to));
        let mut y = y + LINE;
        let kind = words::channel(channel);
        let head = kind.split(" { ").next().unwrap_or(&kind);
        let head = head.trim_start_matches("channel ");
        let head =
            head.replace(&format!(" from {} to {}", channel.from.join(", "), channel.to), "");
        self.words(out, &mut y, "black", &head);
        y += 4.0;
        for producer in from {
            arrow(out, [middle(*producer), y], [right, y], THERE, "");
        }
        y += LINE;
        for line in self.details(ir, plan) {
            self.words(out, &mut y, QUIET, &line);
        }
        for pair in plan.pairs.iter().filter(|pair| pair.channel == channel.name) {
            let is_back = matches!(pair.what, Published::Credit(_) | Published::Ready);
            if is_back {
                y += 4.0;
                arrow(out, [right, y], [left, y], CREDIT, "5 3");
                y += LINE;
            }
            let words = format!(
                "W{} {}: {} +{} to {} +{}",
                pair.number,
                pair.what.name(),
                pair.publish.role,
                pair.publish.line,
                pair.consume.role,
                pair.consume.line
            );
            self.words(out, &mut y, if is_back { CREDIT } else { "black" }, &words);
        }
        y + LINE
    }

    /// Words beside the line of the producer, as many lines as they need.
    fn words(&self, out: &mut String, y: &mut f64, colour: &str, words: &str) {
        let nearest = self.from.iter().max().copied().unwrap_or_default();
        for line in wrapped(words, LETTERS * (self.to - nearest)) {
            text(out, middle(nearest) + 8.0, *y, "start", colour, &line);
            *y += LINE;
        }
    }

    /// Depth, bytes and memory of the channel.
    fn details(&self, ir: &Pipeline, plan: &Plan) -> Vec<String> {
        let Lane { channel, .. } = self;
        let mut lines = Vec::new();
        let numbers = options(channel, plan);
        if !numbers.is_empty() {
            lines.push(numbers);
        }
        if let Some(layout) = plan.messages.iter().find(|layout| layout.name == channel.message) {
            lines.push(format!(
                "{}: row {} bytes, meta record {} bytes",
                layout.name, layout.row_bytes, layout.meta_bytes
            ));
        }
        if let Some(traffic) = Traffic::of(ir, channel, plan) {
            lines.push(format!("on the wire: {traffic}"));
        }
        let own = format!("{}.", channel.name);
        let regions = plan.window.iter().filter(|region| region.name.starts_with(&own));
        let bytes: i64 = regions.map(|region| region.bytes).sum();
        if bytes > 0 {
            lines.push(format!("{bytes} bytes in the window of every rank"));
        }
        lines
    }
}

fn arrow(out: &mut String, from: [f64; 2], to: [f64; 2], colour: &str, dashes: &str) {
    let ([x0, y0], [x1, y1]) = (from, to);
    let back = if x1 > x0 { -7.0 } else { 7.0 };
    let _ = writeln!(
        out,
        "<path d=\"M{x0:.1} {y0:.1}L{x1:.1} {y1:.1}M{:.1} {:.1}L{x1:.1} {y1:.1}L{:.1} {:.1}\" stroke=\"{colour}\" \
         stroke-dasharray=\"{dashes}\" fill=\"none\"/>",
        x1 + back,
        y1 - 4.0,
        x1 + back,
        y1 + 4.0
    );
}

/// The words in lines of at most so many letters; a longer word has a line of its own.
fn wrapped(words: &str, letters: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in words.split_whitespace() {
        let line = lines.last_mut().expect("there is one from the start");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= letters {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::select;
    use ep_runtime::plan::{Arch, plan};

    /// Each role once, and a second time only where its own kind sends to it; each channel once, to the right.
    #[test]
    fn every_role_and_channel_of_the_standard_pipelines_is_drawn() {
        for entry in ep_runtime::pipelines::ALL {
            let selected = select(&entry, Arch::Sm90a, []).unwrap();
            let ir = selected.ir.select(&selected.config.choice);
            let plan = plan(&selected.ir, &selected.config).unwrap();
            let (columns, lanes) = arranged(&ir);
            for role in &ir.roles {
                let places = columns.iter().filter(|column| column.role.name == role.name);
                let sends_to_itself = ir
                    .channels
                    .iter()
                    .any(|channel| channel.to == role.name && channel.from.contains(&role.name));
                assert_eq!(places.count(), 1 + usize::from(sends_to_itself), "{}", role.name);
            }
            assert_eq!(lanes.len(), ir.channels.len(), "{}", ir.name);
            assert!(lanes.iter().all(|lane| lane.from.iter().all(|from| *from < lane.to)));
            let drawn = svg(&ir, &plan);
            for pair in &plan.pairs {
                assert!(drawn.contains(&format!("W{} ", pair.number)), "{}: {pair:?}", ir.name);
            }
            assert_eq!(drawn.matches("<text").count(), drawn.matches("</text>").count());
        }
    }

    #[test]
    fn words_are_wrapped_between_them() {
        assert_eq!(wrapped("a ring for each peer", 10), ["a ring for", "each peer"]);
        assert_eq!(wrapped("immeasurably long", 5), ["immeasurably", "long"]);
    }
}
