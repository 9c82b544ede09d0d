//! A target gets what it is to know, signed, until it has it, and nothing else waits for that.

use std::net::SocketAddr;
use std::sync::Mutex;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use quell_protocol::{AgentId, Principal, SessionKey, Usage};
use quell_store::memory::MemoryDatabase;
use quell_store::{PutPushTargetOutcome, RunRow, RunSpend, StoredRunState};
use ring::signature::{ED25519, UnparsedPublicKey};
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::shares::MAX_REQUESTS_OF_CLIENT;
use super::*;

const SECRET: &str = "a secret of at least thirty-two bytes";

/// Headers in lower case, and the body.
type ReceivedRequest = (Vec<(String, String)>, String);

/// Answers one connection each with these statuses, and then no more.
struct TestReceiver {
    address: SocketAddr,
    received: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl TestReceiver {
    async fn start(statuses: &[&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, received) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let (statuses, log) = (statuses.to_vec(), Arc::clone(&received));
        #[expect(clippy::disallowed_methods, reason = "the receiver is no part of what is tested")]
        tokio::spawn(async move {
            let mut statuses = statuses.into_iter();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut text = String::new();
                while !is_whole(&text) {
                    let mut bytes = [0; 4096];
                    let count = stream.read(&mut bytes).await.unwrap();
                    text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
                }
                log.lock().unwrap().push(parse_request(&text));
                // Without a status, the connection stays open and nothing is answered.
                let Some(status) = statuses.next() else { std::future::pending().await };
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        Self { address, received }
    }

    fn received(&self) -> Vec<ReceivedRequest> {
        self.received.lock().unwrap().clone()
    }

    fn url(&self, host: &str) -> String {
        format!("http://{host}:{}/x?y", self.address.port())
    }
}

fn is_whole(text: &str) -> bool {
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.is_some_and(|length| body.len() >= length.parse().unwrap())
}

fn parse_request(text: &str) -> ReceivedRequest {
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let headers = head.lines().skip(1).filter_map(|line| line.split_once(": "));
    (headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(), body.to_owned())
}

fn header<'a>(request: &'a ReceivedRequest, name: &str) -> &'a str {
    &request.0.iter().find(|(header, _)| header == name).unwrap_or_else(|| panic!("no {name}: {request:?}")).1
}

struct TestTranslator;

impl PushTranslator for TestTranslator {
    fn notification(&self, _: &RunView, _: &RunEvent, _: &[ApprovalRow]) -> Option<Value> {
        None
    }

    fn media_type(&self) -> &'static str {
        "application/test+json"
    }

    fn token_header(&self) -> &'static str {
        "x-test-token"
    }
}

fn target(url: String) -> PushTarget {
    let authentication = PushAuthentication { scheme: "Bearer".into(), credentials: Some("hush".into()) };
    PushTarget { id: "t".into(), url, token: Some("mark".into()), authentication: Some(authentication) }
}

fn registration(url: String) -> PushRegistration {
    PushRegistration { target: target(url), reads_all: false }
}

async fn store_with_run() -> Store {
    database_with_run().await.1
}

async fn database_with_run() -> (MemoryDatabase, Store) {
    let database = MemoryDatabase::default();
    let store = database.open();
    let row = RunRow {
        id: RunId::parse("r").unwrap(),
        session: SessionKey::parse("s").unwrap(),
        agent: AgentId::parse("main").unwrap(),
        principal: Principal::parse("ann").unwrap(),
        fingerprint: String::new(),
        state: StoredRunState::Accepted,
        accepted_at: "2026-11-20T10:00:00.000000Z".into(),
        view: String::new(),
    };
    store.runs().accept(row).await.unwrap();
    (database, store)
}

fn notifier(store: &Store, address_policy: AddressPolicy) -> PushNotifier {
    let (secret, clock) = (Some(SECRET.to_owned().into()), Clock::start());
    let notifier = PushNotifier::new(PushDeps { secret, address_policy, store: store.clone(), clock });
    assert!(notifier.set_translator(Arc::new(TestTranslator)));
    notifier
}

fn key() -> PushTargetKey {
    key_of("ann", "t")
}

fn key_of(owner: &str, id: &str) -> PushTargetKey {
    PushTargetKey { run: RunId::parse("r").unwrap(), owner: Principal::parse(owner).unwrap(), id: id.into() }
}

/// Stores a target, without the check that it would get as a new one.
async fn delivery(notifier: &PushNotifier, target: PushTarget) -> PushDelivery {
    delivery_of(notifier, key(), target).await
}

async fn delivery_of(notifier: &PushNotifier, key: PushTargetKey, target: PushTarget) -> PushDelivery {
    let sealed = seal_for(&sealed_owner(&key), &notifier.0.keys.as_ref().unwrap().storage, b"{}").unwrap();
    let outcome = notifier.0.store.push_targets().put(key.clone(), sealed, 1000).await.unwrap();
    let PutPushTargetOutcome::Stored(number) = outcome else { panic!("{outcome:?}") };
    PushDelivery::new(notifier.clone(), number, key.run, target, notifier.take_place(&key.owner).unwrap())
}

async fn send_end(delivery: PushDelivery) -> PushOutcome {
    let body = || Some(json!({"state": "ended"}));
    delivery.send_end(&PushNotice { seq: None, body: &body }, Clock::wall_seconds()).await
}

/// The targets that the next daemon sends to, when the run has ended.
async fn count_left(database: &MemoryDatabase) -> usize {
    let store = database.open();
    let (agent, usage) = (AgentId::parse("main").unwrap(), Usage::default());
    let (day, already_counted) = ("2026-01-01".to_owned(), usage);
    let spent = RunSpend { agent, day, usage, already_counted, key: None, cost: 0, cost_already_counted: 0 };
    store.runs().record_end(key().run, String::new(), spent).await.unwrap();
    store.push_targets().take_over_ended(10).await.unwrap().len()
}

#[tokio::test]
async fn a_notification_is_signed_and_carries_what_its_receiver_asked_for() {
    let (store, receiver) = (store_with_run().await, TestReceiver::start(&["200 OK", "202 Accepted"]).await);
    let notifier = notifier(&store, AddressPolicy::Any);
    let delivery = delivery(&notifier, target(receiver.url("127.0.0.1"))).await;
    let body = || Some(json!({"state": "working"}));
    let update = PushNotice { seq: Some(7), body: &body };
    assert_eq!(delivery.send_update(&update, std::future::pending()).await, PushOutcome::Delivered);
    assert_eq!(send_end(delivery).await, PushOutcome::Delivered);
    let received = receiver.received();
    let public_key = UnparsedPublicKey::new(&ED25519, notifier.public_key().unwrap());
    for (request, (state, last)) in received.iter().zip([("working", "7"), ("ended", "end")]) {
        assert_eq!(request.1, json!({"state": state}).to_string());
        let names = ["content-type", "x-test-token", "authorization"];
        assert_eq!(names.map(|name| header(request, name)), ["application/test+json", "mark", "Bearer hush"]);
        let id = header(request, "webhook-id");
        assert!(id.starts_with("r:") && id.ends_with(&format!(":{last}")), "{id}");
        let signature = header(request, "webhook-signature").strip_prefix("v1a,").unwrap();
        let signed = format!("{id}.{}.{}", header(request, "webhook-timestamp"), request.1);
        public_key.verify(signed.as_bytes(), &BASE64_STANDARD.decode(signature).unwrap()).unwrap();
    }
    assert_eq!((received.len(), *notifier.0.load.borrow()), (2, PushLoad::default()));
}

#[tokio::test]
async fn an_end_that_fails_is_sent_again_with_its_id() {
    let ((database, store), receiver) = (database_with_run().await, TestReceiver::start(&["500 No", "204 Yes"]).await);
    let notifier = notifier(&store, AddressPolicy::Any);
    let delivery = delivery(&notifier, target(receiver.url("127.0.0.1"))).await;
    assert_eq!(send_end(delivery).await, PushOutcome::Delivered);
    let received = receiver.received();
    assert_eq!(received.len(), 2);
    assert_eq!(header(&received[0], "webhook-id"), header(&received[1], "webhook-id"));
    assert_eq!(count_left(&database).await, 0);
}

#[tokio::test]
async fn a_receiver_that_is_gone_or_an_end_that_is_too_old_is_given_up() {
    let ((database, store), receiver) = (database_with_run().await, TestReceiver::start(&["410 Gone", "500 No"]).await);
    let notifier = notifier(&store, AddressPolicy::Any);
    let gone = delivery(&notifier, target(receiver.url("127.0.0.1"))).await;
    assert_eq!(send_end(gone).await, PushOutcome::GivenUp("its receiver is gone".to_owned()));
    let old = delivery(&notifier, target(receiver.url("127.0.0.1"))).await;
    let body = || Some(json!({}));
    let outcome = old.send_end(&PushNotice { seq: None, body: &body }, 0).await;
    assert!(matches!(&outcome, PushOutcome::GivenUp(why) if why.contains("500")), "{outcome:?}");
    assert_eq!((receiver.received().len(), count_left(&database).await), (2, 0));
}

#[tokio::test]
async fn an_update_is_not_tried_again_once_the_run_has_ended() {
    let (store, receiver) = (store_with_run().await, TestReceiver::start(&["500 No"]).await);
    let notifier = notifier(&store, AddressPolicy::Any);
    let delivery = delivery(&notifier, target(receiver.url("127.0.0.1"))).await;
    let body = || Some(json!({}));
    let outcome = delivery.send_update(&PushNotice { seq: Some(1), body: &body }, std::future::ready(())).await;
    assert_eq!((outcome, receiver.received().len()), (PushOutcome::Superseded, 1));
}

#[tokio::test]
async fn a_private_receiver_gets_nothing_whatever_its_name_says() {
    let (store, receiver) = (store_with_run().await, TestReceiver::start(&["200 OK"]).await);
    let notifier = notifier(&store, AddressPolicy::PublicOnly);
    for host in ["127.0.0.1", "localhost"] {
        let delivery = delivery(&notifier, target(receiver.url(host))).await;
        let outcome = send_end(delivery).await;
        let PushOutcome::GivenUp(why) = outcome else { panic!("{host}: {outcome:?}") };
        assert!(why.contains("may not be reached") && !why.contains("x?y"), "{host}: {why}");
        if host == "127.0.0.1" {
            let refused = notifier.check_target(&key().owner, &target(receiver.url(host)));
            assert!(matches!(refused, Err(PushError::InvalidTarget(_))), "{refused:?}");
        }
    }
    assert_eq!(receiver.received(), []);
}

#[tokio::test]
async fn a_deleted_or_replaced_target_gets_nothing() {
    let (store, receiver) = (store_with_run().await, TestReceiver::start(&["200 OK"]).await);
    let notifier = notifier(&store, AddressPolicy::Any);
    let replaced = delivery(&notifier, target(receiver.url("127.0.0.1"))).await;
    let deleted = delivery(&notifier, target(receiver.url("127.0.0.1"))).await;
    assert_eq!(send_end(replaced).await, PushOutcome::TargetGone);
    assert_eq!(store.push_targets().delete(key()).await, Ok(true));
    let update = PushNotice { seq: Some(1), body: &|| Some(json!({})) };
    assert_eq!(deleted.send_update(&update, std::future::pending()).await, PushOutcome::TargetGone);
    assert_eq!(send_end(deleted).await, PushOutcome::TargetGone);
    assert_eq!(receiver.received(), []);
}

#[tokio::test]
async fn the_end_of_the_daemon_waits_for_no_receiver_beyond_its_time() {
    let ((database, store), receiver) = (database_with_run().await, TestReceiver::start(&[]).await);
    let notifier = notifier(&store, AddressPolicy::Any);
    let delivery = delivery(&notifier, target(receiver.url("127.0.0.1"))).await;
    notifier.spawn(async move {
        send_end(delivery).await;
    });
    while receiver.received().is_empty() {
        tokio::task::yield_now().await;
    }
    let begun = Instant::now();
    notifier.wait_closed(begun + Duration::from_millis(100), begun + Duration::from_secs(60)).await;
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!((*notifier.0.load.borrow(), count_left(&database).await), (PushLoad::default(), 1));
}

#[tokio::test]
async fn a_stored_target_is_secret_and_belongs_to_its_owner() {
    let store = store_with_run().await;
    let one = notifier(&store, AddressPolicy::Any);
    let sealed = one.seal_target(&key(), &registration("https://example.org/".into())).unwrap();
    assert!(!sealed.windows(4).any(|part| part == b"hush"));
    let stored = StoredPushTarget { number: 1, key: key(), sealed };
    assert_eq!(one.open_target(&stored), Some(registration("https://example.org/".into())));
    let of_bob = PushTargetKey { owner: Principal::parse("bob").unwrap(), ..key() };
    assert_eq!(one.open_target(&StoredPushTarget { key: of_bob, ..stored.clone() }), None);
    let secret = Some("another secret of at least thirty-two bytes".to_owned().into());
    let other =
        PushNotifier::new(PushDeps { secret, address_policy: AddressPolicy::Any, store, clock: Clock::start() });
    assert_eq!(other.open_target(&stored), None);
}

#[tokio::test]
async fn without_a_long_secret_there_are_no_notifications() {
    let store = store_with_run().await;
    for secret in [None, Some("short".to_owned().into())] {
        let (address_policy, clock) = (AddressPolicy::Any, Clock::start());
        let notifier = PushNotifier::new(PushDeps { secret, address_policy, store: store.clone(), clock });
        assert!(!notifier.set_translator(Arc::new(TestTranslator)));
        assert!(notifier.translator().is_none() && notifier.public_key().is_none());
        let refused = notifier.seal_target(&key(), &registration("https://example.org/".into()));
        assert!(matches!(refused, Err(PushError::NotAvailable)), "{refused:?}");
    }
}

#[tokio::test]
async fn one_client_has_only_so_many_targets_at_work() {
    let notifier = notifier(&store_with_run().await, AddressPolicy::Any);
    let (ann, bob) = (key_of("ann", "t").owner, key_of("bob", "t").owner);
    let url = target("https://example.org/".into());
    let mut places: Vec<PushPlace> =
        (0..MAX_DELIVERIES_OF_CLIENT).map(|_| notifier.take_place(&ann).unwrap()).collect();
    assert!(matches!(notifier.take_place(&ann), Err(PushError::TooManyDeliveries)));
    assert!(matches!(notifier.check_target(&ann, &url), Err(PushError::TooManyDeliveries)));
    notifier.check_target(&bob, &url).unwrap();
    // What is stored already is sent in any case.
    let left = notifier.take_place_of_left(&ann);
    places.pop();
    assert!(notifier.take_place(&ann).is_err(), "the target of an earlier daemon counts");
    drop(left);
    drop(notifier.take_place(&ann).unwrap());
    notifier.check_target(&ann, &url).unwrap();
}

#[tokio::test]
async fn slow_receivers_of_one_client_delay_no_other() {
    let (store, slow) = (store_with_run().await, TestReceiver::start(&[]).await);
    let notifier = notifier(&store, AddressPolicy::Any);
    for number in 0..MAX_REQUESTS {
        let own = delivery_of(&notifier, key_of("ann", &number.to_string()), target(slow.url("127.0.0.1"))).await;
        notifier.spawn(async move {
            send_end(own).await;
        });
    }
    while slow.received().is_empty() || notifier.0.requests.available_permits() > MAX_REQUESTS - MAX_REQUESTS_OF_CLIENT
    {
        tokio::task::yield_now().await;
    }
    let receiver = TestReceiver::start(&["200 OK"]).await;
    let of_bob = delivery_of(&notifier, key_of("bob", "t"), target(receiver.url("127.0.0.1"))).await;
    assert_eq!(notifier.0.requests.available_permits(), MAX_REQUESTS - MAX_REQUESTS_OF_CLIENT);
    assert_eq!(send_end(of_bob).await, PushOutcome::Delivered);
    notifier.kill_all();
}
