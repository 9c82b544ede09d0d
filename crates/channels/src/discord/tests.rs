//! Fixture: the channel against a fake Discord server, which is as strict as Discord.

mod config;
pub(crate) mod conformance;
mod files;
mod gateway;
mod heartbeat;
mod hostile;
mod receiving;
mod sending;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_testkit::networks::discord::{DiscordRoute, FakeDiscord, FakeDiscordFault, RateLimitScope, TOKEN};
use serde_json::json;

use super::*;
use crate::config::ChannelKind;
use crate::network::test_support::{
    ListeningFixture, RecordingInboundSink, StrictServer, attachment_from, chat_address, message_piece,
    run_while_listening_with,
};

type DiscordFixture = ListeningFixture<FakeDiscord, DiscordNetwork>;

impl DiscordFixture {
    async fn new() -> Self {
        let server = FakeDiscord::start().await;
        let network = DiscordNetwork::new("discord", &discord_config(&server.base_url())).unwrap();
        Self::from_parts(server, network)
    }

    async fn send(&self, target: &str, text: &str, key: &str) -> Result<MessageId, SendError> {
        Network::send(&*self.network, &chat_address(target), &message_piece(text), key).await
    }
}

impl StrictServer for FakeDiscord {
    fn client_errors(&self) -> Vec<String> {
        self.state().client_errors
    }
}

fn discord_config(api_base: &str) -> ChannelConfig {
    let text = json!({"kind": "discord", "api_base": api_base, "allow": ["*"]});
    let mut config: ChannelConfig = serde_json::from_value(text).unwrap();
    assert_eq!(config.kind, ChannelKind::Discord);
    config.token = Some(TOKEN.into());
    config
}
