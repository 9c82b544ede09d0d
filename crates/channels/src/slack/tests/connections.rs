//! Reconnects and late acknowledgements.

use std::time::Duration;

use rstest::rstest;
use tokio::time::Instant;

use super::*;

#[tokio::test]
async fn a_change_of_connection_misses_nothing_and_loses_nothing() {
    let fixture = SlackFixture::listening().await;
    for round in 0..5 {
        fixture.server.request_reconnect();
        for number in 0..3 {
            fixture.post(&format!("{round}.{number}"));
        }
        fixture.wait_for_connections(round + 2).await;
        fixture.wait_for_texts(3 * (round + 1)).await;
        fixture.server.wait_for("the end of the old one", |state| state.connections == 1).await;
    }
    let mut texts = fixture.wait_for_texts(15).await;
    texts.sort();
    let all: Vec<String> = (0..15).map(|n| format!("{}.{}", n / 3, n % 3)).collect();
    assert_eq!(texts, all);
    fixture.wait_for_acks(15).await;
    assert_eq!((fixture.server.state().resent, fixture.listen_errors()), (0, vec![]));
}

#[rstest]
#[case::the_line_drops(FakeSlack::drop_connections)]
#[case::slack_closes(FakeSlack::close_connections)]
#[tokio::test]
async fn unacknowledged_messages_are_received_after_a_break(#[case] break_connections: fn(&FakeSlack)) {
    let fixture = SlackFixture::listening().await;
    break_connections(&fixture.server);
    fixture.post("into the gap");
    assert_eq!(fixture.wait_for_texts(1).await[0], "into the gap");
    fixture.wait_for_acks(1).await;
    let lost = fixture.listen_errors();
    assert!(matches!(lost.as_slice(), [ListenError::Connection(_)]), "{lost:?}");
}

#[tokio::test]
async fn socket_mode_that_is_switched_off_is_a_refusal() {
    let fixture = SlackFixture::new().await;
    let listening = fixture.network.listen(&*fixture.sink);
    let scenario = async {
        fixture.wait_for_connections(1).await;
        fixture.server.disable_socket_mode();
    };
    let (lost, ()) = tokio::join!(listening, scenario);
    assert!(matches!(&lost, ListenError::Refused(why) if why.contains("switch it on")), "{lost:?}");
    let again = fixture.network.listen(&*fixture.sink).await;
    assert!(matches!(&again, ListenError::Refused(why) if why.contains("switch on Socket Mode")), "{again:?}");
}

#[tokio::test]
async fn the_answer_to_a_connection_attempt_decides_the_retry() {
    let fixture = SlackFixture::new().await;
    fixture.server.inject_fault("auth.test", FakeSlackFault::Error("token_revoked"));
    let lost = fixture.network.listen(&*fixture.sink).await;
    assert!(matches!(&lost, ListenError::Refused(why) if why.contains("install the app again")), "{lost:?}");
    fixture.server.inject_fault("apps.connections.open", FakeSlackFault::RateLimited(7));
    let lost = fixture.network.listen(&*fixture.sink).await;
    assert!(matches!(&lost, ListenError::Busy { after, .. } if *after == Duration::from_secs(7)), "{lost:?}");
    fixture.server.inject_fault("apps.connections.open", FakeSlackFault::HtmlPage(503));
    assert!(matches!(fixture.network.listen(&*fixture.sink).await, ListenError::Connection(_)));
    fixture.server.inject_fault("apps.connections.open", FakeSlackFault::Error("internal_error"));
    assert!(matches!(fixture.network.listen(&*fixture.sink).await, ListenError::Connection(_)));
    fixture.server.stop_listening().await;
    assert!(matches!(fixture.network.listen(&*fixture.sink).await, ListenError::Connection(_)));
    assert_eq!(fixture.sink.state().accounts.len(), 0);
}

#[tokio::test]
async fn frames_that_say_nothing_known_are_left_alone() {
    let fixture = SlackFixture::listening().await;
    for frame in
        ["", "{", "[]", "null", "{\"type\":1}", "{\"type\":\"disconnect\",\"envelope_id\":1}", "{\"a\":\"\\u0000\"}"]
    {
        fixture.server.send_raw_frame(frame);
    }
    fixture
        .server
        .send_event(json!({"type": "message", "channel": [], "user": 7, "text": {}, "ts": null, "files": "x"}));
    fixture.server.send_event(json!(null));
    fixture.post("still here");
    assert_eq!(fixture.wait_for_texts(1).await, ["still here"]);
    fixture.wait_for_acks(3).await;
    assert!(fixture.listen_errors().is_empty());
}

#[tokio::test]
async fn a_connection_that_has_fallen_silent_is_given_up() {
    let fixture = SlackFixture::new().await;
    let freezing = async {
        fixture.wait_for_connections(1).await;
        fixture.server.freeze_connections();
        fixture.server.wait_for("the silence", |state| state.frozen == 1).await;
        // Nothing comes any more, so the clock may advance to the time limit.
        tokio::time::pause();
    };
    let (lost, ()) = tokio::join!(fixture.network.listen(&*fixture.sink), freezing);
    assert_eq!(lost, ListenError::Connection("Slack's socket has fallen silent".to_owned()));
}

#[tokio::test]
async fn a_slow_database_holds_up_neither_hearing_nor_acknowledging_for_ever() {
    let fixture = SlackFixture::new().await;
    let sink = RecordingInboundSink::with_stuck_database();
    run_while_listening_with(&*fixture.network, &sink, &fixture.lost, async {
        sink.wait_for("the connection", |state| !state.accounts.is_empty()).await;
        let begun = Instant::now();
        for text in ["one", "two", "stop"] {
            fixture.post(text);
        }
        sink.wait_for("all of them", |state| state.messages.len() == 3).await;
        fixture.wait_for_acks(3).await;
        assert!(begun.elapsed() >= Duration::from_millis(2400), "what was not kept was acknowledged at once");
    })
    .await;
}
