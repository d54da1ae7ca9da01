//! The small fields of a message that a warp takes: the warp reads all of them before it stores the first one.
//!
//! The gain: a message waits once for the reads of all its fields, not once per field.

use super::declares;
use crate::ir::Elem;
use crate::schedule::library::ep;
use crate::schedule::scope::Names;
use crate::schedule::step::{Lambda, Loop, Param, ParamType, Step, Takers};
use crate::schedule::symbol::Of;
use crate::schedule::term::{Node, Term};

/// The steps for a message with the elements of its fields read ahead of all stores.
pub(in crate::schedule) fn asked_first(names: &mut Names, steps: Vec<Step>) -> Vec<Step> {
    let (mut asks, mut rest) = (Vec::new(), Vec::new());
    for step in steps {
        let field = match &step {
            Step::Leader(body) => field_of(names, None, body),
            Step::Loop(repeat) if repeat.turns == Takers::Lanes && repeat.from.is(0) => {
                field_of(names, Some(repeat), &repeat.body)
            }
            _ => None,
        };
        match field {
            Some((ask, store)) if !declares(&rest, &|name| ask.mentions(name)) => {
                asks.push(ask);
                rest.push(store);
            }
            _ => rest.push(step),
        }
    }
    asks.extend(rest);
    asks
}

/// The step that reads a field, and the step that stores its elements.
fn field_of(names: &mut Names, lanes: Option<&Loop>, body: &[Step]) -> Option<(Step, Step)> {
    let [Step::Set { place, value }] = body else { return None };
    let Node::Index(tensor, _) = &place.node else { return None };
    let Node::Name(tensor) = &tensor.node else { return None };
    if !is_of_record(value) {
        return None;
    }
    let index = lanes.map_or(String::new(), |lanes| lanes.binder.clone());
    let count = lanes.map_or(Term::int(1), |lanes| lanes.to.clone());
    let at = || Param { kind: ParamType::Index, name: index.clone() };
    let lambda =
        |params, body, gives| Term::lambda(Lambda { says: Vec::new(), params, body, gives });
    let object = names.fresh(&format!("{}_field", tensor.trim_start_matches("args.")));
    let read = lambda(vec![at()], Vec::new(), Some(value.clone()));
    let ask = ep::ask.of(&value.elem).of(Of::Number(count));
    let made = Step::Made { name: object.clone(), value: Term::call(ask, vec![read], Elem::I32) };
    let element = Param { kind: ParamType::Value(value.elem.clone()), name: "element".to_string() };
    let stored = Term::name("element", value.elem.clone());
    let set = vec![Step::Set { place: place.clone(), value: stored }];
    let store = lambda(vec![at(), element], set, None);
    Some((made, Step::Do(Term::method(&object, "each", vec![store], Elem::I32))))
}

/// Whether a value is made of fields of the record and of numbers, and reads no tensor.
fn is_of_record(value: &Term) -> bool {
    !matches!(value.node, Node::Index(..) | Node::Address(_) | Node::Lambda(_))
        && value.inner().into_iter().all(is_of_record)
}
