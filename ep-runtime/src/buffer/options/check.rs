//! What no buffer can be made for, said before anything is compiled.

use super::{BufferOptions, Via};
use crate::error::CallError;

/// Most handles, outputs and combine inputs, each: sizes of memory stay far below 64 bits.
const MOST_LIVE: usize = 4096;

/// Most tokens of a dispatch in one launch: `decode-dispatch` takes no more.
const ONE_LAUNCH_TOKENS: usize = 1024;

impl BufferOptions {
    /// Numbers that no pipeline checks.
    pub(in crate::buffer) fn check(&self, ranks: usize) -> Result<(), CallError> {
        let wrong = |what: String| Err(CallError::Mismatch { what });
        if self.live == 0 {
            return wrong("a buffer with 0 live outputs cannot make a call".to_string());
        }
        if self.live > MOST_LIVE {
            let live = self.live;
            return wrong(format!(
                "{live} live outputs are too many: a buffer can have at most {MOST_LIVE}"
            ));
        }
        let handles = self.handles();
        if handles == 0 || handles > MOST_LIVE {
            return wrong(format!("a buffer can have 1 to {MOST_LIVE} handles, not {handles}"));
        }
        let nodes = self.nodes;
        if nodes == 0 || !ranks.is_multiple_of(nodes) {
            return wrong(format!(
                "{ranks} ranks cannot form {nodes} nodes with the same number of ranks"
            ));
        }
        let (tokens, most) = (self.tokens, i32::MAX);
        if tokens.checked_mul(ranks).is_none_or(|rows| rows > most as usize) {
            return wrong(format!(
                "{tokens} tokens on each of {ranks} ranks are too many: all ranks together can have at \
                most {most}"
            ));
        }
        if self.alignment < 1 {
            return wrong(format!("counts cannot be aligned to {}", self.alignment));
        }
        let entries = (tokens * ranks).saturating_mul(self.topk);
        if self.alignment > 1 && entries.saturating_add(self.alignment as usize) > most as usize {
            let alignment = self.alignment;
            return wrong(format!(
                "counts of up to {entries} entries cannot be aligned to {alignment}: an aligned count \
                is at most {most}"
            ));
        }
        if self.tunes.nvl_combine.stripes.is_some() || self.tunes.node_combine.stripes.is_some() {
            return wrong("a combine needs the same `stripes` as its dispatch".to_string());
        }
        self.check_few(ranks).or_else(wrong)?;
        let Some(placement) = &self.placement else { return Ok(()) };
        let begin = placement.begin();
        let ascending = begin.windows(2).all(|pair| pair[0] <= pair[1]);
        let ends = (begin.first(), begin.last());
        if begin.len() != ranks + 1
            || !ascending
            || ends != (Some(&0), Some(&(self.experts as i32)))
        {
            return wrong(format!(
                "a placement of {} experts on {ranks} ranks needs {} ascending numbers from 0 to {}",
                self.experts,
                ranks + 1,
                self.experts
            ));
        }
        let most = self.local_experts(ranks) as i32;
        match begin.windows(2).map(|pair| pair[1] - pair[0]).max() {
            Some(local) if local > most => Err(CallError::TooLarge {
                what: "experts on one rank",
                need: local as u64,
                have: most as u64,
            }),
            _ => Ok(()),
        }
    }

    /// What is for few tokens alone.
    fn check_few(&self, ranks: usize) -> Result<(), String> {
        if self.push_combine == Some(true) {
            self.push_fits()?;
        }
        if self.one_launch == Some(true) { self.one_launch_fits(ranks) } else { Ok(()) }
    }

    /// Why no combine of such a buffer can store rows where their tokens are.
    pub(super) fn push_fits(&self) -> Result<(), String> {
        let (tokens, via) = (self.tokens, self.via.name());
        if self.is_far() {
            let nodes = self.nodes;
            return Err(format!(
                "`push_combine` works within one node, and this group has {nodes} nodes"
            ));
        }
        if (1..=ONE_LAUNCH_TOKENS).contains(&tokens) && self.via == Via::Direct {
            return Ok(());
        }
        Err(format!(
            "`push_combine` works with 1 to {ONE_LAUNCH_TOKENS} tokens and `via` direct, not with \
            {tokens} tokens and {via}"
        ))
    }

    /// Why no dispatch of such a buffer can count and send in one launch.
    pub(super) fn one_launch_fits(&self, ranks: usize) -> Result<(), String> {
        let (tokens, nodes) = (self.tokens, self.nodes);
        if self.is_far() {
            return Err(format!(
                "`one_launch` works within one node, and this group has {nodes} nodes"
            ));
        }
        if self.via != Via::Direct {
            return Err("`one_launch` works with `via` direct, not with `via` ring".to_string());
        }
        if !(1..=ONE_LAUNCH_TOKENS).contains(&tokens) {
            return Err(format!(
                "`one_launch` works with 1 to {ONE_LAUNCH_TOKENS} tokens, not {tokens}"
            ));
        }
        let (have, worst) = (self.capacity(ranks), tokens.saturating_mul(ranks));
        if have < worst {
            return Err(format!(
                "`one_launch` needs outputs of {worst} rows, {tokens} tokens of each of {ranks} ranks, \
                and these outputs have {have}"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `check` says to the options that `change` makes of good ones, on two ranks.
    fn said(change: impl FnOnce(&mut BufferOptions)) -> String {
        let mut options = BufferOptions::new(16, 64, 2, 8);
        change(&mut options);
        options.check(2).err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn numbers_without_a_sense_are_refused() {
        assert_eq!(said(|_| ()), "");
        assert_eq!(said(|it| it.live = 0), "a buffer with 0 live outputs cannot make a call");
        let text = "4097 live outputs are too many: a buffer can have at most 4096";
        assert_eq!(said(|it| it.live = 4097), text);
        let text = "a buffer can have 1 to 4096 handles, not 0";
        assert_eq!(said(|it| it.handles = Some(0)), text);
        assert!(said(|it| it.handles = Some(4097)).ends_with("not 4097"));
        assert_eq!(said(|it| it.alignment = 0), "counts cannot be aligned to 0");
        let far = said(|it| it.alignment = i32::MAX);
        assert!(
            far.ends_with("be aligned to 2147483647: an aligned count is at most 2147483647"),
            "{far}"
        );
        let most = "are too many: all ranks together can have at most 2147483647";
        assert_eq!(
            said(|it| it.tokens = 1 << 30),
            format!("1073741824 tokens on each of 2 ranks {most}")
        );
        assert!(said(|it| it.tokens = usize::MAX).contains(most));
        assert_eq!(said(|it| it.tokens = (1 << 30) - 1), "");
    }

    /// All kinds of calls that are for one node alone.
    #[test]
    fn nodes_are_equal_and_go_through_rings() {
        let text = "2 ranks cannot form 3 nodes with the same number of ranks";
        assert_eq!(said(|it| it.nodes = 3), text);
        assert_eq!(
            said(|it| it.nodes = 0),
            "2 ranks cannot form 0 nodes with the same number of ranks"
        );
        assert_eq!(said(|it| it.nodes = 2), "");
        let text = "`one_launch` works within one node, and this group has 2 nodes";
        assert_eq!(said(|it| (it.nodes, it.one_launch) = (2, Some(true))), text);
        let text = "`push_combine` works within one node, and this group has 2 nodes";
        assert_eq!(said(|it| (it.nodes, it.push_combine) = (2, Some(true))), text);
        let text = "a combine needs the same `stripes` as its dispatch";
        assert_eq!(said(|it| it.tunes.node_combine.stripes = Some(4)), text);
    }

    /// Asked for, it has to fit; left open, it is used where it does.
    #[test]
    fn one_launch_is_for_few_tokens_of_worst_case_outputs() {
        let asked = |change: &dyn Fn(&mut BufferOptions)| {
            said(|it| {
                it.one_launch = Some(true);
                change(it);
            })
        };
        assert_eq!(asked(&|_| ()), "");
        let text = "`one_launch` needs outputs of 32 rows, 16 tokens of each of 2 ranks, and these \
                outputs have 31";
        assert_eq!(asked(&|it| it.capacity = Some(31)), text);
        let range = "`one_launch` works with 1 to 1024 tokens, not";
        assert_eq!(asked(&|it| it.tokens = 1025), format!("{range} 1025"));
        assert_eq!(asked(&|it| it.tokens = 0), format!("{range} 0"));
        assert!(asked(&|it| it.via = Via::Ring).ends_with("not with `via` ring"));
        let used = |tokens: usize, change: &dyn Fn(&mut BufferOptions)| {
            let mut options = BufferOptions::new(tokens, 7168, 8, 288);
            change(&mut options);
            options.uses_one_launch(2)
        };
        assert!(used(1, &|_| ()) && used(512, &|_| ()));
        assert!(!used(1024, &|_| ()) && !used(4096, &|_| ()), "counting is the smaller part");
        assert!(used(1024, &|it| it.one_launch = Some(true)));
        assert!(!used(8, &|it| it.one_launch = Some(false)));
        assert!(!used(8, &|it| it.via = Via::Ring));
        assert!(!used(8, &|it| it.capacity = Some(15)));
        assert!(!used(0, &|_| ()));
    }

    #[test]
    fn a_combine_by_stores_is_for_few_tokens() {
        let asked = |tokens: usize, via: Via| {
            said(|it| (it.push_combine, it.tokens, it.via) = (Some(true), tokens, via))
        };
        assert_eq!(asked(1024, Via::Direct), "");
        let text = "`push_combine` works with 1 to 1024 tokens and `via` direct, not with 1025 tokens and \
                direct";
        assert_eq!(asked(1025, Via::Direct), text);
        assert!(asked(0, Via::Direct).ends_with("not with 0 tokens and direct"));
        assert!(asked(8, Via::Ring).ends_with("not with 8 tokens and ring"));
    }

    #[test]
    fn few_rows_go_back_by_stores() {
        let pushes = |tokens: usize, change: &dyn Fn(&mut BufferOptions)| {
            let mut options = BufferOptions::new(tokens, 7168, 8, 288);
            change(&mut options);
            options.pushes_back(2)
        };
        assert!(pushes(1, &|_| ()) && pushes(128, &|_| ()));
        assert!(!pushes(512, &|_| ()) && !pushes(4096, &|_| ()), "they fill the link");
        assert!(pushes(512, &|it| it.push_combine = Some(true)));
        assert!(!pushes(8, &|it| it.push_combine = Some(false)));
        assert!(!pushes(8, &|it| it.via = Via::Ring) && !pushes(0, &|_| ()));
    }

    #[test]
    fn a_combine_has_the_stripes_of_its_dispatch() {
        assert_eq!(said(|it| it.tunes.nvl_dispatch.stripes = Some(4)), "");
        let text = "a combine needs the same `stripes` as its dispatch";
        assert_eq!(said(|it| it.tunes.nvl_combine.stripes = Some(4)), text);
    }
}
