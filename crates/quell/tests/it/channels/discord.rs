//! Discord: growing drafts, reactions, stops from the chat, threads, lost gateway connections.

use std::time::{Duration, Instant};

use quell_testkit::model::{ScriptedResponse, ScriptedStream};
use quell_testkit::networks::discord::{
    DiscordRoute, FakeDiscord, FakeDiscordFault, FakeDiscordMessage, FakeDiscordState, RateLimitScope, TOKEN,
};

use super::{CLOSED_WITHIN, ChannelDaemonFixture};
use crate::test_engine::ProcessLock;

/// Discord, a channel of a guild, and an allowed user.
struct DiscordDaemonFixture {
    discord: FakeDiscord,
    channel: String,
    ann: String,
    base: ChannelDaemonFixture,
}

impl DiscordDaemonFixture {
    /// Starts with more keys of `[channels.discord]` and waits for the gateway session. Discord keeps no events for an
    /// account without a session.
    async fn start(more: &str) -> Self {
        let process_lock = ProcessLock::shared().await;
        let discord = FakeDiscord::start().await;
        let (channel, ann) = (discord.add_channel(), discord.add_person("ann"));
        let section = format!(
            "[channels.discord]\nkind = \"discord\"\napi_base = \"{}\"\ntoken_env = \"TOKEN\"\nallow = [\"{ann}\"]\n{more}\n",
            discord.base_url()
        );
        let fixture = ChannelDaemonFixture::start(process_lock, &section, TOKEN).await;
        discord.wait_for("a session", |it| it.identified == 1).await;
        Self { discord, channel, ann, base: fixture }
    }

    fn post_message(&self, text: &str) -> String {
        self.discord.post_message(&self.channel, &self.ann, text)
    }

    /// Waits until these are the bot's messages in the channel.
    async fn wait_texts(&self, texts: &[&str]) {
        self.discord.wait_for("all that was said", |it| self.bot_texts(it) == texts).await;
    }

    /// Waits until a message of the bot contains this text.
    async fn wait_text_containing(&self, part: &str) {
        self.discord.wait_for(part, |it| self.bot_texts(it).iter().any(|text| text.contains(part))).await;
    }

    /// Waits until a message of the channel has these reactions.
    async fn wait_reactions(&self, message: &str, signs: &[&str]) {
        let is_signed = |it: &FakeDiscordState| {
            it.chat_data.message(&self.channel, message).is_some_and(|it| it.reactions == signs)
        };
        self.discord.wait_for("the signs", is_signed).await;
    }

    fn bot_texts(&self, state: &FakeDiscordState) -> Vec<String> {
        self.bot_messages_in(state, &self.channel).into_iter().map(|message| message.text).collect()
    }

    fn bot_messages_in(&self, state: &FakeDiscordState, channel: &str) -> Vec<FakeDiscordMessage> {
        let messages = state.chat_data.channel(channel).map(|channel| channel.messages.clone()).unwrap_or_default();
        messages.into_iter().filter(|message| message.author == self.discord.bot_id()).collect()
    }
}

impl Drop for DiscordDaemonFixture {
    fn drop(&mut self) {
        let complaints = self.discord.state().client_errors;
        assert!(complaints.is_empty() || std::thread::panicking(), "{complaints:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_grows_in_one_message_and_is_signed() {
    let fixture = DiscordDaemonFixture::start("").await;
    let answer = ScriptedStream::new()
        .text("Good ")
        .wait_for_gate("more")
        .text("bright ")
        .wait_for_gate("rest")
        .text("**day**, @everyone");
    fixture.base.model.script(answer);
    let asked = fixture.post_message("hello");
    fixture.wait_texts(&["Good"]).await;
    fixture.wait_reactions(&asked, &["👀"]).await;
    // A new message clears the typing indicator, so it must be sent again after the draft.
    fixture.discord.wait_for("somebody who is still writing", |it| typing_after_call(it, DiscordRoute::Send)).await;
    fixture.base.model.open_gate("more");
    fixture.wait_texts(&["Good bright"]).await;
    fixture.base.model.open_gate("rest");
    // The zero-width space keeps the word from notifying everyone.
    fixture.wait_texts(&["Good bright **day**, @\u{200b}everyone"]).await;
    fixture.wait_reactions(&asked, &["✅"]).await;
    let state = fixture.discord.state();
    let messages = fixture.bot_messages_in(&state, &fixture.channel);
    assert!(messages[0].edits >= 2 && messages[0].pinged.is_empty(), "{messages:?}");
    assert_eq!(state.call_count(DiscordRoute::Send), 1, "the answer must replace the draft");
    assert!(!typing_after_call(&state, DiscordRoute::Edit), "the bot is still shown as typing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_from_the_chat_ends_the_run_and_says_so() {
    let fixture = DiscordDaemonFixture::start("").await;
    fixture.base.model.script(ScriptedResponse::silent_mid_stream("I have begun"));
    let asked = fixture.post_message("write a book");
    fixture.wait_texts(&["I have begun"]).await;
    let begun = Instant::now();
    fixture.post_message("/stop");
    fixture.base.model.request_at(0).wait_client_left().await;
    assert!(begun.elapsed() < CLOSED_WITHIN, "{:?}", begun.elapsed());
    for part in ["Stopping your request.", "⏹ stopped in", "I have begun\n\n⏹ Stopped."] {
        fixture.wait_text_containing(part).await;
    }
    fixture.wait_reactions(&asked, &["⏹"]).await;
    assert!(!typing_after_call(&fixture.discord.state(), DiscordRoute::Edit), "the bot is still shown as typing");

    // The next message works, and the model learns of the stop.
    fixture.base.model.script(ScriptedResponse::text("Here I am."));
    let next = fixture.post_message("and now?");
    fixture.wait_text_containing("Here I am.").await;
    fixture.wait_reactions(&next, &["✅"]).await;
    assert_eq!(fixture.bot_texts(&fixture.discord.state()).len(), 4, "a draft, two stop messages, and an answer");
    fixture.base.model.assert_histories_valid();
    let request = fixture.base.model.request_at(1).wait_arrived().await;
    assert!(request.body.to_string().contains("was stopped on purpose by the user"), "{}", request.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_message_interrupts_and_is_answered_instead() {
    let fixture = DiscordDaemonFixture::start("interrupt_on_new_message = true").await;
    fixture.base.model.script(ScriptedResponse::silent_mid_stream("First"));
    let first = fixture.post_message("one");
    fixture.wait_texts(&["First"]).await;
    fixture.base.model.script(ScriptedResponse::text("Second."));
    let second = fixture.post_message("two");
    fixture.base.model.request_at(0).wait_client_left().await;
    fixture.wait_text_containing("Second.").await;
    fixture.wait_reactions(&second, &["✅"]).await;
    fixture.wait_reactions(&first, &["⏹"]).await;
    fixture.wait_texts(&["First\n\n⏹ Stopped: you wrote again.", "Second."]).await;
    assert_eq!(fixture.base.model.request_count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_in_a_thread_leaves_its_channel_alone() {
    let fixture = DiscordDaemonFixture::start("").await;
    let thread = fixture.discord.add_thread(&fixture.channel);
    fixture.base.model.script(ScriptedStream::new().text("Of ").wait_for_gate("end").text("the channel."));
    fixture.post_message("a question");
    fixture.wait_texts(&["Of"]).await;
    fixture.base.model.script(ScriptedResponse::silent_mid_stream("Of the thread"));
    fixture.discord.post_message(&thread, &fixture.ann, "another one");
    fixture.base.model.request_at(1).wait_streaming().await;
    fixture.discord.post_message(&thread, &fixture.ann, "/stop");
    fixture.base.model.request_at(1).wait_client_left().await;
    let has_receipt = |it: &FakeDiscordState| {
        fixture.bot_messages_in(it, &thread).iter().any(|it| it.text.starts_with("⏹ stopped in"))
    };
    fixture.discord.wait_for("the receipt in the thread", has_receipt).await;
    assert!(fixture.base.model.request_at(0).wait_arrived().await.progress().client_left.is_none());
    fixture.base.model.open_gate("end");
    fixture.wait_texts(&["Of the channel."]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_during_a_gateway_outage_is_answered_once() {
    let fixture = DiscordDaemonFixture::start("").await;
    fixture.base.model.script(ScriptedStream::new().text("One").wait_for_gate("end").text(" more."));
    fixture.post_message("first");
    fixture.wait_texts(&["One"]).await;
    fixture.discord.drop_connections();
    fixture.discord.wait_for("nobody who listens", |it| it.connections == 0).await;
    fixture.base.model.script(ScriptedResponse::text("Two."));
    fixture.post_message("second");
    // The answer is sent over REST, with or without a gateway connection.
    fixture.base.model.open_gate("end");
    fixture.wait_text_containing("One more.").await;
    fixture.wait_texts(&["One more.", "Two."]).await;
    // A second answer to an earlier message would have come before this one.
    fixture.base.model.script(ScriptedResponse::text("Three."));
    fixture.post_message("third");
    fixture.wait_texts(&["One more.", "Two.", "Three."]).await;
    assert_eq!(fixture.base.model.request_count(), 3);
    let state = fixture.discord.state();
    assert_eq!((state.identified, state.resumed), (1, 1), "the gateway session was not resumed");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_survives_the_end_of_the_session() {
    let fixture = DiscordDaemonFixture::start("").await;
    fixture.base.model.script(ScriptedStream::new().text("One").wait_for_gate("end").text(" more."));
    fixture.post_message("first");
    fixture.wait_texts(&["One"]).await;
    fixture.discord.end_sessions();
    fixture.discord.wait_for("another session", |it| it.identified == 2).await;
    fixture.base.model.open_gate("end");
    fixture.wait_texts(&["One more."]).await;
    fixture.base.model.script(ScriptedResponse::text("Two."));
    fixture.post_message("second");
    fixture.wait_texts(&["One more.", "Two."]).await;
    assert_eq!(fixture.base.model.request_count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_that_is_refused_or_lost_delays_the_answer_and_doubles_nothing() {
    let fixture = DiscordDaemonFixture::start("drafts = false").await;
    let after = Duration::from_secs(1);
    fixture
        .discord
        .inject_fault(DiscordRoute::Send, FakeDiscordFault::RateLimited { after, scope: RateLimitScope::User });
    fixture.discord.inject_fault(DiscordRoute::Send, FakeDiscordFault::LoseAnswer);
    fixture.base.model.script(ScriptedResponse::text("Here."));
    let begun = Instant::now();
    let asked = fixture.post_message("hello");
    fixture.wait_texts(&["Here."]).await;
    assert!(begun.elapsed() >= after, "{:?}", begun.elapsed());
    // The send whose answer was lost is repeated with its nonce, so Discord deduplicates it.
    fixture.wait_reactions(&asked, &["✅"]).await;
    let state = fixture.discord.state();
    assert_eq!(state.call_count(DiscordRoute::Send), 3);
    assert_eq!(fixture.bot_texts(&state), ["Here."]);
}

/// True when the bot was shown as typing after the last call of this route.
fn typing_after_call(state: &FakeDiscordState, route: DiscordRoute) -> bool {
    let last = |of: DiscordRoute| state.calls.iter().rposition(|call| call.route == of);
    last(route).is_some_and(|at| last(DiscordRoute::Typing).is_some_and(|typed| typed > at))
}
