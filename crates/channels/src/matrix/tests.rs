//! Helpers for tests against Synapse, against a scripted homeserver, and without a server.

pub(crate) mod conformance;
mod message_parser;
mod outage;
mod rooms;
mod scripted;
mod scripted_homeserver;
mod settings;

use serde_json::{Value, json};

use super::MatrixNetwork;
use crate::config::ChannelConfig;
use crate::format::MessagePiece;
use crate::network::test_support::channel_config;

/// A configuration with these additional keys.
fn matrix_config(base: &str, token: &str, extra_keys: Value) -> ChannelConfig {
    let keys = json!({"kind": "matrix", "api_base": base, "token_env": "QUELL_MATRIX_TOKEN"});
    channel_config(keys, &extra_keys, Some(token))
}

fn matrix_network(base: &str, token: &str, extra_keys: Value) -> MatrixNetwork {
    MatrixNetwork::new("matrix", &matrix_config(base, token, extra_keys)).unwrap()
}

fn html_piece(formatted: &str, plain: &str) -> MessagePiece {
    MessagePiece { formatted: formatted.to_owned(), plain: plain.to_owned() }
}
