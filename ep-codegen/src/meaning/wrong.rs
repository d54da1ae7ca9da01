//! What makes a problem wrong: the declaration, or what a call was given, but not a compiler.

use std::fmt;

/// Why a problem has no outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct Wrong {
    /// Where it was found; none if nothing had run yet.
    pub at: Option<Box<Whereabouts>>,
    /// What is wrong.
    pub fault: Box<Fault>,
    /// What to declare, where the values of a drawn call may be the reason.
    pub help: Option<String>,
}

/// A statement of a role on a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whereabouts {
    /// Rank.
    pub rank: usize,
    /// Role.
    pub role: String,
    /// The stripe, where the role is dealt out by stripes.
    pub stripe: Option<i64>,
    /// Line below the `pipeline` line; 0 between statements.
    pub line: u32,
    /// The statement.
    pub text: String,
}

/// What can be wrong.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// A number, tensor or function that the declaration needs was not given.
    Missing {
        /// What it is: `tensor`, `size`, `number`, `function`.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// A tensor has other extents or another element type than declared.
    Given {
        /// Tensor.
        tensor: String,
        /// As declared.
        wanted: String,
        /// As given.
        found: String,
    },
    /// A value of an input is not in its declared range.
    Range {
        /// Tensor.
        tensor: String,
        /// Element.
        index: Vec<i64>,
        /// Its value.
        value: i64,
        /// What the declaration says.
        wanted: String,
    },
    /// An arg is not in its declared range.
    Arg {
        /// Name.
        name: String,
        /// Its value.
        value: String,
        /// What the declaration says.
        wanted: String,
    },
    /// An index is outside of its extent.
    Index {
        /// Tensor, field or channel.
        of: String,
        /// Position of the index.
        axis: usize,
        /// Index.
        index: i64,
        /// Extent.
        extent: i64,
    },
    /// A value does not fit the element that it goes to.
    Fit {
        /// Tensor or field.
        of: String,
        /// Element.
        index: Vec<i64>,
        /// Value.
        value: String,
        /// Element type.
        elem: &'static str,
    },
    /// A row goes where another number of elements is.
    Extents {
        /// Tensor or field.
        of: String,
        /// Extents of the place.
        wanted: Vec<usize>,
        /// Extents of the value.
        found: Vec<usize>,
    },
    /// Arithmetic without a result in 64 bits.
    Number {
        /// The expression.
        text: String,
        /// Left operand.
        left: i64,
        /// Right operand.
        right: i64,
    },
    /// An element is read that nothing has written.
    NeverWritten {
        /// Tensor.
        tensor: String,
        /// Element.
        index: Vec<i64>,
    },
    /// An element is read that another part of the role, or another role, writes in the same call.
    ReadAcross {
        /// Tensor.
        tensor: String,
        /// Element.
        index: Vec<i64>,
    },
    /// An element is written twice, and the language does not say which write is the last.
    WrittenTwice {
        /// Tensor.
        tensor: String,
        /// Element.
        index: Vec<i64>,
        /// What it holds.
        first: String,
        /// What is written.
        second: String,
    },
    /// More or fewer messages than were announced.
    Announced {
        /// Channel.
        channel: String,
        /// Sender.
        from: usize,
        /// Receiver.
        to: usize,
        /// Stripe.
        stripe: i64,
        /// What the header says.
        announced: i64,
        /// What was pushed; in the first message too many, one more than announced.
        pushed: i64,
    },
    /// A header is announced a second time.
    AnnouncedTwice {
        /// Channel.
        channel: String,
        /// Receiver.
        to: usize,
        /// Stripe.
        stripe: i64,
    },
    /// Messages that nobody takes.
    NotTaken {
        /// Channel.
        channel: String,
        /// Sender.
        from: usize,
        /// Receiver.
        to: usize,
        /// Stripe, 0 for slots.
        stripe: i64,
        /// Messages pushed.
        pushed: usize,
        /// Messages taken.
        taken: usize,
    },
    /// A slot gets a second message.
    SlotTwice {
        /// Channel.
        channel: String,
        /// Its indices.
        index: Vec<i64>,
    },
    /// More messages than counted slots.
    SlotsFull {
        /// Channel.
        channel: String,
        /// The indices that are given.
        index: Vec<i64>,
        /// Slots there.
        extent: i64,
    },
    /// A push behind the `close` of its role.
    AfterClose {
        /// Channel.
        channel: String,
    },
    /// The index of a channel is none of its peers.
    Peer {
        /// Channel.
        channel: String,
        /// Index.
        index: i64,
    },
    /// A gather from a ring goes back.
    OutOfOrder {
        /// Channel.
        channel: String,
        /// Position asked for.
        position: i64,
        /// The first that has not been taken.
        next: i64,
    },
    /// The position behind `at` is another one for a later message of the same turn.
    MovedPosition {
        /// Channel.
        channel: String,
        /// Of the first message.
        first: i64,
        /// Of this one.
        now: i64,
    },
    /// Something is waited for that nobody will send.
    NeverSent {
        /// What is waited for.
        wait: Awaited,
    },
    /// Roles wait for one another.
    Circle {
        /// Who waits for what.
        waits: Vec<(Whereabouts, Awaited)>,
    },
    /// A form that the checker refuses.
    Form {
        /// What it is.
        text: String,
    },
}

/// What a role waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Awaited {
    /// Channel.
    pub channel: String,
    /// A header, a message, room.
    pub what: String,
    /// Whose move it is.
    pub ranks: Vec<usize>,
    /// Whether it is the consumer who moves next.
    pub(super) for_room: bool,
}

impl fmt::Display for Whereabouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}, {}", self.rank, self.role)?;
        if let Some(stripe) = self.stripe {
            write!(f, ", stripe {stripe}")?;
        }
        if self.line > 0 { write!(f, ", +{} `{}`", self.line, self.text) } else { Ok(()) }
    }
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of `{}`, rank {:?}", self.what, self.channel, self.ranks)
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            Some(at) => write!(f, "{at}: {}", self.fault)?,
            None => self.fault.fmt(f)?,
        }
        self.help.iter().try_for_each(|help| write!(f, "; {help}"))
    }
}

impl std::error::Error for Wrong {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Missing { what, name } => write!(f, "the {what} `{name}` was not given"),
            Fault::Given { tensor, wanted, found } => {
                write!(f, "`{tensor}` is {found}, declared as {wanted}")
            }
            Fault::Range { tensor, index, value, wanted } => {
                write!(f, "{tensor}{index:?} is {value}, declared {wanted}")
            }
            Fault::Arg { name, value, wanted } => write!(f, "`{name}` is {value}, not {wanted}"),
            Fault::Index { of, axis, index, extent } => {
                write!(f, "index {axis} of `{of}` is {index}, and its extent is {extent}")
            }
            Fault::Fit { of, index, value, elem } => {
                write!(f, "{value} does not fit {of}{index:?}, which is `{elem}`")
            }
            Fault::Extents { of, wanted, found } => {
                write!(f, "`{of}` takes {wanted:?} elements, and the value has {found:?}")
            }
            Fault::Number { text, left, right } => {
                write!(f, "`{text}` has no value with {left} and {right}")
            }
            Fault::NeverWritten { tensor, index } => {
                write!(f, "{tensor}{index:?} is read, and nothing has written it")
            }
            Fault::ReadAcross { tensor, index } => {
                write!(f, "{tensor}{index:?} is read while other warps may write it")
            }
            Fault::WrittenTwice { tensor, index, first, second } => {
                write!(f, "{tensor}{index:?} is written twice: {first}, then {second}")
            }
            _ => self.of_channels(f),
        }
    }
}

impl Fault {
    fn of_channels(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Announced { channel, from, to, stripe, announced, pushed } => write!(
                f,
                "rank {from} announced {announced} messages of `{channel}` to rank {to} for stripe \
                 {stripe}, and pushed {pushed}"
            ),
            Fault::AnnouncedTwice { channel, to, stripe } => {
                write!(f, "`{channel}` is announced twice to rank {to} for stripe {stripe}")
            }
            Fault::NotTaken { channel, from, to, stripe, pushed, taken } => write!(
                f,
                "rank {to} takes {taken} of {pushed} messages of `{channel}` from rank {from}, \
                 stripe {stripe}"
            ),
            Fault::SlotTwice { channel, index } => {
                write!(f, "the slot {channel}{index:?} gets two messages")
            }
            Fault::SlotsFull { channel, index, extent } => {
                write!(f, "{channel}{index:?} has {extent} slots and receives more messages")
            }
            Fault::AfterClose { channel } => write!(f, "`{channel}` is closed already"),
            Fault::Peer { channel, index } => write!(f, "{index} is no peer of `{channel}`"),
            Fault::OutOfOrder { channel, position, next } => write!(
                f,
                "position {position} of `{channel}` is requested, and all positions before {next} have \
                been taken"
            ),
            Fault::MovedPosition { channel, first, now } => {
                write!(
                    f,
                    "a push gives {now} as the position of the stripe's first row in `{channel}`, \
                and an earlier push of the same warp gave {first}"
                )
            }
            Fault::NeverSent { wait } => {
                write!(f, "no rank will send what this role waits for: {wait}")
            }
            Fault::Circle { waits } => {
                f.write_str("roles wait for one another")?;
                waits.iter().try_for_each(|(at, wait)| write!(f, "\n  {at}: {wait}"))
            }
            Fault::Form { text } => write!(f, "`{text}` has no meaning"),
            _ => Ok(()),
        }
    }
}

impl Wrong {
    /// What is wrong before anything has run, or when all has.
    pub(super) fn of_call(fault: impl Into<Fault>) -> Wrong {
        Wrong { at: None, fault: Box::new(fault.into()), help: None }
    }
}

/// What ends an evaluation without a value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Stop {
    /// Something has to come first.
    Wait(Awaited),
    /// An optional tensor is not there.
    Absent,
    /// The messages of this channel turn out to be in no fixed order.
    Open(usize),
    /// There is no value.
    Wrong(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Wrong(fault)
    }
}

/// What most functions here give.
pub(super) type Found<T> = Result<T, Stop>;
