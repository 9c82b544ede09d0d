//! Fake network that records calls and can be told to fail, hang or lose a response.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use quell_protocol::Attachment;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::WAIT_TIMEOUT;
use crate::format::{LengthUnit, Markup, MessageFormat, MessagePiece};
use crate::network::{
    ChatAddress, Drafts, FileTransfer, InboundMessage, InboundSink, ListenError, MessageId, Network, NetworkError,
    NetworkFeatures, NetworkLimits, OwnAccount, Reactions, SendError, TypingIndicator, async_trait,
};

pub(super) struct FakeNetwork {
    state: watch::Sender<FakeNetworkState>,
    inbound_sender: mpsc::Sender<InboundMessage>,
    inbound_receiver: tokio::sync::Mutex<mpsc::Receiver<InboundMessage>>,
    faults: watch::Sender<VecDeque<(FakeNetworkCall, FakeNetworkFault)>>,
    typing_interval: Duration,
    edit_interval: Duration,
    /// True when hanging calls end.
    is_ending: watch::Sender<bool>,
    last_number: Mutex<u64>,
}

/// Everything that the network has recorded.
#[derive(Debug, Clone, Default)]
pub(super) struct FakeNetworkState {
    pub(super) connections: usize,
    pub(super) messages: Vec<FakeMessage>,
    /// The message id for each key that was sent.
    pub(super) message_by_key: HashMap<String, String>,
    /// Message id, emoji, and whether the reaction was removed.
    pub(super) reactions: Vec<(String, String, bool)>,
    pub(super) typing_calls: Vec<(ChatAddress, bool)>,
    /// Number of fetches in progress of files that never arrive.
    pub(super) fetching: usize,
    /// Number of calls in progress that hang.
    pub(super) hanging: usize,
    /// Number of messages that were given to the inbound sink.
    pub(super) inbound_count: usize,
}

/// A message that the bot sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FakeMessage {
    pub(super) id: String,
    pub(super) address: ChatAddress,
    pub(super) text: String,
    pub(super) edits: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FakeNetworkCall {
    Send,
    Edit,
}

#[derive(Debug, Clone)]
pub(super) enum FakeNetworkFault {
    Fails(SendError),
    /// The call takes effect, and its response is lost. With `keeps_key`, a repeated key shows the message once.
    LosesResponse {
        keeps_key: bool,
    },
    /// Completes, without effect, when [`FakeNetwork::end_hanging_calls`] is called.
    Hangs,
}

impl FakeNetworkState {
    pub(super) fn texts(&self) -> Vec<&str> {
        self.messages.iter().map(|written| written.text.as_str()).collect()
    }

    pub(super) fn contains_text(&self, part: &str) -> bool {
        self.messages.iter().any(|written| written.text.contains(part))
    }

    pub(super) fn reactions_on(&self, message: &str) -> Vec<&str> {
        let on = |(id, _, off): &&(String, String, bool)| id == message && !off;
        self.reactions.iter().filter(on).map(|(_, sign, _)| sign.as_str()).collect()
    }

    pub(super) fn is_typing(&self) -> bool {
        self.typing_calls.last().is_some_and(|(_, shown)| *shown)
    }
}

impl FakeNetwork {
    pub(super) fn new() -> Self {
        let (inbound_sender, inbound_messages) = mpsc::channel(100_000);
        let inbound_receiver = tokio::sync::Mutex::new(inbound_messages);
        Self {
            state: watch::Sender::default(),
            inbound_sender,
            inbound_receiver,
            faults: watch::Sender::default(),
            typing_interval: Duration::from_secs(4),
            edit_interval: Duration::from_millis(10),
            is_ending: watch::Sender::default(),
            last_number: Mutex::default(),
        }
    }

    /// A network whose typing indicator disappears after this time.
    pub(super) fn with_typing_interval(typing_interval: Duration) -> Self {
        Self { typing_interval, ..Self::new() }
    }

    /// A network that takes edits of a message no faster than this.
    pub(super) fn with_edit_interval(edit_interval: Duration) -> Self {
        Self { edit_interval, ..Self::new() }
    }

    /// A network for the next daemon, with the recorded state of the one before.
    pub(super) fn with_state(state: FakeNetworkState) -> Self {
        let network = Self::new();
        *network.last_number.lock().unwrap() = 1000;
        let state = FakeNetworkState { connections: 0, inbound_count: 0, fetching: 0, hanging: 0, ..state };
        network.state.send_replace(state);
        network
    }

    pub(super) async fn wait_for_connection(&self) {
        self.wait_for("the connection", |state| state.connections > 0).await;
    }

    pub(super) fn state(&self) -> FakeNetworkState {
        self.state.borrow().clone()
    }

    pub(super) async fn wait_for(&self, what: &str, condition: impl Fn(&FakeNetworkState) -> bool) -> FakeNetworkState {
        let mut state = self.state.subscribe();
        match timeout(WAIT_TIMEOUT, state.wait_for(condition)).await {
            Ok(Ok(state)) => state.clone(),
            _ => panic!("{what} did not come: {:#?}", self.state()),
        }
    }

    /// Waits for a message that contains this text.
    pub(super) async fn wait_for_text(&self, text: &str) -> FakeNetworkState {
        self.wait_for(text, |state| state.contains_text(text)).await
    }

    /// Makes the next call of this kind fail.
    pub(super) fn inject_fault(&self, call: FakeNetworkCall, fault: FakeNetworkFault) {
        self.faults.send_modify(|faults| faults.push_back((call, fault)));
    }

    pub(super) fn end_hanging_calls(&self) {
        self.is_ending.send_replace(true);
    }

    /// Waits until every injected fault has been used.
    pub(super) async fn wait_until_faults_used(&self) {
        let mut faults = self.faults.subscribe();
        let over = timeout(WAIT_TIMEOUT, faults.wait_for(VecDeque::is_empty)).await;
        assert!(over.is_ok(), "a fault was never met");
    }

    /// Delivers a message of `sender` in `room` to the flow and returns its id.
    pub(super) fn receive_text(&self, sender: &str, text: &str) -> String {
        self.receive_text_in("room", sender, text)
    }

    pub(super) fn receive_text_in(&self, room: &str, sender: &str, text: &str) -> String {
        let inbound = self.inbound_message(room, sender, text);
        let id = inbound.id.clone();
        self.receive_message(inbound);
        id
    }

    pub(super) fn receive_message(&self, inbound: InboundMessage) {
        self.inbound_sender.try_send(inbound).unwrap();
    }

    pub(super) fn inbound_message(&self, room: &str, sender: &str, text: &str) -> InboundMessage {
        let id = format!("m{}", self.next_number());
        InboundMessage {
            message_id: MessageId(id.clone()),
            id,
            sender: sender.to_owned(),
            sender_name: None,
            address: ChatAddress { target: room.to_owned(), thread: None },
            scope_id: None,
            text: text.to_owned(),
            is_addressed: true,
            is_group: false,
            attachments: Vec::new(),
        }
    }

    fn next_number(&self) -> u64 {
        let mut numbers = self.last_number.lock().unwrap();
        *numbers += 1;
        *numbers
    }

    fn next_fault(&self, call: FakeNetworkCall) -> Option<FakeNetworkFault> {
        let mut next = None;
        self.faults.send_if_modified(|faults| {
            let at = faults.iter().position(|(of, _)| *of == call);
            next = at.and_then(|at| faults.remove(at)).map(|(_, fault)| fault);
            next.is_some()
        });
        next
    }

    /// Applies an action to the state, or the next injected fault.
    async fn apply_or_fail<T>(
        &self,
        call: FakeNetworkCall,
        act: impl FnOnce(&mut FakeNetworkState) -> T,
    ) -> Result<T, SendError> {
        let lost = || SendError::Unknown { why: "the answer was lost".to_owned(), is_repeatable: false };
        let mut act = Some(act);
        let mut done = || {
            let mut result = None;
            self.state.send_modify(|state| result = act.take().map(|act| act(state)));
            result
        };
        match self.next_fault(call) {
            None => done().ok_or_else(lost),
            Some(FakeNetworkFault::Fails(error)) => Err(error),
            Some(FakeNetworkFault::Hangs) => {
                self.state.send_modify(|state| state.hanging += 1);
                let _over = InFlightGuard(self, |state| state.hanging -= 1);
                let mut ending = self.is_ending.subscribe();
                drop(ending.wait_for(|is_ending| *is_ending).await);
                Err(lost())
            }
            Some(FakeNetworkFault::LosesResponse { keeps_key }) => {
                done();
                Err(SendError::Unknown { why: "the answer was lost".to_owned(), is_repeatable: keeps_key })
            }
        }
    }
}

#[async_trait]
impl Network for FakeNetwork {
    fn limits(&self) -> NetworkLimits {
        let form = MessageFormat { markup: Markup::Markdown, max_length: 1000, length_unit: LengthUnit::Chars };
        NetworkLimits { message_format: form, edit_interval: self.edit_interval, typing_interval: self.typing_interval }
    }

    async fn listen(&self, sink: &dyn InboundSink) -> ListenError {
        let mut inbound_messages = self.inbound_receiver.lock().await;
        sink.on_connected(OwnAccount { id: "quell".to_owned(), name: "Quell".to_owned() });
        self.state.send_modify(|state| state.connections += 1);
        while let Some(inbound) = inbound_messages.recv().await {
            sink.on_message(inbound);
            self.state.send_modify(|state| state.inbound_count += 1);
        }
        ListenError::Connection("the fake network is gone".to_owned())
    }

    async fn send(&self, address: &ChatAddress, piece: &MessagePiece, key: &str) -> Result<MessageId, SendError> {
        if let Some(known) = self.state.borrow().message_by_key.get(key) {
            return Ok(MessageId(known.clone()));
        }
        let id = format!("q{}", self.next_number());
        let written = FakeMessage { id: id.clone(), address: address.clone(), text: piece.plain.clone(), edits: 0 };
        let keyed = (key.to_owned(), id.clone());
        self.apply_or_fail(FakeNetworkCall::Send, |state| {
            state.messages.push(written);
            state.message_by_key.extend([keyed]);
        })
        .await?;
        Ok(MessageId(id))
    }

    async fn probe(&self) -> Result<String, NetworkError> {
        Ok("paper".to_owned())
    }

    fn features(&self) -> NetworkFeatures<'_> {
        NetworkFeatures {
            drafts: Some(self),
            typing: Some(self),
            reactions: Some(self),
            files: Some(self),
            ..NetworkFeatures::default()
        }
    }
}

#[async_trait]
impl Drafts for FakeNetwork {
    async fn edit(&self, _place: &ChatAddress, message: &MessageId, piece: &MessagePiece) -> Result<(), SendError> {
        self.apply_or_fail(FakeNetworkCall::Edit, |state| {
            if let Some(written) = state.messages.iter_mut().find(|written| written.id == message.0) {
                written.text.clone_from(&piece.plain);
                written.edits += 1;
            }
        })
        .await
    }
}

#[async_trait]
impl TypingIndicator for FakeNetwork {
    async fn show(&self, address: &ChatAddress) -> Result<(), SendError> {
        self.state.send_modify(|state| state.typing_calls.push((address.clone(), true)));
        Ok(())
    }

    async fn hide(&self, address: &ChatAddress) -> Result<(), SendError> {
        self.state.send_modify(|state| state.typing_calls.push((address.clone(), false)));
        Ok(())
    }
}

#[async_trait]
impl Reactions for FakeNetwork {
    async fn add(&self, _place: &ChatAddress, message: &MessageId, emoji: &str) -> Result<(), SendError> {
        // Asynchronous like a real network: a removal that comes too early does not find the reaction.
        tokio::task::yield_now().await;
        self.state.send_modify(|state| state.reactions.push((message.0.clone(), emoji.to_owned(), false)));
        Ok(())
    }

    async fn remove(&self, _place: &ChatAddress, message: &MessageId, emoji: &str) -> Result<(), SendError> {
        self.state.send_modify(|state| {
            let mut on = state.reactions.iter_mut();
            if let Some((_, _, off)) = on.find(|(id, there, off)| *id == message.0 && there == emoji && !off) {
                *off = true;
            }
        });
        Ok(())
    }
}

#[async_trait]
impl FileTransfer for FakeNetwork {
    async fn fetch(&self, attachment: &Attachment, _most: u64) -> Result<Vec<u8>, NetworkError> {
        match attachment.source.as_str() {
            "slow" => {
                self.state.send_modify(|state| state.fetching += 1);
                let _given_up = InFlightGuard(self, |state| state.fetching -= 1);
                std::future::pending().await
            }
            "gone" => Err(NetworkError("it is gone".to_owned())),
            source => Ok(source.as_bytes().to_vec()),
        }
    }

    async fn send(
        &self,
        address: &ChatAddress,
        attachment: &Attachment,
        bytes: Vec<u8>,
    ) -> Result<MessageId, SendError> {
        let text = format!("file {}: {}", attachment.source, String::from_utf8_lossy(&bytes));
        let id = format!("q{}", self.next_number());
        let written = FakeMessage { id: id.clone(), address: address.clone(), text, edits: 0 };
        self.apply_or_fail(FakeNetworkCall::Send, |state| state.messages.push(written)).await?;
        Ok(MessageId(id))
    }
}

/// Corrects a count of calls in progress when the call ends or is dropped.
struct InFlightGuard<'a>(&'a FakeNetwork, fn(&mut FakeNetworkState));

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.state.send_modify(self.1);
    }
}

/// A rate limit: certainly not delivered, and may be retried after `after`.
pub(super) fn rate_limit_fault(after: Duration) -> FakeNetworkFault {
    FakeNetworkFault::Fails(SendError::NotDelivered { why: "too many requests".to_owned(), retry_after: Some(after) })
}

pub(super) fn refusal_fault() -> FakeNetworkFault {
    FakeNetworkFault::Fails(SendError::Refused { why: "blocked".to_owned() })
}
