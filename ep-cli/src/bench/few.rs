//! `epforge bench --low-latency`: calls of few tokens, whose rows are cast on the way and packed by expert.

use ep_runtime::buffer::{BufferOptions, CallOptions, Payload};
use ep_runtime::pipelines::low_latency_dispatch::Payload as Moved;
use ep_verify::selftest::{LowLatency, LowLatencyCase, Mode, Operation, Percentiles, Way};

use super::request::Batch;
use super::{Bench, micros};
use crate::failure::Failure;
use crate::json::{Object, Value};
use crate::problem::failed;

/// SMs of a call of fewer tokens: with fewer, calls of 8 tokens take a third longer.
const LEAST_SMS: u32 = 64;

const TITLES: &str = "\
op               payload     way        mode  tokens SMs        us       p95       p99";

/// Low-latency calls of a shape with so many tokens.
pub(super) fn low_latency_case(
    options: &BufferOptions,
    tokens: usize,
    payload: Payload,
    way: Way,
    call: CallOptions,
) -> LowLatencyCase {
    LowLatencyCase {
        tokens,
        hidden: options.hidden,
        topk: options.topk,
        experts: options.experts,
        payload: match payload {
            Payload::Bf16 => Moved::Bf16,
            Payload::Fp8 => Moved::Fp8,
            Payload::Fp8Packed => Moved::Fp8Packed,
        },
        way,
        call,
        pairs: 0,
    }
}

impl Bench<'_> {
    /// Low-latency calls with rows of one kind. A combine moves the same rows whatever came, so that it is timed
    /// once.
    pub(super) fn few_tokens(
        &mut self,
        way: Way,
        payload: Payload,
        batch: &Batch,
        combines: bool,
    ) -> Result<(), Failure> {
        let Some(tokens) = batch.tokens.first().copied() else { return Ok(()) };
        let usual = u32::try_from(tokens).unwrap_or(u32::MAX).max(LEAST_SMS);
        let sweep = self.request.sweep(self.ranks.sms(), usual);
        let is_timed = |operation: &Operation| combines || *operation != Operation::Combine;
        let operations: Vec<Operation> =
            self.request.operations.iter().copied().filter(is_timed).collect();
        let measurements = operations.len() * sweep.len() * self.request.modes.len();
        self.talk.begin(measurements, format!("low latency, {}: kernels", payload.name()));
        for sms in sweep {
            let options = self.request.buffer(payload, batch);
            let case = low_latency_case(&options, tokens, payload, way, sms.dispatch);
            let calls = LowLatency::new(self.group(), case.clone()).map_err(failed)?;
            for operation in &operations {
                for mode in self.request.modes.clone() {
                    self.few_tokens_of(&calls, &case, payload, *operation, mode)?;
                }
            }
        }
        Ok(())
    }

    fn few_tokens_of(
        &mut self,
        calls: &LowLatency,
        case: &LowLatencyCase,
        payload: Payload,
        operation: Operation,
        mode: Mode,
    ) -> Result<(), Failure> {
        let repeats = self.request.repeats;
        let of_graph = repeats.graph.unwrap_or(1);
        let (times, findings) = calls.time(operation, of_graph, mode, repeats).map_err(failed)?;
        if !findings.is_good() {
            let (operation, mode) = (operation.name(), mode.name());
            let text = format!("low-latency {operation}, last call of the {mode}: {findings}");
            return Err(Failure::Failed(text));
        }
        self.talk.step(operation.name());
        let payload = if operation == Operation::Combine { "bf16" } else { payload.name() };
        let sms = case.call.sms;
        let times = times.filter(|_| repeats.iterations > 0);
        let us =
            |of: fn(&Percentiles) -> std::time::Duration| times.as_ref().map(|it| micros(of(it)));
        let spread = [us(|it| it.p50), us(|it| it.p95), us(|it| it.p99)];
        let [p50, p95, p99] = spread.map(|us| us.map(Value::Hundredths));
        let object = Object::new()
            .with("op", operation.name())
            .with("mode", mode.name())
            .with("graph", of_graph)
            .with("payload", payload)
            .with("way", case.way.name())
            .with("ranks", self.request.gpus.ranks)
            .with("tokens", case.tokens)
            .with("hidden", case.hidden)
            .with("topk", case.topk)
            .with("experts", case.experts)
            .with("sms", sms)
            .with("us", p50)
            .with("p95_us", p95)
            .with("p99_us", p99);
        self.lines.push(format!("{object}\n"));
        self.talk.object(&object)?;
        if self.talk.json {
            return Ok(());
        }
        if !std::mem::replace(&mut self.titled, true) {
            self.talk.say(TITLES)?;
        }
        let [p50, p95, p99] = spread.map(|us| us.map_or("-".to_owned(), |us| format!("{us:.1}")));
        self.talk.say(&format!(
            "{:<16} {payload:<11} {:<10} {:<5} {:>6} {:>3} {p50:>9} {p95:>9} {p99:>9}",
            operation.name(),
            case.way.name(),
            mode.name(),
            case.tokens,
            sms.unwrap_or(0),
        ))
    }
}
