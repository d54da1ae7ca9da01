//! The members of the emitted `struct Args`: one list for the text, the host and the host backend.

use super::message::{align, elem_bytes, parts};
use super::{Param, ParamKind};
use crate::ir::{ChannelKind, Elem, Expr, Memory, NameKind, Pipeline, Size, Tensor, TensorKind};

/// Bytes of `ep::Group`, checked by a `static_assert` of the device library.
const GROUP_BYTES: i64 = 64;

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
    for channel in ir.channels.iter().filter(|c| c.kind == ChannelKind::Direct) {
        let kind = ParamKind::MetaOffset { channel: channel.name.clone() };
        list.push(format!("{}_meta_at", channel.name), kind);
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
        let read_only = tensor.kind == TensorKind::Input || tensor.from_handle.is_some();
        let kind = ParamKind::Pointer { tensor: tensor.name.clone(), part, copy, elem, read_only };
        self.push(format!("{name}{number}"), kind);
    }
}

/// Rows that the caller brings may be padded, and rows in the window are, to whole lines; all other
/// tensors are dense.
pub fn has_row_stride(ir: &Pipeline, tensor: &Tensor) -> bool {
    let rows = tensor.dims.first().is_some_and(|dim| is_size(dim, ir));
    let padded = match tensor.kind {
        TensorKind::Input => tensor.from_handle.is_none(),
        _ => tensor.memory == Memory::Window,
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
