//! Time of a call in a CUDA graph against the tokens of a rank, beside the floor and other systems.
//!
//! Times of few tokens lie close together, so every value stands in a table under the axis, which names the
//! curves as well: nothing is written between them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use ep_verify::selftest::Operation;

use super::{Group, PALE, circles, colour_of, find_or_add, polyline};
use crate::results::Timed;
use crate::svg::text;

/// Sizes in pixels: a panel without its table, and the margins around the part of it that is drawn in.
const PANEL: [f64; 2] = [480.0, 250.0];
const LEFT: f64 = 164.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 44.0;

/// Between the sides of a panel and its first and last points, so that values stand inside.
const INSET: f64 = 18.0;

/// Height of a row of the table, and the length of a sample of a line in front of it.
const ROW: f64 = 14.0;
const SAMPLE: f64 = 26.0;

const COLUMNS: usize = 2;

/// What is least in any time, so that all have a logarithm: results have two digits behind the point.
const LEAST: f64 = 0.01;

/// One picture: an operation with rows of one kind.
struct Panel<'a> {
    /// The first of our calls: the others are of the same kind.
    first: &'a Timed,
    ours: Vec<&'a Timed>,
    others: Vec<&'a Timed>,
}

/// A line of a picture: microseconds by tokens, of several times the shortest.
struct Curve {
    name: String,
    look: Look,
    points: BTreeMap<u64, f64>,
}

#[derive(Clone, Copy)]
struct Look {
    colour: &'static str,
    /// Without them there is a mark at each point.
    dashes: Option<&'static str>,
}

const FLOOR: Look = Look { colour: PALE, dashes: Some("6 3") };
const BEST_FLOOR: Look = Look { colour: PALE, dashes: Some("2 3") };

/// A panel for each operation; none if there is nothing to draw.
pub(super) fn group(results: &[Timed], rivals: &[Timed]) -> Option<Group> {
    let panels = panels(results, rivals);
    let first = panels.first()?.about();
    let is_alike = panels.iter().all(|panel| panel.about() == first);
    let about = if is_alike { format!(": {first}") } else { String::new() };
    let head =
        vec![format!("Time of a call in a CUDA graph (us) by tokens{about}"), remarks(&panels)];
    let rows = panels.iter().map(|panel| panel.curves().len()).max().unwrap_or(0);
    let size = [PANEL[0], PANEL[1] + ROW * rows as f64];
    let drawn = panels.iter().map(|panel| panel.drawn(!is_alike)).collect();
    Some(Group::new(head, size, COLUMNS, drawn))
}

/// Whether it is a time of graphs one after another, with so many SMs.
fn is_drawn(timed: &Timed) -> bool {
    timed.is_loop && timed.graph.is_some() && timed.sms.is_some()
}

/// Dispatches first, then combines, then both.
fn panels<'a>(results: &'a [Timed], rivals: &'a [Timed]) -> Vec<Panel<'a>> {
    let mut panels: Vec<Panel<'a>> = Vec::new();
    for timed in results.iter().filter(|timed| is_drawn(timed)) {
        let new = || Panel { first: timed, ours: Vec::new(), others: Vec::new() };
        find_or_add(&mut panels, |panel| panel.is_of(timed), new).add(timed);
    }
    for panel in &mut panels {
        let others = rivals.iter().filter(|rival| panel.is_beside(rival));
        panel.others = others.collect();
    }
    panels.sort_by_key(|panel| {
        let operation = &panel.first.operation;
        Operation::ALL.iter().position(|known| known.name() == operation)
    });
    panels
}

/// What holds for all panels: how many SMs, where other systems were measured, and what a floor is.
fn remarks(panels: &[Panel<'_>]) -> String {
    let ours = panels.iter().flat_map(|panel| &panel.ours);
    let sms: BTreeSet<u64> = ours.filter_map(|timed| timed.sms).collect();
    let sms: Vec<String> = sms.iter().map(u64::to_string).collect();
    let mut remarks = vec![match &sms[..] {
        [one] => format!("EPForge with {one} SMs"),
        several => format!("EPForge with the best of {} SMs", several.join(", ")),
    }];
    let others = panels.iter().flat_map(|panel| &panel.others);
    let machines: BTreeSet<&str> = others.map(|rival| rival.machine.as_str()).collect();
    remarks.extend(machines.iter().map(|machine| format!("others on {machine}")));
    if panels.iter().any(|panel| panel.ours.iter().any(|own| own.floor_us.is_some())) {
        remarks.push("floor: the same rows by a kernel that counts nothing".to_owned());
    }
    remarks.join("; ")
}

impl<'a> Panel<'a> {
    fn is_of(&self, timed: &Timed) -> bool {
        let first = self.first;
        first.machine == timed.machine
            && first.operation == timed.operation
            && first.payload == timed.payload
            && first.shape == timed.shape
            && first.routing == timed.routing
            && first.graph == timed.graph
            && first.way.is_some() == timed.way.is_some()
    }

    /// A later time of the same call counts instead of an earlier one.
    fn add(&mut self, timed: &'a Timed) {
        let of_call = |it: &Timed| (it.name(), it.tokens, it.sms);
        self.ours.retain(|own| of_call(own) != of_call(timed));
        self.ours.push(timed);
    }

    /// Rows that are packed by expert are more than those that are not: calls that pack stand beside none that
    /// does not.
    fn is_beside(&self, rival: &Timed) -> bool {
        let first = self.first;
        rival.graph.is_some()
            && rival.operation == first.operation
            && rival.payload == first.payload
            && rival.shape == first.shape
            && rival.routing == first.routing
            && self.ours.iter().any(|own| own.tokens == rival.tokens)
            && (rival.way.is_some() || first.way.is_none())
    }

    /// What its points have in common.
    fn about(&self) -> String {
        let first = self.first;
        let mut about = first.shape.words("rows");
        if !first.is_even() {
            let _ = write!(about, ", {}", first.routing);
        }
        if let Some(calls) = first.graph {
            let _ = write!(about, ", {calls} calls a graph");
        }
        if !first.machine.is_empty() {
            let _ = write!(about, ", {}", first.machine);
        }
        about
    }

    /// Ours, then the floors, then those of other systems.
    fn curves(&self) -> Vec<Curve> {
        let mut curves = Vec::new();
        for own in &self.ours {
            let look = Look { colour: colour_of(own.by()), dashes: None };
            add(&mut curves, &own.name(), look, own.tokens, Some(own.us));
        }
        for own in &self.ours {
            add(&mut curves, "floor", FLOOR, own.tokens, own.floor_us);
            add(&mut curves, "best floor", BEST_FLOOR, own.tokens, own.best_floor_us);
        }
        for other in &self.others {
            let look = Look { colour: colour_of(&other.system), dashes: None };
            add(&mut curves, &other.name(), look, other.tokens, Some(other.us));
        }
        curves
    }

    fn title(&self) -> String {
        let Timed { operation, payload, way, .. } = self.first;
        let packed = if way.is_some() { ", packed by expert" } else { "" };
        format!("{operation} {payload}{packed}")
    }

    fn drawn(&self, says_about: bool) -> String {
        let mut out = String::new();
        let curves = self.curves();
        let scale = Scale::of(&curves);
        text(&mut out, LEFT, 14.0, "start", "black", &self.title());
        if says_about {
            text(&mut out, PANEL[0] - RIGHT, 28.0, "end", PALE, &self.about());
        }
        scale.axes(&curves, &mut out);
        for (index, curve) in curves.iter().enumerate() {
            scale.curve(curve, &mut out);
            scale.row(curve, PANEL[1] - BOTTOM + 31.0 + ROW * index as f64, &mut out);
        }
        out
    }
}

/// Adds a time, if there is one, to the curve of this name.
fn add(curves: &mut Vec<Curve>, name: &str, look: Look, tokens: u64, us: Option<f64>) {
    let Some(us) = us else { return };
    let new = || Curve { name: name.to_owned(), look, points: BTreeMap::new() };
    let curve = find_or_add(curves, |curve| curve.name == name, new);
    let shortest = curve.points.entry(tokens).or_insert(us);
    *shortest = shortest.min(us);
}

/// From numbers to places in a panel, both by their logarithms.
struct Scale {
    tokens: [f64; 2],
    /// Marks of the axis, which reaches from the first to the last.
    marks: Vec<f64>,
}

impl Scale {
    fn of(curves: &[Curve]) -> Scale {
        let points = || curves.iter().flat_map(|curve| &curve.points);
        let [least, most] = range(points().map(|(_, us)| *us));
        let tokens = range(points().map(|(tokens, _)| *tokens as f64));
        Scale { tokens, marks: marks(least, most) }
    }

    fn x(&self, tokens: u64) -> f64 {
        let [left, right] = [LEFT + INSET, PANEL[0] - RIGHT - INSET];
        left + share(self.tokens, tokens as f64) * (right - left)
    }

    fn y(&self, us: f64) -> f64 {
        let range = [self.marks[0], self.marks[self.marks.len() - 1]];
        PANEL[1] - BOTTOM - share(range, us) * (PANEL[1] - TOP - BOTTOM)
    }

    fn axes(&self, curves: &[Curve], out: &mut String) {
        let (left, right) = (LEFT, PANEL[0] - RIGHT);
        for mark in &self.marks {
            let y = self.y(*mark);
            let _ = writeln!(out, "<path d=\"M{left:.1} {y:.1}H{right:.1}\" stroke=\"#dddddd\"/>");
            text(out, left - 4.0, y + 4.0, "end", "black", &format!("{mark}"));
        }
        let (top, bottom) = (TOP, PANEL[1] - BOTTOM);
        let _ = writeln!(
            out,
            "<path d=\"M{left:.1} {top:.1}V{bottom:.1}H{right:.1}\" fill=\"none\" stroke=\"black\"/>"
        );
        text(out, left - 4.0, bottom + 16.0, "end", "black", "tokens a rank");
        let tokens: BTreeSet<u64> =
            curves.iter().flat_map(|curve| curve.points.keys().copied()).collect();
        for tokens in tokens {
            text(out, self.x(tokens), bottom + 16.0, "middle", "black", &tokens.to_string());
        }
    }

    fn curve(&self, curve: &Curve, out: &mut String) {
        let points = curve.points.iter();
        let places: Vec<[f64; 2]> =
            points.map(|(tokens, us)| [self.x(*tokens), self.y(*us)]).collect();
        let Look { colour, dashes } = curve.look;
        polyline(&places, colour, dashes, out);
        if dashes.is_none() {
            circles(&places, colour, out);
        }
    }

    /// The line of the table that holds the values of a curve, behind a sample of how it is drawn.
    fn row(&self, curve: &Curve, y: f64, out: &mut String) {
        let Look { colour, dashes } = curve.look;
        let sample = [LEFT - SAMPLE, LEFT - 4.0].map(|x| [x, y - 4.0]);
        polyline(&sample, colour, dashes, out);
        text(out, LEFT - SAMPLE - 6.0, y, "end", colour, &curve.name);
        for (tokens, us) in &curve.points {
            text(out, self.x(*tokens), y, "middle", colour, &shown(*us));
        }
    }
}

/// The least and the most of them.
fn range(values: impl Iterator<Item = f64>) -> [f64; 2] {
    let nothing = [f64::INFINITY, f64::NEG_INFINITY];
    values.fold(nothing, |[least, most], value| [least.min(value), most.max(value)])
}

/// Three digits; halves are rounded up, as in a table that is made by hand.
fn shown(us: f64) -> String {
    let tenths = (us * 10.0).round() / 10.0;
    if tenths < 100.0 { format!("{tenths:.1}") } else { format!("{us:.0}") }
}

/// Where a value stands in a range, by logarithms: 0 at its begin, 1 at its end.
fn share(range: [f64; 2], value: f64) -> f64 {
    let [from, to, at] = [range[0], range[1], value].map(|it| it.max(LEAST).log10());
    if from < to { (at - from) / (to - from) } else { 0.5 }
}

/// 1, 2 and 5 times powers of ten, from the last one that is no more than `least` to the first that is no
/// less than `most`.
fn marks(least: f64, most: f64) -> Vec<f64> {
    let (least, most) = (least.max(LEAST), most.max(LEAST));
    let powers = least.log10().floor() as i32..=most.log10().ceil() as i32;
    let of_power = |power| ["1", "2", "5"].map(|digit| format!("{digit}e{power}"));
    let all: Vec<f64> = powers.flat_map(of_power).filter_map(|mark| mark.parse().ok()).collect();
    let first = all.iter().rposition(|mark| *mark <= least).unwrap_or(0);
    let last = all.iter().position(|mark| *mark >= most).unwrap_or(all.len() - 1);
    all[first..=last].to_vec()
}

#[cfg(test)]
mod tests {
    use super::super::tests::few;
    use super::super::{RIVALS, svg};
    use super::*;
    use crate::results::read;

    /// The panels of lines without other systems, as titles.
    fn titles(results: &str) -> Vec<String> {
        let results = read(results).unwrap();
        panels(&results, &[]).iter().map(Panel::title).collect()
    }

    /// Names and values of the curves of the first panel.
    fn curves(results: &str) -> Vec<(String, Vec<(u64, f64)>)> {
        let (results, rivals) = (read(results).unwrap(), read(RIVALS).unwrap());
        let curves = panels(&results, &rivals)[0].curves();
        curves.into_iter().map(|it| (it.name, it.points.into_iter().collect())).collect()
    }

    fn named(name: &str, points: &[(u64, f64)]) -> (String, Vec<(u64, f64)>) {
        (name.to_owned(), points.to_vec())
    }

    #[test]
    fn a_curve_of_ours_stands_above_its_floors_and_beside_other_systems() {
        let results = few("combine", "bf16", 32, "8.71") + &few("combine", "bf16", 8, "6.84");
        assert_eq!(
            curves(&results),
            [
                named("EPForge direct", &[(8, 6.84), (32, 8.71)]),
                named("floor", &[(8, 3.76), (32, 3.76)]),
                named("best floor", &[(8, 3.61), (32, 3.61)]),
                named("DeepEP V2", &[(8, 12.3), (32, 13.7)]),
                named("DeepEP V1 per-expert", &[(8, 13.7), (32, 20.9)]),
            ]
        );
        let drawn = svg(&results).unwrap();
        for words in
            ["combine bf16", ">6.8</text>", ">20.9</text>", "EPForge with 24 SMs; others on 2 x"]
        {
            assert!(drawn.contains(words), "{words}: {drawn}");
        }
        // Floors are dashed and have no marks, in the panel and in the table.
        assert_eq!(drawn.matches("<circle").count(), 3 * 2);
        assert_eq!(drawn.matches("stroke-dasharray").count(), 2 * 2);
    }

    #[test]
    fn others_stand_beside_the_same_shape_and_tokens_only() {
        let results = few("combine", "bf16", 8, "6.84");
        assert_eq!(curves(&results).len(), 5);
        for (from, to) in [("288", "256"), ("\"tokens\":8", "\"tokens\":9"), ("even", "hot:0.9")] {
            assert_eq!(curves(&results.replace(from, to)).len(), 3, "{to}");
        }
    }

    #[test]
    fn calls_that_pack_by_expert_stand_beside_those_that_do() {
        let results =
            few("combine", "bf16", 8, "9.3").replace("\"via\":\"direct\"", "\"way\":\"per-rank\"");
        let names: Vec<String> = curves(&results).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["EPForge per-rank", "floor", "best floor", "DeepEP V1 per-expert"]);
        let all = few("combine", "bf16", 8, "6.84") + &results;
        assert_eq!(titles(&all), ["combine bf16", "combine bf16, packed by expert"]);
    }

    #[test]
    fn a_later_time_counts_and_then_the_best_number_of_sms() {
        let line = |sms: &str, us: &str| few("both", "fp8", 8, us).replace("24", sms);
        let results = line("16", "12.5") + &line("24", "14.5") + &line("16", "15.5");
        assert_eq!(curves(&results)[0], named("EPForge direct", &[(8, 14.5)]));
        assert!(svg(&results).unwrap().contains("EPForge with the best of 16, 24 SMs"));
    }

    #[test]
    fn each_operation_payload_machine_and_routing_has_a_panel() {
        let both = few("both", "fp8", 8, "13.72");
        let dispatches = few("dispatch", "fp8", 8, "7.06") + &few("dispatch", "bf16", 8, "7.2");
        assert_eq!(
            titles(&(both.clone() + &dispatches)),
            ["dispatch fp8", "dispatch bf16", "both fp8"]
        );
        let other =
            both.replace("even", "zipf:1.2") + "{\"machine\":\"1 x NVIDIA H200\"}\n" + &both;
        let drawn = svg(&(both + &other)).unwrap();
        assert_eq!(drawn.matches("both fp8").count(), 3);
        for about in [
            "top-8 of 288, 40 calls a graph<",
            "top-8 of 288, zipf:1.2, 40 calls",
            "graph, 1 x NVIDIA H200<",
        ] {
            assert!(drawn.contains(about), "{about}: {drawn}");
        }
    }

    #[test]
    fn values_have_three_digits() {
        assert_eq!([6.84, 32.65, 99.97, 139.0].map(shown), ["6.8", "32.7", "100", "139"]);
    }

    #[test]
    fn marks_enclose_all_times() {
        assert_eq!(marks(3.73, 139.0), [2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0]);
        assert_eq!(marks(0.0, 0.05), [0.01, 0.02, 0.05]);
        assert_eq!(marks(10.0, 10.0), [10.0]);
        assert_eq!([share([1.0, 100.0], 10.0), share([5.0, 5.0], 5.0)], [0.5, 0.5]);
    }
}
