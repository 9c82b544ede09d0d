//! The channel against a server that is as strict as Slack.

mod config;
mod files;
mod hearing;
mod lines;
mod reading;
mod sending;

use std::sync::Mutex;

use quell_testkit::networks::slack::{APP_TOKEN, BOT, BOT_TOKEN, FakeSlack, Fault};
use serde_json::json;

use super::*;
use crate::channels::config::ChannelKind;
use crate::channels::seam::recording::RecordingEar;

/// A server, the channel that talks to it, and an ear.
struct Stage {
    server: FakeSlack,
    slack: Slack,
    ear: RecordingEar,
    /// Why listening has ended so far.
    lost: Mutex<Vec<Lost>>,
}

impl Stage {
    async fn new() -> Self {
        let server = FakeSlack::start().await;
        let slack = Slack::new("slack", &config(&server.base_url())).unwrap();
        Self { server, slack, ear: RecordingEar::new(), lost: Mutex::default() }
    }

    /// Listens, and again whenever the connection is lost, until the play is over.
    async fn play<T>(&self, play: impl Future<Output = T>) -> T {
        play_with(&self.slack, &self.ear, &self.lost, play).await
    }

    async fn send(&self, place: &Place, text: &str) -> Result<MessageId, NotSent> {
        Network::send(&self.slack, place, &piece(text), "key").await
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

    /// Waits until everything that was told is acknowledged.
    async fn acknowledged(&self, count: usize) {
        let all = |state: &quell_testkit::networks::slack::State| state.acknowledged.len() >= count;
        self.server.wait_for("the acknowledgement", all).await;
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let complaints = self.server.state().complaints;
        assert!(complaints.is_empty() || std::thread::panicking(), "{complaints:?}");
    }
}

async fn play_with<T>(slack: &Slack, ear: &dyn Ear, lost: &Mutex<Vec<Lost>>, play: impl Future<Output = T>) -> T {
    let listening = async {
        loop {
            let why = slack.listen(ear).await;
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
    let text = json!({"kind": "slack", "api_base": api_base, "allow": ["*"]});
    let mut config: ChannelConfig = serde_json::from_value(text).unwrap();
    assert_eq!(config.kind, ChannelKind::Slack);
    config.token = Some(BOT_TOKEN.into());
    config.app_token = Some(APP_TOKEN.into());
    config
}

fn place(target: &str) -> Place {
    Place { target: target.to_owned(), thread: None }
}

fn thread(target: &str, thread: &str) -> Place {
    Place { target: target.to_owned(), thread: Some(thread.to_owned()) }
}

fn piece(text: &str) -> Piece {
    Piece { marked: text.to_owned(), plain: text.to_owned() }
}
