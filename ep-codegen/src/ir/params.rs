//! The members of the emitted `struct Args`: one list for the text, the host and the host backend.

use super::network::uses_network;
use super::parts::{align, elem_bytes, parts};
use super::{Elem, Expr, Memory, NameKind, Pipeline, Size, Tensor, TensorKind};

/// A member of `struct Args`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Name.
    pub name: String,
    /// What the host passes.
    pub kind: ParamKind,
    /// Offset inside `struct Args`.
    pub offset: i64,
}

/// What a member of `struct Args` holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParamKind {
    /// `ep::Group`.
    Group,
    /// A row count (`tokens`), `int`.
    Size,
    /// Where the device finds the row count of a call that a graph replays, or null; then
    /// [`ParamKind::Size`] is the most that it may be.
    SizeFrom {
        /// The size.
        size: String,
    },
    /// How many rows the outputs with this extent hold, `int`.
    Capacity {
        /// The size that counts the rows in use.
        size: String,
    },
    /// A run-time arg.
    Arg {
        /// Element type.
        elem: Elem,
    },
    /// How many of an `up to n` tensor the caller brings, `int`.
    Copies {
        /// Tensor as declared.
        tensor: String,
    },
    /// Device address of a tensor part; copy `i` of an `up to n` tensor is named `name[i]`.
    Pointer {
        /// Tensor as declared.
        tensor: String,
        /// Index of the part; 0 for a scalar element type.
        part: usize,
        /// Index of the copy of an `up to n` tensor.
        copy: i64,
        /// Element type.
        elem: Elem,
        /// Whether the kernel only reads it.
        read_only: bool,
    },
    /// Elements from one index of the first extent to the next, `i64`.
    RowStride {
        /// Tensor as declared.
        tensor: String,
        /// Index of the part.
        part: usize,
    },
    /// Elements from one index of the second extent to the next, `i64` (scales only).
    ColumnStride {
        /// Tensor as declared.
        tensor: String,
        /// Index of the part.
        part: usize,
    },
    /// Offset of a window tensor from the start of the window, `u64`.
    WindowOffset {
        /// Tensor as declared.
        tensor: String,
    },
    /// Offset of the meta records that a direct channel brings, `u64`.
    MetaOffset {
        /// Channel.
        channel: String,
    },
    /// `const ep::Net*`: the network of this rank, as far as it is the kernel's own.
    Net,
}

/// Bytes of `ep::Group`, checked by a `static_assert` of the device library.
const GROUP_BYTES: i64 = 72;

/// The members of `struct Args` of a selected pipeline, with their offsets, and its size.
pub fn params(ir: &Pipeline) -> (Vec<Param>, i64) {
    let mut list = ArgsList { params: Vec::new(), offset: 0 };
    list.push("group".into(), ParamKind::Group);
    for size in &ir.sizes {
        match size.value {
            None => {
                list.push(size.name.clone(), ParamKind::Size);
                let kind = ParamKind::SizeFrom { size: size.name.clone() };
                list.push(format!("{}_from", size.name), kind);
            }
            Some(_) if has_capacity(ir, size) => {
                let kind = ParamKind::Capacity { size: size.name.clone() };
                list.push(format!("{}_capacity", size.name), kind);
            }
            Some(_) => {}
        }
    }
    for arg in &ir.args {
        list.push(arg.name.clone(), ParamKind::Arg { elem: arg.elem.clone() });
    }
    for tensor in &ir.tensors {
        list.tensor(ir, tensor);
    }
    for channel in ir.channels.iter().filter(|c| c.kind.traits().lands) {
        let kind = ParamKind::MetaOffset { channel: channel.name.clone() };
        list.push(format!("{}_meta_at", channel.name), kind);
    }
    if ir.channels.iter().any(|channel| uses_network(ir, channel)) {
        list.push("net".into(), ParamKind::Net);
    }
    let bytes = align(list.offset, 8);
    (list.params, bytes)
}

struct ArgsList {
    params: Vec<Param>,
    offset: i64,
}

impl ArgsList {
    fn push(&mut self, name: String, kind: ParamKind) {
        let (bytes, alignment) = match &kind {
            ParamKind::Group => (GROUP_BYTES, 8),
            ParamKind::Size | ParamKind::Capacity { .. } | ParamKind::Copies { .. } => (4, 4),
            ParamKind::Arg { elem } => (elem_bytes(elem), elem_bytes(elem)),
            _ => (8, 8),
        };
        let offset = align(self.offset, alignment);
        self.offset = offset + bytes;
        self.params.push(Param { name, kind, offset });
    }

    fn tensor(&mut self, ir: &Pipeline, tensor: &Tensor) {
        for (part, (suffix, elem, _)) in parts(ir, &tensor.elem).into_iter().enumerate() {
            let name = format!("{}{suffix}", tensor.name);
            if tensor.copies > 1 {
                let kind = ParamKind::Copies { tensor: tensor.name.clone() };
                self.push(format!("{name}_count"), kind);
            }
            for copy in 0..tensor.copies {
                self.pointer(tensor, part, copy, &name, elem.clone());
            }
            if has_row_stride(ir, tensor) || part > 0 {
                let kind = ParamKind::RowStride { tensor: tensor.name.clone(), part };
                self.push(format!("{name}_stride"), kind);
            }
            if part > 0 {
                let kind = ParamKind::ColumnStride { tensor: tensor.name.clone(), part };
                self.push(format!("{name}_block_stride"), kind);
            }
        }
        if tensor.memory == Memory::Window {
            let kind = ParamKind::WindowOffset { tensor: tensor.name.clone() };
            self.push(format!("{}_at", tensor.name), kind);
        }
    }

    fn pointer(&mut self, tensor: &Tensor, part: usize, copy: i64, name: &str, elem: Elem) {
        let number = if tensor.copies > 1 { format!("[{copy}]") } else { String::new() };
        let read_only = tensor.is_given();
        let kind = ParamKind::Pointer { tensor: tensor.name.clone(), part, copy, elem, read_only };
        self.push(format!("{name}{number}"), kind);
    }
}

/// Rows that the caller brings may be padded, and rows in the window are, to whole lines; all other
/// tensors are dense.
pub fn has_row_stride(ir: &Pipeline, tensor: &Tensor) -> bool {
    let in_window = tensor.memory == Memory::Window;
    let rows = in_window || tensor.dims.first().is_some_and(|dim| is_size(dim, ir));
    let padded = match tensor.kind {
        TensorKind::Input => tensor.from_handle.is_none(),
        _ => in_window,
    };
    rows && padded && tensor.dims.len() == 2
}

fn is_size(dim: &Expr, ir: &Pipeline) -> bool {
    matches!(dim, Expr::Name { name, kind: NameKind::Size }
        if ir.sizes.iter().any(|size| size.name == *name))
}

/// Whether the pipeline writes rows up to a size that only the device knows.
fn has_capacity(ir: &Pipeline, size: &Size) -> bool {
    ir.tensors.iter().any(|tensor| {
        tensor.kind == TensorKind::Output
            && matches!(tensor.dims.first(), Some(Expr::Name { name, .. }) if *name == size.name)
    })
}
