//! The connection: what breaks it, and how it goes on.

use rstest::rstest;

use super::*;

#[tokio::test]
async fn what_was_said_while_the_connection_was_broken_is_heard_once() {
    let stage = Stage::new().await;
    let (anna, channel) = (stage.server.person("anna"), stage.server.channel());
    stage
        .play(async {
            stage.connected(1).await;
            stage.server.say(&channel, &anna, "one");
            stage.heard(1).await;
        })
        .await;
    // Nobody listens now.
    stage.server.wait_for("the end of the connection", |state| state.connections == 0).await;
    stage.server.say(&channel, &anna, "two");
    stage.server.say(&channel, &anna, "three");
    stage
        .play(async {
            stage.connected(2).await;
            stage.server.say(&channel, &anna, "four");
            assert_eq!(stage.heard(4).await, ["one", "two", "three", "four"]);
        })
        .await;
    let state = stage.server.state();
    assert_eq!((state.identified, state.resumed, state.not_resumed), (1, 1, 0));
    assert!(state.left.iter().all(Option::is_none), "a close code would have ended the session: {:?}", state.left);
}

#[derive(Debug, Clone, Copy)]
enum Break {
    Drop,
    Code(u16),
    Reconnect,
    Resumable,
    GoAway,
}

#[rstest]
#[case::the_line_drops(Break::Drop)]
#[case::an_unknown_error(Break::Code(4000))]
#[case::a_normal_close(Break::Code(1000))]
#[case::an_opcode_7(Break::Reconnect)]
#[case::an_invalid_session_that_goes_on(Break::Resumable)]
#[case::the_server_is_away_for_a_while(Break::GoAway)]
#[tokio::test]
async fn a_connection_that_breaks_goes_on_where_it_was(#[case] how: Break) {
    let stage = Stage::new().await;
    let (anna, channel) = (stage.server.person("anna"), stage.server.channel());
    let plot = async {
        stage.connected(1).await;
        stage.server.say(&channel, &anna, "before");
        stage.heard(1).await;
        match how {
            Break::Drop => stage.server.drop_connections(),
            Break::Code(code) => stage.server.close(code),
            Break::Reconnect => stage.server.ask_to_reconnect(),
            Break::Resumable => stage.server.say_raw(r#"{"op":9,"d":true}"#),
            Break::GoAway => {
                stage.server.go_away().await;
                stage.server.come_back();
            }
        }
        stage.server.say(&channel, &anna, "meanwhile");
        stage.connected(2).await;
        stage.server.say(&channel, &anna, "after");
        assert_eq!(stage.heard(3).await, ["before", "meanwhile", "after"]);
    };
    stage.play(plot).await;
    let state = stage.server.state();
    assert_eq!((state.identified, state.resumed, state.not_resumed), (1, 1, 0));
}

#[tokio::test]
async fn where_the_sessions_address_is_out_of_reach_the_one_for_everybody_is_asked_for() {
    let stage = Stage::new().await;
    stage.play(stage.connected(1)).await;
    stage.server.go_away().await;
    assert!(matches!(stage.discord.listen(&stage.ear).await, Lost::Connection(_)));
    stage.server.come_back();
    // Whoever resumes begins no session, and may do so also where no other may begin.
    stage.server.identifies_left(0, Duration::from_secs(3600));
    stage.play(stage.connected(2)).await;
    let state = stage.server.state();
    assert_eq!((state.called(Route::Gateway), state.resumed), (2, 1));
}

#[rstest]
#[case::told(|stage: &Stage| stage.server.end_sessions())]
#[case::timed_out(|stage: &Stage| { stage.server.forget_sessions(); stage.server.close(4009) })]
#[case::not_told(|stage: &Stage| { stage.server.forget_sessions(); stage.server.drop_connections() })]
#[tokio::test]
async fn a_session_that_has_ended_is_begun_anew(#[case] end: fn(&Stage)) {
    let stage = Stage::new().await;
    let (anna, channel) = (stage.server.person("anna"), stage.server.channel());
    let plot = async {
        stage.connected(1).await;
        end(&stage);
        stage.connected(2).await;
        stage.server.say(&channel, &anna, "hello again");
        assert_eq!(stage.heard(1).await, ["hello again"]);
    };
    stage.play(plot).await;
    assert_eq!(stage.server.state().identified, 2);
}

#[tokio::test]
async fn a_session_that_has_ended_is_not_begun_anew_at_once() {
    let stage = Stage::new().await;
    stage
        .play(async {
            stage.connected(1).await;
            stage.server.end_sessions();
            stage.connected(2).await;
        })
        .await;
    let lost = stage.lost();
    let Lost::Busy { after, .. } = lost[0] else { panic!("{lost:?}") };
    assert!((Duration::from_secs(1)..=Duration::from_secs(5)).contains(&after), "{after:?}");
}

#[tokio::test]
async fn a_server_that_comes_back_without_its_sessions_gets_a_new_one() {
    let stage = Stage::new().await;
    stage
        .play(async {
            stage.connected(1).await;
            stage.server.restart().await;
            stage.connected(2).await;
        })
        .await;
    assert_eq!(stage.server.state().identified, 2);
}

#[rstest]
#[case::token(4004, "reset it")]
#[case::sharding(4011, "sharding")]
#[case::version(4012, "newer version")]
#[case::intents(4013, "newer version")]
#[case::content(4014, "Message Content Intent")]
#[tokio::test]
async fn what_a_person_has_to_mend_is_said(#[case] code: u16, #[case] remedy: &str) {
    let stage = Stage::new().await;
    stage
        .play(async {
            stage.connected(1).await;
            stage.server.close(code);
            stage.connected(2).await;
        })
        .await;
    let lost = stage.lost();
    let Lost::Refused(why) = &lost[0] else { panic!("{lost:?}") };
    assert!(why.contains(remedy), "{why}");
}

#[tokio::test]
async fn an_account_that_may_not_read_messages_is_refused_and_the_remedy_named() {
    let stage = Stage::new().await;
    stage.server.without_message_content();
    let Lost::Refused(why) = stage.discord.listen(&stage.ear).await else { panic!("it listens") };
    assert!(why.contains("Message Content Intent"), "{why}");
    let Trouble(why) = stage.discord.probe().await.unwrap_err();
    assert!(why.contains("Message Content Intent"), "{why}");
}

#[tokio::test]
async fn a_wrong_token_is_refused_and_not_shown() {
    let mut stage = Stage::new().await;
    let mut config = config(&stage.server.base_url());
    config.token = Some("a-wrong-token".into());
    stage.discord = Discord::new("discord", &config).unwrap();
    let Lost::Refused(why) = stage.discord.listen(&stage.ear).await else { panic!("it listens") };
    assert!(why.contains("token") && !why.contains("a-wrong-token"), "{why}");
}

#[tokio::test]
async fn who_has_begun_too_many_sessions_waits_for_the_next_day() {
    let stage = Stage::new().await;
    stage.server.identifies_left(0, Duration::from_secs(3600));
    let lost = stage.discord.listen(&stage.ear).await;
    assert!(matches!(&lost, Lost::Busy { after, .. } if *after == Duration::from_secs(3600)), "{lost:?}");
    assert_eq!(stage.server.state().connections, 0);
}

#[tokio::test]
async fn a_gateway_that_is_asked_too_often_or_fails_is_tried_again() {
    let stage = Stage::new().await;
    let after = Duration::from_millis(1500);
    stage.server.fault(Route::Gateway, Fault::RateLimited { after, scope: Scope::Global });
    stage.server.fault(Route::Gateway, Fault::Status { status: 502, code: 0, message: "bad gateway".to_owned() });
    stage.server.fault(Route::Gateway, Fault::CloseBefore);
    let lost = stage.discord.listen(&stage.ear).await;
    assert!(matches!(&lost, Lost::Busy { after: told, .. } if *told == after), "{lost:?}");
    assert!(matches!(stage.discord.listen(&stage.ear).await, Lost::Connection(_)));
    assert!(matches!(stage.discord.listen(&stage.ear).await, Lost::Connection(_)));
    stage.play(stage.connected(1)).await;
}
