//! `epforge bench --nodes`: calls between nodes, over network cards that are kernels or models, or over libfabric.

use std::time::Duration;

use ep_runtime::buffer::{Payload, StandardPipeline};
use ep_runtime::error::CallError;
use ep_runtime::group::Group;
use ep_runtime::net::{CardTraffic, Carrier};
use ep_verify::selftest::{Crossing, LowLatency, Mode, Operation, Puts, Selftest, Way};

use super::few::low_latency_case;
use super::request::{Batch, Request, Sms};
use super::talk::Talk;
use super::{check, micros};
use crate::failure::Failure;
use crate::json::{Object, Value};
use crate::kernels::Kernels;
use crate::machine::Ranks;
use crate::problem::failed;

/// SMs of a call, unless they are given.
const SMS: u32 = 24;

/// How long networks have for what they still have to carry after a call.
const AFTER_CALL: Duration = Duration::from_millis(5);

/// Rows of a signal of plain puts.
const RUN: usize = 16;

const TITLES: &str = "\
op               payload     mode  tokens SMs        us    link MB  GB/s  share  entries/row  bells/row  floor us  ratio";

/// Runs before and after a call, while no call is in flight.
type Look<'a> = &'a mut dyn FnMut() -> Result<(), CallError>;

/// A run of the command on a group of several nodes.
pub(super) struct Between<'a> {
    pub(super) request: Request,
    pub(super) kernels: Kernels,
    pub(super) ranks: Ranks,
    /// The network between nodes; `None` for models of cards in one emulator.
    pub(super) over: Option<Carrier>,
    pub(super) talk: Talk<'a>,
}

/// The traffic of one call between nodes.
#[derive(Debug, Clone, Copy)]
struct Sent {
    /// Bytes of the busiest rank.
    busiest: u64,
    /// Entries and doorbells of all cards.
    cards: Option<[u64; 2]>,
    rows: Crossing,
}

/// One result.
struct Measured<'a> {
    operation: Operation,
    payload: &'a str,
    mode: Mode,
    tokens: usize,
    sms: u32,
    time: Option<Duration>,
    sent: Option<Sent>,
    floor: Option<Duration>,
}

impl Between<'_> {
    pub(super) fn run(&mut self) -> Result<(), Failure> {
        let group = self.group().clone();
        let (nodes, each) = (group.nodes(), group.ranks() / group.nodes());
        let machine = group.backend().name();
        let link = match &self.over {
            Some(Carrier::Card(options)) if group.backend().runs_alone() => {
                let (rate, latency) = (options.bytes_per_us / 1000, options.latency);
                format!("cards of {rate} GB/s and {latency:.1?} that are kernels")
            }
            Some(Carrier::Card(_)) | None => "models of cards: nothing is timed".to_string(),
            Some(over) => {
                let whose = if group.local().len() == each { "node" } else { "rank" };
                format!("{over}, with a process for each {whose}")
            }
        };
        let object = Object::new()
            .with("command", super::command())
            .with("machine", &machine)
            .with("nodes", nodes)
            .with("node_ranks", each)
            .with("network", self.network())
            .with("link", &link);
        self.talk.object(&object)?;
        self.talk.say(&format!("{machine}: {nodes} nodes of {each} ranks, {link}"))?;
        self.talk.say(TITLES)?;
        let payloads = self.request.payloads.clone();
        for batch in self.request.batches.clone() {
            for (index, payload) in payloads.iter().enumerate() {
                let operations = self.request.operations.clone().into_iter();
                // A combine moves the same rows whatever came.
                let timed = operations.filter(|it| index == 0 || *it != Operation::Combine);
                let timed: Vec<Operation> = timed.collect();
                for sms in self.request.sweep(self.ranks.sms(), SMS) {
                    match self.request.low_latency {
                        Some(way) => self.few_tokens(way, *payload, &batch, sms, &timed)?,
                        None => self.many_tokens(*payload, &batch, sms, &timed)?,
                    }
                }
            }
        }
        Ok(())
    }

    fn group(&self) -> &Group {
        &self.ranks.group
    }

    /// The network by the name that `--net` takes.
    fn network(&self) -> String {
        self.over.as_ref().map_or("model".to_string(), Carrier::to_string)
    }

    /// Whether calls are timed, not only checked.
    fn is_timed(&self) -> bool {
        self.request.repeats.iterations > 0
    }

    fn many_tokens(
        &mut self,
        payload: Payload,
        batch: &Batch,
        sms: Sms,
        operations: &[Operation],
    ) -> Result<(), Failure> {
        let case = self.request.case(self.request.buffer(payload, batch), batch, sms);
        let tokens = case.options.tokens;
        let test = Selftest::new(self.group(), self.kernels.source(), case).map_err(failed)?;
        check(&test, "before timing", &mut self.talk)?;
        let last = self.request.seed.wrapping_add(1 << 32);
        let last = test.reseeded(last).map_err(failed)?;
        for operation in operations {
            let (pipeline, call) = match operation {
                Operation::Combine => (StandardPipeline::NodeCombine, sms.combine),
                Operation::CachedDispatch => (StandardPipeline::NodeDispatchCached, sms.dispatch),
                _ => (StandardPipeline::NodeDispatch, sms.dispatch),
            };
            let sms = test.buffer().sms(pipeline, &call);
            let sent = self.sent(&mut |look| {
                test.once(*operation, look)?;
                Ok(test.crossing())
            })?;
            let floor = self.floor(sent, sms)?;
            for mode in self.request.modes.clone() {
                let timing = test.time(&last, *operation, mode, self.request.repeats);
                let timing = timing.map_err(failed)?;
                if !timing.findings.is_good() {
                    let (operation, mode) = (operation.name(), mode.name());
                    let text = format!("{operation}, last call of the {mode}: {}", timing.findings);
                    return Err(Failure::Failed(text));
                }
                let is_combine = *operation == Operation::Combine;
                self.tell(&Measured {
                    operation: *operation,
                    payload: if is_combine { "bf16" } else { payload.name() },
                    mode,
                    tokens,
                    sms,
                    time: timing.time.filter(|_| self.is_timed()),
                    sent,
                    floor,
                })?;
            }
        }
        check(&test, "after timing", &mut self.talk)
    }

    fn few_tokens(
        &mut self,
        way: Way,
        payload: Payload,
        batch: &Batch,
        sms: Sms,
        operations: &[Operation],
    ) -> Result<(), Failure> {
        let options = self.request.buffer(payload, batch);
        let case = low_latency_case(&options, options.tokens, payload, way, sms.dispatch);
        let calls = LowLatency::new(self.group(), case).map_err(failed)?;
        let sms = sms.dispatch.sms.unwrap_or(SMS);
        for operation in operations {
            let sent = self.sent(&mut |look| calls.once(*operation, look))?;
            let floor = self.floor(sent, sms)?;
            for mode in self.request.modes.clone() {
                let repeats = self.request.repeats;
                let of_graph = repeats.graph.unwrap_or(1);
                let timed = calls.time(*operation, of_graph, mode, repeats).map_err(failed)?;
                let (times, findings) = timed;
                if !findings.is_good() {
                    let (operation, mode) = (operation.name(), mode.name());
                    let text =
                        format!("low-latency {operation}, last call of the {mode}: {findings}");
                    return Err(Failure::Failed(text));
                }
                let is_combine = *operation == Operation::Combine;
                self.tell(&Measured {
                    operation: *operation,
                    payload: if is_combine { "bf16" } else { payload.name() },
                    mode,
                    tokens: options.tokens,
                    sms,
                    time: times.filter(|_| self.is_timed()).map(|times| times.p50),
                    sent,
                    floor,
                })?;
            }
        }
        Ok(())
    }

    /// The traffic between the two times that `call` looks at it.
    fn sent(
        &self,
        call: &mut dyn FnMut(Look<'_>) -> Result<Crossing, CallError>,
    ) -> Result<Option<Sent>, Failure> {
        let mut looks = Vec::new();
        let group = self.group();
        let rows = call(&mut || {
            // Credit may still be under way that no kernel waits for.
            if self.over.is_some() {
                std::thread::sleep(AFTER_CALL);
            }
            looks.extend(group.card_traffic()?);
            Ok(())
        });
        let rows = rows.map_err(failed)?;
        let [before, after] = &looks[..] else { return Ok(None) };
        let more = |of: fn(&CardTraffic) -> u64| {
            before.iter().zip(after).map(move |(before, after)| of(after) - of(before))
        };
        // A process knows the traffic of its own ranks alone.
        let gather = |what: &str, number| group.gather_once(what, number).map_err(failed);
        let busiest =
            gather("compare the bytes of a call", more(|it| it.bytes).max().unwrap_or(0))?;
        let cards = match group.writes_to_cards() {
            true => Some([
                gather("count the entries of a call", more(|it| it.entries).sum())?.iter().sum(),
                gather("count the doorbells of a call", more(|it| it.doorbells).sum())?
                    .iter()
                    .sum(),
            ]),
            false => None,
        };
        Ok(Some(Sent { busiest: busiest.into_iter().max().unwrap_or(0), cards, rows }))
    }

    /// How long plain puts of as many rows take, over the same network.
    fn floor(&self, sent: Option<Sent>, sms: u32) -> Result<Option<Duration>, Failure> {
        let Some(sent) = sent else { return Ok(None) };
        let group = self.group();
        let far = group.ranks() - group.ranks() / group.nodes();
        let rows = sent.rows.busiest.div_ceil(far).max(1);
        let row_bytes = (sent.busiest as usize).div_ceil(rows * far).next_multiple_of(16);
        Puts { rows, row_bytes, run: RUN }.time(group, sms).map_err(failed)
    }

    fn tell(&mut self, it: &Measured<'_>) -> Result<(), Failure> {
        let rate = match &self.over {
            Some(Carrier::Card(options)) => options.bytes_per_us,
            _ => 0,
        };
        let us = it.time.map(micros).filter(|us| *us > 0.0);
        let per_us = us.zip(it.sent).map(|(us, sent)| sent.busiest as f64 / us);
        let share = per_us.filter(|_| rate > 0).map(|per_us| per_us / rate as f64);
        let each = |part: usize| {
            let sent = it.sent.filter(|sent| sent.rows.all > 0)?;
            Some(sent.cards?[part] as f64 / sent.rows.all as f64)
        };
        let (entries, doorbells) = (each(0), each(1));
        let floor = it.floor.map(micros);
        let ratio = us.zip(floor).map(|(us, floor)| us / floor);
        let group = self.group();
        let object = Object::new()
            .with("op", it.operation.name())
            .with("mode", it.mode.name())
            .with("graph", self.request.repeats.graph)
            .with("payload", it.payload)
            .with("way", self.request.low_latency.map(Way::name))
            .with("network", self.network())
            .with("nodes", group.nodes())
            .with("ranks", group.ranks())
            .with("tokens", it.tokens)
            .with("sms", it.sms)
            .with("us", us.map(Value::Hundredths))
            .with("link_bytes", it.sent.map(|sent| sent.busiest))
            .with("card_gb_per_s", per_us.map(|per_us| Value::Tenths(per_us / 1e3)))
            .with("link_share", share.map(Value::Hundredths))
            .with("rows", it.sent.map(|sent| sent.rows.all))
            .with("entries_per_row", entries.map(Value::Hundredths))
            .with("doorbells_per_row", doorbells.map(Value::Hundredths))
            .with("floor_us", floor.map(Value::Hundredths))
            .with("ratio", ratio.map(Value::Hundredths));
        self.talk.object(&object)?;
        if self.talk.json {
            return Ok(());
        }
        let shown = |value: Option<f64>, digits: usize| {
            value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
        };
        let megabytes = it.sent.map(|sent| sent.busiest as f64 / 1e6);
        self.talk.say(&format!(
            "{:<16} {:<11} {:<5} {:>6} {:>3} {:>9} {:>10} {:>5} {:>6} {:>12} {:>10} {:>9} {:>6}",
            it.operation.name(),
            it.payload,
            it.mode.name(),
            it.tokens,
            it.sms,
            shown(us, 1),
            shown(megabytes, 2),
            shown(per_us.map(|per_us| per_us / 1e3), 1),
            shown(share, 2),
            shown(entries, 2),
            shown(doorbells, 2),
            shown(floor, 1),
            shown(ratio, 2),
        ))
    }
}
