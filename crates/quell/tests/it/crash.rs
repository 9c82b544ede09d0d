//! What a daemon that dies leaves behind, and what the next one makes of it. Where it may die at all is the sweep's business.

mod disk;
mod disk_at_start;
mod kills;
mod refused;

use std::path::Path;

use quell_engine::agent::AgentConfig;
use quell_engine::dispatch::Follow;
use quell_kernel::Push;
use quell_kernel::turn::PartialPolicy;
use quell_protocol::{EventKind, RunId, StopReason, Verdict};
use quell_testkit::commands::{self, Marker};
use quell_testkit::leaks;
use quell_testkit::model::{Behaviour, Stream};
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::harness::{
    Claim, Ground, House, PATIENCE, abort_reason, alice, ask, copy_of, flat, message, of_run, receipt,
};

/// The leftovers of a receipt that are this run's for certain. Tests run beside each other: what the dead daemon of another
/// test has left may be named as well.
pub(crate) fn certain(leftovers: &Value) -> Vec<&str> {
    let names = leftovers.as_array().unwrap().iter().map(|left| left["name"].as_str().unwrap());
    names.filter(|name| !name.contains("may be of this run")).collect()
}

/// A second house on the ground as it is at this instant: what a daemon that dies now would leave to it.
async fn after_the_crash(house: &House) -> House {
    House::on(Ground::Own(copy_of(house.dir.path())), Claim::shared().await, keep_partials).await
}

fn keep_partials(config: &mut quell_engine::EngineConfig) {
    config.agents.values_mut().for_each(|agent: &mut AgentConfig| agent.partial = PartialPolicy::Keep);
}

fn database(data: &Path) -> Connection {
    let database = Connection::open(data.join("quell.db")).unwrap();
    database.busy_timeout(PATIENCE).unwrap();
    database
}

/// Waits until the journal of a run holds a line that this is true of.
async fn journaled(house: &House, run: &RunId, what: &'static str, wanted: impl Fn(&Value) -> bool + Send + 'static) {
    let (database, run) = (database(house.dir.path()), run.clone());
    leaks::settled(PATIENCE, move || {
        let mut lines = database.prepare("SELECT line FROM journal WHERE run = ?1 ORDER BY number").unwrap();
        let lines: Vec<Value> = lines
            .query_map([run.as_str()], |row| row.get::<_, String>(0))
            .unwrap()
            .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
            .collect();
        if lines.iter().any(&wanted) { Ok(()) } else { Err(format!("{what} is not in {lines:#?}")) }
    })
    .await;
}

fn says(kind: &'static str, text: &'static str) -> impl Fn(&Value) -> bool + Send + 'static {
    move |line| line["kind"] == kind && line.to_string().contains(text)
}

/// What the model is shown by the next message of session `s`.
async fn next_request(house: &House) -> String {
    house.model.script(Behaviour::text("after"));
    let next = house.ask("s", "and now?").await;
    assert_eq!(next.verdict, Some(Verdict::Completed));
    house.model.assert_histories_valid();
    flat(house.model.seen().last().unwrap().messages())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_finished_stays_and_what_ran_is_told() {
    let house = House::shared().await;
    let mark = Marker::new();
    let waits = format!("printf 'printed %s it died\\n' before; {}", commands::setsid_child(&mark));
    let batch = Stream::new()
        .text("I look around.")
        .tool_call("c1", "shell", &json!({"command": "echo finished $((40+2))"}))
        .tool_call("c2", "shell", &json!({"command": waits}))
        .tool_call("c3", "shell", &json!({"command": "echo never"}));
    house.model.script(batch);
    let run = house.send(message("s", "look around")).await;
    journaled(&house, &run, "what it printed", says("printed", "before it died")).await;

    let after = after_the_crash(&house).await;
    let view = after.engine.run(&run).await.unwrap().unwrap();
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::DaemonStopped);
    assert_eq!((view.steps, view.usage.estimated), (1, false), "{view:#?}");
    assert!(view.usage.input_tokens > 0 && receipt(&view).usage == view.usage, "{view:#?}");
    // The first daemon is not really dead, and so its command was alive: the second one has ended it.
    assert_eq!(certain(&json!(receipt(&view).leftovers)), [""; 0], "{view:#?}");
    assert_eq!(mark.survivors(), []);
    let seen = next_request(&after).await;
    for told in ["I look around.", "finished 42", "printed before it died", "Side effects are possible", "did nothing"]
    {
        assert!(seen.contains(told), "{told:?} is not in {seen}");
    }
    assert!(seen.contains("stopped because the service went down"), "{seen}");
    after.close().await;
    house.stop(&run).settled().await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_that_streamed_is_there_for_people_and_by_the_agents_policy_for_the_model() {
    let house = House::shared().await;
    house.model.script(Behaviour::silent_mid_stream("The first half of an answer"));
    let run = house.send(message("s", "tell me")).await;
    journaled(&house, &run, "its text", says("text", "first half")).await;
    let after = after_the_crash(&house).await;
    let view = after.engine.run(&run).await.unwrap().unwrap();
    assert_eq!(view.output.as_deref(), Some("The first half of an answer"));
    let seen = next_request(&after).await;
    assert!(seen.contains("The first half of an answer") && seen.contains("[Interrupted"), "{seen}");
    after.close().await;
    house.stop(&run).settled().await;
    house.close().await;
}

/// Its daemon dies between the stop and the death of a deaf command: the verdict is the person's all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_outlives_the_daemon_that_took_it() {
    // The command dies of the forced stop, and of nothing before that.
    let slow = |config: &mut quell_engine::EngineConfig| {
        config.stop.term = PATIENCE * 2;
        config.stop.grace = PATIENCE * 2;
    };
    let house = House::with(Claim::shared().await, slow).await;
    let mark = Marker::new();
    let deaf = json!({"command": commands::deaf_setsid_child(&mark)});
    house.model.script(Behaviour::tool_call("c1", "shell", &deaf));
    let run = house.send(message("s", "wait for ever")).await;
    house.printed(&run, "deaf").await;
    let stop = house.stop(&run);
    journaled(&house, &run, "the verdict", says("ending", "alice")).await;
    let after = after_the_crash(&house).await;
    house.engine.stop(&alice(), &of_run(&run), &ask(Push::Forced)).settled().await;
    stop.settled().await;
    let view = after.engine.run(&run).await.unwrap().unwrap();
    let theirs = house.ended(&run).await;
    assert_eq!(view.verdict, theirs.verdict, "{view:#?}");
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    let asked = |view: &quell_protocol::api::RunView| receipt(view).requested_at.as_ref().map(|at| at.at.clone());
    assert_eq!(asked(&view), asked(&theirs));
    let seen = next_request(&after).await;
    assert!(seen.contains("stopped on purpose by the user"), "{seen}");
    after.close().await;
    house.close().await;
}

/// The turn is in the database, and the daemon died before it had stored the end of the run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorded_turn_says_how_its_run_ended() {
    let house = House::shared().await;
    house.model.script(Behaviour::text("All is well."));
    let run = house.ask("s", "how is it?").await.run_id;
    let data = copy_of(house.dir.path());
    // Its client had seen more events than a block of reserved numbers has.
    let had_seen = 70_000;
    let died = format!("UPDATE runs SET state = 'started', view = json_set(view, '$.seq', {had_seen})");
    database(data.path()).execute_batch(&died).unwrap();
    let after = House::on(Ground::Own(data), Claim::shared().await, |_| {}).await;
    let view = after.engine.run(&run).await.unwrap().unwrap();
    assert_eq!((view.verdict.as_ref(), view.output.as_deref()), (Some(&Verdict::Completed), Some("All is well.")));
    assert!(receipt(&view).turn.recorded && view.result.as_ref().unwrap().success, "{view:#?}");
    let end = after.engine.follow(&run, had_seen).await.unwrap();
    let Some(Follow::Over(events)) = end else { panic!("live") };
    assert!(events.iter().all(|event| event.seq >= had_seen), "numbers go backwards: {events:#?}");
    assert!(matches!(events.last().unwrap().kind, EventKind::Ended { .. }), "{events:#?}");
    let seen = next_request(&after).await;
    assert!(seen.contains("All is well.") && !seen.contains("went down"), "{seen}");
    after.close().await;
    house.close().await;
}

/// A disk that lost a page, or a daemon of another version: what can be read before that is kept, and the start goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_is_read_as_far_as_it_can_be() {
    let house = House::shared().await;
    let batch = Stream::new().text("I look.").tool_call("c1", "shell", &json!({"command": "echo one"})).tool_call(
        "c2",
        "shell",
        &json!({"command": "sleep 600"}),
    );
    house.model.script(batch);
    let run = house.send(message("s", "look")).await;
    journaled(&house, &run, "the second call", says("began", "c2")).await;
    let data = copy_of(house.dir.path());
    let damage = r#"UPDATE journal SET line = '{"kind":"of a later version"}' WHERE line LIKE '%finished%'"#;
    database(data.path()).execute_batch(damage).unwrap();
    let after = House::on(Ground::Own(data), Claim::shared().await, |_| {}).await;
    let seen = next_request(&after).await;
    assert!(seen.contains("I look.") && seen.contains("Side effects are possible"), "{seen}");
    after.close().await;
    house.stop(&run).settled().await;
    house.close().await;
}

/// One damaged row is one run's trouble: the daemon starts, the run is over, and the session goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_row_is_damaged_does_not_keep_the_daemon_from_starting() {
    let house = House::shared().await;
    house.model.script(Behaviour::text("All is well."));
    house.ask("s", "how is it?").await;
    house.model.script(Behaviour::silent_mid_stream("The first half"));
    let run = house.send(message("s", "tell me")).await;
    journaled(&house, &run, "its text", says("text", "first half")).await;
    let data = copy_of(house.dir.path());
    database(data.path()).execute_batch("UPDATE runs SET view = '{' WHERE state <> 'ended'").unwrap();
    let after = House::on(Ground::Own(data), Claim::shared().await, keep_partials).await;
    let view = after.engine.run(&run).await.unwrap().unwrap();
    assert_eq!((view.state.as_str(), view.output.as_deref()), ("ended", Some("The first half")), "{view:#?}");
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::DaemonStopped);
    let seen = next_request(&after).await;
    assert!(seen.contains("All is well.") && seen.contains("damaged") && seen.contains("The first half"), "{seen}");
    after.close().await;
    house.stop(&run).settled().await;
    house.close().await;
}

/// A client that has seen many events of a run comes back after the crash and is told the end, as one event and once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_told_the_end_whatever_it_had_seen() {
    let house = House::shared().await;
    let mut stream = Stream::new();
    for n in 0..2000 {
        stream = stream.text(format!("{n} "));
    }
    house.model.script(stream.wait_for("never"));
    let run = house.send(message("s", "count")).await;
    journaled(&house, &run, "the last number", says("text", "1999 ")).await;
    let had_seen = house.engine.live(&run).unwrap().last_seq();
    assert!(had_seen > 2000);
    let after = after_the_crash(&house).await;
    for cursor in [0, 7, had_seen] {
        let Some(Follow::Over(events)) = after.engine.follow(&run, cursor).await.unwrap() else { panic!("live") };
        let [snapshot, end] = events.as_slice() else { panic!("{events:#?}") };
        assert!(matches!(&snapshot.kind, EventKind::Snapshot { text, .. } if text.contains("1999 ")), "{snapshot:#?}");
        assert!(matches!(end.kind, EventKind::Ended { .. }) && end.seq > had_seen, "{end:#?}");
        let again = after.engine.follow(&run, end.seq).await.unwrap();
        let Some(Follow::Over(again)) = again else { panic!("it is live, or unknown") };
        assert_eq!(again.as_slice(), std::slice::from_ref(end), "the end is not told once");
    }
    after.close().await;
    house.stop(&run).settled().await;
    house.close().await;
}

/// Somebody removed the lock file and started a second daemon: the first one may not write any more, and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_lost_its_data_starts_no_tool() {
    let house = House::shared().await;
    let call = Stream::new().wait_for("go").tool_call("c1", "shell", &json!({"command": "touch proof"}));
    house.model.script(call);
    let run = house.send(message("s", "write")).await;
    house.model.request(0).resting().await;
    std::fs::remove_file(house.dir.path().join("quell.lock")).unwrap();
    let ground = Ground::Lent(house.dir.path().to_path_buf());
    let second = House::on(ground, Claim::shared().await, |_| {}).await;
    assert_eq!(second.engine.run(&run).await.unwrap().unwrap().state, "ended", "the second daemon seals what it finds");
    house.model.open_gate("go");
    let Some(cell) = house.engine.live(&run) else { panic!("{run} is over") };
    cell.reached(quell_engine::cell::Progress::Ended).await;
    let Some(Verdict::Failed { code, message: why }) = cell.verdict() else { panic!("{:?}", cell.verdict()) };
    assert_eq!(code, "store");
    assert!(why.contains("shell was not started") && why.contains("another quell has taken over"), "{why}");
    assert!(!house.workdir().join("proof").exists());
    let refused = house.engine.submit(&alice(), message("s", "again")).await.unwrap_err();
    assert!(refused.to_string().contains("another quell has taken over"), "{refused}");
    second.close().await;
    house.engine.shut_down().await;
}
