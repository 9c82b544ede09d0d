//! What operators do with channels: look, test, say something.

use std::time::Duration;

use quell_engine::access::Origin;
use quell_engine::dispatch::Caller;
use quell_protocol::api::{Grants, Scope};
use quell_protocol::channel::{ChannelTest, DeliveryState};
use quell_protocol::{Principal, Surface};
use rstest::rstest;

use super::House;
use super::paper::{Call, Fault, busy, refused};
use crate::channels::flow::NotAddressed;

pub(super) fn admin() -> Caller {
    let principal = Principal::parse("admin").unwrap();
    Caller { principal, scope: Scope::Admin, grants: Grants::ALL, surface: Surface::Cli, origin: Origin::inside() }
}

/// Two messages of the paper, which holds 1000 characters in each.
fn long() -> String {
    format!("{}\n\n{}", "a".repeat(900), "b".repeat(900))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_may_have_colons_and_a_long_text_is_cut() {
    let house = House::open().await;
    let sent = house.channels.send(&admin(), "paper:!room:example.org", &long()).await.unwrap();
    assert_eq!((sent.delivery, sent.sent, sent.of, sent.detail), (DeliveryState::Delivered, 2, 2, None));
    let page = house.paper.page();
    assert_eq!(page.texts(), ["a".repeat(900), "b".repeat(900)]);
    assert!(page.written.iter().all(|written| written.place.target == "!room:example.org"));
    let rows = house.engine.audit_list(0, 10).await.unwrap().items;
    let told: Vec<_> =
        rows.iter().map(|row| (row.action.as_str(), row.target.as_deref(), row.detail.as_deref())).collect();
    assert_eq!(told, [("send_to_channel", Some("channel paper"), Some("to: !room:example.org"))], "and no text");
    house.close().await;
}

#[rstest]
#[case::busy_for_a_moment(busy(Duration::from_millis(20)), "one", DeliveryState::Delivered, 1)]
#[case::busy_for_longer_than_anybody_waits(busy(Duration::from_secs(60)), "one", DeliveryState::Undelivered, 0)]
#[case::refused(refused(), "one", DeliveryState::Undelivered, 0)]
#[case::lost(Fault::LosesAnswer, "one", DeliveryState::Unknown, 0)]
#[tokio::test(flavor = "multi_thread")]
async fn what_became_of_it_is_told(
    #[case] fault: Fault,
    #[case] text: &str,
    #[case] delivery: DeliveryState,
    #[case] sent: usize,
) {
    let house = House::open().await;
    house.paper.fault(Call::Send, fault);
    let told = house.channels.send(&admin(), "paper:room", text).await.unwrap();
    assert_eq!((told.delivery, told.sent, told.of), (delivery, sent, 1), "{told:?}");
    assert_eq!(told.detail.is_some(), delivery != DeliveryState::Delivered);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nobody_is_nothing_is_sent() {
    let house = House::open().await;
    let unknown = house.channels.send(&admin(), "telegram:1", "hello").await.unwrap_err();
    assert_eq!(unknown.to_string(), "there is no channel \"telegram\"; there are: paper");
    assert_eq!(house.channels.probe("telegram").await.unwrap_err(), unknown);
    for (to, text) in [("paper", "x"), ("paper:", "x"), ("paper: ", "x"), ("paper:a\nb", "x"), ("paper:room", " \n")] {
        let error = house.channels.send(&admin(), to, text).await.unwrap_err();
        assert!(matches!(error, NotAddressed::Senseless(_)), "{to}: {error}");
    }
    assert_eq!(house.paper.page().texts(), Vec::<&str>::new());
    assert!(house.engine.audit_list(0, 10).await.unwrap().items.is_empty(), "what did nothing is not noted");
    let probed = house.channels.probe("paper").await.unwrap();
    assert_eq!(probed, ChannelTest { ok: true, detail: "paper".to_owned() });
    house.close().await;
}
