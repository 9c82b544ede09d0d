//! Transport of letters over NATS: at most once, in order while a connection lasts, nothing kept for later.
//!
//! Each connection is a client of its own, because a client of async-nats keeps what it could not send and sends it after
//! it has connected again. async-nats starts the tasks of a client; they end when the client is dropped, at the latest
//! after one more attempt to connect.

mod connection;
mod driver;
mod settings;
mod subjects;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{mpsc, watch};

use crate::NodeAddress;
use connection::NatsConnector;
use driver::Driver;
pub use settings::{NatsCredentials, NatsSettings, SettingsError};

/// Letters that wait for the connection to take them. Few, so that the caller can still decide which one is next.
const OUTGOING_LETTERS: usize = 64;
/// Events that wait for the caller.
const INCOMING_EVENTS: usize = 4096;

/// Work of a transport, to be spawned by the caller. It ends when the receiver of the events is dropped, or when the
/// transport is and its last letters are sent. Dropping the driver closes the connection.
pub type NatsDriver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What [`NatsTransport::connect`] creates.
pub struct NatsConnection {
    pub transport: NatsTransport,
    pub events: mpsc::Receiver<NatsEvent>,
    /// Nothing is sent or received before it runs.
    pub driver: NatsDriver,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NatsEvent {
    /// From anyone who may use the server. Only a `LetterOpener` tells who wrote it.
    Letter(Vec<u8>),
    /// A letter to this node reached nobody. Also reported when somebody else on the server pretends it.
    NoResponders(NodeAddress),
    /// Letters to this node were dropped because it read too slowly. The next letter from each sender shows how many.
    LettersDropped,
    /// The connection ended. Letters in both directions may be lost, as far as they were sent in the seconds before.
    ConnectionLost,
}

#[derive(Debug, thiserror::Error)]
pub enum NatsConnectError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A server that can be reached does not let this node in.
    #[error("NATS server {url} refuses this node: {reason}; {advice}")]
    Refused { url: String, reason: String, advice: &'static str },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NatsSendError {
    #[error("not connected to NATS")]
    NotConnected,
    #[error("{OUTGOING_LETTERS} letters wait for the NATS server already")]
    QueueFull,
    #[error("the letter has {size} bytes, and the NATS server accepts at most {max}")]
    TooLarge { size: usize, max: usize },
}

/// The sending side of a connection to NATS, which is established again whenever it ends.
#[derive(Debug)]
pub struct NatsTransport {
    outgoing: mpsc::Sender<OutgoingLetter>,
    connected: watch::Receiver<bool>,
    max_letter_bytes: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct OutgoingLetter {
    to: NodeAddress,
    letter: Vec<u8>,
}

impl NatsTransport {
    /// Tries each server once. If none can be reached, the driver goes on trying for ever, and the transport is not
    /// connected meanwhile.
    ///
    /// # Errors
    /// When the settings are unusable, or when a server refuses this node.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing but a client of async-nats that ends by itself.
    pub async fn connect(settings: NatsSettings, own: NodeAddress) -> Result<NatsConnection, NatsConnectError> {
        let connector = NatsConnector::new(settings, own)?;
        let first = connector.connect_first().await?;
        let (outgoing, letters) = mpsc::channel(OUTGOING_LETTERS);
        let (event_sender, events) = mpsc::channel(INCOMING_EVENTS);
        let (connected_sender, connected) = watch::channel(false);
        let max_letter_bytes = Arc::new(AtomicUsize::new(0));
        let driver = Driver {
            connector,
            letters,
            events: event_sender,
            connected: connected_sender,
            max_letter_bytes: max_letter_bytes.clone(),
        };
        let transport = Self { outgoing, connected, max_letter_bytes };
        Ok(NatsConnection { transport, events, driver: Box::pin(driver.run(first)) })
    }

    /// Queues a letter. It is sent, or dropped: then [`NatsEvent::ConnectionLost`] follows. A connection that takes no
    /// letter for a second is given up. The server can deliver a letter later still, when it was paused itself.
    pub fn send(&self, to: &NodeAddress, letter: Vec<u8>) -> Result<(), NatsSendError> {
        // Locked until the letter is queued: the driver empties the queue after it has set the value to `false`.
        let is_connected = self.connected.borrow();
        if !*is_connected {
            return Err(NatsSendError::NotConnected);
        }
        let (size, max) = (letter.len(), self.max_letter_bytes.load(Ordering::Relaxed));
        if size > max {
            return Err(NatsSendError::TooLarge { size, max });
        }
        let letter = OutgoingLetter { to: to.clone(), letter };
        self.outgoing.try_send(letter).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => NatsSendError::QueueFull,
            mpsc::error::TrySendError::Closed(_) => NatsSendError::NotConnected,
        })
    }

    /// Waits until a letter can be queued, or the connection has ended. A caller that sends alone finds room then.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn wait_for_room(&self) {
        let mut connected = self.connected.clone();
        tokio::select! {
            // The room is free again as soon as this returns.
            room = self.outgoing.reserve() => drop(room),
            _ = connected.wait_for(|is_connected| !is_connected) => {}
        }
    }

    /// Whether letters can be sent. A short interruption may go unnoticed here, but is always reported as
    /// [`NatsEvent::ConnectionLost`]. Drop what `borrow` or `wait_for` return before the next await: it locks the value,
    /// and the driver waits for the lock when it sets the value, also when it is dropped.
    pub fn connected(&self) -> watch::Receiver<bool> {
        self.connected.clone()
    }

    /// The size of the largest letter that the server accepts, in bytes. `None` while not connected.
    pub fn max_letter_bytes(&self) -> Option<usize> {
        let is_connected = *self.connected.borrow();
        is_connected.then(|| self.max_letter_bytes.load(Ordering::Relaxed))
    }
}
