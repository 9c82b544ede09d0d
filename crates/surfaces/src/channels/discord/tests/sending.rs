//! Messages, edits, signs.

use rstest::rstest;

use super::*;

fn status(status: u16, code: u64) -> Fault {
    Fault::Status { status, code, message: "Some Words".to_owned() }
}

#[tokio::test]
async fn a_message_is_shown_edited_and_pings_nobody() {
    let stage = Stage::new().await;
    let (anna, channel) = (stage.server.person("anna"), stage.server.channel());
    let text = format!("@everyone <@{anna}> hello");
    let id = stage.send(&channel, &text, "1").await.unwrap();
    let edited = piece(&format!("{text} again"));
    stage.discord.drafts().unwrap().edit(&place(&channel), &id, &edited).await.unwrap();
    let shown = &stage.server.messages(&channel)[0];
    assert_eq!((&shown.id, &shown.text, shown.edits), (&id.0, &edited.marked, 1));
    assert!(shown.pinged.is_empty(), "{:?}", shown.pinged);
}

#[tokio::test]
async fn a_message_that_is_sent_again_with_its_key_is_shown_once() {
    let stage = Stage::new().await;
    let (channel, other) = (stage.server.channel(), stage.server.channel());
    stage.server.fault(Route::Send, Fault::LoseAnswer);
    let lost = stage.send(&channel, "once", "key").await.unwrap_err();
    assert!(matches!(lost, NotSent::Unknown { repeatable: true, .. }), "{lost:?}");
    let id = stage.send(&channel, "once", "key").await.unwrap();
    let shown = stage.server.messages(&channel);
    assert_eq!((shown.len(), &shown[0].id), (1, &id.0));
    stage.send(&channel, "twice", "another key").await.unwrap();
    stage.send(&other, "elsewhere", "key").await.unwrap();
    assert_eq!((stage.server.messages(&channel).len(), stage.server.messages(&other).len()), (2, 1));
}

#[rstest]
#[case::of_the_route(Scope::User)]
#[case::of_the_account(Scope::Global)]
#[tokio::test]
async fn a_rate_limit_says_when_to_come_again(#[case] scope: Scope) {
    let stage = Stage::new().await;
    let (channel, after) = (stage.server.channel(), Duration::from_millis(2250));
    stage.server.fault(Route::Send, Fault::RateLimited { after, scope });
    let refused = stage.send(&channel, "hello", "1").await.unwrap_err();
    assert!(matches!(&refused, NotSent::Undelivered { after: told, .. } if *told == Some(after)), "{refused:?}");
    stage.send(&channel, "hello", "1").await.unwrap();
}

#[tokio::test]
async fn the_sixth_edit_within_five_seconds_has_to_wait() {
    let stage = Stage::new().await;
    let channel = stage.server.channel();
    let id = stage.send(&channel, "...", "1").await.unwrap();
    let drafts = stage.discord.drafts().unwrap();
    for count in 0..5 {
        drafts.edit(&place(&channel), &id, &piece(&format!("{count}"))).await.unwrap();
    }
    let refused = drafts.edit(&place(&channel), &id, &piece("5")).await.unwrap_err();
    assert!(matches!(&refused, NotSent::Undelivered { after: Some(_), .. }), "{refused:?}");
    assert!(stage.discord.manners().edit_every * 5 >= Duration::from_secs(5), "the flow keeps to that by itself");
}

#[rstest]
#[case::forbidden(status(403, 50013), "Send Messages")]
#[case::no_access(status(403, 50001), "View Channel")]
#[case::bad_request(status(400, 50035), "Some Words")]
#[case::gone(status(404, 10003), "code 10003")]
#[case::token(status(401, 0), "token")]
#[tokio::test]
async fn what_discord_refuses_is_not_sent_again(#[case] fault: Fault, #[case] words: &str) {
    let stage = Stage::new().await;
    let channel = stage.server.channel();
    stage.server.fault(Route::Send, fault);
    let refused = stage.send(&channel, "hello", "1").await.unwrap_err();
    let NotSent::Refused { why } = &refused else { panic!("{refused:?}") };
    assert!(why.contains(words), "{why}");
    assert!(stage.server.messages(&channel).is_empty());
}

#[rstest]
#[case::failed(status(500, 0))]
#[case::no_gateway(status(502, 0))]
#[case::closed(Fault::CloseBefore)]
#[tokio::test]
async fn what_may_have_been_shown_may_be_sent_again(#[case] fault: Fault) {
    let stage = Stage::new().await;
    let channel = stage.server.channel();
    stage.server.fault(Route::Send, fault);
    let lost = stage.send(&channel, "hello", "1").await.unwrap_err();
    assert!(matches!(lost, NotSent::Unknown { repeatable: true, .. }), "{lost:?}");
}

#[tokio::test]
async fn what_did_not_reach_the_server_is_certainly_not_shown() {
    let stage = Stage::new().await;
    let channel = stage.server.channel();
    stage.server.go_away().await;
    let lost = stage.send(&channel, "hello", "1").await.unwrap_err();
    assert!(matches!(lost, NotSent::Undelivered { after: None, .. }), "{lost:?}");
}

#[tokio::test]
async fn a_message_that_is_gone_cannot_be_edited() {
    let stage = Stage::new().await;
    let channel = stage.server.channel();
    let id = stage.send(&channel, "...", "1").await.unwrap();
    stage.server.delete(&channel, &id.0);
    let refused = stage.discord.drafts().unwrap().edit(&place(&channel), &id, &piece("x")).await.unwrap_err();
    assert!(matches!(&refused, NotSent::Refused { why } if why.contains("10008")), "{refused:?}");
}

#[tokio::test]
async fn signs_are_put_there_and_taken_off() {
    let stage = Stage::new().await;
    stage.server.without_limits();
    let (anna, channel) = (stage.server.person("anna"), stage.server.channel());
    let id = MessageId(stage.server.say(&channel, &anna, "hello"));
    let (place, signs) = (place(&channel), stage.discord.reactions().unwrap());
    for sign in ["👀", "⏹️", "⚠️"] {
        signs.add(&place, &id, sign).await.unwrap();
    }
    signs.remove(&place, &id, "👀").await.unwrap();
    signs.remove(&place, &id, "👀").await.unwrap();
    assert_eq!(stage.server.messages(&channel)[0].reactions, ["⏹️", "⚠️"]);
    stage.server.delete(&channel, &id.0);
    signs.remove(&place, &id, "⚠️").await.unwrap();
    assert!(signs.add(&place, &id, "✅").await.is_err(), "there is nothing to put it on");
}

#[tokio::test]
async fn typing_is_shown_in_the_channel_or_thread() {
    let stage = Stage::new().await;
    let channel = stage.server.channel();
    let thread = stage.server.thread(&channel);
    let typing = stage.discord.typing().unwrap();
    typing.show(&place(&channel)).await.unwrap();
    typing.show(&Place { target: channel.clone(), thread: Some(thread.clone()) }).await.unwrap();
    typing.hide(&place(&channel)).await.unwrap();
    assert_eq!((stage.server.typing(&channel), stage.server.typing(&thread)), (1, 1));
}

#[rstest]
#[case("general")]
#[case("")]
#[case("1/../../users/@me")]
#[tokio::test]
async fn a_place_that_is_no_number_is_refused_without_a_call(#[case] target: &str) {
    let stage = Stage::new().await;
    let refused = stage.send(target, "x", "1").await.unwrap_err();
    assert!(matches!(refused, NotSent::Refused { .. }), "{refused:?}");
    assert!(stage.server.state().calls.is_empty());
}

#[tokio::test]
async fn a_probe_says_who_the_account_is() {
    let stage = Stage::new().await;
    let told = stage.discord.probe().await.unwrap();
    assert_eq!(told, format!("quell ({}) on Discord", stage.server.bot()));
}
