//! Finds pushed rows that a `cuda fn` computes: the emitted text moves these element by element.

use std::collections::BTreeSet;

use ep_runtime::ir::{Action, Channel, Expr, FieldValue, Pipeline, Stmt, walk};

/// One sentence for each such row that is pushed to `channel`.
pub(super) fn computed_rows(ir: &Pipeline, channel: &Channel) -> Vec<String> {
    let message = ir.messages.iter().find(|message| message.name == channel.message);
    let fields = message.map_or(&[][..], |message| &message.fields);
    let is_row = |name: &str| fields.iter().any(|field| field.row && field.name == name);
    let mut found = Vec::new();
    for role in &ir.roles {
        let named = computed_names(ir, &role.body);
        walk::stmts(&role.body, &mut |stmt| {
            let Action::Push { channel: pushed, values, .. } = &stmt.action else { return };
            if *pushed != channel.name {
                return;
            }
            for FieldValue { name, value } in values.iter().filter(|it| is_row(&it.name)) {
                if let Some(function) = function_of(ir, value, &named) {
                    let (role, line) = (&role.name, stmt.at.line);
                    found.push(format!(
                        "{role} +{line}: `{function}` computes the row `{name}`, so lanes load and store it \
                         element by element, and not 16 bytes at a time"
                    ));
                }
            }
        });
    }
    found
}

/// Names bound by `let` to a value that a `cuda fn` computes, each with that function.
type Named = BTreeSet<(String, String)>;

fn computed_names(ir: &Pipeline, body: &[Stmt]) -> Named {
    let mut named = Named::new();
    walk::stmts(body, &mut |stmt| {
        if let Action::Let { name, value } = &stmt.action
            && let Some(function) = function_of(ir, value, &named)
        {
            named.insert((name.clone(), function));
        }
    });
    named
}

/// The first `cuda fn` that an expression calls, directly or through a `let`.
fn function_of(ir: &Pipeline, value: &Expr, named: &Named) -> Option<String> {
    let mut found = None;
    walk::expr(value, &mut |part| {
        let function = match part {
            Expr::Call { helper, .. } => {
                ir.cuda_fns.iter().find(|it| it.name == *helper).map(|it| it.name.clone())
            }
            Expr::Name { name, .. } => {
                named.iter().find(|(own, _)| own == name).map(|(_, function)| function.clone())
            }
            _ => None,
        };
        found = found.take().or(function);
    });
    found
}
