//! The seam between the message flow and a chat network: small traits, one for each thing that a network can do.
//!
//! A network knows its own protocol and nothing of engines, runs or sessions. The flow knows runs and sessions and nothing of
//! protocols. Every future here may be dropped at any await: a connection that is dropped is closed, a request that is dropped
//! is given up. Nothing here owns a task, a signal handler or a runtime.

#[cfg(test)]
pub(crate) mod recording;

use std::time::Duration;

use axum::http::HeaderMap;
use futures_util::future::BoxFuture;
use quell_protocol::Attachment;

use super::format::{Form, Piece};

/// One chat network, reached with one account: what is configured as `[channels.X]`.
pub trait Network: Send + Sync + 'static {
    /// How it wants to be written to.
    fn manners(&self) -> Manners;

    /// Connects and listens, and tells `ear` what it hears, until the connection is lost. It never tries again by itself: its
    /// caller does, after a pause. A network without a connection of its own (one that is called) waits for ever.
    fn listen<'a>(&'a self, ear: &'a dyn Ear) -> BoxFuture<'a, Lost>;

    /// Sends one piece. `key` is the same when the same piece is sent again, for networks that then show it once.
    fn send<'a>(
        &'a self,
        place: &'a Place,
        piece: &'a Piece,
        key: &'a str,
    ) -> BoxFuture<'a, Result<MessageId, NotSent>>;

    /// Sends one piece before all that waits in this network, such as the answer to a stop. Only a network that keeps a queue of its
    /// own has to do something about it.
    fn send_first<'a>(
        &'a self,
        place: &'a Place,
        piece: &'a Piece,
        key: &'a str,
    ) -> BoxFuture<'a, Result<MessageId, NotSent>> {
        self.send(place, piece, key)
    }

    /// Asks the network who this account is, without listening: for `quell channels test` and `quell doctor`. The answer is
    /// one line for people.
    fn probe(&self) -> BoxFuture<'_, Result<String, Trouble>>;

    /// Messages that can be changed after they were sent.
    fn drafts(&self) -> Option<&dyn Drafts> {
        None
    }

    /// A sign that somebody is writing.
    fn typing(&self) -> Option<&dyn Typing> {
        None
    }

    /// Signs on messages.
    fn reactions(&self) -> Option<&dyn Reactions> {
        None
    }

    /// Files that come and go with messages.
    fn files(&self) -> Option<&dyn Files> {
        None
    }

    /// The door of a network that calls Quell.
    fn inbound(&self) -> Option<&dyn Inbound> {
        None
    }
}

/// The door of a network that calls Quell, and proves by each call itself who calls.
pub trait Inbound: Send + Sync {
    /// The most bytes of a body that are read.
    fn largest(&self) -> usize;

    /// Checks a call and reads its message. `now` is the machine's time in seconds since 1970. The same message may come again:
    /// it has the same id then.
    ///
    /// # Errors
    /// Why it is not taken, in words that the caller may read.
    fn read(&self, headers: &HeaderMap, body: &[u8], now: i64) -> Result<Heard, Unwelcome>;
}

/// Messages that can be changed after they were sent.
pub trait Drafts: Send + Sync {
    /// Puts a piece in the place of an earlier message. Doing it again changes nothing.
    fn edit<'a>(
        &'a self,
        place: &'a Place,
        message: &'a MessageId,
        piece: &'a Piece,
    ) -> BoxFuture<'a, Result<(), NotSent>>;
}

/// A sign that somebody is writing, which fades by itself.
pub trait Typing: Send + Sync {
    /// Shows it for some seconds more.
    fn show<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<(), NotSent>>;

    /// Takes it away. Networks where only time or a message does that have nothing to do.
    fn hide<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<(), NotSent>>;
}

/// Signs on messages, one of which the account puts there at a time.
pub trait Reactions: Send + Sync {
    /// Puts a sign, an emoji, on a message.
    fn add<'a>(&'a self, place: &'a Place, message: &'a MessageId, sign: &'a str)
    -> BoxFuture<'a, Result<(), NotSent>>;

    /// Takes that sign off again. One that is not there is no error.
    fn remove<'a>(
        &'a self,
        place: &'a Place,
        message: &'a MessageId,
        sign: &'a str,
    ) -> BoxFuture<'a, Result<(), NotSent>>;
}

/// Files that come and go with messages.
pub trait Files: Send + Sync {
    /// Fetches a file that came with a message, `most` bytes at the most.
    fn fetch<'a>(&'a self, attachment: &'a Attachment, most: u64) -> BoxFuture<'a, Result<Vec<u8>, Trouble>>;

    /// Sends a file: `attachment` names it, `bytes` is what it holds.
    fn send<'a>(
        &'a self,
        place: &'a Place,
        attachment: &'a Attachment,
        bytes: Vec<u8>,
    ) -> BoxFuture<'a, Result<MessageId, NotSent>>;
}

/// Whom a network tells what it hears. Implemented by the flow.
pub trait Ear: Send + Sync {
    /// It is connected and hears: the pause before the next try starts small again.
    fn connected(&self, own: Own);

    /// A message came. Returns at once, and a stop has acted when it does. The same message may be told again after a
    /// reconnect: it counts once.
    fn hear(&self, heard: Heard);

    /// Waits until everything heard so far is in the database or was refused, so that the network's own copy may be let go.
    fn settled(&self) -> BoxFuture<'_, ()>;

    /// What was kept last: where to go on listening after a restart.
    fn cursor(&self) -> BoxFuture<'_, Option<String>>;

    /// Keeps where to go on listening. Call it after [`Ear::settled`].
    fn keep_cursor(&self, cursor: String) -> BoxFuture<'_, ()>;
}

/// The account itself, as the network names it. Its own messages are not heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Own {
    /// As it stands in [`Heard::sender`].
    pub id: String,
    /// For people.
    pub name: String,
}

/// A message as a network hears it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// The network's id, unique in this channel: also when two rooms number their messages alike.
    pub id: String,
    /// By which a reply, an edit or a reaction names it.
    pub message: MessageId,
    /// Who wrote it.
    pub sender: String,
    /// The name that people see.
    pub sender_name: Option<String>,
    /// Where it stands, and where an answer goes.
    pub place: Place,
    /// What an interruption is confined to besides sender and target, if the network knows such a thing.
    pub scope_id: Option<String>,
    /// The text, without the words by which the account was addressed.
    pub text: String,
    /// True when it is meant for this account. What is not is heard for its stop words alone.
    pub addressed: bool,
    /// True when more than two can read it.
    pub group: bool,
    /// What came with it.
    pub attachments: Vec<Attachment>,
}

/// Where a message stands, and where an answer to it goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// Chat, room or person.
    pub target: String,
    /// Thread in it, where the network has any.
    pub thread: Option<String>,
}

/// The network's name of one message, opaque to the flow.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MessageId(pub String);

/// How a network wants to be written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manners {
    /// How text is written, and how much fits into one message.
    pub form: Form,
    /// Between two changes of one draft.
    pub edit_every: Duration,
    /// How often the sign that somebody is writing is shown again.
    pub typing_every: Duration,
}

/// Why listening ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The connection broke, the server went away or asked to come back: it is tried again.
    #[error("{0}")]
    Connection(String),
    /// The server says how long to stay away.
    #[error("{why}; it wants to be left alone for {} s", after.as_secs())]
    Busy {
        /// What it said.
        why: String,
        /// For how long.
        after: Duration,
    },
    /// The server does not take this account. Trying again seldom helps, so it is tried seldom.
    #[error("{0}")]
    Refused(String),
}

/// Why one piece was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    /// It is certain that the network does not show it, and it may be sent again, after the given time if there is one.
    #[error("not delivered: {why}")]
    Undelivered {
        /// What happened.
        why: String,
        /// When the network wants to be asked again.
        after: Option<Duration>,
    },
    /// It is certain that the network does not show it, and never will.
    #[error("not delivered: {why}")]
    Refused {
        /// What the network said.
        why: String,
    },
    /// The answer was lost: it may be shown or not. Only a network that shows a repeated key once is asked again.
    #[error("it is not known whether it was delivered: {why}")]
    Unknown {
        /// What happened.
        why: String,
        /// True when sending it again with the same key shows it once.
        repeatable: bool,
    },
}

/// Why a call was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unwelcome {
    /// Its body is larger than anything that is taken.
    #[error("{0}")]
    TooLarge(String),
    /// It does not prove who calls.
    #[error("{0}")]
    Unproven(String),
    /// The proof is good, and not from now: it may be somebody else's copy.
    #[error("{0}")]
    Stale(String),
    /// The caller is who they should be, and this is no message.
    #[error("{0}")]
    Malformed(String),
}

/// Why something else did not work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Trouble(pub String);
