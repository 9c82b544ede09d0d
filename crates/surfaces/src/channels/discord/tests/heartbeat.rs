//! Heartbeats, and what they and the cursor confirm.

use std::time::Instant;

use futures_util::future::BoxFuture;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::sync::watch;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::super::gateway::Connection;
use super::hearing::told;
use super::*;
use crate::channels::seam::{Heard, Own};
use crate::channels::wire::stream::Stream;

/// Short, so that a test sees several; the server bears twice as much.
const INTERVAL: Duration = Duration::from_secs(1);

/// An ear behind which the database takes its time.
struct SlowEar {
    ear: RecordingEar,
    open: watch::Sender<bool>,
}

impl SlowEar {
    fn new() -> Self {
        Self { ear: RecordingEar::new(), open: watch::Sender::new(true) }
    }
}

impl Ear for SlowEar {
    fn connected(&self, own: Own) {
        self.ear.connected(own);
    }

    fn hear(&self, heard: Heard) {
        self.ear.hear(heard);
    }

    fn settled(&self) -> BoxFuture<'_, ()> {
        let mut open = self.open.subscribe();
        async move {
            open.wait_for(|open| *open).await.unwrap();
            self.ear.settled().await;
        }
        .boxed()
    }

    fn cursor(&self) -> BoxFuture<'_, Option<String>> {
        self.ear.cursor()
    }

    fn keep_cursor(&self, cursor: String) -> BoxFuture<'_, ()> {
        self.ear.keep_cursor(cursor)
    }
}

/// An ear that counts, for floods.
struct CountingEar {
    heard: watch::Sender<usize>,
}

impl CountingEar {
    fn new() -> Self {
        Self { heard: watch::Sender::new(0) }
    }
}

impl Ear for CountingEar {
    fn connected(&self, _: Own) {}

    fn hear(&self, heard: Heard) {
        assert_eq!(heard.text, self.heard.borrow().to_string(), "each message once, in its order");
        self.heard.send_modify(|count| *count += 1);
    }

    fn settled(&self) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }

    fn cursor(&self) -> BoxFuture<'_, Option<String>> {
        async { None }.boxed()
    }

    fn keep_cursor(&self, _: String) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }
}

#[tokio::test]
async fn a_flood_of_messages_is_heard_once_and_in_order_and_loses_no_connection() {
    let stage = Stage::new().await;
    stage.server.heartbeat_every(INTERVAL);
    let (anna, channel, ear) = (stage.server.person("anna"), stage.server.channel(), CountingEar::new());
    let mut heard = ear.heard.subscribe();
    let flood = async {
        stage.server.wait_for("the session", |state| state.identified == 1).await;
        let mut said = 0;
        while stage.server.look(|state| state.heartbeats) < 3 {
            // A hundred and more are always under way.
            for number in said..said + 100 {
                stage.server.say(&channel, &anna, &number.to_string());
            }
            heard.wait_for(|heard| *heard + 100 >= said).await.unwrap();
            said += 100;
        }
        *heard.wait_for(|heard| *heard == said).await.unwrap()
    };
    let heard = play_with(&stage.discord, &ear, &stage.lost, flood).await;
    assert!(heard > 1000, "{heard} messages are no flood");
    assert_eq!(stage.server.look(|state| (state.identified, state.resumed, state.closed.clone())), (1, 0, Vec::new()));
    assert!(stage.lost().is_empty());
}

/// Everything lies there before the first byte is read, so that there is never a moment in which nothing has come; the answers
/// to the heartbeats would come behind it.
#[tokio::test]
async fn a_flood_of_messages_does_not_keep_a_heartbeat_waiting() {
    const MESSAGES: usize = 10_000;
    let (ours, theirs) = tokio::io::duplex(16 * 1024 * 1024);
    let mut server = WebSocketStream::from_raw_socket(theirs, Role::Server, None).await;
    let hello = json!({"op": 10, "d": {"heartbeat_interval": 100}});
    let user = json!({"id": "1", "username": "quell"});
    let ready = json!({"user": user, "session_id": "s", "resume_gateway_url": "ws://127.0.0.1:1"});
    server.feed(Message::text(hello.to_string())).await.unwrap();
    server.feed(Message::text(json!({"op": 0, "t": "READY", "s": 1, "d": ready}).to_string())).await.unwrap();
    for number in 0..MESSAGES {
        let event = told(|event| event["content"] = json!(number.to_string()));
        let event = json!({"op": 0, "t": "MESSAGE_CREATE", "s": number + 2, "d": event});
        server.feed(Message::text(event.to_string())).await.unwrap();
    }
    server.flush().await.unwrap();

    let discord = Discord::new("discord", &config("http://127.0.0.1:1")).unwrap();
    let (ear, begun) = (CountingEar::new(), Instant::now());
    let socket = WebSocketStream::from_raw_socket(Box::new(ours) as Stream, Role::Client, None).await;
    let connection = Connection::begin(&discord, &ear, socket, None).await.unwrap();
    let mut heard = ear.heard.subscribe();
    tokio::select! {
        biased;
        lost = connection.hear() => panic!("{}", lost.unwrap_err()),
        all = heard.wait_for(|heard| *heard == MESSAGES) => drop(all.unwrap()),
    }
    let due = begun.elapsed().as_millis() / 100;
    let mut heartbeats = 0;
    while let Some(Ok(Message::Text(payload))) = server.next().await {
        heartbeats += u128::from(serde_json::from_str::<Value>(&payload).unwrap()["op"] == 1);
    }
    assert!(due >= 2, "{MESSAGES} messages are no flood on this machine");
    // A machine that is busy with other tests puts each of them off a little.
    assert!(heartbeats * 4 >= due, "{heartbeats} heartbeats, {due} were due");
}

#[tokio::test]
async fn a_connection_that_answers_no_heartbeats_is_left_and_resumed() {
    let stage = Stage::new().await;
    stage.server.heartbeat_every(Duration::from_millis(100));
    let (anna, channel) = (stage.server.person("anna"), stage.server.channel());
    let plot = async {
        stage.connected(1).await;
        stage.server.acknowledge_nothing();
        stage.server.wait_for("the end of the zombie", |state| !state.left.is_empty()).await;
        stage.server.acknowledge();
        stage.server.say(&channel, &anna, "alive");
        assert_eq!(stage.heard(1).await, ["alive"]);
    };
    stage.play(plot).await;
    let lost = stage.lost();
    assert!(matches!(&lost[0], Lost::Connection(why) if why.contains("heartbeats")), "{lost:?}");
    let state = stage.server.state();
    assert_eq!((state.identified, state.closed.clone()), (1, Vec::new()));
    assert!(state.resumed >= 1 && state.left.iter().all(Option::is_none), "{state:?}");
}

#[tokio::test]
async fn a_heartbeat_that_is_wanted_comes_at_once() {
    let stage = Stage::new().await;
    // Without being asked, the first would come within an hour, and be bounded to five minutes.
    stage.server.heartbeat_every(Duration::from_secs(3600));
    let plot = async {
        stage.connected(1).await;
        stage.server.ask_for_heartbeat();
        stage.server.wait_for("the heartbeat", |state| state.heartbeats == 1).await;
    };
    stage.play(plot).await;
}

#[tokio::test]
async fn a_daemon_that_is_started_anew_resumes_the_session() {
    let stage = Stage::new().await;
    let (anna, channel) = (stage.server.person("anna"), stage.server.channel());
    stage
        .play(async {
            stage.connected(1).await;
            stage.ear.wait_for("the cursor", |ear| !ear.cursors.is_empty()).await;
            stage.server.say(&channel, &anna, "before");
            stage.heard(1).await;
        })
        .await;
    stage.server.say(&channel, &anna, "meanwhile");
    let again = Discord::new("discord", &config(&stage.server.base_url())).unwrap();
    play_with(&again, &stage.ear, &stage.lost, stage.connected(2)).await;
    // What was not yet known to be in the database is told again; the flow counts it once.
    assert_eq!(stage.ear.state().texts(), ["before", "before", "meanwhile"]);
    let heard = stage.ear.state().heard;
    assert_eq!(heard[0].id, heard[1].id);
    let state = stage.server.state();
    assert_eq!((state.identified, state.resumed), (1, 1));
}

#[tokio::test]
async fn what_is_not_in_the_database_is_neither_confirmed_nor_waited_for() {
    let server = FakeDiscord::start().await;
    server.heartbeat_every(Duration::from_millis(200));
    let discord = Discord::new("discord", &config(&server.base_url())).unwrap();
    let (anna, channel, ear, lost) = (server.person("anna"), server.channel(), SlowEar::new(), Mutex::default());
    let plot = async {
        ear.ear.wait_for("the cursor", |ear| !ear.cursors.is_empty()).await;
        ear.open.send_replace(false);
        server.say(&channel, &anna, "one");
        ear.ear.wait_for("the first message", |ear| ear.heard.len() == 1).await;
        let heartbeats = server.state().heartbeats;
        server.wait_for("heartbeats", |state| state.heartbeats >= heartbeats + 3).await;
        server.say(&channel, &anna, "two");
        ear.ear.wait_for("the second message", |ear| ear.heard.len() == 2).await;
    };
    play_with(&discord, &ear, &lost, plot).await;
    // The daemon dies before the database has anything, and is started anew: Discord still has both.
    ear.open.send_replace(true);
    let again = Discord::new("discord", &config(&server.base_url())).unwrap();
    let plot = async {
        let state = ear.ear.wait_for("both again", |ear| ear.heard.len() == 4).await;
        assert_eq!(state.texts(), ["one", "two", "one", "two"]);
        let state = ear.ear.wait_for("the cursor", |ear| ear.cursors.len() >= 2).await;
        let kept = session::Session::from_cursor(state.cursors.last().unwrap()).unwrap();
        assert_eq!(kept.kept, Some(4), "Ready, two messages, Resumed");
        let heartbeats = server.state().heartbeats;
        server.wait_for("heartbeats", |state| state.heartbeats >= heartbeats + 2).await;
    };
    play_with(&again, &ear, &lost, plot).await;
    // Now they are in the database and confirmed: who comes with an older number is not served.
    let state = server.state();
    assert_eq!((state.identified, state.resumed, state.not_resumed), (1, 1, 0));
}

#[tokio::test]
async fn a_stop_of_the_daemon_in_the_middle_of_connecting_leaves_nothing_behind() {
    let stage = Stage::new().await;
    for _ in 0..20 {
        let listening = stage.discord.listen(&stage.ear);
        let connecting = stage.server.wait_for("a connection", |state| state.connections > 0);
        // Dropped as soon as there is a connection, wherever it is by then.
        tokio::select! {
            lost = listening => panic!("{lost}"),
            _ = connecting => {}
        }
        stage.server.wait_for("its end", |state| state.connections == 0).await;
    }
}
