//! The transport against a real server.

use std::future::Future;
use std::time::{Duration, Instant};

use quell_protocol::NodeName;
use quell_testkit::WAIT_TIMEOUT;
use quell_testkit::nats::TestNats;
use secrecy::SecretString;
use tokio::time::timeout;

use super::*;
use crate::{ClusterSecret, LetterOpener, LetterSealer, LetterTransport, OpenError};

const PREFIX: &str = "quell.test";

fn address(name: &str) -> NodeAddress {
    NodeAddress { node: NodeName::parse(name).unwrap(), epoch: 7 }
}

fn secret() -> ClusterSecret {
    ClusterSecret::parse("the secret of the tests, 32 or more characters").unwrap()
}

fn password(password: &str) -> NatsCredentials {
    NatsCredentials::Password { user: TestNats::USER.into(), password: SecretString::from(password) }
}

fn settings(url: String, credentials: NatsCredentials) -> NatsSettings {
    NatsSettings { urls: vec![url], credentials, tls_ca_file: None, prefix: PREFIX.into() }
}

fn settings_of(server: &TestNats) -> NatsSettings {
    settings(server.url(), password(TestNats::PASSWORD))
}

/// The two ends of a node.
struct NatsTestNode {
    address: NodeAddress,
    transport: NatsTransport,
    events: mpsc::Receiver<NatsEvent>,
    sealer: LetterSealer,
    opener: LetterOpener,
}

impl NatsTestNode {
    async fn start(server: &TestNats, name: &str) -> (Self, NatsDriver) {
        let own = address(name);
        let connection = NatsTransport::connect(settings_of(server), own.clone()).await.unwrap();
        let NatsConnection { transport, events, driver } = connection;
        let sealer = LetterSealer::new(&secret(), LetterTransport::Nats, own.clone());
        let opener = LetterOpener::new(&secret(), LetterTransport::Nats, own.clone());
        (Self { address: own, transport, events, sealer, opener }, driver)
    }

    async fn wait_for_connection(&self, expected: bool) {
        let mut connected = self.transport.connected();
        within(connected.wait_for(|connected| *connected == expected)).await.unwrap();
    }

    async fn send(&mut self, to: &NodeAddress, payload: &[u8]) {
        self.transport.wait_for_room().await;
        let letter = self.sealer.seal(to, payload).unwrap();
        self.transport.send(to, letter).unwrap();
    }

    async fn next_event(&mut self) -> NatsEvent {
        within(self.events.recv()).await.unwrap()
    }

    async fn next_letter(&mut self) -> Vec<u8> {
        match self.next_event().await {
            NatsEvent::Letter(letter) => self.opener.open(&letter).unwrap().payload,
            other => panic!("{other:?}"),
        }
    }
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    timeout(WAIT_TIMEOUT, work).await.expect("in time")
}

/// Runs two nodes with their drivers. `None`: the test is skipped.
async fn with_two_nodes<T>(test: impl AsyncFnOnce(&mut TestNats, NatsTestNode, NatsTestNode) -> T) -> Option<T> {
    let mut server = TestNats::start()?;
    let ((a, a_driver), (b, b_driver)) =
        (NatsTestNode::start(&server, "a").await, NatsTestNode::start(&server, "b").await);
    let work = async {
        a.wait_for_connection(true).await;
        b.wait_for_connection(true).await;
        test(&mut server, a, b).await
    };
    let drivers = async {
        tokio::join!(a_driver, b_driver);
        // They may end when the test drops the nodes.
        std::future::pending().await
    };
    Some(tokio::select! {
        done = work => done,
        () = drivers => unreachable!("the drivers end with the nodes"),
    })
}

/// The error of a connection that must not be made.
async fn connect_error(settings: NatsSettings) -> NatsConnectError {
    match NatsTransport::connect(settings, address("a")).await {
        Ok(_) => panic!("connected"),
        Err(error) => error,
    }
}

/// A client besides Quell with the same user.
async fn foreign_client(server: &TestNats) -> async_nats::Client {
    let options = async_nats::ConnectOptions::new();
    let options = options.user_and_password(TestNats::USER.into(), TestNats::PASSWORD.into());
    options.connect(server.url()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: NATS"]
async fn letters_go_there_and_back() {
    let rounds = 500;
    with_two_nodes(async |_, mut a, mut b| {
        let mut times = Vec::new();
        for round in 0..rounds {
            let begin = Instant::now();
            let payload = format!("question {round}").into_bytes();
            a.send(&b.address, &payload).await;
            assert_eq!(b.next_letter().await, payload);
            b.send(&a.address, b"answer").await;
            assert_eq!(a.next_letter().await, b"answer");
            times.push(begin.elapsed());
        }
        times.sort();
        let (median, late) = (times[rounds / 2], times[rounds * 99 / 100]);
        println!("a letter and its answer: p50 {median:?}, p99 {late:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: NATS"]
async fn ten_thousand_letters_arrive_in_order() {
    // More than these would be dropped if the receiver was not scheduled for a while.
    let (total, max_on_the_way) = (10_000_u32, 500);
    with_two_nodes(async |_, mut a, mut b| {
        let (mut sent, mut received) = (0, 0);
        while received < total {
            while sent < total && sent - received < max_on_the_way {
                a.send(&b.address, &sent.to_be_bytes()).await;
                sent += 1;
            }
            assert_eq!(b.next_letter().await, received.to_be_bytes());
            received += 1;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: NATS"]
async fn a_letter_to_an_unknown_node_is_reported() {
    with_two_nodes(async |_, mut a, mut b| {
        let unknown = address("unknown");
        a.send(&unknown, b"x").await;
        assert_eq!(a.next_event().await, NatsEvent::NoResponders(unknown));
        let ended = NodeAddress { epoch: 6, ..b.address.clone() };
        a.send(&ended, b"x").await;
        assert_eq!(a.next_event().await, NatsEvent::NoResponders(ended));
        a.send(&b.address, b"x").await;
        assert_eq!(b.next_letter().await, b"x");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: NATS"]
async fn letters_flow_again_after_the_server_was_killed() {
    with_two_nodes(async |server, mut a, mut b| {
        server.kill();
        for node in [&mut a, &mut b] {
            node.wait_for_connection(false).await;
            assert_eq!(node.next_event().await, NatsEvent::ConnectionLost);
        }
        assert_eq!(a.transport.send(&b.address, b"kept nowhere".into()), Err(NatsSendError::NotConnected));
        assert_eq!(a.transport.max_letter_bytes(), None);
        server.start_again();
        a.wait_for_connection(true).await;
        b.wait_for_connection(true).await;
        a.send(&b.address, b"x").await;
        assert_eq!(b.next_letter().await, b"x");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: NATS"]
async fn a_paused_server_counts_as_lost() {
    with_two_nodes(async |server, mut a, mut b| {
        server.pause();
        for node in [&mut a, &mut b] {
            node.wait_for_connection(false).await;
            assert_eq!(node.next_event().await, NatsEvent::ConnectionLost);
        }
        server.resume();
        a.wait_for_connection(true).await;
        b.wait_for_connection(true).await;
        a.send(&b.address, b"x").await;
        assert_eq!(b.next_letter().await, b"x");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: NATS"]
async fn a_server_that_starts_later_is_found() {
    let Some(mut server) = TestNats::start() else { return };
    server.kill();
    let (node, driver) = NatsTestNode::start(&server, "a").await;
    assert!(!*node.transport.connected().borrow());
    let work = async {
        server.start_again();
        node.wait_for_connection(true).await;
    };
    tokio::select! {
        () = work => {}
        () = driver => panic!("the driver has ended"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: NATS"]
async fn unsigned_messages_of_others_are_no_letters() {
    with_two_nodes(async |server, mut a, mut b| {
        let foreign = foreign_client(server).await;
        let subject = subjects::letter_subject(PREFIX, &b.address);
        foreign.publish(subject, "stop everything".into()).await.unwrap();
        let NatsEvent::Letter(forged) = b.next_event().await else { panic!("no letter") };
        assert_eq!(b.opener.open(&forged), Err(OpenError::UnknownVersion(b's')));
        a.send(&b.address, b"x").await;
        assert_eq!(b.next_letter().await, b"x");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: NATS"]
async fn a_message_that_the_server_would_refuse_is_not_sent() {
    with_two_nodes(async |_, a, mut b| {
        let max = a.transport.max_letter_bytes().unwrap();
        assert_eq!(max, 1 << 20, "the default of the server");
        let refused = NatsSendError::TooLarge { size: max + 1, max };
        assert_eq!(a.transport.send(&b.address, vec![1; max + 1]), Err(refused));
        a.transport.send(&b.address, vec![1; max]).unwrap();
        assert_eq!(b.next_event().await, NatsEvent::Letter(vec![1; max]));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: NATS"]
async fn a_slow_reader_learns_that_letters_are_lost() {
    with_two_nodes(async |_, mut a, mut b| {
        let (mut dropped, mut missed) = (false, 0);
        // All that waits in `b`, and in the server and sockets, is a multiple of what its two queues hold.
        for _ in 0..10 * INCOMING_EVENTS {
            a.send(&b.address, &[0; 100]).await;
        }
        while !(dropped && missed > 0) {
            let event = match timeout(Duration::from_millis(20), b.events.recv()).await {
                Ok(event) => event.unwrap(),
                // A gap is seen with the next letter only.
                Err(_) => {
                    a.send(&b.address, b"next").await;
                    continue;
                }
            };
            match event {
                NatsEvent::Letter(letter) => missed += b.opener.open(&letter).unwrap().missed,
                NatsEvent::LettersDropped => dropped = true,
                other => panic!("{other:?}"),
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: NATS"]
async fn the_last_letters_are_sent_before_the_driver_ends() {
    let Some(server) = TestNats::start() else { return };
    let ((mut a, a_driver), (mut b, b_driver)) =
        (NatsTestNode::start(&server, "a").await, NatsTestNode::start(&server, "b").await);
    let to = b.address.clone();
    let sending = async {
        a.wait_for_connection(true).await;
        for _ in 0..100 {
            a.send(&to, b"goodbye").await;
        }
        let NatsTestNode { transport, events, .. } = a;
        drop(transport);
        // Without a receiver of its events the driver would end at once.
        events
    };
    let receiving = async {
        for _ in 0..100 {
            assert_eq!(b.next_letter().await, b"goodbye");
        }
        drop(b.events);
    };
    within(async { tokio::join!(sending, a_driver, receiving, b_driver) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: NATS"]
async fn a_dropped_driver_leaves_no_connection() {
    let Some(server) = TestNats::start() else { return };
    let (node, driver) = NatsTestNode::start(&server, "a").await;
    tokio::select! {
        () = driver => panic!("the driver has ended"),
        () = node.wait_for_connection(true) => {}
    }
    assert!(!*node.transport.connected().borrow());
    assert_eq!(node.transport.send(&node.address, b"x".into()), Err(NatsSendError::NotConnected));
    let client = foreign_client(&server).await;
    let subject = subjects::letter_subject(PREFIX, &node.address);
    within(async {
        // The connection is closed by a task of async-nats.
        while client.request(subject.clone(), "".into()).await.is_ok_and(|answer| answer.status.is_none()) {}
    })
    .await;
}

#[tokio::test]
#[ignore = "full: NATS"]
async fn a_wrong_password_is_refused() {
    let Some(server) = TestNats::start() else { return };
    let error = connect_error(settings(server.url(), password("wrong"))).await;
    let text = error.to_string();
    assert!(matches!(error, NatsConnectError::Refused { .. }), "{text}");
    // What stands in between is the client library's own text.
    assert!(text.starts_with(&format!("NATS server {} refuses this node: ", server.url())), "{text}");
    assert!(text.ends_with("; check its user and password, token, nkey or credentials file"), "{text}");
}

#[tokio::test]
async fn anonymous_connections_are_not_made() {
    let anonymous = settings("nats://127.0.0.1:1".into(), NatsCredentials::None);
    let text = connect_error(anonymous).await.to_string();
    assert!(text.starts_with("NATS is used only with credentials: set a user"), "{text}");
}

#[tokio::test]
async fn unusable_settings_are_refused_without_a_connection() {
    let good = || settings("nats://127.0.0.1:1".into(), password("x"));
    let refused = [
        (NatsSettings { urls: vec![], ..good() }, "there is no address"),
        (
            NatsSettings { urls: vec!["nats://u:secret@h".into()], ..good() },
            "address 1 of the NATS servers is invalid: it contains",
        ),
        (NatsSettings { urls: vec!["http://h".into()], ..good() }, "address 1 of the NATS servers is invalid"),
        (NatsSettings { prefix: "quell.>".into(), ..good() }, "the prefix \"quell.>\""),
        (
            NatsSettings { tls_ca_file: Some("/nowhere".into()), ..good() },
            "the CA file /nowhere of NATS cannot be used",
        ),
        (
            NatsSettings { credentials: NatsCredentials::CredsFile(SecretString::from("x")), ..good() },
            "the NATS credentials file is invalid: cannot parse user JWT",
        ),
    ];
    for (settings, expected) in refused {
        let text = connect_error(settings).await.to_string();
        assert!(text.starts_with(expected) && !text.contains("secret"), "{text}");
    }
}
