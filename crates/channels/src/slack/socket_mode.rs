//! Socket Mode connections: hello, acknowledgements, and overlap of the old and the new connection.
//!
//! Slack closes each connection after some hours and announces it some seconds before. The next connection is opened
//! while the old one is still read, and the old one is read until it closes. Otherwise an event in between would wait
//! for a retry by Slack.
//!
//! Everything here is one future without tasks. It may be dropped at any await: the connections are closed, and Slack
//! sends events that were not acknowledged again on the next connection.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use futures_util::future::{BoxFuture, Fuse};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _};
use serde_json::json;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite::{Error, Message};
use tracing::debug;

use super::SlackNetwork;
use super::event_parser::{self, SocketModeFrame};
use crate::network::{InboundSink, ListenError, OwnAccount};
use crate::wire::call_error::CallError;
use crate::wire::text::single_line;
use crate::wire::websocket::{self, ClientWebSocket};

/// Time limit of the handshake, and of the hello after it.
const HELLO_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit of writing a frame. Frames are small: a server that does not read one is gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Slack: Socket Mode. Slack sends an envelope again if it is not acknowledged within three seconds. If storing takes
/// longer, it is acknowledged in time anyway: sending it again would not help.
const ACK_DEADLINE: Duration = Duration::from_millis(2500);
/// Send a ping after this much silence. Slack pings several times within it.
const PING_AFTER: Duration = Duration::from_secs(45);
/// Time limit of the response to our ping.
const PONG_TIMEOUT: Duration = Duration::from_secs(15);

/// Listens until the connection is lost.
///
/// # Cancel safety
/// Safe: events that were not acknowledged are sent again.
pub(super) async fn listen_until_lost(slack: &SlackNetwork, sink: &dyn InboundSink) -> Result<Infallible, ListenError> {
    let (account, _) = slack.fetch_account().await.map_err(CallError::into_listen_error)?;
    let listener = SocketModeListener { slack, sink, account };
    let mut current = Some(SocketModeConnection::open(&listener).await?);
    let mut closing: Option<SocketModeConnection<'_>> = None;
    let mut opening: Fuse<BoxFuture<'_, Result<SocketModeConnection<'_>, ListenError>>> = Fuse::terminated();
    loop {
        // A connection that is polled again continues where it was.
        tokio::select! {
            fresh = &mut opening => current = Some(fresh?),
            end = next_end(&mut current) => match end {
                SocketModeEnd::ReconnectRequested => {
                    closing = current.take();
                    opening = SocketModeConnection::open(&listener).boxed().fuse();
                }
                SocketModeEnd::Failed(lost) => return Err(lost),
            },
            end = next_end(&mut closing) => match end {
                SocketModeEnd::ReconnectRequested => {}
                SocketModeEnd::Failed(lost) => {
                    debug!(%lost, "the old connection is over");
                    closing = None;
                }
            },
        }
    }
}

async fn next_end(connection: &mut Option<SocketModeConnection<'_>>) -> SocketModeEnd {
    match connection {
        Some(connection) => connection.read_until_end().await,
        None => pending().await,
    }
}

struct SocketModeListener<'a> {
    slack: &'a SlackNetwork,
    sink: &'a dyn InboundSink,
    account: OwnAccount,
}

/// Why reading of a connection paused or ended.
#[derive(Debug)]
enum SocketModeEnd {
    /// Slack asks for another connection. This one can be read until it closes.
    ReconnectRequested,
    Failed(ListenError),
}

struct SocketModeConnection<'a> {
    listener: &'a SocketModeListener<'a>,
    socket: ClientWebSocket,
    /// Waits until the message of an envelope is stored; resolves to the id of the envelope.
    pending_acks: FuturesUnordered<BoxFuture<'a, String>>,
    /// Frames to write. A frame is removed after it was written, so that none is lost when the future is dropped.
    outgoing: VecDeque<Message>,
    /// When to send a ping, or to give up if one is pending.
    ping_at: Instant,
    /// True while our ping has no response.
    awaiting_pong: bool,
}

impl<'a> SocketModeConnection<'a> {
    async fn open(listener: &'a SocketModeListener<'a>) -> Result<Self, ListenError> {
        let url = listener.slack.api.request_socket_url().await.map_err(CallError::into_listen_error)?;
        let unreached = |error: Error| ListenError::Connection(format!("Slack's socket cannot be reached: {error}"));
        let opened = timeout(HELLO_TIMEOUT, websocket::open_websocket(&url)).await;
        let socket = opened.map_err(|_| ListenError::Connection("Slack's socket does not answer".to_owned()))?;
        let mut connection = Self {
            listener,
            socket: socket.map_err(unreached)?,
            pending_acks: FuturesUnordered::new(),
            outgoing: VecDeque::new(),
            ping_at: Instant::now() + PING_AFTER,
            awaiting_pong: false,
        };
        let silent = |_| ListenError::Connection("Slack's socket sent no hello in time".to_owned());
        timeout(HELLO_TIMEOUT, connection.wait_for_hello()).await.map_err(silent)??;
        listener.sink.on_connected(listener.account.clone());
        Ok(connection)
    }

    async fn wait_for_hello(&mut self) -> Result<(), ListenError> {
        loop {
            let message = self.socket.next().await;
            match self.parse_message(message)? {
                Some(SocketModeFrame::Hello) => return Ok(()),
                Some(SocketModeFrame::Disconnect { reason }) => return Err(disconnect_error(&reason)),
                Some(SocketModeFrame::Envelope(_) | SocketModeFrame::Other) | None => {}
            }
        }
    }

    /// Reads until there is a reason to stop. It may be dropped and called again.
    async fn read_until_end(&mut self) -> SocketModeEnd {
        loop {
            if let Err(lost) = self.flush_outgoing().await {
                return SocketModeEnd::Failed(lost);
            }
            // Each branch only receives; nothing is lost when another one wins.
            tokio::select! {
                message = self.socket.next() => match self.parse_message(message) {
                    Ok(Some(frame)) => if let Some(end) = self.handle_frame(frame) {
                        return end;
                    },
                    Ok(None) => {}
                    Err(lost) => return SocketModeEnd::Failed(lost),
                },
                Some(envelope_id) = self.pending_acks.next() => self.queue_ack(&envelope_id),
                () = sleep_until(self.ping_at) => {
                    if self.awaiting_pong {
                        return SocketModeEnd::Failed(ListenError::Connection("Slack's socket has fallen silent".to_owned()));
                    }
                    self.awaiting_pong = true;
                    self.ping_at = Instant::now() + PONG_TIMEOUT;
                    self.outgoing.push_back(Message::Ping(Vec::new().into()));
                }
            }
        }
    }

    /// The frame in a message, if there is one.
    fn parse_message(
        &mut self,
        message: Option<Result<Message, Error>>,
    ) -> Result<Option<SocketModeFrame>, ListenError> {
        self.ping_at = Instant::now() + PING_AFTER;
        self.awaiting_pong = false;
        match message {
            Some(Ok(Message::Text(text))) => Ok(Some(event_parser::parse_frame(&text))),
            Some(Ok(Message::Close(frame))) => {
                let why =
                    frame.map_or_else(String::new, |frame| format!(" ({} {})", frame.code, single_line(&frame.reason)));
                Err(ListenError::Connection(format!("Slack closed the connection{why}")))
            }
            Some(Ok(_)) => Ok(None),
            Some(Err(error)) => Err(ListenError::Connection(format!("Slack's connection broke: {error}"))),
            None => Err(ListenError::Connection("Slack's connection broke".to_owned())),
        }
    }

    fn handle_frame(&mut self, frame: SocketModeFrame) -> Option<SocketModeEnd> {
        match frame {
            SocketModeFrame::Envelope(envelope) => {
                let SocketModeListener { slack, sink, account } = self.listener;
                match envelope.parse_inbound(account, slack.mention_only) {
                    Some(inbound) => {
                        sink.on_message(inbound);
                        let sink = *sink;
                        let stored = async move {
                            // Acknowledge it even if storing takes too long.
                            let _ = timeout(ACK_DEADLINE, sink.wait_until_stored()).await;
                            envelope.id
                        };
                        self.pending_acks.push(stored.boxed());
                    }
                    None => {
                        if let Some(press) = envelope.parse_press() {
                            sink.on_button_press(press);
                        }
                        self.queue_ack(&envelope.id);
                    }
                }
                None
            }
            SocketModeFrame::Disconnect { reason } => Some(match disconnect_error(&reason) {
                ListenError::Connection(_) => SocketModeEnd::ReconnectRequested,
                lost @ (ListenError::Busy { .. } | ListenError::Refused(_)) => SocketModeEnd::Failed(lost),
            }),
            SocketModeFrame::Hello | SocketModeFrame::Other => None,
        }
    }

    fn queue_ack(&mut self, envelope: &str) {
        self.outgoing.push_back(Message::text(json!({"envelope_id": envelope}).to_string()));
    }

    async fn flush_outgoing(&mut self) -> Result<(), ListenError> {
        while let Some(frame) = self.outgoing.front() {
            match timeout(WRITE_TIMEOUT, self.socket.send(frame.clone())).await {
                Ok(Ok(())) => drop(self.outgoing.pop_front()),
                Ok(Err(error)) => return Err(ListenError::Connection(format!("Slack's connection broke: {error}"))),
                Err(_) => return Err(ListenError::Connection("Slack's socket does not read any more".to_owned())),
            }
        }
        Ok(())
    }
}

/// Maps the reason of a disconnect. Slack: Socket Mode, disconnect.
fn disconnect_error(reason: &str) -> ListenError {
    match reason {
        "link_disabled" => {
            ListenError::Refused("Socket Mode is off: switch it on in the settings of the app".to_owned())
        }
        reason => ListenError::Connection(format!("Slack asks for another connection ({reason})")),
    }
}
