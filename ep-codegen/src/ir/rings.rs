//! Whom a ring joins: over which transports, and how many warps read each of its messages.

use super::{Action, Channel, PeerSet, Pipeline, Share, Transport, walk};

/// Whether a network carries a channel to some of its peers.
pub fn over_network(channel: &Channel) -> bool {
    channel.over.iter().any(|transport| *transport != Transport::Nvlink)
}

/// The peers for each of which a warp reads every message of a ring, in a selected pipeline: a role
/// `Role[peer]` that takes from all. `None`: one warp reads it.
pub fn readers<'a>(selected: &'a Pipeline, channel: &Channel) -> Option<&'a PeerSet> {
    let role = selected.roles.iter().find(|role| role.name == channel.to)?;
    let Share::Peer { set, .. } = &role.share else { return None };
    let mut takes_all = false;
    walk::stmts(&role.body, &mut |stmt| {
        takes_all |= matches!(&stmt.action, Action::Receive { channel: of, peer: None, .. }
            if *of == channel.name);
    });
    takes_all.then_some(set)
}
