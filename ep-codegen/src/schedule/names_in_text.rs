//! Names of the declaration that would meet one another, or the names of the generator, in the text.

use super::Refusal;
use crate::ir::counting::{Counting, counted};
use crate::ir::naming::{
    camel, constant, counted_constant, field_constant, function_of, number_constant, struct_of,
};
use crate::ir::params::{Param, ParamKind, params};
use crate::ir::parts::meta_sources;
use crate::ir::{Message, Pipeline, Source, walk};
use crate::schedule::limit::Limit;

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
        self.each_once(arguments)?;
        let dims = self.ir.dims.iter().map(|dim| &dim.name);
        let numbers = dims.chain(self.ir.tunes.iter().map(|tune| &tune.name));
        self.each_once(numbers.map(|name| (the("number", name), number_constant(name))))?;
        for message in &self.ir.messages {
            self.check_fields(message)?;
        }
        let summed = counted(self.ir).into_iter().filter(|(_, kind)| *kind == Counting::Summed);
        self.each_once(
            summed.map(|(it, _)| (the("tensor", &it.name), counted_constant(&it.name))),
        )?;
        let words = walk::awaited_words(self.ir);
        self.each_once(words.iter().map(|it| (the("tensor", &it.name), constant(&it.name))))?;
        let roles = self.ir.roles.iter();
        let structs = roles.clone().map(|it| (the("role", &it.name), struct_of(&it.name)));
        let messages = self.ir.messages.iter();
        let messages = messages.map(|it| (the("message", &it.name), struct_of(&it.name)));
        // A channel may share the struct of its message.
        let shares = |name: &str| self.ir.messages.iter().any(|it| it.name == name);
        let channels = self.ir.channels.iter().map(|it| (&it.name, camel(&it.name)));
        let own = channels.filter(|(_, name)| !shares(name));
        let own = own.map(|(channel, name)| (the("channel", channel), struct_of(&name)));
        self.each_once(structs.chain(messages).chain(own))?;
        self.each_once(roles.map(|it| (the("role", &it.name), function_of(&it.name))))
    }

    fn check_fields(&self, message: &Message) -> Result<(), Refusal> {
        let sources = meta_sources(self.ir, message);
        let fields = sources.iter().flat_map(|source| {
            let (name, what) = (field_constant(&source.name), the("field", &source.name));
            [(what.clone(), format!("{name}Count")), (what, name)]
        });
        self.each_once(fields)
    }

    /// Refuses the first name that two things have.
    fn each_once(&self, names: impl Iterator<Item = Named>) -> Result<(), Refusal> {
        let mut seen: Vec<Named> = Vec::new();
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
