//! What is kept of an exchange: work behind the answer writes it down, and every stop of its run or session finds it there.

use futures_util::future::join_all;
use quell_engine::cell::Progress;
use quell_engine::dispatch::Submission;
use quell_engine::scope::Point;
use quell_kernel::Push;
use quell_kernel::registry::{Background, Queued, StopScope};
use quell_protocol::api::RunView;
use quell_protocol::session::SessionRequest;
use quell_protocol::{ResourceKind, Verdict};
use quell_testkit::leaks;
use quell_testkit::model::{ModelRequest, ScriptedModel, Stream};
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::harness::{PATIENCE, alice, ask, flat, message, message_as, receipt, root, run_id};
use crate::sweep::chat::errand;

const SAID: &str = "please paint my boat red";
const GIST: &str = r#"{"history_entry": "The boat was painted red.", "memory_update": "The user likes red boats."}"#;
const LABEL: &str = "consolidation of the memory";

async fn consolidating() -> House {
    house(|config| config.memory.consolidate = true).await
}

/// Sends a message and waits until its run is over, whatever goes on behind it.
async fn answered(house: &House, message: Submission) -> RunView {
    let run = house.send(message).await;
    let view = match house.engine.live(&run) {
        Some(cell) => {
            cell.reached(Progress::Ended).await;
            cell.view()
        }
        None => house.engine.run(&run).await.unwrap().unwrap(),
    };
    assert_eq!(view.verdict, Some(Verdict::Completed), "{view:#?}");
    view
}

/// Asks, with this answer to what consolidates it.
async fn asked(house: &House, session: &str, marker: &str, gist: impl Into<Behaviour>) -> RunView {
    house.script(marker, [Behaviour::text("It is red now."), gist.into()]);
    answered(house, message(session, &format!("Now marker:{marker} {SAID}"))).await
}

/// An answer to what consolidates, with which the model waits.
fn held_back(gate: &str) -> Stream {
    Stream::new().text("Let me see. ").wait_for(gate).text(GIST)
}

/// Requests that asked what is worth remembering.
fn consolidations(house: &House) -> Vec<ModelRequest> {
    let is_one = |request: &ModelRequest| flat(request.messages()).contains("worth remembering?");
    house.model.seen().into_iter().filter(is_one).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_worth_it_becomes_notes_behind_the_answer() {
    let house = consolidating().await;
    let view = asked(&house, "s", "ask", held_back("gate")).await;
    let of_it = |row: &&quell_protocol::Resource| row.label == LABEL;
    let row = receipt(&view).resources.iter().find(of_it).unwrap();
    assert_eq!((row.kind, row.how.as_str()), (ResourceKind::Task, "kept"));
    assert!(notes(&house, of_session("s")).await.is_empty(), "the run was over before");
    house.model.open_gate("gate");
    house.ended(&view.run_id).await;
    let mut found = notes(&house, of_session("s")).await;
    found.sort_by(|one, other| one.category.cmp(&other.category));
    let told: Vec<_> = found.iter().map(|note| (note.category.as_str(), note.text.as_str())).collect();
    assert_eq!(told, [("core", "The user likes red boats."), ("daily", "The boat was painted red.")]);
    assert_eq!(found[1].key, format!("daily_{}", view.run_id));
    let request = consolidations(&house).remove(0);
    let text = flat(request.messages());
    assert!(text.contains(SAID) && text.contains("It is red now.") && request.body.get("tools").is_none(), "{text}");

    // It is no message: the next one sees nothing of it, and there is no session but the one that was asked for.
    house.ask("s", "thanks").await;
    assert!(!flat(&house.last_messages()).contains("worth remembering"));
    let sessions = quell_engine::store::SessionFilter { search: None, limit: 9, cursor: None };
    assert_eq!(house.engine.sessions(sessions).await.unwrap().items.len(), 1);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_it_uses_counts_against_the_day() {
    let house = consolidating().await;
    let view = asked(&house, "s", "ask", held_back("gate")).await;
    house.model.request(1).streaming().await;
    let of_run = view.usage.input_tokens + view.usage.output_tokens;
    house.model.open_gate("gate");
    house.ended(&view.run_id).await;
    let (engine, database) = (house.engine.clone(), house.dir.path().join("quell.db"));
    leaks::settled(PATIENCE, move || {
        let today = engine.agent_view(&agent("main")).unwrap().spend.tokens;
        let database = rusqlite::Connection::open(&database).unwrap();
        let stored = database.query_row("SELECT sum(input + output) FROM spend", [], |row| row.get::<_, i64>(0));
        let stored = u64::try_from(stored.unwrap()).unwrap();
        if today > of_run && stored == today { Ok(()) } else { Err(format!("{of_run}, {today}, stored {stored}")) }
    })
    .await;
    assert_eq!(house.engine.run(&view.run_id).await.unwrap().unwrap().usage, view.usage);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_consolidated_that_was_not_asked_for_or_has_nothing_to_it() {
    let house = house(|_| {}).await;
    asked(&house, "s", "off", Behaviour::text(GIST)).await;
    house.close().await;

    let house = consolidating().await;
    house.ask("s", "thanks a lot").await;
    house.script("fails", [Behaviour::status(400)]);
    let failed = house.ask("s", "this will fail before it is answered marker:fails").await;
    assert!(matches!(failed.verdict, Some(Verdict::Failed { .. })), "{failed:#?}");
    house.script("stopped", [Behaviour::silent_mid_stream("I begin")]);
    let stopped = house.send(message("s", "this will be stopped on its way marker:stopped")).await;
    house.text_came(&stopped).await;
    house.stop(&stopped);
    house.ended(&stopped).await;
    let spawn = json!({"agent": "main", "prompt": "count all of the boats in the harbour"});
    house.script("spawn", [Behaviour::tool_call("c1", "spawn_agent", &spawn)]);
    house.ask("s", "Now marker:spawn do go on with this").await;
    // A run is forgotten when nothing goes on behind it, so that this is all.
    let [one] = &consolidations(&house)[..] else { panic!("of one message alone") };
    assert!(flat(one.messages()).contains("do go on with this"));
    house.close().await;
}

#[rstest]
#[case(Behaviour::text("I would rather not."))]
#[case(Behaviour::status(400))]
#[case(Stream::new().text("{\"history_entry\": \"cut").finish_reason("length").into())]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consolidation_that_fails_harms_nobody(#[case] gist: Behaviour) {
    let house = consolidating().await;
    let view = asked(&house, "s", "ask", gist).await;
    house.ended(&view.run_id).await;
    assert_eq!(consolidations(&house).len(), 1);
    assert!(notes(&house, of_session("s")).await.is_empty());
    assert_eq!(house.ask("s", "thanks").await.verdict, Some(Verdict::Completed));
    house.model.assert_histories_valid();
    house.close().await;
}

/// A stop of its run finds it at every place where it can be.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_its_run_ends_it_wherever_it_is(
    #[values(Point::Consolidation, Point::ModelSend, Point::ModelStream, Point::AfterModel, Point::Remember)]
    point: Point,
    #[values(Push::Gentle, Push::Forced)] push: Push,
) {
    let house = consolidating().await;
    let run = run_id("asked");
    let (engine, id, trap) = (house.engine.clone(), run.clone(), house.trap.clone());
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let spring = move || {
        let stop = engine.stop(&alice(), &crate::harness::of_run(&id), &ask(push));
        tell.send(stop).unwrap();
    };
    // Behind this point the run itself comes to no other.
    house.trap.arm(Point::AfterModel, 1, move || trap.arm(point, 1, spring));
    house.script("ask", [Behaviour::text("It is red now."), Behaviour::text(GIST)]);
    house.send(message_as(&run, "s", &format!("Now marker:ask {SAID}"))).await;
    let stop = tokio::time::timeout(PATIENCE, told.recv()).await.expect("the point is reached").unwrap();
    assert_eq!(stop.tasks.len(), 1);
    stop.settled().await;
    let view = house.ended(&run).await;
    assert!(receipt(&view).leftovers.is_empty(), "{view:#?}");
    assert!(notes(&house, of_session("s")).await.is_empty(), "at {point:?}");
    assert_eq!(house.ask("s", "thanks").await.verdict, Some(Verdict::Completed));
    house.model.assert_histories_valid();
    house.close().await;
}

/// It was written behind the stop, as soon as the database could take it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_note_that_waits_for_the_database_is_not_written_behind_the_stop() {
    let house = consolidating().await;
    let database = rusqlite::Connection::open(house.dir.path().join("quell.db")).unwrap();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    house.trap.arm(Point::Remember, 1, move || {
        database.busy_timeout(PATIENCE).unwrap();
        database.execute_batch("BEGIN IMMEDIATE").unwrap();
        tell.send(database).unwrap();
    });
    let view = asked(&house, "s", "ask", held_back("gate")).await;
    house.model.open_gate("gate");
    let database = tokio::time::timeout(PATIENCE, told.recv()).await.expect("a note is to be written").unwrap();
    let stop = house.stop(&view.run_id);
    assert_eq!(stop.tasks.len(), 1);
    stop.settled().await;
    drop(database);
    house.ended(&view.run_id).await;
    // What is asked now has its turn behind it.
    house.ask("s", "thanks").await;
    assert!(notes(&house, of_session("s")).await.is_empty());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_the_session_closes_its_request_and_one_that_keeps_the_background_does_not() {
    let house = consolidating().await;
    let view = asked(&house, "s", "ask", held_back("never")).await;
    let request = house.model.requests(2).await.remove(1);
    request.streaming().await;
    let keeping = StopScope::Session { key: key("s"), queued: Queued::Withdraw, background: Background::Keep };
    let stop = house.engine.stop(&alice(), &keeping, &ask(Push::Gentle));
    assert!(stop.tasks.is_empty() && !stop.did_something());
    let others = house.engine.stop(&crate::harness::bob(), &StopScope::whole_session(key("s")), &ask(Push::Gentle));
    assert!(others.tasks.is_empty(), "it is not another one's to stop");
    let stop = house.stop_session("s");
    assert!(stop.aborted.is_empty() && stop.withdrawn.is_empty(), "it is no message: {stop:?}");
    request.client_left().await;
    stop.settled().await;
    house.ended(&view.run_id).await;
    assert!(notes(&house, of_session("s")).await.is_empty());
    house.close().await;
}

/// Also by another one than the principal whose run it was.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_and_a_deletion_let_nothing_be_remembered_behind_them(
    #[values(false, true)] deletes: bool,
    #[values(false, true)] by_another: bool,
) {
    let house = consolidating().await;
    let view = asked(&house, "s", "ask", held_back("gate")).await;
    house.model.request(1).streaming().await;
    let who = if by_another { crate::harness::root() } else { alice() };
    let done = match deletes {
        true => house.engine.delete_session(&who, &key("s"), &ask(Push::Gentle)).await,
        false => house.engine.reset_session(&who, &key("s"), &ask(Push::Gentle)).await,
    };
    assert!(done.unwrap());
    // It is there again before the model has answered.
    house.ask("s", "hello").await;
    house.model.open_gate("gate");
    let (engine, run) = (house.engine.clone(), view.run_id.clone());
    leaks::settled(PATIENCE, move || engine.live(&run).map_or(Ok(()), |_| Err("it goes on".to_owned()))).await;
    assert!(notes(&house, of_session("s")).await.is_empty());
    house.close().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_forgotten_is_not_remembered_by_what_was_under_way(#[values(false, true)] answered_before: bool) {
    let house = house(|config| (config.memory.consolidate, config.memory.auto_save) = (true, true)).await;
    let said = format!("Now marker:ask {SAID}");
    let message = Submission { errand: Some(errand("1", &said)), ..message("s", &said) };
    let sender = "paper:alice".to_owned();
    let run = if answered_before {
        house.script("ask", [Behaviour::text("It is red now."), held_back("gate").into()]);
        let view = answered(&house, message).await;
        house.model.request(1).streaming().await;
        view.run_id
    } else {
        house.script("ask", [held_back("gate").into(), Behaviour::text(GIST)]);
        let run = house.send(message).await;
        house.text_came(&run).await;
        run
    };
    assert_eq!(notes(&house, NoteScope::Sender(sender.clone())).await.len(), 1, "the message itself");
    assert_eq!(house.engine.forget_sender(&root(), sender.clone()).await.unwrap(), 1);
    house.model.open_gate("gate");
    house.ended(&run).await;
    assert_eq!(consolidations(&house).len(), 1);
    assert!(notes(&house, NoteScope::Sender(sender.clone())).await.is_empty());
    // What the same person says from now on is remembered again.
    house.script("ask", [Behaviour::text("It is red now."), Behaviour::text(GIST)]);
    let message = Submission { errand: Some(errand("2", &said)), ..self::message("s", &said) };
    let view = answered(&house, message).await;
    house.ended(&view.run_id).await;
    assert_eq!(notes(&house, NoteScope::Sender(sender)).await.len(), 3);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_are_at_work_at_once_and_one_that_waits_ends_at_once() {
    let house = consolidating().await;
    let sessions: Vec<String> = (0..6).map(|n| format!("s{n}")).collect();
    let asking = sessions.iter().map(|session| asked(&house, session, session, held_back("gate")));
    let views = join_all(asking).await;
    house.model.requests(6 + 4).await;
    let at_work: Vec<String> = consolidations(&house).iter().map(|request| flat(request.messages())).collect();
    let waits = |view: &&RunView| !at_work.iter().any(|text| text.contains(&format!("marker:{} ", view.session_key)));
    let waiting: Vec<&RunView> = views.iter().filter(waits).collect();
    assert_eq!(waiting.len(), 2, "six, and four at work");
    let stop = house.stop(&waiting[0].run_id);
    assert_eq!(stop.tasks.len(), 1);
    stop.settled().await;
    house.model.open_gate("gate");
    for view in &views {
        house.ended(&view.run_id).await;
    }
    assert_eq!(consolidations(&house).len(), 5);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shut_down_ends_it() {
    let house = consolidating().await;
    asked(&house, "s", "ask", held_back("never")).await;
    let request = house.model.requests(2).await.remove(1);
    request.streaming().await;
    assert!(house.engine.shut_down().await.is_empty());
    request.client_left().await;
}

/// What a session says of its model, its provider and its key stands for this, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_that_answered_is_asked_and_no_other() {
    let house = consolidating().await;
    let own = ScriptedModel::start().await;
    own.by_prompt(|prompt, _| Behaviour::text(if prompt.contains("worth remembering?") { GIST } else { "Red." }));
    let request = SessionRequest {
        user_id: "ann".to_owned(),
        chat_id: "c".to_owned(),
        provider: "scripted".to_owned(),
        base_url: Some(own.base_url()),
        ..SessionRequest::default()
    };
    let (session, _) = house.engine.open_session(&alice(), request).await.unwrap();
    let view = answered(&house, message(session.as_str(), SAID)).await;
    house.ended(&view.run_id).await;
    assert_eq!((own.request_count(), house.model.request_count()), (2, 0));
    assert_eq!(notes(&house, NoteScope::Session(session)).await.len(), 2);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_private_chat_the_notes_are_the_senders() {
    let house = consolidating().await;
    house.script("ask", [Behaviour::text("It is red now."), Behaviour::text(GIST)]);
    let said = format!("Now marker:ask {SAID}");
    let view = answered(&house, Submission { errand: Some(errand("1", &said)), ..message("s", &said) }).await;
    house.ended(&view.run_id).await;
    assert_eq!(notes(&house, NoteScope::Sender("paper:alice".to_owned())).await.len(), 2);
    assert!(notes(&house, of_session("s")).await.is_empty());
    house.close().await;
}
