//! `fill value beyond size`.

use super::there;
use crate::ir::params::has_row_stride;
use crate::ir::parts::parts;
use crate::ir::{Elem, Expr, NameKind, Tensor, walk};
use crate::schedule::library::ep;
use crate::schedule::limit::Limit;
use crate::schedule::scope::Scope;
use crate::schedule::step::Step;
use crate::schedule::term::Term;
use crate::schedule::{Lowered, RoleLowering};

impl<'a> RoleLowering<'a> {
    /// `fill value beyond size` for the tensors that the role stores.
    pub(in crate::schedule) fn fills(&mut self, out: &mut Vec<Step>) {
        let mut stored: Vec<&str> = Vec::new();
        walk::stmts(&self.role.body, &mut |stmt| {
            stored.extend(walk::target(stmt).map(|place| place.tensor.as_str()));
        });
        let ir = self.ir;
        for tensor in ir.tensors.iter().filter(|tensor| stored.contains(&tensor.name.as_str())) {
            let (Some(value), Some(Expr::Name { name, kind: NameKind::Size })) =
                (tensor.fill, tensor.dims.first())
            else {
                continue;
            };
            if let Err(why) = self.fill(tensor, name, value, out) {
                self.refuse(&tensor.at, why);
            }
        }
    }

    fn fill(
        &mut self,
        tensor: &Tensor,
        size: &str,
        value: i64,
        out: &mut Vec<Step>,
    ) -> Lowered<()> {
        let derived = self.ir.sizes.iter().any(|known| known.name == size && known.value.is_some());
        if !derived {
            return Ok(());
        }
        let all = parts(self.ir, &tensor.elem);
        let [(_, elem, _)] = all.as_slice() else {
            return Err(Limit::ScalesFilled.into());
        };
        let mut width = self.open_width(tensor, 0, 1)?;
        if has_row_stride(self.ir, tensor) {
            width = Term::name(format!("args.{}_stride", tensor.name), Elem::I64);
        }
        if tensor.optional {
            width = there(tensor).choose(width.converted(&Elem::I32), Term::int(0));
        }
        let value = match elem {
            Elem::Bool => Term::bool(value != 0),
            _ => Term::int(value).converted(elem),
        };
        out.push(Step::Remark(format!(
            "{}: fill {} beyond {size}",
            tensor.name,
            tensor.fill.unwrap_or(0)
        )));
        let rows = self.size(&Scope::default(), size, out)?;
        let call = Term::call(
            ep::fill.of(elem),
            vec![
                Term::name("team", Elem::I32),
                Term::name(format!("args.{}", tensor.name), elem.clone()),
                width.converted(&Elem::I32),
                rows.converted(&Elem::I32),
                Term::name(format!("args.{size}_capacity"), Elem::I32),
                value,
            ],
            Elem::I32,
        );
        out.push(Step::Do(call));
        Ok(())
    }
}
