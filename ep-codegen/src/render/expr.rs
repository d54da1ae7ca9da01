//! Expressions as C++.

use crate::ir::{Domain, Expr, NameKind, PeerSet, Pipeline, Tensor};
use crate::plan::{constant, has_row_stride, parts};
use crate::print::{ATOM, PRODUCT, SUM, UNARY, operator};
pub(super) use crate::schedule::elem_type;
use crate::schedule::typed::elem_of;

/// How names read at one place of the emitted text.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    /// The selected pipeline.
    pub(super) ir: &'a Pipeline,
    /// What `me` reads as.
    pub(super) me: &'a str,
    /// Index of the element wherever a row is used elementwise.
    pub(super) element: &'a str,
    /// How fields of messages and channels read: receives the channel or binder, and the field.
    pub(super) field: &'a dyn Fn(&str, &str) -> String,
}

impl Scope<'_> {
    /// `expr` as C++.
    pub(super) fn text(&self, expr: &Expr) -> String {
        self.with_precedence(expr).0
    }

    /// `expr` as a factor of a product.
    pub(super) fn factor(&self, expr: &Expr) -> String {
        self.at_least(expr, PRODUCT + 1)
    }

    fn at_least(&self, expr: &Expr, least: u8) -> String {
        let (text, precedence) = self.with_precedence(expr);
        if precedence < least { format!("({text})") } else { text }
    }

    fn with_precedence(&self, expr: &Expr) -> (String, u8) {
        match expr {
            Expr::Int { value } => (value.to_string(), if *value < 0 { UNARY } else { ATOM }),
            Expr::Bool { value } => (value.to_string(), ATOM),
            Expr::Name { name, kind: NameKind::Size } => self.size(name),
            Expr::Name { name, kind } => (self.name(name, kind), ATOM),
            Expr::Element { tensor, indices } => (self.element(tensor, indices), ATOM),
            Expr::Field { of, field, .. } => ((self.field)(of, field), ATOM),
            Expr::OfChannel { channel, index, field, indices } => {
                (self.of_channel(channel, index, field, indices), ATOM)
            }
            Expr::Call { helper, args } => (self.call(helper, args), ATOM),
            Expr::Cast { value, elem } => {
                (format!("static_cast<{}>({})", elem_type(elem), self.text(value)), ATOM)
            }
            Expr::Not { value } => (format!("!{}", self.at_least(value, UNARY)), UNARY),
            Expr::Binary { op, left, right } => {
                let (sign, precedence) = operator(op);
                let left = self.at_least(left, precedence);
                let right = self.at_least(right, precedence + 1);
                (format!("{left} {sign} {right}"), precedence)
            }
            Expr::Fold { .. } => (self.fold(expr), ATOM),
        }
    }

    fn name(&self, name: &str, kind: &NameKind) -> String {
        match kind {
            NameKind::Dim | NameKind::Tune => format!("Cfg::{}", constant(name)),
            NameKind::Arg => format!("args.{name}"),
            NameKind::Size => format!("ep::rows_of(args.{name}, args.{name}_from)"),
            NameKind::Binder => name.to_string(),
            NameKind::Me => self.me.to_string(),
            NameKind::Stripe => "stripe".to_string(),
        }
    }

    /// A size that the caller gives, or what the device computes it from.
    fn size(&self, name: &str) -> (String, u8) {
        let size = self.ir.sizes.iter().find(|size| size.name == name);
        match size.and_then(|size| size.value.as_ref()) {
            Some(value) => self.with_precedence(value),
            None => (self.name(name, &NameKind::Size), ATOM),
        }
    }

    /// How many rows the stripes share: those that the caller gives, else those of the device.
    pub(super) fn striped(&self) -> String {
        let given = self.ir.sizes.iter().find(|size| size.value.is_none());
        given.or(self.ir.sizes.first()).map(|size| self.size(&size.name).0).unwrap_or_default()
    }

    /// `args.tensor[flat index]`; a row whose last index is missing is read at `self.element`.
    fn element(&self, name: &str, indices: &[Expr]) -> String {
        let Some(tensor) = self.ir.tensors.iter().find(|tensor| tensor.name == name) else {
            return String::new();
        };
        let texts = indices.iter().map(|index| self.at_least(index, SUM)).collect::<Vec<_>>();
        self.part_element(tensor, 0, &texts)
    }

    /// Element of one part of a tensor at `indices`, the missing last one being `self.element`.
    pub(super) fn part_element(&self, tensor: &Tensor, part: usize, indices: &[String]) -> String {
        let name = part_name(self.ir, tensor, part);
        let mut indices = indices.to_vec();
        if indices.len() < tensor.dims.len() {
            indices.push(self.element.to_string());
        }
        format!("args.{name}[{}]", self.flat(tensor, part, &indices))
    }

    /// Address of the row at `indices`, or of the whole tensor.
    pub(super) fn row_address(&self, tensor: &Tensor, part: usize, indices: &[Expr]) -> String {
        let name = part_name(self.ir, tensor, part);
        match indices {
            [] => format!("args.{name}"),
            [index] => {
                let index = self.at_least(index, PRODUCT);
                let stride = self.row_stride(tensor, part);
                // Strides of a call have 64 bits. A constant has 32, and a large tensor more elements.
                match stride.starts_with("args.") {
                    true => format!("args.{name} + {index} * {stride}"),
                    false => format!("args.{name} + {index} * ep::i64{{{stride}}}"),
                }
            }
            _ => {
                let mut texts: Vec<String> =
                    indices.iter().map(|index| self.at_least(index, SUM)).collect();
                texts.push("0".to_string());
                format!("args.{name} + {}", self.flat(tensor, part, &texts))
            }
        }
    }

    /// Elements from one row to the next.
    pub(super) fn row_stride(&self, tensor: &Tensor, part: usize) -> String {
        if has_row_stride(self.ir, tensor) || part > 0 {
            return format!("args.{}_stride", part_name(self.ir, tensor, part));
        }
        let inner = tensor.dims.iter().skip(1).map(|dim| self.at_least(dim, PRODUCT + 1));
        let product = inner.collect::<Vec<_>>().join(" * ");
        if product.is_empty() { "1".to_string() } else { product }
    }

    pub(super) fn flat(&self, tensor: &Tensor, part: usize, indices: &[String]) -> String {
        match indices {
            [] => "0".to_string(),
            [only] => only.clone(),
            [row, column] => {
                let row = if row.contains(' ') { format!("({row})") } else { row.clone() };
                let stride = self.row_stride(tensor, part);
                let column = match part {
                    0 => column.clone(),
                    _ => {
                        format!("{column} * args.{}_block_stride", part_name(self.ir, tensor, part))
                    }
                };
                format!("{row} * {stride} + {column}")
            }
            [first, inner @ ..] => {
                // The last index counts through all extents that are left.
                let dims: Vec<String> =
                    tensor.dims.iter().map(|dim| self.at_least(dim, PRODUCT + 1)).collect();
                let mut text = first.clone();
                for (axis, index) in inner.iter().enumerate() {
                    let end = if axis + 1 == inner.len() { dims.len() } else { axis + 2 };
                    let extent = dims.get(axis + 1..end).unwrap_or_default().join(" * ");
                    let outer = if text.contains(' ') { format!("({text})") } else { text };
                    text = format!("{outer} * {extent} + {index}");
                }
                text
            }
        }
    }

    fn of_channel(&self, channel: &str, index: &[Expr], field: &str, inner: &[Expr]) -> String {
        let read = (self.field)(channel, field);
        let text = |exprs: &[Expr]| exprs.first().map(|expr| self.text(expr));
        let inner = text(inner).unwrap_or_else(|| self.element.to_string());
        read.replace("{index}", &text(index).unwrap_or_default()).replace("{inner}", &inner)
    }

    fn call(&self, helper: &str, args: &[Expr]) -> String {
        match (helper, args) {
            ("routed", [Expr::Element { tensor, .. }, rank]) => {
                format!("{tensor}_ranks.has({})", self.text(rank))
            }
            ("listed", [Expr::Element { tensor, .. }, expert]) => {
                format!("{tensor}_ids.has({})", self.text(expert))
            }
            ("local", [expert, Expr::Name { kind: NameKind::Me, .. }]) => {
                format!("mine.local({})", self.text(expert))
            }
            ("local", [expert, rank]) => {
                let experts = format!("ep::experts_of(args.expert_begin, {})", self.text(rank));
                format!("{experts}.local({})", self.text(expert))
            }
            ("owner", [expert]) => {
                format!("ep::owner<Cfg::kRanks>({}, args.expert_begin)", self.text(expert))
            }
            _ => {
                let own = self.ir.cuda_fns.iter().any(|own| own.name == helper);
                let space = if own { "" } else { "ep::" };
                let args = args.iter().map(|arg| self.text(arg)).collect::<Vec<_>>().join(", ");
                format!("{space}{helper}({args})")
            }
        }
    }

    /// `sum(binder in dim: body)`, one lane's own work.
    fn fold(&self, fold: &Expr) -> String {
        let Expr::Fold { binder, domain, body, .. } = fold else { return String::new() };
        let kind = elem_type(&elem_of(self.ir, fold));
        let count = self.domain_count(domain);
        let range = match self.domain_begin(domain).as_str() {
            "0" => count,
            begin => format!("{begin}, {count}"),
        };
        let value = match **domain {
            Domain::Peers { set: PeerSet::Others } => {
                format!("{binder} != {} ? {} : 0", self.me, self.at_least(body, 4))
            }
            _ => self.text(body),
        };
        format!("ep::sum<{kind}>({range}, [&](int {binder}) {{\nreturn {value};\n}})")
    }

    /// The first value of a counted domain.
    pub(super) fn domain_begin(&self, domain: &Domain) -> String {
        match domain {
            Domain::Range { low, .. } => self.text(low),
            _ => "0".to_string(),
        }
    }

    /// The end of a counted domain.
    pub(super) fn domain_count(&self, domain: &Domain) -> String {
        match domain {
            Domain::Dim { name } => format!("Cfg::{}", constant(name)),
            Domain::Tokens => self.size("tokens").0,
            Domain::Range { high, .. } => self.text(high),
            _ => "Cfg::kRanks".to_string(),
        }
    }
}

/// Name of a part in `struct Args`.
pub(super) fn part_name(ir: &Pipeline, tensor: &Tensor, part: usize) -> String {
    let suffix = parts(ir, &tensor.elem).into_iter().nth(part).map(|(suffix, ..)| suffix);
    format!("{}{}", tensor.name, suffix.unwrap_or_default())
}
