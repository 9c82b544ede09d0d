//! What a daemon that was killed left in a chat: the next one ends it, and says so once.
//!
//! A kill is taken as what it leaves: the files of the database as they are at some moment, and what stands on the paper then.

use std::fs;
use std::time::Duration;

use quell_engine::store::{LeftTrace, Store, Trace};
use quell_protocol::RunId;
use quell_testkit::model::{Behaviour, Stream};
use tempfile::TempDir;

use super::paper::{Call, Fault, Page, Paper, Written, busy, refused};
use super::{House, PATIENCE};
use crate::channels::flow::words::RESTARTED;
use crate::channels::seam::{Heard, Place};

/// What is left in a database.
struct Left {
    traces: Vec<LeftTrace>,
    /// What runs have said, as it is written down.
    said: String,
}

impl Left {
    async fn in_data(dir: &TempDir) -> Self {
        let store = Store::open(&dir.path().join("data"), "quell.db").unwrap();
        let (traces, mut said) = (store.left_traces().await.unwrap(), String::new());
        for left in &traces {
            said.extend(store.journal(left.trace.run.clone()).await.unwrap().0);
        }
        store.close().await;
        Self { traces, said }
    }
}

/// What a kill leaves of a house, as soon as that is as wanted.
async fn killed(house: &House, wanted: impl Fn(&Left) -> bool) -> (TempDir, Paper) {
    let begun = std::time::Instant::now();
    loop {
        let (image, look) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for data in [&image, &look] {
            fs::create_dir(data.path().join("data")).unwrap();
        }
        for file in ["data/quell.db", "data/quell.db-wal"] {
            fs::copy(house.dir.path().join(file), image.path().join(file)).unwrap();
            fs::copy(image.path().join(file), look.path().join(file)).unwrap();
        }
        if wanted(&Left::in_data(&look).await) {
            return (image, Paper::after(house.paper.page()));
        }
        assert!(begun.elapsed() < PATIENCE, "it was never written down");
    }
}

/// A house whose only run is at work, and has said so much in its draft.
async fn at_work(keys: &str, text: &str) -> (House, Heard) {
    let house = House::with(keys, |_| {}).await;
    house.model.script(Behaviour::silent_mid_stream(text));
    let heard = house.paper.heard("room", "ann", "hello");
    house.paper.tell(heard.clone());
    house.model.request(0).streaming().await;
    (house, heard)
}

/// The messages that say that Quell was restarted.
fn tellings(page: &Page) -> usize {
    page.texts().iter().filter(|text| text.contains(RESTARTED)).count()
}

async fn traces(house: &House) -> usize {
    house.engine.left_traces().await.unwrap().len()
}

/// Waits until nothing is left any more.
async fn is_put_right(house: &House) {
    let begun = std::time::Instant::now();
    while traces(house).await > 0 {
        assert!(begun.elapsed() < PATIENCE, "{:#?}", house.paper.page());
    }
}

/// It looked for ever as if somebody were working.
#[tokio::test(flavor = "multi_thread")]
async fn a_draft_and_a_sign_that_a_kill_left_are_ended_and_told_once() {
    let (house, heard) = at_work("", "Working on").await;
    house.paper.wait_for("the draft", |page| page.texts() == ["Working on"]).await;
    let left = killed(&house, |left| left.traces[0].trace.draft.is_some() && left.said.contains("Working on")).await;
    let next = House::on(left, "", |_| {}).await;
    next.paper.tell(heard.clone());
    let ended = format!("Working on\n\n{RESTARTED}");
    next.paper.wait_for("the end of the draft", |page| page.texts() == [&ended]).await;
    next.paper.wait_for("the sign", |page| page.signs_on(&heard.id) == ["⏹"]).await;
    is_put_right(&next).await;

    next.model.script(Behaviour::text("Here I am."));
    next.paper.say("ann", "and now?");
    next.paper.wait_for("the next answer", |page| page.texts() == [&ended, "Here I am."]).await;
    next.close().await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_sees_no_draft_is_told_once_however_often_the_message_is_told() {
    let (house, heard) = at_work("drafts = false", "Working on").await;
    let waiting = house.paper.say("ann", "and this");
    house.paper.wait_for("both signs", |page| page.signs.len() == 2).await;
    let next = House::on(killed(&house, |left| left.traces.len() == 2).await, "drafts = false", |_| {}).await;
    next.paper.tell(heard.clone());
    next.paper.wait_for("the words", |page| tellings(page) == 2).await;
    for asked in [&heard.id, &waiting] {
        next.paper.wait_for("the sign", |page| page.signs_on(asked) == ["⏹"]).await;
    }
    is_put_right(&next).await;
    next.paper.tell(Heard { id: "new".to_owned(), text: "/help".to_owned(), ..heard });
    // What was told again came before this.
    next.paper.wait_for("an answer", |page| page.says("/stop")).await;
    assert_eq!(tellings(&next.paper.page()), 2);
    next.close().await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_is_tried_again_and_what_it_refuses_is_given_up() {
    let (house, _) = at_work("", "Working on").await;
    house.paper.wait_for("the draft", |page| page.texts() == ["Working on"]).await;
    let left = |left: &Left| left.traces[0].trace.draft.is_some();
    // Busy for a moment.
    let (data, paper) = killed(&house, left).await;
    paper.fault(Call::Edit, busy(Duration::from_millis(5)));
    let next = House::on((data, paper), "", |_| {}).await;
    next.paper.wait_for("the end of the draft", |page| page.written[0].text.ends_with(RESTARTED)).await;
    is_put_right(&next).await;
    next.close().await;
    // The draft is gone: it is said in a message.
    let (data, paper) = killed(&house, left).await;
    paper.fault(Call::Edit, refused());
    let next = House::on((data, paper), "", |_| {}).await;
    next.paper.wait_for("the words", |page| page.texts() == ["Working on", RESTARTED]).await;
    is_put_right(&next).await;
    next.close().await;
    // Nobody can be told anything.
    let (data, paper) = killed(&house, left).await;
    for call in [Call::Edit, Call::Send] {
        paper.fault(call, refused());
    }
    let next = House::on((data, paper), "", |_| {}).await;
    is_put_right(&next).await;
    assert_eq!(tellings(&next.paper.page()), 0);
    next.close().await;
    house.close().await;
}

/// Of what a daemon ends itself nothing is left, whatever ends it: an answer, a stop, its own end.
#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_leaves_nothing() {
    let (house, _) = at_work("", "Working on").await;
    house.paper.wait_for("the draft", |page| page.texts() == ["Working on"]).await;
    house.model.script(Behaviour::text("Done."));
    let answered = house.paper.say("bob", "hello");
    house.paper.wait_for("the answer", |page| page.signs_on(&answered) == ["✅"]).await;
    // The end takes a moment longer in the chat than in the engine, which waits for that.
    let paper = house.paper.clone();
    paper.fault(Call::Edit, busy(Duration::from_millis(150)));
    let data = house.close().await;
    assert!(paper.page().says("Working on\n\n⚠️ Stopped: Quell is shutting down."), "{:#?}", paper.page());
    assert_eq!(Left::in_data(&data).await.traces, []);
}

/// Another run has taken the message in: that one says what became of both.
#[tokio::test(flavor = "multi_thread")]
async fn a_steered_message_gets_the_sign_of_the_run_that_took_it_in() {
    let house = House::with("on_busy = \"steer\"", |_| {}).await;
    let call = Stream::new().wait_for("steered").tool_call("c1", "recall", &serde_json::json!({"query": "x"}));
    house.model.script(call).script(Behaviour::silent_mid_stream("Both"));
    let first = house.paper.say("ann", "first");
    house.model.request(0).arrived().await;
    let second = house.paper.say("ann", "and also this");
    house.paper.wait_for("both signs", |page| page.signs.len() == 2).await;
    house.model.open_gate("steered");
    house.paper.wait_for("the draft", |page| page.texts() == ["Both"]).await;
    let written_down = |left: &Left| {
        let steered = left.traces.iter().any(|left| left.steered_into.is_some());
        steered && left.traces.iter().any(|left| left.trace.draft.is_some()) && left.said.contains("Both")
    };
    let next = House::on(killed(&house, written_down).await, "", |_| {}).await;
    for asked in [&first, &second] {
        next.paper.wait_for("the sign", |page| page.signs_on(asked) == ["⏹"]).await;
    }
    is_put_right(&next).await;
    assert_eq!(next.paper.page().texts(), [format!("Both\n\n{RESTARTED}")]);
    next.close().await;
    house.close().await;
}

/// What was said since then was lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_told_again_after_a_restart_has_acted() {
    let house = House::open().await;
    let commands = ["/new", "/model other"].map(|text| house.paper.heard("room", "ann", text));
    for (heard, said) in commands.iter().zip(["A new conversation begins.", "This conversation is for scripted/other"])
    {
        house.paper.tell(heard.clone());
        house.paper.wait_for("an answer", |page| page.says(said)).await;
    }
    for text in ["my number is 4711", "/model model"] {
        house.model.script(Behaviour::text("Noted."));
        let before = house.paper.page().written.len();
        house.paper.say("ann", text);
        house.paper.wait_for("an answer", |page| page.written.len() > before && !page.says("...")).await;
    }
    let page = house.paper.page();
    let next = House::on((house.close().await, Paper::after(page.clone())), "", |_| {}).await;
    for heard in commands {
        next.paper.tell(heard);
    }
    next.model.script(Behaviour::text("It is 4711."));
    next.paper.say("ann", "what is my number?");
    next.paper.wait_for("the answer", |page| page.says("It is 4711.")).await;
    let request = next.model.request(0).arrived().await.body.clone();
    assert!(request.to_string().contains("my number is 4711") && request["model"] == "model", "{request}");
    assert_eq!(next.paper.page().written.len(), page.written.len() + 1, "nothing is said again");
    next.close().await;
}

fn trace(run: &RunId, channel: &str, draft: &str) -> Trace {
    Trace {
        run: run.clone(),
        channel: channel.to_owned(),
        target: "room".to_owned(),
        thread: None,
        asked: "m1".to_owned(),
        draft: Some(draft.to_owned()),
    }
}

/// Keeps a trace by hand, as one that a daemon left which was killed at its very last step.
async fn keep(data: &TempDir, trace: Trace) {
    let store = Store::open(&data.path().join("data"), "quell.db").unwrap();
    store.keep_trace(trace).await.unwrap();
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_shown_is_left_alone_and_gets_its_sign() {
    let house = House::open().await;
    house.model.script(Behaviour::text("All of it."));
    let asked = house.paper.say("ann", "hello");
    house.paper.wait_for("the answer", |page| page.signs_on(&asked) == ["✅"]).await;
    let mut page = house.paper.page();
    let (shown, runs) = (page.written[0].id.clone(), house.engine.runs(all()).await.unwrap().items);
    let data = house.close().await;
    keep(&data, trace(&runs[0].run_id, "paper", &shown)).await;
    page.signs = vec![(asked.clone(), "👀".to_owned(), false)];
    let next = House::on((data, Paper::after(page)), "", |_| {}).await;
    next.paper.wait_for("the sign", |page| page.signs_on(&asked) == ["✅"]).await;
    is_put_right(&next).await;
    assert_eq!(next.paper.page().texts(), ["All of it."]);
    next.close().await;
}

fn all() -> quell_engine::store::RunFilter {
    quell_engine::store::RunFilter { session: None, principal: None, limit: 10, cursor: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_draft_of_a_deleted_run_is_ended_without_a_word_and_a_channel_that_is_gone_is_forgotten() {
    let data = tempfile::tempdir().unwrap();
    keep(&data, trace(&RunId::parse("paper:deleted").unwrap(), "paper", "q1")).await;
    keep(&data, trace(&RunId::parse("old:any").unwrap(), "old", "q2")).await;
    let place = Place { target: "room".to_owned(), thread: None };
    let draft = |id: &str| Written { id: id.to_owned(), place: place.clone(), text: "...".to_owned(), edits: 0 };
    let page = Page { written: vec![draft("q1"), draft("q2")], ..Page::default() };
    let next = House::on((data, Paper::after(page)), "", |_| {}).await;
    next.paper.wait_for("the end of the draft", |page| page.texts() == ["⏹ Stopped.", "..."]).await;
    is_put_right(&next).await;
    next.close().await;
}

/// The answer was on its way: it is not taken off again.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_being_carried_stays_readable() {
    let house = House::open().await;
    house.model.script(Stream::new().text("Good ").wait_for("more").text("morning."));
    house.paper.say("ann", "hello");
    house.paper.wait_for("the draft", |page| page.texts() == ["Good"]).await;
    house.paper.fault(Call::Edit, Fault::Hangs);
    house.model.open_gate("more");
    house.paper.faults_are_over().await;
    let left = killed(&house, |left| left.traces[0].trace.draft.is_some() && left.said.contains("morning.")).await;
    let next = House::on(left, "", |_| {}).await;
    let ended = format!("Good morning.\n\n{RESTARTED}");
    next.paper.wait_for("the end of the draft", |page| page.texts() == [&ended]).await;
    is_put_right(&next).await;
    next.close().await;
    house.close().await;
}

/// Its first message was overwritten with its end.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_long_answer_that_was_being_carried_nothing_is_overwritten() {
    let house = House::open().await;
    house.model.script(Stream::new().text("Good ").wait_for("more").text("morning ".repeat(200)));
    house.paper.say("ann", "hello");
    house.paper.wait_for("the draft", |page| page.texts() == ["Good"]).await;
    house.paper.fault(Call::Send, Fault::Hangs);
    house.model.open_gate("more");
    house.paper.faults_are_over().await;
    let first = house.paper.page().written[0].text.clone();
    assert!(first.len() > 800 && house.paper.page().written.len() == 1, "{first}");
    let left = killed(&house, |left| left.traces[0].trace.draft.is_none() && left.said.contains("morning")).await;
    let next = House::on(left, "", |_| {}).await;
    next.paper.wait_for("a word", |page| page.texts() == [first.as_str(), RESTARTED]).await;
    is_put_right(&next).await;
    next.close().await;
    house.close().await;
}

/// A shutdown often had the time for the last word and not for the sign behind it.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_said_is_not_said_again_where_only_a_sign_is_left() {
    let (house, heard) = at_work("", "Working on").await;
    house.paper.wait_for("the draft", |page| page.texts() == ["Working on"]).await;
    let left = killed(&house, |left| left.traces[0].trace.draft.is_some()).await;
    let store = Store::open(&left.0.path().join("data"), "quell.db").unwrap();
    let run = store.left_traces().await.unwrap()[0].trace.run.clone();
    store.keep_told(run).await.unwrap();
    store.close().await;
    let next = House::on(left, "", |_| {}).await;
    next.paper.wait_for("the sign", |page| page.signs_on(&heard.id) == ["⏹"]).await;
    is_put_right(&next).await;
    assert_eq!(next.paper.page().texts(), ["Working on"]);
    next.close().await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_is_shown_meanwhile_the_restart_is_told_too() {
    let (house, _) = at_work("drafts = false\nack_reactions = false", "Working on").await;
    let left = killed(&house, |left| left.traces.len() == 1).await;
    let next = House::on(left, "drafts = false\nack_reactions = false", |_| {}).await;
    next.paper.wait_for("a word", |page| page.texts() == [RESTARTED]).await;
    is_put_right(&next).await;
    next.close().await;
    house.close().await;
}
