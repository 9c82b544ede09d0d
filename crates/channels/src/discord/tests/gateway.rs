//! Reconnects and close codes.

use rstest::rstest;

use super::*;

#[derive(Debug, Clone, Copy, PartialEq)]
enum ConnectionBreak {
    ListenerEnds,
    Drop,
    Code(u16),
    Reconnect,
    Resumable,
    GoAway,
}

#[rstest]
#[case::the_listener_ends(ConnectionBreak::ListenerEnds)]
#[case::the_line_drops(ConnectionBreak::Drop)]
#[case::an_unknown_error(ConnectionBreak::Code(4000))]
#[case::a_normal_close(ConnectionBreak::Code(1000))]
#[case::an_opcode_7(ConnectionBreak::Reconnect)]
#[case::an_invalid_session_that_goes_on(ConnectionBreak::Resumable)]
#[case::the_server_is_away_for_a_while(ConnectionBreak::GoAway)]
#[tokio::test]
async fn a_connection_that_breaks_goes_on_where_it_was(#[case] how: ConnectionBreak) {
    let fixture = DiscordFixture::listening().await;
    fixture.post("before");
    fixture.wait_for_texts(1).await;
    match how {
        ConnectionBreak::ListenerEnds => {
            fixture.end_listening().await;
            fixture.server.wait_for("the end of the connection", |state| state.connections == 0).await;
        }
        ConnectionBreak::Drop => fixture.server.drop_connections(),
        ConnectionBreak::Code(code) => fixture.server.close_connections(code),
        ConnectionBreak::Reconnect => fixture.server.request_reconnect(),
        ConnectionBreak::Resumable => fixture.server.send_raw_frame(r#"{"op":9,"d":true}"#),
        ConnectionBreak::GoAway => {
            fixture.server.stop_listening().await;
            fixture.server.resume_listening();
        }
    }
    fixture.post("meanwhile");
    if how == ConnectionBreak::ListenerEnds {
        let closed_with = fixture.server.state().close_codes_received;
        assert!(closed_with.iter().all(Option::is_none), "a code would have ended the session: {closed_with:?}");
        fixture.listen().await;
    }
    fixture.wait_for_connections(2).await;
    fixture.post("after");
    assert_eq!(fixture.wait_for_texts(3).await, ["before", "meanwhile", "after"]);
    let state = fixture.server.state();
    assert_eq!((state.identified, state.resumed, state.not_resumed), (1, 1, 0));
}

#[tokio::test]
async fn an_unreachable_resume_url_falls_back_to_the_gateway_route() {
    let fixture = DiscordFixture::listening().await;
    fixture.end_listening().await;
    fixture.server.stop_listening().await;
    assert!(matches!(fixture.network.listen(&*fixture.sink).await, ListenError::Connection(_)));
    fixture.server.resume_listening();
    // A resume starts no session, so it is allowed even if no session may be started.
    fixture.server.update(|state| (state.identifies_left, state.identifies_reset) = (0, Duration::from_secs(3600)));
    fixture.listen().await;
    let state = fixture.server.state();
    assert_eq!((state.call_count(DiscordRoute::Gateway), state.resumed), (2, 1));
}

#[rstest]
#[case::told(|fixture: &DiscordFixture| fixture.server.end_sessions())]
#[case::timed_out(|fixture: &DiscordFixture| { fixture.server.update(|state| state.sessions.clear()); fixture.server.close_connections(4009) })]
#[case::not_told(|fixture: &DiscordFixture| { fixture.server.update(|state| state.sessions.clear()); fixture.server.drop_connections() })]
#[tokio::test]
async fn a_session_that_has_ended_is_begun_anew(#[case] end: fn(&DiscordFixture)) {
    let fixture = DiscordFixture::listening().await;
    end(&fixture);
    fixture.wait_for_connections(2).await;
    fixture.post("hello again");
    assert_eq!(fixture.wait_for_texts(1).await, ["hello again"]);
    assert_eq!(fixture.server.state().identified, 2);
}

#[tokio::test]
async fn a_session_that_has_ended_is_not_begun_anew_at_once() {
    let fixture = DiscordFixture::listening().await;
    fixture.server.end_sessions();
    fixture.wait_for_connections(2).await;
    let lost = fixture.listen_errors();
    let ListenError::Busy { after, .. } = lost[0] else { panic!("{lost:?}") };
    assert!((Duration::from_secs(1)..=Duration::from_secs(5)).contains(&after), "{after:?}");
}

#[tokio::test]
async fn a_server_that_comes_back_without_its_sessions_gets_a_new_one() {
    let fixture = DiscordFixture::listening().await;
    fixture.server.restart().await;
    fixture.wait_for_connections(2).await;
    assert_eq!(fixture.server.state().identified, 2);
}

#[rstest]
#[case::token(4004, "reset it")]
#[case::sharding(4011, "sharding")]
#[case::version(4012, "newer version")]
#[case::intents(4013, "newer version")]
#[case::content(4014, "Message Content Intent")]
#[tokio::test]
async fn a_close_code_that_needs_a_person_names_the_remedy(#[case] code: u16, #[case] remedy: &str) {
    let fixture = DiscordFixture::listening().await;
    fixture.server.close_connections(code);
    fixture.wait_for_connections(2).await;
    let lost = fixture.listen_errors();
    let ListenError::Refused(why) = &lost[0] else { panic!("{lost:?}") };
    assert!(why.contains(remedy), "{why}");
}

#[tokio::test]
async fn an_account_that_may_not_read_messages_is_refused_and_the_remedy_named() {
    let fixture = DiscordFixture::new().await;
    fixture.server.update(|state| state.message_content = false);
    let ListenError::Refused(why) = fixture.network.listen(&*fixture.sink).await else { panic!("it listens") };
    assert!(why.contains("Message Content Intent"), "{why}");
    let NetworkError(why) = fixture.network.probe().await.unwrap_err();
    assert!(why.contains("Message Content Intent"), "{why}");
}

#[tokio::test]
async fn a_wrong_token_is_refused_and_not_shown() {
    let mut fixture = DiscordFixture::new().await;
    let mut config = discord_config(&fixture.server.base_url());
    config.token = Some("a-wrong-token".into());
    fixture.network = Arc::new(DiscordNetwork::new("discord", &config).unwrap());
    let ListenError::Refused(why) = fixture.network.listen(&*fixture.sink).await else { panic!("it listens") };
    assert!(why.contains("token") && !why.contains("a-wrong-token"), "{why}");
}

#[tokio::test]
async fn a_used_up_session_limit_waits_for_the_next_day() {
    let fixture = DiscordFixture::new().await;
    fixture.server.update(|state| (state.identifies_left, state.identifies_reset) = (0, Duration::from_secs(3600)));
    let lost = fixture.network.listen(&*fixture.sink).await;
    assert!(matches!(&lost, ListenError::Busy { after, .. } if *after == Duration::from_secs(3600)), "{lost:?}");
    assert_eq!(fixture.server.state().connections, 0);
}

#[tokio::test]
async fn a_gateway_that_is_asked_too_often_or_fails_is_tried_again() {
    let fixture = DiscordFixture::new().await;
    let after = Duration::from_millis(1500);
    fixture
        .server
        .inject_fault(DiscordRoute::Gateway, FakeDiscordFault::RateLimited { after, scope: RateLimitScope::Global });
    fixture.server.inject_fault(
        DiscordRoute::Gateway,
        FakeDiscordFault::Status { status: 502, code: 0, message: "bad gateway".to_owned() },
    );
    fixture.server.inject_fault(DiscordRoute::Gateway, FakeDiscordFault::CloseBefore);
    let lost = fixture.network.listen(&*fixture.sink).await;
    assert!(matches!(&lost, ListenError::Busy { after: told, .. } if *told == after), "{lost:?}");
    assert!(matches!(fixture.network.listen(&*fixture.sink).await, ListenError::Connection(_)));
    assert!(matches!(fixture.network.listen(&*fixture.sink).await, ListenError::Connection(_)));
    fixture.listen().await;
}
