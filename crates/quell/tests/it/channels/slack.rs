//! Slack alone: threads, a connection that Slack gives up, refused and lost sends.

use std::time::{Duration, Instant};

use quell_testkit::model::{ScriptedResponse, ScriptedStream};
use quell_testkit::networks::slack::{BOT, FakeSlackFault, FakeSlackMessage, FakeSlackState};

use super::draft_networks::DraftNetworkFixture;

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_in_one_thread_leaves_the_other_alone() {
    // A thread is a conversation of its own, so a message there does not interrupt another thread.
    let fixture = DraftNetworkFixture::start_slack("interrupt_on_new_message = true").await;
    let (slack, bob) = (fixture.slack(), fixture.slack().add_person("bob"));
    let [one, other] = ["one", "other"].map(|text| slack.post_message(&fixture.channel, &bob, text));
    let say_in = |thread: &str, text| slack.post_in_thread((&fixture.channel, thread), &fixture.ann, text);
    fixture.base.model.script(ScriptedResponse::silent_mid_stream("Of the one"));
    say_in(&one, "a question");
    fixture.base.model.request_at(0).wait_streaming().await;
    fixture.base.model.script(ScriptedStream::new().text("Of ").wait_for_gate("end").text("the other."));
    say_in(&other, "another one");
    fixture.base.model.request_at(1).wait_streaming().await;
    say_in(&one, "stop");
    fixture.base.model.request_at(0).wait_client_left().await;
    let is_shown_in = |thread: &String, begin: &'static str| {
        let (channel, thread) = (fixture.channel.clone(), Some(thread.clone()));
        let fits = move |it: &FakeSlackMessage| it.author == BOT && it.thread == thread && it.text.starts_with(begin);
        move |state: &FakeSlackState| state.chat_data.messages(&channel).iter().any(&fits)
    };
    slack.wait_for("the receipt in its thread", is_shown_in(&one, "⏹ stopped in")).await;
    assert!(fixture.base.model.request_at(1).wait_arrived().await.progress().client_left.is_none());
    fixture.base.model.open_gate("end");
    slack.wait_for("the answer in its thread", is_shown_in(&other, "Of the other.")).await;
    assert_eq!(fixture.base.model.request_count(), 2, "bob got an answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_survives_a_connection_that_slack_gives_up() {
    let fixture = DraftNetworkFixture::start_slack("").await;
    let slack = fixture.slack();
    fixture.start_gated_answer().await;
    slack.request_reconnect();
    fixture.base.model.script(ScriptedResponse::text("Two."));
    fixture.post_message("second");
    slack.wait_for("another connection alone", |it| (it.opened, it.connections) == (2, 1)).await;
    fixture.base.model.open_gate("end");
    fixture.wait_texts(&["One more.", "Two."]).await;
    slack.wait_for("acknowledgements of everything", |it| it.unacknowledged() == 0).await;
    assert_eq!(fixture.base.model.request_count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_that_is_one_too_many_delays_the_answer_and_doubles_nothing() {
    let fixture = DraftNetworkFixture::start_slack("drafts = false").await;
    let slack = fixture.slack();
    slack.inject_fault("chat.postMessage", FakeSlackFault::RateLimited(1));
    fixture.base.model.script(ScriptedResponse::text("Here."));
    let begun = Instant::now();
    let asked = fixture.post_message("hello");
    fixture.wait_answered(&asked).await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(slack.state().call_count("chat.postMessage"), 2);
    fixture.wait_texts(&["Here."]).await;

    // Slack has no idempotency keys: a message that may have been shown is not sent again, and the user is told.
    slack.inject_fault("chat.postMessage", FakeSlackFault::LoseAnswer);
    fixture.base.model.script(ScriptedResponse::text("There."));
    let asked = fixture.post_message("and now?");
    fixture.wait_reaction(&asked, "warning").await;
    let shown = fixture.bot_messages().await;
    assert_eq!(shown.iter().filter(|message| message.text == "There.").count(), 1, "{shown:?}");
    let last = &shown.last().unwrap().text;
    assert!(last.contains("not known whether all of the answer is shown"), "{shown:?}");
}
