//! The least time that rows take over a network: plain puts of as many bytes, which nobody counts or reads.

use std::sync::Arc;
use std::time::Duration;

use ep_runtime::Emitted;
use ep_runtime::args::{Bindings, Rows};
use ep_runtime::backend::Stream;
use ep_runtime::error::CallError;
use ep_runtime::group::{Group, GroupKernel, control_bytes};
use ep_runtime::handwritten::HandwrittenKernel;
use ep_runtime::ir::Transport;
use ep_runtime::memory::Window;
use ep_runtime::plan::Plan;

/// The kernel.
pub(crate) const TEXT: &str = include_str!("puts.cu");

const WARMUP: u32 = 3;
const ROUNDS: u32 = 10;

/// Rows of one size, from every rank to each rank of other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Puts {
    /// Rows to each far rank.
    pub rows: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Rows of a signal, at most 31.
    pub run: usize,
}

impl Puts {
    /// The kernel's plan, with what it needs of a network.
    fn plan(&self, group: &Group) -> Plan {
        let made = HandwrittenKernel {
            name: "Puts",
            entry: "puts_rows",
            numbers: &["ranks", "node_ranks", "rows", "row_bytes", "run"],
            pointers: &["net"],
            wide_numbers: &[],
            threads: 256,
            shared_bytes: 0,
            window_bytes: 0,
            blocks_min: 1,
            waits: true,
            enters: true,
        };
        let rows = self.rows * (group.ranks() + 1);
        Plan {
            network_bytes: (rows * self.row_bytes) as i64,
            network_counters: 1,
            carrier: Some(match group.writes_to_cards() {
                true => Transport::Ibgda,
                false => Transport::Rdma,
            }),
            ..made.plan(group.backend().arch())
        }
    }

    /// Mean time of a call on so many SMs over the network of the group, that of the slowest rank. None where nothing
    /// runs by itself.
    pub fn time(&self, group: &Group, sms: u32) -> Result<Option<Duration>, CallError> {
        let (backend, plan) = (group.backend(), self.plan(group));
        let window = Arc::new(Window::new(backend, control_bytes(&plan))?);
        let network = group.open_network(&[&plan])?;
        let emitted = Emitted { cuda: TEXT.to_string(), plan };
        let kernel = GroupKernel::prepare(group, &window, 0, &emitted)?;
        let clocks = group
            .local()
            .map(|rank| Ok((rank, backend.create_event(rank)?, backend.create_event(rank)?)));
        let clocks = clocks.collect::<Result<Vec<_>, CallError>>()?;
        let rounds = if backend.runs_alone() { WARMUP + ROUNDS } else { 2 };
        for round in 0..rounds {
            for (rank, begin, _) in clocks.iter().filter(|_| round == WARMUP) {
                backend.record(*rank, Stream::OWN, begin)?;
            }
            for (index, rank) in group.local().enumerate() {
                let net = network.as_ref().map_or(0, |network| network.address(0, index));
                let mut bindings = Bindings::new();
                bindings
                    .number("ranks", group.ranks() as i64)
                    .number("node_ranks", (group.ranks() / group.nodes()) as i64)
                    .number("rows", self.rows as i64)
                    .number("row_bytes", self.row_bytes as i64)
                    .number("run", self.run as i64)
                    .tensor("net", Rows::new(net, 1));
                kernel.launch(rank, Stream::OWN, sms, &bindings)?;
            }
        }
        for (rank, _, end) in &clocks {
            backend.record(*rank, Stream::OWN, end)?;
        }
        group.local().try_for_each(|rank| group.sync(rank))?;
        let mut slowest = None;
        for (rank, begin, end) in clocks {
            if backend.runs_alone() {
                slowest = slowest.max(Some(backend.elapsed(rank, &begin, &end)? / ROUNDS));
            }
            backend.destroy_event(rank, begin)?;
            backend.destroy_event(rank, end)?;
        }
        let Some(slowest) = slowest else { return Ok(None) };
        let slowest = u64::try_from(slowest.as_nanos()).unwrap_or(u64::MAX);
        let all = group.gather("compare plain puts", slowest)?;
        Ok(all.into_iter().max().map(Duration::from_nanos))
    }
}
