//! Request body wrapper that fails when the body arrives too slowly. A body has a fixed time, and more for each byte
//! received.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::CancellationToken;

/// Time from the first read of a body to its end.
const BASE_TIMEOUT: Duration = Duration::from_secs(20);
/// Received bytes for which a body gets one second more.
const BYTES_PER_SECOND: u64 = 16 * 1024;

/// A body with a time limit, which starts when the body is first read.
pub(super) struct TimedBody<B> {
    body: B,
    started_at: Option<Instant>,
    received: u64,
    limit: Option<Pin<Box<Sleep>>>,
    /// Cancelled when the limit was exceeded.
    timed_out: CancellationToken,
}

impl<B> TimedBody<B> {
    pub(super) fn new(body: B, timed_out: CancellationToken) -> Self {
        Self { body, started_at: None, received: 0, limit: None, timed_out }
    }

    fn poll_limit(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let started_at = *self.started_at.get_or_insert_with(Instant::now);
        let until = started_at + BASE_TIMEOUT + Duration::from_secs(self.received / BYTES_PER_SECOND);
        let limit = self.limit.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if limit.deadline() != until {
            limit.as_mut().reset(until);
        }
        limit.as_mut().poll(cx)
    }
}

impl<B> HttpBody for TimedBody<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            if let Some(Ok(frame)) = &frame {
                this.received += frame.data_ref().map_or(0, |data| data.len() as u64);
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        ready!(this.poll_limit(cx));
        this.timed_out.cancel();
        Poll::Ready(Some(Err("the body came too slowly".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use futures_util::stream;
    use tokio::time::sleep;

    use super::*;

    /// A body of `count` pieces of 16 KiB, with a pause before each.
    fn pieces(count: usize, pause: Duration) -> Body {
        Body::from_stream(stream::unfold(0, move |sent| async move {
            sleep(pause).await;
            (sent < count).then(|| (Ok::<_, BoxError>(Bytes::from(vec![b'x'; 16 * 1024])), sent + 1))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stays_away_is_given_up() {
        let timed_out = CancellationToken::new();
        let started_at = Instant::now();
        let read =
            to_bytes(Body::new(TimedBody::new(pieces(1, Duration::from_secs(3600)), timed_out.clone())), 1 << 20).await;
        assert!(read.is_err() && timed_out.is_cancelled());
        assert_eq!(started_at.elapsed().as_secs(), BASE_TIMEOUT.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn drops_do_not_keep_a_body_alive() {
        let timed_out = CancellationToken::new();
        let drops = stream::unfold((), |()| async {
            sleep(Duration::from_secs(5)).await;
            Some((Ok::<_, BoxError>(Bytes::from_static(b"x")), ()))
        });
        let read = to_bytes(Body::new(TimedBody::new(Body::from_stream(drops), timed_out.clone())), 1 << 20).await;
        assert!(read.is_err() && timed_out.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_body_that_comes_in_time_is_read_to_its_end() {
        let timed_out = CancellationToken::new();
        let body = TimedBody::new(pieces(100, Duration::from_millis(900)), timed_out.clone());
        let read = to_bytes(Body::new(body), 4 << 20).await.unwrap();
        assert_eq!((read.len(), timed_out.is_cancelled()), (100 * 16 * 1024, false));
    }
}
