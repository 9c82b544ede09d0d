//! Networks on which an answer grows in a draft, Discord and Slack: growing drafts, reactions, stops from the chat, lost
//! connections. Each test here runs on both.

use std::time::Instant;

use quell_testkit::model::{ScriptedResponse, ScriptedStream};
use quell_testkit::networks::discord::{DiscordRoute, FakeDiscord, FakeDiscordMessage, FakeDiscordState, TOKEN};
use quell_testkit::networks::slack::{APP_TOKEN, BOT, BOT_TOKEN, FakeSlack, FakeSlackMessage, FakeSlackState};
use rstest::rstest;

use super::{CLOSED_WITHIN, ChannelDaemonFixture};
use crate::test_engine::ProcessLock;

#[derive(Debug, Clone, Copy)]
enum NetworkKind {
    Discord,
    Slack,
}

pub(super) enum DraftNetwork {
    Discord(FakeDiscord),
    Slack(FakeSlack),
}

#[derive(Debug, Clone)]
pub(super) struct ShownMessage {
    id: String,
    by_bot: bool,
    pub(super) text: String,
    edits: usize,
    reactions: Vec<String>,
}

/// A network with a channel, an allowed user, and a daemon whose bot is in the channel.
pub(super) struct DraftNetworkFixture {
    network: DraftNetwork,
    pub(super) channel: String,
    pub(super) ann: String,
    /// The bot's reactions to a message: at work, answered, stopped.
    reactions: [&'static str; 3],
    pub(super) base: ChannelDaemonFixture,
}

impl DraftNetworkFixture {
    async fn start(kind: NetworkKind, more: &str) -> Self {
        match kind {
            NetworkKind::Discord => Self::start_discord(more).await,
            NetworkKind::Slack => Self::start_slack(more).await,
        }
    }

    /// Starts with more keys of `[channels.discord]` and waits for the gateway session. Discord keeps no events for an
    /// account without a session.
    pub(super) async fn start_discord(more: &str) -> Self {
        let process_lock = ProcessLock::shared().await;
        let discord = FakeDiscord::start().await;
        let (channel, ann) = (discord.add_channel(), discord.add_person("ann"));
        let section = format!(
            "[channels.discord]\nkind = \"discord\"\napi_base = \"{}\"\ntoken_env = \"TOKEN\"\nallow = [\"{ann}\"]\n{more}\n",
            discord.base_url()
        );
        let base = ChannelDaemonFixture::start(process_lock, &section, TOKEN).await;
        discord.wait_for("a session", |it| it.identified == 1).await;
        Self { network: DraftNetwork::Discord(discord), channel, ann, reactions: ["👀", "✅", "⏹"], base }
    }

    /// Starts with more keys of `[channels.slack]` and waits for the connection.
    pub(super) async fn start_slack(more: &str) -> Self {
        let process_lock = ProcessLock::shared().await;
        let slack = FakeSlack::start().await;
        let (channel, ann) = (slack.add_channel(), slack.add_person("ann"));
        let section = format!(
            "[channels.slack]\nkind = \"slack\"\napi_base = \"{}\"\ntoken_env = \"TOKEN\"\napp_token_env = \"APP_TOKEN\"\n\
             allow = [\"{ann}\"]\n{more}\n",
            slack.base_url()
        );
        let tokens = [("TOKEN", BOT_TOKEN), ("APP_TOKEN", APP_TOKEN)];
        let base = ChannelDaemonFixture::start_with_tokens(process_lock, &section, &tokens).await;
        slack.wait_for("a connection", |it| it.connections == 1).await;
        let reactions = ["eyes", "white_check_mark", "black_square_for_stop"];
        Self { network: DraftNetwork::Slack(slack), channel, ann, reactions, base }
    }

    pub(super) fn discord(&self) -> &FakeDiscord {
        let DraftNetwork::Discord(discord) = &self.network else { panic!("not on Discord") };
        discord
    }

    pub(super) fn slack(&self) -> &FakeSlack {
        let DraftNetwork::Slack(slack) = &self.network else { panic!("not on Slack") };
        slack
    }

    /// The allowed user writes in the channel; returns the id of the message.
    pub(super) fn post_message(&self, text: &str) -> String {
        match &self.network {
            DraftNetwork::Discord(discord) => discord.post_message(&self.channel, &self.ann, text),
            DraftNetwork::Slack(slack) => slack.post_message(&self.channel, &self.ann, text),
        }
    }

    /// Waits until the messages of the channel fit; returns them.
    async fn wait_messages(&self, what: &str, fit: impl Fn(&[ShownMessage]) -> bool) -> Vec<ShownMessage> {
        match &self.network {
            DraftNetwork::Discord(discord) => {
                let shown = |state: &FakeDiscordState| discord_messages(state, &self.channel, &discord.bot_id());
                shown(&discord.wait_for(what, |state| fit(&shown(state))).await)
            }
            DraftNetwork::Slack(slack) => {
                let shown = |state: &FakeSlackState| slack_messages(state, &self.channel);
                shown(&slack.wait_for(what, |state| fit(&shown(state))).await)
            }
        }
    }

    pub(super) async fn bot_messages(&self) -> Vec<ShownMessage> {
        self.wait_messages("the channel", |_| true).await.into_iter().filter(|message| message.by_bot).collect()
    }

    pub(super) async fn wait_texts(&self, texts: &[&str]) {
        let fit = |shown: &[ShownMessage]| shown.iter().filter(|it| it.by_bot).map(|it| &it.text).eq(texts);
        self.wait_messages("all that was said", fit).await;
    }

    /// Waits until a message of the bot contains this text, and returns it.
    pub(super) async fn wait_text_containing(&self, part: &str) -> ShownMessage {
        let fits = |message: &ShownMessage| message.by_bot && message.text.contains(part);
        let shown = self.wait_messages(part, |shown| shown.iter().any(fits)).await;
        shown.into_iter().find(fits).unwrap()
    }

    /// Waits until this is the only reaction to a message of the channel.
    pub(super) async fn wait_reaction(&self, message: &str, reaction: &str) {
        let fits = |it: &ShownMessage| it.id == message && it.reactions == [reaction];
        self.wait_messages(reaction, |shown| shown.iter().any(fits)).await;
    }

    /// Asks a question whose answer begins with "One" and ends with " more." when the gate `end` opens.
    pub(super) async fn start_gated_answer(&self) {
        self.base.model.script(ScriptedStream::new().text("One").wait_for_gate("end").text(" more."));
        self.post_message("first");
        self.wait_texts(&["One"]).await;
    }

    /// Waits until the bot's reaction to a message says that it is answered.
    pub(super) async fn wait_answered(&self, message: &str) {
        self.wait_reaction(message, self.reactions[1]).await;
    }
}

impl Drop for DraftNetworkFixture {
    fn drop(&mut self) {
        let errors = match &self.network {
            DraftNetwork::Discord(discord) => discord.state().client_errors,
            DraftNetwork::Slack(slack) => slack.state().client_errors,
        };
        assert!(errors.is_empty() || std::thread::panicking(), "{errors:?}");
    }
}

fn discord_messages(state: &FakeDiscordState, channel: &str, bot: &str) -> Vec<ShownMessage> {
    let messages = state.chat_data.channel(channel).map(|channel| channel.messages.clone()).unwrap_or_default();
    let show = |FakeDiscordMessage { id, author, text, edits, reactions, .. }| ShownMessage {
        id,
        by_bot: author == bot,
        text,
        edits,
        reactions,
    };
    messages.into_iter().map(show).collect()
}

fn slack_messages(state: &FakeSlackState, channel: &str) -> Vec<ShownMessage> {
    let messages = state.chat_data.messages(channel).iter().cloned();
    let show = |FakeSlackMessage { ts, author, text, edits, reactions, .. }| ShownMessage {
        id: ts,
        by_bot: author == BOT,
        text,
        edits,
        reactions,
    };
    messages.map(show).collect()
}

/// True when the bot was shown as typing after the last call of this route.
fn typing_after_call(state: &FakeDiscordState, route: DiscordRoute) -> bool {
    let last = |of: DiscordRoute| state.calls.iter().rposition(|call| call.route == of);
    last(route).is_some_and(|at| last(DiscordRoute::Typing).is_some_and(|typed| typed > at))
}

// Slack sends two events for a message that mentions an app in its channel.
#[rstest]
#[case::discord(NetworkKind::Discord, "hello", "**day**, @everyone", "**day**, @\u{200b}everyone")]
#[case::slack(NetworkKind::Slack, "<@U0QUELL> hello", "**day**, @here", "*day*, @\u{200b}here")]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_grows_in_one_message_and_is_signed(
    #[case] kind: NetworkKind,
    #[case] question: &str,
    #[case] last_words: &str,
    #[case] shown: &str,
) {
    let fixture = DraftNetworkFixture::start(kind, "").await;
    let answer = ScriptedStream::new().text("Good ").wait_for_gate("more").text("bright ").wait_for_gate("rest");
    fixture.base.model.script(answer.text(last_words));
    let asked = fixture.post_message(question);
    fixture.wait_texts(&["Good"]).await;
    fixture.wait_reaction(&asked, fixture.reactions[0]).await;
    if let DraftNetwork::Discord(discord) = &fixture.network {
        // A new message clears the typing indicator, so it must be sent again after the draft.
        discord.wait_for("somebody who is still writing", |it| typing_after_call(it, DiscordRoute::Send)).await;
    }
    fixture.base.model.open_gate("more");
    fixture.wait_texts(&["Good bright"]).await;
    fixture.base.model.open_gate("rest");
    // The zero-width space keeps the word from notifying everyone.
    fixture.wait_texts(&[&format!("Good bright {shown}")]).await;
    fixture.wait_answered(&asked).await;
    let messages = fixture.bot_messages().await;
    assert!(messages[0].edits >= 2, "{messages:?}");
    let sent = match &fixture.network {
        DraftNetwork::Discord(discord) => {
            let state = discord.state();
            assert!(!typing_after_call(&state, DiscordRoute::Edit), "the bot is still shown as typing");
            assert!(discord.messages(&fixture.channel).iter().all(|message| message.pinged.is_empty()));
            state.call_count(DiscordRoute::Send)
        }
        DraftNetwork::Slack(slack) => slack.state().call_count("chat.postMessage"),
    };
    assert_eq!(sent, 1, "the answer must replace the draft");
    assert_eq!(fixture.base.model.request_count(), 1, "a duplicate event got a second answer");
    let request = fixture.base.model.request_at(0).wait_arrived().await;
    assert!(request.last_user_text.ends_with("hello"), "{}", request.last_user_text);
}

#[rstest]
#[case::discord(NetworkKind::Discord)]
#[case::slack(NetworkKind::Slack)]
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_from_the_chat_ends_the_run_and_says_so(#[case] kind: NetworkKind) {
    let fixture = DraftNetworkFixture::start(kind, "").await;
    fixture.base.model.script(ScriptedResponse::silent_mid_stream("I have begun"));
    let asked = fixture.post_message("write a book");
    fixture.wait_texts(&["I have begun"]).await;
    let begun = Instant::now();
    match &fixture.network {
        DraftNetwork::Discord(_) => drop(fixture.post_message("/stop")),
        // Slack's clients send a text that begins with a slash as a command, not as a message.
        DraftNetwork::Slack(slack) => slack.send_slash_command(&fixture.channel, &fixture.ann, "/stop", ""),
    }
    fixture.base.model.request_at(0).wait_client_left().await;
    assert!(begun.elapsed() < CLOSED_WITHIN, "{:?}", begun.elapsed());
    for part in ["Stopping your request.", "⏹ stopped in", "I have begun\n\n⏹ Stopped."] {
        fixture.wait_text_containing(part).await;
    }
    fixture.wait_reaction(&asked, fixture.reactions[2]).await;
    if let DraftNetwork::Discord(discord) = &fixture.network {
        assert!(!typing_after_call(&discord.state(), DiscordRoute::Edit), "the bot is still shown as typing");
    }

    // The next message works, and the model learns of the stop.
    fixture.base.model.script(ScriptedResponse::text("Here I am."));
    let next = fixture.post_message("and now?");
    fixture.wait_text_containing("Here I am.").await;
    fixture.wait_answered(&next).await;
    assert_eq!(fixture.bot_messages().await.len(), 4, "a draft, two stop messages, and an answer");
    fixture.base.assert_stop_told(1).await;
}

#[rstest]
#[case::discord(NetworkKind::Discord)]
#[case::slack(NetworkKind::Slack)]
#[tokio::test(flavor = "multi_thread")]
async fn a_new_message_interrupts_and_is_answered_instead(#[case] kind: NetworkKind) {
    let fixture = DraftNetworkFixture::start(kind, "interrupt_on_new_message = true").await;
    fixture.base.model.script(ScriptedResponse::silent_mid_stream("First"));
    let first = fixture.post_message("one");
    fixture.wait_texts(&["First"]).await;
    fixture.base.model.script(ScriptedResponse::text("Second."));
    let second = fixture.post_message("two");
    fixture.base.model.request_at(0).wait_client_left().await;
    fixture.wait_text_containing("Second.").await;
    fixture.wait_answered(&second).await;
    fixture.wait_reaction(&first, fixture.reactions[2]).await;
    fixture.wait_texts(&["First\n\n⏹ Stopped: you wrote again.", "Second."]).await;
    assert_eq!(fixture.base.model.request_count(), 2);
}

#[rstest]
#[case::discord(NetworkKind::Discord)]
#[case::slack(NetworkKind::Slack)]
#[tokio::test(flavor = "multi_thread")]
async fn a_message_during_a_lost_connection_is_answered_once(#[case] kind: NetworkKind) {
    let fixture = DraftNetworkFixture::start(kind, "").await;
    fixture.start_gated_answer().await;
    match &fixture.network {
        DraftNetwork::Discord(discord) => {
            discord.drop_connections();
            discord.wait_for("nobody who listens", |it| it.connections == 0).await;
        }
        DraftNetwork::Slack(slack) => {
            slack.drop_connections();
            slack.wait_for("nobody who listens", |it| it.connections == 0).await;
        }
    }
    fixture.base.model.script(ScriptedResponse::text("Two."));
    fixture.post_message("second");
    // The answer is sent over HTTP, with or without that connection.
    fixture.base.model.open_gate("end");
    fixture.wait_text_containing("One more.").await;
    fixture.wait_texts(&["One more.", "Two."]).await;
    if let DraftNetwork::Slack(slack) = &fixture.network {
        // Slack resends an event that it takes for unacknowledged.
        slack.resend_last_event();
    }
    // A second answer to an earlier message would have come before this one.
    fixture.base.model.script(ScriptedResponse::text("Three."));
    fixture.post_message("third");
    fixture.wait_texts(&["One more.", "Two.", "Three."]).await;
    assert_eq!(fixture.base.model.request_count(), 3);
    match &fixture.network {
        DraftNetwork::Discord(discord) => {
            let state = discord.state();
            assert_eq!((state.identified, state.resumed), (1, 1), "the gateway session was not resumed");
        }
        DraftNetwork::Slack(slack) => {
            slack.wait_for("acknowledgements of everything", |it| it.unacknowledged() == 0).await;
        }
    }
}
