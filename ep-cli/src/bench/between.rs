//! The ranks of `epforge bench --nodes`: all in this process, or those of one node, or one.

use std::sync::Arc;

use ep_runtime::group::Group;
use ep_runtime::host::Programs;
use ep_runtime::join::Member;
use ep_runtime::net::{Carrier, Fabric, NetOptions, ResidentOptions};

use super::request::{Options, Request};
use super::talk::Talk;
use super::{found_gpus, nodes, survive};
use crate::failure::Failure;
use crate::machine::{Machine, Ranks, warn};
use crate::problem::no_machine;
use crate::processes;

/// The ranks that this process runs.
enum Place<'a> {
    /// All, over cards that are kernels. None: over models of cards, in one emulator.
    All(Option<&'a ResidentOptions>),
    /// Those of one node, over libfabric.
    Node(&'a NetOptions),
    /// One.
    Rank(&'a Carrier),
}

/// Times calls between nodes.
pub(super) fn run(options: &Options, mut talk: Talk<'_>) -> Result<(), Failure> {
    let Some((nodes, over)) = options.nodes()? else { return Ok(()) };
    let found = match options.backend {
        Machine::Host => Some(0),
        Machine::Gpu => found_gpus(&mut talk)?,
    };
    let Some(found) = found else { return Ok(()) };
    let request = options.request(found)?;
    let (place, count) = match &over {
        Some(over) if options.processes => (Place::Rank(over), request.gpus.ranks),
        Some(Carrier::Libfabric(net)) => (Place::Node(net), nodes),
        Some(Carrier::Card(cards)) => (Place::All(Some(cards)), 1),
        Some(Carrier::Ibgda(_)) | None => (Place::All(None), 1),
    };
    if count > 1 && !processes::is_member() {
        if let Some(Carrier::Libfabric(net)) = &over {
            // Report a missing library or provider once, before any process starts.
            let offers = Fabric::find().and_then(|fabric| fabric.offers(net.provider, None));
            offers.map_err(|error| Failure::Failed(error.to_string()))?;
        }
        return processes::spawn(count, options.kill);
    }
    let programs = match options.backend {
        Machine::Host => Some(Programs::find().map_err(no_machine)?),
        Machine::Gpu => None,
    };
    programs.iter().for_each(|programs| warn(programs, talk.err));
    let ranks = place.ranks(&request, nodes, programs.as_ref())?;
    talk.speaks = ranks.is_first();
    if let Some(killed) = options.kill {
        return survive::run(ranks, &request, options.kernels, killed, &mut talk);
    }
    nodes::Between { request, kernels: options.kernels, ranks, over, talk }.run()
}

impl Place<'_> {
    /// The ranks of this process and their group; in the emulator if there are `programs`.
    fn ranks(
        &self,
        request: &Request,
        nodes: usize,
        programs: Option<&Arc<Programs>>,
    ) -> Result<Ranks, Failure> {
        let (gpus, seed) = (&request.gpus, request.seed);
        let (ranks, each) = (gpus.ranks, gpus.ranks / nodes);
        match (self, programs) {
            (Place::All(_), Some(programs)) => {
                Ranks::on_host_over_cards(programs, ranks, nodes, seed)
            }
            (Place::All(cards), None) => {
                Ranks::over_cards(gpus, each, &cards.cloned().unwrap_or_default())
            }
            (Place::Node(net), programs) => {
                let (id, Member { rank: node, ranks: count }) = processes::place()?;
                if count != nodes || node >= nodes {
                    return Err(Failure::WrongUse(format!(
                        "RANK is {node} and WORLD_SIZE {count}, and {nodes} nodes have a process each"
                    )));
                }
                let local = node * each..(node + 1) * each;
                let join = |backend, options| {
                    Group::over_network(backend, options, &id, net, processes::DEADLINE)
                };
                match programs {
                    Some(programs) => Ranks::on_host_of_node(programs, (local, ranks), seed, join),
                    None => Ranks::of_node(gpus, local, join),
                }
            }
            (Place::Rank(over), Some(programs)) => {
                let store = processes::meet()?;
                Ranks::on_host_of_process(programs, &store, nodes, over, seed)
            }
            (Place::Rank(over), None) => Ranks::of_process(gpus, &processes::meet()?, nodes, over),
        }
    }
}
