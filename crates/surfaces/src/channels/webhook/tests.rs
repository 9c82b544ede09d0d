//! The channel against a receiver that takes only what the page describes, and the door against posters of all kinds.

mod receiving;
mod sending;
mod setting_up;

use quell_testkit::networks::webhook::{FakeReceiver, TOKEN};
use serde_json::{Value, json};

use super::Webhook;
use crate::channels::config::ChannelConfig;
use crate::channels::format::Piece;
use crate::channels::seam::Place;

/// A configuration with a secret and these keys besides.
fn config(keys: &Value) -> ChannelConfig {
    let mut all = json!({"kind": "webhook", "allow": ["*"]});
    all.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    let mut config: ChannelConfig = serde_json::from_value(all).unwrap();
    config.token = Some(TOKEN.into());
    config
}

fn channel(fake: &FakeReceiver) -> Webhook {
    Webhook::new("shop", &config(&json!({"reply_url": fake.reply_url()}))).unwrap()
}

fn place(target: &str) -> Place {
    Place { target: target.to_owned(), thread: None }
}

fn piece(marked: &str, plain: &str) -> Piece {
    Piece { marked: marked.to_owned(), plain: plain.to_owned() }
}

/// Neither the secret nor the path of the receiver's URL is told.
fn assert_keeps_the_secrets(told: &str) {
    for secret in [TOKEN, "a-secret-of-the-receiver"] {
        assert!(!told.contains(secret), "{secret} is told: {told}");
    }
}
