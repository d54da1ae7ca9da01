//! The tunes of a buffer's kernels.

use ep_codegen::spelling::nearest;

use crate::buffer::standard::StandardPipeline;
use crate::error::CallError;
use crate::pipelines::{
    decode_combine, decode_dispatch, node_combine, node_dispatch, nvl_combine, nvl_dispatch,
};

/// Tunes that differ from their default. Tunes of kernels or arms that a buffer does not have are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BufferTunes {
    /// Tunes of dispatches, fresh and cached, that take several launches.
    pub nvl_dispatch: nvl_dispatch::TuneOptions,
    /// Tunes of combines that pull rows or take them from rings. Stripes are those of the dispatch.
    pub nvl_combine: nvl_combine::TuneOptions,
    /// Tunes of dispatches in one launch.
    pub decode_dispatch: decode_dispatch::TuneOptions,
    /// Tunes of combines that push rows to the ranks of their tokens.
    pub decode_combine: decode_combine::TuneOptions,
    /// Tunes of dispatches between nodes, fresh and cached.
    pub node_dispatch: node_dispatch::TuneOptions,
    /// Tunes of combines between nodes. Stripes are those of the dispatch.
    pub node_combine: node_combine::TuneOptions,
}

impl BufferTunes {
    /// The tune `name` of a pipeline, for programs that read names from the command line.
    pub fn by_name(&mut self, pipeline: &str, name: &str) -> Result<&mut Option<i64>, CallError> {
        let wrong = |what: String| CallError::Mismatch { what };
        let (tune, names) = match pipeline {
            "nvl-dispatch" => (self.nvl_dispatch.by_name(name), nvl_dispatch::TuneOptions::NAMES),
            "nvl-combine" => (self.nvl_combine.by_name(name), nvl_combine::TuneOptions::NAMES),
            "decode-dispatch" => {
                (self.decode_dispatch.by_name(name), decode_dispatch::TuneOptions::NAMES)
            }
            "decode-combine" => {
                (self.decode_combine.by_name(name), decode_combine::TuneOptions::NAMES)
            }
            "node-dispatch" => {
                (self.node_dispatch.by_name(name), node_dispatch::TuneOptions::NAMES)
            }
            "node-combine" => (self.node_combine.by_name(name), node_combine::TuneOptions::NAMES),
            _ => {
                let known = StandardPipeline::ALL.map(StandardPipeline::name);
                let hint = did_you_mean(pipeline, &known);
                return Err(wrong(format!(
                    "`{name}` is set for `{pipeline}`, which has no tunes of a buffer; nvl-dispatch, \
                     nvl-combine, decode-dispatch, decode-combine, node-dispatch and node-combine \
                     have{hint}"
                )));
            }
        };
        tune.ok_or_else(|| {
            let (all, hint) = (names.join(", "), did_you_mean(name, names));
            wrong(format!("{pipeline} has no tune `{name}`; it has {all}{hint}"))
        })
    }
}

/// `; did you mean stages?`, or nothing if no name is near.
fn did_you_mean(name: &str, known: &[&str]) -> String {
    let near = nearest(name, known.iter().copied());
    near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunes_have_names_where_programs_read_them() {
        let mut tunes = BufferTunes::default();
        *tunes.by_name("nvl-combine", "depth").unwrap() = Some(32);
        *tunes.by_name("decode-dispatch", "early").unwrap() = Some(1);
        assert_eq!((tunes.nvl_combine.depth, tunes.decode_dispatch.early), (Some(32), Some(1)));
        assert_eq!(tunes.nvl_dispatch, Default::default());
        let mut said = |pipeline, name| tunes.by_name(pipeline, name).unwrap_err().to_string();
        let text = "decode-combine has no tune `sum_warp`; it has back_warps, sum_warps, words; did you \
                    mean `sum_warps`?";
        assert_eq!(said("decode-combine", "sum_warp"), text);
        let text = "`stages` is set for `nvl_dispatch`, which has no tunes of a buffer; nvl-dispatch, \
                    nvl-combine, decode-dispatch, decode-combine, node-dispatch and node-combine have; did you mean `nvl-dispatch`?";
        assert_eq!(said("nvl_dispatch", "stages"), text);
    }
}
