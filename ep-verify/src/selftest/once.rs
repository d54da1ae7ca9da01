//! Single calls between nodes, for those who count what crosses a network meanwhile.

use ep_runtime::error::CallError;
use ep_runtime::group::Group;

use super::Selftest;
use super::timing::Operation;

/// What a call sends to other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Crossing {
    /// Rows of the rank that sends the most of them.
    pub busiest: usize,
    /// Rows of all ranks.
    pub all: usize,
}

impl Crossing {
    /// Of so many rows by each rank.
    pub(super) fn of(rows: impl Iterator<Item = usize>) -> Crossing {
        rows.fold(Crossing::default(), |sum, rows| Crossing {
            busiest: sum.busiest.max(rows),
            all: sum.all + rows,
        })
    }

    /// Those of all processes, each of which has `self` on its own ranks.
    pub(super) fn gathered(self, group: &Group) -> Result<Crossing, CallError> {
        let busiest = group.gather_once("compare rows between nodes", self.busiest as u64)?;
        let all = group.gather_once("count rows between nodes", self.all as u64)?;
        Ok(Crossing {
            busiest: busiest.into_iter().max().unwrap_or(0) as usize,
            all: all.into_iter().sum::<u64>() as usize,
        })
    }
}

impl Selftest {
    /// Makes one call on the usual inputs. `look` is called before and after it, while no call is in flight.
    pub fn once(
        &self,
        operation: Operation,
        look: &mut dyn FnMut() -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        let calls = self.rank_calls(operation)?;
        self.settle()?;
        look()?;
        let left = calls.iter().map(|own| self.begin_call(own, operation));
        let mut left = left.collect::<Result<Vec<_>, _>>()?;
        let mut ends = calls.iter().zip(&mut left);
        ends.try_for_each(|(own, left)| self.end_call(own, left, operation))?;
        self.settle()?;
        look()
    }

    /// The rows of a dispatch: a token goes once to each node that has any of its experts. A combine has as many.
    pub fn crossing(&self) -> Crossing {
        let (ranks, nodes) = (self.group.ranks(), self.group.nodes());
        let each = ranks / nodes;
        let goes = |source: usize, token: usize, node: usize| {
            (node * each..(node + 1) * each).any(|dest| self.oracle.goes_to(source, token, dest))
        };
        Crossing::of((0..ranks).map(|source| {
            let far = (0..nodes).filter(|node| *node != source / each);
            far.map(|node| {
                (0..self.case.tokens[source]).filter(|token| goes(source, *token, node)).count()
            })
            .sum()
        }))
    }
}
