//! What each role moved in a call, by rank: the routing says how many rows, the declaration who
//! moves them.

use ep_runtime::buffer::{Buffer, BuiltIn, StandardPipeline};
use ep_runtime::ir::{Action, Blocks, Choice, Domain, Pipeline, Role, Stmt};
use ep_runtime::plan::Plan;
use ep_verify::oracle::Oracle;

use crate::json::Object;

/// What a role moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Moved {
    pipeline: &'static str,
    role: String,
    what: &'static str,
    /// By rank.
    counts: Vec<usize>,
    /// Bytes of one of them.
    bytes_each: u64,
}

/// The ways in which roles move things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Counted,
    Exchanged,
    SentToAll,
    Returned,
    Offered,
    Received,
    AddedUp,
}

impl Way {
    fn words(self) -> &'static str {
        match self {
            Way::Counted => "tokens counted",
            Way::Exchanged => "messages to all ranks",
            Way::SentToAll => "rows sent",
            Way::Returned => "rows sent back",
            Way::Offered => "rows offered",
            Way::Received => "rows received",
            Way::AddedUp => "rows added up",
        }
    }

    fn count(self, oracle: &Oracle, rank: usize) -> usize {
        let sent = || (0..oracle.ranks()).map(|dest| oracle.rows_between(rank, dest)).sum();
        match self {
            Way::Counted => oracle.routing(rank).tokens(),
            Way::Exchanged => oracle.ranks(),
            Way::SentToAll | Way::AddedUp => sent(),
            Way::Returned | Way::Offered | Way::Received => oracle.arrivals(rank).len(),
        }
    }
}

/// Every role of the pipelines in order.
pub(crate) fn moved(
    buffer: &Buffer,
    oracle: &Oracle,
    pipelines: &[StandardPipeline],
) -> Vec<Moved> {
    let mut all = Vec::new();
    for pipeline in pipelines {
        let Some(plan) = buffer.plan(*pipeline) else { continue };
        let ir = selected(*pipeline, plan);
        for role in &ir.roles {
            let Some((way, bytes_each)) = way_of(&ir, role, plan) else { continue };
            let counts = (0..oracle.ranks()).map(|rank| way.count(oracle, rank)).collect();
            let (pipeline, role) = (pipeline.name(), role.name.clone());
            all.push(Moved { pipeline, role, what: way.words(), counts, bytes_each });
        }
    }
    all
}

/// The declaration with the arms of the plan.
fn selected(pipeline: StandardPipeline, plan: &Plan) -> Pipeline {
    let ir = BuiltIn::entry(pipeline).ir();
    ir.select(&Choice { arms: plan.arms.iter().map(|(_, arm)| arm.clone()).collect() })
}

/// How a role moves things, from its first statement that names a channel of rows, or any channel.
fn way_of(ir: &Pipeline, role: &Role, plan: &Plan) -> Option<(Way, u64)> {
    let all = walk(&role.body, false);
    let message_of = |channel: &str| {
        let message = ir.channels.iter().find(|it| it.name == channel)?.message.as_str();
        ir.messages.iter().find(|it| it.name == message)
    };
    let has_rows = |channel: &str| {
        message_of(channel).is_some_and(|message| message.fields.iter().any(|field| field.row))
    };
    let found = all.iter().find(|(_, channel)| has_rows(channel)).or(all.first());
    let counts = || role.body.iter().any(|stmt| matches!(stmt.action, Action::For { .. }));
    let Some(&(way, channel)) = found else {
        // Without a channel it works on what this rank has, or on what has come.
        return (role.blocks != Blocks::Last && counts()).then_some((Way::Counted, 0));
    };
    let message = message_of(channel)?;
    let layout = plan.messages.iter().find(|layout| layout.name == message.name)?;
    if !has_rows(channel) {
        return Some((Way::Exchanged, u64::try_from(layout.slot_bytes).unwrap_or(0)));
    }
    Some((way, u64::try_from(layout.row_bytes + layout.meta_bytes).unwrap_or(0)))
}

/// The movements in `body`, and their channels. `of_tokens`: inside a loop over this rank's tokens.
fn walk(body: &[Stmt], of_tokens: bool) -> Vec<(Way, &str)> {
    let mut all = Vec::new();
    for stmt in body {
        match &stmt.action {
            Action::For { domain, body, .. } => {
                let tokens = matches!(domain, Domain::Tokens | Domain::Stripe);
                all.extend(walk(body, of_tokens || tokens));
            }
            Action::Receive { channel, .. } => all.push((Way::Received, channel.as_str())),
            Action::Gather { channel, .. } => all.push((Way::AddedUp, channel.as_str())),
            Action::Push { channel, peer, .. } => {
                let way = match peer {
                    None => Way::Offered,
                    Some(_) if of_tokens => Way::SentToAll,
                    Some(_) => Way::Returned,
                };
                all.push((way, channel.as_str()));
            }
            _ => {}
        }
    }
    all
}

/// A line per role, under a line of titles.
pub(crate) fn table(moved: &[Moved]) -> Vec<Vec<String>> {
    // More columns than that fit no line.
    const COLUMNS: usize = 8;
    let ranks = moved.first().map_or(0, |first| first.counts.len());
    let columns = if ranks <= COLUMNS { ranks } else { 0 };
    let mut title: Vec<String> = ["pipeline", "role", "moves"].map(str::to_owned).to_vec();
    title.extend((0..columns).map(|rank| format!("rank {rank}")));
    title.extend(["all", "bytes"].map(str::to_owned));
    let mut rows = vec![title];
    for it in moved {
        let all: usize = it.counts.iter().sum();
        let mut row = vec![it.pipeline.to_owned(), it.role.clone(), it.what.to_owned()];
        row.extend(it.counts.iter().take(columns).map(usize::to_string));
        row.extend([all.to_string(), bytes(all as u64 * it.bytes_each)]);
        rows.push(row);
    }
    rows
}

/// `12.3 MB`; nothing for nothing.
pub(crate) fn bytes(count: u64) -> String {
    let count = count as f64;
    match count {
        0.0 => String::new(),
        _ if count < 1e4 => format!("{count} B"),
        _ if count < 1e7 => format!("{:.1} kB", count / 1e3),
        _ if count < 1e10 => format!("{:.1} MB", count / 1e6),
        _ => format!("{:.1} GB", count / 1e9),
    }
}

impl Moved {
    /// One JSON object.
    pub(crate) fn object(&self) -> Object {
        let all: usize = self.counts.iter().sum();
        Object::new()
            .with("pipeline", self.pipeline)
            .with("role", &self.role)
            .with("moves", self.what)
            .with("by_rank", self.counts.clone())
            .with("bytes", all as u64 * self.bytes_each)
    }
}

#[cfg(test)]
mod tests {
    use ep_runtime::buffer::BufferOptions;

    use super::*;

    /// The ways of all roles, for the arms that the options choose.
    fn ways(pipeline: StandardPipeline, via: &str) -> Vec<(String, Way)> {
        use ep_runtime::buffer::{Emit, Via};
        let via = Via::from_name(via).unwrap();
        let options = BufferOptions { via, ..BufferOptions::new(8, 128, 2, 8) };
        let arch = ep_runtime::jit::Arch::Sm90a;
        let config = options.config_of(pipeline, 4, arch, Some(12)).unwrap();
        let plan = BuiltIn.emit(pipeline, &config).unwrap().plan;
        let ir = selected(pipeline, &plan);
        let ways = ir
            .roles
            .iter()
            .filter_map(|role| way_of(&ir, role, &plan).map(|(way, _)| (role.name.clone(), way)));
        ways.collect()
    }

    #[test]
    fn roles_are_known_by_what_they_say() {
        use StandardPipeline as Standard;
        let named = |list: &[(&str, Way)]| -> Vec<(String, Way)> {
            list.iter().map(|(name, way)| ((*name).to_owned(), *way)).collect()
        };
        assert_eq!(
            ways(Standard::Layout, "direct"),
            named(&[("Count", Way::Counted), ("Exchange", Way::Exchanged)])
        );
        let direct = [("Send", Way::SentToAll), ("Unpack", Way::Received)];
        assert_eq!(ways(Standard::NvlDispatch, "direct"), named(&direct));
        let ring = [("Send", Way::SentToAll), ("Recv", Way::Received)];
        assert_eq!(ways(Standard::NvlDispatch, "ring"), named(&ring));
        let pull = [("Offer", Way::Offered), ("Reduce", Way::AddedUp)];
        assert_eq!(ways(Standard::NvlCombine, "direct"), named(&pull));
        assert_eq!(
            ways(Standard::DecodeDispatch, "direct"),
            named(&[("Dispatch", Way::SentToAll)])
        );
        let back = [("Send", Way::Returned), ("Recv", Way::AddedUp)];
        assert_eq!(ways(Standard::NvlCombine, "ring"), named(&back));
    }

    #[test]
    fn sizes_are_rounded_for_people() {
        assert_eq!(bytes(0), "");
        assert_eq!(bytes(9999), "9999 B");
        assert_eq!(bytes(1_234_567), "1234.6 kB");
        assert_eq!(bytes(158_992_384), "159.0 MB");
    }
}
