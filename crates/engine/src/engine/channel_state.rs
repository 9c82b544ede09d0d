//! What chat channels ask of the engine besides runs: their store, the shutdown, names.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use quell_kernel::channel::session_keys::belongs_to_channel;
use quell_protocol::SessionKey;
use quell_store::ChannelStore;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::agent::own_tool_names;

use super::Engine;

/// While this exists, the end of a run is being reported in its chat, and a shutdown keeps the database open for a
/// moment.
#[derive(Debug)]
pub struct ShutdownGuard(#[expect(dead_code, reason = "only its drop matters")] TaskTrackerToken);

impl Engine {
    /// What chat channels need after a restart: cursors, executed commands, pending and stale replies.
    pub fn channel_store(&self) -> &dyn ChannelStore {
        self.inner().store.channels()
    }

    /// Delays a shutdown while the end of a run is being reported, until the guard is dropped.
    #[must_use]
    pub fn delay_shutdown(&self) -> ShutdownGuard {
        ShutdownGuard(self.inner().runs.tasks().token())
    }

    /// Sets the names of the configured chat channels, which replace those set before.
    pub fn set_channel_names(&self, names: BTreeSet<String>) {
        *self.inner().channel_names.lock().unwrap_or_else(PoisonError::into_inner) = names;
    }

    /// True for a session with the key of a conversation in a configured channel, whoever has created it.
    pub(super) fn is_chat_session(&self, key: &SessionKey) -> bool {
        let names = self.inner().channel_names.lock().unwrap_or_else(PoisonError::into_inner);
        names.iter().any(|name| belongs_to_channel(key, name))
    }

    pub fn provider_names(&self) -> Vec<String> {
        self.inner().models.provider_names()
    }

    /// Names of the tools that agents may have, without those of MCP servers, in lower case.
    pub fn tool_names(&self) -> BTreeSet<String> {
        own_tool_names()
    }
}
