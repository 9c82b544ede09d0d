//! What a run has to do with the chat network that its message came from: the message itself, and the courier who fetches what
//! came with it and carries the answer there. It knows no network.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use quell_protocol::{ChannelMessage, SessionKey};

use crate::scope::Scope;

/// A run's errand in a chat network. Clones are the same.
#[derive(Clone)]
pub struct Errand(Arc<Inner>);

struct Inner {
    message: ChannelMessage,
    orders: Orders,
    courier: Arc<dyn Courier>,
}

/// What a run on an errand works by.
#[derive(Debug, Clone, Default)]
pub struct Orders {
    /// Lines that the model reads besides the message.
    pub notes: Vec<String>,
    /// The line that says how an answer sends files, for agents that may; none where the network takes none.
    pub files_note: Option<String>,
    /// The model that answers this message instead of the agent's; a session that chose one itself keeps that.
    pub model: Option<String>,
    /// Characters of earlier turns that the model is shown at the most.
    pub history_chars: usize,
}

/// Where a run stands while its courier works: what it starts belongs to the run's scope, and files to the agent's workdir.
#[derive(Debug, Clone, Copy)]
pub struct Spot<'a> {
    /// The run's scope.
    pub scope: &'a Scope,
    /// Its session.
    pub session: &'a SessionKey,
    /// The agent's workdir.
    pub workdir: &'a Path,
    /// The files that an answer may send; what names another one is text.
    pub sendable: &'a [String],
}

/// Fetches and carries for one run. Both futures may be dropped at any await: a stop does that, and what they had open at the
/// network is closed then.
pub trait Courier: Send + Sync {
    /// Fetches what came with the message into the agent's workdir. Answers the text that stands for it, such as `[IMAGE:/path]`, one line
    /// for each; a file that cannot be had has a line that says why.
    fn fetch<'a>(&'a self, spot: Spot<'a>) -> BoxFuture<'a, Vec<String>>;

    /// Makes an answer fit to be shown, before it is stored. Never blank.
    fn edit(&self, answer: &str) -> String;

    /// The files that an answer names, each once.
    fn files_of(&self, answer: &str) -> Vec<String>;

    /// Carries an answer to where the message came from. Files that it names are those of the agent's workdir.
    fn deliver<'a>(&'a self, answer: &'a str, spot: Spot<'a>) -> BoxFuture<'a, Result<(), Undelivered>>;

    /// A hook took this message or its answer out of the way, for this reason.
    fn withheld(&self, reason: &str);
}

/// What became of an answer that was not carried as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Undelivered {
    /// Nothing of it is shown.
    #[error("the answer was not delivered: {0}")]
    Nothing(String),
    /// Its beginning is shown.
    #[error("{sent} of {of} parts of the answer were delivered: {why}")]
    Partly {
        /// Parts that are shown.
        sent: usize,
        /// All parts.
        of: usize,
        /// What happened then.
        why: String,
    },
    /// Nobody knows.
    #[error("it is not known whether the answer was delivered: {0}")]
    Unknown(String),
}

impl Undelivered {
    /// In a word, for the receipt.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Nothing(_) => "undelivered",
            Self::Partly { .. } => "partly",
            Self::Unknown(_) => "unknown",
        }
    }
}

impl Errand {
    /// An errand for a message.
    #[must_use]
    pub fn new(message: ChannelMessage, orders: Orders, courier: Arc<dyn Courier>) -> Self {
        Self(Arc::new(Inner { message, orders, courier }))
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> &ChannelMessage {
        &self.0.message
    }

    /// What the run works by.
    #[must_use]
    pub fn orders(&self) -> &Orders {
        &self.0.orders
    }

    /// Who fetches and carries.
    #[must_use]
    pub fn courier(&self) -> &dyn Courier {
        self.0.courier.as_ref()
    }
}

impl fmt::Debug for Errand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errand({} {})", self.0.message.channel, self.0.message.id)
    }
}
