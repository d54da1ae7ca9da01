//! Names of the declaration that would meet one another, or the names of the generator, in the text.

use super::Refusal;
use crate::ir::counting::{Counting, counted, has_last};
use crate::ir::naming::{camel, constant, snake};
use crate::ir::params::params;
use crate::ir::parts::meta_sources;
use crate::ir::{Channel, Message, Pipeline, Source, walk};
use crate::schedule::limit::Limit;

/// What `Cfg` and the kernel hold beside what is declared.
const OF_TOP: &[&str] = &["kThreads", "kSequences", "kSharedBytes"];
const OF_COUNTED: &[&str] = &["kCount", "kInShared", "kSums"];
const OF_MESSAGE: &[&str] = &["kRowBytes", "kMetaBytes"];
/// What a channel adds to the struct that it shares with a message of its name.
const OF_CHANNEL: &[&str] = &[
    "kAgreed",
    "kArrivals",
    "kAsWords",
    "kChannel",
    "kChunk",
    "kClaims",
    "kClosed",
    "kClosers",
    "kCome",
    "kCounters",
    "kCounts",
    "kDepth",
    "kEpochs",
    "kFewTokens",
    "kFlags",
    "kHead",
    "kHeader",
    "kHeaderWords",
    "kHeadersIn",
    "kHeadersOut",
    "kIbgda",
    "kInbox",
    "kKeys",
    "kMeta",
    "kMetaStride",
    "kNear",
    "kNodeRanks",
    "kOutbox",
    "kParts",
    "kPassed",
    "kPeers",
    "kRail",
    "kReaders",
    "kReady",
    "kReleased",
    "kRetired",
    "kRoles",
    "kRowStride",
    "kSent",
    "kShared",
    "kSkipsAbsent",
    "kSlotBytes",
    "kSlots",
    "kSourceStride",
    "kStored",
    "kStripes",
    "kTail",
    "kTaken",
    "kTakesWords",
    "kTurns",
    "kUnitBytes",
    "kWholeRowBytes",
    "kWordRowBytes",
    "kWords",
];
const STRUCTS: &[&str] = &["Args", "Cfg", "Counted", "Smem"];
const OF_KERNEL: &[&str] = &["args", "block", "blocks", "call", "smem", "team", "warp"];
/// What it holds beside these where its last block does what is left.
const OF_LAST: &[&str] = &["last", "store"];

/// Names of a pipeline that the text would give to two things.
pub(super) fn check(ir: &Pipeline) -> Result<(), Refusal> {
    Names { ir }.check()
}

struct Names<'a> {
    ir: &'a Pipeline,
}

impl Names<'_> {
    fn check(&self) -> Result<(), Refusal> {
        let arguments = params(self.ir).0.into_iter().map(|param| param.name);
        self.each_once("arguments of the kernel", &[], arguments)?;
        let dims = self.ir.dims.iter().map(|dim| constant(&dim.name));
        let tunes = self.ir.tunes.iter().map(|tune| constant(&tune.name));
        self.each_once("numbers of the kernel", OF_TOP, dims.chain(tunes))?;
        for message in &self.ir.messages {
            self.check_fields(message)?;
        }
        let summed = counted(self.ir).into_iter().filter(|(_, kind)| *kind == Counting::Summed);
        let summed = summed.map(|(tensor, _)| constant(&tensor.name));
        self.each_once("numbers of its counters", OF_COUNTED, summed)?;
        let roles = self.ir.roles.iter().map(|role| role.name.clone());
        let messages = self.ir.messages.iter().map(|message| message.name.clone());
        // A channel may share the struct of its message.
        let channels = self.ir.channels.iter().map(|channel| camel(&channel.name));
        let own = channels.filter(|name| !self.ir.messages.iter().any(|it| it.name == *name));
        let words = walk::awaited_words(self.ir);
        let numbers = words.iter().map(|tensor| constant(&tensor.name));
        self.each_once("numbers of its words", &[], numbers)?;
        let mut structs = STRUCTS.to_vec();
        structs.extend((!words.is_empty()).then_some("Words"));
        self.each_once("structs", &structs, roles.chain(messages).chain(own))?;
        let functions = self.ir.roles.iter().map(|role| snake(&role.name));
        let own =
            if has_last(self.ir) { [OF_KERNEL, OF_LAST].concat() } else { OF_KERNEL.to_vec() };
        self.each_once("names in the kernel", &own, functions)
    }

    fn check_fields(&self, message: &Message) -> Result<(), Refusal> {
        let sources = meta_sources(self.ir, message);
        let fields = sources.iter().flat_map(|source| {
            let name = constant(&source.name);
            [format!("{name}Count"), name]
        });
        let shares = |channel: &Channel| camel(&channel.name) == message.name;
        let mut own = OF_MESSAGE.to_vec();
        if self.ir.channels.iter().any(shares) {
            own.extend(OF_CHANNEL);
        }
        self.each_once(&format!("numbers of the message `{}`", message.name), &own, fields)
    }

    fn each_once(
        &self,
        what: &str,
        own: &[&str],
        names: impl Iterator<Item = String>,
    ) -> Result<(), Refusal> {
        let mut seen: Vec<String> = own.iter().map(|name| name.to_string()).collect();
        for name in names {
            // The copies of an `up to n` tensor are one array.
            if name.contains('[') && !name.ends_with("[0]") {
                continue;
            }
            let name = name.trim_end_matches("[0]").to_string();
            if seen.contains(&name) {
                let at = Source { line: 0, text: self.ir.name.clone() };
                let why = Limit::OneName.of(&[what, &name]);
                return Err(Refusal { at, why });
            }
            seen.push(name);
        }
        Ok(())
    }
}
