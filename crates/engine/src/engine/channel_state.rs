//! Persistent state of chat channels: cursors, executed commands, pending and stale replies.

use std::collections::BTreeSet;

use quell_protocol::{HookEvent, RunId};
use quell_store::{PendingReply, StaleReply, StoreError};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::agent::own_tool_names;

use super::Engine;

/// While this exists, the end of a run is being reported in its chat, and a shutdown keeps the database open for a
/// moment.
#[derive(Debug)]
pub struct ShutdownGuard(#[expect(dead_code, reason = "only its drop matters")] TaskTrackerToken);

impl Engine {
    /// The position from which a channel continues to read after a restart.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn channel_cursor(&self, channel: &str) -> Result<Option<String>, StoreError> {
        self.inner().store.channels().cursor(channel.to_owned()).await
    }

    /// Stores the position from which a channel continues to read after a restart.
    ///
    /// # Cancel safety
    /// Safe: once requested, it is written whether or not the caller waits.
    pub async fn save_channel_cursor(&self, channel: &str, cursor: String) -> Result<(), StoreError> {
        self.inner().store.channels().save_cursor(channel.to_owned(), cursor).await
    }

    /// True if the command with this id was executed, perhaps before a restart.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn is_command_executed(&self, command: &RunId) -> Result<bool, StoreError> {
        self.inner().store.channels().is_command_executed(command.to_string()).await
    }

    /// Stores that a command was executed.
    ///
    /// # Cancel safety
    /// Safe: once requested, it is written whether or not the caller waits.
    pub async fn mark_command_executed(&self, command: &RunId) -> Result<(), StoreError> {
        self.inner().store.channels().mark_command_executed(command.to_string()).await
    }

    /// Delays a shutdown while the end of a run is being reported, until the guard is dropped.
    #[must_use]
    pub fn delay_shutdown(&self) -> ShutdownGuard {
        ShutdownGuard(self.inner().runs.tasks().token())
    }

    /// Stores the reply that is about to be shown for a run, so that the next daemon can correct it if this one is
    /// killed.
    ///
    /// # Cancel safety
    /// Safe: once requested, it is written whether or not the caller waits.
    pub async fn save_pending_reply(&self, reply: PendingReply) -> Result<(), StoreError> {
        self.inner().store.channels().save_pending_reply(reply).await
    }

    /// Stores which message is the draft of a run with a pending reply, or that there is none any more.
    ///
    /// # Cancel safety
    /// Safe: once requested, it is written whether or not the caller waits.
    pub async fn save_pending_reply_draft(&self, run: &RunId, draft: Option<String>) -> Result<(), StoreError> {
        // waits: the reply delivery races it.
        self.inner().store.channels().save_pending_reply_draft(run.clone(), draft).await
    }

    /// Stores that the outcome of a run was sent to its chat.
    ///
    /// # Cancel safety
    /// Safe: once requested, it is written whether or not the caller waits.
    pub async fn mark_outcome_sent(&self, run: &RunId) -> Result<(), StoreError> {
        self.inner().store.channels().mark_outcome_sent(run.clone()).await
    }

    /// Deletes the pending reply of a run: its end was reported.
    ///
    /// # Cancel safety
    /// Safe: once requested, it is written whether or not the caller waits.
    pub async fn delete_pending_reply(&self, run: &RunId) -> Result<(), StoreError> {
        self.inner().store.channels().delete_pending_reply(run.clone()).await
    }

    /// Pending replies that earlier daemons left.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_stale_replies(&self) -> Result<Vec<StaleReply>, StoreError> {
        self.inner().store.channels().list_stale_replies().await
    }

    /// Deletes the pending replies that earlier daemons left in all channels except these.
    ///
    /// # Cancel safety
    /// Safe: once requested, it is written whether or not the caller waits.
    pub async fn delete_stale_replies_except(&self, channels: Vec<String>) -> Result<(), StoreError> {
        let deleted = self.inner().store.channels().delete_stale_replies_except(channels).await?;
        if deleted > 0 {
            tracing::info!(runs = deleted, "stale replies of removed channels are deleted");
        }
        Ok(())
    }

    /// True if a hook filters messages before a model reads them.
    #[must_use]
    pub fn has_message_received_hook(&self) -> bool {
        self.inner().services.hooks.has_hooks_for(HookEvent::MessageReceived)
    }

    /// True if a hook filters answers before they are sent.
    #[must_use]
    pub fn has_message_sending_hook(&self) -> bool {
        self.inner().services.hooks.has_hooks_for(HookEvent::MessageSending)
    }

    #[must_use]
    pub fn provider_names(&self) -> Vec<String> {
        self.inner().models.provider_names()
    }

    /// Names of the tools that agents may have, without those of MCP servers, in lower case.
    #[must_use]
    pub fn tool_names(&self) -> BTreeSet<String> {
        own_tool_names()
    }
}
