//! The in-memory chat network; reports what the channel sends, with times.
//!
//! Messages written to it are received as soon as the flow reads them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quell_channels::format::{LengthUnit, Markup, MessageFormat, MessagePiece};
use quell_channels::network::{
    ChatAddress, Drafts, InboundMessage, InboundSink, ListenError, MessageId, Network, NetworkError, NetworkFeatures,
    NetworkLimits, OwnAccount, Reactions, SendError, TypingIndicator, async_trait,
};
use tokio::sync::{Mutex, mpsc};

pub(crate) struct MemoryNetwork {
    arrivals: Mutex<mpsc::UnboundedReceiver<NetworkInput>>,
    events: mpsc::UnboundedSender<NetworkEvent>,
    sent: AtomicU64,
}

#[derive(Debug)]
pub(crate) enum NetworkInput {
    Message(Box<InboundMessage>),
    /// The end of a batch: the listener waits until all messages before it are in the database or refused. Real
    /// networks do that before they delete their own copy.
    EndOfBatch,
}

#[derive(Debug)]
pub(crate) struct NetworkEvent {
    pub(crate) at: Instant,
    pub(crate) kind: NetworkEventKind,
}

/// An event in the network.
#[derive(Debug)]
pub(crate) enum NetworkEventKind {
    /// The flow listens.
    Connected,
    /// A batch is in the database or refused.
    Settled,
    /// The flow sent a message.
    Sent { place: ChatAddress, text: String },
    /// The flow changed a message.
    Edited,
    /// The flow added a reaction to a message.
    Sign(String),
}

impl MemoryNetwork {
    /// Returns the network, the sender of its messages, and the receiver of its events.
    pub(crate) fn new() -> (Self, mpsc::UnboundedSender<NetworkInput>, mpsc::UnboundedReceiver<NetworkEvent>) {
        let (inputs, arrivals) = mpsc::unbounded_channel();
        let (event_sender, events) = mpsc::unbounded_channel();
        (Self { arrivals: Mutex::new(arrivals), events: event_sender, sent: AtomicU64::new(0) }, inputs, events)
    }

    fn emit(&self, kind: NetworkEventKind) {
        // The bench may have ended.
        let _ = self.events.send(NetworkEvent { at: Instant::now(), kind });
    }
}

#[async_trait]
impl Network for MemoryNetwork {
    /// The limits of Telegram.
    fn limits(&self) -> NetworkLimits {
        let message_format =
            MessageFormat { markup: Markup::TelegramHtml, max_length: 4096, length_unit: LengthUnit::Utf16 };
        NetworkLimits { message_format, edit_interval: Duration::from_secs(1), typing_interval: Duration::from_secs(4) }
    }

    async fn listen(&self, sink: &dyn InboundSink) -> ListenError {
        let mut arrivals = self.arrivals.lock().await;
        sink.on_connected(OwnAccount { id: "quell".to_owned(), name: "Quell".to_owned() });
        self.emit(NetworkEventKind::Connected);
        while let Some(arrival) = arrivals.recv().await {
            match arrival {
                NetworkInput::Message(message) => sink.on_message(*message),
                NetworkInput::EndOfBatch => {
                    sink.wait_until_stored().await;
                    self.emit(NetworkEventKind::Settled);
                }
            }
        }
        ListenError::Connection("the bench is over".to_owned())
    }

    async fn send(&self, place: &ChatAddress, piece: &MessagePiece, _: &str) -> Result<MessageId, SendError> {
        self.emit(NetworkEventKind::Sent { place: place.clone(), text: piece.plain.clone() });
        Ok(MessageId(self.sent.fetch_add(1, Ordering::Relaxed).to_string()))
    }

    async fn probe(&self) -> Result<String, NetworkError> {
        Ok("memory".to_owned())
    }

    fn features(&self) -> NetworkFeatures<'_> {
        NetworkFeatures { drafts: Some(self), typing: Some(self), reactions: Some(self), ..NetworkFeatures::default() }
    }
}

#[async_trait]
impl Drafts for MemoryNetwork {
    async fn edit(&self, _: &ChatAddress, _: &MessageId, _: &MessagePiece) -> Result<(), SendError> {
        self.emit(NetworkEventKind::Edited);
        Ok(())
    }
}

#[async_trait]
impl TypingIndicator for MemoryNetwork {
    async fn show(&self, _: &ChatAddress) -> Result<(), SendError> {
        Ok(())
    }

    async fn hide(&self, _: &ChatAddress) -> Result<(), SendError> {
        Ok(())
    }
}

#[async_trait]
impl Reactions for MemoryNetwork {
    async fn add(&self, _: &ChatAddress, _: &MessageId, sign: &str) -> Result<(), SendError> {
        self.emit(NetworkEventKind::Sign(sign.to_owned()));
        Ok(())
    }

    async fn remove(&self, _: &ChatAddress, _: &MessageId, _: &str) -> Result<(), SendError> {
        Ok(())
    }
}
