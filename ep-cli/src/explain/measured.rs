//! What calls of a pipeline in CUDA graphs were measured to take: by themselves, where all ranks share one GPU,
//! and with the wire between GPUs.

use std::collections::BTreeSet;
use std::fmt;

use ep_runtime::plan::{Plan, kebab};
use ep_verify::selftest::Operation;

use crate::failure::Failure;
use crate::json::{Object, Value};
use crate::plan_text::aligned;
use crate::results::{Timed, read};

/// Results of few tokens, a file for each machine.
const KEPT: [&str; 3] = [
    include_str!("../../results/h200-x2-decode.jsonl"),
    include_str!("../../results/h100-x1-decode.jsonl"),
    include_str!("../../results/h100-x2-decode.jsonl"),
];

/// Times of one pipeline, of one shape and with one number of SMs: at least one.
pub(super) struct Measured {
    calls: Vec<Timed>,
}

impl Measured {
    /// None for a pipeline that was not measured with rows of this kind.
    pub(super) fn of(plan: &Plan) -> Result<Option<Measured>, Failure> {
        let arm = plan.arms.iter().find(|(axis, _)| axis == "payload").map(|(_, arm)| kebab(arm));
        let results = KEPT.map(read).into_iter().collect::<Result<Vec<_>, _>>();
        let results = results.map_err(Failure::Failed)?.concat();
        Ok(Measured::among(results, &kebab(&plan.pipeline), arm.as_deref()))
    }

    /// The times of a pipeline among results, of the shape and the SMs of the first; any payload for a pipeline
    /// that has no such choice.
    fn among(results: Vec<Timed>, pipeline: &str, payload: Option<&str>) -> Option<Measured> {
        let mut calls: Vec<Timed> = Vec::new();
        for timed in results {
            let is_of_it = is_of_one_pipeline(&timed)
                && timed.pipeline == pipeline
                && payload.is_none_or(|payload| payload == timed.payload);
            let is_like = |own: &Timed| own.shape == timed.shape && own.sms == timed.sms;
            if is_of_it && calls.first().is_none_or(is_like) {
                calls.retain(|own| (&own.machine, own.tokens) != (&timed.machine, timed.tokens));
                calls.push(timed);
            }
        }
        (!calls.is_empty()).then_some(Measured { calls })
    }

    /// The machines, that of a single GPU first.
    fn machines(&self) -> Vec<&str> {
        let named = self.calls.iter().map(|call| (call.has_wire(), call.machine.as_str()));
        named.collect::<BTreeSet<_>>().into_iter().map(|(_, machine)| machine).collect()
    }

    fn call(&self, machine: &str, tokens: u64) -> Option<&Timed> {
        self.calls.iter().find(|call| call.machine == machine && call.tokens == tokens)
    }

    /// Titles, then a row for each number of tokens.
    fn table(&self) -> Vec<Vec<String>> {
        let machines = self.machines();
        let mut titles = vec!["tokens".to_owned()];
        for machine in &machines {
            titles.push(format!("on {machine}"));
            titles.push("floor there".to_owned());
        }
        let shown = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.2}"));
        let row = |tokens: u64| {
            let calls = machines.iter().map(|machine| self.call(machine, tokens));
            let times = calls.flat_map(|call| {
                [call.map(|call| call.us), call.and_then(|call| call.floor_us)].map(shown)
            });
            std::iter::once(tokens.to_string()).chain(times).collect()
        };
        let tokens: BTreeSet<u64> = self.calls.iter().map(|call| call.tokens).collect();
        std::iter::once(titles).chain(tokens.into_iter().map(row)).collect()
    }

    pub(super) fn objects(&self) -> Vec<Object> {
        let object = |call: &Timed| {
            let us = |us: Option<f64>| us.map(Value::Hundredths);
            Object::new()
                .with("machine", &call.machine)
                .with("has_wire", call.has_wire())
                .with("ranks", call.shape.ranks)
                .with("tokens", call.tokens)
                .with("hidden", call.shape.hidden)
                .with("topk", call.shape.topk)
                .with("experts", call.shape.experts)
                .with("sms", call.sms)
                .with("us", us(Some(call.us)))
                .with("floor_us", us(call.floor_us))
        };
        self.calls.iter().map(object).collect()
    }
}

/// Whether graphs of calls of a single pipeline followed one another, with tokens spread evenly.
fn is_of_one_pipeline(timed: &Timed) -> bool {
    timed.is_loop
        && timed.graph.is_some()
        && timed.is_even()
        && timed.operation != Operation::Both.name()
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = &self.calls[0];
        write!(f, "measured in CUDA graphs, us a call: {}", first.shape.words("rows"))?;
        if let Some(sms) = first.sms {
            write!(f, ", {sms} SMs")?;
        }
        write!(f, "\n{}", aligned(&self.table()))?;
        if self.calls.iter().any(|call| !call.has_wire()) {
            writeln!(f, "  the ranks share one GPU, so nothing goes over a wire")?;
        }
        writeln!(f, "  floor: a kernel that moves the same rows and counts nothing")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(tokens: u64, us: f64) -> String {
        format!(
            "{{\"op\":\"dispatch\",\"mode\":\"loop\",\"graph\":40,\"payload\":\"fp8\",\
             \"pipeline\":\"decode-dispatch\",\"ranks\":2,\"tokens\":{tokens},\"hidden\":7168,\"topk\":8,\
             \"experts\":288,\"routing\":\"even\",\"sms\":24,\"us\":{us},\"floor_us\":3.5}}\n"
        )
    }

    /// What is told of decode-dispatch with rows in FP8.
    fn told(results: &str) -> Option<Measured> {
        Measured::among(read(results).unwrap(), "decode-dispatch", Some("fp8"))
    }

    #[test]
    fn times_with_and_without_a_wire_stand_side_by_side() {
        let results = "{\"machine\":\"2 x NVIDIA H200\"}\n".to_owned()
            + &line(8, 7.25)
            + &line(32, 8.5)
            + "{\"machine\":\"1 x NVIDIA H200\"}\n"
            + &line(8, 5.25);
        let measured = told(&results).unwrap();
        assert_eq!(
            measured.to_string(),
            "measured in CUDA graphs, us a call: 2 ranks, rows of 7168 values, top-8 of 288, 24 SMs\n  \
             tokens  on 1 x NVIDIA H200  floor there  on 2 x NVIDIA H200  floor there\n  \
             8       5.25                3.50         7.25                3.50\n  \
             32      -                   -            8.50                3.50\n  \
             the ranks share one GPU, so nothing goes over a wire\n  \
             floor: a kernel that moves the same rows and counts nothing\n"
        );
        let objects: Vec<String> = measured.objects().iter().map(Object::to_string).collect();
        assert_eq!(objects.len(), 3);
        assert!(objects[2].contains("\"machine\":\"1 x NVIDIA H200\",\"has_wire\":false"));
        assert!(objects[2].contains("\"tokens\":8") && objects[2].contains("\"us\":5.25"));
    }

    #[test]
    fn without_a_time_on_one_gpu_there_is_no_word_of_it() {
        let told = told(&line(8, 7.25)).unwrap().to_string();
        assert!(!told.contains("one GPU"), "{told}");
    }

    #[test]
    fn only_times_of_this_pipeline_alone_in_graphs_count() {
        let us = |results: &str| told(results).map(|it| it.calls.iter().map(|it| it.us).collect());
        let good = line(8, 7.25);
        assert_eq!(us(&(good.clone() + &line(8, 7.5))), Some(vec![7.5]), "the later one");
        for (from, to) in [
            ("\"dispatch\"", "\"both\""),
            ("loop", "iso"),
            ("40", "null"),
            ("fp8", "bf16"),
            ("decode-dispatch", "nvl-dispatch"),
            ("even", "hot:0.9"),
        ] {
            assert_eq!(us(&good.replace(from, to)), None, "{to}");
        }
        for (from, to) in [("288", "256"), ("\"sms\":24", "\"sms\":16")] {
            let other = line(32, 9.0).replace(from, to);
            assert_eq!(us(&(good.clone() + &other)), Some(vec![7.25]), "{to}");
        }
    }

    #[test]
    fn a_pipeline_without_a_choice_of_payload_takes_any() {
        let results = read(&line(8, 7.25)).unwrap();
        assert!(Measured::among(results, "decode-dispatch", None).is_some());
    }
}
