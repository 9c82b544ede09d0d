//! Helpers for tests against a fake receiver, which accepts only what docs/channels/webhook.md describes.

mod config;
pub(crate) mod conformance;
mod receiving;
mod sending;

use quell_testkit::networks::webhook::{FakeWebhookReceiver, TOKEN};
use serde_json::{Value, json};

use super::WebhookNetwork;
use crate::config::ChannelConfig;
use crate::network::test_support::channel_config;

/// A configuration with a secret and these additional keys.
fn webhook_config(keys: &Value) -> ChannelConfig {
    channel_config(json!({"kind": "webhook", "allow": ["*"]}), keys, Some(TOKEN))
}

fn webhook_network(fake: &FakeWebhookReceiver) -> WebhookNetwork {
    WebhookNetwork::new("shop", &webhook_config(&json!({"reply_url": fake.reply_url()}))).unwrap()
}

/// Checks that a text shows neither the secret nor the path of the receiver's URL.
fn assert_secrets_hidden(text: &str) {
    for secret in [TOKEN, "a-secret-of-the-receiver"] {
        assert!(!text.contains(secret), "{secret} is shown in: {text}");
    }
}
