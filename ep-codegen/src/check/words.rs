//! `raise` and `await` of words: what this call tells another kernel of its rank while it runs, or hears of it.

use super::model::{Tensor, View};
use super::statements::reads;
use super::tables::written;
use super::walk::Site;
use crate::ast::{Elem, Ident, Place, StmtKind, TensorKind};
use crate::diagnostics::{Diagnostics, words as errors};

/// Rules about the words of one choice of arms.
pub(super) fn check_view(view: &View<'_>, out: &mut Diagnostics) {
    let mut words: Vec<(&str, &Ident)> = Vec::new();
    for site in &view.sites {
        let Some((word, place)) = of(site) else { continue };
        let Some(tensor) = view.tensor(&place.tensor) else { continue };
        if !fits(tensor) {
            out.push(errors::not_a_word(&place.tensor, word, &tensor.decl.name));
        }
        words.push((word, &place.tensor));
    }
    for site in &view.sites {
        let writes =
            written(site).filter(|(word, _)| *word != "raise").map(|(_, place)| &place.tensor);
        for used in reads(view, site).into_iter().chain(writes) {
            if let Some((word, first)) = words.iter().find(|(_, name)| *name == used) {
                out.push(errors::word_used(used, word, first));
            }
        }
    }
}

/// The word of a statement and its place, if it raises or awaits one.
fn of<'a>(site: &Site<'a>) -> Option<(&'static str, &'a Place)> {
    match &site.stmt.kind {
        StmtKind::Raise { place } => Some(("raise", place)),
        StmtKind::AwaitWord { place, .. } => Some(("await", place)),
        _ => None,
    }
}

fn fits(tensor: &Tensor<'_>) -> bool {
    let is_given = match tensor.kind {
        // An input that is raised is told of as any other input that is written.
        TensorKind::Inout | TensorKind::Input => true,
        _ => false,
    };
    let decl = tensor.decl;
    let is_whole = matches!(&decl.elem, Elem::Name(elem) if elem == "i32");
    let is_here = decl.window.is_none() && decl.host.is_none() && decl.up_to.is_none();
    is_given && tensor.handle.is_none() && is_whole && is_here
}
