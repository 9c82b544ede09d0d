//! Sending and probing through the operator API.

use std::time::Duration;

use quell_engine::access::RequestOrigin;
use quell_engine::engine::Caller;
use quell_protocol::api::{AccessLevel, Grants};
use quell_protocol::channel::{ChannelTest, DeliveryState};
use quell_protocol::{Principal, SessionKey, Surface};
use quell_testkit::model::ScriptedResponse;
use rstest::rstest;

use super::FlowFixture;
use super::fake_network::{FakeNetworkCall, FakeNetworkFault, rate_limit_fault, refusal_fault};
use crate::flow::ChannelTargetError;

pub(super) fn admin_caller() -> Caller {
    let principal = Principal::parse("admin").unwrap();
    Caller {
        principal,
        scope: AccessLevel::Admin,
        grants: Grants::ALL,
        key: quell_kernel::api_key::ApiKey::default(),
        verified_person: false,
        surface: Surface::Cli,
        origin: RequestOrigin::internal(),
    }
}

/// A text that needs two messages: the fake network has a limit of 1000 characters.
fn two_piece_text() -> String {
    format!("{}\n\n{}", "a".repeat(900), "b".repeat(900))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_may_have_colons_and_a_long_text_is_cut() {
    let fixture = FlowFixture::start().await;
    let sent = fixture.channels.send_text(&admin_caller(), "paper:!room:example.org", &two_piece_text()).await.unwrap();
    assert_eq!((sent.delivery, sent.sent, sent.of, sent.detail), (DeliveryState::Delivered, 2, 2, None));
    let state = fixture.network.state();
    assert_eq!(state.texts(), ["a".repeat(900), "b".repeat(900)]);
    assert!(state.messages.iter().all(|written| written.address.target == "!room:example.org"));
    let rows = fixture.engine.list_audit(0, 10).await.unwrap().items;
    let audited: Vec<_> =
        rows.iter().map(|row| (row.action.as_str(), row.target.as_deref(), row.detail.as_deref())).collect();
    assert_eq!(audited, [("send_to_channel", Some("channel paper"), Some("to: !room:example.org"))], "and no text");
    fixture.shut_down().await;
}

#[rstest]
#[case::busy_for_a_moment(rate_limit_fault(Duration::from_millis(20)), DeliveryState::Delivered, 1)]
#[case::busy_for_longer_than_anybody_waits(rate_limit_fault(Duration::from_secs(60)), DeliveryState::Undelivered, 0)]
#[case::refused(refusal_fault(), DeliveryState::Undelivered, 0)]
#[case::lost(FakeNetworkFault::LosesResponse { keeps_key: false }, DeliveryState::Unknown, 0)]
#[tokio::test(flavor = "multi_thread")]
async fn the_outcome_of_a_sent_text_is_returned(
    #[case] fault: FakeNetworkFault,
    #[case] delivery: DeliveryState,
    #[case] sent: usize,
) {
    let fixture = FlowFixture::start().await;
    fixture.network.inject_fault(FakeNetworkCall::Send, fault);
    let outcome = fixture.channels.send_text(&admin_caller(), "paper:room", "one").await.unwrap();
    assert_eq!((outcome.delivery, outcome.sent, outcome.of), (delivery, sent, 1), "{outcome:?}");
    assert_eq!(outcome.detail.is_some(), delivery != DeliveryState::Delivered);
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_target_is_refused() {
    let fixture = FlowFixture::start().await;
    let unknown = fixture.channels.send_text(&admin_caller(), "telegram:1", "hello").await.unwrap_err();
    assert_eq!(unknown.to_string(), "there is no channel \"telegram\"; there are: paper");
    assert_eq!(fixture.channels.probe("telegram").await.unwrap_err(), unknown);
    for (to, text) in [("paper", "x"), ("paper:", "x"), ("paper: ", "x"), ("paper:a\nb", "x"), ("paper:room", " \n")] {
        let error = fixture.channels.send_text(&admin_caller(), to, text).await.unwrap_err();
        assert!(matches!(error, ChannelTargetError::InvalidRequest(_)), "{to}: {error}");
    }
    assert_eq!(fixture.network.state().texts(), Vec::<&str>::new());
    assert!(fixture.engine.list_audit(0, 10).await.unwrap().items.is_empty(), "a refused request leaves no audit row");
    let probed = fixture.channels.probe("paper").await.unwrap();
    assert_eq!(probed, ChannelTest { ok: true, detail: "paper".to_owned() });
    fixture.shut_down().await;
}

/// Shared, the session would take the messages of the chat, and the token would read them.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_does_not_share_a_session_with_the_key_of_a_chat() {
    let fixture = FlowFixture::start().await;
    let writer = Caller {
        principal: Principal::parse("bob").unwrap(),
        scope: AccessLevel::Write,
        grants: Grants::for_level(AccessLevel::Write),
        surface: Surface::Http,
        ..admin_caller()
    };
    for (session, is_shared) in [("paper_room_ann", false), ("papers_room_ann", true)] {
        let key = SessionKey::parse(session).unwrap();
        fixture.model.script(ScriptedResponse::text("mine"));
        fixture.engine.submit(&writer, super::page_submission(session, "hello")).await.unwrap();
        let shared = fixture.engine.share_session(&writer, &key, true).await;
        assert_eq!(shared.is_ok(), is_shared, "{session}: {shared:?}");
        assert!(fixture.engine.share_session(&admin_caller(), &key, true).await.unwrap(), "{session}");
        assert!(fixture.engine.share_session(&writer, &key, false).await.unwrap(), "{session}");
    }
    fixture.shut_down().await;
}
