//! The chat message that a run answers, and the trait that fetches its attachments and delivers the reply. This module
//! knows no particular network.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use quell_protocol::api::AccessLevel;
use quell_protocol::schedule::{ScheduleDelivery, ScheduleView};
use quell_protocol::{ChannelMessage, Principal, RunId, SessionKey, Surface};
use quell_scope::{Release, Scope};

/// The chat message that a run answers, with its delivery. Clones share it.
#[derive(Clone)]
pub struct ChannelOrigin(Arc<ChannelOriginInner>);

struct ChannelOriginInner {
    message: ChannelMessage,
    options: ChannelRunOptions,
    delivery: Arc<dyn ReplyDelivery>,
}

/// Options of a run that answers a chat message.
#[derive(Debug, Clone, Default)]
pub struct ChannelRunOptions {
    /// Lines for the model in addition to the message.
    pub context_lines: Vec<String>,
    /// Text for the model that explains how an answer sends files. `None` if the network accepts no files.
    pub send_files_hint: Option<String>,
    /// Model for this message instead of the agent's. A model that the session chose itself takes precedence.
    pub routed_model: Option<String>,
    /// Maximum characters of earlier turns in a prompt.
    pub max_history_chars: usize,
    /// Most model calls of the run, if they are fewer than those of every run.
    pub max_steps: Option<u32>,
}

/// The run for which a [`ReplyDelivery`] works. Its tasks belong to the run's scope, and its files to the agent's
/// workdir.
#[derive(Debug, Clone, Copy)]
pub struct DeliveryContext<'a> {
    pub scope: &'a Scope,
    pub session: &'a SessionKey,
    pub workdir: &'a Path,
    /// Files that an answer may send. A marker that names another file stays text.
    pub sendable_files: &'a [String],
}

/// Fetches attachments and delivers the reply of one run. A stop may drop both futures at any await; that closes their
/// connections.
pub trait ReplyDelivery: Send + Sync {
    /// Fetches the attachments of the message into the agent's workdir. Returns one line of text for each, such as
    /// `[IMAGE:/path]`, or the reason why it could not be fetched.
    fn fetch_attachments<'a>(&'a self, context: DeliveryContext<'a>) -> BoxFuture<'a, Vec<String>>;

    /// Prepares an answer for display, before it is stored. The result is never blank.
    fn format_answer(&self, answer: &str) -> String;

    /// The files that an answer names, each once.
    fn find_files(&self, answer: &str) -> Vec<String>;

    /// Delivers an answer to the origin of the message. Files that it names are relative to the agent's workdir.
    fn deliver_answer<'a>(
        &'a self,
        answer: &'a str,
        context: DeliveryContext<'a>,
    ) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// Called when a hook withholds the message or its answer, with the reason.
    fn on_withheld(&self, reason: &str);
}

/// Who makes a schedule, and so for whom its runs are.
#[derive(Debug, Clone)]
pub struct ScheduleCreator {
    pub principal: Principal,
    pub scope: AccessLevel,
    pub surface: Surface,
    /// The run that makes it, with its session.
    pub run: Option<(RunId, SessionKey)>,
    /// The chat of that run, if it answers a chat message.
    pub chat: Option<ScheduleDelivery>,
}

impl ScheduleCreator {
    /// True if the answers of scheduled runs may be sent into any chat. A run that answers a chat message may send them
    /// to that chat.
    #[must_use]
    pub fn may_send_anywhere(scope: AccessLevel, surface: Surface) -> bool {
        scope == AccessLevel::Admin && surface != Surface::Channel
    }
}

/// The rights of somebody who writes in a chat, as the configuration gives them now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SenderRights {
    Level(AccessLevel),
    /// They are not allowed any more, for this reason.
    None(String),
    /// The channels are not at work.
    Unknown,
}

/// Sends the answers of scheduled runs into chats. The channels implement it.
pub trait ScheduledDelivery: fmt::Debug + Send + Sync {
    /// The rights that somebody has who has made a schedule in a chat.
    fn sender_rights(&self, principal: &Principal) -> SenderRights;

    /// Checks whether answers may be sent there for this creator. The error says what to write instead.
    fn check_delivery(&self, delivery: &ScheduleDelivery, creator: &ScheduleCreator) -> Result<(), String>;

    /// The origin of the run of a firing, which sends its answer there.
    fn new_origin(
        &self,
        delivery: &ScheduleDelivery,
        schedule: &ScheduleView,
        run: &RunId,
    ) -> Result<ChannelOrigin, String>;
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryError {
    #[error("the answer was not delivered: {0}")]
    NotDelivered(String),
    #[error("{sent} of {of} parts of the answer were delivered: {why}")]
    PartlyDelivered { sent: usize, of: usize, why: String },
    /// The network did not confirm the delivery.
    #[error("it is not known whether the answer was delivered: {0}")]
    Unknown(String),
}

impl DeliveryError {
    /// How the delivery is released in the ledger.
    pub(crate) fn release(&self) -> Release {
        match self {
            Self::NotDelivered(_) => Release::Undelivered,
            Self::PartlyDelivered { .. } => Release::PartlyDelivered,
            Self::Unknown(_) => Release::UnknownDelivery,
        }
    }
}

impl ChannelOrigin {
    pub fn new(message: ChannelMessage, options: ChannelRunOptions, delivery: Arc<dyn ReplyDelivery>) -> Self {
        Self(Arc::new(ChannelOriginInner { message, options, delivery }))
    }

    pub fn message(&self) -> &ChannelMessage {
        &self.0.message
    }

    pub fn options(&self) -> &ChannelRunOptions {
        &self.0.options
    }

    pub fn delivery(&self) -> &dyn ReplyDelivery {
        self.0.delivery.as_ref()
    }
}

impl fmt::Debug for ChannelOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChannelOrigin({} {})", self.0.message.channel, self.0.message.id)
    }
}
