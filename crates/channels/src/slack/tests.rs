//! Fixture: the channel against a fake Slack server, which is as strict as Slack.

mod config;
pub(crate) mod conformance;
mod connections;
mod files;
mod parsing;
mod receiving;
mod sending;

use std::sync::Mutex;

use quell_testkit::networks::slack::{APP_TOKEN, BOT, BOT_TOKEN, FakeSlack, FakeSlackFault};
use serde_json::json;

use super::*;
use crate::config::ChannelKind;
use crate::network::test_support::{
    RecordingInboundSink, attachment_from, chat_address, message_piece, run_while_listening_with, thread_address,
};

/// A fake server, the channel under test, and a recording sink.
struct SlackFixture {
    server: FakeSlack,
    slack: SlackNetwork,
    sink: RecordingInboundSink,
    /// The errors with which listening has ended so far.
    listen_errors: Mutex<Vec<ListenError>>,
}

impl SlackFixture {
    async fn new() -> Self {
        let server = FakeSlack::start().await;
        let slack = SlackNetwork::new("slack", &slack_config(&server.base_url())).unwrap();
        Self { server, slack, sink: RecordingInboundSink::new(), listen_errors: Mutex::default() }
    }

    /// Listens, and again after each lost connection, until `scenario` is over.
    async fn run_while_listening<T>(&self, scenario: impl Future<Output = T>) -> T {
        run_while_listening_with(&self.slack, &self.sink, &self.listen_errors, scenario).await
    }

    async fn send(&self, address: &ChatAddress, text: &str) -> Result<MessageId, SendError> {
        Network::send(&self.slack, address, &message_piece(text), "key").await
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

    /// Waits for this number of acknowledgements.
    async fn wait_for_acks(&self, count: usize) {
        let all = |state: &quell_testkit::networks::slack::FakeSlackState| state.acknowledged.len() >= count;
        self.server.wait_for("the acknowledgement", all).await;
    }
}

impl Drop for SlackFixture {
    fn drop(&mut self) {
        let client_errors = self.server.state().client_errors;
        assert!(client_errors.is_empty() || std::thread::panicking(), "{client_errors:?}");
    }
}

fn slack_config(api_base: &str) -> ChannelConfig {
    let text = json!({"kind": "slack", "api_base": api_base, "allow": ["*"]});
    let mut config: ChannelConfig = serde_json::from_value(text).unwrap();
    assert_eq!(config.kind, ChannelKind::Slack);
    config.token = Some(BOT_TOKEN.into());
    config.app_token = Some(APP_TOKEN.into());
    config
}
