//! The facts of a pipeline as text.

use super::line;
use crate::ir::facts::{CreditRule, End, Facts, Pair, TableUse, facts};
use crate::ir::{Choice, Pipeline};

/// The facts of every choice of arms; choices with the same facts share one list.
pub fn facts_by_choice(ir: &Pipeline) -> String {
    let mut groups: Vec<(Vec<String>, Facts)> = Vec::new();
    for choice in ir.choices() {
        let found = facts(&ir.select(&choice));
        match groups.iter_mut().find(|(_, facts)| *facts == found) {
            Some((names, _)) => names.push(choice_name(&choice)),
            None => groups.push((vec![choice_name(&choice)], found)),
        }
    }
    let mut out = String::new();
    for (names, facts) in groups {
        let of =
            if ir.axes.is_empty() { String::new() } else { format!(" of {}", names.join(", ")) };
        line(&mut out, 0, &format!("facts{of}"));
        out.push_str(&facts_text(&facts));
    }
    out
}

/// `Fp8 Ring Fresh`
fn choice_name(choice: &Choice) -> String {
    choice.arms.join(" ")
}

/// The facts of one choice.
pub fn facts_text(facts: &Facts) -> String {
    let mut out = String::new();
    for credit in &facts.credits {
        let text = format!(
            "credit of {}: {} returns it to {} {}",
            credit.channel,
            credit.returned_by,
            credit.waited_by.join(" and "),
            rule(credit.rule)
        );
        line(&mut out, 1, &text);
    }
    for pair in &facts.pairs {
        pair_text(pair, &mut out);
    }
    for table in &facts.tables {
        table_text(table, &mut out);
    }
    out
}

fn rule(rule: CreditRule) -> &'static str {
    match rule {
        CreditRule::Chunk => "by chunks, and the rest when it retires",
        CreditRule::Epoch => "with the last read of an epoch",
        CreditRule::Ready => "once its output can be written",
        CreditRule::Released => "once the last row has been read",
    }
}

fn pair_text(pair: &Pair, out: &mut String) {
    line(out, 1, &format!("W{} {} of {}", pair.number, pair.what.name(), pair.channel));
    line(out, 2, &format!("publish {}", end(&pair.publish)));
    line(out, 2, &format!("consume {}", end(&pair.consume)));
}

fn table_text(table: &TableUse, out: &mut String) {
    let from = match &table.from_handle {
        Some(pipeline) => format!(" of the handle of {pipeline}"),
        None => String::new(),
    };
    line(out, 1, &format!("table {}{from}", table.table));
    for place in &table.recorded {
        line(out, 2, &format!("recorded {}", end(place)));
    }
    if table.from_handle.is_none() && table.recorded.is_empty() {
        line(out, 2, "not recorded: it stays as an earlier call left it");
    }
    for place in &table.read {
        line(out, 2, &format!("read {}", end(place)));
    }
    for size in &table.sizes {
        line(out, 2, &format!("gives the size {size}"));
    }
}

fn end(end: &End) -> String {
    format!("{} +{} {}", end.role, end.line, end.text)
}
