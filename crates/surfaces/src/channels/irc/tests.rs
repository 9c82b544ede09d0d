//! The network against a real ngircd, and against servers by script where a real one does not misbehave.

mod ngircd;
mod scripted;

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::*;
use crate::channels::seam::recording::RecordingEar;

/// A channel with these keys, and an ear for it.
struct Listener {
    irc: Arc<Irc>,
    ear: Arc<RecordingEar>,
    tasks: JoinSet<Lost>,
}

impl Listener {
    fn new(address: &str, changes: Value) -> Self {
        Self { irc: Arc::new(irc(address, changes, None)), ear: Arc::new(RecordingEar::new()), tasks: JoinSet::new() }
    }

    /// One that listens and is connected.
    async fn connected(address: &str, changes: Value) -> Self {
        let mut listener = Self::new(address, changes);
        listener.listen().await;
        listener
    }

    /// Listens, and returns when it is connected once more.
    async fn listen(&mut self) {
        let before = self.ear.state().connected.len();
        let (irc, ear) = (Arc::clone(&self.irc), Arc::clone(&self.ear));
        self.tasks.spawn(async move { irc.listen(ear.as_ref()).await });
        self.ear.wait_for("a connection", |state| state.connected.len() > before).await;
    }

    /// Why listening ended.
    async fn lost(&mut self) -> Lost {
        self.tasks.join_next().await.unwrap().unwrap()
    }

    /// The text that was heard last.
    async fn hears(&self, text: &str) -> crate::channels::seam::Heard {
        let state = self.ear.wait_for(text, |state| state.heard.iter().any(|heard| heard.text == text)).await;
        state.heard.into_iter().rfind(|heard| heard.text == text).unwrap()
    }

    async fn send(&self, target: &str, text: &str) -> Result<MessageId, NotSent> {
        self.irc.send(&place(target), &piece(text), "key").await
    }
}

fn irc(address: &str, changes: Value, token: Option<&str>) -> Irc {
    let mut keys = json!({"kind": "irc", "server": address, "tls": false, "nick": "quell", "join": ["#tea"]});
    keys.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let mut config: ChannelConfig = serde_json::from_value(keys).unwrap();
    config.token = token.map(Into::into);
    Irc::new("chat", &config).unwrap()
}

fn place(target: &str) -> Place {
    Place { target: target.to_owned(), thread: None }
}

fn piece(text: &str) -> Piece {
    Piece { marked: text.to_owned(), plain: text.to_owned() }
}
