//! Fixture: the bot against a fake Telegram server, which is as strict as Telegram.

mod config;
pub(crate) mod conformance;
mod receiving;
mod sending;

use quell_testkit::networks::telegram::{FakeTelegram, TOKEN, TelegramTestUser};
use serde_json::{Value, json};

use super::TelegramNetwork;
use crate::config::ChannelConfig;
use crate::network::test_support::{self, RecordedInbound, RecordingInboundSink, while_listening};
use crate::network::{ChatAddress, MessageId};

const ANN: TelegramTestUser = TelegramTestUser { id: 7, name: "ann" };
const BOB: TelegramTestUser = TelegramTestUser { id: 8, name: "bob" };
const GROUP: i64 = -1_001_234;

/// A configuration with a token and these additional keys.
fn telegram_config(keys: Value) -> ChannelConfig {
    test_support::channel_config(json!({"kind": "telegram", "allow": ["*"]}), &keys, Some(TOKEN))
}

fn telegram_network(fake: &FakeTelegram) -> TelegramNetwork {
    TelegramNetwork::new("telegram", &telegram_config(json!({"api_base": fake.base_url()}))).unwrap()
}

/// The recorded state after the bot has received this number of messages.
async fn wait_for_messages(bot: &TelegramNetwork, count: usize) -> RecordedInbound {
    let sink = RecordingInboundSink::new();
    while_listening(bot, &sink, sink.wait_for("the messages", |state| state.messages.len() >= count)).await
}

fn chat_address(chat: i64) -> ChatAddress {
    test_support::chat_address(&chat.to_string())
}

fn message_id(number: i64) -> MessageId {
    MessageId(number.to_string())
}

fn assert_token_hidden(text: &str) {
    let secret = TOKEN.split_once(':').unwrap().1;
    assert!(!text.contains(&secret[..4]), "the token or its beginning is shown: {text}");
}
