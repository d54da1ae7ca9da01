//! Names of the declaration that would meet one another, or the names of the generator, in the text.

use super::Refusal;
use crate::ir::counting::{Counting, counted, has_last};
use crate::ir::naming::{camel, constant, snake};
use crate::ir::params::{Param, ParamKind, params};
use crate::ir::parts::meta_sources;
use crate::ir::{Channel, Message, Pipeline, Source, Tensor, walk};
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

/// What has a name that every kernel uses.
const OF_EVERY_KERNEL: &str = "a part of every kernel";

/// Names of a pipeline that the text would give to two things.
pub(super) fn check(ir: &Pipeline) -> Result<(), Refusal> {
    Names { ir }.check()
}

struct Names<'a> {
    ir: &'a Pipeline,
}

/// What a name is of, in words, and how the text spells it.
type Named = (String, String);

impl Names<'_> {
    fn check(&self) -> Result<(), Refusal> {
        let arguments = params(self.ir).0.into_iter().map(|param| (of_param(&param), param.name));
        self.each_once(&[], arguments)?;
        let dims = self.ir.dims.iter().map(|dim| &dim.name);
        let numbers = dims.chain(self.ir.tunes.iter().map(|tune| &tune.name));
        self.each_once(OF_TOP, numbers.map(|name| (the("number", name), constant(name))))?;
        for message in &self.ir.messages {
            self.check_fields(message)?;
        }
        let tensor = |tensor: &Tensor| (the("tensor", &tensor.name), constant(&tensor.name));
        let summed = counted(self.ir).into_iter().filter(|(_, kind)| *kind == Counting::Summed);
        self.each_once(OF_COUNTED, summed.map(|(summed, _)| tensor(summed)))?;
        let roles = self.ir.roles.iter().map(|role| (the("role", &role.name), role.name.clone()));
        let messages = self.ir.messages.iter();
        let messages = messages.map(|it| (the("message", &it.name), it.name.clone()));
        // A channel may share the struct of its message.
        let channels =
            self.ir.channels.iter().map(|it| (the("channel", &it.name), camel(&it.name)));
        let own = channels.filter(|(_, name)| !self.ir.messages.iter().any(|it| it.name == *name));
        let words = walk::awaited_words(self.ir);
        self.each_once(&[], words.iter().map(|word| tensor(word)))?;
        let mut structs = STRUCTS.to_vec();
        structs.extend((!words.is_empty()).then_some("Words"));
        self.each_once(&structs, roles.chain(messages).chain(own))?;
        let functions = self.ir.roles.iter().map(|it| (the("role", &it.name), snake(&it.name)));
        let own =
            if has_last(self.ir) { [OF_KERNEL, OF_LAST].concat() } else { OF_KERNEL.to_vec() };
        self.each_once(&own, functions)
    }

    fn check_fields(&self, message: &Message) -> Result<(), Refusal> {
        let sources = meta_sources(self.ir, message);
        let fields = sources.iter().flat_map(|source| {
            let (name, what) = (constant(&source.name), the("field", &source.name));
            [(what.clone(), format!("{name}Count")), (what, name)]
        });
        let shares = |channel: &Channel| camel(&channel.name) == message.name;
        let mut own = OF_MESSAGE.to_vec();
        if self.ir.channels.iter().any(shares) {
            own.extend(OF_CHANNEL);
        }
        self.each_once(&own, fields)
    }

    /// Refuses the first name that is one of `own`, or that two things have.
    fn each_once(&self, own: &[&str], names: impl Iterator<Item = Named>) -> Result<(), Refusal> {
        let mut seen: Vec<Named> =
            own.iter().map(|name| (OF_EVERY_KERNEL.to_string(), name.to_string())).collect();
        for (what, name) in names {
            // The copies of an `up to n` tensor are one array.
            if name.contains('[') && !name.ends_with("[0]") {
                continue;
            }
            let name = name.trim_end_matches("[0]").to_string();
            if let Some((other, _)) = seen.iter().find(|(_, known)| *known == name) {
                let at = Source { line: 0, text: self.ir.name.clone() };
                let why = Limit::OneName.of(&[&what, other, &name]);
                return Err(Refusal { at, why });
            }
            seen.push((what, name));
        }
        Ok(())
    }
}

fn the(what: &str, name: &str) -> String {
    format!("the {what} `{name}`")
}

/// What a member of `struct Args` is of.
fn of_param(param: &Param) -> String {
    match &param.kind {
        ParamKind::Group | ParamKind::Net => OF_EVERY_KERNEL.to_string(),
        ParamKind::Size => the("size", &param.name),
        ParamKind::Arg { .. } => the("arg", &param.name),
        ParamKind::Pointer { tensor, .. } => the("tensor", tensor),
        ParamKind::SizeFrom { size } | ParamKind::Capacity { size } => {
            format!("a number of {}", the("size", size))
        }
        ParamKind::Copies { tensor }
        | ParamKind::RowStride { tensor, .. }
        | ParamKind::ColumnStride { tensor, .. }
        | ParamKind::WindowOffset { tensor } => format!("a number of {}", the("tensor", tensor)),
        ParamKind::MetaOffset { channel } => format!("a number of {}", the("channel", channel)),
    }
}
