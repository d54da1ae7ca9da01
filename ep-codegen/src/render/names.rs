//! Identifiers of the emitted text.

use crate::ir::{Channel, Role};
use crate::plan::{camel, snake};

/// The Cfg struct of a channel.
pub(super) fn channel_cfg(channel: &Channel) -> String {
    format!("Cfg::{}", camel(&channel.name))
}

/// The Cfg struct of a role.
pub(super) fn role_cfg(role: &Role) -> String {
    format!("Cfg::{}", role.name)
}

/// The function of a role.
pub(super) fn role_fn(role: &Role) -> String {
    snake(&role.name)
}
