//! A stop at every place of a call: the socket closes, nothing is tried again, the ledger says so.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use rstest::rstest;

use super::super::fake::{Fake, Step, plain, stream_head, text, word};
use super::failures::deaf;
use super::*;
use crate::scope::Point;

/// Stops a call once it is `ready`, and checks what is true of every stop.
async fn stopped(fake: &Fake, bench: &Bench, ready: impl Future<Output = ()>, sink: &mut Recorder) {
    let (outcome, ()) = tokio::join!(bench.call(sink), async {
        ready.await;
        assert!(bench.models.active().has_run(&bench.run));
        bench.scope.cancel();
    });
    assert_eq!(outcome, Err(ModelError::Cancelled));
    assert!(bench.is_idle());
    assert_eq!(bench.scope.ledger().open_count(), 0);
    let requests = fake.requests().len();
    fake.left(requests).await;
    let _released = bench.scope.close().await;
    assert_eq!(fake.requests().len(), requests, "an aborted request is never sent again");
}

#[tokio::test]
async fn while_connecting() {
    let (listener, _queued) = deaf().await;
    let bench = Bench::new(format!("http://{}/v1", listener.local_addr().unwrap()));
    let mut sink = Recorder::default();
    let call = bench.call(&mut sink);
    tokio::pin!(call);
    // Polled until it waits for the connection that never comes.
    tokio::select! {
        biased;
        outcome = &mut call => panic!("ended by itself: {outcome:?}"),
        () = tokio::task::yield_now() => bench.scope.cancel(),
    }
    assert_eq!(call.await, Err(ModelError::Cancelled));
    assert_eq!(bench.ledger()[0].2, "closed");
    assert!(bench.is_idle());
}

#[tokio::test]
async fn while_waiting_for_headers() {
    let fake = Fake::start(vec![vec![]]).await;
    let bench = Bench::new(fake.base_url());
    let mut sink = Recorder::default();
    stopped(&fake, &bench, fake.asked(1), &mut sink).await;
    assert_eq!(bench.ledger()[0].2, "closed");
    let input = Usage { input_tokens: sink.inputs[0], output_tokens: 0, estimated: true };
    assert_eq!(sink.usages, [input], "the provider has read the request, and may count it");
}

#[tokio::test]
async fn while_streaming_or_silent_in_the_middle() {
    let fake = Fake::start(vec![vec![stream_head(), text("12345")]]).await;
    let bench = Bench::new(fake.base_url());
    let mut sink = Recorder::default();
    let mut pieces = sink.pieces.subscribe();
    let streaming = async {
        assert!(pieces.wait_for(|count| *count == 1).await.is_ok());
    };
    stopped(&fake, &bench, streaming, &mut sink).await;
    assert_eq!(bench.ledger()[0].2, "closed");
    assert_eq!(sink.usages, [Usage { input_tokens: sink.inputs[0], output_tokens: 2, estimated: true }]);
}

#[tokio::test]
async fn while_reading_an_error() {
    let head = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 9\r\n\r\noops".to_vec();
    let fake = Fake::start(vec![vec![Step::Send(head)]]).await;
    let mut bench = Bench::new(fake.base_url());
    let at_error = watch::Sender::new(false);
    let tell = at_error.clone();
    bench.scope = Scope::new(
        Clock::start(),
        Probe::new(move |point| {
            if point == Point::ModelError {
                tell.send_replace(true);
            }
        }),
    );
    let mut reading = at_error.subscribe();
    let ready = async {
        assert!(reading.wait_for(|at| *at).await.is_ok());
    };
    let mut sink = Recorder::default();
    stopped(&fake, &bench, ready, &mut sink).await;
    assert_eq!((bench.ledger()[0].2, sink.usages.len()), ("closed", 0));
}

#[tokio::test]
async fn while_backing_off() {
    let refusal = plain("429 Too Many Requests", "retry-after: 25\r\nconnection: close\r\n", "later");
    let fake = Fake::start(vec![refusal]).await;
    let mut bench = Bench::new(fake.base_url());
    let backing_off = watch::Sender::new(false);
    let tell = backing_off.clone();
    let probe = Probe::new(move |point| {
        if point == Point::ModelBackoff {
            tell.send_replace(true);
        }
    });
    bench.scope = Scope::new(Clock::start(), probe);
    let mut waiting = backing_off.subscribe();
    let ready = async {
        assert!(waiting.wait_for(|at| *at).await.is_ok());
    };
    let mut sink = Recorder::default();
    stopped(&fake, &bench, ready, &mut sink).await;
    let ends: Vec<_> = bench.ledger().into_iter().map(|(kind, _, how)| (kind, how)).collect();
    assert_eq!(ends, [(ResourceKind::ModelRequest, "failed"), (ResourceKind::Timer, "cancelled")]);
    assert_eq!((sink.usages.len(), sink.retries.len()), (0, 1));
}

/// Cancels when a call reaches `point` for the `nth` time, and says how often it was reached.
fn trap(point: Point, nth: usize) -> (Scope, Arc<AtomicUsize>) {
    let own: Arc<OnceLock<Scope>> = Arc::default();
    let reached = Arc::new(AtomicUsize::new(0));
    let (count, target) = (Arc::clone(&reached), Arc::clone(&own));
    let probe = Probe::new(move |at| {
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
    let script = vec![stream_head(), text("a"), Step::Gate];
    let fake = Fake::start(vec![plain("500 Internal Server Error", "", ""), script]).await;
    let mut bench = Bench::new(fake.base_url());
    let (scope, reached) = trap(point, nth);
    bench.scope = scope;
    assert_eq!(bench.call(&mut Recorder::default()).await, Err(ModelError::Cancelled));
    fake.open_gate();
    assert_eq!(reached.load(Ordering::SeqCst), nth, "no wait begins after the stop");
    assert_eq!(fake.requests().len(), requests);
    fake.left(requests).await;
    assert!(bench.is_idle());
    assert_eq!(bench.scope.ledger().open_count(), 0);
}

/// Cancels the scope when it is told something.
struct StopAt {
    scope: Scope,
    told: Vec<String>,
}

impl StopAt {
    fn note(&mut self, what: &str) {
        self.told.push(what.to_owned());
        self.scope.cancel();
    }
}

impl ModelSink for StopAt {
    fn text(&mut self, delta: &str) {
        self.note(delta);
    }
    fn thinking(&mut self, _delta: &str) {}
    fn retrying(&mut self, _attempt: u32, _delay: Duration, _why: &str) {
        self.note("retrying");
    }
    fn usage(&mut self, _usage: Usage) {
        self.note("usage");
    }
}

async fn call_into(bench: &Bench, sink: &mut dyn ModelSink) -> Result<ModelAnswer, ModelError> {
    let request = ModelRequest {
        run: &bench.run,
        agent: &bench.agent,
        conversation: &bench.conversation,
        tools: &[],
        temperature: None,
        max_tokens: None,
        thinking: None,
    };
    bench.models.resolve("p/m").unwrap().call(&request, &bench.scope, sink).await
}

#[tokio::test]
async fn nothing_is_told_after_the_stop_even_when_it_has_arrived() {
    let Step::Send(one) = text("one") else { panic!("an event is sent") };
    let Step::Send(head) = stream_head() else { panic!("a head is sent") };
    let fake = Fake::start(vec![vec![Step::Send([head, one.repeat(50)].concat())]]).await;
    let bench = Bench::new(fake.base_url());
    let mut sink = StopAt { scope: bench.scope.clone(), told: Vec::new() };
    assert_eq!(call_into(&bench, &mut sink).await, Err(ModelError::Cancelled));
    assert_eq!(sink.told, ["one", "usage"], "the usage is no delta: it is what the stopped call cost");
    fake.left(1).await;
}

#[tokio::test]
async fn an_error_that_surfaces_after_the_stop_is_part_of_the_stop() {
    let fake = Fake::start(vec![vec![stream_head(), Step::Close]]).await;
    let bench = Bench::new(fake.base_url());
    let mut sink = StopAt { scope: bench.scope.clone(), told: Vec::new() };
    assert_eq!(call_into(&bench, &mut sink).await, Err(ModelError::Cancelled));
    assert_eq!(sink.told, ["usage"]);
    assert_eq!(bench.ledger()[0].2, "failed", "the ledger keeps what became of the socket");
}

#[tokio::test]
async fn a_call_that_is_dropped_gives_everything_back() {
    let fake = Fake::start(vec![vec![stream_head()]]).await;
    let bench = Bench::new(fake.base_url());
    let mut sink = Recorder::default();
    tokio::select! {
        outcome = bench.call(&mut sink) => panic!("ended by itself: {outcome:?}"),
        () = fake.asked(1) => {}
    }
    fake.left(1).await;
    assert!(bench.is_idle());
    assert_eq!((bench.scope.ledger().open_count(), bench.ledger()[0].2), (0, "closed"));
}

#[tokio::test]
async fn a_scope_that_is_cancelled_already_sends_nothing() {
    let fake = Fake::start(vec![]).await;
    let bench = Bench::new(fake.base_url());
    bench.scope.cancel();
    let mut sink = Recorder::default();
    assert_eq!(bench.call(&mut sink).await, Err(ModelError::Cancelled));
    assert_eq!((sink.inputs.len(), sink.usages.len(), fake.requests().len()), (0, 0, 0));
}

#[tokio::test]
async fn a_stop_of_one_call_leaves_the_next_alone() {
    let fake = Fake::start(vec![vec![], word("next")]).await;
    let mut bench = Bench::new(fake.base_url());
    stopped(&fake, &bench, fake.asked(1), &mut Recorder::default()).await;
    bench.scope = Scope::new(Clock::start(), Probe::default());
    assert_eq!(bench.call(&mut Recorder::default()).await.unwrap().message.text(), "next");
}
