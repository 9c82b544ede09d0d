//! What the chat networks ask of the engine besides letting messages in and stopping.

use std::collections::BTreeSet;

use quell_protocol::{HookEvent, RunId};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::agent::own_tool_names;
use crate::store::{LeftTrace, StoreError, Trace};

use super::Engine;

/// While this lives, somebody tells the end of a run in its chat, and a shutdown keeps the database open for a moment.
#[derive(Debug)]
pub struct Telling(#[expect(dead_code, reason = "it is there to be dropped")] TaskTrackerToken);

impl Engine {
    /// Where a channel goes on listening after a restart.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn channel_cursor(&self, channel: &str) -> Result<Option<String>, StoreError> {
        self.inner().store.channel_cursor(channel.to_owned()).await
    }

    /// Keeps where a channel goes on listening after a restart.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: once asked for, it is written whether or not the caller waits.
    pub async fn keep_channel_cursor(&self, channel: &str, cursor: String) -> Result<(), StoreError> {
        self.inner().store.keep_channel_cursor(channel.to_owned(), cursor).await
    }

    /// True when the command with this id has acted, perhaps before a restart.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn is_obeyed(&self, command: &RunId) -> Result<bool, StoreError> {
        self.inner().store.is_obeyed(command.to_string()).await
    }

    /// Keeps that a command has acted.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: once asked for, it is written whether or not the caller waits.
    pub async fn keep_obeyed(&self, command: &RunId) -> Result<(), StoreError> {
        self.inner().store.keep_obeyed(command.to_string()).await
    }

    /// Lets a shutdown know that the end of a run is being told, until the answer is dropped.
    #[must_use]
    pub fn telling(&self) -> Telling {
        Telling(self.inner().runs.tasks().token())
    }

    /// Keeps what is about to be shown of a run, so that the next daemon can put it right if this one is killed.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: once asked for, it is written whether or not the caller waits.
    pub async fn keep_trace(&self, trace: Trace) -> Result<(), StoreError> {
        self.inner().store.keep_trace(trace).await
    }

    /// Keeps which message is the draft of a run of which a trace is kept, or that none is any more.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: once asked for, it is written whether or not the caller waits.
    pub async fn keep_draft(&self, run: &RunId, draft: Option<String>) -> Result<(), StoreError> {
        // waits: whoever carries an answer for a run races it.
        self.inner().store.keep_draft(run.clone(), draft).await
    }

    /// Keeps that what became of a run is said in its chat.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: once asked for, it is written whether or not the caller waits.
    pub async fn keep_told(&self, run: &RunId) -> Result<(), StoreError> {
        self.inner().store.keep_told(run.clone()).await
    }

    /// Forgets the trace of a run: its end is told.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: once asked for, it is written whether or not the caller waits.
    pub async fn forget_trace(&self, run: &RunId) -> Result<(), StoreError> {
        self.inner().store.forget_trace(run.clone()).await
    }

    /// Traces that earlier daemons left.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn left_traces(&self) -> Result<Vec<LeftTrace>, StoreError> {
        self.inner().store.left_traces().await
    }

    /// Forgets the traces that earlier daemons left in all channels but these.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: once asked for, it is written whether or not the caller waits.
    pub async fn keep_traces_in(&self, channels: Vec<String>) -> Result<(), StoreError> {
        let forgotten = self.inner().store.keep_traces_in(channels).await?;
        if forgotten > 0 {
            tracing::info!(runs = forgotten, "what channels show that are gone is forgotten");
        }
        Ok(())
    }

    /// True when a hook wants to see messages before a model does.
    #[must_use]
    pub fn asks_about_messages(&self) -> bool {
        self.inner().workshop.hooks.has(HookEvent::MessageReceived)
    }

    /// True when a hook wants to see answers before they are sent.
    #[must_use]
    pub fn asks_about_answers(&self) -> bool {
        self.inner().workshop.hooks.has(HookEvent::MessageSending)
    }

    /// Names of the configured providers.
    #[must_use]
    pub fn provider_names(&self) -> Vec<String> {
        self.inner().models.provider_names()
    }

    /// Names of the tools that agents may have besides those of MCP servers, in lower case.
    #[must_use]
    pub fn tool_names(&self) -> BTreeSet<String> {
        own_tool_names(&self.inner().workshop.toolbox)
    }
}
