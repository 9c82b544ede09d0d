//! Connections of Socket Mode: hello, envelopes with their acknowledgements, and a change of connection that misses nothing.
//!
//! Slack gives each connection up after some hours and says so a few seconds before. The next one is opened while the old one is
//! still heard, and the old one is heard until it closes: in between, an event would have to wait for Slack to try again.
//!
//! Everything here is one future without tasks. It may be dropped at any await: the connections are closed, and what was not
//! acknowledged is told again, on the next connection.

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

use super::Slack;
use super::api::Failure;
use super::event::{self, Frame};
use crate::channels::seam::{Ear, Lost, Own};
use crate::channels::wire::socket::{self, Socket};

/// How long the server may take to shake hands and say hello.
const HELLO: Duration = Duration::from_secs(20);
/// How long a frame may take to be written. It is small: a server that takes none is gone.
const WRITE: Duration = Duration::from_secs(10);
/// Slack: Socket Mode. An envelope that is not acknowledged within three seconds is told again. What takes longer to be kept
/// is acknowledged in time all the same: telling it again would not help.
const ACKNOWLEDGE: Duration = Duration::from_millis(2500);
/// Slack pings several times within that time.
const QUIET: Duration = Duration::from_secs(45);
/// How long an answer to our own ping may take.
const ANSWER: Duration = Duration::from_secs(15);

/// Listens until the connection is lost.
///
/// # Cancel safety
/// Safe: what was not acknowledged is told again.
pub(super) async fn listen(slack: &Slack, ear: &dyn Ear) -> Lost {
    match hear(slack, ear).await {
        Ok(never) => match never {},
        Err(lost) => lost,
    }
}

async fn hear(slack: &Slack, ear: &dyn Ear) -> Result<Infallible, Lost> {
    let (own, _) = slack.own().await.map_err(Failure::lost)?;
    let listener = Listener { slack, ear, own };
    let mut line = Some(Line::open(&listener).await?);
    let mut leaving: Option<Line<'_>> = None;
    let mut opening: Fuse<BoxFuture<'_, Result<Line<'_>, Lost>>> = Fuse::terminated();
    loop {
        // A line goes on where it was when it is asked again.
        tokio::select! {
            fresh = &mut opening => line = Some(fresh?),
            end = next(&mut line) => match end {
                End::Leave => {
                    leaving = line.take();
                    opening = Line::open(&listener).boxed().fuse();
                }
                End::Lost(lost) => return Err(lost),
            },
            end = next(&mut leaving) => match end {
                End::Leave => {}
                End::Lost(lost) => {
                    debug!(%lost, "the old connection is over");
                    leaving = None;
                }
            },
        }
    }
}

async fn next(line: &mut Option<Line<'_>>) -> End {
    match line {
        Some(line) => line.hear().await,
        None => pending().await,
    }
}

/// Who listens.
struct Listener<'a> {
    slack: &'a Slack,
    ear: &'a dyn Ear,
    own: Own,
}

/// Why a line is not heard for the moment.
#[derive(Debug)]
enum End {
    /// Slack asks for another connection. This one can be heard until it closes.
    Leave,
    /// It is over.
    Lost(Lost),
}

/// One connection.
struct Line<'a> {
    listener: &'a Listener<'a>,
    socket: Socket,
    /// Envelopes whose messages are being kept, by their ids.
    keeping: FuturesUnordered<BoxFuture<'a, String>>,
    /// What is still to be written. A frame leaves it when it is written, so that none is lost when the future is dropped.
    outgoing: VecDeque<Message>,
    /// When it has been quiet for too long.
    quiet_at: Instant,
    /// True while a ping of ours has no answer.
    is_asked: bool,
}

impl<'a> Line<'a> {
    async fn open(listener: &'a Listener<'a>) -> Result<Self, Lost> {
        let url = listener.slack.api.open_connection().await.map_err(Failure::lost)?;
        let unreached = |error: Error| Lost::Connection(format!("Slack's socket cannot be reached: {error}"));
        let opened = timeout(HELLO, socket::open(&url)).await;
        let socket = opened.map_err(|_| Lost::Connection("Slack's socket does not answer".to_owned()))?;
        let mut line = Self {
            listener,
            socket: socket.map_err(unreached)?,
            keeping: FuturesUnordered::new(),
            outgoing: VecDeque::new(),
            quiet_at: Instant::now() + QUIET,
            is_asked: false,
        };
        let silent = |_| Lost::Connection("Slack's socket says nothing".to_owned());
        timeout(HELLO, line.hello()).await.map_err(silent)??;
        listener.ear.connected(listener.own.clone());
        Ok(line)
    }

    async fn hello(&mut self) -> Result<(), Lost> {
        loop {
            let message = self.socket.next().await;
            match self.frame(message)? {
                Some(Frame::Hello) => return Ok(()),
                Some(Frame::Disconnect { reason }) => return Err(left(&reason)),
                Some(Frame::Told(_) | Frame::Other) | None => {}
            }
        }
    }

    /// Hears until there is a reason to stop. It may be dropped and called again.
    async fn hear(&mut self) -> End {
        loop {
            if let Err(lost) = self.write().await {
                return End::Lost(lost);
            }
            // Each of these only takes what has come; what is not taken comes again.
            tokio::select! {
                message = self.socket.next() => match self.frame(message) {
                    Ok(Some(frame)) => if let Some(end) = self.take(frame) {
                        return end;
                    },
                    Ok(None) => {}
                    Err(lost) => return End::Lost(lost),
                },
                Some(kept) = self.keeping.next() => self.acknowledge(&kept),
                () = sleep_until(self.quiet_at) => {
                    if self.is_asked {
                        return End::Lost(Lost::Connection("Slack's socket has fallen silent".to_owned()));
                    }
                    self.is_asked = true;
                    self.quiet_at = Instant::now() + ANSWER;
                    self.outgoing.push_back(Message::Ping(Vec::new().into()));
                }
            }
        }
    }

    /// What a message says, if it says anything.
    fn frame(&mut self, message: Option<Result<Message, Error>>) -> Result<Option<Frame>, Lost> {
        self.quiet_at = Instant::now() + QUIET;
        self.is_asked = false;
        match message {
            Some(Ok(Message::Text(text))) => Ok(Some(event::read(&text))),
            Some(Ok(Message::Close(frame))) => {
                let why =
                    frame.map_or_else(String::new, |frame| format!(" ({} {})", frame.code, event::line(&frame.reason)));
                Err(Lost::Connection(format!("Slack closed the connection{why}")))
            }
            Some(Ok(_)) => Ok(None),
            Some(Err(error)) => Err(Lost::Connection(format!("Slack's connection broke: {error}"))),
            None => Err(Lost::Connection("Slack's connection broke".to_owned())),
        }
    }

    fn take(&mut self, frame: Frame) -> Option<End> {
        match frame {
            Frame::Told(envelope) => {
                let Listener { slack, ear, own } = self.listener;
                match envelope.heard(own, slack.mention_only) {
                    Some(heard) => {
                        ear.hear(heard);
                        let ear = *ear;
                        let kept = async move {
                            // Late or not, it is acknowledged.
                            let _ = timeout(ACKNOWLEDGE, ear.settled()).await;
                            envelope.id
                        };
                        self.keeping.push(kept.boxed());
                    }
                    None => self.acknowledge(&envelope.id),
                }
                None
            }
            Frame::Disconnect { reason } => Some(match left(&reason) {
                Lost::Connection(_) => End::Leave,
                lost @ (Lost::Busy { .. } | Lost::Refused(_)) => End::Lost(lost),
            }),
            Frame::Hello | Frame::Other => None,
        }
    }

    fn acknowledge(&mut self, envelope: &str) {
        self.outgoing.push_back(Message::text(json!({"envelope_id": envelope}).to_string()));
    }

    async fn write(&mut self) -> Result<(), Lost> {
        while let Some(frame) = self.outgoing.front() {
            match timeout(WRITE, self.socket.send(frame.clone())).await {
                Ok(Ok(())) => drop(self.outgoing.pop_front()),
                Ok(Err(error)) => return Err(Lost::Connection(format!("Slack's connection broke: {error}"))),
                Err(_) => return Err(Lost::Connection("Slack's socket takes nothing any more".to_owned())),
            }
        }
        Ok(())
    }
}

/// What Slack means when it asks to leave. Slack: Socket Mode, disconnect.
fn left(reason: &str) -> Lost {
    match reason {
        "link_disabled" => Lost::Refused("Socket Mode is off: switch it on in the settings of the app".to_owned()),
        reason => Lost::Connection(format!("Slack asks for another connection ({reason})")),
    }
}
