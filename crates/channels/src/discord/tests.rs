//! Fixture: the channel against a fake Discord server, which is as strict as Discord.

mod config;
pub(crate) mod conformance;
mod files;
mod gateway;
mod heartbeat;
mod hostile;
mod receiving;
mod sending;

use std::sync::Mutex;
use std::time::Duration;

use quell_testkit::networks::discord::{DiscordRoute, FakeDiscord, FakeDiscordFault, RateLimitScope, TOKEN};
use serde_json::json;

use super::*;
use crate::config::ChannelKind;
use crate::network::test_support::{
    RecordingInboundSink, attachment_from, chat_address, message_piece, run_while_listening_with,
};

/// A fake server, the channel under test, and a recording sink.
struct DiscordFixture {
    server: FakeDiscord,
    discord: DiscordNetwork,
    sink: RecordingInboundSink,
    /// The errors with which listening has ended so far.
    listen_errors: Mutex<Vec<ListenError>>,
}

impl DiscordFixture {
    async fn new() -> Self {
        let server = FakeDiscord::start().await;
        let discord = DiscordNetwork::new("discord", &discord_config(&server.base_url())).unwrap();
        Self { server, discord, sink: RecordingInboundSink::new(), listen_errors: Mutex::default() }
    }

    /// Listens, and again after each lost connection, until `scenario` is over.
    async fn run_while_listening<T>(&self, scenario: impl Future<Output = T>) -> T {
        run_while_listening_with(&self.discord, &self.sink, &self.listen_errors, scenario).await
    }

    async fn send(&self, target: &str, text: &str, key: &str) -> Result<MessageId, SendError> {
        Network::send(&self.discord, &chat_address(target), &message_piece(text), key).await
    }

    fn listen_errors(&self) -> Vec<ListenError> {
        self.listen_errors.lock().unwrap().clone()
    }

    /// Waits for this number of connections since the start.
    async fn wait_for_connections(&self, times: usize) {
        self.sink.wait_for("the connection", |state| state.accounts.len() >= times).await;
    }

    /// Waits for this number of messages and returns their texts.
    async fn wait_for_texts(&self, count: usize) -> Vec<String> {
        let state = self.sink.wait_for("the message", |state| state.messages.len() >= count).await;
        state.messages.into_iter().map(|inbound| inbound.text).collect()
    }
}

impl Drop for DiscordFixture {
    fn drop(&mut self) {
        let client_errors = self.server.state().client_errors;
        assert!(client_errors.is_empty() || std::thread::panicking(), "{client_errors:?}");
    }
}

fn discord_config(api_base: &str) -> ChannelConfig {
    let text = json!({"kind": "discord", "api_base": api_base, "allow": ["*"]});
    let mut config: ChannelConfig = serde_json::from_value(text).unwrap();
    assert_eq!(config.kind, ChannelKind::Discord);
    config.token = Some(TOKEN.into());
    config
}
