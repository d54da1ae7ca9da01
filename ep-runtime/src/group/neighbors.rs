//! Groups of this process that share GPUs: reports what the other groups do while the calls of one make no
//! progress.
//!
//! A group orders its own calls. A group does not know the calls of another group, whose kernels may keep its
//! own from becoming resident. If two ranks make the calls of two groups in different orders, both wait.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Shared;
use crate::timeouts::CallBeside;

/// All groups of this process.
static GROUPS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Makes a group known to the others.
pub(super) fn enlist(shared: &Arc<Shared>) {
    let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    groups.retain(|group| group.strong_count() > 0);
    groups.push(Arc::downgrade(shared));
}

/// The calls that ranks of other groups are in, on the GPUs of this group.
pub(super) fn calls_beside(own: &Arc<Shared>) -> Vec<CallBeside> {
    // Dropping a group frees memory, so none is dropped while the list is locked.
    let groups: Vec<Arc<Shared>> = {
        let groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
        groups.iter().filter_map(Weak::upgrade).collect()
    };
    let others = groups.iter().filter(|other| !Arc::ptr_eq(other, own) && share(own, other));
    others.flat_map(|other| other.calls_in_progress()).collect()
}

/// Whether some ranks of two groups run on one GPU.
fn share(one: &Shared, other: &Shared) -> bool {
    let devices =
        |of: &Shared| of.backend.local().filter_map(|rank| of.backend.device(rank)).collect();
    let (here, there): (Vec<i32>, Vec<i32>) = (devices(one), devices(other));
    Arc::ptr_eq(&one.backend, &other.backend) || here.iter().any(|device| there.contains(device))
}
