//! The work of a transport: it moves letters while a connection lasts, and connects again after it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::{Client, StatusCode, Subscriber};
use futures_util::StreamExt as _;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::connection::{Connection, ConnectionStatus, NatsConnector};
use super::subjects::{letter_subject, parse_reply_subject, reply_subject};
use super::{NatsEvent, OutgoingLetter};

/// A connection that takes no letter for so long is given up.
const MAX_WRITE_TIME: Duration = Duration::from_secs(1);
/// Between two attempts to connect. It doubles with each attempt that fails.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(20);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);

pub(super) struct Driver {
    pub(super) connector: NatsConnector,
    pub(super) letters: mpsc::Receiver<OutgoingLetter>,
    pub(super) events: mpsc::Sender<NatsEvent>,
    pub(super) connected: watch::Sender<bool>,
    pub(super) max_letter_bytes: Arc<AtomicUsize>,
}

/// Why letters are moved no more.
enum End {
    ConnectionLost,
    /// The transport or the receiver of its events was dropped.
    Dropped,
}

impl Driver {
    pub(super) async fn run(mut self, first: Option<Connection>) {
        let mut next = first;
        loop {
            let connection = match next.take() {
                Some(connection) => connection,
                None => match self.connect_again().await {
                    Some(connection) => connection,
                    None => return,
                },
            };
            self.max_letter_bytes.store(connection.client.max_payload(), Ordering::Relaxed);
            self.connected.send_replace(true);
            let end = self.move_letters(connection).await;
            // `NatsTransport::send` holds a lock on this value, so no letter is added later.
            self.connected.send_replace(false);
            while self.letters.try_recv().is_ok() {}
            match end {
                End::Dropped => return,
                End::ConnectionLost => tracing::warn!("the connection to NATS was lost"),
            }
            if self.events.send(NatsEvent::ConnectionLost).await.is_err() {
                return;
            }
        }
    }

    /// Tries until it succeeds. `None` if the transport or the receiver of its events was dropped.
    async fn connect_again(&mut self) -> Option<Connection> {
        let connector = &self.connector;
        let mut attempts = pin!(async move {
            let mut delay = FIRST_RETRY_DELAY;
            let mut last_reason = String::new();
            loop {
                match connector.connect_any().await {
                    Ok(connection) => {
                        tracing::info!("connected to NATS");
                        return connection;
                    }
                    Err(error) if error.reason == last_reason => {}
                    Err(error) => {
                        tracing::warn!(url = error.url, reason = error.reason, "no connection to NATS");
                        last_reason = error.reason;
                    }
                }
                sleep(delay).await;
                delay = (delay * 2).min(MAX_RETRY_DELAY);
            }
        });
        loop {
            tokio::select! {
                connection = &mut attempts => return Some(connection),
                () = self.events.closed() => return None,
                // `None` when the transport is dropped. It takes no letters meanwhile.
                letter = self.letters.recv() => drop(letter?),
            }
        }
    }

    /// Sends and receives until one of both ends.
    async fn move_letters(&mut self, connection: Connection) -> End {
        let Connection { client, letters, replies, status } = connection;
        let mut lost = status.clone();
        let sending = send_letters(&mut self.letters, &client, &self.connector);
        let receiving = forward_events(&self.events, letters, replies, status);
        tokio::select! {
            end = sending => end,
            end = receiving => end,
            _ = lost.wait_for(|status| status.is_lost) => End::ConnectionLost,
            () = self.events.closed() => End::Dropped,
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.connected.send_replace(false);
    }
}

async fn send_letters(letters: &mut mpsc::Receiver<OutgoingLetter>, client: &Client, connector: &NatsConnector) -> End {
    while let Some(OutgoingLetter { to, letter }) = letters.recv().await {
        let subject = letter_subject(connector.prefix(), &to);
        let reply = reply_subject(connector.prefix(), &connector.own, &to);
        match timeout(MAX_WRITE_TIME, client.publish_with_reply(subject, reply, letter.into())).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%to, %error, "a letter was not sent");
                return End::ConnectionLost;
            }
            Err(_) => {
                tracing::warn!(%to, "a letter was not sent, NATS takes no data");
                return End::ConnectionLost;
            }
        }
    }
    // The transport was dropped. Its last letters are still in a buffer.
    let _ = timeout(MAX_WRITE_TIME, client.flush()).await;
    End::Dropped
}

async fn forward_events(
    events: &mpsc::Sender<NatsEvent>,
    mut letters: Subscriber,
    mut replies: Subscriber,
    mut status: watch::Receiver<ConnectionStatus>,
) -> End {
    let mut known = ConnectionStatus::default();
    loop {
        let event = tokio::select! {
            letter = letters.next() => match letter {
                // An answer of the server is no letter.
                Some(message) => message.status.is_none().then(|| NatsEvent::Letter(message.payload.into())),
                None => return End::ConnectionLost,
            },
            reply = replies.next() => match reply {
                Some(message) if message.status == Some(StatusCode::NO_RESPONDERS) => {
                    parse_reply_subject(&message.subject).map(NatsEvent::NoResponders)
                }
                Some(_) => None,
                None => return End::ConnectionLost,
            },
            changed = status.changed() => {
                if changed.is_err() {
                    return End::ConnectionLost;
                }
                let before = std::mem::replace(&mut known, status.borrow_and_update().clone());
                if let Some(error) = known.error.as_ref().filter(|_| known.error != before.error) {
                    tracing::warn!(error, "error from NATS");
                }
                (known.dropped > before.dropped).then_some(NatsEvent::LettersDropped)
            }
        };
        let Some(event) = event else { continue };
        if events.send(event).await.is_err() {
            return End::Dropped;
        }
    }
}
