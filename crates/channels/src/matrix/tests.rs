//! Helpers for tests against Synapse, against a scripted homeserver, and without a server.

pub(crate) mod conformance;
mod message_parser;
mod outage;
mod rooms;
mod scripted;
mod scripted_homeserver;
mod settings;

use secrecy::SecretString;
use serde_json::{Value, json};

use super::MatrixNetwork;
use crate::config::ChannelConfig;
use crate::format::MessagePiece;

/// A configuration with these additional keys.
fn matrix_config(base: &str, token: &str, extra_keys: Value) -> ChannelConfig {
    let mut keys = json!({"kind": "matrix", "api_base": base, "token_env": "QUELL_MATRIX_TOKEN"});
    for (key, value) in extra_keys.as_object().into_iter().flatten() {
        keys[key] = value.clone();
    }
    let mut config: ChannelConfig = serde_json::from_value(keys).unwrap();
    config.token = Some(SecretString::from(token.to_owned()));
    config
}

fn matrix_network(base: &str, token: &str, extra_keys: Value) -> MatrixNetwork {
    MatrixNetwork::new("matrix", &matrix_config(base, token, extra_keys)).unwrap()
}

fn html_piece(formatted: &str, plain: &str) -> MessagePiece {
    MessagePiece { formatted: formatted.to_owned(), plain: plain.to_owned() }
}
