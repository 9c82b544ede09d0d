//! The bot against a Telegram that is as strict as the real one.

mod hearing;
mod sending;
mod setting_up;

use std::future::Future;

use quell_testkit::networks::telegram::{FakeTelegram, Person, TOKEN};
use serde_json::{Value, json};

use super::Telegram;
use crate::channels::config::ChannelConfig;
use crate::channels::format::Piece;
use crate::channels::seam::recording::{RecordingEar, State};
use crate::channels::seam::{Ear, MessageId, Network, Place};

const ANN: Person = Person { id: 7, name: "ann" };
const BOB: Person = Person { id: 8, name: "bob" };
const GROUP: i64 = -1_001_234;

/// A configuration with a token and these keys besides.
fn config(keys: Value) -> ChannelConfig {
    let mut all = json!({"kind": "telegram", "allow": ["*"]});
    all.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    let mut config: ChannelConfig = serde_json::from_value(all).unwrap();
    config.token = Some(TOKEN.into());
    config
}

fn bot(fake: &FakeTelegram) -> Telegram {
    Telegram::new("telegram", &config(json!({"api_base": fake.base_url()}))).unwrap()
}

/// Does something while the bot listens, and lets go of its connection at the end.
async fn while_listening<T>(bot: &Telegram, ear: &dyn Ear, act: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        lost = bot.listen(ear) => panic!("listening ended: {lost}"),
        done = act => done,
    }
}

/// What the bot heard when so many messages were said.
async fn hears(bot: &Telegram, count: usize) -> State {
    let ear = RecordingEar::new();
    while_listening(bot, &ear, ear.wait_for("the messages", |state| state.heard.len() >= count)).await
}

fn place(chat: i64) -> Place {
    Place { target: chat.to_string(), thread: None }
}

fn plain(text: &str) -> Piece {
    Piece { marked: text.to_owned(), plain: text.to_owned() }
}

fn message(number: i64) -> MessageId {
    MessageId(number.to_string())
}

fn assert_keeps_the_secret(told: &str) {
    let secret = TOKEN.split_once(':').unwrap().1;
    assert!(!told.contains(&secret[..4]), "the token is told, or its beginning: {told}");
}
