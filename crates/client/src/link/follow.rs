//! Following a run's events to its end, across lost connections.
//!
//! The cursor is the number of the last event that was handed out: a new connection goes on behind it, so that nothing is
//! seen twice and nothing is missed, however often the connection breaks.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use quell_protocol::{EventKind, RunEvent, RunId};
use reqwest::header::ACCEPT;
use reqwest::{Method, Response};
use tokio::time::{Instant, sleep, timeout};

use super::sse::{Decoder, Frame};
use super::{Link, LinkError, ORDINARY};

/// An event carries at most a whole answer or a whole receipt.
const MOST_FRAME_BYTES: usize = 16 << 20;

/// The daemon sends a comment every 15 seconds. Three that did not come: the connection is dead, whatever it says itself.
const IDLE: Duration = Duration::from_secs(45);

/// What following a run brings.
#[derive(Debug)]
pub enum Followed {
    /// The next event.
    Event(Box<RunEvent>),
    /// The connection is lost; the next attempt comes after the pause.
    Lost {
        /// What happened.
        cause: String,
        /// Time until the next attempt.
        pause: Duration,
    },
    /// The connection is back.
    Back,
}

/// A run being followed.
pub struct Following(BoxStream<'static, Result<Followed, LinkError>>);

impl fmt::Debug for Following {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Following")
    }
}

impl Following {
    /// The next event; nothing after `run.ended` and after an error.
    ///
    /// # Errors
    /// What the daemon refuses, and a connection that stays lost beyond the link's patience.
    ///
    /// # Cancel safety
    /// Dropping the wait loses nothing: the place in the stream is kept.
    pub async fn next(&mut self) -> Option<Result<Followed, LinkError>> {
        self.0.next().await
    }

    /// Follows to the end and gives only that.
    ///
    /// # Errors
    /// As [`Following::next`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the events seen so far; the run is not touched.
    pub async fn end(mut self) -> Result<Option<RunEvent>, LinkError> {
        while let Some(seen) = self.next().await {
            if let Followed::Event(event) = seen?
                && matches!(event.kind, EventKind::Ended { .. })
            {
                return Ok(Some(*event));
            }
        }
        Ok(None)
    }
}

impl Link {
    /// Follows the events of a run behind number `after` (0: from the first) until its `run.ended`.
    #[must_use]
    pub fn follow(&self, run: &RunId, after: u64) -> Following {
        self.follow_within(run, after, IDLE)
    }

    /// As [`Link::follow`], on connections that count as lost after a silence of this length.
    pub(super) fn follow_within(&self, run: &RunId, after: u64, idle: Duration) -> Following {
        let chase = Chase {
            link: self.clone(),
            run: run.clone(),
            seq: after,
            idle,
            source: None,
            ready: VecDeque::new(),
            trouble: None,
            over: false,
        };
        let steps = stream::unfold(chase, |mut chase| async move { chase.next().await.map(|seen| (seen, chase)) });
        Following(steps.fuse().boxed())
    }
}

/// A run being followed, between two waits.
struct Chase {
    link: Link,
    run: RunId,
    seq: u64,
    /// The longest silence of a connection that is alive.
    idle: Duration,
    source: Option<(Response, Decoder)>,
    ready: VecDeque<RunEvent>,
    trouble: Option<Trouble>,
    over: bool,
}

/// A connection that was lost and has not brought an event since.
#[derive(Clone, Copy)]
struct Trouble {
    since: Instant,
    pause: Duration,
    /// True while there is no connection; false once there is one that has yet to prove itself.
    apart: bool,
}

impl Chase {
    async fn next(&mut self) -> Option<Result<Followed, LinkError>> {
        if self.over {
            return None;
        }
        let seen = self.step().await;
        self.over = match &seen {
            Ok(Followed::Event(event)) => matches!(event.kind, EventKind::Ended { .. }),
            Ok(Followed::Lost { .. } | Followed::Back) => false,
            Err(_) => true,
        };
        Some(seen)
    }

    async fn step(&mut self) -> Result<Followed, LinkError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.seq = event.seq;
                self.trouble = None;
                return Ok(Followed::Event(Box::new(event)));
            }
            let Some((response, decoder)) = &mut self.source else {
                match self.connect().await {
                    Ok(true) => return Ok(Followed::Back),
                    Ok(false) => continue,
                    Err(error) if error.may_pass() => return self.lost(error),
                    Err(error) => return Err(error),
                }
            };
            let Ok(piece) = timeout(self.idle, response.chunk()).await else {
                let cause = format!("nothing came for {} s", self.idle.as_secs());
                return self.lost(LinkError::Lost { url: self.link.base.to_string(), cause });
            };
            match piece {
                Ok(Some(piece)) => {
                    let frames = decoder.feed(&piece);
                    let frames = frames.map_err(|_| self.link.foreign("an event does not end".into()))?;
                    self.take(&frames)?;
                }
                Ok(None) => {
                    let cause = "the daemon closed the stream before the run ended".into();
                    return self.lost(LinkError::Lost { url: self.link.base.to_string(), cause });
                }
                Err(error) => return self.lost(self.link.broken(&error)),
            }
        }
    }

    /// Opens the stream behind the cursor, after the pause that is due. True when a lost connection is back.
    async fn connect(&mut self) -> Result<bool, LinkError> {
        if let Some(trouble) = self.trouble {
            sleep(trouble.pause).await;
        }
        let seq = self.seq.to_string();
        let path = ["api", "runs", self.run.as_str(), "events"];
        let request = self.link.request(Method::GET, &path, &[("after", &seq)])?;
        let request = request.header(ACCEPT, "text/event-stream").header("last-event-id", &seq);
        let opened = timeout(ORDINARY, async {
            let response = request.send().await.map_err(|error| self.link.broken(&error))?;
            self.link.accepted(response).await
        });
        let silent = |_| LinkError::Lost { url: self.link.base.to_string(), cause: "it did not answer in time".into() };
        let response = opened.await.map_err(silent)??;
        self.source = Some((response, Decoder::new(MOST_FRAME_BYTES)));
        let was_apart = self.trouble.as_mut().is_some_and(|trouble| std::mem::replace(&mut trouble.apart, false));
        Ok(was_apart)
    }

    fn take(&mut self, frames: &[Frame]) -> Result<(), LinkError> {
        for frame in frames {
            match serde_json::from_str::<RunEvent>(&frame.data) {
                Ok(event) if event.run_id != self.run || event.seq <= self.seq => {}
                Ok(event) if self.ready.back().is_some_and(|last| event.seq <= last.seq) => {}
                Ok(event) => self.ready.push_back(event),
                // A younger daemon may have events that this visitor does not know; what it knows must be readable.
                Err(_) if !KNOWN.contains(&frame.event.as_str()) => {}
                Err(error) => return Err(self.link.foreign(format!("an event is odd: {error}"))),
            }
        }
        Ok(())
    }

    fn lost(&mut self, error: LinkError) -> Result<Followed, LinkError> {
        self.source = None;
        let now = Instant::now();
        let patience = self.link.patience;
        let trouble = match self.trouble {
            None => Trouble { since: now, pause: patience.first, apart: true },
            Some(before) if now.duration_since(before.since) >= patience.give_up => return Err(error),
            Some(before) => Trouble { pause: (before.pause * 2).min(patience.longest), apart: true, ..before },
        };
        self.trouble = Some(trouble);
        let cause = match error {
            LinkError::Lost { cause, .. } => cause,
            LinkError::NoDaemon { tried } => tried,
            other => other.to_string(),
        };
        Ok(Followed::Lost { cause, pause: trouble.pause })
    }
}

/// The events that this visitor knows.
const KNOWN: [&str; 16] = [
    "run.queued",
    "run.started",
    "step.started",
    "text.delta",
    "thinking.delta",
    "tool.started",
    "tool.output",
    "tool.ended",
    "approval.requested",
    "approval.resolved",
    "context.compacted",
    "model.retry",
    "run.snapshot",
    "run.ending",
    "run.ended",
    "usage",
];
