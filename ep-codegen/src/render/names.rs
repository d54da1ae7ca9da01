//! Identifiers of the emitted text.

use crate::ir::Role;
use crate::plan::snake;

/// The Cfg struct of a role.
pub(super) fn role_cfg(role: &Role) -> String {
    format!("Cfg::{}", role.name)
}

/// The function of a role.
pub(super) fn role_fn(role: &Role) -> String {
    snake(&role.name)
}
