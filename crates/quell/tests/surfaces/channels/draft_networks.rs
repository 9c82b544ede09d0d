//! Networks on which an answer grows in a draft, Discord and Slack: growing drafts, reactions, stops from the chat.

use quell_testkit::model::{ScriptedResponse, ScriptedStream};
use quell_testkit::networks::discord::{DiscordRoute, FakeDiscord, FakeDiscordMessage, FakeDiscordState, TOKEN};
use quell_testkit::networks::slack::{APP_TOKEN, BOT, BOT_TOKEN, FakeSlack, FakeSlackMessage, FakeSlackState};
use rstest::rstest;

use super::ChannelDaemonFixture;
use crate::test_engine::ProcessLock;

#[derive(Debug, Clone, Copy)]
enum NetworkKind {
    Discord,
    Slack,
}

enum DraftNetwork {
    Discord(FakeDiscord),
    Slack(FakeSlack),
}

#[derive(Debug, Clone)]
struct ShownMessage {
    id: String,
    by_bot: bool,
    text: String,
    edits: usize,
    reactions: Vec<String>,
}

/// A network with a channel, an allowed user, and a daemon whose bot is in the channel.
struct DraftNetworkFixture {
    network: DraftNetwork,
    channel: String,
    ann: String,
    /// The bot's reactions to a message: at work, answered, stopped.
    reactions: [&'static str; 3],
    base: ChannelDaemonFixture,
}

impl DraftNetworkFixture {
    async fn start(kind: NetworkKind) -> Self {
        match kind {
            NetworkKind::Discord => Self::start_discord().await,
            NetworkKind::Slack => Self::start_slack("").await,
        }
    }

    /// Waits for the gateway session: Discord keeps no events for an account without one.
    async fn start_discord() -> Self {
        let process_lock = ProcessLock::shared().await;
        let discord = FakeDiscord::start().await;
        let (channel, ann) = (discord.add_channel(), discord.add_person("ann"));
        let section = format!(
            "[channels.discord]\nkind = \"discord\"\napi_base = \"{}\"\ntoken_env = \"TOKEN\"\nallow = [\"{ann}\"]\n",
            discord.base_url()
        );
        let base = ChannelDaemonFixture::start(process_lock, &section, TOKEN).await;
        discord.wait_for("a session", |it| it.identified == 1).await;
        Self { network: DraftNetwork::Discord(discord), channel, ann, reactions: ["👀", "✅", "⏹"], base }
    }

    /// With more settings of the channel.
    async fn start_slack(more: &str) -> Self {
        let process_lock = ProcessLock::shared().await;
        let slack = FakeSlack::start().await;
        let (channel, ann) = (slack.add_channel(), slack.add_person("ann"));
        let section = format!(
            "[channels.slack]\nkind = \"slack\"\napi_base = \"{}\"\ntoken_env = \"TOKEN\"\napp_token_env = \"APP_TOKEN\"\n\
             allow = [\"{ann}\"]\n{more}",
            slack.base_url()
        );
        let tokens = [("TOKEN", BOT_TOKEN), ("APP_TOKEN", APP_TOKEN)];
        let base = ChannelDaemonFixture::start_with_tokens(process_lock, &section, &tokens).await;
        slack.wait_for("a connection", |it| it.connections == 1).await;
        let reactions = ["eyes", "white_check_mark", "black_square_for_stop"];
        Self { network: DraftNetwork::Slack(slack), channel, ann, reactions, base }
    }

    /// The allowed user writes in the channel; returns the id of the message.
    fn post_message(&self, text: &str) -> String {
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

    async fn bot_messages(&self) -> Vec<ShownMessage> {
        self.wait_messages("the channel", |_| true).await.into_iter().filter(|message| message.by_bot).collect()
    }

    async fn wait_texts(&self, texts: &[&str]) {
        let fit = |shown: &[ShownMessage]| shown.iter().filter(|it| it.by_bot).map(|it| &it.text).eq(texts);
        self.wait_messages("all that was said", fit).await;
    }

    /// Waits until a message of the bot contains this text, and returns it.
    async fn wait_text_containing(&self, part: &str) -> ShownMessage {
        let fits = |message: &ShownMessage| message.by_bot && message.text.contains(part);
        let shown = self.wait_messages(part, |shown| shown.iter().any(fits)).await;
        shown.into_iter().find(fits).unwrap()
    }

    /// Waits until this is the only reaction to a message of the channel.
    async fn wait_reaction(&self, message: &str, reaction: &str) {
        let fits = |it: &ShownMessage| it.id == message && it.reactions == [reaction];
        self.wait_messages(reaction, |shown| shown.iter().any(fits)).await;
    }

    /// Waits until the bot's reaction to a message says that it is answered.
    async fn wait_answered(&self, message: &str) {
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
    let fixture = DraftNetworkFixture::start(kind).await;
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
    let fixture = DraftNetworkFixture::start(kind).await;
    fixture.base.model.script(ScriptedResponse::silent_mid_stream("I have begun"));
    let asked = fixture.post_message("write a book");
    fixture.wait_texts(&["I have begun"]).await;
    match &fixture.network {
        DraftNetwork::Discord(_) => drop(fixture.post_message("/stop")),
        // Slack's clients send a text that begins with a slash as a command, not as a message.
        DraftNetwork::Slack(slack) => slack.send_slash_command(&fixture.channel, &fixture.ann, "/stop", ""),
    }
    fixture.base.model.request_at(0).wait_client_left().await;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_in_one_thread_leaves_the_other_alone() {
    // A thread is a conversation of its own, so a message there does not interrupt another thread.
    let fixture = DraftNetworkFixture::start_slack("interrupt_on_new_message = true\n").await;
    let DraftNetwork::Slack(slack) = &fixture.network else { panic!("not on Slack") };
    let bob = slack.add_person("bob");
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
