//! Fixture for IRC tests, against a real ngircd and against an in-memory server.

pub(crate) mod conformance;
mod ngircd;
mod scripted;

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::*;
use crate::network::test_support::{RecordingInboundSink, chat_address, message_piece};

/// A channel, a recording sink, and the task that listens.
struct IrcFixture {
    irc: Arc<IrcNetwork>,
    sink: Arc<RecordingInboundSink>,
    tasks: JoinSet<ListenError>,
}

impl IrcFixture {
    fn new(address: &str, changes: Value) -> Self {
        Self {
            irc: Arc::new(irc_network(address, changes, None)),
            sink: Arc::new(RecordingInboundSink::new()),
            tasks: JoinSet::new(),
        }
    }

    /// A fixture that listens and is connected.
    async fn connect(address: &str, changes: Value) -> Self {
        let mut listener = Self::new(address, changes);
        listener.listen().await;
        listener
    }

    /// Listens, and returns after the next connect.
    async fn listen(&mut self) {
        let before = self.sink.state().accounts.len();
        let (irc, sink) = (Arc::clone(&self.irc), Arc::clone(&self.sink));
        self.tasks.spawn(async move { irc.listen(sink.as_ref()).await });
        self.sink.wait_for("a connection", |state| state.accounts.len() > before).await;
    }

    /// Waits for a message with this text and returns the last one.
    async fn wait_for_text(&self, text: &str) -> crate::network::InboundMessage {
        let state = self.sink.wait_for(text, |state| state.messages.iter().any(|inbound| inbound.text == text)).await;
        state.messages.into_iter().rfind(|inbound| inbound.text == text).unwrap()
    }

    async fn send(&self, target: &str, text: &str) -> Result<MessageId, SendError> {
        self.irc.send(&chat_address(target), &message_piece(text), "key").await
    }
}

fn irc_network(address: &str, changes: Value, token: Option<&str>) -> IrcNetwork {
    let mut keys = json!({"kind": "irc", "server": address, "tls": false, "nick": "quell", "join": ["#tea"]});
    keys.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let mut config: ChannelConfig = serde_json::from_value(keys).unwrap();
    config.token = token.map(Into::into);
    IrcNetwork::new("chat", &config).unwrap()
}
