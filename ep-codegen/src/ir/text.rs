//! A pipeline and its facts as text for people: what `explain` shows and snapshots hold.

mod derived;

use std::fmt::Write;

pub use derived::{facts_by_choice, facts_text};

use super::helpers::SLOT;
use super::{
    Action, Arm, Axis, BinaryOp, Blocks, CONDITION, Channel, DimKind, Domain, Elem, ElemType, Expr,
    Field, FieldValue, Memory, PeerSet, Pipeline, Place, Role, Share, Stmt, Tensor, TensorKind,
    Transport, Values, Waiver, WellKnown, When,
};

/// The whole pipeline, guards included.
pub fn pipeline(ir: &Pipeline) -> String {
    let mut out = format!("pipeline {}\n", ir.name);
    numbers(ir, &mut out);
    for used in &ir.uses {
        line(&mut out, 1, &format!("uses handle {used}"));
    }
    for tensor in &ir.tensors {
        line(&mut out, 1, &format!("{}{}", guard(&tensor.when), self::tensor(tensor)));
    }
    for message in &ir.messages {
        let fields: Vec<String> = message.fields.iter().map(field).collect();
        let head = format!("{}message {}", guard(&message.when), message.name);
        line(&mut out, 1, &format!("{head} {{ {} }}", fields.join(", ")));
    }
    for channel in &ir.channels {
        line(&mut out, 1, &format!("{}{}", guard(&channel.when), self::channel(channel)));
    }
    for function in &ir.cuda_fns {
        let params: Vec<String> = function
            .params
            .iter()
            .map(|param| format!("{}: {}", param.name, elem(&param.elem)))
            .collect();
        let head = format!("cuda fn {}({})", function.name, params.join(", "));
        line(&mut out, 1, &format!("{head} -> {}", elem(&function.returns)));
    }
    for role in &ir.roles {
        line(&mut out, 1, &format!("+{} {}{}", role.at.line, guard(&role.when), self::role(role)));
        body(&role.body, 2, &mut out);
    }
    out
}

fn line(out: &mut String, depth: usize, text: &str) {
    out.push_str(&"  ".repeat(depth));
    out.push_str(text);
    out.push('\n');
}

fn numbers(ir: &Pipeline, out: &mut String) {
    for dim in &ir.dims {
        let value = match &dim.kind {
            DimKind::Given { low, high, step: 1 } => format!(": {low}..={high}"),
            DimKind::Given { low, high, step } => format!(": {low}..={high} step {step}"),
            DimKind::Derived { value } => format!(" = {}", expr(value)),
        };
        line(out, 1, &format!("dim {}{value}", dim.name));
    }
    for require in &ir.requires {
        line(out, 1, &format!("{}require {}", guard(&require.when), expr(&require.condition)));
    }
    for axis in &ir.axes {
        line(out, 1, &self::axis(axis));
    }
    for tune in &ir.tunes {
        let head = format!("{}tune {}", guard(&tune.when), tune.name);
        line(out, 1, &format!("{head}: {} in {:?}", tune.default, tune.choices));
    }
    for arg in &ir.args {
        let head = format!("{}arg {}: {}", guard(&arg.when), arg.name, elem(&arg.elem));
        line(out, 1, &format!("{head} = {} in {}..={}", arg.default, arg.low, arg.high));
    }
    for size in &ir.sizes {
        let value =
            size.value.as_ref().map_or(String::new(), |value| format!(" = {}", expr(value)));
        let values = size.values.as_ref().map(values_of).unwrap_or_default();
        line(out, 1, &format!("size {}{value}{values}", size.name));
    }
}

/// A variant as declared.
pub fn axis(axis: &Axis) -> String {
    let arm = |arm: &Arm| {
        let parts: Vec<String> = arm
            .parts
            .iter()
            .map(|part| match part.block {
                1 => format!("{}: {}", part.name, elem(&part.elem)),
                block => format!("{}: {} block {block}", part.name, elem(&part.elem)),
            })
            .collect();
        if parts.is_empty() {
            arm.name.clone()
        } else {
            format!("{} {{ {} }}", arm.name, parts.join(", "))
        }
    };
    let arms: Vec<String> = axis.arms.iter().map(arm).collect();
    format!("variant {} {{ {} }}", axis.name, arms.join(", "))
}

fn guard(when: &[When]) -> String {
    let mut out = String::new();
    for condition in when {
        out.push_str(&format!("[{} is {}] ", condition.axis, condition.arms.join(" | ")));
    }
    out
}

/// A tensor as declared.
pub fn tensor(tensor: &Tensor) -> String {
    let kind = match tensor.kind {
        TensorKind::Input => "input",
        TensorKind::Output => "output",
        TensorKind::Inout => "inout",
        TensorKind::Table => "table",
    };
    let mut out = format!("{kind} {}: ", tensor.name);
    if tensor.optional {
        out.push_str("optional ");
    }
    if tensor.copies > 1 {
        let _ = write!(out, "up to {} ", tensor.copies);
    }
    let _ = write!(out, "{}[{}]", elem_type(&tensor.elem), exprs(&tensor.dims));
    match tensor.memory {
        Memory::Device => {}
        Memory::Window => out.push_str(" in window"),
        Memory::Host => out.push_str(" to host"),
    }
    if let Some(fill) = tensor.fill {
        let _ = write!(out, " fill {fill}");
    }
    if let Some(values) = &tensor.values {
        out.push_str(&self::values_of(values));
    }
    if let Some(handle) = &tensor.from_handle {
        let _ = write!(out, " of the handle of {handle}");
    }
    out
}

/// ` in low..high` and what else is said of the values.
pub fn values_of(values: &Values) -> String {
    let mut out = format!(" in {}..{}", expr(&values.low), expr(&values.high));
    if values.ascending {
        out.push_str(" ascending");
    }
    if let Some(step) = &values.step {
        let _ = write!(out, " by at most {}", expr(step));
    }
    if values.distinct {
        out.push_str(" distinct");
    }
    out
}

fn field(field: &Field) -> String {
    let row = if field.row { "row " } else { "" };
    let dims =
        if field.dims.is_empty() { String::new() } else { format!("[{}]", exprs(&field.dims)) };
    let with = field.optional_with.as_ref().map_or(String::new(), |with| format!(" with {with}"));
    format!("{row}{}: {}{dims}{with}", field.name, elem_type(&field.elem))
}

/// A channel as declared.
pub fn channel(channel: &Channel) -> String {
    let kind = channel.kind.traits().word;
    let over: Vec<&str> = channel.over.iter().map(transport).collect();
    let mut out = format!(
        "channel {}: {kind}<{}> over {} from {} to {} per {}",
        channel.name,
        channel.message,
        over.join(" | "),
        channel.from.join(", "),
        channel.to,
        peers(&channel.per)
    );
    if let Some(parts) = &channel.parts_per {
        let _ = write!(out, ", one part per {parts}");
    }
    let mut options: Vec<String> = channel
        .options
        .iter()
        .map(|option| format!("{}: {}", option.name, expr(&option.value)))
        .collect();
    if !channel.header.is_empty() {
        options.push(format!("header: [{}]", channel.header.join(", ")));
    }
    if !channel.slot.is_empty() {
        let axes = channel.slot_names.iter().zip(&channel.slot);
        let axes: Vec<String> =
            axes.map(|(name, size)| format!("{name}: {}", expr(size))).collect();
        options.push(format!("slot: [{}]", axes.join(", ")));
    }
    if let Some(tensor) = &channel.waited {
        options.push(format!("waited: {tensor}"));
    }
    if let Some(Waiver { policy, reason }) = &channel.waiver {
        options.push(format!("waive: {policy} {reason:?}"));
    }
    if !options.is_empty() {
        let _ = write!(out, " {{ {} }}", options.join(", "));
    }
    out
}

pub(crate) fn transport(transport: &Transport) -> &'static str {
    match transport {
        Transport::Nvlink => "nvlink",
        Transport::Rdma => "rdma",
        Transport::Ibgda => "ibgda",
    }
}

/// The word for a set of peers.
pub(crate) fn peers(set: &PeerSet) -> &'static str {
    match set {
        PeerSet::All => "all",
        PeerSet::Others => "others",
        PeerSet::Local => "local",
        PeerSet::Rail => "rail",
    }
}

/// A role as declared, without its body.
pub fn role(role: &Role) -> String {
    let mut out = format!("role {}", role.name);
    if let Share::Peer { binder, set } = &role.share {
        let _ = write!(out, "[{binder} in {}]", peers(set));
    }
    let _ = write!(out, " on {}", blocks(&role.blocks));
    if let Some(warps) = &role.warps {
        let _ = write!(out, ", {} warps", expr(warps));
    }
    match &role.share {
        Share::Peer { .. } => {}
        Share::Stripe => out.push_str(", warps shared by stripe"),
        Share::Token => out.push_str(", warps shared by token"),
        Share::SourceStripe => out.push_str(", warps shared by (source, stripe)"),
        Share::Indices { names } if names.len() == 1 => {
            let _ = write!(out, ", warps shared by {}", names.join(", "));
        }
        Share::Indices { names } => {
            let _ = write!(out, ", warps shared by ({})", names.join(", "));
        }
        Share::BlockPerToken => out.push_str(", one block a token"),
        Share::Team => out.push_str(", one team"),
    }
    if let Some(phase) = &role.phase {
        let _ = write!(out, ", in phase {phase}");
    }
    out
}

/// Blocks as declared.
pub fn blocks(blocks: &Blocks) -> String {
    match blocks {
        Blocks::All => "all blocks".to_string(),
        Blocks::Even => "even blocks".to_string(),
        Blocks::Odd => "odd blocks".to_string(),
        Blocks::Other => "other blocks".to_string(),
        Blocks::Last => "last block".to_string(),
        Blocks::Range { low, high } => format!("blocks {}..{}", expr(low), expr(high)),
    }
}

fn body(stmts: &[Stmt], depth: usize, out: &mut String) {
    for stmt in stmts {
        let text = format!("+{} {}{}", stmt.at.line, guard(&stmt.when), action(&stmt.action));
        line(out, depth, &text);
        body(super::walk::nested(stmt), depth + 1, out);
    }
}

/// A statement as it would be declared, without its block.
pub fn action(action: &Action) -> String {
    match action {
        Action::For { domain: Domain::Once, filter, .. } => match filter {
            Some(name) if is_condition(name) => "then".to_string(),
            Some(Expr::Not { value }) if is_condition(value) => "else".to_string(),
            _ => clause("if ", filter),
        },
        Action::Let { name, value } if name == CONDITION => format!("if {}", expr(value)),
        Action::For { binder, domain, position, filter, .. } => format!(
            "for {binder} in {}{}{}",
            self::domain(domain),
            at(position.as_ref()),
            clause(" where ", filter)
        ),
        Action::Receive { binder, channel, peer, position, filter, .. } => format!(
            "for {binder} in {channel}{}{}{}",
            index(peer),
            at(position.as_ref()),
            clause(" where ", filter)
        ),
        Action::Gather { binder, domain, part, channel, peer, position, across, over, .. } => {
            format!(
                "for {binder} in {} gather {part} from {channel}{}{} across {across} in {}",
                self::domain(domain),
                index(peer),
                at(Some(position)),
                self::domain(over)
            )
        }
        Action::Announce { channel, peer, values } => {
            let peer = axes(peer).join(", ");
            format!("announce {channel}[{peer}] {}", self::values(values))
        }
        Action::Push { channel, peer, position, values } => format!(
            "push {channel}{}{} {}",
            index(peer),
            at(position.as_ref()),
            self::values(values)
        ),
        Action::Store { target, value } => format!("store {} = {}", place(target), expr(value)),
        Action::Record { target, value } => format!("record {} = {}", place(target), expr(value)),
        Action::Count { target } => format!("count {}", place(target)),
        Action::Raise { target } => format!("raise {}", place(target)),
        Action::AwaitWord { word, least } => format!("await {} >= {}", place(word), expr(least)),
        Action::Add { target, value } => format!("add {} = {}", place(target), expr(value)),
        Action::Let { name, value } => format!("let {name} = {}", expr(value)),
        Action::Await { channel } => format!("await {channel}"),
        Action::Close { channel } => format!("close {channel}"),
    }
}

fn index(peer: &Option<Expr>) -> String {
    peer.as_ref().map_or(String::new(), |peer| format!("[{}]", axes(peer).join(", ")))
}

fn at(position: Option<&Expr>) -> String {
    let Some(position) = position else { return String::new() };
    match axes(position).as_slice() {
        [only] => format!(" at {only}"),
        several => format!(" at [{}]", several.join(", ")),
    }
}

/// The axes of an index, of which there may be several.
fn axes(index: &Expr) -> Vec<String> {
    match index {
        Expr::Call { helper, args } if helper == SLOT => args.iter().map(expr).collect(),
        other => vec![expr(other)],
    }
}

fn clause(word: &str, value: &Option<Expr>) -> String {
    value.as_ref().map_or(String::new(), |value| format!("{word}{}", expr(value)))
}

fn values(values: &[FieldValue]) -> String {
    let values: Vec<String> =
        values.iter().map(|field| format!("{}: {}", field.name, expr(&field.value))).collect();
    if values.is_empty() { "{}".to_string() } else { format!("{{ {} }}", values.join(", ")) }
}

fn place(place: &Place) -> String {
    indexed(&place.tensor, &place.indices)
}

fn indexed(name: &str, indices: &[Expr]) -> String {
    if indices.is_empty() { name.to_string() } else { format!("{name}[{}]", exprs(indices)) }
}

fn domain(domain: &Domain) -> String {
    match domain {
        Domain::Tokens => WellKnown::Tokens.name().to_string(),
        Domain::Stripe => "stripe".to_string(),
        Domain::Dim { name } => name.clone(),
        Domain::Peers { set } => peers(set).to_string(),
        Domain::Row { row } => expr(row),
        Domain::ReceivedFrom { peer } => format!("received from {}", expr(peer)),
        Domain::Range { low, high } => format!("{}..{}", expr(low), expr(high)),
        Domain::Once => "0..1".to_string(),
    }
}

/// Whether an expression is the name of what an `if` has found out.
fn is_condition(expr: &Expr) -> bool {
    matches!(expr, Expr::Name { name, .. } if name == CONDITION)
}

fn exprs(list: &[Expr]) -> String {
    list.iter().map(expr).collect::<Vec<_>>().join(", ")
}

/// An expression as it would be declared.
pub fn expr(whole: &Expr) -> String {
    match whole {
        Expr::Int { value } => value.to_string(),
        Expr::Real { bits } => format!("{:?}", f32::from_bits(*bits)),
        Expr::Bool { value } => value.to_string(),
        Expr::Name { name, .. } => name.clone(),
        Expr::Element { tensor, indices } => indexed(tensor, indices),
        Expr::Field { of, field, indices } => indexed(&format!("{of}.{field}"), indices),
        Expr::OfChannel { channel, index, field, indices } => {
            indexed(&format!("{}.{field}", indexed(channel, index)), indices)
        }
        Expr::Call { helper, args } => format!("{helper}({})", exprs(args)),
        Expr::Fold { fold, binder, domain, body } => {
            let word = fold.word();
            format!("{word}({binder} in {}: {})", self::domain(domain), expr(body))
        }
        Expr::Cast { value, elem } => format!("{} as {}", inner(value, AS), self::elem(elem)),
        Expr::Binary { op, left, right } => {
            let (sign, power) = operator(op);
            // A chain goes to the left, and comparisons form none.
            let least = if power == COMPARISON { power + 1 } else { power };
            format!("{} {sign} {}", inner(left, least), inner(right, power + 1))
        }
        Expr::Not { value } => format!("!{}", inner(value, AS + 1)),
        Expr::If { condition, yes, no } => {
            format!("if {} {{ {} }} else {{ {} }}", expr(condition), expr(yes), expr(no))
        }
    }
}

/// How tightly comparisons bind; see [`operator`].
const COMPARISON: u8 = 3;

/// How tightly `as` binds; see [`operator`].
const AS: u8 = 6;

/// An operand, in brackets when it binds less tightly than its surroundings.
fn inner(operand: &Expr, least: u8) -> String {
    let power = match operand {
        Expr::Binary { op, .. } => operator(op).1,
        Expr::Cast { .. } => AS,
        _ => AS + 1,
    };
    if power < least { format!("({})", expr(operand)) } else { expr(operand) }
}

/// The sign of an operator, and how tightly it binds.
pub(crate) fn operator(op: &BinaryOp) -> (&'static str, u8) {
    match op {
        BinaryOp::Or => ("||", 1),
        BinaryOp::And => ("&&", 2),
        BinaryOp::Eq => ("==", COMPARISON),
        BinaryOp::Ne => ("!=", COMPARISON),
        BinaryOp::Lt => ("<", COMPARISON),
        BinaryOp::Le => ("<=", COMPARISON),
        BinaryOp::Gt => (">", COMPARISON),
        BinaryOp::Ge => (">=", COMPARISON),
        BinaryOp::Add => ("+", 4),
        BinaryOp::Sub => ("-", 4),
        BinaryOp::Mul => ("*", 5),
        BinaryOp::Div => ("/", 5),
        BinaryOp::Rem => ("%", 5),
    }
}

/// An element type as declared.
pub fn elem_type(elem: &ElemType) -> String {
    match elem {
        ElemType::Scalar { elem } => self::elem(elem).to_string(),
        ElemType::OfAxis { axis } => axis.clone(),
        ElemType::Bits { count } => format!("bits[{}]", expr(count)),
    }
}

/// The name of an element type.
pub fn elem(elem: &Elem) -> &'static str {
    match elem {
        Elem::Bool => "bool",
        Elem::U8 => "u8",
        Elem::I8 => "i8",
        Elem::I32 => "i32",
        Elem::I64 => "i64",
        Elem::F32 => "f32",
        Elem::Bf16 => "bf16",
        Elem::E4m3 => "e4m3",
        Elem::Ue8m0 => "ue8m0",
    }
}
