//! Names of the declaration as the text and the command line spell them.

use super::Pipeline;

/// `local_experts` as `kLocalExperts`.
pub fn constant(name: &str) -> String {
    format!("k{}", camel(name))
}

/// Name in the emitted text of a number of the shape or a tune.
pub fn number_constant(name: &str) -> String {
    beside(OF_TOP, constant(name))
}

/// Name in the emitted text of a field of a message.
pub fn field_constant(name: &str) -> String {
    beside(OF_MESSAGE, constant(name))
}

/// Name in the emitted text of the first counter of a tensor.
pub fn counted_constant(tensor: &str) -> String {
    beside(OF_COUNTED, constant(tensor))
}

/// Name in the emitted text of the struct of a role, a message or a channel; `name` is in camel case.
pub fn struct_of(name: &str) -> String {
    beside(STRUCTS, name.to_string())
}

/// Name in the emitted text of the function of a role.
pub fn function_of(role: &str) -> String {
    beside(OF_KERNEL, snake(role))
}

/// `name`, changed where the text gives it to something of its own.
fn beside(taken: &[&str], name: String) -> String {
    if taken.contains(&name.as_str()) { format!("{name}_") } else { name }
}

/// What `Cfg` holds beside what is declared.
const OF_TOP: &[&str] = &["kThreads", "kSequences", "kSharedBytes"];
const OF_COUNTED: &[&str] = &["kCount", "kInShared", "kSums"];
/// What the struct of a message holds, and that of a channel, which may be the same.
#[rustfmt::skip] // A list of words.
const OF_MESSAGE: &[&str] = &[
    "kRowBytes", "kMetaBytes",
    "kAgreed", "kArrivals", "kAsWords", "kChannel", "kChunk", "kClaims", "kClosed", "kClosers",
    "kCome", "kCounters", "kCounts", "kDepth", "kEpochs", "kFewTokens", "kFlags", "kHead",
    "kHeader", "kHeaderWords", "kHeadersIn", "kHeadersOut", "kIbgda", "kInbox", "kKeys", "kMeta",
    "kMetaStride", "kNear", "kNodeRanks", "kOnce", "kOutbox", "kParts", "kPassed", "kPeers", "kRail",
    "kReaders", "kReady", "kReleased", "kRetired", "kRowStride", "kSent", "kShared",
    "kSkipsAbsent", "kSlotBytes", "kSlots", "kSourceStride", "kStored", "kStripes", "kTail",
    "kTaken", "kTakesWords", "kTurns", "kUnitBytes", "kWholeRowBytes", "kWordRowBytes", "kWords",
];
const STRUCTS: &[&str] = &["Args", "Cfg", "Counted", "Smem", "Words"];
/// Names in the kernel, and in its last block.
const OF_KERNEL: &[&str] =
    &["args", "block", "blocks", "call", "last", "smem", "store", "team", "warp"];

/// `local_experts` or `recv` as `LocalExperts` and `Recv`.
pub fn camel(name: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_uppercase().chain(letters).collect::<String>())
    };
    name.split('_').filter_map(word).collect()
}

/// `NvlDispatch` as `nvl-dispatch`.
pub fn kebab(name: &str) -> String {
    joined(name, '-')
}

/// `NvlDispatch` as `nvl_dispatch`.
pub fn snake(name: &str) -> String {
    joined(name, '_')
}

fn joined(name: &str, separator: char) -> String {
    let mut out = String::new();
    for (index, letter) in name.chars().enumerate() {
        if letter.is_uppercase() && index > 0 {
            out.push(separator);
        }
        out.extend(letter.to_lowercase());
    }
    out
}

/// Symbol of the kernel of a phase, or of a pipeline without phases.
pub fn kernel_of(ir: &Pipeline, phase: Option<&str>) -> String {
    match phase {
        Some(phase) => format!("{}_{}", snake(&ir.name), snake(phase)),
        None => snake(&ir.name),
    }
}
