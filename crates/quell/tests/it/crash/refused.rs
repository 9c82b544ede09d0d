//! A database that refuses for a while: what was said is in it as soon as it takes writes again, in order, whoever asks then.

use quell_engine::cell::Progress;
use quell_engine::dispatch::Submission;
use quell_kernel::Push;
use quell_protocol::api::OnBusy;
use quell_protocol::{CallId, RunId, StopReason, Verdict};
use quell_testkit::leaks;
use quell_testkit::model::{Behaviour, Stream};

use serde_json::json;

use super::{after_the_crash, database, journaled, next_request, says};
use crate::harness::{
    Claim, Ground, House, PATIENCE, abort_reason, alice, ask, copy_of, key, message, of_run, receipt,
};

/// Refuses turns and nothing else.
const REFUSE_TURNS: &str = "CREATE TRIGGER refuse BEFORE INSERT ON history BEGIN SELECT RAISE(ABORT, 'not now'); END";
const TAKE: &str = "DROP TRIGGER refuse";

/// Waits until a run is over without its turn in the database.
async fn ends_unrecorded(house: &House, run: &RunId) {
    let Some(cell) = house.engine.live(run) else { panic!("run {run} is forgotten") };
    cell.reached(Progress::Ended).await;
    let receipt = cell.receipt().unwrap();
    assert!(!receipt.turn.recorded, "the database refused: {receipt:#?}");
}

/// Another program, such as a backup, holds the write lock for longer than a statement waits, just as a run ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_the_database_refused_once_is_there_after_a_restart() {
    let house = House::shared().await;
    house.model.script(Stream::new().text("All is").wait_for("go").text(" well."));
    let run = house.send(message("s", "how is it?")).await;
    journaled(&house, &run, "its text", says("text", "All is")).await;
    let other = database(house.dir.path());
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    house.model.open_gate("go");
    ends_unrecorded(&house, &run).await;
    other.execute_batch("COMMIT").unwrap();
    let view = house.ended(&run).await;
    assert_eq!((view.verdict.as_ref(), receipt(&view).turn.recorded), (Some(&Verdict::Completed), true), "{view:#?}");
    let after = after_the_crash(&house).await;
    let seen = next_request(&after).await;
    assert!(seen.contains("All is well."), "{seen}");
    after.close().await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_that_were_refused_stand_before_those_that_came_after_them() {
    let house = House::shared().await;
    let other = database(house.dir.path());
    other.execute_batch(REFUSE_TURNS).unwrap();
    for (text, answer) in [("one?", "The first."), ("two?", "The second.")] {
        house.model.script(Behaviour::text(answer));
        let run = house.send(message("s", text)).await;
        ends_unrecorded(&house, &run).await;
    }
    other.execute_batch(TAKE).unwrap();
    house.model.script(Behaviour::text("The third."));
    let third = house.ask("s", "three?").await;
    assert!(receipt(&third).turn.recorded, "{third:#?}");
    let after = after_the_crash(&house).await;
    let seen = next_request(&after).await;
    let places: Vec<_> = ["The first.", "The second.", "The third."].iter().map(|said| seen.find(said)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} in {seen}");
    after.close().await;
    house.close().await;
}

/// They are all sealed at the next start, from their journals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_that_a_dead_daemon_could_not_write_come_back_in_order() {
    let wide = |config: &mut quell_engine::EngineConfig| {
        config.agents.values_mut().for_each(|agent| agent.window_tokens = 1_000_000);
    };
    let house = House::with(Claim::shared().await, wide).await;
    database(house.dir.path()).execute_batch(REFUSE_TURNS).unwrap();
    let answers: Vec<String> = (10..20).map(|n| format!("answer {n}")).collect();
    let mut last = None;
    for answer in &answers {
        // The first takes longest to read.
        let long = if last.is_none() { " and so on".repeat(150_000) } else { String::new() };
        house.model.script(Behaviour::text(format!("{answer}{long}")));
        let run = house.send(message("s", "go on")).await;
        ends_unrecorded(&house, &run).await;
        last = Some(run);
    }
    journaled(&house, &last.unwrap(), "its end", says("ending", "completed")).await;
    let data = copy_of(house.dir.path());
    database(data.path()).execute_batch(TAKE).unwrap();
    let after = House::on(Ground::Own(data), Claim::shared().await, |_| {}).await;
    let past = after.engine.history(&key("s"), 100, None).await.unwrap().messages;
    let said: Vec<&str> = past.iter().filter(|said| said.role == "assistant").map(|said| &said.text[..9]).collect();
    assert_eq!(said, answers);
    after.close().await;
    house.close().await;
}

/// A forced stop seals in the call that gives the verdict; the daemon dies before the database has taken the turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_stop_whose_turn_was_refused_outlives_its_daemon() {
    let house = House::shared().await;
    database(house.dir.path()).execute_batch(REFUSE_TURNS).unwrap();
    house.model.script(Behaviour::silent_mid_stream("Half of it"));
    let run = house.send(message("s", "tell me")).await;
    house.text_came(&run).await;
    house.engine.stop(&alice(), &of_run(&run), &ask(Push::Forced)).settled().await;
    ends_unrecorded(&house, &run).await;
    // A tool that the stop overtakes on its way is not written down behind the verdict.
    let late = CallId::parse("late").unwrap();
    house.engine.live(&run).unwrap().pen().announce_call(&late).await.unwrap();
    journaled(&house, &run, "the verdict", says("ending", "alice")).await;
    let data = copy_of(house.dir.path());
    let lines = "SELECT count(*) FROM journal WHERE line LIKE '%began%'";
    let began: i64 = database(data.path()).query_row(lines, [], |row| row.get(0)).unwrap();
    assert_eq!(began, 0);
    database(data.path()).execute_batch(TAKE).unwrap();
    let after = House::on(Ground::Own(data), Claim::shared().await, super::keep_partials).await;
    let view = after.engine.run(&run).await.unwrap().unwrap();
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    let seen = next_request(&after).await;
    assert!(seen.contains("Half of it") && seen.contains("stopped on purpose by the user"), "{seen}");
    after.close().await;
    house.close().await;
}

/// A queued run is withdrawn, and the daemon dies before it has stored that: it never began, so it leaves no turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_withdrawn_message_does_not_come_back_as_a_turn() {
    let house = House::shared().await;
    let refuse_ends = "CREATE TRIGGER refuse BEFORE UPDATE ON runs WHEN new.state = 'ended'
                       BEGIN SELECT RAISE(ABORT, 'not now'); END";
    database(house.dir.path()).execute_batch(refuse_ends).unwrap();
    house.model.script(Behaviour::silent_mid_stream("I think"));
    let first = house.send(message("s", "think")).await;
    house.text_came(&first).await;
    let queued = house.send(message("s", "and forget this")).await;
    house.stop(&queued).settled().await;
    journaled(&house, &queued, "the verdict", says("ending", "alice")).await;
    let data = copy_of(house.dir.path());
    database(data.path()).execute_batch(TAKE).unwrap();
    let after = House::on(Ground::Own(data), Claim::shared().await, |_| {}).await;
    let view = after.engine.run(&queued).await.unwrap().unwrap();
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    assert!(!receipt(&view).turn.recorded, "{view:#?}");
    let seen = next_request(&after).await;
    assert!(seen.contains("think") && !seen.contains("forget this"), "{seen}");
    after.close().await;
    house.stop(&first).settled().await;
    house.close().await;
}

/// Who reads the database at any moment finds a steered message in its queue or in the journal of the run that took it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steered_message_is_never_in_neither_of_two_runs() {
    let house = House::shared().await;
    let watch = "CREATE TRIGGER watch BEFORE UPDATE ON runs WHEN new.state = 'steered'
                 BEGIN SELECT RAISE(ABORT, 'it would be lost') WHERE NOT EXISTS (
                     SELECT 1 FROM journal WHERE run = new.steered_into AND line LIKE '%turn left%'); END";
    let other = database(house.dir.path());
    other.execute_batch(watch).unwrap();
    let call = Stream::new().wait_for("go").tool_call("c1", "shell", &json!({"command": "true"}));
    house.model.script(call).script(Behaviour::silent_mid_stream("I turn."));
    let run = house.send(message("s", "begin")).await;
    house.model.request(0).resting().await;
    let steer = house.answer(Submission { on_busy: OnBusy::Steer, ..message("s", "turn left") }).await;
    house.model.open_gate("go");
    house.text_came(&run).await;
    let id = steer.message_id.unwrap();
    leaks::settled(PATIENCE, move || {
        let sql = "SELECT state FROM runs WHERE id = ?1";
        let state: String = other.query_row(sql, [id.as_str()], |row| row.get(0)).unwrap();
        if state == "steered" { Ok(()) } else { Err(format!("the message is {state}")) }
    })
    .await;
    let after = after_the_crash(&house).await;
    let seen = next_request(&after).await;
    assert!(seen.contains("turn left"), "{seen}");
    after.close().await;
    house.stop(&run).settled().await;
    house.close().await;
}

/// The journal of a run says that it has begun, also where its start could not be stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_start_was_refused_is_no_queued_one_after_a_crash() {
    let house = House::shared().await;
    let refuse_starts = "CREATE TRIGGER refuse BEFORE UPDATE ON runs WHEN new.state = 'started'
                         BEGIN SELECT RAISE(ABORT, 'not now'); END";
    database(house.dir.path()).execute_batch(refuse_starts).unwrap();
    house.model.script(Behaviour::SilentBeforeHeaders);
    let run = house.send(message("s", "think about it")).await;
    house.model.request(0).resting().await;
    journaled(&house, &run, "its first step", says("step", "1")).await;
    let after = after_the_crash(&house).await;
    let view = after.engine.run(&run).await.unwrap().unwrap();
    assert!(receipt(&view).turn.recorded, "{view:#?}");
    let seen = next_request(&after).await;
    assert!(seen.contains("think about it"), "{seen}");
    after.close().await;
    house.stop(&run).settled().await;
    house.close().await;
}
