//! What is kept of an exchange: a sub-run behind the answer writes it down, and every stop finds it there.

use futures_util::future::join_all;
use quell_engine::cell::Progress;
use quell_engine::dispatch::Submission;
use quell_engine::scope::Point;
use quell_protocol::api::RunView;
use quell_protocol::{ResourceKind, Verdict};
use quell_testkit::model::{ModelRequest, Stream};
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::harness::{abort_reason, alice, ask, flat, message, message_as, receipt, run_id};
use crate::sweep::chat::errand;

const SAID: &str = "please paint my boat red";
const GIST: &str = r#"{"history_entry": "The boat was painted red.", "memory_update": "The user likes red boats."}"#;

async fn consolidating() -> House {
    house(|config| config.memory.consolidate = true).await
}

/// Asks, with these answers to the message and to what consolidates it.
async fn asked(house: &House, session: &str, marker: &str, gist: Behaviour) -> RunView {
    house.script(marker, [Behaviour::text("It is red now."), gist]);
    let view = over(house, message(session, &format!("{SAID} marker:{marker}"))).await;
    assert_eq!(view.verdict, Some(Verdict::Completed), "{view:#?}");
    view
}

/// Sends a message and waits until its run is over, whatever that left.
async fn over(house: &House, message: Submission) -> RunView {
    let run = house.send(message).await;
    if let Some(cell) = house.engine.live(&run) {
        cell.reached(Progress::Ended).await;
        return cell.view();
    }
    house.engine.run(&run).await.unwrap().unwrap()
}

/// The sub-run that a run left behind, as its receipt names it.
fn left_behind(view: &RunView) -> RunId {
    let of_runs = |row: &&quell_protocol::Resource| row.kind == ResourceKind::Run;
    let row = receipt(view).resources.iter().find(of_runs).unwrap();
    let name = row.label.strip_prefix("consolidation by main (").unwrap().strip_suffix(')').unwrap();
    assert_eq!(row.how, "kept", "{row:?}");
    run_id(name)
}

/// Requests that asked what is worth remembering.
fn of_consolidations(house: &House) -> Vec<ModelRequest> {
    let is_one = |request: &ModelRequest| flat(request.messages()).contains("worth remembering?");
    house.model.seen().into_iter().filter(is_one).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_worth_it_becomes_notes_behind_the_answer() {
    let house = consolidating().await;
    let view = asked(&house, "s", "ask", Behaviour::text(GIST)).await;
    let run = left_behind(&view);
    let over = house.ended(&run).await;
    assert_eq!(over.verdict, Some(Verdict::Completed), "{over:#?}");
    assert_eq!((over.output.as_deref(), &over.parent), (Some("2 notes were written."), &Some(view.run_id.clone())));
    assert!(over.usage.output_tokens > 0, "the call is counted: {over:#?}");
    let mut found = notes(&house, of_session("s")).await;
    found.sort_by(|one, other| one.category.cmp(&other.category));
    let told: Vec<_> = found.iter().map(|note| (note.category.as_str(), note.text.as_str())).collect();
    assert_eq!(told, [("core", "The user likes red boats."), ("daily", "The boat was painted red.")]);
    assert_eq!(found[1].key, format!("daily_{}", view.run_id));

    let request = of_consolidations(&house).remove(0);
    let text = flat(request.messages());
    assert!(text.contains(SAID) && text.contains("It is red now.") && request.body.get("tools").is_none(), "{text}");
    // What was said is kept where it was said, and nowhere else.
    let page = house.engine.history(&over.session_key, 10, None).await.unwrap();
    assert!(page.messages.iter().all(|message| !message.text.contains("boat")), "{page:#?}");
    house.ask("s", "thanks").await;
    assert!(!flat(&house.last_messages()).contains("background"), "nobody is told of it");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_consolidated_that_was_not_asked_for_or_has_nothing_to_it() {
    let house = house(|_| {}).await;
    asked(&house, "s", "off", Behaviour::text(GIST)).await;
    assert_eq!(house.model.request_count(), 1, "it is off by default");
    house.close().await;

    let house = consolidating().await;
    house.ask("s", "thanks a lot").await;
    house.script("fails", [Behaviour::tool_call("c1", "no_such_tool", &json!({})), Behaviour::status(400)]);
    let failed = house.ask("s", "this will fail before it is done marker:fails").await;
    assert!(matches!(failed.verdict, Some(Verdict::Failed { .. })), "{failed:#?}");
    let spawn = json!({"agent": "main", "prompt": "count all of the boats in the harbour"});
    house.script("spawn", [Behaviour::tool_call("c1", "spawn_agent", &spawn)]);
    house.ask("s", "go on marker:spawn").await;
    // Those that are worth it are the last, and of them there is one alone: the sub-agent's is not.
    let consolidated = of_consolidations(&house);
    assert!(consolidated.iter().all(|request| flat(request.messages()).contains("go on marker:spawn")));
    house.close().await;
}

#[rstest]
#[case(Behaviour::text("I would rather not."), "no_gist")]
#[case(Behaviour::status(400), "model_error")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consolidation_that_fails_says_why_and_harms_nobody(#[case] gist: Behaviour, #[case] code: &str) {
    let house = consolidating().await;
    let view = asked(&house, "s", "ask", gist).await;
    let over = house.ended(&left_behind(&view)).await;
    assert!(matches!(&over.verdict, Some(Verdict::Failed { code: said, .. }) if said == code), "{over:#?}");
    assert!(notes(&house, of_session("s")).await.is_empty());
    assert_eq!(house.ask("s", "thanks").await.verdict, Some(Verdict::Completed));
    house.model.assert_histories_valid();
    house.close().await;
}

/// A stop of the run that is over finds what it left at every place where that can be.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_its_run_ends_it_wherever_it_is(
    #[values(
        Point::Session,
        Point::LoadHistory,
        Point::Consolidation,
        Point::ModelSend,
        Point::ModelStream,
        Point::AfterModel,
        Point::Remember
    )]
    point: Point,
) {
    let house = consolidating().await;
    let run = run_id("asked");
    let (engine, id, trap) = (house.engine.clone(), run.clone(), house.trap.clone());
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let spring = move || {
        let stop = engine.stop(&alice(), &crate::harness::of_run(&id), &ask(quell_kernel::Push::Gentle));
        tell.send(stop.aborted).unwrap();
    };
    // Behind this point the run itself comes to no other.
    house.trap.arm(Point::AfterModel, 1, move || trap.arm(point, 1, spring));
    house.script("ask", [Behaviour::text("It is red now."), Behaviour::text(GIST)]);
    house.send(message_as(&run, "s", &format!("{SAID} marker:ask"))).await;
    let aborted = told.recv().await.unwrap();
    let view = house.ended(&run).await;
    let child = aborted.iter().find(|id| **id != run).unwrap();
    let over = house.ended(child).await;
    abort_reason(over.verdict.as_ref());
    assert!(receipt(&over).leftovers.is_empty() && receipt(&view).leftovers.is_empty(), "{over:#?}");
    // It may have come before the end of the run that was asked for, which is in nobody's hands.
    let answered = view.verdict == Some(Verdict::Completed);
    assert_eq!(view.output.is_some(), answered, "{view:#?}");
    let written = notes(&house, of_session("s")).await.len();
    assert!(written <= usize::from(point == Point::Remember), "{written} at {point:?}");
    assert_eq!(house.ask("s", "thanks").await.verdict, Some(Verdict::Completed));
    house.model.assert_histories_valid();
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_the_session_closes_the_request_of_what_runs_behind_the_answer() {
    let house = consolidating().await;
    let view = asked(&house, "s", "ask", Behaviour::silent_mid_stream("{\"history_entry\": \"The")).await;
    let run = left_behind(&view);
    let request = house.model.requests(2).await.remove(1);
    let stop = house.stop_session("s");
    assert_eq!(stop.aborted, std::slice::from_ref(&run));
    request.client_left().await;
    abort_reason(house.ended(&run).await.verdict.as_ref());
    let page = house.engine.history(&house.ended(&run).await.session_key, 10, None).await.unwrap();
    assert!(!page.messages.iter().any(|message| message.text.contains("history_entry")), "{page:#?}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_and_a_deletion_end_it_so_that_nothing_is_remembered_behind_them() {
    let house = consolidating().await;
    for (nth, (marker, deletes)) in [("one", false), ("two", true)].into_iter().enumerate() {
        let gist = Stream::new().text(GIST).wait_for(marker);
        let view = asked(&house, "s", marker, gist.into()).await;
        house.model.request(2 * nth + 1).streaming().await;
        let (who, gentle) = (alice(), ask(quell_kernel::Push::Gentle));
        let done = match deletes {
            true => house.engine.delete_session(&who, &key("s"), &gentle).await,
            false => house.engine.reset_session(&who, &key("s"), &gentle).await,
        };
        assert!(done.unwrap());
        house.model.open_gate(marker);
        abort_reason(house.ended(&left_behind(&view)).await.verdict.as_ref());
        assert!(notes(&house, of_session("s")).await.is_empty());
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_are_at_work_at_once_and_one_that_waits_ends_at_once() {
    let house = consolidating().await;
    let sessions: Vec<String> = (0..6).map(|n| format!("s{n}")).collect();
    let asking = sessions.iter().map(|session| {
        let gist = Stream::new().text(GIST).wait_for("gate");
        asked(&house, session, session, gist.into())
    });
    let runs: Vec<RunId> = join_all(asking).await.iter().map(left_behind).collect();
    while of_consolidations(&house).len() < 4 {
        tokio::task::yield_now().await;
    }
    let waits = |run: &&RunId| {
        let rows = house.engine.live(run).unwrap().scope.ledger().rows();
        !rows.iter().any(|row| row.kind == ResourceKind::Permit)
    };
    let waiting: Vec<&RunId> = runs.iter().filter(waits).collect();
    assert_eq!(waiting.len(), 2, "six, and four at work");
    house.stop(waiting[0]);
    abort_reason(house.ended(waiting[0]).await.verdict.as_ref());
    assert_eq!(of_consolidations(&house).len(), 4);
    house.model.open_gate("gate");
    for run in &runs {
        house.ended(run).await;
    }
    assert_eq!(of_consolidations(&house).len(), 5);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_private_chat_the_notes_are_the_senders() {
    let house = consolidating().await;
    house.script("ask", [Behaviour::text("It is red now."), Behaviour::text(GIST)]);
    let said = format!("{SAID} marker:ask");
    let view = over(&house, Submission { errand: Some(errand("1", &said)), ..message("s", &said) }).await;
    house.ended(&left_behind(&view)).await;
    assert_eq!(notes(&house, NoteScope::Sender("paper:alice".to_owned())).await.len(), 2);
    assert!(notes(&house, of_session("s")).await.is_empty());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_forgotten_is_not_remembered_by_what_was_under_way() {
    let house = consolidating().await;
    let gist = Stream::new().text(GIST).wait_for("gate");
    house.script("ask", [Behaviour::text("It is red now."), gist.into()]);
    let said = format!("{SAID} marker:ask");
    let view = over(&house, Submission { errand: Some(errand("1", &said)), ..message("s", &said) }).await;
    house.model.request(1).streaming().await;
    let sender = "paper:alice".to_owned();
    house.engine.forget_sender(&crate::harness::root(), sender.clone()).await.unwrap();
    house.model.open_gate("gate");
    abort_reason(house.ended(&left_behind(&view)).await.verdict.as_ref());
    assert!(notes(&house, NoteScope::Sender(sender)).await.is_empty());
    house.close().await;
}
