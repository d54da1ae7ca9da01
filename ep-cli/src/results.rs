//! Results as `bench --json` prints them and `benches/results` keeps them, read back.

use serde_json::Value;

/// Who made the calls of a line that names nobody else.
const OWN_SYSTEM: &str = "EPForge";

/// The shape of a problem, for any number of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) ranks: u64,
    pub(crate) hidden: u64,
    pub(crate) topk: u64,
    pub(crate) experts: u64,
}

/// What was timed, and where.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Timed {
    /// The GPUs, as the last line that names any; empty without one.
    pub(crate) machine: String,
    pub(crate) system: String,
    pub(crate) operation: String,
    pub(crate) payload: String,
    /// Whether calls or graphs followed one another without a pause; nothing says so of other systems.
    pub(crate) is_loop: bool,
    /// Calls in a graph.
    pub(crate) graph: Option<u64>,
    pub(crate) via: String,
    /// How rows that are packed by expert travel.
    pub(crate) way: Option<String>,
    pub(crate) pipeline: String,
    pub(crate) shape: Shape,
    /// Of a rank.
    pub(crate) tokens: u64,
    pub(crate) routing: String,
    pub(crate) sms: Option<u64>,
    pub(crate) us: f64,
    pub(crate) wire_us: Option<f64>,
    pub(crate) floor_us: Option<f64>,
    pub(crate) best_floor_us: Option<f64>,
}

/// The times among these lines, in their order; the error is a sentence.
pub(crate) fn read(text: &str) -> Result<Vec<Timed>, String> {
    let mut machine = String::new();
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let line = serde_json::from_str(line);
        let line: Value = line.map_err(|error| format!("line {}: {error}", index + 1))?;
        if let Some(named) = line["machine"].as_str() {
            named.clone_into(&mut machine);
        }
        found.extend(Timed::of(&line, &machine));
    }
    Ok(found)
}

impl Timed {
    /// None of a line that holds no time of a call.
    fn of(line: &Value, machine: &str) -> Option<Timed> {
        let given = |name: &str| line[name].as_str().map(str::to_owned);
        let word = |name: &str| given(name).unwrap_or_default();
        Some(Timed {
            machine: machine.to_owned(),
            system: given("system").unwrap_or_else(|| OWN_SYSTEM.to_owned()),
            operation: given("op")?,
            payload: word("payload"),
            is_loop: line["mode"] == "loop",
            // A line that was kept before there were graphs does not say that it is of none.
            graph: line["graph"].as_u64(),
            via: word("via"),
            way: given("way"),
            pipeline: word("pipeline"),
            shape: Shape::of(line)?,
            tokens: line["tokens"].as_u64()?,
            routing: given("routing").unwrap_or_else(|| "even".to_owned()),
            sms: line["sms"].as_u64(),
            us: line["us"].as_f64()?,
            wire_us: line["wire_us"].as_f64(),
            floor_us: line["floor_us"].as_f64(),
            best_floor_us: line["best_floor_us"].as_f64(),
        })
    }

    /// How rows travel, as far as it is said.
    pub(crate) fn by(&self) -> &str {
        self.way.as_ref().unwrap_or(&self.via)
    }

    /// Whose calls, and how rows travel.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.system, self.by()).trim_end().to_owned()
    }

    /// Whether rows left a GPU: not where all ranks share one.
    pub(crate) fn has_wire(&self) -> bool {
        !self.machine.starts_with("1 x ")
    }

    pub(crate) fn is_even(&self) -> bool {
        self.routing == "even"
    }
}

impl Shape {
    fn of(line: &Value) -> Option<Shape> {
        let number = |name: &str| line[name].as_u64();
        Some(Shape {
            ranks: number("ranks")?,
            hidden: number("hidden")?,
            topk: number("topk")?,
            experts: number("experts")?,
        })
    }

    /// With what the rows are called: `4096 tokens`, or just `rows`.
    pub(crate) fn words(self, rows: &str) -> String {
        let Shape { ranks, hidden, topk, experts } = self;
        format!("{ranks} ranks, {rows} of {hidden} values, top-{topk} of {experts}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: &str = r#""ranks":2,"tokens":8,"hidden":7168,"topk":8,"experts":288"#;

    #[test]
    fn a_time_belongs_to_the_machine_that_was_named_last() {
        let timed = format!("{{\"op\":\"combine\",{SHAPE},\"us\":6.84}}\n");
        let text = format!(
            "{timed}{{\"machine\":\"a\"}}\n\n{{\"compiled\":1}}\n{timed}{{\"machine\":\"b\"}}\n{timed}"
        );
        let found = read(&text).unwrap();
        let machines: Vec<&str> = found.iter().map(|it| it.machine.as_str()).collect();
        assert_eq!(machines, ["", "a", "b"]);
        assert!(found.iter().all(|it| it.us == 6.84 && it.is_even() && it.graph.is_none()));
    }

    #[test]
    fn a_line_without_a_time_or_a_shape_is_passed_over() {
        let untimed = format!("{{\"op\":\"combine\",{SHAPE},\"us\":null}}\n");
        let unshaped = "{\"op\":\"own-dispatch\",\"ranks\":2,\"us\":3.5}";
        assert_eq!(read(&(untimed + unshaped)).unwrap(), []);
    }

    #[test]
    fn a_name_says_whose_calls_and_which_way() {
        let name = |more: &str| {
            read(&format!("{{\"op\":\"both\",{SHAPE},\"us\":1{more}}}")).unwrap()[0].name()
        };
        assert_eq!(name(r#","via":"direct""#), "EPForge direct");
        assert_eq!(name(r#","way":"per-rank""#), "EPForge per-rank");
        assert_eq!(name(r#","system":"DeepEP V2""#), "DeepEP V2");
    }
}
