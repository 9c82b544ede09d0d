//! Fixture: the channel against a fake Slack server, which is as strict as Slack.

mod config;
pub(crate) mod conformance;
mod connections;
mod files;
mod parsing;
mod receiving;
mod sending;

use quell_testkit::networks::slack::{APP_TOKEN, BOT, BOT_TOKEN, FakeSlack, FakeSlackFault, FakeSlackMessage};
use serde_json::json;

use super::*;
use crate::network::test_support::{
    ListeningFixture, RecordingInboundSink, StrictServer, attachment_from, channel_config, chat_address,
    run_while_listening_with, thread_address,
};

type SlackFixture = ListeningFixture<FakeSlack, SlackNetwork>;

impl SlackFixture {
    async fn new() -> Self {
        let server = FakeSlack::start().await;
        let network = SlackNetwork::new("slack", &slack_config(&server.base_url())).unwrap();
        let (channel, ann) = (server.add_channel(), server.add_person("ann"));
        Self::from_parts(server, network, channel, ann)
    }

    async fn listening() -> Self {
        let fixture = Self::new().await;
        fixture.listen().await;
        fixture
    }

    fn messages(&self) -> Vec<FakeSlackMessage> {
        self.server.messages(&self.channel)
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

    fn write_message(&self, channel: &str, person: &str, text: &str) -> String {
        self.post_message(channel, person, text)
    }
}

fn slack_config(api_base: &str) -> ChannelConfig {
    let keys = json!({"kind": "slack", "api_base": api_base, "allow": ["*"]});
    ChannelConfig { app_token: Some(APP_TOKEN.into()), ..channel_config(keys, &json!({}), Some(BOT_TOKEN)) }
}
