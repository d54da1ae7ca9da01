//! Standard pipelines rewritten into others that mean the same, or slightly more: their roles are carried out in the same way.

use ep_codegen::ir::{
    Action, BinaryOp, CONDITION, ChannelKind, DimKind, Domain, Elem, ElemType, Expr, FieldValue,
    NameKind, Pipeline, Place, Stmt, TensorKind, change,
};
use ep_codegen::schedule::{Recipe, RoleRecipe, RoleRule, RuleSet, Warps};
use ep_runtime::pipelines;

pub(crate) type Edit = fn(&mut Pipeline);

/// Rewritings by which a pipeline means slightly more.
const MORE: [(&str, Edit); 8] = [
    ("a gate in counts and sends", gate),
    ("a table of a number for each token", table),
    ("twice as many choices", |ir| bound(ir, "topk", 64)),
    ("twice as many ranks", |ir| bound(ir, "ranks", 128)),
    ("rows twice as long", |ir| bound(ir, "hidden", 65536)),
    ("twice as many tokens", |ir| bound(ir, "max_tokens", 16384)),
    ("a number beside each row", field),
    ("a scale for each 32 values", |ir| scales(ir, 32)),
];

/// Rewritings that change no meaning.
const EDITS: [(&str, Edit); 10] = [
    ("+ 0 on every index", plus_nothing),
    ("* 1 on every value", times_one),
    ("the sides of a comparison exchanged", sides),
    ("the sides of a sum exchanged", summands),
    ("a condition negated twice", negated),
    ("a `where` as an `if` inside", filters),
    ("a loop over tokens as two", halves),
    ("loops in another order", order),
    ("tables and outputs by other names", names),
    ("an index by another name", lets),
];

/// Those that the compiler takes back before it decides how a role is carried out.
const TAKEN_BACK: [&str; 6] = [
    "+ 0 on every index",
    "* 1 on every value",
    "a condition negated twice",
    "a `where` as an `if` inside",
    "a loop over tokens as two",
    "an index by another name",
];

#[test]
fn near_misses_are_carried_out_in_the_same_way() {
    let (mut seen, mut others) = (0, 0);
    for entry in pipelines::ALL {
        let whole = entry.ir();
        for (name, edit) in EDITS {
            let mut near = whole.clone();
            edit(&mut near);
            if near == whole {
                continue;
            }
            for choice in whole.choices() {
                let (near, ir) = (near.select(&choice), whole.select(&choice));
                if TAKEN_BACK.contains(&name) {
                    seen += 1;
                    let texts = [&near, &ir].map(|it| format!("{:#?}", it.roles));
                    let pairs = texts[0].lines().zip(texts[1].lines());
                    let first = pairs.into_iter().find(|(near, own)| near != own);
                    assert!(near == ir, "{}, {name}: {first:?}", entry.name);
                    continue;
                }
                others += 1;
                let recipes = [&near, &ir].map(|it| Recipe::of(it, RuleSet::All).roles);
                for (own, was) in recipes[0].iter().zip(&recipes[1]) {
                    let ways = [own, was].map(|it| (&it.classes, &it.warps, &it.uses));
                    assert_eq!(
                        ways[0], ways[1],
                        "{}, {choice:?}, {name}, {}",
                        entry.name, own.role
                    );
                }
            }
        }
    }
    assert!(seen > 150 && others > 80, "only {seen} and {others}");
}

#[test]
fn what_means_slightly_more_is_carried_out_in_the_same_way() {
    let mut seen = 0;
    for entry in pipelines::ALL {
        let whole = entry.ir();
        for (name, edit) in MORE {
            let mut more = whole.clone();
            edit(&mut more);
            for choice in whole.choices() {
                let (more, ir) = (more.select(&choice), whole.select(&choice));
                if more == ir {
                    continue;
                }
                let recipes = [&more, &ir].map(|it| Recipe::of(it, RuleSet::All).roles);
                for (own, was) in recipes[0].iter().zip(&recipes[1]) {
                    seen += 1;
                    let place = format!("{}, {choice:?}, {name}, {}", entry.name, own.role);
                    assert_eq!(own.warps, was.warps, "{place}");
                    assert_eq!(own.classes, was.classes, "{place}: {:?}", own.meets);
                }
            }
        }
    }
    assert!(seen > 150, "only {seen}");
}

#[test]
fn a_composed_dispatch_by_stripes_uses_all_warps() {
    let dispatch = pipelines::ALL.iter().find(|entry| entry.name == "nvl-dispatch");
    let whole = dispatch.expect("it is a standard pipeline").ir();
    let mut seen = 0;
    for ir in whole.choices().iter().map(|choice| whole.select(choice)) {
        if !ir.channels.iter().any(|channel| channel.kind == ChannelKind::Direct) {
            continue;
        }
        for (name, edit) in EDITS.iter().chain([&("nothing", (|_| ()) as Edit)]) {
            let mut near = ir.clone();
            edit(&mut near);
            for own in Recipe::of(&near, RuleSet::Without(RoleRule::OneLaunch)).roles {
                assert_eq!(own.warps, Warps::All, "{name}, {}: {:?}", own.role, own.reasons());
                assert_eq!(own.reasons(), Vec::<String>::new(), "{name}, {}", own.role);
                seen += 1;
            }
        }
    }
    assert!(seen >= 3 * 11, "only {seen} roles");
}

#[test]
fn two_hops_use_all_warps() {
    for name in ["node-dispatch", "node-combine"] {
        let entry = pipelines::ALL.iter().find(|entry| entry.name == name);
        let whole = entry.expect("it is a standard pipeline").ir();
        for ir in whole.choices().iter().map(|choice| whole.select(choice)) {
            let is_shared = |role: &RoleRecipe| matches!(role.warps, Warps::All | Warps::Blocks(_));
            for role in Recipe::of(&ir, RuleSet::All).roles {
                assert!(is_shared(&role), "{name}, {}: {:?}", role.role, role.reasons());
            }
            let cut = Recipe::of(&ir, RuleSet::Without(RoleRule::Cut)).roles;
            assert!(!cut.iter().all(is_shared), "{name} needs the rule");
        }
    }
}

/// Rows of e4m3 have a scale for so many values.
pub(crate) fn scales(ir: &mut Pipeline, block: i64) {
    for arm in ir.axes.iter_mut().flat_map(|axis| &mut axis.arms) {
        if let [row, scale] = arm.parts.as_mut_slice()
            && row.elem == Elem::E4m3
        {
            scale.block = block;
        }
    }
    exprs(ir, &mut |part| {
        if let Expr::Call { helper, args } = part
            && helper == "cast_e4m3"
        {
            args[1] = Expr::Int { value: block };
        }
    });
}

fn plus_nothing(ir: &mut Pipeline) {
    exprs(ir, &mut |part| {
        if let Expr::Element { indices, .. } = part {
            indices.iter_mut().for_each(|index| *index = of_two(BinaryOp::Add, index.clone(), 0));
        }
    });
}

fn times_one(ir: &mut Pipeline) {
    stmts(ir, &mut |stmt| {
        if let Action::Record { value, .. } = &mut stmt.action
            && matches!(value, Expr::Binary { .. } | Expr::Element { .. })
        {
            *value = of_two(BinaryOp::Mul, value.clone(), 1);
        }
    });
}

fn sides(ir: &mut Pipeline) {
    swap(ir, &|op| matches!(op, BinaryOp::Eq | BinaryOp::Ne));
}

fn summands(ir: &mut Pipeline) {
    swap(ir, &|op| matches!(op, BinaryOp::Add));
}

fn negated(ir: &mut Pipeline) {
    let not = |value: Expr| Expr::Not { value: Box::new(value) };
    stmts(ir, &mut |stmt| {
        if let Action::For { filter: Some(filter), domain, .. } = &mut stmt.action
            && *domain != Domain::Once
        {
            *filter = not(not(filter.clone()));
        }
    });
}

fn filters(ir: &mut Pipeline) {
    stmts(ir, &mut |stmt| {
        let at = stmt.at.clone();
        if let Action::For { filter, domain, body, position: None, .. } = &mut stmt.action
            && *domain != Domain::Once
            && let Some(condition) = filter.take()
        {
            let body = std::mem::take(body);
            let once = Action::For {
                binder: CONDITION.to_string(),
                domain: Domain::Once,
                position: None,
                filter: Some(condition),
                body,
            };
            let inside = Stmt { when: stmt.when.clone(), at, action: once };
            if let Action::For { body, .. } = &mut stmt.action {
                body.push(inside);
            }
        }
    });
}

fn halves(ir: &mut Pipeline) {
    let tokens = || Expr::Name { name: "tokens".to_string(), kind: NameKind::Size };
    let half = || of_two(BinaryOp::Div, tokens(), 2);
    let whole = Expr::Int { value: 0 };
    let range = |low: Expr, high: Expr| Domain::Range { low, high };
    for role in &mut ir.roles {
        let mut body = Vec::new();
        for stmt in std::mem::take(&mut role.body) {
            let domains = match &stmt.action {
                Action::For { domain: Domain::Tokens, .. } => {
                    vec![range(whole.clone(), half()), range(half(), tokens())]
                }
                _ => Vec::new(),
            };
            if domains.is_empty() {
                body.push(stmt);
                continue;
            }
            for own in domains {
                let mut part = stmt.clone();
                if let Action::For { domain, .. } = &mut part.action {
                    *domain = own;
                }
                body.push(part);
            }
        }
        role.body = body;
    }
}

/// Exchanges neighboring loops of a role that write no tensor in common, and read none that the other writes.
fn order(ir: &mut Pipeline) {
    for role in &mut ir.roles {
        for at in 1..role.body.len() {
            let is_loop = |stmt: &Stmt| matches!(stmt.action, Action::For { .. });
            let (first, second) = (&role.body[at - 1], &role.body[at]);
            let (a, b) = (touched(first), touched(second));
            let apart = !a.0.iter().any(|name| b.0.contains(name) || b.1.contains(name))
                && !b.0.iter().any(|name| a.1.contains(name));
            if is_loop(first) && is_loop(second) && apart {
                role.body.swap(at - 1, at);
            }
        }
    }
}

fn names(ir: &mut Pipeline) {
    // A tensor from a handle keeps the name that the handle gives it.
    let given: Vec<String> =
        ir.tensors.iter().filter(|it| it.from_handle.is_some()).map(|it| it.name.clone()).collect();
    let own = |it: &&mut ep_codegen::ir::Tensor| {
        matches!(it.kind, TensorKind::Table | TensorKind::Output) && !given.contains(&it.name)
    };
    let mut renamed = Vec::new();
    for tensor in ir.tensors.iter_mut().filter(own) {
        renamed.push(tensor.name.clone());
        tensor.name = format!("my_{}", tensor.name);
    }
    let rename = |name: &mut String| {
        if renamed.contains(name) {
            *name = format!("my_{name}");
        }
    };
    exprs(ir, &mut |part| {
        if let Expr::Element { tensor, .. } = part {
            rename(tensor);
        }
    });
    stmts(ir, &mut |stmt| {
        if let Action::Store { target, .. }
        | Action::Record { target, .. }
        | Action::Add { target, .. }
        | Action::Count { target } = &mut stmt.action
        {
            rename(&mut target.tensor);
        }
    });
}

/// Names the number of each loop over tokens again.
fn lets(ir: &mut Pipeline) {
    stmts(ir, &mut |stmt| {
        let (when, at) = (stmt.when.clone(), stmt.at.clone());
        if let Action::For { binder, domain: Domain::Tokens, body, filter: None, .. } =
            &mut stmt.action
        {
            let name = format!("own_{binder}");
            let value = Expr::Name { name: binder.clone(), kind: NameKind::Binder };
            let known = Expr::Name { name: name.clone(), kind: NameKind::Binder };
            for inner in body.iter_mut() {
                of_stmt(inner, &mut |part| {
                    if *part == value {
                        *part = known.clone();
                    }
                });
            }
            body.insert(0, Stmt { when, at, action: Action::Let { name, value } });
        }
    });
}

/// Lets only tokens go that an input keeps.
pub(crate) fn gate(ir: &mut Pipeline) {
    add(ir, "keep", TensorKind::Input);
    let kept = |token: &str| {
        let value = Expr::Element { tensor: "keep".to_string(), indices: vec![binder_of(token)] };
        of_two(BinaryOp::Gt, value, 0)
    };
    exprs(ir, &mut |part| {
        if let Expr::Fold { binder, domain, body, .. } = part
            && **domain == Domain::Tokens
        {
            let kept = Expr::Cast { value: Box::new(kept(binder)), elem: Elem::I32 };
            let (op, left, right) = (BinaryOp::Mul, body.clone(), Box::new(kept));
            **body = Expr::Binary { op, left, right };
        }
    });
    stmts(ir, &mut |stmt| {
        let Action::For { binder, domain: Domain::Tokens, body, .. } = &mut stmt.action else {
            return;
        };
        for inner in body {
            if let Action::For { filter, domain, .. } = &mut inner.action
                && matches!(domain, Domain::Dim { name } if name == "ranks")
            {
                *filter = Some(match filter.take() {
                    Some(left) => {
                        let (op, right) = (BinaryOp::And, Box::new(kept(binder)));
                        Expr::Binary { op, left: Box::new(left), right }
                    }
                    None => kept(binder),
                });
            }
        }
    });
}

/// Records a number for each token where a role goes through all of them.
fn table(ir: &mut Pipeline) {
    add(ir, "seen", TensorKind::Output);
    stmts(ir, &mut |stmt| {
        let (when, at) = (stmt.when.clone(), stmt.at.clone());
        if let Action::For { binder, domain: Domain::Tokens, body, .. } = &mut stmt.action {
            let target = Place { tensor: "seen".to_string(), indices: vec![binder_of(binder)] };
            let action = Action::Record { target, value: binder_of(binder) };
            body.push(Stmt { when, at, action });
        }
    });
}

/// Sends the rank of the sender beside each row.
fn field(ir: &mut Pipeline) {
    let mut with_rows = Vec::new();
    for message in &mut ir.messages {
        let Some(mut own) = message.fields.iter().find(|it| it.row).cloned() else { continue };
        own.name = "more".to_string();
        (own.row, own.dims, own.optional_with) = (false, Vec::new(), None);
        own.elem = ElemType::Scalar { elem: Elem::I32 };
        message.fields.push(own);
        with_rows.push(message.name.clone());
    }
    let carried = ir.channels.iter().filter(|it| with_rows.contains(&it.message));
    let channels: Vec<String> = carried.map(|it| it.name.clone()).collect();
    stmts(ir, &mut |stmt| {
        if let Action::Push { channel, values, .. } = &mut stmt.action
            && channels.contains(channel)
        {
            let value = Expr::Name { name: "me".to_string(), kind: NameKind::Me };
            values.push(FieldValue { name: "more".to_string(), value });
        }
    });
}

/// Gives a number of the shape another end of its range.
pub(crate) fn bound(ir: &mut Pipeline, name: &str, most: i64) {
    for dim in ir.dims.iter_mut().filter(|dim| dim.name == name) {
        if let DimKind::Given { high, .. } = &mut dim.kind {
            *high = most;
        }
    }
}

/// Adds a tensor with a number for each token.
fn add(ir: &mut Pipeline, name: &str, kind: TensorKind) {
    if !ir.sizes.iter().any(|size| size.name == "tokens") {
        return;
    }
    let Some(mut own) = ir.tensors.first().cloned() else { return };
    (own.name, own.kind, own.from_handle) = (name.to_string(), kind, None);
    own.elem = ElemType::Scalar { elem: Elem::I32 };
    own.dims = vec![Expr::Name { name: "tokens".to_string(), kind: NameKind::Size }];
    (own.optional, own.copies, own.fill, own.values) = (false, 1, None, None);
    own.when.clear();
    ir.tensors.push(own);
}

fn binder_of(name: &str) -> Expr {
    Expr::Name { name: name.to_string(), kind: NameKind::Binder }
}

fn of_two(op: BinaryOp, left: Expr, right: i64) -> Expr {
    Expr::Binary { op, left: Box::new(left), right: Box::new(Expr::Int { value: right }) }
}

fn swap(ir: &mut Pipeline, is_one: &dyn Fn(&BinaryOp) -> bool) {
    exprs(ir, &mut |part| {
        if let Expr::Binary { op, left, right } = part
            && is_one(op)
        {
            std::mem::swap(left, right);
        }
    });
}

/// The tensors that a statement writes, and those that it reads.
fn touched(stmt: &Stmt) -> (Vec<String>, Vec<String>) {
    let (mut written, mut read) = (Vec::new(), Vec::new());
    ep_codegen::ir::walk::stmts(std::slice::from_ref(stmt), &mut |inner| {
        written.extend(ep_codegen::ir::walk::target(inner).map(|place| place.tensor.clone()));
        ep_codegen::ir::walk::exprs(inner, &mut |part| {
            if let Expr::Element { tensor, .. } = part {
                read.push(tensor.clone());
            }
        });
    });
    (written, read)
}

/// Shows every statement of all roles, inner ones first.
fn stmts(ir: &mut Pipeline, see: &mut dyn FnMut(&mut Stmt)) {
    ir.roles.iter_mut().for_each(|role| change::stmts(&mut role.body, see));
}

/// Shows every expression in all roles, inner ones first.
pub(crate) fn exprs(ir: &mut Pipeline, see: &mut dyn FnMut(&mut Expr)) {
    stmts(ir, &mut |stmt| own_exprs(stmt, see));
}

/// Shows every expression of a statement and of those inside of it.
fn of_stmt(stmt: &mut Stmt, see: &mut dyn FnMut(&mut Expr)) {
    change::stmts(std::slice::from_mut(stmt), &mut |inner| own_exprs(inner, see));
}

fn own_exprs(stmt: &mut Stmt, see: &mut dyn FnMut(&mut Expr)) {
    change::roots(stmt, &mut |root, is_number| {
        change::expr(root, is_number, &mut |part, _| see(part));
    });
}

/// A zero can change the sign of a float, and a truth is no number.
#[test]
fn what_could_change_a_value_stays() {
    let roles = |float: &str, whole: &str, truth: &str| {
        let source = format!(
            "pipeline! {{
                pub pipeline Kept {{
                    shape {{ rows: 1..=8 }}
                    input x: f32[rows], n: i32[rows];
                    output y: f32[rows], m: i32[rows], t: i32[rows];
                    role All on all blocks {{
                        for row in rows {{
                            store y[row] = {float};
                            store m[row] = {whole};
                            store t[row] = {truth};
                        }}
                    }}
                }}
            }}"
        );
        let whole = ep_tests::lowered(&source).remove(0);
        let mut ir = whole.select(&whole.choices().remove(0));
        stmts(&mut ir, &mut |stmt| stmt.at.text.clear());
        ir.roles
    };
    let plain = roles("x[row]", "n[row]", "(n[row] > 2) as i32");
    assert_eq!(roles("1 * x[row + 0]", "0 + n[row]", "(2 < n[row]) as i32"), plain);
    assert_ne!(roles("x[row] + 0", "n[row]", "(n[row] > 2) as i32"), plain);
    assert_ne!(roles("x[row]", "n[row]", "((n[row] > 2) as i32) * 1 + 1"), plain);
}
