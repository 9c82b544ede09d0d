//! Sending of messages, edits and reactions.

use rstest::rstest;

use super::*;

fn status_fault(status: u16, code: u64) -> FakeDiscordFault {
    FakeDiscordFault::Status { status, code, message: "Some Words".to_owned() }
}

#[tokio::test]
async fn a_message_is_shown_edited_and_pings_nobody() {
    let fixture = DiscordFixture::new().await;
    let text = format!("@everyone <@{}> hello", fixture.person);
    let id = fixture.send(&text, "1").await.unwrap();
    let edited = format!("{text} again");
    fixture.edit(&id, &edited).await.unwrap();
    let shown = &fixture.messages()[0];
    assert_eq!((&shown.id, &shown.text, shown.edits), (&id.0, &edited, 1));
    assert!(shown.pinged.is_empty(), "{:?}", shown.pinged);
}

#[tokio::test]
async fn a_key_is_one_message_in_each_channel() {
    let fixture = DiscordFixture::new().await;
    let other = chat_address(&fixture.server.add_channel());
    let id = fixture.send("once", "key").await.unwrap();
    assert_eq!(fixture.send("once", "key").await, Ok(id));
    fixture.send("twice", "another key").await.unwrap();
    fixture.send_to(&other, "elsewhere", "key").await.unwrap();
    assert_eq!((fixture.messages().len(), fixture.server.messages(&other.target).len()), (2, 1));
}

#[rstest]
#[case::of_the_route(RateLimitScope::User)]
#[case::of_the_account(RateLimitScope::Global)]
#[tokio::test]
async fn a_rate_limit_says_when_to_come_again(#[case] scope: RateLimitScope) {
    let fixture = DiscordFixture::new().await;
    let after = Duration::from_millis(2250);
    fixture.server.inject_fault(DiscordRoute::Send, FakeDiscordFault::RateLimited { after, scope });
    let refused = fixture.send("hello", "1").await.unwrap_err();
    assert!(
        matches!(&refused, SendError::NotDelivered { retry_after: told, .. } if *told == Some(after)),
        "{refused:?}"
    );
    fixture.send("hello", "1").await.unwrap();
}

#[tokio::test]
async fn the_sixth_edit_within_five_seconds_has_to_wait() {
    let fixture = DiscordFixture::new().await;
    let id = fixture.send("...", "1").await.unwrap();
    for count in 0..5 {
        fixture.edit(&id, &count.to_string()).await.unwrap();
    }
    let refused = fixture.edit(&id, "5").await.unwrap_err();
    assert!(matches!(&refused, SendError::NotDelivered { retry_after: Some(_), .. }), "{refused:?}");
    assert!(fixture.network.limits().edit_interval * 5 >= Duration::from_secs(5), "the flow keeps to that by itself");
}

#[rstest]
#[case::forbidden(status_fault(403, 50013), "Send Messages")]
#[case::no_access(status_fault(403, 50001), "View Channel")]
#[case::bad_request(status_fault(400, 50035), "Some Words")]
#[case::gone(status_fault(404, 10003), "code 10003")]
#[case::token(status_fault(401, 0), "token")]
#[tokio::test]
async fn a_refused_send_is_not_repeated(#[case] fault: FakeDiscordFault, #[case] words: &str) {
    let fixture = DiscordFixture::new().await;
    fixture.server.inject_fault(DiscordRoute::Send, fault);
    let refused = fixture.send("hello", "1").await.unwrap_err();
    let SendError::Refused { why } = &refused else { panic!("{refused:?}") };
    assert!(why.contains(words), "{why}");
    assert!(fixture.messages().is_empty());
}

#[rstest]
#[case::failed(status_fault(500, 0))]
#[case::no_gateway(status_fault(502, 0))]
#[case::closed(FakeDiscordFault::CloseBefore)]
#[tokio::test]
async fn a_send_without_an_answer_may_be_repeated(#[case] fault: FakeDiscordFault) {
    let fixture = DiscordFixture::new().await;
    fixture.server.inject_fault(DiscordRoute::Send, fault);
    let lost = fixture.send("hello", "1").await.unwrap_err();
    assert!(matches!(lost, SendError::Unknown { is_repeatable: true, .. }), "{lost:?}");
}

#[tokio::test]
async fn a_message_that_is_gone_cannot_be_edited() {
    let fixture = DiscordFixture::new().await;
    let id = fixture.send("...", "1").await.unwrap();
    fixture.server.delete_message(&fixture.channel, &id.0);
    let refused = fixture.edit(&id, "x").await.unwrap_err();
    assert!(matches!(&refused, SendError::Refused { why } if why.contains("10008")), "{refused:?}");
}

#[tokio::test]
async fn signs_are_put_there_and_taken_off() {
    let fixture = DiscordFixture::new().await;
    fixture.server.update(|state| state.limits = None);
    let id = MessageId(fixture.post("hello"));
    let (address, reactions) = (fixture.channel_address(), fixture.network.features().reactions.unwrap());
    for emoji in ["👀", "⏹️", "⚠️"] {
        reactions.add(&address, &id, emoji).await.unwrap();
    }
    reactions.remove(&address, &id, "👀").await.unwrap();
    reactions.remove(&address, &id, "👀").await.unwrap();
    assert_eq!(fixture.messages()[0].reactions, ["⏹️", "⚠️"]);
    fixture.server.delete_message(&fixture.channel, &id.0);
    reactions.remove(&address, &id, "⚠️").await.unwrap();
    assert!(reactions.add(&address, &id, "✅").await.is_err(), "there is nothing to put it on");
}

#[tokio::test]
async fn typing_is_shown_in_the_channel_or_thread() {
    let fixture = DiscordFixture::new().await;
    let thread = fixture.server.add_thread(&fixture.channel);
    let typing = fixture.network.features().typing.unwrap();
    typing.show(&fixture.channel_address()).await.unwrap();
    typing.show(&thread_address(&fixture.channel, &thread)).await.unwrap();
    typing.hide(&fixture.channel_address()).await.unwrap();
    assert_eq!((fixture.server.typing_count(&fixture.channel), fixture.server.typing_count(&thread)), (1, 1));
}

#[rstest]
#[case("general")]
#[case("")]
#[case("1/../../users/@me")]
#[tokio::test]
async fn a_place_that_is_no_number_is_refused_without_a_call(#[case] target: &str) {
    let fixture = DiscordFixture::new().await;
    let refused = fixture.send_to(&chat_address(target), "x", "1").await.unwrap_err();
    assert!(matches!(refused, SendError::Refused { .. }), "{refused:?}");
    assert!(fixture.server.state().calls.is_empty());
}

#[tokio::test]
async fn a_probe_says_who_the_account_is() {
    let fixture = DiscordFixture::new().await;
    let description = fixture.network.probe().await.unwrap();
    assert_eq!(description, format!("quell ({}) on Discord", fixture.server.bot_id()));
}
