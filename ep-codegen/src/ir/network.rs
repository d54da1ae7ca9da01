//! What carries a channel, and how many warps read each message of a ring.

use super::kind::Network;
use super::{Action, Channel, PeerSet, Pipeline, Share, Transport, WellKnown, walk};

/// What may carry every channel of a selected pipeline that speaks to a network, what is taken by itself
/// first; `None`: there is no such channel.
pub fn carriers(selected: &Pipeline) -> Option<Vec<Transport>> {
    let far: Vec<&Channel> =
        selected.channels.iter().filter(|channel| uses_network(selected, channel)).collect();
    let all_list = |carrier: &Transport| far.iter().all(|channel| channel.over.contains(carrier));
    let both = [Transport::Rdma, Transport::Ibgda];
    (!far.is_empty()).then(|| both.into_iter().filter(all_list).collect())
}

/// Whether a network carries a channel to some of its peers.
pub fn over_network(channel: &Channel) -> bool {
    channel.over.iter().any(|transport| *transport != Transport::Nvlink)
}

/// Whether the kernel speaks to a network for a channel: its kind and the shape say when.
pub fn uses_network(selected: &Pipeline, channel: &Channel) -> bool {
    let knows_nodes = || selected.has_number(WellKnown::LocalRanks);
    match channel.kind.traits().network {
        Network::Declared => over_network(channel),
        Network::ToFarNodes => over_network(channel) && knows_nodes(),
        Network::Never => false,
    }
}

/// The peers for each of which a warp reads every message of a ring, in a selected pipeline: a role
/// `Role[peer]` that takes from all. `None`: one warp reads it.
pub fn readers<'a>(selected: &'a Pipeline, channel: &Channel) -> Option<&'a PeerSet> {
    let role = selected.roles.iter().find(|role| role.name == channel.to)?;
    let Share::Peer { set, .. } = &role.share else { return None };
    let takes_all = walk::any_stmt(&role.body, &mut |stmt| {
        matches!(&stmt.action, Action::Receive { channel: of, peer: None, .. }
            if *of == channel.name)
    });
    takes_all.then_some(set)
}
