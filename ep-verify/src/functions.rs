//! Functions of the device library, called over the ranges of their arguments and compared with plain
//! answers: what no call of a pipeline comes to, or would not show.

mod counts;
mod direct_ends;
mod lone_net;
mod lone_rings;
mod made;
mod moves;
mod net_ends;
mod net_queues;
mod net_rings;
mod net_slot_rows;
mod net_slots;
mod once;
mod once_words;
mod packed;
mod played_rings;
mod presences;
mod puts;
mod rings;
mod slot_ends;
mod slots;
mod sources;
mod values;
mod waits;
mod warps;
mod words;

use std::sync::Arc;

use ep_runtime::Emitted;
use ep_runtime::args::{Bindings, Rows};
use ep_runtime::backend::Stream;
use ep_runtime::error::CallError;
use ep_runtime::group::{Group, GroupKernel, control_bytes};
use ep_runtime::handwritten::HandwrittenKernel;
use ep_runtime::ir::Transport;
use ep_runtime::jit::Arch;
use ep_runtime::memory::{DeviceMemory, Window};
use ep_runtime::plan::Plan;

use crate::findings::Findings;
use crate::oracle::Differences;

/// The kernels.
const COUNTS_TEXT: &str = include_str!("functions/counts.cu");
const DIRECT_ENDS_TEXT: &str =
    concat!(include_str!("functions/given_up.cu"), include_str!("functions/direct_ends.cu"));
const LONE_RINGS_TEXT: &str = concat!(
    include_str!("functions/given_up.cu"),
    include_str!("functions/played_rings.cu"),
    include_str!("functions/lone_rings.cu")
);
const MADE_TEXT: &str = concat!(
    include_str!("functions/marks.cu"),
    include_str!("functions/cast_rows.cu"),
    include_str!("functions/made.cu")
);
const MOVES_TEXT: &str =
    concat!(include_str!("functions/marks.cu"), include_str!("functions/moves.cu"));
const NET_ENDS_TEXT: &str = concat!(
    include_str!("functions/given_up.cu"),
    include_str!("functions/lone_net.cu"),
    include_str!("functions/net_ends.cu")
);
const NET_QUEUES_TEXT: &str = concat!(
    include_str!("functions/given_up.cu"),
    include_str!("functions/lone_net.cu"),
    include_str!("functions/net_queues.cu")
);
const NET_RINGS_TEXT: &str =
    concat!(include_str!("functions/ring_ends.cu"), include_str!("functions/net_rings.cu"));
const NET_SLOT_ROWS_TEXT: &str =
    concat!(include_str!("functions/net_calls.cu"), include_str!("functions/net_slot_rows.cu"));
const NET_SLOTS_TEXT: &str =
    concat!(include_str!("functions/net_calls.cu"), include_str!("functions/net_slots.cu"));
const ONCE_TEXT: &str =
    concat!(include_str!("functions/once_ranks.cu"), include_str!("functions/once.cu"));
const ONCE_WORDS_TEXT: &str =
    concat!(include_str!("functions/given_up.cu"), include_str!("functions/once_words.cu"));
const PACKED_TEXT: &str = concat!(
    include_str!("functions/given_up.cu"),
    include_str!("functions/cast_rows.cu"),
    include_str!("functions/packed.cu")
);
const PRESENCES_TEXT: &str = include_str!("functions/presences.cu");
const PUTS_TEXT: &str = include_str!("functions/puts.cu");
const RINGS_TEXT: &str =
    concat!(include_str!("functions/ring_ends.cu"), include_str!("functions/rings.cu"));
const SLOT_ENDS_TEXT: &str =
    concat!(include_str!("functions/given_up.cu"), include_str!("functions/slot_ends.cu"));
const SLOTS_TEXT: &str = include_str!("functions/slots.cu");
const SOURCES_TEXT: &str = include_str!("functions/sources.cu");
const VALUES_TEXT: &str = include_str!("functions/values.cu");
const WAITS_TEXT: &str = include_str!("functions/waits.cu");
const WARPS_TEXT: &str = include_str!("functions/warps.cu");
const WORDS_TEXT: &str =
    concat!(include_str!("functions/given_up.cu"), include_str!("functions/words.cu"));

/// Numbers that a check may give.
const ROOM: usize = 1 << 15;

/// What a number is that nobody has written.
const UNTOUCHED: [u8; 8] = [0xa5; 8];

/// What some functions are called, and what they give.
type Check = (&'static str, fn() -> Vec<i64>);

/// A word with its epoch.
fn stamped(epoch: i64, value: i64) -> i64 {
    epoch << 32 | value
}

/// Numbers of memory that nobody else has written.
struct Sheet(Vec<i64>);

impl Sheet {
    fn new() -> Sheet {
        Sheet(Vec::new())
    }

    fn at(&mut self, place: usize) -> &mut i64 {
        if self.0.len() <= place {
            self.0.resize(place + 1, i64::from_le_bytes(UNTOUCHED));
        }
        &mut self.0[place]
    }

    fn set(&mut self, place: usize, value: i64) {
        *self.at(place) = value;
    }

    fn add(&mut self, place: usize, more: i64) {
        *self.at(place) += more;
    }

    /// One behind the other.
    fn put(&mut self, place: usize, values: impl IntoIterator<Item = i64>) {
        values.into_iter().enumerate().for_each(|(i, value)| self.set(place + i, value));
    }

    /// All of it as bytes, of which there are so many.
    fn bytes(&mut self, words: usize) -> Vec<u8> {
        self.at(words - 1);
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// Functions that one kernel calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FunctionSet {
    /// Those of one lane.
    Values,
    /// Functions of a warp, or of all warps of a role.
    Warps,
    /// Waits, and what blocks, calls and ranks share.
    Waits,
    /// Looks for ranks that do not answer.
    Presences,
    /// Counters of calls.
    Counts,
    /// Ends of rings in windows.
    Rings,
    /// Ends of rings that one warp has alone, among many ranks.
    LoneRings,
    /// Slots of keys.
    Slots,
    /// Ends of slots among many ranks.
    SlotEnds,
    /// Ends of direct channels among many ranks.
    DirectEnds,
    /// What a warp keeps of several sources.
    Sources,
    /// Messages in words.
    Words,
    /// Rows that a warp moves.
    Moves,
    /// Rows that a warp casts, sends and copies.
    Made,
    /// A dispatch in one launch.
    Once,
    /// Rows as words in a dispatch in one launch.
    OnceWords,
    /// Rows in pieces to receivers that pack them.
    Packed,
    /// Rows to other machines, by queues that the processor empties.
    Puts,
    /// Rows to other machines, by queues that the network card empties.
    CardPuts,
    /// Queues that nobody empties.
    NetQueues,
    /// Ends between nodes of many ranks.
    NetEnds,
    /// Ends of rings between nodes, by queues that the processor empties.
    NetRings,
    /// Ends of rings between nodes, by queues that the network card empties.
    CardRings,
    /// Slots of one record between nodes.
    NetSlots,
    /// Slots of rows between nodes, by queues that the processor empties.
    NetSlotRows,
    /// Slots of rows between nodes, by queues that the network card empties.
    CardSlotRows,
}

impl FunctionSet {
    /// All kernels.
    pub const ALL: [FunctionSet; 26] = [
        FunctionSet::Values,
        FunctionSet::Warps,
        FunctionSet::Waits,
        FunctionSet::Presences,
        FunctionSet::Counts,
        FunctionSet::Rings,
        FunctionSet::LoneRings,
        FunctionSet::Slots,
        FunctionSet::SlotEnds,
        FunctionSet::DirectEnds,
        FunctionSet::Sources,
        FunctionSet::Words,
        FunctionSet::Moves,
        FunctionSet::Made,
        FunctionSet::Once,
        FunctionSet::OnceWords,
        FunctionSet::Packed,
        FunctionSet::Puts,
        FunctionSet::CardPuts,
        FunctionSet::NetQueues,
        FunctionSet::NetEnds,
        FunctionSet::NetRings,
        FunctionSet::CardRings,
        FunctionSet::NetSlots,
        FunctionSet::NetSlotRows,
        FunctionSet::CardSlotRows,
    ];

    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            FunctionSet::Values => "values",
            FunctionSet::Warps => "warps",
            FunctionSet::Waits => "waits",
            FunctionSet::Presences => "presences",
            FunctionSet::Counts => "counts",
            FunctionSet::Rings => "rings",
            FunctionSet::LoneRings => "rings of many ranks",
            FunctionSet::Slots => "slots",
            FunctionSet::SlotEnds => "ends of slots",
            FunctionSet::DirectEnds => "ends of direct channels",
            FunctionSet::Sources => "sources",
            FunctionSet::Words => "words",
            FunctionSet::Moves => "moves",
            FunctionSet::Made => "casts and copies",
            FunctionSet::Once => "one launch",
            FunctionSet::OnceWords => "one launch as words",
            FunctionSet::Packed => "rows that are packed",
            FunctionSet::Puts => "puts",
            FunctionSet::CardPuts => "puts by cards",
            FunctionSet::NetQueues => "queues that nobody empties",
            FunctionSet::NetEnds => "ends between nodes of many ranks",
            FunctionSet::NetRings => "rings between nodes",
            FunctionSet::CardRings => "rings by cards",
            FunctionSet::NetSlots => "slots between nodes",
            FunctionSet::NetSlotRows => "slots of rows between nodes",
            FunctionSet::CardSlotRows => "slots of rows by cards",
        }
    }

    /// The text of its kernel, and the kernel's name.
    pub fn text(self) -> (&'static str, &'static str) {
        match self {
            FunctionSet::Values => (VALUES_TEXT, "values_of"),
            FunctionSet::Warps => (WARPS_TEXT, "warps_of"),
            FunctionSet::Waits => (WAITS_TEXT, "waits_of"),
            FunctionSet::Presences => (PRESENCES_TEXT, "presences_of"),
            FunctionSet::Counts => (COUNTS_TEXT, "counts_of"),
            FunctionSet::Rings => (RINGS_TEXT, "rings_of"),
            FunctionSet::LoneRings => (LONE_RINGS_TEXT, "lone_rings_of"),
            FunctionSet::Slots => (SLOTS_TEXT, "slots_of"),
            FunctionSet::SlotEnds => (SLOT_ENDS_TEXT, "slot_ends_of"),
            FunctionSet::DirectEnds => (DIRECT_ENDS_TEXT, "direct_ends_of"),
            FunctionSet::Sources => (SOURCES_TEXT, "sources_of"),
            FunctionSet::Words => (WORDS_TEXT, "words_of"),
            FunctionSet::Moves => (MOVES_TEXT, "moves_of"),
            FunctionSet::Made => (MADE_TEXT, "made_of"),
            FunctionSet::Once => (ONCE_TEXT, "once_of"),
            FunctionSet::OnceWords => (ONCE_WORDS_TEXT, "once_words_of"),
            FunctionSet::Packed => (PACKED_TEXT, "packed_of"),
            FunctionSet::Puts | FunctionSet::CardPuts => (PUTS_TEXT, "puts_of"),
            FunctionSet::NetQueues => (NET_QUEUES_TEXT, "net_queues_of"),
            FunctionSet::NetEnds => (NET_ENDS_TEXT, "net_ends_of"),
            FunctionSet::NetRings | FunctionSet::CardRings => (NET_RINGS_TEXT, "net_rings_of"),
            FunctionSet::NetSlots => (NET_SLOTS_TEXT, "net_slots_of"),
            FunctionSet::NetSlotRows | FunctionSet::CardSlotRows => {
                (NET_SLOT_ROWS_TEXT, "net_slot_rows_of")
            }
        }
    }

    /// Its checks: the position of one is its number in the kernel.
    fn checks(self) -> &'static [Check] {
        match self {
            FunctionSet::Values => &values::CHECKS,
            FunctionSet::Warps => &warps::CHECKS,
            FunctionSet::Waits => &waits::CHECKS,
            FunctionSet::Presences => &presences::CHECKS,
            FunctionSet::Counts => &counts::CHECKS,
            FunctionSet::Rings => &rings::CHECKS,
            FunctionSet::LoneRings => &lone_rings::CHECKS,
            FunctionSet::Slots => &slots::CHECKS,
            FunctionSet::SlotEnds => &slot_ends::CHECKS,
            FunctionSet::DirectEnds => &direct_ends::CHECKS,
            FunctionSet::Sources => &sources::CHECKS,
            FunctionSet::Words => &words::CHECKS,
            FunctionSet::Moves => &moves::CHECKS,
            FunctionSet::Made => &made::CHECKS,
            FunctionSet::Once => &once::CHECKS,
            FunctionSet::OnceWords => &once_words::CHECKS,
            FunctionSet::Packed => &packed::CHECKS,
            FunctionSet::Puts | FunctionSet::CardPuts => &puts::CHECKS,
            FunctionSet::NetQueues => &net_queues::CHECKS,
            FunctionSet::NetEnds => &net_ends::CHECKS,
            FunctionSet::NetRings | FunctionSet::CardRings => &net_rings::CHECKS,
            FunctionSet::NetSlots => &net_slots::CHECKS,
            FunctionSet::NetSlotRows | FunctionSet::CardSlotRows => &net_slot_rows::CHECKS,
        }
    }

    /// How many ranks it needs: some wait for a word of the other one.
    pub fn ranks(self) -> usize {
        match self {
            FunctionSet::Waits | FunctionSet::Presences => 2,
            FunctionSet::Rings => rings::RANKS,
            FunctionSet::Slots => slots::RANKS,
            FunctionSet::Words => words::RANKS,
            FunctionSet::Puts | FunctionSet::CardPuts => puts::RANKS,
            FunctionSet::NetRings | FunctionSet::CardRings => net_rings::RANKS,
            FunctionSet::NetSlots => net_slots::RANKS,
            FunctionSet::NetSlotRows | FunctionSet::CardSlotRows => net_slot_rows::RANKS,
            _ => 1,
        }
    }

    /// Whether some wait for a rank that does not answer.
    fn has_waits_that_run_out(self) -> bool {
        use FunctionSet::*;
        matches!(
            self,
            Slots
                | SlotEnds
                | DirectEnds
                | Words
                | Once
                | OnceWords
                | Packed
                | LoneRings
                | NetQueues
                | NetEnds
        )
    }

    /// What carries rows to its other ranks, if that is a network.
    fn carrier(self) -> Option<Transport> {
        match self {
            FunctionSet::Puts
            | FunctionSet::NetRings
            | FunctionSet::NetSlots
            | FunctionSet::NetSlotRows => Some(Transport::Rdma),
            FunctionSet::CardPuts | FunctionSet::CardRings | FunctionSet::CardSlotRows => {
                Some(Transport::Ibgda)
            }
            _ => None,
        }
    }

    /// Its kernel for one architecture, and the network that this takes.
    pub fn plan(self, arch: Arch) -> Plan {
        let plan = self.kernel().plan(arch);
        let (network_bytes, network_counters) = match self {
            FunctionSet::Puts | FunctionSet::CardPuts => (puts::DATA_BYTES, puts::COUNTERS),
            FunctionSet::NetRings | FunctionSet::CardRings => {
                (net_rings::DATA_BYTES, net_rings::COUNTERS)
            }
            FunctionSet::NetSlots => (net_slots::DATA_BYTES, net_slots::COUNTERS),
            FunctionSet::NetSlotRows | FunctionSet::CardSlotRows => {
                (net_slot_rows::DATA_BYTES, net_slot_rows::COUNTERS)
            }
            _ => return plan,
        };
        Plan { network_bytes, network_counters, carrier: self.carrier(), ..plan }
    }

    fn kernel(self) -> HandwrittenKernel {
        let (blocks_min, threads, shared_bytes, window_bytes) = match self {
            FunctionSet::Values => (1, 32, 0, 0),
            FunctionSet::Warps => (2, 128, 0, 0),
            FunctionSet::Waits => (2, 64, waits::SHARED_BYTES, waits::WINDOW_BYTES),
            FunctionSet::Presences => (2, 64, 0, presences::WINDOW_BYTES),
            FunctionSet::Counts => (2, 64, counts::SHARED_BYTES, counts::WINDOW_BYTES),
            FunctionSet::Rings => (2, 160, rings::SHARED_BYTES, rings::WINDOW_BYTES),
            FunctionSet::LoneRings => (1, 64, lone_rings::SHARED_BYTES, lone_rings::WINDOW_BYTES),
            FunctionSet::Slots => (2, 64, 0, slots::WINDOW_BYTES),
            FunctionSet::DirectEnds => (1, 96, 0, direct_ends::WINDOW_BYTES),
            FunctionSet::SlotEnds => (1, 32, 0, slot_ends::WINDOW_BYTES),
            FunctionSet::Sources => (1, 32, 0, sources::WINDOW_BYTES),
            FunctionSet::Words => (2, 32, 0, words::WINDOW_BYTES),
            FunctionSet::Moves => (1, 32, moves::SHARED_BYTES, 0),
            FunctionSet::Made => (1, 32, made::SHARED_BYTES, made::WINDOW_BYTES),
            FunctionSet::Once => (3, 64, once::SHARED_BYTES, once::WINDOW_BYTES),
            FunctionSet::OnceWords => (1, 32, once_words::SHARED_BYTES, once_words::WINDOW_BYTES),
            FunctionSet::Packed => (1, 32, packed::SHARED_BYTES, packed::WINDOW_BYTES),
            FunctionSet::Puts | FunctionSet::CardPuts => (2, 64, 0, 0),
            FunctionSet::NetQueues => (1, 64, 0, net_queues::WINDOW_BYTES),
            FunctionSet::NetEnds => (1, 32, net_ends::SHARED_BYTES, net_ends::WINDOW_BYTES),
            FunctionSet::NetRings | FunctionSet::CardRings => {
                (2, 64, net_rings::SHARED_BYTES, net_rings::WINDOW_BYTES)
            }
            FunctionSet::NetSlots => (2, 64, 0, net_slots::WINDOW_BYTES),
            FunctionSet::NetSlotRows | FunctionSet::CardSlotRows => {
                (2, 64, 0, net_slot_rows::WINDOW_BYTES)
            }
        };
        HandwrittenKernel {
            name: "Functions",
            entry: self.text().1,
            numbers: &["check"],
            pointers: if self.carrier().is_some() { &["out", "net"] } else { &["out"] },
            wide_numbers: &[],
            threads,
            shared_bytes,
            window_bytes,
            blocks_min,
            waits: true,
            enters: true,
        }
    }
}

/// Calls functions on all ranks of the group, and compares what they give. `network` is where the kernel
/// finds the network that its plan takes, one address for each local rank.
pub fn functions(
    group: &Group,
    which: FunctionSet,
    network: &[u64],
) -> Result<Findings, CallError> {
    let backend = group.backend();
    let plan = which.plan(backend.arch());
    if which.has_waits_that_run_out() {
        backend.let_waits_run_out(group.timeout());
    }
    let window = Arc::new(Window::new(backend, control_bytes(&plan))?);
    let blocks = u32::try_from(plan.blocks_min).unwrap_or(1);
    let emitted = Emitted { cuda: which.text().0.to_string(), plan };
    let kernel = GroupKernel::prepare(group, &window, 0, &emitted)?;
    let out = group.local().map(|rank| DeviceMemory::new(backend, rank, 8 * ROOM as u64));
    let out = out.collect::<Result<Vec<_>, _>>()?;
    let mut findings = Findings::default();
    for (number, (name, wanted)) in which.checks().iter().enumerate() {
        for ((index, rank), out) in group.local().enumerate().zip(&out) {
            out.write(0, &UNTOUCHED.repeat(ROOM))?;
            let mut bindings = Bindings::new();
            bindings.number("check", number as i64);
            bindings.tensor("out", Rows::new(out.address(), 1));
            network.get(index).map(|net| bindings.tensor("net", Rows::new(*net, 1)));
            kernel.launch(rank, Stream::OWN, blocks, &bindings)?;
        }
        group.local().try_for_each(|rank| group.sync(rank))?;
        for (rank, out) in group.local().zip(&out) {
            findings.add(format!("{name}, rank {rank}"), compare(out, &wanted())?);
        }
    }
    Ok(findings)
}

fn compare(out: &DeviceMemory, wanted: &[i64]) -> Result<Differences, CallError> {
    let mut bytes = vec![0; 8 * ROOM];
    out.read(0, &mut bytes)?;
    let mut found = Differences::default();
    found.note(wanted.len() <= ROOM, || format!("{} numbers, and room for {ROOM}", wanted.len()));
    let rest = std::iter::repeat(i64::from_le_bytes(UNTOUCHED));
    let given = bytes.chunks_exact(8).filter_map(|bytes| bytes.try_into().ok());
    let given = given.map(i64::from_le_bytes);
    for (at, (got, want)) in given.zip(wanted.iter().copied().chain(rest)).enumerate() {
        found.note(got == want, || format!("number {at} is {got}, not {want}"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use ep_runtime::backend::Backend;
    use ep_runtime::host::mutant::Mutant;
    use ep_runtime::host::{Build, HostBackend, HostOptions, Programs};
    use ep_runtime::net::{ModelNetwork, ModelOptions};

    use super::*;
    use crate::unordered::programs;

    fn found(
        programs: &Arc<Programs>,
        build: Build,
        which: FunctionSet,
    ) -> Result<Findings, CallError> {
        let options = HostOptions { build, ..HostOptions::new(which.ranks()) };
        let backend = HostBackend::new(programs, options).unwrap();
        let plan = which.plan(backend.arch());
        let network = ModelNetwork::of_plan(&backend, &plan, &ModelOptions::default()).unwrap();
        let network = network.as_ref().map(ModelNetwork::addresses).unwrap_or_default();
        functions(&backend.group().unwrap(), which, &network)
    }

    fn all_are_good(build: Build) {
        let Some(programs) = programs() else { return };
        for which in FunctionSet::ALL {
            let found = found(programs, build, which).unwrap_or_else(|error| panic!("{error:?}"));
            assert!(found.is_good(), "{which:?}: {found}");
        }
    }

    #[test]
    fn results_are_right() {
        all_are_good(Build::Plain);
    }

    #[test]
    fn results_are_right_without_a_race_at_length() {
        all_are_good(Build::Checked);
    }

    #[test]
    fn results_are_right_without_undefined_behavior_at_length() {
        all_are_good(Build::Sanitized);
    }

    /// Bugs, and a set that shows each.
    const BUGS: [(FunctionSet, &str); 17] = [
        (FunctionSet::Values, "== counts to 65\nin ep/compute.cuh\n- index < 64\n+ index <= 64\n"),
        (
            FunctionSet::Warps,
            "== one more\nin ep/rows.cuh\n- for (; at < last;\n+ for (; at <= last;\n",
        ),
        (
            FunctionSet::Presences,
            "== nobody learns who is absent\nin ep/presence.cuh\n- if (watch.absent) miss(group, site.peer);\n+ \n",
        ),
        (
            FunctionSet::Rings,
            "== a slot is filled a message early\nin ep/rings.cuh\n- End::of(moved_, ring) + 1 - Ring::kDepth\n+ End::of(moved_, ring) - Ring::kDepth\n",
        ),
        (
            FunctionSet::NetQueues,
            "== a descriptor is written where there is no room\nin ep/net.cuh\n- if (team_.stopped) return false;\n+ \n",
        ),
        (
            FunctionSet::NetEnds,
            "== a team that is stopped tells near ranks\nin ep/net_slots.cuh\n- if (tells && is_near(peer) && !team_.stopped) {\n+ if (tells && is_near(peer)) {\n",
        ),
        (
            FunctionSet::NetRings,
            "== each reader gives a chunk back\nin ep/net_rings.cuh\n- if (is_last(ring, chunk % kChunks)) free\n+ free\n",
        ),
        (
            FunctionSet::NetSlots,
            "== a slot is filled a call early\nin ep/net_slots.cuh\n- const u32 want = team_.epoch - Slots::kEpochs;\n+ const u32 want = team_.epoch - Slots::kEpochs - 1;\n",
        ),
        (
            FunctionSet::CardRings,
            "== the rest of a stripe is kept\nin ep/net_rings.cuh\n- kChunks) ? rest : 0;\n+ kChunks) ? 0 : 0;\n",
        ),
        (
            FunctionSet::Slots,
            "== warps do not agree\nin ep/slot_rows.cuh\n- if (done && key >= 0) value = agreed(key, value);\n+ \n",
        ),
        (
            FunctionSet::DirectEnds,
            "== rows are told before their other fields\nin ep/pull.cuh\n- store_relaxed_sys(&ready->meta, stamped(team.epoch, static_cast<u32>(meta_at / 128)));\n+ store_release_sys(&ready->rows, stamped(team.epoch, static_cast<u32>(rows_at / 128)));\n+ store_relaxed_sys(&ready->meta, stamped(team.epoch, static_cast<u32>(meta_at / 128)));\n",
        ),
        (
            FunctionSet::NetSlotRows,
            "== slots are given back a call early\nin ep/net_slot_rows.cuh\n- more = team_.epoch - *told;\n+ more = team_.epoch + 1 - *told;\n",
        ),
        (
            FunctionSet::CardSlotRows,
            "== counts are put before other lanes have written them\nin ep/slot_rows.cuh\n- __syncwarp();\n-         End::tell_closed([&](int peer) { return End::joins(peer); });\n+ End::tell_closed([&](int peer) { return End::joins(peer); });\n",
        ),
        (
            FunctionSet::LoneRings,
            "== rings of both groups of lanes are counted\nin ep/ends.cuh\n- if (g != ring / kLanes) continue;\n-             const bool own\n+ const bool own\n",
        ),
        (
            FunctionSet::Words,
            "== a word is not waited for\nin ep/slots.cuh\n- next += come ? kSharing : 0;\n+ next += kSharing;\n",
        ),
        (
            FunctionSet::Puts,
            "== not drained\nin ep/net.cuh\n- wait_counter(team_, site(Waiting::kDrained, end_), done);\n+ \n",
        ),
        (
            FunctionSet::CardPuts,
            "== not drained\nin ep/ibgda.cuh\n- if (!reached(seen, want)) return false;\n+ return true;\n",
        ),
    ];

    #[test]
    fn a_bug_is_found_at_length() {
        let Some(programs) = programs() else { return };
        for (which, bug) in BUGS {
            let bug = Mutant::parse(bug).unwrap().remove(0);
            let found = found(&programs.planted(&bug), Build::Checked, which);
            assert!(!found.is_ok_and(|found| found.is_good()), "{which:?}");
        }
    }
}
