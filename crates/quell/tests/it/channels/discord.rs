//! Discord alone: threads, the end of its gateway session, refused and lost sends.

use std::time::{Duration, Instant};

use quell_testkit::model::{ScriptedResponse, ScriptedStream};
use quell_testkit::networks::discord::{DiscordRoute, FakeDiscordFault, FakeDiscordState, RateLimitScope};

use super::draft_networks::DraftNetworkFixture;

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_in_a_thread_leaves_its_channel_alone() {
    let fixture = DraftNetworkFixture::start_discord("").await;
    let discord = fixture.discord();
    let thread = discord.add_thread(&fixture.channel);
    fixture.base.model.script(ScriptedStream::new().text("Of ").wait_for_gate("end").text("the channel."));
    fixture.post_message("a question");
    fixture.wait_texts(&["Of"]).await;
    fixture.base.model.script(ScriptedResponse::silent_mid_stream("Of the thread"));
    discord.post_message(&thread, &fixture.ann, "another one");
    fixture.base.model.request_at(1).wait_streaming().await;
    discord.post_message(&thread, &fixture.ann, "/stop");
    fixture.base.model.request_at(1).wait_client_left().await;
    let has_receipt = |it: &FakeDiscordState| it.texts(&thread).iter().any(|text| text.starts_with("⏹ stopped in"));
    discord.wait_for("the receipt in the thread", has_receipt).await;
    assert!(fixture.base.model.request_at(0).wait_arrived().await.progress().client_left.is_none());
    fixture.base.model.open_gate("end");
    fixture.wait_texts(&["Of the channel."]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_survives_the_end_of_the_session() {
    let fixture = DraftNetworkFixture::start_discord("").await;
    fixture.start_gated_answer().await;
    fixture.discord().end_sessions();
    fixture.discord().wait_for("another session", |it| it.identified == 2).await;
    fixture.base.model.open_gate("end");
    fixture.wait_texts(&["One more."]).await;
    fixture.base.model.script(ScriptedResponse::text("Two."));
    fixture.post_message("second");
    fixture.wait_texts(&["One more.", "Two."]).await;
    assert_eq!(fixture.base.model.request_count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_that_is_refused_or_lost_delays_the_answer_and_doubles_nothing() {
    let fixture = DraftNetworkFixture::start_discord("drafts = false").await;
    let (discord, after) = (fixture.discord(), Duration::from_secs(1));
    // Longer than the first pause without a given time.
    discord.inject_fault(DiscordRoute::Send, FakeDiscordFault::RateLimited { after, scope: RateLimitScope::User });
    discord.inject_fault(DiscordRoute::Send, FakeDiscordFault::LoseAnswer);
    fixture.base.model.script(ScriptedResponse::text("Here."));
    let begun = Instant::now();
    let asked = fixture.post_message("hello");
    fixture.wait_texts(&["Here."]).await;
    assert!(begun.elapsed() >= after, "{:?}", begun.elapsed());
    // The send whose answer was lost is repeated with its nonce, so Discord deduplicates it.
    fixture.wait_answered(&asked).await;
    assert_eq!(discord.state().call_count(DiscordRoute::Send), 3);
    fixture.wait_texts(&["Here."]).await;
}
