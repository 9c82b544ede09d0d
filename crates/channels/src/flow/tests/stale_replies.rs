//! Repair of drafts and reactions after a simulated kill.
//!
//! A kill is simulated by what it leaves: a copy of the database files at some moment, and the state of the fake
//! network then.

use std::fs;
use std::time::Duration;

use quell_kernel::channel::chat_language::ChatLanguage;
use quell_protocol::RunId;
use quell_store::{PendingReply, StaleReply, Store};
use quell_testkit::model::{ScriptedResponse, ScriptedStream};
use tempfile::TempDir;

use super::fake_network::{
    FakeMessage, FakeNetwork, FakeNetworkCall, FakeNetworkFault, FakeNetworkState, rate_limit_fault, refusal_fault,
};
use super::{FlowFixture, WAIT_TIMEOUT, gated_tool_call};
use crate::flow::texts;
use crate::network::{ChatAddress, InboundMessage};

const RESTARTED: &str = texts::RESTARTED.text(ChatLanguage::English);

struct StoredReplies {
    stale_replies: Vec<StaleReply>,
    /// The journal texts of the runs of these replies.
    journal_text: String,
}

impl StoredReplies {
    async fn load(dir: &TempDir) -> Self {
        let store = Store::open(&dir.path().join("data"), "quell.db").unwrap();
        let (stale_replies, mut journal_text) = (store.channels().list_stale_replies().await.unwrap(), String::new());
        for stale_reply in &stale_replies {
            journal_text.extend(store.journal().read(stale_reply.pending_reply.run.clone()).await.unwrap().0);
        }
        store.close().await;
        Self { stale_replies, journal_text }
    }

    /// True if the message id of the first draft is stored, and this text of a run.
    fn has_draft_of(&self, text: &str) -> bool {
        self.stale_replies[0].pending_reply.draft_message.is_some() && self.journal_text.contains(text)
    }
}

/// Copies what a kill would leave, as soon as the database is in the wanted state.
async fn kill_when(fixture: &FlowFixture, wanted: impl Fn(&StoredReplies) -> bool) -> (TempDir, FakeNetwork) {
    let started_at = std::time::Instant::now();
    loop {
        let (image, probe) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for data in [&image, &probe] {
            fs::create_dir(data.path().join("data")).unwrap();
        }
        for file in ["data/quell.db", "data/quell.db-wal"] {
            fs::copy(fixture.dir.path().join(file), image.path().join(file)).unwrap();
            fs::copy(image.path().join(file), probe.path().join(file)).unwrap();
        }
        if wanted(&StoredReplies::load(&probe).await) {
            return (image, FakeNetwork::with_state(fixture.network.state()));
        }
        assert!(started_at.elapsed() < WAIT_TIMEOUT, "it was never written down");
    }
}

/// A fixture whose only run is active and has streamed `text`.
async fn start_run(keys: &str, text: &str) -> (FlowFixture, InboundMessage) {
    let fixture = FlowFixture::start_with(keys, |_| {}).await;
    fixture.model.script(ScriptedResponse::silent_mid_stream(text));
    let inbound = fixture.network.inbound_message("room", "ann", "hello");
    fixture.network.receive_message(inbound.clone());
    fixture.model.request_at(0).wait_streaming().await;
    (fixture, inbound)
}

/// Number of messages that tell of a restart.
fn restart_notices(state: &FakeNetworkState) -> usize {
    state.texts().iter().filter(|text| text.contains(RESTARTED)).count()
}

async fn stale_reply_count(fixture: &FlowFixture) -> usize {
    fixture.engine.channel_store().list_stale_replies().await.unwrap().len()
}

async fn wait_until_repaired(fixture: &FlowFixture) {
    let started_at = std::time::Instant::now();
    while stale_reply_count(fixture).await > 0 {
        assert!(started_at.elapsed() < WAIT_TIMEOUT, "{:#?}", fixture.network.state());
    }
}

/// Regression: the chat showed a working bot for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_draft_and_a_sign_that_a_kill_left_are_ended_and_told_once() {
    let (fixture, inbound) = start_run("", "Working on").await;
    fixture.network.wait_for("the draft", |state| state.texts() == ["Working on"]).await;
    let left = kill_when(&fixture, |left| left.has_draft_of("Working on")).await;
    let next = FlowFixture::start_with_data(left, "", |_| {}).await;
    next.network.receive_message(inbound.clone());
    let ended = format!("Working on\n\n{RESTARTED}");
    next.network.wait_for("the end of the draft", |state| state.texts() == [&ended]).await;
    next.network.wait_for("the sign", |state| state.reactions_on(&inbound.id) == ["⏹"]).await;
    wait_until_repaired(&next).await;

    next.model.script(ScriptedResponse::text("Here I am."));
    next.network.receive_text("ann", "and now?");
    next.network.wait_for("the next answer", |state| state.texts() == [&ended, "Here I am."]).await;
    next.shut_down().await;
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_draft_a_repeated_message_is_told_of_once() {
    let (fixture, inbound) = start_run("drafts = false", "Working on").await;
    let waiting = fixture.network.receive_text("ann", "and this");
    fixture.network.wait_for("both signs", |state| state.reactions.len() == 2).await;
    let next = FlowFixture::start_with_data(
        kill_when(&fixture, |left| left.stale_replies.len() == 2).await,
        "drafts = false",
        |_| {},
    )
    .await;
    next.network.receive_message(inbound.clone());
    next.network.wait_for("the words", |state| restart_notices(state) == 2).await;
    for message_id in [&inbound.id, &waiting] {
        next.network.wait_for("the sign", |state| state.reactions_on(message_id) == ["⏹"]).await;
    }
    wait_until_repaired(&next).await;
    next.network.receive_message(InboundMessage { id: "new".to_owned(), text: "/help".to_owned(), ..inbound });
    // The repeated message was delivered before this one.
    next.network.wait_for_text("/stop").await;
    assert_eq!(restart_notices(&next.network.state()), 2);
    next.shut_down().await;
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_is_tried_again_and_what_it_refuses_is_given_up() {
    let (fixture, _) = start_run("", "Working on").await;
    fixture.network.wait_for("the draft", |state| state.texts() == ["Working on"]).await;
    let left = |left: &StoredReplies| left.stale_replies[0].pending_reply.draft_message.is_some();
    // The network has a rate limit for a moment.
    let (data, network) = kill_when(&fixture, left).await;
    network.inject_fault(FakeNetworkCall::Edit, rate_limit_fault(Duration::from_millis(5)));
    let next = FlowFixture::start_with_data((data, network), "", |_| {}).await;
    next.network.wait_for("the end of the draft", |state| state.messages[0].text.ends_with(RESTARTED)).await;
    wait_until_repaired(&next).await;
    next.shut_down().await;
    // The draft was deleted: the text comes as a message.
    let (data, network) = kill_when(&fixture, left).await;
    network.inject_fault(FakeNetworkCall::Edit, refusal_fault());
    let next = FlowFixture::start_with_data((data, network), "", |_| {}).await;
    next.network.wait_for("the words", |state| state.texts() == ["Working on", RESTARTED]).await;
    wait_until_repaired(&next).await;
    next.shut_down().await;
    // The network refuses everything.
    let (data, network) = kill_when(&fixture, left).await;
    for call in [FakeNetworkCall::Edit, FakeNetworkCall::Send] {
        network.inject_fault(call, refusal_fault());
    }
    let next = FlowFixture::start_with_data((data, network), "", |_| {}).await;
    wait_until_repaired(&next).await;
    assert_eq!(restart_notices(&next.network.state()), 0);
    next.shut_down().await;
    fixture.shut_down().await;
}

/// A daemon leaves nothing after an end of its own: an answer, a stop, a shutdown.
#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_leaves_nothing() {
    let (fixture, _) = start_run("", "Working on").await;
    fixture.network.wait_for("the draft", |state| state.texts() == ["Working on"]).await;
    fixture.model.script(ScriptedResponse::text("Done."));
    let answered = fixture.network.receive_text("bob", "hello");
    fixture.network.wait_for("the answer", |state| state.reactions_on(&answered) == ["✅"]).await;
    // The chat shows the end a moment later than the engine; the engine waits for that.
    let network = fixture.network.clone();
    network.inject_fault(FakeNetworkCall::Edit, rate_limit_fault(Duration::from_millis(150)));
    let data = fixture.shut_down().await;
    assert!(
        network.state().contains_text("Working on\n\n⚠️ Stopped: Quell is shutting down."),
        "{:#?}",
        network.state()
    );
    assert_eq!(StoredReplies::load(&data).await.stale_replies, []);
}

/// The run that a message was steered into reports the outcome of both.
#[tokio::test(flavor = "multi_thread")]
async fn a_steered_message_gets_the_sign_of_the_run_that_took_it_in() {
    let fixture = FlowFixture::start_with("on_busy = \"steer\"", |_| {}).await;
    fixture.model.script(gated_tool_call("steered")).script(ScriptedResponse::silent_mid_stream("Both"));
    let first = fixture.network.receive_text("ann", "first");
    fixture.model.request_at(0).wait_arrived().await;
    let second = fixture.network.receive_text("ann", "and also this");
    fixture.network.wait_for("both signs", |state| state.reactions.len() == 2).await;
    fixture.model.open_gate("steered");
    fixture.network.wait_for("the draft", |state| state.texts() == ["Both"]).await;
    let written_down = |left: &StoredReplies| {
        let steered = left.stale_replies.iter().any(|left| left.steered_into.is_some());
        steered
            && left.stale_replies.iter().any(|left| left.pending_reply.draft_message.is_some())
            && left.journal_text.contains("Both")
    };
    let next = FlowFixture::start_with_data(kill_when(&fixture, written_down).await, "", |_| {}).await;
    for message_id in [&first, &second] {
        next.network.wait_for("the sign", |state| state.reactions_on(message_id) == ["⏹"]).await;
    }
    wait_until_repaired(&next).await;
    assert_eq!(next.network.state().texts(), [format!("Both\n\n{RESTARTED}")]);
    next.shut_down().await;
    fixture.shut_down().await;
}

/// Regression: a repeated command undid what had been said after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_told_again_after_a_restart_has_acted() {
    let fixture = FlowFixture::start().await;
    let commands = ["/new", "/model other"].map(|text| fixture.network.inbound_message("room", "ann", text));
    for (inbound, said) in
        commands.iter().zip(["A new conversation begins.", "This conversation is for scripted/other"])
    {
        fixture.network.receive_message(inbound.clone());
        fixture.network.wait_for("an answer", |state| state.contains_text(said)).await;
    }
    for text in ["my number is 4711", "/model model"] {
        fixture.model.script(ScriptedResponse::text("Noted."));
        let before = fixture.network.state().messages.len();
        fixture.network.receive_text("ann", text);
        fixture
            .network
            .wait_for("an answer", |state| state.messages.len() > before && !state.contains_text("..."))
            .await;
    }
    let state = fixture.network.state();
    let next =
        FlowFixture::start_with_data((fixture.shut_down().await, FakeNetwork::with_state(state.clone())), "", |_| {})
            .await;
    for inbound in commands {
        next.network.receive_message(inbound);
    }
    next.ask("ann", "what is my number?", "It is 4711.").await;
    let request = next.model.request_at(0).wait_arrived().await.body.clone();
    assert!(request.to_string().contains("my number is 4711") && request["model"] == "model", "{request}");
    assert_eq!(next.network.state().messages.len(), state.messages.len() + 1, "nothing is said again");
    next.shut_down().await;
}

fn pending_reply(run: &RunId, channel: &str, draft: &str) -> PendingReply {
    PendingReply {
        run: run.clone(),
        channel: channel.to_owned(),
        target: "room".to_owned(),
        thread: None,
        request_message: "m1".to_owned(),
        draft_message: Some(draft.to_owned()),
    }
}

/// Stores a pending reply, as a daemon does that is killed at its very last step.
async fn save_reply(data: &TempDir, pending_reply: PendingReply) {
    let store = Store::open(&data.path().join("data"), "quell.db").unwrap();
    store.channels().save_pending_reply(pending_reply).await.unwrap();
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_shown_is_left_alone_and_gets_its_sign() {
    let fixture = FlowFixture::start().await;
    fixture.model.script(ScriptedResponse::text("All of it."));
    let message_id = fixture.network.receive_text("ann", "hello");
    fixture.network.wait_for("the answer", |state| state.reactions_on(&message_id) == ["✅"]).await;
    let mut state = fixture.network.state();
    let (shown, runs) = (state.messages[0].id.clone(), fixture.engine.list_runs(all_runs()).await.unwrap().items);
    let data = fixture.shut_down().await;
    save_reply(&data, pending_reply(&runs[0].run_id, "paper", &shown)).await;
    state.reactions = vec![(message_id.clone(), "👀".to_owned(), false)];
    let next = FlowFixture::start_with_data((data, FakeNetwork::with_state(state)), "", |_| {}).await;
    next.network.wait_for("the sign", |state| state.reactions_on(&message_id) == ["✅"]).await;
    wait_until_repaired(&next).await;
    assert_eq!(next.network.state().texts(), ["All of it."]);
    next.shut_down().await;
}

fn all_runs() -> quell_store::RunListFilter {
    quell_store::RunListFilter { session: None, principal: None, visible_to: None, limit: 10, cursor: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_draft_of_a_deleted_run_is_ended_without_a_word_and_a_channel_that_is_gone_is_forgotten() {
    let data = tempfile::tempdir().unwrap();
    save_reply(&data, pending_reply(&RunId::parse("paper:deleted").unwrap(), "paper", "q1")).await;
    save_reply(&data, pending_reply(&RunId::parse("old:any").unwrap(), "old", "q2")).await;
    let place = ChatAddress { target: "room".to_owned(), thread: None };
    let draft = |id: &str| FakeMessage { id: id.to_owned(), address: place.clone(), text: "...".to_owned(), edits: 0 };
    let state = FakeNetworkState { messages: vec![draft("q1"), draft("q2")], ..FakeNetworkState::default() };
    let next = FlowFixture::start_with_data((data, FakeNetwork::with_state(state)), "", |_| {}).await;
    next.network.wait_for("the end of the draft", |state| state.texts() == ["⏹ Stopped.", "..."]).await;
    wait_until_repaired(&next).await;
    next.shut_down().await;
}

/// The answer was being delivered: it is not removed again.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_being_carried_stays_readable() {
    let fixture = FlowFixture::start().await;
    fixture.model.script(ScriptedStream::new().text("Good ").wait_for_gate("more").text("morning."));
    fixture.network.receive_text("ann", "hello");
    fixture.network.wait_for("the draft", |state| state.texts() == ["Good"]).await;
    fixture.network.inject_fault(FakeNetworkCall::Edit, FakeNetworkFault::Hangs);
    fixture.model.open_gate("more");
    fixture.network.wait_until_faults_used().await;
    let left = kill_when(&fixture, |left| left.has_draft_of("morning.")).await;
    let next = FlowFixture::start_with_data(left, "", |_| {}).await;
    let ended = format!("Good morning.\n\n{RESTARTED}");
    next.network.wait_for("the end of the draft", |state| state.texts() == [&ended]).await;
    wait_until_repaired(&next).await;
    next.shut_down().await;
    fixture.shut_down().await;
}

/// Regression: the first message of the answer was overwritten with the restart text.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_long_answer_that_was_being_carried_nothing_is_overwritten() {
    let fixture = FlowFixture::start().await;
    fixture.model.script(ScriptedStream::new().text("Good ").wait_for_gate("more").text("morning ".repeat(200)));
    fixture.network.receive_text("ann", "hello");
    fixture.network.wait_for("the draft", |state| state.texts() == ["Good"]).await;
    fixture.network.inject_fault(FakeNetworkCall::Send, FakeNetworkFault::Hangs);
    fixture.model.open_gate("more");
    fixture.network.wait_until_faults_used().await;
    let first = fixture.network.state().messages[0].text.clone();
    assert!(first.len() > 800 && fixture.network.state().messages.len() == 1, "{first}");
    let left = kill_when(&fixture, |left| {
        left.stale_replies[0].pending_reply.draft_message.is_none() && left.journal_text.contains("morning")
    })
    .await;
    let next = FlowFixture::start_with_data(left, "", |_| {}).await;
    next.network.wait_for("a word", |state| state.texts() == [first.as_str(), RESTARTED]).await;
    wait_until_repaired(&next).await;
    next.shut_down().await;
    fixture.shut_down().await;
}

/// A shutdown often has the time for the final text and not for the reaction after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_sent_outcome_is_not_repeated_if_only_a_reaction_is_left() {
    let (fixture, inbound) = start_run("", "Working on").await;
    fixture.network.wait_for("the draft", |state| state.texts() == ["Working on"]).await;
    let left = kill_when(&fixture, |left| left.stale_replies[0].pending_reply.draft_message.is_some()).await;
    let store = Store::open(&left.0.path().join("data"), "quell.db").unwrap();
    let run = store.channels().list_stale_replies().await.unwrap()[0].pending_reply.run.clone();
    store.channels().mark_outcome_sent(run).await.unwrap();
    store.close().await;
    let next = FlowFixture::start_with_data(left, "", |_| {}).await;
    next.network.wait_for("the sign", |state| state.reactions_on(&inbound.id) == ["⏹"]).await;
    wait_until_repaired(&next).await;
    assert_eq!(next.network.state().texts(), ["Working on"]);
    next.shut_down().await;
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_drafts_the_restart_is_told_too() {
    let (fixture, _) = start_run("drafts = false\nack_reactions = false", "Working on").await;
    let left = kill_when(&fixture, |left| left.stale_replies.len() == 1).await;
    let next = FlowFixture::start_with_data(left, "drafts = false\nack_reactions = false", |_| {}).await;
    next.network.wait_for("a word", |state| state.texts() == [RESTARTED]).await;
    wait_until_repaired(&next).await;
    next.shut_down().await;
    fixture.shut_down().await;
}
