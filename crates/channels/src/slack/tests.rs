//! Fixture: the channel against a fake Slack server, which is as strict as Slack.

mod config;
pub(crate) mod conformance;
mod connections;
mod files;
mod parsing;
mod receiving;
mod sending;

use quell_testkit::networks::slack::{APP_TOKEN, BOT, BOT_TOKEN, FakeSlack, FakeSlackFault};
use serde_json::json;

use super::*;
use crate::config::ChannelKind;
use crate::network::test_support::{
    ListeningFixture, RecordingInboundSink, StrictServer, attachment_from, chat_address, message_piece,
    run_while_listening_with, thread_address,
};

type SlackFixture = ListeningFixture<FakeSlack, SlackNetwork>;

impl SlackFixture {
    async fn new() -> Self {
        let server = FakeSlack::start().await;
        let network = SlackNetwork::new("slack", &slack_config(&server.base_url())).unwrap();
        Self::from_parts(server, network)
    }

    async fn send(&self, address: &ChatAddress, text: &str) -> Result<MessageId, SendError> {
        Network::send(&*self.network, address, &message_piece(text), "key").await
    }

    /// Waits for this number of acknowledgements.
    async fn wait_for_acks(&self, count: usize) {
        self.server.wait_for("the acknowledgement", |state| state.acknowledged.len() >= count).await;
    }
}

impl StrictServer for FakeSlack {
    fn client_errors(&self) -> Vec<String> {
        self.state().client_errors
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
