//! Fixture for IRC tests, against a real ngircd and against an in-memory server.

pub(crate) mod conformance;
mod ngircd;
mod scripted;

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::*;
use crate::network::test_support::{RecordingInboundSink, channel_config, chat_address, message_piece};

/// A network, a recording sink, and the task that listens.
struct IrcFixture {
    irc: Arc<IrcNetwork>,
    sink: Arc<RecordingInboundSink>,
    tasks: JoinSet<ListenError>,
}

impl IrcFixture {
    /// Listens on a stream to a server.
    fn listen_on(irc: IrcNetwork, stream: ByteStream) -> Self {
        let (irc, sink, mut tasks) = (Arc::new(irc), Arc::new(RecordingInboundSink::new()), JoinSet::new());
        let (listening, task_sink) = (Arc::clone(&irc), Arc::clone(&sink));
        tasks.spawn(async move {
            let Err(lost) = connection::listen(&listening.account, &listening.outbox, stream, &*task_sink).await;
            lost
        });
        Self { irc, sink, tasks }
    }

    /// A fixture that is connected.
    async fn connect(address: &str, changes: Value) -> Self {
        let irc = irc_network(address, changes, None);
        let stream = irc.connect().await.unwrap();
        let fixture = Self::listen_on(irc, stream);
        fixture.sink.wait_for("a connection", |state| !state.accounts.is_empty()).await;
        fixture
    }

    async fn send(&self, target: &str, text: &str) -> Result<MessageId, SendError> {
        self.irc.send(&chat_address(target), &message_piece(text), "key").await
    }
}

pub(super) fn irc_network(address: &str, changes: Value, token: Option<&str>) -> IrcNetwork {
    let keys = json!({"kind": "irc", "server": address, "tls": false, "nick": "quell", "join": ["#tea"]});
    let config = channel_config(keys, &changes, token);
    IrcNetwork::new("chat", &config).unwrap()
}
