//! The device library, embedded in this crate: the headers that emitted kernels include.
//!
//! NVRTC gets these texts as headers in memory, so an installed program needs no folder of sources.

use std::sync::LazyLock;

use crate::jit::Key;

/// Embeds the headers of the given names.
macro_rules! headers {
    ($($name:literal),* $(,)?) => {
        &[$((
            concat!("ep/", $name, ".cuh"),
            include_str!(concat!("../templates/device/ep/", $name, ".cuh")),
        )),*]
    };
}

/// Every header as `(name, text)`; the name is the one in `#include <...>`.
pub const HEADERS: &[(&str, &str)] = headers![
    "as_words",
    "cast",
    "compute",
    "count",
    "direct",
    "each_slot",
    "ends",
    "few_slots",
    "ibgda",
    "made",
    "mover",
    "net",
    "net_peers",
    "net_rings",
    "net_slot_rows",
    "net_slots",
    "one_launch",
    "packed",
    "part_stages",
    "parts",
    "places",
    "presence",
    "ptx",
    "pull",
    "rings",
    "rows",
    "slot_rows",
    "slot_times",
    "slots",
    "sync",
    "wide",
    "words",
];

/// The digest of all names and texts. Programs with the same digest emit for the same library.
pub fn digest() -> Key {
    static DIGEST: LazyLock<Key> =
        LazyLock::new(|| Key::of(HEADERS.iter().flat_map(|(name, text)| [*name, *text])));
    *DIGEST
}

#[cfg(test)]
/// The members that `ep/sync.cuh` declares behind `head`.
pub(crate) fn members(head: &str) -> Vec<String> {
    members_of("ep/sync.cuh", head)
}

#[cfg(test)]
/// The lines of a header between `head` and the closing brace, without comments, each up to its
/// semicolon.
pub(crate) fn members_of(header: &str, head: &str) -> Vec<String> {
    let (_, text) = HEADERS.iter().find(|(name, _)| *name == header).unwrap();
    let start = text.find(head).unwrap_or_else(|| panic!("no `{head}` in {header}"));
    let lines = text[start..].lines().skip(1).take_while(|line| !line.starts_with('}'));
    let code = lines.map(|line| line.split("//").next().unwrap_or("").trim());
    let code = code.flat_map(|line| line.split_inclusive([';', ',']));
    let code = code.map(|part| part.trim().trim_end_matches([';', ',']).to_string());
    code.filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_list_is_the_folder() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("templates/device/ep");
        let mut files: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| format!("ep/{}", entry.unwrap().file_name().to_string_lossy()))
            .collect();
        files.sort();
        let names: Vec<&str> = HEADERS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, files);
    }

    #[test]
    fn headers_include_only_one_another() {
        for (name, text) in HEADERS {
            for line in text.lines().filter(|line| line.starts_with("#include")) {
                let known = HEADERS.iter().any(|(other, _)| line == format!("#include <{other}>"));
                assert!(known, "{name}: {line}");
            }
        }
    }
}
