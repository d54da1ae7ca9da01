//! The intermediate representation: a checked declaration as plain data.
//!
//! Names are resolved, nothing is decided: no sizes, no threads, no CUDA. A [`Pipeline`] still
//! holds every arm of its variants; [`Pipeline::select`] keeps what one choice of arms leaves.

mod body;
mod canon;
pub mod change;
mod channel;
pub mod counting;
mod declared;
pub mod facts;
pub mod helpers;
pub mod kind;
mod known;
pub mod naming;
pub mod network;
mod number;
pub mod once;
pub mod params;
pub mod parts;
pub mod put;
pub mod rows;
mod select;
mod simple;
pub mod slots;
mod split;
pub mod stripes;
pub mod text;
pub(crate) mod typed;
pub mod walk;

pub use body::{
    Action, BinaryOp, Blocks, CONDITION, Domain, Expr, FieldValue, Fold, NameKind, Place, Role,
    Share, Stmt,
};
pub use canon::{Canon, Packed};
pub use channel::{Channel, ChannelOption, Field, Message, PeerSet, Transport, Waiver};
pub use declared::{
    Arg, Arm, Axis, CudaFn, CudaParam, Dim, DimKind, Elem, ElemType, Memory, Number, Part,
    Pipeline, Require, Size, Source, Tensor, TensorKind, Tune, Values, When,
};
pub use kind::ChannelKind;
pub use known::WellKnown;
pub use select::Choice;

/// Policies of the checker that a channel may waive: rules about its memory that go beyond the text
/// of the PTX memory model.
pub const POLICIES: [&str; 2] = ["load_fence", "credit_fence"];

impl Pipeline {
    /// Canonical text; equal IR gives equal text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.canon(&mut out);
        out
    }

    /// The channel of this name, and the message that it carries.
    pub fn carried(&self, channel: &str) -> Option<(&Channel, &Message)> {
        let channel = self.channels.iter().find(|known| known.name == channel)?;
        let message = self.messages.iter().find(|message| message.name == channel.message)?;
        Some((channel, message))
    }

    /// Whether a tensor takes how long a channel's receiver waits.
    pub fn is_of_waits(&self, tensor: &str) -> bool {
        self.channels.iter().any(|channel| channel.waited.as_deref() == Some(tensor))
    }

    /// Whether each call may come with a tensor or without it, whatever was prepared: memory of the caller that
    /// is there to be added to, or words that another kernel raises.
    pub fn may_be_left_out(&self, tensor: &str) -> bool {
        let awaited = walk::awaited_words(self);
        let is_of_caller = |it: &Tensor| {
            it.kind == TensorKind::Inout || awaited.iter().any(|word| word.name == it.name)
        };
        let mut own = self.tensors.iter().filter(|it| it.name == tensor && it.optional);
        own.any(is_of_caller)
    }

    /// The args by name; of those that arms declare apart, the first.
    pub fn first_args(&self) -> impl Iterator<Item = &Arg> {
        let args = self.args.iter().enumerate();
        let is_first = |(index, arg): &(usize, &Arg)| {
            self.args[..*index].iter().all(|known| known.name != arg.name)
        };
        args.filter(is_first).map(|(_, arg)| arg)
    }

    /// The phases in order of declaration; without any, all roles are one.
    pub fn phases(&self) -> Vec<Option<&str>> {
        let mut phases = Vec::new();
        for role in &self.roles {
            if !phases.contains(&role.phase.as_deref()) {
                phases.push(role.phase.as_deref());
            }
        }
        phases
    }

    /// The index of the phase from which on a size is known: behind the phases that write what it is read from.
    pub fn known_from(&self, size: &Size) -> usize {
        let mut read = Vec::new();
        if let Some(value) = &size.value {
            walk::expr(value, &mut |part| {
                if let Expr::Element { tensor, .. } = part {
                    read.push(tensor);
                }
            });
        }
        let phases = self.phases();
        let wrote = |phase: &&Option<&str>| {
            let mut roles = self.roles.iter().filter(|role| role.phase.as_deref() == **phase);
            roles.any(|role| read.iter().any(|tensor| walk::writes(&role.body, tensor)))
        };
        phases.len() - phases.iter().rev().take_while(|phase| !wrote(phase)).count()
    }

    /// The bytes that [`Pipeline::unpacked`] reads: the macro embeds them.
    pub fn packed(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.pack(&mut bytes);
        bytes
    }

    /// The pipeline of bytes that the macro of this version has embedded.
    ///
    /// # Panics
    ///
    /// If the bytes are others.
    pub fn unpacked(mut bytes: &[u8]) -> Pipeline {
        let whole = Pipeline::unpack(&mut bytes).filter(|_| bytes.is_empty());
        whole.expect("the macro and the library are of one version")
    }

    /// FNV-1a, 128 bits, of the canonical text: embedded by the macro, compared at run time.
    pub fn digest(&self) -> u128 {
        crate::digest::fnv128(self.text().as_bytes())
    }
}
