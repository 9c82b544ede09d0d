//! State that chat channels need after a restart: cursors, executed commands, and replies whose outcome is not sent.

use quell_protocol::RunId;

use crate::StoreFuture;

/// Executed commands that are kept: far more than a network repeats after a restart.
pub(crate) const MAX_EXECUTED_COMMANDS: u32 = 1000;

/// State of a reply in a chat, in the identifiers of its network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingReply {
    pub run: RunId,
    pub channel: String,
    /// Id of the chat, room or person.
    pub target: String,
    pub thread: Option<String>,
    /// Id of the message that asked. It may carry a reaction.
    pub request_message: String,
    /// Id of the draft message: set once it is known, until the answer replaces it.
    pub draft_message: Option<String>,
}

/// A pending reply that an earlier daemon left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleReply {
    pub pending_reply: PendingReply,
    /// The run that took this run's message, if it was steered.
    pub steered_into: Option<RunId>,
    /// The outcome was sent. Reactions may still have to be corrected.
    pub outcome_sent: bool,
}

pub trait ChannelStore: Send + Sync {
    /// Returns the last saved cursor of a channel.
    fn cursor(&self, channel: String) -> StoreFuture<'_, Option<String>>;

    fn save_cursor(&self, channel: String, cursor: String) -> StoreFuture<'_, ()>;

    /// True when the command with this id was executed.
    fn is_command_executed(&self, command: String) -> StoreFuture<'_, bool>;

    /// Records that a command was executed. Keeps the newest 1000.
    fn mark_command_executed(&self, command: String) -> StoreFuture<'_, ()>;

    /// Stores that a chat waits for the outcome of a run, before anything of the run is shown there.
    fn save_pending_reply(&self, pending_reply: PendingReply) -> StoreFuture<'_, ()>;

    /// Stores the id of a run's draft message, or that there is none any more. Does nothing if the run has no pending
    /// reply, since this can come late.
    fn save_pending_reply_draft(&self, run: RunId, draft: Option<String>) -> StoreFuture<'_, ()>;

    /// Records that the outcome of a run was sent. Not synced.
    fn mark_outcome_sent(&self, run: RunId) -> StoreFuture<'_, ()>;

    /// Deletes the pending reply of a run: its outcome was sent, or cannot be sent. Not synced: a deletion that is
    /// lost in a crash means that the outcome is sent twice, which does no harm.
    fn delete_pending_reply(&self, run: RunId) -> StoreFuture<'_, ()>;

    /// True while the chat of a run waits for its outcome, whichever daemon shows it.
    fn has_pending_reply(&self, run: RunId) -> StoreFuture<'_, bool>;

    /// Deletes what earlier daemons left in all channels except these. Returns the number of deleted replies.
    fn delete_stale_replies_except(&self, channels: Vec<String>) -> StoreFuture<'_, usize>;

    /// Lists the pending replies that earlier daemons left, by run id. In a cluster: those of memberships that are
    /// settled.
    fn list_stale_replies(&self) -> StoreFuture<'_, Vec<StaleReply>>;

    /// Makes the stale replies of a channel those of this daemon, and returns them, by run id. So each is returned to one
    /// daemon, and to the next one if that dies.
    fn take_stale_replies(&self, channel: String) -> StoreFuture<'_, Vec<StaleReply>>;
}
