//! The strong accesses of the device library's lowest layer, as its twin for the host has them.

use std::collections::BTreeMap;

/// A function that does one strong access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Access {
    /// The function of `mutation.h` that does the same with other qualifiers.
    pub(super) with: &'static str,
    /// Whether it gives a value.
    pub(super) gives: bool,
    pub(super) order: String,
    pub(super) scope: String,
}

/// What the emulator's calls are in `mutation.h`.
const CALLS: [(&str, &str); 4] = [
    ("emu_load(", "ep::mutated_load"),
    ("emu_store(", "ep::mutated_store"),
    ("emu_atomic(EMU_ATOMIC_ADD,", "ep::mutated_add"),
    ("emu_atomic(EMU_ATOMIC_CAS,", "ep::mutated_compare_swap"),
];

/// Weaker orders than an order.
pub(super) fn weaker(order: &str) -> &'static [&'static str] {
    match order {
        "EMU_ACQ_REL" => &["EMU_ACQUIRE", "EMU_RELEASE"],
        "EMU_ACQUIRE" | "EMU_RELEASE" | "EMU_ENTRY" => &["EMU_RELAXED"],
        _ => &[],
    }
}

/// The scope that is next narrower.
pub(super) fn narrower(scope: &str) -> Option<&'static str> {
    match scope {
        "EMU_SYS" => Some("EMU_GPU"),
        "EMU_GPU" => Some("EMU_CTA"),
        _ => None,
    }
}

/// The accesses in the text of the twin, by the functions' names.
pub(super) fn accesses(twin: &str) -> BTreeMap<String, Access> {
    let mut all = BTreeMap::new();
    for function in twin.split("__device__ __forceinline__").skip(1) {
        let Some((head, body)) = function.split_once('{') else { continue };
        let body = body.split("\n}").next().unwrap_or(body);
        let name = head.split('(').next().and_then(|head| head.split_whitespace().last());
        let call = CALLS.iter().find(|(call, _)| body.contains(call));
        let qualifiers = body.rsplit(", ").next().and_then(|last| last.split_once(" | "));
        let (Some(name), Some((_, with)), Some((order, scope))) = (name, call, qualifiers) else {
            continue;
        };
        let scope = scope.split(" <<").next().unwrap_or(scope);
        let gives = !head.contains(" void ");
        let access = Access { with, gives, order: order.to_owned(), scope: scope.to_owned() };
        all.insert(name.to_owned(), access);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_twin_is_read() {
        let all = accesses(include_str!("../../templates/host/ep/ptx.cuh"));
        let of = |name: &str| {
            let access = &all[name];
            (access.with, access.order.as_str(), access.scope.as_str())
        };
        assert_eq!(of("store_release_sys"), ("ep::mutated_store", "EMU_RELEASE", "EMU_SYS"));
        assert_eq!(of("fetch_add_acq_rel_gpu"), ("ep::mutated_add", "EMU_ACQ_REL", "EMU_GPU"));
        assert_eq!(
            of("compare_swap_shared"),
            ("ep::mutated_compare_swap", "EMU_ACQ_REL", "EMU_CTA")
        );
        assert_eq!(of("load_acquire_gpu"), ("ep::mutated_load", "EMU_ACQUIRE", "EMU_GPU"));
        assert!(all["fetch_add_release_gpu"].gives && !all["add_release_sys"].gives);
        assert!(!all.contains_key("tma_load"));
    }
}
