//! Ends of one network in one process, which close together.
//!
//! Over `shm` the library lets ranks of one process access each other's queues directly. Other ends keep
//! sending to an end that has left until they have heard of it, so its endpoint stays until they have left
//! as well.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::endpoint::Endpoint;
use super::provider::Provider;

/// Ends of a network that are open, and endpoints of those that are not any more.
struct Ends<E> {
    open: usize,
    ended: Vec<E>,
}

/// Those of each network, by what its ranks are reached by.
struct Networks<E>(Mutex<BTreeMap<Vec<u8>, Ends<E>>>);

impl<E> Networks<E> {
    const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Ends<E>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, network: &[u8]) {
        let mut all = self.all();
        let new = || Ends { open: 0, ended: Vec::new() };
        all.entry(network.to_vec()).or_insert_with(new).open += 1;
    }

    fn keep(&self, network: &[u8], endpoint: E) {
        if let Some(ends) = self.all().get_mut(network) {
            ends.ended.push(endpoint);
        }
    }

    /// One end is no more; what may be closed by now.
    fn end(&self, network: &[u8]) -> Vec<E> {
        let mut all = self.all();
        let Some(ends) = all.get_mut(network) else { return Vec::new() };
        ends.open -= 1;
        if ends.open > 0 {
            return Vec::new();
        }
        all.remove(network).map(|ends| ends.ended).unwrap_or_default()
    }
}

static NETWORKS: Networks<Endpoint> = Networks::new();

/// One end, from before the first of its network can end.
pub(super) struct Together {
    /// None: it closes by itself.
    network: Option<Vec<u8>>,
}

impl Together {
    pub(super) fn new(provider: Provider, network: Vec<u8>) -> Together {
        let network = (provider == Provider::Shm).then_some(network);
        network.iter().for_each(|network| NETWORKS.begin(network));
        Together { network }
    }

    /// Closes the endpoint, at once or with the last one of its network.
    pub(super) fn end(self, endpoint: Endpoint) {
        if let Some(network) = &self.network {
            NETWORKS.keep(network, endpoint);
        }
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        self.network.iter().for_each(|network| drop(NETWORKS.end(network)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_of_a_network_close_with_the_last_one() {
        let networks = Networks::new();
        [b"one", b"one", b"two"].iter().for_each(|network| networks.begin(*network));
        networks.keep(b"one", 1);
        assert_eq!(networks.end(b"one"), []);
        networks.keep(b"two", 2);
        assert_eq!(networks.end(b"two"), [2]);
        // The last one has ended by a panic, and has left none.
        assert_eq!(networks.end(b"one"), [1]);
        assert!(networks.all().is_empty());
    }
}
