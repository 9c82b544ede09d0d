//! For tests of networks: addresses and texts, an inbound sink that records what is delivered, and a listener beside a
//! scenario.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_protocol::{Attachment, AttachmentKind};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use super::{
    ButtonPress, ChatAddress, InboundMessage, InboundSink, ListenError, MessageId, Network, OwnAccount, SendError,
};
use crate::config::ChannelConfig;
use crate::format::MessagePiece;

/// How long a test waits before it fails.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn chat_address(target: &str) -> ChatAddress {
    ChatAddress { target: target.to_owned(), thread: None }
}

pub(crate) fn thread_address(target: &str, thread: &str) -> ChatAddress {
    ChatAddress { target: target.to_owned(), thread: Some(thread.to_owned()) }
}

/// A configuration with these keys, those of `more` instead of the same ones in `keys`, and a token.
pub(crate) fn channel_config(mut keys: Value, more: &Value, token: Option<&str>) -> ChannelConfig {
    keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let mut config: ChannelConfig = serde_json::from_value(keys).unwrap();
    config.token = token.map(Into::into);
    config
}

/// A text without markup.
pub(crate) fn message_piece(text: &str) -> MessagePiece {
    MessagePiece { formatted: text.to_owned(), plain: text.to_owned() }
}

/// A file of which only the source is known.
pub(crate) fn attachment_from(source: &str) -> Attachment {
    Attachment { kind: AttachmentKind::File, source: source.to_owned(), name: None, media_type: None, bytes: None }
}

#[derive(Debug)]
pub(crate) struct RecordingInboundSink {
    state: watch::Sender<RecordedInbound>,
    cursor: Mutex<Option<String>>,
    /// False while the database stores nothing.
    is_storing: watch::Sender<bool>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct RecordedInbound {
    /// One for each connect.
    pub(crate) accounts: Vec<OwnAccount>,
    /// In the order of delivery.
    pub(crate) messages: Vec<InboundMessage>,
    pub(crate) presses: Vec<ButtonPress>,
    /// Number of calls of `wait_until_stored`.
    pub(crate) store_waits: usize,
    /// In the order in which they were saved.
    pub(crate) cursors: Vec<String>,
}

impl RecordedInbound {
    pub(crate) fn texts(&self) -> Vec<&str> {
        self.messages.iter().map(|inbound| inbound.text.as_str()).collect()
    }

    /// The texts of messages with different ids, in the order of their first delivery.
    pub(crate) fn distinct_texts(&self) -> Vec<&str> {
        let mut ids = HashSet::new();
        let first = self.messages.iter().filter(|inbound| ids.insert(&inbound.id));
        first.map(|inbound| inbound.text.as_str()).collect()
    }
}

impl RecordingInboundSink {
    pub(crate) fn new() -> Self {
        Self { state: watch::Sender::default(), cursor: Mutex::default(), is_storing: watch::Sender::new(true) }
    }

    /// A sink whose database never stores anything.
    pub(crate) fn with_stuck_database() -> Self {
        let sink = Self::new();
        sink.set_storing(false);
        sink
    }

    pub(crate) fn set_storing(&self, is_storing: bool) {
        self.is_storing.send_replace(is_storing);
    }

    /// Sets the cursor of an earlier daemon.
    pub(crate) fn set_cursor(&self, cursor: &str) {
        *self.cursor.lock().unwrap() = Some(cursor.to_owned());
    }

    pub(crate) fn state(&self) -> RecordedInbound {
        self.state.borrow().clone()
    }

    /// Waits until the recorded state fulfils a condition. `what` names it in the panic message.
    pub(crate) async fn wait_for(&self, what: &str, condition: impl Fn(&RecordedInbound) -> bool) -> RecordedInbound {
        self.wait_with(what, condition, RecordedInbound::clone).await
    }

    /// Waits for a message with this text.
    pub(crate) async fn wait_for_text(&self, text: &str) -> InboundMessage {
        let state = self.wait_for(text, |state| state.texts().contains(&text)).await;
        state.messages.into_iter().find(|inbound| inbound.text == text).unwrap()
    }

    /// Like [`Self::wait_for`], without a copy of what was recorded.
    pub(crate) async fn wait_until(&self, what: &str, condition: impl Fn(&RecordedInbound) -> bool) {
        self.wait_with(what, condition, |_| ()).await;
    }

    /// Returns what `read` takes from the state that fulfilled the condition.
    async fn wait_with<T>(
        &self,
        what: &str,
        condition: impl Fn(&RecordedInbound) -> bool,
        read: impl FnOnce(&RecordedInbound) -> T,
    ) -> T {
        let mut state = self.state.subscribe();
        match timeout(WAIT_TIMEOUT, state.wait_for(condition)).await {
            Ok(Ok(state)) => read(&state),
            _ => panic!("{what} did not come: {:#?}", self.state()),
        }
    }
}

impl InboundSink for RecordingInboundSink {
    fn on_connected(&self, account: OwnAccount) {
        self.state.send_modify(|state| state.accounts.push(account));
    }

    fn on_message(&self, inbound: InboundMessage) {
        self.state.send_modify(|state| state.messages.push(inbound));
    }

    fn on_button_press(&self, press: ButtonPress) {
        self.state.send_modify(|state| state.presses.push(press));
    }

    fn wait_until_stored(&self) -> BoxFuture<'_, ()> {
        self.state.send_modify(|state| state.store_waits += 1);
        let mut storing = self.is_storing.subscribe();
        async move { drop(storing.wait_for(|is_storing| *is_storing).await) }.boxed()
    }

    fn load_cursor(&self) -> BoxFuture<'_, Option<String>> {
        let cursor = self.cursor.lock().unwrap().clone();
        async { cursor }.boxed()
    }

    fn save_cursor(&self, cursor: String) -> BoxFuture<'_, ()> {
        self.set_cursor(&cursor);
        self.state.send_modify(|state| state.cursors.push(cursor));
        async {}.boxed()
    }
}

/// Runs a scenario while the network listens, again after each loss of its connection, and collects why it was lost.
pub(crate) async fn run_while_listening_with<T>(
    network: &dyn Network,
    sink: &dyn InboundSink,
    lost: &Mutex<Vec<ListenError>>,
    scenario: impl Future<Output = T>,
) -> T {
    let listening = async {
        loop {
            let why = network.listen(sink).await;
            lost.lock().unwrap().push(why);
        }
    };
    // The listener is dropped when the scenario is over, as the flow does it.
    tokio::select! {
        () = listening => unreachable!("it listens for ever"),
        output = scenario => output,
    }
}

/// Runs a scenario while the network listens, which must not end meanwhile.
pub(crate) async fn while_listening<T>(
    network: &dyn Network,
    sink: &dyn InboundSink,
    scenario: impl Future<Output = T>,
) -> T {
    tokio::select! {
        biased;
        lost = network.listen(sink) => panic!("listening ended: {lost}"),
        output = scenario => output,
    }
}

/// A fake server that is as strict as the real one.
pub(crate) trait StrictServer {
    /// What a real server would not accept.
    fn client_errors(&self) -> Vec<String>;

    /// A person writes in a channel; returns the id of the message.
    fn write_message(&self, channel: &str, person: &str, text: &str) -> String;
}

/// A fake server, a person in a channel there, the network under test, and a recording sink.
pub(crate) struct ListeningFixture<S: StrictServer, N> {
    pub(crate) server: S,
    pub(crate) channel: String,
    pub(crate) person: String,
    pub(crate) network: Arc<N>,
    pub(crate) sink: Arc<RecordingInboundSink>,
    /// The errors with which listening has ended so far.
    pub(crate) lost: Arc<Mutex<Vec<ListenError>>>,
    listening: Mutex<JoinSet<()>>,
}

impl<S: StrictServer, N: Network> ListeningFixture<S, N> {
    pub(crate) fn from_parts(server: S, network: N, channel: String, person: String) -> Self {
        let (network, sink, lost) = (Arc::new(network), Arc::new(RecordingInboundSink::new()), Arc::default());
        Self { server, channel, person, network, sink, lost, listening: Mutex::default() }
    }

    pub(crate) fn channel_address(&self) -> ChatAddress {
        chat_address(&self.channel)
    }

    /// The person writes in the channel; returns the id of the message.
    pub(crate) fn post(&self, text: &str) -> String {
        self.server.write_message(&self.channel, &self.person, text)
    }

    /// The account writes in the channel.
    pub(crate) async fn send(&self, text: &str, key: &str) -> Result<MessageId, SendError> {
        self.send_to(&self.channel_address(), text, key).await
    }

    pub(crate) async fn send_to(&self, address: &ChatAddress, text: &str, key: &str) -> Result<MessageId, SendError> {
        self.network.send(address, &message_piece(text), key).await
    }

    pub(crate) async fn edit(&self, message: &MessageId, text: &str) -> Result<(), SendError> {
        self.network.features().drafts.unwrap().edit(&self.channel_address(), message, &message_piece(text)).await
    }

    /// Listens in the background, and again after each lost connection. Returns when it is connected.
    pub(crate) async fn listen(&self) {
        let connections = self.sink.state().accounts.len();
        let (network, sink, lost) = (Arc::clone(&self.network), Arc::clone(&self.sink), Arc::clone(&self.lost));
        let listening = async move { run_while_listening_with(&*network, &*sink, &lost, std::future::pending()).await };
        self.listening.lock().unwrap().spawn(listening);
        self.wait_for_connections(connections + 1).await;
    }

    /// Drops the listener, as the end of the daemon does.
    pub(crate) async fn end_listening(&self) {
        let mut listening = std::mem::take(&mut *self.listening.lock().unwrap());
        listening.abort_all();
        while let Some(ended) = listening.join_next().await {
            resume_panic(ended);
        }
    }

    pub(crate) fn listen_errors(&self) -> Vec<ListenError> {
        self.lost.lock().unwrap().clone()
    }

    /// Waits for this number of connections since the start.
    pub(crate) async fn wait_for_connections(&self, times: usize) {
        self.sink.wait_for("the connection", |state| state.accounts.len() >= times).await;
    }

    /// Waits for this number of messages and returns their texts.
    pub(crate) async fn wait_for_texts(&self, count: usize) -> Vec<String> {
        let state = self.sink.wait_for("the message", |state| state.messages.len() >= count).await;
        state.messages.into_iter().map(|inbound| inbound.text).collect()
    }
}

/// Fails the test if the listener has panicked.
fn resume_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}

impl<S: StrictServer, N> Drop for ListeningFixture<S, N> {
    fn drop(&mut self) {
        while let Some(ended) = self.listening.lock().unwrap().try_join_next().filter(|_| !std::thread::panicking()) {
            resume_panic(ended);
        }
        let client_errors = self.server.client_errors();
        assert!(client_errors.is_empty() || std::thread::panicking(), "{client_errors:?}");
    }
}
