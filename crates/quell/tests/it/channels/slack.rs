//! Slack: drafts that grow, signs, stops from the chat, threads, and connections that break or are given up while an answer is
//! made.

use std::time::{Duration, Instant};

use quell_testkit::model::{Behaviour, Stream};
use quell_testkit::networks::slack::{APP_TOKEN, BOT, BOT_TOKEN, FakeSlack, Fault, Message, State};

use super::{CLOSED_WITHIN, House};
use crate::harness::Claim;

/// Slack, a channel with the app in it, a person who may write to it, and one to whom it does not listen.
struct Stage {
    slack: FakeSlack,
    channel: String,
    ann: String,
    bob: String,
    house: House,
}

impl Stage {
    /// With more keys of `[channels.slack]`.
    async fn open(more: &str) -> Self {
        let claim = Claim::shared().await;
        let slack = FakeSlack::start().await;
        let (channel, ann, bob) = (slack.channel(), slack.person("ann"), slack.person("bob"));
        let section = format!(
            "[channels.slack]\nkind = \"slack\"\napi_base = \"{}\"\ntoken_env = \"TOKEN\"\napp_token_env = \"APP_TOKEN\"\n\
             allow = [\"{ann}\"]\n{more}\n",
            slack.base_url()
        );
        let tokens = [("TOKEN", BOT_TOKEN), ("APP_TOKEN", APP_TOKEN)];
        let house = House::with_tokens(claim, &section, &tokens).await;
        slack.wait_for("a connection", |it| it.connections == 1).await;
        Self { slack, channel, ann, bob, house }
    }

    fn say(&self, text: &str) -> String {
        self.slack.say(&self.channel, &self.ann, text)
    }

    /// Waits until the app's messages in the channel are these.
    async fn shows(&self, texts: &[&str]) {
        self.slack.wait_for("all that was said", |it| self.said(it) == texts).await;
    }

    /// Waits until the app has said something in which this stands, and answers it.
    async fn shows_part(&self, part: &str) -> Message {
        let found = |it: &State| {
            let messages = it.world.messages(&self.channel).iter();
            messages.filter(|message| message.author == BOT).find(|message| message.text.contains(part)).cloned()
        };
        let state = self.slack.wait_for(part, |it| found(it).is_some()).await;
        found(&state).unwrap()
    }

    /// Waits until a message of the channel bears these signs.
    async fn signed(&self, message: &str, signs: &[&str]) {
        let is_signed = |it: &State| it.world.message(&self.channel, message).is_some_and(|it| it.reactions == signs);
        self.slack.wait_for("the signs", is_signed).await;
    }

    fn said(&self, state: &State) -> Vec<String> {
        let messages = state.world.messages(&self.channel).iter();
        messages.filter(|message| message.author == BOT).map(|message| message.text.clone()).collect()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let complaints = self.slack.state().complaints;
        assert!(complaints.is_empty() || std::thread::panicking(), "{complaints:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_grows_in_one_message_and_is_signed() {
    let stage = Stage::open("").await;
    let answer = Stream::new().text("Good ").wait_for("more").text("bright ").wait_for("rest").text("**day**, @here");
    stage.house.model.script(answer);
    // An app in the channel is told twice of a message that mentions it.
    let asked = stage.say(&format!("<@{BOT}> hello"));
    stage.shows(&["Good"]).await;
    stage.signed(&asked, &["eyes"]).await;
    stage.house.model.open_gate("more");
    stage.shows(&["Good bright"]).await;
    stage.house.model.open_gate("rest");
    // The space without width is what keeps the word from calling people.
    stage.shows(&["Good bright *day*, @\u{200b}here"]).await;
    stage.signed(&asked, &["white_check_mark"]).await;
    let state = stage.slack.state();
    assert_eq!(state.called("chat.postMessage"), 1, "the answer is the draft");
    assert_eq!(stage.house.model.request_count(), 1, "what is told twice is answered once");
    let request = stage.house.model.request(0).arrived().await;
    assert!(request.last_user_text.ends_with("hello"), "{}", request.last_user_text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_from_the_chat_ends_the_run_and_says_so() {
    let stage = Stage::open("").await;
    stage.house.model.script(Behaviour::silent_mid_stream("I have begun"));
    let asked = stage.say("write a book");
    stage.shows(&["I have begun"]).await;
    let begun = Instant::now();
    // Slack's clients send nothing that begins with a slash as a message.
    stage.slack.command(&stage.channel, &stage.ann, "/stop", "");
    stage.house.model.request(0).client_left().await;
    assert!(begun.elapsed() < CLOSED_WITHIN, "{:?}", begun.elapsed());
    for part in ["Stopping your request.", "⏹ stopped in", "I have begun\n\n⏹ Stopped."] {
        stage.shows_part(part).await;
    }
    stage.signed(&asked, &["black_square_for_stop"]).await;

    // The next message works, and the model is told.
    stage.house.model.script(Behaviour::text("Here I am."));
    let next = stage.say("and now?");
    stage.shows_part("Here I am.").await;
    stage.signed(&next, &["white_check_mark"]).await;
    assert_eq!(stage.said(&stage.slack.state()).len(), 4, "a draft, two words of the stop, and an answer");
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
    stage.signed(&second, &["white_check_mark"]).await;
    stage.signed(&first, &["black_square_for_stop"]).await;
    stage.shows(&["First\n\n⏹ Stopped: you wrote again.", "Second."]).await;
    assert_eq!(stage.house.model.request_count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_in_one_thread_leaves_the_other_alone() {
    // What interrupts within a conversation does not reach out of it.
    let stage = Stage::open("interrupt_on_new_message = true").await;
    let [one, other] = ["one", "other"].map(|text| stage.slack.say(&stage.channel, &stage.bob, text));
    let say_in = |thread: &str, text| stage.slack.say_in((&stage.channel, thread), &stage.ann, text);
    stage.house.model.script(Behaviour::silent_mid_stream("Of the one"));
    say_in(&one, "a question");
    stage.house.model.request(0).streaming().await;
    stage.house.model.script(Stream::new().text("Of ").wait_for("end").text("the other."));
    say_in(&other, "another one");
    stage.house.model.request(1).streaming().await;
    say_in(&one, "stop");
    stage.house.model.request(0).client_left().await;
    let receipt = stage.shows_part("⏹ stopped in").await;
    assert_eq!(receipt.thread.as_ref(), Some(&one));
    assert!(stage.house.model.request(1).arrived().await.progress().client_left.is_none());
    stage.house.model.open_gate("end");
    let answer = stage.shows_part("Of the other.").await;
    assert_eq!(answer.thread.as_ref(), Some(&other));
    assert_eq!(stage.house.model.request_count(), 2, "bob is not answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_while_nobody_listens_is_answered_once() {
    let stage = Stage::open("").await;
    stage.house.model.script(Stream::new().text("One").wait_for("end").text(" more."));
    stage.say("first");
    stage.shows(&["One"]).await;
    stage.slack.drop_connections();
    stage.slack.wait_for("nobody who listens", |it| it.connections == 0).await;
    stage.house.model.script(Behaviour::text("Two."));
    stage.say("second");
    // The answer goes its own way, whether or not somebody listens.
    stage.house.model.open_gate("end");
    stage.shows_part("One more.").await;
    stage.shows(&["One more.", "Two."]).await;
    // Slack tells again what it takes for unheard; whatever would come of that would come before what is said next.
    stage.slack.tell_again();
    stage.house.model.script(Behaviour::text("Three."));
    stage.say("third");
    stage.shows(&["One more.", "Two.", "Three."]).await;
    stage.slack.wait_for("acknowledgements of everything", |it| it.unacknowledged() == 0).await;
    assert_eq!(stage.house.model.request_count(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_survives_a_connection_that_slack_gives_up() {
    let stage = Stage::open("").await;
    stage.house.model.script(Stream::new().text("One").wait_for("end").text(" more."));
    stage.say("first");
    stage.shows(&["One"]).await;
    stage.slack.ask_to_leave();
    stage.house.model.script(Behaviour::text("Two."));
    stage.say("second");
    stage.slack.wait_for("another connection alone", |it| (it.opened, it.connections) == (2, 1)).await;
    stage.house.model.open_gate("end");
    stage.shows(&["One more.", "Two."]).await;
    stage.slack.wait_for("acknowledgements of everything", |it| it.unacknowledged() == 0).await;
    assert_eq!(stage.house.model.request_count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_that_is_one_too_many_delays_the_answer_and_doubles_nothing() {
    let stage = Stage::open("drafts = false").await;
    stage.slack.fault("chat.postMessage", Fault::TooMany(1));
    stage.house.model.script(Behaviour::text("Here."));
    let begun = Instant::now();
    let asked = stage.say("hello");
    stage.signed(&asked, &["white_check_mark"]).await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    let state = stage.slack.state();
    assert_eq!(state.called("chat.postMessage"), 2);
    assert_eq!(stage.said(&state), ["Here."]);

    // Slack knows no keys: what may have been shown is not sent again, and nobody is left to wonder.
    stage.slack.fault("chat.postMessage", Fault::LoseAnswer);
    stage.house.model.script(Behaviour::text("There."));
    let asked = stage.say("and now?");
    stage.signed(&asked, &["warning"]).await;
    let said = stage.said(&stage.slack.state());
    assert_eq!(said.iter().filter(|text| *text == "There.").count(), 1, "{said:?}");
    assert!(said.last().unwrap().contains("not known whether all of the answer is shown"), "{said:?}");
}
