//! Connections: broken, closed, changed, refused; and acknowledgements that are late.

use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::*;
use crate::channels::seam::Heard;

#[tokio::test]
async fn a_change_of_connection_misses_nothing_and_loses_nothing() {
    let stage = Stage::new().await;
    let (channel, ann) = (stage.server.channel(), stage.server.person("ann"));
    stage
        .play(async {
            stage.connected(1).await;
            for round in 0..5 {
                stage.server.ask_to_leave();
                for number in 0..3 {
                    stage.server.say(&channel, &ann, &format!("{round}.{number}"));
                }
                stage.connected(round + 2).await;
                stage.heard(3 * (round + 1)).await;
                stage.server.wait_for("the end of the old one", |state| state.connections == 1).await;
            }
            let mut texts = stage.heard(15).await;
            texts.sort();
            let all: Vec<String> = (0..15).map(|n| format!("{}.{}", n / 3, n % 3)).collect();
            assert_eq!(texts, all);
            stage.acknowledged(15).await;
            assert_eq!((stage.server.state().retold, stage.lost()), (0, vec![]));
        })
        .await;
}

#[tokio::test]
async fn what_was_not_acknowledged_is_heard_after_a_break() {
    let stage = Stage::new().await;
    let (channel, ann) = (stage.server.channel(), stage.server.person("ann"));
    stage
        .play(async {
            stage.connected(1).await;
            stage.server.drop_connections();
            stage.server.say(&channel, &ann, "into the gap");
            assert_eq!(stage.heard(1).await[0], "into the gap");
            stage.acknowledged(1).await;
            assert!(matches!(stage.lost().as_slice(), [Lost::Connection(_)]), "{:?}", stage.lost());
        })
        .await;
}

#[tokio::test]
async fn it_comes_back_when_the_server_does() {
    let stage = Stage::new().await;
    let (channel, ann) = (stage.server.channel(), stage.server.person("ann"));
    stage
        .play(async {
            stage.connected(1).await;
            stage.server.restart().await;
            stage.connected(2).await;
            stage.server.say(&channel, &ann, "back");
            assert_eq!(stage.heard(1).await, ["back"]);
            stage.server.close_connections();
            stage.connected(3).await;
        })
        .await;
}

#[tokio::test]
async fn socket_mode_that_is_switched_off_is_a_refusal() {
    let stage = Stage::new().await;
    let listening = stage.slack.listen(&stage.ear);
    let playing = async {
        stage.connected(1).await;
        stage.server.switch_off();
    };
    let (lost, ()) = tokio::join!(listening, playing);
    assert!(matches!(&lost, Lost::Refused(why) if why.contains("switch it on")), "{lost:?}");
    let again = stage.slack.listen(&stage.ear).await;
    assert!(matches!(&again, Lost::Refused(why) if why.contains("switch on Socket Mode")), "{again:?}");
}

#[tokio::test]
async fn what_slack_says_before_a_connection_decides_how_it_is_tried_again() {
    let stage = Stage::new().await;
    stage.server.fault("auth.test", Fault::Error("token_revoked"));
    let lost = stage.slack.listen(&stage.ear).await;
    assert!(matches!(&lost, Lost::Refused(why) if why.contains("install the app again")), "{lost:?}");
    stage.server.fault("apps.connections.open", Fault::TooMany(7));
    let lost = stage.slack.listen(&stage.ear).await;
    assert!(matches!(&lost, Lost::Busy { after, .. } if *after == Duration::from_secs(7)), "{lost:?}");
    stage.server.fault("apps.connections.open", Fault::Page(503));
    assert!(matches!(stage.slack.listen(&stage.ear).await, Lost::Connection(_)));
    stage.server.fault("apps.connections.open", Fault::Error("internal_error"));
    assert!(matches!(stage.slack.listen(&stage.ear).await, Lost::Connection(_)));
    stage.server.go_away().await;
    assert!(matches!(stage.slack.listen(&stage.ear).await, Lost::Connection(_)));
    assert_eq!(stage.ear.state().connected.len(), 0);
}

#[tokio::test]
async fn frames_that_say_nothing_known_are_left_alone() {
    let stage = Stage::new().await;
    let (channel, ann) = (stage.server.channel(), stage.server.person("ann"));
    stage
        .play(async {
            stage.connected(1).await;
            for frame in [
                "",
                "{",
                "[]",
                "null",
                "{\"type\":1}",
                "{\"type\":\"disconnect\",\"envelope_id\":1}",
                "{\"a\":\"\\u0000\"}",
            ] {
                stage.server.say_raw(frame);
            }
            stage
                .server
                .event(json!({"type": "message", "channel": [], "user": 7, "text": {}, "ts": null, "files": "x"}));
            stage.server.event(json!(null));
            stage.server.say(&channel, &ann, "still here");
            assert_eq!(stage.heard(1).await, ["still here"]);
            stage.acknowledged(3).await;
            assert!(stage.lost().is_empty());
        })
        .await;
}

#[tokio::test]
async fn a_connection_that_has_fallen_silent_is_given_up() {
    let stage = Stage::new().await;
    let freezing = async {
        stage.connected(1).await;
        stage.server.freeze_connections();
        stage.server.wait_for("the silence", |state| state.frozen == 1).await;
        // Nothing comes any more, so the clock may run ahead to when that is noticed.
        tokio::time::pause();
    };
    let (lost, ()) = tokio::join!(stage.slack.listen(&stage.ear), freezing);
    assert_eq!(lost, Lost::Connection("Slack's socket has fallen silent".to_owned()));
}

/// An ear whose database never answers.
#[derive(Debug)]
struct SlowEar(RecordingEar);

impl Ear for SlowEar {
    fn connected(&self, own: Own) {
        self.0.connected(own);
    }

    fn hear(&self, heard: Heard) {
        self.0.hear(heard);
    }

    fn settled(&self) -> BoxFuture<'_, ()> {
        std::future::pending().boxed()
    }

    fn cursor(&self) -> BoxFuture<'_, Option<String>> {
        self.0.cursor()
    }

    fn keep_cursor(&self, cursor: String) -> BoxFuture<'_, ()> {
        self.0.keep_cursor(cursor)
    }
}

#[tokio::test]
async fn a_slow_database_holds_up_neither_hearing_nor_acknowledging_for_ever() {
    let stage = Stage::new().await;
    let (channel, ann) = (stage.server.channel(), stage.server.person("ann"));
    let ear = SlowEar(RecordingEar::new());
    play_with(&stage.slack, &ear, &stage.lost, async {
        ear.0.wait_for("the connection", |ear| !ear.connected.is_empty()).await;
        let begun = Instant::now();
        for text in ["one", "two", "stop"] {
            stage.server.say(&channel, &ann, text);
        }
        ear.0.wait_for("all of them", |ear| ear.heard.len() == 3).await;
        stage.acknowledged(3).await;
        assert!(begun.elapsed() >= Duration::from_millis(2400), "what was not kept was acknowledged at once");
    })
    .await;
}
