//! The channel against a server that is as strict as Discord.

mod config;
mod files;
mod gateway;
mod hearing;
mod heartbeat;
mod hostile;
mod sending;

use std::sync::Mutex;
use std::time::Duration;

use quell_testkit::networks::discord::{FakeDiscord, Fault, Route, Scope, TOKEN};
use serde_json::json;

use super::*;
use crate::channels::config::ChannelKind;
use crate::channels::seam::recording::RecordingEar;

/// A server, the channel that talks to it, and an ear.
struct Stage {
    server: FakeDiscord,
    discord: Discord,
    ear: RecordingEar,
    /// Why listening has ended so far.
    lost: Mutex<Vec<Lost>>,
}

impl Stage {
    async fn new() -> Self {
        let server = FakeDiscord::start().await;
        let discord = Discord::new("discord", &config(&server.base_url())).unwrap();
        Self { server, discord, ear: RecordingEar::new(), lost: Mutex::default() }
    }

    /// Listens, and again whenever the connection is lost, until the play is over.
    async fn play<T>(&self, play: impl Future<Output = T>) -> T {
        play_with(&self.discord, &self.ear, &self.lost, play).await
    }

    async fn send(&self, target: &str, text: &str, key: &str) -> Result<MessageId, NotSent> {
        Network::send(&self.discord, &place(target), &piece(text), key).await
    }

    fn lost(&self) -> Vec<Lost> {
        self.lost.lock().unwrap().clone()
    }

    /// Waits until the connection of this number is made.
    async fn connected(&self, times: usize) {
        self.ear.wait_for("the connection", |ear| ear.connected.len() >= times).await;
    }

    /// Waits until so many messages are heard, and answers them all.
    async fn heard(&self, count: usize) -> Vec<String> {
        let state = self.ear.wait_for("the message", |ear| ear.heard.len() >= count).await;
        state.heard.into_iter().map(|heard| heard.text).collect()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let complaints = self.server.state().complaints;
        assert!(complaints.is_empty() || std::thread::panicking(), "{complaints:?}");
    }
}

async fn play_with<T>(discord: &Discord, ear: &dyn Ear, lost: &Mutex<Vec<Lost>>, play: impl Future<Output = T>) -> T {
    let listening = async {
        loop {
            let why = discord.listen(ear).await;
            lost.lock().unwrap().push(why);
        }
    };
    // Who listens is dropped when the play is over, as the flow does it.
    tokio::select! {
        () = listening => unreachable!("it listens for ever"),
        played = play => played,
    }
}

fn config(api_base: &str) -> ChannelConfig {
    let text = json!({"kind": "discord", "api_base": api_base, "allow": ["*"]});
    let mut config: ChannelConfig = serde_json::from_value(text).unwrap();
    assert_eq!(config.kind, ChannelKind::Discord);
    config.token = Some(TOKEN.into());
    config
}

fn place(target: &str) -> Place {
    Place { target: target.to_owned(), thread: None }
}

fn piece(text: &str) -> Piece {
    Piece { marked: text.to_owned(), plain: text.to_owned() }
}
