//! Stops at every point of a call: the socket closes, nothing is retried, and the ledger records it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use quell_scope::Point;
use rstest::rstest;

use super::super::fake_server::{
    FakeModelServer, FakeServerStep, one_word_answer, plain_response, stream_head, text_step,
};
use super::failures::unresponsive_listener;
use super::*;

/// Stops a call once it is `ready`, and checks what holds for every stop.
async fn stop_and_check(
    fake: &FakeModelServer,
    fixture: &ModelCallFixture,
    ready: impl Future<Output = ()>,
    sink: &mut RecordingSink,
) {
    let (outcome, ()) = tokio::join!(fixture.call(sink), async {
        ready.await;
        assert_eq!(fixture.models.active_requests().count(), 1);
        fixture.scope.cancel();
    });
    assert_eq!(outcome, Err(ModelError::Cancelled));
    assert!(fixture.is_idle());
    assert_eq!(fixture.scope.ledger().open_count(), 0);
    let requests = fake.requests().len();
    fake.wait_for_disconnects(requests).await;
    let _released = fixture.scope.close().await;
    assert_eq!(fake.requests().len(), requests, "an aborted request is never sent again");
}

/// Stops a call after its first piece of text, in any dialect, and returns what it told.
pub(super) async fn stop_after_first_piece(fake: &FakeModelServer, fixture: &ModelCallFixture) -> RecordingSink {
    let mut sink = RecordingSink::default();
    let mut pieces = sink.pieces.subscribe();
    let streaming = async {
        assert!(pieces.wait_for(|count| *count == 1).await.is_ok());
    };
    stop_and_check(fake, fixture, streaming, &mut sink).await;
    assert_eq!(fixture.ledger()[0].2, Release::Closed);
    sink
}

/// Stops a call when it has reached `point`, and returns what it told.
async fn stop_at_point(fake: &FakeModelServer, fixture: &mut ModelCallFixture, point: Point) -> RecordingSink {
    let reached = watch::Sender::new(false);
    let tell = reached.clone();
    let probe = PointProbe::new(move |at| {
        if at == point {
            tell.send_replace(true);
        }
    });
    fixture.scope = Scope::new(Clock::start(), probe);
    let mut waiting = reached.subscribe();
    let ready = async {
        assert!(waiting.wait_for(|at| *at).await.is_ok());
    };
    let mut sink = RecordingSink::default();
    stop_and_check(fake, fixture, ready, &mut sink).await;
    sink
}

#[tokio::test]
async fn while_connecting() {
    let (listener, _queued) = unresponsive_listener().await;
    let fixture = ModelCallFixture::new(format!("http://{}/v1", listener.local_addr().unwrap()));
    let mut sink = RecordingSink::default();
    let call = fixture.call(&mut sink);
    tokio::pin!(call);
    // Polled until it waits for the connection that is never accepted.
    tokio::select! {
        biased;
        outcome = &mut call => panic!("ended by itself: {outcome:?}"),
        () = tokio::task::yield_now() => fixture.scope.cancel(),
    }
    assert_eq!(call.await, Err(ModelError::Cancelled));
    assert_eq!(fixture.ledger()[0].2, Release::Closed);
    assert!(fixture.is_idle());
}

#[tokio::test]
async fn while_waiting_for_headers() {
    let (fake, fixture) = ModelCallFixture::start(vec![vec![]]).await;
    let mut sink = RecordingSink::default();
    stop_and_check(&fake, &fixture, fake.wait_for_requests(1), &mut sink).await;
    assert_eq!(fixture.ledger()[0].2, Release::Closed);
    let input = Usage { input_tokens: sink.inputs[0], output_tokens: 0, cached_tokens: 0, estimated: true };
    assert_eq!(sink.usages, [input], "the provider has read the request, and may count it");
}

#[tokio::test]
async fn while_streaming_or_silent_in_the_middle() {
    let (fake, fixture) = ModelCallFixture::start(vec![vec![stream_head(), text_step("12345")]]).await;
    let sink = stop_after_first_piece(&fake, &fixture).await;
    assert_eq!(
        sink.usages,
        [Usage { input_tokens: sink.inputs[0], output_tokens: 2, cached_tokens: 0, estimated: true }]
    );
}

#[tokio::test]
async fn while_reading_an_error() {
    let head = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 9\r\n\r\noops".to_vec();
    let (fake, mut fixture) = ModelCallFixture::start(vec![vec![FakeServerStep::Send(head)]]).await;
    let sink = stop_at_point(&fake, &mut fixture, Point::ModelError).await;
    assert_eq!((fixture.ledger()[0].2, sink.usages.len()), (Release::Closed, 0));
}

#[tokio::test]
async fn while_backing_off() {
    let refusal = plain_response("429 Too Many Requests", "retry-after: 25\r\nconnection: close\r\n", "later");
    let (fake, mut fixture) = ModelCallFixture::start(vec![refusal]).await;
    let sink = stop_at_point(&fake, &mut fixture, Point::ModelBackoff).await;
    let ends: Vec<_> = fixture.ledger().into_iter().map(|(kind, _, how)| (kind, how)).collect();
    assert_eq!(ends, [(ResourceKind::ModelRequest, Release::Failed), (ResourceKind::Timer, Release::Cancelled)]);
    assert_eq!((sink.usages.len(), sink.retries.len()), (0, 1));
}

/// A scope that is cancelled when a call reaches `point` for the `nth` time, and a counter of how often it was reached.
fn cancelling_probe(point: Point, nth: usize) -> (Scope, Arc<AtomicUsize>) {
    let own: Arc<OnceLock<Scope>> = Arc::default();
    let reached = Arc::new(AtomicUsize::new(0));
    let (count, target) = (Arc::clone(&reached), Arc::clone(&own));
    let probe = PointProbe::new(move |at| {
        if at == point
            && count.fetch_add(1, Ordering::SeqCst) + 1 == nth
            && let Some(scope) = target.get()
        {
            scope.cancel();
        }
    });
    let scope = Scope::new(Clock::start(), probe);
    own.set(scope.clone()).unwrap();
    (scope, reached)
}

#[rstest]
#[case::before_the_request(Point::ModelSend, 1, 0)]
#[case::before_the_second_request(Point::ModelSend, 2, 1)]
#[case::before_the_error(Point::ModelError, 1, 1)]
#[case::before_the_back_off(Point::ModelBackoff, 1, 1)]
#[case::before_the_first_bytes(Point::ModelStream, 1, 2)]
#[case::before_later_bytes(Point::ModelStream, 2, 2)]
#[tokio::test]
async fn at_every_point(#[case] point: Point, #[case] nth: usize, #[case] requests: usize) {
    let script = vec![stream_head(), text_step("a"), FakeServerStep::Gate];
    let (fake, mut fixture) =
        ModelCallFixture::start(vec![plain_response("500 Internal Server Error", "", ""), script]).await;
    let (scope, reached) = cancelling_probe(point, nth);
    fixture.scope = scope;
    assert_eq!(fixture.call(&mut RecordingSink::default()).await, Err(ModelError::Cancelled));
    fake.open_gate();
    assert_eq!(reached.load(Ordering::SeqCst), nth, "no wait begins after the stop");
    assert_eq!(fake.requests().len(), requests);
    fake.wait_for_disconnects(requests).await;
    assert!(fixture.is_idle());
    assert_eq!(fixture.scope.ledger().open_count(), 0);
}

/// Cancels its scope at the first event.
struct CancellingSink {
    scope: Scope,
    received: Vec<String>,
}

impl CancellingSink {
    fn record_and_cancel(&mut self, what: &str) {
        self.received.push(what.to_owned());
        self.scope.cancel();
    }
}

impl ModelSink for CancellingSink {
    fn on_text_delta(&mut self, delta: &str) {
        self.record_and_cancel(delta);
    }
    fn on_thinking_delta(&mut self, _delta: &str) {}
    fn on_retry(&mut self, _attempt: u32, _delay: Duration, _why: &str) {
        self.record_and_cancel("retrying");
    }
    fn on_usage(&mut self, _usage: Usage) {
        self.record_and_cancel("usage");
    }
}

#[tokio::test]
async fn nothing_is_told_after_the_stop_even_when_it_has_arrived() {
    let FakeServerStep::Send(one) = text_step("one") else { panic!("an event is sent") };
    let FakeServerStep::Send(head) = stream_head() else { panic!("a head is sent") };
    let (fake, fixture) =
        ModelCallFixture::start(vec![vec![FakeServerStep::Send([head, one.repeat(50)].concat())]]).await;
    let mut sink = CancellingSink { scope: fixture.scope.clone(), received: Vec::new() };
    assert_eq!(fixture.call(&mut sink).await, Err(ModelError::Cancelled));
    assert_eq!(sink.received, ["one", "usage"], "the usage is no delta: it is what the stopped call cost");
    fake.wait_for_disconnects(1).await;
}

#[tokio::test]
async fn an_error_that_surfaces_after_the_stop_is_part_of_the_stop() {
    let (_fake, fixture) = ModelCallFixture::start(vec![vec![stream_head(), FakeServerStep::Close]]).await;
    let mut sink = CancellingSink { scope: fixture.scope.clone(), received: Vec::new() };
    assert_eq!(fixture.call(&mut sink).await, Err(ModelError::Cancelled));
    assert_eq!(sink.received, ["usage"]);
    assert_eq!(fixture.ledger()[0].2, Release::Failed, "the ledger keeps what became of the socket");
}

#[tokio::test]
async fn a_call_that_is_dropped_gives_everything_back() {
    let (fake, fixture) = ModelCallFixture::start(vec![vec![stream_head()]]).await;
    let mut sink = RecordingSink::default();
    tokio::select! {
        outcome = fixture.call(&mut sink) => panic!("ended by itself: {outcome:?}"),
        () = fake.wait_for_requests(1) => {}
    }
    fake.wait_for_disconnects(1).await;
    assert!(fixture.is_idle());
    assert_eq!((fixture.scope.ledger().open_count(), fixture.ledger()[0].2), (0, Release::Closed));
}

#[tokio::test]
async fn a_scope_that_is_cancelled_already_sends_nothing() {
    let (fake, fixture) = ModelCallFixture::start(vec![]).await;
    fixture.scope.cancel();
    let mut sink = RecordingSink::default();
    assert_eq!(fixture.call(&mut sink).await, Err(ModelError::Cancelled));
    assert_eq!((sink.inputs.len(), sink.usages.len(), fake.requests().len()), (0, 0, 0));
}

#[tokio::test]
async fn a_stop_of_one_call_leaves_the_next_alone() {
    let (fake, mut fixture) = ModelCallFixture::start(vec![vec![], one_word_answer("next")]).await;
    stop_and_check(&fake, &fixture, fake.wait_for_requests(1), &mut RecordingSink::default()).await;
    fixture.scope = Scope::new(Clock::start(), PointProbe::default());
    assert_eq!(fixture.answer().await.0.message.text(), "next");
}
