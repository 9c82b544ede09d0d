//! Heartbeats and cursors: when they are sent, and which events they confirm.

use futures_util::{SinkExt as _, StreamExt as _};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::super::gateway::GatewayConnection;
use super::receiving::message_create_event;
use super::*;
use crate::wire::byte_stream::ByteStream;

/// Short, so that a test sees several heartbeats. The server tolerates twice as much.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_flood_of_messages_is_heard_once_and_in_order_and_loses_no_connection() {
    let fixture = DiscordFixture::new().await;
    fixture.server.update(|state| state.heartbeat = HEARTBEAT_INTERVAL);
    let flood = async {
        fixture.server.wait_for("the session", |state| state.identified == 1).await;
        let mut said = 0;
        while fixture.server.with_state(|state| state.heartbeats) < 3 {
            // At least a hundred messages are always on the way.
            for number in said..said + 100 {
                fixture.post(&number.to_string());
            }
            fixture.sink.wait_until("the messages", |state| state.messages.len() + 100 >= said).await;
            said += 100;
        }
        fixture.sink.wait_until("the last message", |state| state.messages.len() >= said).await;
        said
    };
    let said = run_while_listening_with(&*fixture.network, &*fixture.sink, &fixture.lost, flood).await;
    assert!(said > 1000, "{said} messages are no flood");
    assert_each_once_in_order(&fixture.sink, said);
    assert_eq!(
        fixture.server.with_state(|state| (state.identified, state.resumed, state.close_codes_sent.clone())),
        (1, 0, Vec::new())
    );
    assert!(fixture.listen_errors().is_empty());
}

/// The texts are the numbers of the messages.
fn assert_each_once_in_order(sink: &RecordingInboundSink, count: usize) {
    let state = sink.state();
    assert!(state.texts().into_iter().eq((0..count).map(|number| number.to_string())), "{:?}", state.texts());
}

/// All frames are sent before the first byte is read, so that the reader never waits. The acknowledgements of the
/// heartbeats would come behind them.
#[tokio::test]
async fn a_flood_of_messages_does_not_keep_a_heartbeat_waiting() {
    const MESSAGES: usize = 20_000;
    const INTERVAL: Duration = Duration::from_millis(100);
    let (ours, theirs) = tokio::io::duplex(32 * 1024 * 1024);
    let mut server = WebSocketStream::from_raw_socket(theirs, Role::Server, None).await;
    let hello = json!({"op": 10, "d": {"heartbeat_interval": INTERVAL.as_millis()}});
    let user = json!({"id": "1", "username": "quell"});
    let ready = json!({"user": user, "session_id": "s", "resume_gateway_url": "ws://127.0.0.1:1"});
    server.feed(Message::text(hello.to_string())).await.unwrap();
    server.feed(Message::text(json!({"op": 0, "t": "READY", "s": 1, "d": ready}).to_string())).await.unwrap();
    for number in 0..MESSAGES {
        let event = message_create_event(|event| event["content"] = json!(number.to_string()));
        let event = json!({"op": 0, "t": "MESSAGE_CREATE", "s": number + 2, "d": event});
        server.feed(Message::text(event.to_string())).await.unwrap();
    }
    server.flush().await.unwrap();

    let discord = DiscordNetwork::new("discord", &discord_config("http://127.0.0.1:1")).unwrap();
    let sink = RecordingInboundSink::new();
    let socket = WebSocketStream::from_raw_socket(Box::new(ours) as ByteStream, Role::Client, None).await;
    let connection = GatewayConnection::connect(&discord, &sink, socket, None).await.unwrap();
    let begun = tokio::time::Instant::now();
    tokio::select! {
        biased;
        lost = connection.read_until_lost() => panic!("{}", lost.unwrap_err()),
        () = sink.wait_until("all messages", |state| state.messages.len() == MESSAGES) => {}
    }
    let intervals = begun.elapsed().as_millis() / INTERVAL.as_millis();
    assert_each_once_in_order(&sink, MESSAGES);
    let mut heartbeats = 0;
    while let Some(Ok(Message::Text(payload))) = server.next().await {
        heartbeats += u128::from(serde_json::from_str::<Value>(&payload).unwrap()["op"] == 1);
    }
    // Each is late by the time of one message, and a busy machine may halt this thread for a while.
    assert!(heartbeats >= intervals.div_ceil(2), "{heartbeats} heartbeats in {intervals} intervals");
}

#[tokio::test]
async fn a_connection_that_answers_no_heartbeats_is_left_and_resumed() {
    let fixture = DiscordFixture::new().await;
    fixture.server.update(|state| state.heartbeat = Duration::from_millis(100));
    fixture.listen().await;
    fixture.server.update(|state| state.acknowledges = false);
    fixture.server.wait_for("the end of the zombie", |state| !state.close_codes_received.is_empty()).await;
    fixture.server.update(|state| state.acknowledges = true);
    fixture.post("alive");
    assert_eq!(fixture.wait_for_texts(1).await, ["alive"]);
    let lost = fixture.listen_errors();
    assert!(matches!(&lost[0], ListenError::Connection(why) if why.contains("heartbeats")), "{lost:?}");
    let state = fixture.server.state();
    assert_eq!((state.identified, state.close_codes_sent.clone()), (1, Vec::new()));
    assert!(state.resumed >= 1 && state.close_codes_received.iter().all(Option::is_none), "{state:?}");
}

#[tokio::test]
async fn a_heartbeat_that_is_wanted_comes_at_once() {
    let fixture = DiscordFixture::new().await;
    // Without the request the first heartbeat would come after five minutes, the upper bound of the interval.
    fixture.server.update(|state| state.heartbeat = Duration::from_secs(3600));
    fixture.listen().await;
    fixture.server.request_heartbeat();
    fixture.server.wait_for("the heartbeat", |state| state.heartbeats == 1).await;
}

#[tokio::test]
async fn a_daemon_that_is_started_anew_resumes_the_session() {
    let fixture = DiscordFixture::listening().await;
    fixture.sink.wait_for("the cursor", |state| !state.cursors.is_empty()).await;
    fixture.post("before");
    fixture.wait_for_texts(1).await;
    fixture.end_listening().await;
    fixture.post("meanwhile");
    let again = DiscordNetwork::new("discord", &discord_config(&fixture.server.base_url())).unwrap();
    run_while_listening_with(&again, &*fixture.sink, &fixture.lost, fixture.wait_for_connections(2)).await;
    // Messages that were not yet saved come again; the flow drops the duplicate.
    assert_eq!(fixture.sink.state().texts(), ["before", "before", "meanwhile"]);
    let received = fixture.sink.state().messages;
    assert_eq!(received[0].id, received[1].id);
    let state = fixture.server.state();
    assert_eq!((state.identified, state.resumed), (1, 1));
}

#[tokio::test]
async fn unstored_messages_are_not_confirmed_and_block_nothing() {
    let fixture = DiscordFixture::new().await;
    let DiscordFixture { server, sink, lost, .. } = &fixture;
    server.update(|state| state.heartbeat = Duration::from_millis(200));
    let scenario = async {
        sink.wait_for("the cursor", |state| !state.cursors.is_empty()).await;
        sink.set_storing(false);
        fixture.post("one");
        sink.wait_for("the first message", |state| state.messages.len() == 1).await;
        let heartbeats = server.state().heartbeats;
        server.wait_for("heartbeats", |state| state.heartbeats >= heartbeats + 3).await;
        fixture.post("two");
        sink.wait_for("the second message", |state| state.messages.len() == 2).await;
    };
    run_while_listening_with(&*fixture.network, &**sink, lost, scenario).await;
    // The daemon dies before anything is saved, and restarts: Discord still has both messages.
    sink.set_storing(true);
    let again = DiscordNetwork::new("discord", &discord_config(&server.base_url())).unwrap();
    let scenario = async {
        let state = sink.wait_for("both again", |state| state.messages.len() == 4).await;
        assert_eq!(state.texts(), ["one", "two", "one", "two"]);
        let state = sink.wait_for("the cursor", |state| state.cursors.len() >= 2).await;
        let saved = gateway_session::GatewaySession::from_cursor(state.cursors.last().unwrap()).unwrap();
        assert_eq!(saved.saved_seq, Some(4), "Ready, two messages, Resumed");
        let heartbeats = server.state().heartbeats;
        server.wait_for("heartbeats", |state| state.heartbeats >= heartbeats + 2).await;
    };
    run_while_listening_with(&again, &**sink, lost, scenario).await;
    // Now they are saved and confirmed: the server would not resume from an older number.
    let state = server.state();
    assert_eq!((state.identified, state.resumed, state.not_resumed), (1, 1, 0));
}

#[tokio::test]
async fn a_stop_of_the_daemon_in_the_middle_of_connecting_leaves_nothing_behind() {
    let fixture = DiscordFixture::new().await;
    for _ in 0..20 {
        let listening = fixture.network.listen(&*fixture.sink);
        let connecting = fixture.server.wait_for("a connection", |state| state.connections > 0);
        // Dropped as soon as there is a connection, wherever the listener is by then.
        tokio::select! {
            lost = listening => panic!("{lost}"),
            _ = connecting => {}
        }
        fixture.server.wait_for("its end", |state| state.connections == 0).await;
    }
}
