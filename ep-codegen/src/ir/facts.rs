//! What a selected pipeline implies without saying it: credits and who returns them, every pair of a
//! publish and a consume, and what becomes of the tables.
//!
//! `explain` prints these, and the numbers W1, W2, .. of the pairs stand at both ends in the
//! emitted CUDA.

use super::slots::travels_in_words;
use super::walk;
use super::{Action, Channel, Expr, Pipeline, Role, Source, Stmt, TensorKind};

/// Everything derived from a selected pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// What lets a producer go on.
    pub credits: Vec<Credit>,
    /// Publish and consume, numbered from 1.
    pub pairs: Vec<Pair>,
    /// Tables recorded and read.
    pub tables: Vec<TableUse>,
}

/// What lets the producer of a channel go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credit {
    /// Channel.
    pub channel: String,
    /// Role that returns it.
    pub returned_by: String,
    /// Roles that wait for it.
    pub waited_by: Vec<String>,
    /// When it is returned.
    pub rule: CreditRule,
}

/// When a credit is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreditRule {
    /// Slots of a ring: a chunk at a time, and the rest when the consumer retires.
    Chunk,
    /// Slots that do not say by themselves that they have come: with the last read of an epoch.
    Epoch,
    /// Direct: once per call, when the output is ready to be written.
    Ready,
    /// Pull: once per call, when the last row has been read.
    Released,
}

/// One end of a pair: a statement of a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// Role.
    pub role: String,
    /// Line of the statement, relative to the `pipeline` line.
    pub line: u32,
    /// The statement.
    pub text: String,
}

impl End {
    /// Whether it is the statement at `at`: a fragment stands in one line with all of its statements.
    pub fn is_at(&self, at: &Source) -> bool {
        self.line == at.line && self.text == at.text
    }
}

/// A release and the acquire that sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// Number: 1 is written W1.
    pub number: u32,
    /// Channel.
    pub channel: String,
    /// What is published.
    pub what: Published,
    /// Who publishes.
    pub publish: End,
    /// Who waits for it.
    pub consume: End,
}

/// What a pair publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Published {
    /// The numbers announced for a stripe and peer.
    Header,
    /// Messages: a ring's tail, a slot's flag or count, a direct row's close.
    Messages,
    /// A tensor that others may read now.
    Ready,
    /// Room for more.
    Credit(CreditRule),
}

impl Published {
    /// The word for it in snapshots, explanations and emitted comments.
    pub fn name(self) -> &'static str {
        match self {
            Published::Header => "header",
            Published::Messages => "messages",
            Published::Ready => "ready",
            Published::Credit(_) => "credit",
        }
    }
}

/// What becomes of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableUse {
    /// Table.
    pub table: String,
    /// The pipeline whose handle brings it; `None`: this pipeline records it.
    pub from_handle: Option<String>,
    /// Where it is recorded.
    pub recorded: Vec<End>,
    /// Where it is read in a role.
    pub read: Vec<End>,
    /// Sizes that are read from it.
    pub sizes: Vec<String>,
}

/// Derives the facts of a pipeline without guards, as [`Pipeline::select`] leaves it.
pub fn facts(selected: &Pipeline) -> Facts {
    let mut facts = Facts { credits: Vec::new(), pairs: Vec::new(), tables: Vec::new() };
    for channel in &selected.channels {
        let ends = Ends::of(selected, channel);
        facts.credits.extend(credit(selected, channel));
        pairs(selected, channel, &ends, &mut facts.pairs);
    }
    let tables = selected.tensors.iter().filter(|tensor| tensor.kind == TensorKind::Table);
    facts.tables =
        tables.map(|table| table_use(selected, &table.name, &table.from_handle)).collect();
    facts
}

/// The statements of a channel.
struct Ends {
    announce: Vec<End>,
    /// The first statement of the consumer that needs the announced numbers: there it waits.
    header: Vec<End>,
    push: Vec<End>,
    close: Vec<End>,
    consume: Vec<End>,
}

impl Ends {
    fn of(selected: &Pipeline, channel: &Channel) -> Ends {
        let mut ends = Ends {
            announce: Vec::new(),
            header: Vec::new(),
            push: Vec::new(),
            close: Vec::new(),
            consume: Vec::new(),
        };
        for role in &selected.roles {
            walk::stmts(&role.body, &mut |stmt| ends.note(role, channel, stmt));
        }
        ends
    }

    fn note(&mut self, role: &Role, channel: &Channel, stmt: &Stmt) {
        let receives = matches!(&stmt.action, Action::Receive { channel: name, .. }
            if *name == channel.name);
        if self.header.is_empty()
            && role.name == channel.to
            && (receives || reads_header(stmt, channel))
        {
            self.header.push(end(role, stmt));
        }
        let list = match &stmt.action {
            Action::Announce { channel: name, .. } if *name == channel.name => &mut self.announce,
            Action::Push { channel: name, .. } if *name == channel.name => &mut self.push,
            Action::Close { channel: name } if *name == channel.name => &mut self.close,
            Action::Receive { channel: name, .. }
            | Action::Gather { channel: name, .. }
            | Action::Await { channel: name }
                if *name == channel.name =>
            {
                &mut self.consume
            }
            _ => return,
        };
        list.push(end(role, stmt));
    }
}

fn end(role: &Role, stmt: &Stmt) -> End {
    End { role: role.name.clone(), line: stmt.at.line, text: stmt.at.text.clone() }
}

fn reads_header(stmt: &Stmt, channel: &Channel) -> bool {
    walk::any_in(stmt, &mut |expr| {
        matches!(expr, Expr::OfChannel { channel: name, field, .. }
            if *name == channel.name && channel.header.contains(field))
    })
}

fn credit_rule(selected: &Pipeline, channel: &Channel) -> Option<CreditRule> {
    match travels_in_words(selected, channel) {
        true => None,
        false => Some(channel.kind.traits().credit),
    }
}

fn credit(selected: &Pipeline, channel: &Channel) -> Option<Credit> {
    let rule = credit_rule(selected, channel)?;
    let (name, returned_by) = (channel.name.clone(), channel.to.clone());
    Some(Credit { channel: name, returned_by, waited_by: channel.from.clone(), rule })
}

/// Appends the pairs of a channel in the order in which they happen.
fn pairs(selected: &Pipeline, channel: &Channel, ends: &Ends, out: &mut Vec<Pair>) {
    let mut add = |what, publish: &[End], consume: &[End]| {
        for publish in publish {
            for consume in consume {
                let number = u32::try_from(out.len()).unwrap_or(u32::MAX).saturating_add(1);
                out.push(Pair {
                    number,
                    channel: channel.name.clone(),
                    what,
                    publish: publish.clone(),
                    consume: consume.clone(),
                });
            }
        }
    };
    let rule = credit_rule(selected, channel);
    if rule == Some(CreditRule::Ready) {
        add(Published::Credit(CreditRule::Ready), &ends.consume, &ends.push);
    }
    add(Published::Header, &ends.announce, &ends.header);
    let rows = match channel.kind.traits().offers {
        true => Published::Ready,
        false => Published::Messages,
    };
    // Slots that are closed are published by the close, which follows the rows.
    let publish = if ends.close.is_empty() { &ends.push } else { &ends.close };
    add(rows, publish, &ends.consume);
    if let Some(rule) = rule.filter(|rule| *rule != CreditRule::Ready) {
        add(Published::Credit(rule), &ends.consume, &ends.push);
    }
}

fn table_use(selected: &Pipeline, table: &str, from_handle: &Option<String>) -> TableUse {
    let mut uses = TableUse {
        table: table.to_string(),
        from_handle: from_handle.clone(),
        recorded: Vec::new(),
        read: Vec::new(),
        sizes: Vec::new(),
    };
    let element = |expr: &Expr| matches!(expr, Expr::Element { tensor, .. } if tensor == table);
    for role in &selected.roles {
        walk::stmts(&role.body, &mut |stmt| {
            if walk::target(stmt).is_some_and(|place| place.tensor == table) {
                uses.recorded.push(end(role, stmt));
            }
            let read = walk::any_in(stmt, &mut |expr| element(expr));
            if read {
                uses.read.push(end(role, stmt));
            }
        });
    }
    for size in &selected.sizes {
        let mut read = false;
        if let Some(value) = &size.value {
            walk::expr(value, &mut |expr| read |= element(expr));
        }
        if read {
            uses.sizes.push(size.name.clone());
        }
    }
    uses
}
