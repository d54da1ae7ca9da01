//! One result, as a line of JSON and as a row of a table.

use std::time::Duration;

use ep_runtime::Emitted;
use ep_runtime::buffer::{Buffer, BuiltIn, StandardPipeline};
use ep_runtime::group::Group;
use ep_verify::selftest::{FloorTimes, Operation, Selftest, Timing};

use super::micros;
use crate::emit::kept_file;
use crate::failure::Failure;
use crate::json::{Object, Value};
use crate::kernels::Kernels;
use crate::problem::emit;

/// The texts that a buffer launches: digest, and the file of `generated/` that holds the same.
pub(super) struct Texts {
    all: Vec<(StandardPipeline, Text)>,
    buffer: Buffer,
}

/// One of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Text {
    digest: String,
    file: Option<String>,
}

impl Texts {
    pub(super) fn of(buffer: &Buffer, group: &Group, kernels: Kernels) -> Result<Texts, Failure> {
        let options = buffer.options();
        let mains = Operation::ALL.iter().map(|operation| operation.main_pipeline(buffer));
        let mut pipelines: Vec<StandardPipeline> = mains.collect();
        pipelines.retain(|it| options.cached || *it != StandardPipeline::NvlDispatchCached);
        pipelines.dedup();
        let (ranks, arch) = (group.ranks(), group.backend().arch());
        let texts = emit(kernels.source(), options, &pipelines, ranks, arch)?;
        let text = |(pipeline, emitted): (StandardPipeline, Emitted)| {
            let file = kept_file(&BuiltIn::entry(pipeline), &emitted)?;
            Ok((pipeline, Text { digest: emitted.digest(), file }))
        };
        let all = pipelines.into_iter().zip(texts).map(text);
        Ok(Texts { all: all.collect::<Result<Vec<_>, Failure>>()?, buffer: buffer.clone() })
    }

    /// The text of the kernel that moves the rows of an operation.
    pub(super) fn of_operation(&self, operation: Operation) -> Text {
        let main = operation.main_pipeline(&self.buffer);
        let found = self.all.iter().find(|(pipeline, _)| *pipeline == main);
        found.map(|(_, text)| text.clone()).unwrap_or_default()
    }
}

/// What the same rows take at least, in the same run, where that could be timed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Least {
    /// The wire's own time for the same bytes.
    Wire(Option<Duration>),
    /// One kernel for each direction that knows all places, in a graph.
    Floor(Option<FloorTimes>),
}

impl Least {
    /// The time to set a result against.
    fn time(self) -> Option<Duration> {
        match self {
            Least::Wire(time) => time,
            Least::Floor(times) => times.map(|times| times.same),
        }
    }

    fn wire(self) -> Option<Duration> {
        match self {
            Least::Wire(time) => time,
            Least::Floor(_) => None,
        }
    }

    fn floor(self) -> Option<FloorTimes> {
        match self {
            Least::Wire(_) => None,
            Least::Floor(times) => times,
        }
    }

    /// Titles of the rows.
    pub(super) fn titles(self) -> &'static str {
        match self {
            Least::Wire(_) => WIRE_TITLES,
            Least::Floor(_) => FLOOR_TITLES,
        }
    }
}

/// One result and what it belongs to.
pub(super) struct Measured<'a> {
    pub(super) timing: &'a Timing,
    pub(super) test: &'a Selftest,
    /// The name of the routing.
    pub(super) routing: &'a str,
    pub(super) least: Least,
    /// The least time at the rates of the machine.
    pub(super) bound: Duration,
    pub(super) text: Text,
}

const WIRE_TITLES: &str = "\
op               payload     via     mode  tokens routing      SMs        us       p95       p99   wire us  ratio  bound us        bytes  GB/s";
const FLOOR_TITLES: &str = "\
op               payload     via     mode  tokens routing      SMs        us       p95       p99  floor us  ratio  bound us        bytes  GB/s";

impl Measured<'_> {
    fn payload(&self) -> &'static str {
        // A combine moves bf16 rows, whatever came.
        match self.timing.operation {
            Operation::Combine => "bf16",
            _ => self.test.buffer().options().payload.name(),
        }
    }

    fn us(&self) -> Option<f64> {
        self.timing.time.map(micros)
    }

    fn ratio(&self) -> Option<f64> {
        let (us, least) = (self.us()?, micros(self.least.time()?));
        (least > 0.0).then(|| us / least)
    }

    fn rate(&self) -> Option<f64> {
        self.us().filter(|us| *us > 0.0).map(|us| self.timing.bytes as f64 / us / 1e3)
    }

    pub(super) fn object(&self) -> Object {
        let Timing { operation, mode, sms, bytes, .. } = self.timing;
        let options = self.test.buffer().options();
        let spread = self.timing.spread;
        let floor = self.least.floor();
        let us = |time: Option<Duration>| time.map(micros).map(Value::Hundredths);
        Object::new()
            .with("op", operation.name())
            .with("mode", mode.name())
            .with("graph", self.timing.graph)
            .with("payload", self.payload())
            .with("cached", *operation == Operation::CachedDispatch)
            .with("via", options.via.name())
            .with("pipeline", operation.main_pipeline(self.test.buffer()).name())
            .with("ranks", self.test.oracle().ranks())
            .with("tokens", options.tokens)
            .with("hidden", options.hidden)
            .with("topk", options.topk)
            .with("experts", options.experts)
            .with("routing", self.routing)
            .with("sms", *sms)
            .with("us", us(self.timing.time))
            .with("p95_us", us(spread.map(|spread| spread.p95)))
            .with("p99_us", us(spread.map(|spread| spread.p99)))
            .with("host_us", us(self.timing.host_time))
            .with("wire_us", us(self.least.wire()))
            .with("floor_us", us(floor.map(|floor| floor.same)))
            .with("best_floor_us", us(floor.map(|floor| floor.best)))
            .with("best_floor_sms", floor.map(|floor| floor.best_sms))
            .with("ratio", self.ratio().map(Value::Hundredths))
            .with("bound_us", Value::Hundredths(micros(self.bound)))
            .with("bytes", *bytes)
            .with("gb_per_s", self.rate().map(Value::Tenths))
            .with("cuda_digest", &self.text.digest)
            .with("cuda_file", self.text.file.clone())
    }

    pub(super) fn row(&self) -> String {
        let Timing { operation, mode, sms, bytes, spread, .. } = self.timing;
        let shown = |value: Option<f64>, digits: usize| {
            value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
        };
        format!(
            "{:<16} {:<11} {:<7} {:<5} {:>6} {:<12} {sms:>3} {:>9} {:>9} {:>9} {:>9} {:>6} {:>9.1} {bytes:>12} \
             {:>5}",
            operation.name(),
            self.payload(),
            self.test.buffer().options().via.name(),
            mode.name(),
            self.test.buffer().options().tokens,
            self.routing,
            shown(self.us(), 1),
            shown(spread.map(|spread| micros(spread.p95)), 1),
            shown(spread.map(|spread| micros(spread.p99)), 1),
            shown(self.least.time().map(micros), 1),
            shown(self.ratio(), 2),
            micros(self.bound),
            shown(self.rate(), 0),
        )
    }
}
