//! Discord: drafts that grow, signs, stops from the chat, threads, and a gateway that breaks while an answer is made.

use std::time::{Duration, Instant};

use quell_testkit::model::{Behaviour, Stream};
use quell_testkit::networks::discord::{FakeDiscord, Fault, Message, Route, Scope, State, TOKEN};

use super::{CLOSED_WITHIN, House};
use crate::harness::Claim;

/// Discord, a channel of a guild, and a person who may write there.
struct Stage {
    discord: FakeDiscord,
    channel: String,
    ann: String,
    house: House,
}

impl Stage {
    /// With more keys of `[channels.discord]`. Discord keeps nothing for an account that has no session yet, so it has one when
    /// this returns.
    async fn open(more: &str) -> Self {
        let claim = Claim::shared().await;
        let discord = FakeDiscord::start().await;
        let (channel, ann) = (discord.channel(), discord.person("ann"));
        let section = format!(
            "[channels.discord]\nkind = \"discord\"\napi_base = \"{}\"\ntoken_env = \"TOKEN\"\nallow = [\"{ann}\"]\n{more}\n",
            discord.base_url()
        );
        let house = House::open(claim, &section, TOKEN).await;
        discord.wait_for("a session", |it| it.identified == 1).await;
        Self { discord, channel, ann, house }
    }

    fn say(&self, text: &str) -> String {
        self.discord.say(&self.channel, &self.ann, text)
    }

    /// Waits until the account's messages in the channel are these.
    async fn shows(&self, texts: &[&str]) {
        self.discord.wait_for("all that was said", |it| self.said(it) == texts).await;
    }

    /// Waits until the account has said something in which this stands.
    async fn shows_part(&self, part: &str) {
        self.discord.wait_for(part, |it| self.said(it).iter().any(|text| text.contains(part))).await;
    }

    /// Waits until a message of the channel bears these signs.
    async fn signed(&self, message: &str, signs: &[&str]) {
        let is_signed = |it: &State| it.world.message(&self.channel, message).is_some_and(|it| it.reactions == signs);
        self.discord.wait_for("the signs", is_signed).await;
    }

    fn said(&self, state: &State) -> Vec<String> {
        self.said_in(state, &self.channel).into_iter().map(|message| message.text).collect()
    }

    fn said_in(&self, state: &State, channel: &str) -> Vec<Message> {
        let messages = state.world.channel(channel).map(|channel| channel.messages.clone()).unwrap_or_default();
        messages.into_iter().filter(|message| message.author == self.discord.bot()).collect()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let complaints = self.discord.state().complaints;
        assert!(complaints.is_empty() || std::thread::panicking(), "{complaints:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_grows_in_one_message_and_is_signed() {
    let stage = Stage::open("").await;
    let answer =
        Stream::new().text("Good ").wait_for("more").text("bright ").wait_for("rest").text("**day**, @everyone");
    stage.house.model.script(answer);
    let asked = stage.say("hello");
    stage.shows(&["Good"]).await;
    stage.signed(&asked, &["👀"]).await;
    // A message takes the sign away that somebody is writing, so it is shown again after the draft.
    stage.discord.wait_for("somebody who is still writing", |it| typed_after(it, Route::Send)).await;
    stage.house.model.open_gate("more");
    stage.shows(&["Good bright"]).await;
    stage.house.model.open_gate("rest");
    // The space without width is what keeps the word from calling people.
    stage.shows(&["Good bright **day**, @\u{200b}everyone"]).await;
    stage.signed(&asked, &["✅"]).await;
    let state = stage.discord.state();
    let said = stage.said_in(&state, &stage.channel);
    assert!(said[0].edits >= 2 && said[0].pinged.is_empty(), "{said:?}");
    assert_eq!(state.called(Route::Send), 1, "the answer is the draft");
    assert!(!typed_after(&state, Route::Edit), "nobody is writing any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_from_the_chat_ends_the_run_and_says_so() {
    let stage = Stage::open("").await;
    stage.house.model.script(Behaviour::silent_mid_stream("I have begun"));
    let asked = stage.say("write a book");
    stage.shows(&["I have begun"]).await;
    let begun = Instant::now();
    stage.say("/stop");
    stage.house.model.request(0).client_left().await;
    assert!(begun.elapsed() < CLOSED_WITHIN, "{:?}", begun.elapsed());
    for part in ["Stopping your request.", "⏹ stopped in", "I have begun\n\n⏹ Stopped."] {
        stage.shows_part(part).await;
    }
    stage.signed(&asked, &["⏹"]).await;
    assert!(!typed_after(&stage.discord.state(), Route::Edit), "nobody is writing any more");

    // The next message works, and the model is told.
    stage.house.model.script(Behaviour::text("Here I am."));
    let next = stage.say("and now?");
    stage.shows_part("Here I am.").await;
    stage.signed(&next, &["✅"]).await;
    assert_eq!(stage.said(&stage.discord.state()).len(), 4, "a draft, two words of the stop, and an answer");
    stage.house.model.assert_histories_valid();
    let request = stage.house.model.request(1).arrived().await;
    assert!(request.body.to_string().contains("was stopped on purpose by the user"), "{}", request.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_message_interrupts_and_is_answered_instead() {
    let stage = Stage::open("interrupt_on_new_message = true").await;
    stage.house.model.script(Behaviour::silent_mid_stream("First"));
    let first = stage.say("one");
    stage.shows(&["First"]).await;
    stage.house.model.script(Behaviour::text("Second."));
    let second = stage.say("two");
    stage.house.model.request(0).client_left().await;
    stage.shows_part("Second.").await;
    stage.signed(&second, &["✅"]).await;
    stage.signed(&first, &["⏹"]).await;
    stage.shows(&["First\n\n⏹ Stopped: you wrote again.", "Second."]).await;
    assert_eq!(stage.house.model.request_count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_in_a_thread_leaves_its_channel_alone() {
    let stage = Stage::open("").await;
    let thread = stage.discord.thread(&stage.channel);
    stage.house.model.script(Stream::new().text("Of ").wait_for("end").text("the channel."));
    stage.say("a question");
    stage.shows(&["Of"]).await;
    stage.house.model.script(Behaviour::silent_mid_stream("Of the thread"));
    stage.discord.say(&thread, &stage.ann, "another one");
    stage.house.model.request(1).streaming().await;
    stage.discord.say(&thread, &stage.ann, "/stop");
    stage.house.model.request(1).client_left().await;
    let has_receipt = |it: &State| stage.said_in(it, &thread).iter().any(|it| it.text.starts_with("⏹ stopped in"));
    stage.discord.wait_for("the receipt in the thread", has_receipt).await;
    assert!(stage.house.model.request(0).arrived().await.progress().client_left.is_none());
    stage.house.model.open_gate("end");
    stage.shows(&["Of the channel."]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_while_the_gateway_is_away_is_answered_once() {
    let stage = Stage::open("").await;
    stage.house.model.script(Stream::new().text("One").wait_for("end").text(" more."));
    stage.say("first");
    stage.shows(&["One"]).await;
    stage.discord.drop_connections();
    stage.discord.wait_for("nobody who listens", |it| it.connections == 0).await;
    stage.house.model.script(Behaviour::text("Two."));
    stage.say("second");
    // The answer goes its own way, whether or not somebody listens.
    stage.house.model.open_gate("end");
    stage.shows_part("One more.").await;
    stage.shows(&["One more.", "Two."]).await;
    // Whatever would come a second time would have come before this.
    stage.house.model.script(Behaviour::text("Three."));
    stage.say("third");
    stage.shows(&["One more.", "Two.", "Three."]).await;
    assert_eq!(stage.house.model.request_count(), 3);
    let state = stage.discord.state();
    assert_eq!((state.identified, state.resumed), (1, 1), "the session goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_survives_the_end_of_the_session() {
    let stage = Stage::open("").await;
    stage.house.model.script(Stream::new().text("One").wait_for("end").text(" more."));
    stage.say("first");
    stage.shows(&["One"]).await;
    stage.discord.end_sessions();
    stage.discord.wait_for("another session", |it| it.identified == 2).await;
    stage.house.model.open_gate("end");
    stage.shows(&["One more."]).await;
    stage.house.model.script(Behaviour::text("Two."));
    stage.say("second");
    stage.shows(&["One more.", "Two."]).await;
    assert_eq!(stage.house.model.request_count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_that_is_refused_or_lost_delays_the_answer_and_doubles_nothing() {
    let stage = Stage::open("drafts = false").await;
    let after = Duration::from_secs(1);
    stage.discord.fault(Route::Send, Fault::RateLimited { after, scope: Scope::User });
    stage.discord.fault(Route::Send, Fault::LoseAnswer);
    stage.house.model.script(Behaviour::text("Here."));
    let begun = Instant::now();
    let asked = stage.say("hello");
    stage.shows(&["Here."]).await;
    assert!(begun.elapsed() >= after, "{:?}", begun.elapsed());
    // The one whose answer was lost is sent again with its nonce, by which Discord knows it.
    stage.signed(&asked, &["✅"]).await;
    let state = stage.discord.state();
    assert_eq!(state.called(Route::Send), 3);
    assert_eq!(stage.said(&state), ["Here."]);
}

/// True when somebody was shown to be typing after the last call of a route.
fn typed_after(state: &State, route: Route) -> bool {
    let last = |of: Route| state.calls.iter().rposition(|call| call.route == of);
    last(route).is_some_and(|at| last(Route::Typing).is_some_and(|typed| typed > at))
}
