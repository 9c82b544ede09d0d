//! Fixture: the channel against a fake Discord server, which is as strict as Discord.

mod config;
pub(crate) mod conformance;
mod files;
mod gateway;
mod heartbeat;
mod hostile;
mod receiving;
mod sending;

use std::sync::Arc;
use std::time::Duration;

use quell_testkit::networks::discord::{
    DiscordRoute, FakeDiscord, FakeDiscordFault, FakeDiscordMessage, RateLimitScope, TOKEN,
};
use serde_json::json;

use super::*;
use crate::network::test_support::{
    ListeningFixture, RecordingInboundSink, StrictServer, attachment_from, channel_config, chat_address,
    run_while_listening_with, thread_address,
};

type DiscordFixture = ListeningFixture<FakeDiscord, DiscordNetwork>;

impl DiscordFixture {
    async fn new() -> Self {
        let server = FakeDiscord::start().await;
        let network = DiscordNetwork::new("discord", &discord_config(&server.base_url())).unwrap();
        let (channel, anna) = (server.add_channel(), server.add_person("anna"));
        Self::from_parts(server, network, channel, anna)
    }

    async fn listening() -> Self {
        let fixture = Self::new().await;
        fixture.listen().await;
        fixture
    }

    fn messages(&self) -> Vec<FakeDiscordMessage> {
        self.server.messages(&self.channel)
    }
}

impl StrictServer for FakeDiscord {
    fn client_errors(&self) -> Vec<String> {
        self.state().client_errors
    }

    fn write_message(&self, channel: &str, person: &str, text: &str) -> String {
        self.post_message(channel, person, text)
    }
}

fn discord_config(api_base: &str) -> ChannelConfig {
    let keys = json!({"kind": "discord", "api_base": api_base, "allow": ["*"]});
    channel_config(keys, &json!({}), Some(TOKEN))
}
