//! One result, as a line of JSON and as a row of a table.

use std::time::Duration;

use ep_runtime::Emitted;
use ep_runtime::buffer::{BufferOptions, BuiltIn, StandardPipeline};
use ep_runtime::group::Group;
use ep_verify::selftest::{Operation, Selftest, Timing};

use super::micros;
use crate::emit::kept_file;
use crate::failure::Failure;
use crate::json::{Object, Value};
use crate::problem::emit;

/// The texts that a buffer launches: digest, and the file of `generated/` that holds the same.
pub(super) struct Texts {
    all: Vec<(StandardPipeline, Text)>,
}

/// One of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Text {
    digest: String,
    file: Option<String>,
}

impl Texts {
    pub(super) fn of(options: &BufferOptions, group: &Group) -> Result<Texts, Failure> {
        let mut pipelines: Vec<StandardPipeline> =
            Operation::ALL.iter().map(|operation| operation.main_pipeline()).collect();
        pipelines.retain(|it| options.cached || *it != StandardPipeline::NvlDispatchCached);
        pipelines.dedup();
        let (ranks, arch) = (group.ranks(), group.backend().arch());
        let texts = emit(options, &pipelines, ranks, arch)?;
        let text = |(pipeline, emitted): (StandardPipeline, Emitted)| {
            let file = kept_file(&BuiltIn::entry(pipeline), &emitted)?;
            Ok((pipeline, Text { digest: emitted.digest(), file }))
        };
        let all = pipelines.into_iter().zip(texts).map(text);
        Ok(Texts { all: all.collect::<Result<Vec<_>, Failure>>()? })
    }

    /// The text of the kernel that moves the rows of an operation.
    pub(super) fn of_operation(&self, operation: Operation) -> Text {
        let main = operation.main_pipeline();
        let found = self.all.iter().find(|(pipeline, _)| *pipeline == main);
        found.map(|(_, text)| text.clone()).unwrap_or_default()
    }
}

/// One result and what it belongs to.
pub(super) struct Measured<'a> {
    pub(super) timing: &'a Timing,
    pub(super) test: &'a Selftest,
    /// The wire's own time for the same bytes, in the same run.
    pub(super) wire: Option<Duration>,
    /// The least time at the rates of the machine.
    pub(super) bound: Duration,
    pub(super) text: Text,
}

/// Titles of the rows.
pub(super) const TITLES: &str = "\
op               payload     via     mode  SMs        us   wire us  ratio  bound us        bytes  GB/s";

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
        let (us, wire) = (self.us()?, micros(self.wire?));
        (wire > 0.0).then(|| us / wire)
    }

    fn rate(&self) -> Option<f64> {
        self.us().filter(|us| *us > 0.0).map(|us| self.timing.bytes as f64 / us / 1e3)
    }

    pub(super) fn object(&self) -> Object {
        let Timing { operation, mode, sms, remote, bytes, .. } = self.timing;
        let options = self.test.buffer().options();
        Object::new()
            .with("op", operation.name())
            .with("mode", mode.name())
            .with("payload", self.payload())
            .with("cached", *operation == Operation::CachedDispatch)
            .with("via", options.via.name())
            .with("ranks", self.test.oracle().ranks())
            .with("tokens", options.tokens)
            .with("hidden", options.hidden)
            .with("topk", options.topk)
            .with("experts", options.experts)
            .with("sms", *sms)
            .with("remote_sms", *remote)
            .with("us", self.us().map(Value::Hundredths))
            .with("host_us", self.timing.host_time.map(micros).map(Value::Hundredths))
            .with("wire_us", self.wire.map(micros).map(Value::Hundredths))
            .with("ratio", self.ratio().map(Value::Hundredths))
            .with("bound_us", Value::Hundredths(micros(self.bound)))
            .with("bytes", *bytes)
            .with("gb_per_s", self.rate().map(Value::Tenths))
            .with("cuda_digest", &self.text.digest)
            .with("cuda_file", self.text.file.clone())
    }

    pub(super) fn row(&self) -> String {
        let Timing { operation, mode, sms, bytes, .. } = self.timing;
        let shown = |value: Option<f64>, digits: usize| {
            value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
        };
        format!(
            "{:<16} {:<11} {:<7} {:<5} {sms:>3} {:>9} {:>9} {:>6} {:>9.1} {bytes:>12} {:>5}",
            operation.name(),
            self.payload(),
            self.test.buffer().options().via.name(),
            mode.name(),
            shown(self.us(), 1),
            shown(self.wire.map(micros), 1),
            shown(self.ratio(), 2),
            micros(self.bound),
            shown(self.rate(), 0),
        )
    }
}
