//! Time of calls back to back against their SMs, beside the wire and other systems.

use std::fmt::Write as _;

use super::{Group, PALE, circles, colour_of, find_or_add, polyline};
use crate::results::Timed;
use crate::svg::text;

/// Sizes in pixels: a panel, and the margins around the part of it that is drawn in.
const PANEL: [f64; 2] = [330.0, 250.0];
const LEFT: f64 = 44.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 40.0;

const COLUMNS: usize = 3;

/// A name with its points: SMs and microseconds.
type Curve = (String, Vec<[f64; 2]>);

/// One picture: an operation with rows of one kind.
struct Panel<'a> {
    /// The first of our calls: the others are of the same kind.
    first: &'a Timed,
    /// Each way with its points.
    ways: Vec<Curve>,
    wire: Option<f64>,
    /// Each other system with its points.
    others: Vec<Curve>,
}

/// A panel for each operation; none if there is nothing to draw.
pub(super) fn group(results: &[Timed], rivals: &[Timed]) -> Option<Group> {
    let panels = panels(results, rivals);
    let first = panels.first()?.words();
    let is_one_shape = panels.iter().all(|panel| panel.words() == first);
    let about = if is_one_shape { format!(": {first}") } else { String::new() };
    let head = format!("Time of a call (us) by SMs, back to back{about}");
    let drawn = panels.iter().map(|panel| panel.drawn(!is_one_shape)).collect();
    Some(Group::new(vec![head], PANEL, COLUMNS, drawn))
}

/// In the order of the results.
fn panels<'a>(results: &'a [Timed], rivals: &[Timed]) -> Vec<Panel<'a>> {
    let mut panels: Vec<Panel<'a>> = Vec::new();
    for timed in results.iter().filter(|timed| timed.is_loop && timed.graph.is_none()) {
        let Some(sms) = timed.sms else { continue };
        let panel = find_or_add(
            &mut panels,
            |panel| is_alike(panel.first, timed),
            || Panel::new(timed, rivals),
        );
        panel.add(&timed.via, [sms as f64, timed.us], timed.wire_us);
    }
    panels
}

/// Adds a point to the curve of this name, in order of SMs.
fn add(curves: &mut Vec<Curve>, name: &str, point: [f64; 2]) {
    let new = || (name.to_owned(), Vec::new());
    let (_, points) = find_or_add(curves, |(own, _)| own == name, new);
    points.push(point);
    points.sort_by(|a, b| a[0].total_cmp(&b[0]));
}

/// Whether two times are of one panel.
fn is_alike(one: &Timed, other: &Timed) -> bool {
    one.shape == other.shape
        && one.tokens == other.tokens
        && one.operation == other.operation
        && one.payload == other.payload
}

impl<'a> Panel<'a> {
    fn new(first: &'a Timed, rivals: &[Timed]) -> Panel<'a> {
        let mut others = Vec::new();
        for rival in rivals.iter().filter(|it| it.graph.is_none() && is_alike(first, it)) {
            if let Some(sms) = rival.sms {
                add(&mut others, &rival.system, [sms as f64, rival.us]);
            }
        }
        Panel { first, ways: Vec::new(), wire: None, others }
    }

    fn words(&self) -> String {
        self.first.shape.words(&format!("{} tokens", self.first.tokens))
    }

    fn add(&mut self, via: &str, point: [f64; 2], wire: Option<f64>) {
        add(&mut self.ways, via, point);
        // The best that was seen: a wire is not slower because another run was.
        self.wire = match (self.wire, wire) {
            (Some(own), Some(other)) => Some(own.min(other)),
            (own, other) => own.or(other),
        };
    }

    fn drawn(&self, names_shape: bool) -> String {
        let mut drawn = String::new();
        let out = &mut drawn;
        let ours = || self.ways.iter().flat_map(|(_, points)| points);
        let all = || ours().chain(self.others.iter().flat_map(|(_, points)| points));
        let sms = all().map(|it| it[0]).fold(1.0, f64::max);
        let us = all().map(|it| it[1]).chain(self.wire).fold(1.0, f64::max);
        let scale = Scale { sms: sms * 1.08, us: us * 1.12 };
        let title = format!("{} {}", self.first.operation, self.first.payload);
        text(out, LEFT, 14.0, "start", "black", &title);
        if names_shape {
            text(out, LEFT, 27.0, "start", PALE, &self.words());
        }
        scale.axes(&all().map(|it| it[0]).collect::<Vec<_>>(), out);
        if let Some(wire) = self.wire {
            scale.level(wire, PALE, "5 3", &format!("wire {wire:.0}"), 2, out);
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
        drawn
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
        let places: Vec<[f64; 2]> =
            points.iter().map(|[sms, us]| [self.x(*sms), self.y(*us)]).collect();
        polyline(&places, colour, None, out);
        circles(&places, colour, out);
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
    use super::super::svg;
    use super::super::tests::line;
    use super::*;
    use crate::results::read;

    #[test]
    fn points_of_one_way_are_one_line_in_order() {
        let results = line("combine", "direct", 24, "520") + &line("combine", "direct", 8, "640.5");
        let timed = read(&results).unwrap();
        let found = panels(&timed, &[]);
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

    #[test]
    fn graphs_of_other_systems_stand_beside_no_calls_one_by_one() {
        let shape = line("combine", "direct", 24, "19.9").replace("4096", "128");
        let shape = shape.replace("\"ranks\":4", "\"ranks\":2").replace("256", "288");
        assert!(!svg(&shape).unwrap().contains("DeepEP"), "{shape}");
    }

    #[test]
    fn axes_have_a_few_round_marks() {
        assert_eq!([step(870.0), step(46.0), step(5.9), step(1000.0)], [200.0, 10.0, 1.0, 200.0]);
    }
}
