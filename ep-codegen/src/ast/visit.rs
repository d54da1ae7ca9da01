//! A walk over everything in declarations and statements that has a place, to change it.

use super::{
    Argument, Blocks, Call, Channel, CudaBody, Domain, Elem, Excerpt, Expr, ExprKind, Field,
    FieldValue, For, Ident, Item, Message, OptionValue, Place, Role, Shape, ShapeEntry, Share,
    Span, Stmt, StmtKind, Tensor, TokenRange, Values, Variant, When, Word,
};

/// What a name does where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameUse {
    /// Binds an index, a message or a part.
    Binder,
    /// Names the value of a `let`.
    Let,
    /// Names a tensor that is written or awaited.
    Tensor,
    /// Names a channel of a statement.
    Channel,
    /// Names a message whose fields are copied.
    Message,
    /// Names the variant of a `when`.
    Axis,
    /// Names a value in an expression.
    Value,
    /// Names a helper or a `cuda fn`.
    Helper,
    /// Names a fragment.
    Fragment,
    /// Names something that no loop, `let` or parameter can stand for: a field, an arm, an element type.
    Other,
}

/// Something that looks at, or changes, each place and name.
pub trait Visitor {
    /// A place.
    fn span(&mut self, _span: &mut Span) {}

    /// A place of several tokens.
    fn range(&mut self, range: &mut TokenRange) {
        self.span(&mut range.first);
        self.span(&mut range.last);
    }

    /// A name.
    fn name(&mut self, name: &mut Ident, _what: NameUse) {
        let mut span = name.span();
        self.span(&mut span);
        name.set_span(span);
    }

    /// An expression.
    fn expr(&mut self, value: &mut Expr) {
        expr(self, value);
    }

    /// The use of statements.
    fn call(&mut self, used: &mut Call) {
        call(self, used);
    }

    /// A declaration.
    fn item(&mut self, declared: &mut Item) {
        item(self, declared);
    }

    /// The statements of a block.
    fn body(&mut self, body: &mut Vec<Stmt>) {
        body.iter_mut().for_each(|inner| stmt(self, inner));
    }
}

fn others<'a, V: Visitor + ?Sized>(to: &mut V, names: impl IntoIterator<Item = &'a mut Ident>) {
    names.into_iter().for_each(|name| to.name(name, NameUse::Other));
}

fn exprs<'a, V: Visitor + ?Sized>(to: &mut V, list: impl IntoIterator<Item = &'a mut Expr>) {
    list.into_iter().for_each(|value| to.expr(value));
}

fn words<T, V: Visitor + ?Sized>(to: &mut V, words: &mut [Word<T>]) {
    words.iter_mut().for_each(|word| to.span(&mut word.span));
}

fn excerpt<V: Visitor + ?Sized>(to: &mut V, source: &mut Excerpt) {
    to.range(&mut source.tokens);
}

/// What a declaration is made of.
pub fn item<V: Visitor + ?Sized>(to: &mut V, declared: &mut Item) {
    match declared {
        Item::Shape(inner) => shape(to, inner),
        Item::Variant(inner) => variant(to, inner),
        Item::Tune(tunes) => tunes.iter_mut().for_each(|tune| {
            others(to, [&mut tune.name]);
            to.span(&mut tune.default.span);
            tune.choices.iter_mut().for_each(|choice| to.span(&mut choice.span));
            excerpt(to, &mut tune.source);
        }),
        Item::Arg(args) => args.iter_mut().for_each(|arg| {
            others(to, [&mut arg.name]);
            elem(to, &mut arg.elem);
            [&mut arg.default, &mut arg.low, &mut arg.high]
                .into_iter()
                .for_each(|number| to.span(&mut number.span));
            excerpt(to, &mut arg.source);
        }),
        Item::Size(size) => {
            others(to, [&mut size.name]);
            exprs(to, &mut size.value);
            size.values.iter_mut().for_each(|range| values(to, range));
            excerpt(to, &mut size.source);
        }
        Item::Tensors(tensors) => {
            to.span(&mut tensors.keyword);
            tensors.list.iter_mut().for_each(|inner| tensor(to, inner));
        }
        Item::Message(inner) => message(to, inner),
        Item::Channel(inner) => channel(to, inner),
        Item::Role(inner) => role(to, inner),
        Item::Phase(phase) => {
            to.span(&mut phase.keyword);
            others(to, [&mut phase.name]);
            phase.items.iter_mut().for_each(|inner| to.item(inner));
        }
        Item::When(inner) => {
            when(to, inner);
            inner.body.iter_mut().for_each(|inner| to.item(inner));
        }
        Item::Uses(uses) => {
            others(to, uses.path.iter_mut().chain([&mut uses.name]));
            uses.tables.iter_mut().flatten().for_each(|table| tensor(to, table));
            excerpt(to, &mut uses.source);
        }
        Item::CudaFn(function) => {
            others(to, [&mut function.name]);
            for param in &mut function.params {
                others(to, [&mut param.name]);
                elem(to, &mut param.elem);
            }
            elem(to, &mut function.returns);
            let (CudaBody::Text { span, .. } | CudaBody::File { span, .. }) = &mut function.body;
            to.span(span);
            excerpt(to, &mut function.source);
        }
        Item::Use(inner) => to.name(&mut inner.name, NameUse::Fragment),
    }
}

fn shape<V: Visitor + ?Sized>(to: &mut V, shape: &mut Shape) {
    to.span(&mut shape.keyword);
    for entry in &mut shape.entries {
        match entry {
            ShapeEntry::Given { name, low, high, step, source } => {
                others(to, [name]);
                let ends = [low, high].into_iter().chain(step);
                ends.for_each(|number| to.span(&mut number.span));
                excerpt(to, source);
            }
            ShapeEntry::Derived { name, value, source } => {
                others(to, [name]);
                to.expr(value);
                excerpt(to, source);
            }
            ShapeEntry::Require { condition, source } => {
                to.expr(condition);
                excerpt(to, source);
            }
        }
    }
}

fn variant<V: Visitor + ?Sized>(to: &mut V, variant: &mut Variant) {
    others(to, [&mut variant.name]);
    for arm in &mut variant.arms {
        others(to, [&mut arm.name]);
        for part in &mut arm.parts {
            others(to, [&mut part.name]);
            elem(to, &mut part.elem);
            part.block.iter_mut().for_each(|block| to.span(&mut block.span));
        }
    }
    excerpt(to, &mut variant.source);
}

fn tensor<V: Visitor + ?Sized>(to: &mut V, tensor: &mut Tensor) {
    others(to, [&mut tensor.name]);
    elem(to, &mut tensor.elem);
    exprs(to, &mut tensor.dims);
    let words = [&mut tensor.optional, &mut tensor.window, &mut tensor.host];
    words.into_iter().flatten().for_each(|word| to.span(word));
    tensor.up_to.iter_mut().for_each(|up_to| to.span(&mut up_to.span));
    if let Some(fill) = &mut tensor.fill {
        to.span(&mut fill.value.span);
        others(to, [&mut fill.beyond]);
    }
    tensor.values.iter_mut().for_each(|range| values(to, range));
    excerpt(to, &mut tensor.source);
}

fn values<V: Visitor + ?Sized>(to: &mut V, values: &mut Values) {
    exprs(to, [&mut values.low, &mut values.high].into_iter().chain(&mut values.step));
    let words = [&mut values.ascending, &mut values.distinct];
    words.into_iter().flatten().for_each(|word| to.span(word));
    to.range(&mut values.at);
}

fn elem<V: Visitor + ?Sized>(to: &mut V, elem: &mut Elem) {
    match elem {
        Elem::Name(name) => others(to, [name]),
        Elem::Bits { keyword, count } => {
            to.span(keyword);
            to.expr(count);
        }
    }
}

fn message<V: Visitor + ?Sized>(to: &mut V, message: &mut Message) {
    others(to, [&mut message.name]);
    for Field { row, name, elem: of, dims, with } in &mut message.fields {
        row.iter_mut().for_each(|word| to.span(word));
        others(to, [name].into_iter().chain(with));
        elem(to, of);
        exprs(to, dims);
    }
    excerpt(to, &mut message.source);
}

fn channel<V: Visitor + ?Sized>(to: &mut V, channel: &mut Channel) {
    let roles = channel.from.iter_mut().chain([&mut channel.to]).chain(&mut channel.parts_per);
    others(to, [&mut channel.name, &mut channel.message].into_iter().chain(roles));
    to.span(&mut channel.kind.span);
    to.span(&mut channel.per.span);
    words(to, &mut channel.over);
    for option in &mut channel.options {
        others(to, [&mut option.name]);
        match &mut option.value {
            OptionValue::Number(value) => to.expr(value),
            OptionValue::Header(names) => others(to, names),
            OptionValue::Slot(axes) => axes.iter_mut().for_each(|axis| {
                others(to, [&mut axis.name]);
                exprs(to, &mut axis.extent);
            }),
            OptionValue::Waive { policy, span, .. } => {
                others(to, [policy]);
                to.span(span);
            }
            OptionValue::Waited(name) => others(to, [name]),
        }
    }
    excerpt(to, &mut channel.source);
}

fn role<V: Visitor + ?Sized>(to: &mut V, role: &mut Role) {
    others(to, [&mut role.name].into_iter().chain(&mut role.binder));
    role.binder_set.iter_mut().for_each(|set| to.span(&mut set.span));
    match &mut role.blocks {
        Blocks::One(block) => to.expr(block),
        Blocks::Range { low, high } => exprs(to, [low, high]),
        Blocks::All | Blocks::Even | Blocks::Odd | Blocks::Other | Blocks::Last => {}
    }
    to.range(&mut role.blocks_at);
    exprs(to, &mut role.warps);
    if let Some(Share::Warps(names)) = &mut role.share {
        others(to, names);
    }
    role.share_at.iter_mut().for_each(|at| to.range(at));
    to.body(&mut role.body);
    excerpt(to, &mut role.source);
}

fn when<T, V: Visitor + ?Sized>(to: &mut V, when: &mut When<T>) {
    to.span(&mut when.keyword);
    to.name(&mut when.axis, NameUse::Axis);
    others(to, &mut when.arms);
}

/// What a statement is made of.
pub fn stmt<V: Visitor + ?Sized>(to: &mut V, stmt: &mut Stmt) {
    match &mut stmt.kind {
        StmtKind::For(inner) => for_(to, inner),
        StmtKind::Announce { channel, values } => {
            target(to, &mut channel.name, NameUse::Channel, &mut channel.indices);
            field_values(to, values);
        }
        StmtKind::Push { channel, position, values, rest } => {
            target(to, &mut channel.name, NameUse::Channel, &mut channel.indices);
            exprs(to, position);
            field_values(to, values);
            rest.iter_mut().for_each(|message| to.name(message, NameUse::Message));
        }
        StmtKind::Store { place, value }
        | StmtKind::Record { place, value }
        | StmtKind::Add { place, value }
        | StmtKind::AwaitWord { place, least: value } => {
            self::place(to, place);
            to.expr(value);
        }
        StmtKind::Count { place } | StmtKind::Raise { place } => self::place(to, place),
        StmtKind::Let { name, value } => {
            to.name(name, NameUse::Let);
            to.expr(value);
        }
        StmtKind::Await { channel } | StmtKind::Close { channel } => {
            to.name(channel, NameUse::Channel);
        }
        StmtKind::When(inner) => {
            when(to, inner);
            to.body(&mut inner.body);
        }
        StmtKind::Call(inner) => to.call(inner),
    }
    to.span(&mut stmt.keyword);
    excerpt(to, &mut stmt.source);
}

/// What the use of statements is made of.
pub fn call<V: Visitor + ?Sized>(to: &mut V, call: &mut Call) {
    to.name(&mut call.name, NameUse::Fragment);
    call.args.iter_mut().for_each(|arg| argument(to, arg));
    to.range(&mut call.at);
}

/// What an argument is made of.
pub fn argument<V: Visitor + ?Sized>(to: &mut V, arg: &mut Argument) {
    match arg {
        Argument::Value(value) => to.expr(value),
        Argument::Block { body, at } => {
            to.body(body);
            to.range(at);
        }
    }
}

fn place<V: Visitor + ?Sized>(to: &mut V, place: &mut Place) {
    target(to, &mut place.tensor, NameUse::Tensor, &mut place.indices);
}

fn target<V: Visitor + ?Sized>(to: &mut V, name: &mut Ident, what: NameUse, at: &mut Vec<Expr>) {
    to.name(name, what);
    exprs(to, at);
}

fn field_values<V: Visitor + ?Sized>(to: &mut V, values: &mut [FieldValue]) {
    for value in values {
        others(to, [&mut value.name]);
        to.expr(&mut value.value);
    }
}

fn for_<V: Visitor + ?Sized>(to: &mut V, inner: &mut For) {
    to.name(&mut inner.binder, NameUse::Binder);
    domain(to, &mut inner.domain);
    exprs(to, inner.position.iter_mut().chain(&mut inner.filter));
    if let Some(gather) = &mut inner.gather {
        to.span(&mut gather.keyword);
        to.name(&mut gather.part, NameUse::Binder);
        target(to, &mut gather.channel.name, NameUse::Channel, &mut gather.channel.indices);
        exprs(to, &mut gather.position);
        to.name(&mut gather.across, NameUse::Binder);
        domain(to, &mut gather.over);
    }
    to.body(&mut inner.body);
}

fn domain<V: Visitor + ?Sized>(to: &mut V, domain: &mut Domain) {
    match domain {
        Domain::Expr(value) => to.expr(value),
        Domain::Range { low, high } => exprs(to, [low, high]),
        Domain::Once { keyword } => to.span(keyword),
    }
}

/// What an expression is made of.
pub fn expr<V: Visitor + ?Sized>(to: &mut V, value: &mut Expr) {
    match &mut value.kind {
        ExprKind::Int(_) | ExprKind::Real(_) | ExprKind::Bool(_) => {}
        ExprKind::Name(name) => to.name(name, NameUse::Value),
        ExprKind::Index { base, indices } => {
            to.expr(base);
            exprs(to, indices);
        }
        ExprKind::Field { base, field } => {
            to.expr(base);
            others(to, [field]);
        }
        ExprKind::Call { helper, args } => {
            to.name(helper, NameUse::Helper);
            exprs(to, args);
        }
        ExprKind::Fold { helper, binder, domain: over, body } => {
            others(to, [helper]);
            to.name(binder, NameUse::Binder);
            domain(to, over);
            to.expr(body);
        }
        ExprKind::Cast { value, elem } => {
            to.expr(value);
            others(to, [elem]);
        }
        ExprKind::Not { value } | ExprKind::Neg { value } => to.expr(value),
        ExprKind::If { condition, yes, no } => exprs(to, [&mut **condition, yes, no]),
        ExprKind::Binary { op_span, left, right, .. } => {
            to.span(op_span);
            exprs(to, [&mut **left, right]);
        }
    }
    to.range(&mut value.at);
}
