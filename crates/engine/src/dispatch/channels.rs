//! What the chat networks ask of the engine besides letting messages in and stopping.

use std::collections::BTreeSet;

use quell_protocol::HookEvent;

use crate::agent::own_tool_names;
use crate::store::StoreError;

use super::Engine;

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
