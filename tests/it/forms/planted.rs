//! Bugs planted in the device library, of which runs against the meaning find every one.

use ep_runtime::device::HEADERS;
use ep_runtime::host::mutant::Mutant;

use super::run::Form;
use crate::usual;

/// Plants the bugs of `list` one by one. `run` says what is wrong in the calls of a seed, whose forms it
/// changes as it is told; one of so many seeds has to find each bug.
pub(super) fn all_are_found(
    list: &str,
    seeds: u64,
    run: impl Fn(&Mutant, u64, &dyn Fn(Form) -> Form) -> Result<(), String>,
) {
    if crate::host::programs().is_none() {
        return;
    }
    let all = Mutant::parse(list).expect("the list is read");
    for bug in &all {
        let (_, text) = HEADERS.iter().find(|(name, _)| *name == bug.file).expect("a header");
        let once = bug.edits.iter().all(|(old, _)| text.matches(old.as_str()).count() == 1);
        assert!(once, "the text of `{}` has moved", bug.name);
    }
    let mut missed = Vec::new();
    for bug in usual::some(all, 4) {
        let planted = |form: Form| form.planted(&bug);
        match (0..seeds).find_map(|seed| run(&bug, seed, &planted).err()) {
            Some(words) => assert!(!words.contains("does not compile"), "{}: {words}", bug.name),
            None => missed.push(bug.name),
        }
    }
    assert!(missed.is_empty(), "nothing finds that {}", missed.join("; that "));
}
