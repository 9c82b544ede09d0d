//! Tests of the Matrix channel against a real Synapse, against a server that answers by a script, and of
//! what needs no server.

mod hearing;
mod homeserver;
mod outage;
mod rooms;
mod scripted;
mod settings;

use std::future::Future;

use secrecy::SecretString;
use serde_json::{Value, json};

use super::Matrix;
use crate::channels::config::ChannelConfig;
use crate::channels::format::Piece;
use crate::channels::seam::{Ear, Network as _, Place};

/// A configuration, with what a test wants in it.
fn config(base: &str, token: &str, wishes: Value) -> ChannelConfig {
    let mut keys = json!({"kind": "matrix", "api_base": base, "token_env": "QUELL_MATRIX_TOKEN"});
    for (key, value) in wishes.as_object().into_iter().flatten() {
        keys[key] = value.clone();
    }
    let mut config: ChannelConfig = serde_json::from_value(keys).unwrap();
    config.token = Some(SecretString::from(token.to_owned()));
    config
}

fn matrix(base: &str, token: &str, wishes: Value) -> Matrix {
    Matrix::new("matrix", &config(base, token, wishes)).unwrap()
}

fn piece(marked: &str, plain: &str) -> Piece {
    Piece { marked: marked.to_owned(), plain: plain.to_owned() }
}

fn place(room: &str) -> Place {
    Place { target: room.to_owned(), thread: None }
}

/// Does something while the network listens, which must go on all the while.
async fn while_listening<T>(matrix: &Matrix, ear: &dyn Ear, doing: impl Future<Output = T>) -> T {
    tokio::select! {
        done = doing => done,
        lost = matrix.listen(ear) => panic!("it listens no longer: {lost}"),
    }
}
