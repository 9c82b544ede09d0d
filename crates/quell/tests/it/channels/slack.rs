//! Slack: growing drafts, reactions, stops from the chat, threads, lost connections.

use std::time::{Duration, Instant};

use quell_testkit::model::{ScriptedResponse, ScriptedStream};
use quell_testkit::networks::slack::{
    APP_TOKEN, BOT, BOT_TOKEN, FakeSlack, FakeSlackFault, FakeSlackMessage, FakeSlackState,
};

use super::{CLOSED_WITHIN, ChannelDaemonFixture};
use crate::test_engine::ProcessLock;

/// Slack, a channel with the app in it, an allowed user and one who is not allowed.
struct SlackDaemonFixture {
    slack: FakeSlack,
    channel: String,
    ann: String,
    bob: String,
    base: ChannelDaemonFixture,
}

impl SlackDaemonFixture {
    /// With more keys of `[channels.slack]`.
    async fn start(more: &str) -> Self {
        let process_lock = ProcessLock::shared().await;
        let slack = FakeSlack::start().await;
        let (channel, ann, bob) = (slack.add_channel(), slack.add_person("ann"), slack.add_person("bob"));
        let section = format!(
            "[channels.slack]\nkind = \"slack\"\napi_base = \"{}\"\ntoken_env = \"TOKEN\"\napp_token_env = \"APP_TOKEN\"\n\
             allow = [\"{ann}\"]\n{more}\n",
            slack.base_url()
        );
        let tokens = [("TOKEN", BOT_TOKEN), ("APP_TOKEN", APP_TOKEN)];
        let fixture = ChannelDaemonFixture::start_with_tokens(process_lock, &section, &tokens).await;
        slack.wait_for("a connection", |it| it.connections == 1).await;
        Self { slack, channel, ann, bob, base: fixture }
    }

    fn post_message(&self, text: &str) -> String {
        self.slack.post_message(&self.channel, &self.ann, text)
    }

    /// Waits until these are the app's messages in the channel.
    async fn wait_texts(&self, texts: &[&str]) {
        self.slack.wait_for("all that was said", |it| self.bot_texts(it) == texts).await;
    }

    /// Waits until a message of the app contains this text, and returns it.
    async fn wait_text_containing(&self, part: &str) -> FakeSlackMessage {
        let found = |it: &FakeSlackState| {
            let messages = it.chat_data.messages(&self.channel).iter();
            messages.filter(|message| message.author == BOT).find(|message| message.text.contains(part)).cloned()
        };
        let state = self.slack.wait_for(part, |it| found(it).is_some()).await;
        found(&state).unwrap()
    }

    /// Waits until a message of the channel has these reactions.
    async fn wait_reactions(&self, message: &str, signs: &[&str]) {
        let is_signed =
            |it: &FakeSlackState| it.chat_data.message(&self.channel, message).is_some_and(|it| it.reactions == signs);
        self.slack.wait_for("the signs", is_signed).await;
    }

    fn bot_texts(&self, state: &FakeSlackState) -> Vec<String> {
        let messages = state.chat_data.messages(&self.channel).iter();
        messages.filter(|message| message.author == BOT).map(|message| message.text.clone()).collect()
    }
}

impl Drop for SlackDaemonFixture {
    fn drop(&mut self) {
        let complaints = self.slack.state().client_errors;
        assert!(complaints.is_empty() || std::thread::panicking(), "{complaints:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_grows_in_one_message_and_is_signed() {
    let fixture = SlackDaemonFixture::start("").await;
    let answer = ScriptedStream::new()
        .text("Good ")
        .wait_for_gate("more")
        .text("bright ")
        .wait_for_gate("rest")
        .text("**day**, @here");
    fixture.base.model.script(answer);
    // Slack sends two events for a message that mentions an app in its channel.
    let asked = fixture.post_message(&format!("<@{BOT}> hello"));
    fixture.wait_texts(&["Good"]).await;
    fixture.wait_reactions(&asked, &["eyes"]).await;
    fixture.base.model.open_gate("more");
    fixture.wait_texts(&["Good bright"]).await;
    fixture.base.model.open_gate("rest");
    // The zero-width space keeps the word from notifying everyone.
    fixture.wait_texts(&["Good bright *day*, @\u{200b}here"]).await;
    fixture.wait_reactions(&asked, &["white_check_mark"]).await;
    let state = fixture.slack.state();
    assert_eq!(state.call_count("chat.postMessage"), 1, "the answer must replace the draft");
    assert_eq!(fixture.base.model.request_count(), 1, "a duplicate event got a second answer");
    let request = fixture.base.model.request_at(0).wait_arrived().await;
    assert!(request.last_user_text.ends_with("hello"), "{}", request.last_user_text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_from_the_chat_ends_the_run_and_says_so() {
    let fixture = SlackDaemonFixture::start("").await;
    fixture.base.model.script(ScriptedResponse::silent_mid_stream("I have begun"));
    let asked = fixture.post_message("write a book");
    fixture.wait_texts(&["I have begun"]).await;
    let begun = Instant::now();
    // Slack's clients send a text that begins with a slash as a command, not as a message.
    fixture.slack.send_slash_command(&fixture.channel, &fixture.ann, "/stop", "");
    fixture.base.model.request_at(0).wait_client_left().await;
    assert!(begun.elapsed() < CLOSED_WITHIN, "{:?}", begun.elapsed());
    for part in ["Stopping your request.", "⏹ stopped in", "I have begun\n\n⏹ Stopped."] {
        fixture.wait_text_containing(part).await;
    }
    fixture.wait_reactions(&asked, &["black_square_for_stop"]).await;

    // The next message works, and the model learns of the stop.
    fixture.base.model.script(ScriptedResponse::text("Here I am."));
    let next = fixture.post_message("and now?");
    fixture.wait_text_containing("Here I am.").await;
    fixture.wait_reactions(&next, &["white_check_mark"]).await;
    assert_eq!(fixture.bot_texts(&fixture.slack.state()).len(), 4, "a draft, two stop messages, and an answer");
    fixture.base.model.assert_histories_valid();
    let request = fixture.base.model.request_at(1).wait_arrived().await;
    assert!(request.body.to_string().contains("was stopped on purpose by the user"), "{}", request.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_message_interrupts_and_is_answered_instead() {
    let fixture = SlackDaemonFixture::start("interrupt_on_new_message = true").await;
    fixture.base.model.script(ScriptedResponse::silent_mid_stream("First"));
    let first = fixture.post_message("one");
    fixture.wait_texts(&["First"]).await;
    fixture.base.model.script(ScriptedResponse::text("Second."));
    let second = fixture.post_message("two");
    fixture.base.model.request_at(0).wait_client_left().await;
    fixture.wait_text_containing("Second.").await;
    fixture.wait_reactions(&second, &["white_check_mark"]).await;
    fixture.wait_reactions(&first, &["black_square_for_stop"]).await;
    fixture.wait_texts(&["First\n\n⏹ Stopped: you wrote again.", "Second."]).await;
    assert_eq!(fixture.base.model.request_count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_in_one_thread_leaves_the_other_alone() {
    // A thread is a conversation of its own, so a message there does not interrupt another thread.
    let fixture = SlackDaemonFixture::start("interrupt_on_new_message = true").await;
    let [one, other] = ["one", "other"].map(|text| fixture.slack.post_message(&fixture.channel, &fixture.bob, text));
    let say_in = |thread: &str, text| fixture.slack.post_in_thread((&fixture.channel, thread), &fixture.ann, text);
    fixture.base.model.script(ScriptedResponse::silent_mid_stream("Of the one"));
    say_in(&one, "a question");
    fixture.base.model.request_at(0).wait_streaming().await;
    fixture.base.model.script(ScriptedStream::new().text("Of ").wait_for_gate("end").text("the other."));
    say_in(&other, "another one");
    fixture.base.model.request_at(1).wait_streaming().await;
    say_in(&one, "stop");
    fixture.base.model.request_at(0).wait_client_left().await;
    let receipt = fixture.wait_text_containing("⏹ stopped in").await;
    assert_eq!(receipt.thread.as_ref(), Some(&one));
    assert!(fixture.base.model.request_at(1).wait_arrived().await.progress().client_left.is_none());
    fixture.base.model.open_gate("end");
    let answer = fixture.wait_text_containing("Of the other.").await;
    assert_eq!(answer.thread.as_ref(), Some(&other));
    assert_eq!(fixture.base.model.request_count(), 2, "bob got an answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_during_a_lost_connection_is_answered_once() {
    let fixture = SlackDaemonFixture::start("").await;
    fixture.base.model.script(ScriptedStream::new().text("One").wait_for_gate("end").text(" more."));
    fixture.post_message("first");
    fixture.wait_texts(&["One"]).await;
    fixture.slack.drop_connections();
    fixture.slack.wait_for("nobody who listens", |it| it.connections == 0).await;
    fixture.base.model.script(ScriptedResponse::text("Two."));
    fixture.post_message("second");
    // The answer is sent over the Web API, with or without a socket connection.
    fixture.base.model.open_gate("end");
    fixture.wait_text_containing("One more.").await;
    fixture.wait_texts(&["One more.", "Two."]).await;
    // Slack resends an event that it takes for unacknowledged. A second answer would come before the next one.
    fixture.slack.resend_last_event();
    fixture.base.model.script(ScriptedResponse::text("Three."));
    fixture.post_message("third");
    fixture.wait_texts(&["One more.", "Two.", "Three."]).await;
    fixture.slack.wait_for("acknowledgements of everything", |it| it.unacknowledged() == 0).await;
    assert_eq!(fixture.base.model.request_count(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_survives_a_connection_that_slack_gives_up() {
    let fixture = SlackDaemonFixture::start("").await;
    fixture.base.model.script(ScriptedStream::new().text("One").wait_for_gate("end").text(" more."));
    fixture.post_message("first");
    fixture.wait_texts(&["One"]).await;
    fixture.slack.request_reconnect();
    fixture.base.model.script(ScriptedResponse::text("Two."));
    fixture.post_message("second");
    fixture.slack.wait_for("another connection alone", |it| (it.opened, it.connections) == (2, 1)).await;
    fixture.base.model.open_gate("end");
    fixture.wait_texts(&["One more.", "Two."]).await;
    fixture.slack.wait_for("acknowledgements of everything", |it| it.unacknowledged() == 0).await;
    assert_eq!(fixture.base.model.request_count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_that_is_one_too_many_delays_the_answer_and_doubles_nothing() {
    let fixture = SlackDaemonFixture::start("drafts = false").await;
    fixture.slack.inject_fault("chat.postMessage", FakeSlackFault::RateLimited(1));
    fixture.base.model.script(ScriptedResponse::text("Here."));
    let begun = Instant::now();
    let asked = fixture.post_message("hello");
    fixture.wait_reactions(&asked, &["white_check_mark"]).await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    let state = fixture.slack.state();
    assert_eq!(state.call_count("chat.postMessage"), 2);
    assert_eq!(fixture.bot_texts(&state), ["Here."]);

    // Slack has no idempotency keys: a message that may have been shown is not sent again, and the user is told.
    fixture.slack.inject_fault("chat.postMessage", FakeSlackFault::LoseAnswer);
    fixture.base.model.script(ScriptedResponse::text("There."));
    let asked = fixture.post_message("and now?");
    fixture.wait_reactions(&asked, &["warning"]).await;
    let texts = fixture.bot_texts(&fixture.slack.state());
    assert_eq!(texts.iter().filter(|text| *text == "There.").count(), 1, "{texts:?}");
    assert!(texts.last().unwrap().contains("not known whether all of the answer is shown"), "{texts:?}");
}
