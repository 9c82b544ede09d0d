//! Reading an answer to its end, and telling a complete one from one that broke off.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Response;
use tokio::time::{Instant, timeout};

use super::ModelSink;
use super::answer::{Bad, Partial, Taken};
use super::exchange::Exchange;
use super::failure::{Failure, root_cause};
use super::sse::{Decoder, Event, MAX_EVENT_BYTES};
use crate::scope::{Cancelled, Point};

/// How long the usage and the end mark may stay away once the model has said why it stopped. The answer is complete then,
/// and some servers send neither and keep the connection open.
const TAIL_WAIT: Duration = Duration::from_secs(5);

/// How long an answer may go on without saying anything. Comments and white space keep a connection open and say nothing.
struct Quiet {
    since: Instant,
    /// True before the first event.
    untold: bool,
}

impl Quiet {
    fn new() -> Self {
        Self { since: Instant::now(), untold: true }
    }

    /// Something was said.
    fn end(&mut self) {
        *self = Self { since: Instant::now(), untold: false };
    }
}

impl Exchange<'_> {
    /// Reads a stream to its end mark. Complete means: the model said why it stopped, or the server said that it is done.
    pub(super) async fn receive(
        &self,
        mut response: Response,
        partial: &mut Partial,
        sink: &mut dyn ModelSink,
    ) -> Result<(), Failure> {
        let (mut decoder, mut quiet) = (Decoder::default(), Quiet::new());
        loop {
            let chunk = match self.next(&mut response, partial, &quiet).await? {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return self.end(decoder, partial, sink),
                // The model had said why it stopped: the answer is whole, however its connection ends.
                Err(_) if partial.finish.is_some() => return Ok(()),
                Err(failure) => return Err(failure),
            };
            let mut rest = &chunk[..];
            while let Some(event) = decoder.next(&mut rest).map_err(|oversize| self.provider.oversize(oversize))? {
                // A chunk may hold many events, and none may be told after a stop.
                if self.scope.is_cancelled() {
                    return Err(Cancelled.into());
                }
                if self.take(&event, partial, sink).map_err(|bad| self.provider.bad(bad, partial))? == Taken::Done {
                    return self.done(partial);
                }
                quiet.end();
            }
        }
    }

    /// Reads an answer that is no stream although one was asked for.
    pub(super) async fn receive_whole(
        &self,
        mut response: Response,
        partial: &mut Partial,
        sink: &mut dyn ModelSink,
    ) -> Result<(), Failure> {
        let (mut body, mut quiet) = (Vec::new(), Quiet::new());
        while let Some(chunk) = self.next(&mut response, partial, &quiet).await?? {
            let is_blank = chunk.trim_ascii().is_empty();
            if !is_blank {
                quiet.end();
            }
            if is_blank && body.is_empty() {
                // In front of an answer it means nothing, and there may be no end of it.
                continue;
            }
            body.extend_from_slice(&chunk);
            if body.len() > MAX_EVENT_BYTES {
                return Err(self.provider.unreadable(format!("a body of more than {MAX_EVENT_BYTES} bytes")));
            }
        }
        let taken = self.provider.dialect.take_whole(&body, partial, sink);
        taken.map_err(|bad| self.provider.bad(bad, partial))?;
        self.done(partial)
    }

    /// The next bytes, or the end. The outer error is a stop.
    async fn next(
        &self,
        response: &mut Response,
        partial: &Partial,
        quiet: &Quiet,
    ) -> Result<Result<Option<Bytes>, Failure>, Cancelled> {
        let idle = self.provider.idle_timeout;
        let wait = if partial.finish.is_some() { idle.min(TAIL_WAIT) } else { idle };
        let most = if quiet.untold { self.provider.header_timeout } else { wait };
        let left = most.saturating_sub(quiet.since.elapsed());
        let in_time = async {
            // A flood of comments would be read before any timer is looked at.
            // waits: raced below, as `in_time`.
            if left.is_zero() { None } else { timeout(wait.min(left), response.chunk()).await.ok() }
        };
        let next = self.scope.race(Point::ModelStream, in_time).await?;
        Ok(match next {
            Some(Ok(chunk)) => Ok(chunk),
            Some(Err(error)) => Err(self.provider.truncated(root_cause(&error))),
            None if quiet.untold && quiet.since.elapsed() >= most => Err(self.provider.no_headers()),
            None => Err(self.provider.silent(wait)),
        })
    }

    /// The server closed without an end mark. A last event counts when it is whole: some servers forget the blank line.
    fn end(&self, decoder: Decoder, partial: &mut Partial, sink: &mut dyn ModelSink) -> Result<(), Failure> {
        match decoder.rest().map(|event| self.take(&event, partial, sink)) {
            Some(Ok(Taken::Done)) => self.done(partial),
            Some(Err(bad @ Bad::Reported(_))) => Err(self.provider.bad(bad, partial)),
            _ if partial.finish.is_some() => Ok(()),
            Some(Err(Bad::Unreadable(_))) => Err(self.provider.truncated("in the middle of an event")),
            Some(Ok(Taken::More)) | None => Err(self.provider.truncated("the stream ended without an end mark")),
        }
    }

    /// The server said that it is done.
    fn done(&self, partial: &Partial) -> Result<(), Failure> {
        if partial.begun { Ok(()) } else { Err(self.provider.truncated("it held nothing but its end mark")) }
    }

    fn take(&self, event: &Event, partial: &mut Partial, sink: &mut dyn ModelSink) -> Result<Taken, Bad> {
        self.provider.dialect.take(event, partial, sink)
    }
}
