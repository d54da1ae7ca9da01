//! Results as a picture: time of a call against its SMs, beside the wire and what other
//! systems take for the same rows.

use std::fmt::Write as _;

use serde_json::Value;

use crate::svg::{picture, text};

/// What other systems take, on the machine and for the shapes that their lines name.
const RIVALS: &str = include_str!("../../results/rivals.jsonl");

/// Sizes in pixels: a panel, the part of it that is drawn in, and the space above all panels.
const PANEL: [f64; 2] = [330.0, 250.0];
const LEFT: f64 = 44.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 40.0;
const HEAD: f64 = 34.0;

const COLUMNS: usize = 3;

/// Colours, the same in every panel: of our ways, of other systems, and of the wire.
const COLOURS: [(&str, &str); 4] = [
    ("direct", "#1f6fb4"),
    ("ring", "#c2571a"),
    ("DeepEP V1", "#3a7d34"),
    ("DeepEP V2", "#9c2f6b"),
];
const WIRE: &str = "#777777";

fn colour_of(name: &str) -> &'static str {
    COLOURS.iter().find(|(own, _)| *own == name).map_or("black", |(_, colour)| colour)
}

/// The shape of a problem.
#[derive(Debug, Clone, PartialEq)]
struct Shape {
    numbers: [u64; 5],
}

impl Shape {
    fn of(line: &Value) -> Option<Shape> {
        let number = |name: &str| line[name].as_u64();
        let [ranks, tokens, hidden] = [number("ranks")?, number("tokens")?, number("hidden")?];
        Some(Shape { numbers: [ranks, tokens, hidden, number("topk")?, number("experts")?] })
    }

    fn words(&self) -> String {
        let [ranks, tokens, hidden, topk, experts] = self.numbers;
        format!("{ranks} ranks, {tokens} tokens of {hidden} values, top-{topk} of {experts}")
    }
}

/// One picture: an operation with rows of one kind.
struct Panel {
    shape: Shape,
    operation: String,
    payload: String,
    /// Each way with its points: SMs and microseconds.
    ways: Vec<(String, Vec<[f64; 2]>)>,
    wire: Option<f64>,
    /// Each other system with its points.
    others: Vec<(String, Vec<[f64; 2]>)>,
}

/// Adds a point to the line of this name, in order of SMs.
fn add(lines: &mut Vec<(String, Vec<[f64; 2]>)>, name: &str, point: [f64; 2]) {
    let index = lines.iter().position(|(own, _)| own == name).unwrap_or_else(|| {
        lines.push((name.to_owned(), Vec::new()));
        lines.len() - 1
    });
    let points = &mut lines[index].1;
    points.push(point);
    points.sort_by(|a, b| a[0].total_cmp(&b[0]));
}

/// The chart of results as `bench --json` prints them; the error is a sentence.
pub(super) fn svg(results: &str) -> Result<String, String> {
    let panels = panels(results)?;
    if panels.is_empty() {
        return Err("there is no time of back to back calls to draw".to_owned());
    }
    let columns = panels.len().min(COLUMNS);
    let rows = panels.len().div_ceil(columns);
    let [width, height] =
        [columns as f64 * PANEL[0], HEAD + rows as f64 * PANEL[1]].map(|size| size.ceil());
    let mut out = String::new();
    let first = &panels[0].shape;
    let is_one_shape = panels.iter().all(|panel| panel.shape == *first);
    let about = if is_one_shape { format!(": {}", first.words()) } else { String::new() };
    let head = format!("Time of a call (us) by SMs, back to back{about}");
    text(&mut out, 10.0, 21.0, "start", "black", &head);
    for (index, panel) in panels.iter().enumerate() {
        let (column, row) = (index % columns, index / columns);
        let (x, y) = (column as f64 * PANEL[0], HEAD + row as f64 * PANEL[1]);
        let _ = writeln!(out, "<g transform=\"translate({x:.0} {y:.0})\">");
        panel.draw(!is_one_shape, &mut out);
        out.push_str("</g>\n");
    }
    Ok(picture(width, height, &out))
}

fn lines(text: &str) -> Result<Vec<Value>, String> {
    let filled = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parsed = filled.map(|(index, line)| {
        serde_json::from_str(line).map_err(|error| format!("line {}: {error}", index + 1))
    });
    parsed.collect()
}

/// A panel for each operation, in the order of the results.
fn panels(results: &str) -> Result<Vec<Panel>, String> {
    let rivals = lines(RIVALS)?;
    let mut panels: Vec<Panel> = Vec::new();
    for line in lines(results)? {
        // A line that was kept before there were graphs does not say that it is of none.
        let is_loop = line["mode"] == "loop" && line["graph"].is_null();
        let found = Shape::of(&line).zip(line["us"].as_f64()).zip(line["sms"].as_f64());
        let Some(((shape, us), sms)) = found.filter(|_| is_loop) else { continue };
        let word = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        let (operation, payload, via) = (word("op"), word("payload"), word("via"));
        let is_here = |panel: &&mut Panel| {
            panel.shape == shape && panel.operation == operation && panel.payload == payload
        };
        let index = match panels.iter_mut().position(|panel| is_here(&&mut *panel)) {
            Some(index) => index,
            None => {
                panels.push(Panel::new(shape, operation, payload, &rivals));
                panels.len() - 1
            }
        };
        panels[index].add(&via, [sms, us], line["wire_us"].as_f64());
    }
    Ok(panels)
}

impl Panel {
    fn new(shape: Shape, operation: String, payload: String, rivals: &[Value]) -> Panel {
        let same = |line: &&Value| {
            line["op"] == operation.as_str()
                && line["payload"] == payload.as_str()
                && line["graph"].is_null()
                && Shape::of(line).as_ref() == Some(&shape)
        };
        let mut others = Vec::new();
        for line in rivals.iter().filter(same) {
            let point = line["sms"].as_f64().zip(line["us"].as_f64());
            if let (Some(system), Some((sms, us))) = (line["system"].as_str(), point) {
                add(&mut others, system, [sms, us]);
            }
        }
        Panel { shape, operation, payload, ways: Vec::new(), wire: None, others }
    }

    fn add(&mut self, via: &str, point: [f64; 2], wire: Option<f64>) {
        add(&mut self.ways, via, point);
        // The best that was seen: a wire is not slower because another run was.
        self.wire = match (self.wire, wire) {
            (Some(own), Some(other)) => Some(own.min(other)),
            (own, other) => own.or(other),
        };
    }

    fn draw(&self, names_shape: bool, out: &mut String) {
        let ours = || self.ways.iter().flat_map(|(_, points)| points);
        let all = || ours().chain(self.others.iter().flat_map(|(_, points)| points));
        let sms = all().map(|it| it[0]).fold(1.0, f64::max);
        let us = all().map(|it| it[1]).chain(self.wire).fold(1.0, f64::max);
        let scale = Scale { sms: sms * 1.08, us: us * 1.12 };
        let title = format!("{} {}", self.operation, self.payload);
        text(out, LEFT, 14.0, "start", "black", &title);
        if names_shape {
            text(out, LEFT, 27.0, "start", WIRE, &self.shape.words());
        }
        scale.axes(&all().map(|it| it[0]).collect::<Vec<_>>(), out);
        if let Some(wire) = self.wire {
            scale.level(wire, WIRE, "5 3", &format!("wire {wire:.0}"), 2, out);
        }
        for (index, (name, points)) in self.others.iter().enumerate() {
            let Some([_, us]) = points.last() else { continue };
            let colour = colour_of(name);
            scale.level(*us, colour, "2 3", &format!("{name} {us:.0}"), index, out);
            scale.line(points, colour, out);
        }
        for (index, (way, points)) in self.ways.iter().enumerate() {
            let colour = colour_of(way);
            scale.line(points, colour, out);
            let y = PANEL[1] - BOTTOM - 8.0 - 13.0 * index as f64;
            let best = points.iter().map(|it| it[1]).fold(f64::INFINITY, f64::min);
            text(out, LEFT + 8.0, y, "start", colour, &format!("{way}, best {best:.0}"));
        }
    }
}

/// From numbers to places in a panel.
struct Scale {
    sms: f64,
    us: f64,
}

impl Scale {
    fn x(&self, sms: f64) -> f64 {
        LEFT + sms / self.sms * (PANEL[0] - LEFT - RIGHT)
    }

    fn y(&self, us: f64) -> f64 {
        PANEL[1] - BOTTOM - us / self.us * (PANEL[1] - TOP - BOTTOM)
    }

    fn axes(&self, sms: &[f64], out: &mut String) {
        let (left, right) = (self.x(0.0), self.x(self.sms));
        let (bottom, top) = (self.y(0.0), self.y(self.us));
        let _ = writeln!(
            out,
            "<path d=\"M{left:.1} {top:.1}V{bottom:.1}H{right:.1}\" fill=\"none\" stroke=\"black\"/>"
        );
        let step = step(self.us);
        let mut us = 0.0;
        while us <= self.us {
            let y = self.y(us);
            text(out, left - 4.0, y + 4.0, "end", "black", &format!("{us:.0}"));
            us += step;
        }
        let mut marked: Vec<f64> = sms.to_vec();
        marked.sort_by(f64::total_cmp);
        marked.dedup();
        for sms in marked {
            text(out, self.x(sms), bottom + 14.0, "middle", "black", &format!("{sms:.0}"));
        }
        text(out, right, bottom + 29.0, "end", "black", "SMs");
    }

    /// A time that depends on no SMs of ours; its name stands at the given of three
    /// places, so that names of close times do not lie on each other.
    fn level(
        &self,
        us: f64,
        colour: &str,
        dashes: &str,
        name: &str,
        place: usize,
        out: &mut String,
    ) {
        let (left, right, y) = (self.x(0.0), self.x(self.sms), self.y(us));
        let _ = writeln!(
            out,
            "<path d=\"M{left:.1} {y:.1}H{right:.1}\" stroke=\"{colour}\" stroke-dasharray=\"{dashes}\"/>"
        );
        text(out, right - 92.0 * (place % 3) as f64, y - 3.0, "end", colour, name);
    }

    fn line(&self, points: &[[f64; 2]], colour: &str, out: &mut String) {
        let places: Vec<String> =
            points.iter().map(|it| format!("{:.1},{:.1}", self.x(it[0]), self.y(it[1]))).collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
            places.join(" ")
        );
        for place in places {
            let (x, y) = place.split_once(',').unwrap_or_default();
            let _ = writeln!(out, "<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{colour}\"/>");
        }
    }
}

/// The distance between two marks of an axis that reaches `most`: 1, 2 or 5 times a power of ten.
fn step(most: f64) -> f64 {
    let power = 10f64.powf((most / 5.0).max(f64::MIN_POSITIVE).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| most / step <= 6.0).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ep_verify::selftest::Operation;

    fn line(op: &str, via: &str, sms: u32, us: &str) -> String {
        format!(
            "{{\"op\":\"{op}\",\"mode\":\"loop\",\"payload\":\"bf16\",\"via\":\"{via}\",\"ranks\":4,\
             \"tokens\":4096,\"hidden\":7168,\"topk\":8,\"experts\":256,\"sms\":{sms},\"us\":{us},\
             \"wire_us\":460.5}}\n"
        )
    }

    #[test]
    fn points_of_one_way_are_one_line_in_order() {
        let results = line("combine", "direct", 24, "520") + &line("combine", "direct", 8, "640.5");
        let found = panels(&results).unwrap();
        assert_eq!(found.len(), 1);
        let [(way, points)] = &found[0].ways[..] else { panic!("one way") };
        assert_eq!((way.as_str(), &points[..]), ("direct", &[[8.0, 640.5], [24.0, 520.0]][..]));
        assert_eq!(found[0].wire, Some(460.5));
        let drawn = svg(&results).unwrap();
        // V2 at 8 and V1 and V2 at 24 stand beside them.
        assert_eq!(drawn.matches("<circle").count(), 2 + 3);
        assert!(drawn.contains("wire 460") && drawn.contains("direct, best 520"), "{drawn}");
    }

    #[test]
    fn others_stand_beside_the_same_shape_only() {
        let same = line("combine", "direct", 24, "520");
        let drawn = svg(&same).unwrap();
        assert!(drawn.contains("DeepEP V1 605") && drawn.contains("DeepEP V2 653"), "{drawn}");
        let other = svg(&same.replace("7168", "4096")).unwrap();
        assert!(!other.contains("DeepEP"), "{other}");
    }

    /// Below 1024 tokens a call from Python costs more than what it calls: only graphs are compared there.
    #[test]
    fn other_systems_are_shown_as_they_were_measured() {
        let rivals = lines(RIVALS).unwrap();
        let mut machine = None;
        let mut graphs = 0;
        for line in &rivals {
            machine = line["machine"].as_str().or(machine);
            let Some(operation) = line["op"].as_str() else {
                assert!(line["about"].is_string(), "{line}");
                continue;
            };
            assert!(machine.is_some() && line["us"].as_f64() > Some(0.0), "{line}");
            let known = Operation::ALL.iter().any(|known| known.name() == operation);
            let [_, tokens, ..] = Shape::of(line).expect("a shape").numbers;
            assert!(known && (tokens >= 1024 || line["graph"].as_u64() > Some(0)), "{line}");
            graphs += usize::from(line["graph"].is_u64());
        }
        assert_eq!(graphs, 36);
        // They are set against no calls that were made one by one.
        let shape = line("combine", "direct", 24, "19.9").replace("4096", "128");
        let shape = shape.replace("\"ranks\":4", "\"ranks\":2").replace("256", "288");
        assert!(!svg(&shape).unwrap().contains("DeepEP"), "{shape}");
        assert!(svg(&shape.replace("\"via\"", "\"graph\":8,\"via\"")).is_err());
    }

    #[test]
    fn what_cannot_be_drawn_is_said() {
        let error = svg(&line("combine", "direct", 8, "null")).unwrap_err();
        assert_eq!(error, "there is no time of back to back calls to draw");
        let error = svg("\n{\"op\"").unwrap_err();
        assert!(error.starts_with("line 2: "), "{error}");
    }

    #[test]
    fn axes_have_a_few_round_marks() {
        assert_eq!([step(870.0), step(46.0), step(5.9), step(1000.0)], [200.0, 10.0, 1.0, 200.0]);
    }
}
