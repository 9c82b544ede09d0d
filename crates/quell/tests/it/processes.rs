//! Misbehaving commands in real runs: after the stop, or after the call, nothing of them is alive, and the model is told.

use std::slice::from_ref;
use std::time::{Duration, Instant};

use quell_kernel::Push;
use quell_protocol::api::RunView;
use quell_protocol::{ResourceKind, RunId, Rung, Verdict};
use quell_testkit::commands::{self, Marker};
use quell_testkit::pace::allowed;
use quell_testkit::{Behaviour, leaks};
use rstest::rstest;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::harness::{House, PATIENCE, alice, ask, flat, message, of_run, receipt};

/// Factor by which a busy machine may be slower than the targets.
const SLACK: u32 = 3;

type Command = fn(&Marker) -> String;

/// A run whose shell runs `command`, once `processes` of it are up.
async fn running(house: &House, mark: &Marker, command: String, processes: usize) -> RunId {
    house.model.script(Behaviour::tool_call("c1", "shell", &json!({"command": command})));
    let run = house.send(message("s", "run it")).await;
    house.holds(&run, ResourceKind::Process).await;
    mark.at_least(processes).await;
    run
}

/// Stops the run and says how long its processes lived on, as the operating system saw it.
#[expect(clippy::print_stdout, reason = "the figure is what this is about")]
async fn stop_and_time(house: &House, mark: &Marker, run: &RunId, push: Push, what: &str) -> (Duration, RunView) {
    let asked = Instant::now();
    let stop = house.engine.stop(&alice(), &of_run(run), &ask(push));
    assert_eq!(stop.aborted, from_ref(run));
    mark.gone(PATIENCE).await;
    let took = asked.elapsed();
    let view = house.ended(run).await;
    println!("{what}, {push:?}: all processes gone after {:.1} ms", took.as_secs_f64() * 1000.0);
    leaks::no_process_with(&format!("QUELL_RUN_ID={run}"), PATIENCE).await;
    assert!(receipt(&view).leftovers.is_empty(), "{view:#?}");
    (took, view)
}

async fn the_next_message_works(house: &House) -> String {
    house.model.script(Behaviour::text("fine"));
    assert_eq!(house.ask("s", "and now?").await.verdict, Some(Verdict::Completed));
    house.model.assert_histories_valid();
    flat(&house.last_messages())
}

/// One kind of command.
struct Kind {
    command: Command,
    /// How many processes it starts.
    processes: usize,
    /// What it prints when it is as bad as it can be.
    says: Option<&'static str>,
}

/// A kind that is ready when its processes are.
fn plain(command: Command, processes: usize) -> Kind {
    Kind { command, processes, says: None }
}

/// A kind that says when it is ready.
fn saying(says: &'static str, command: Command, processes: usize) -> Kind {
    Kind { command, processes, says: Some(says) }
}

async fn running_kind(house: &House, mark: &Marker, kind: &Kind) -> RunId {
    let run = running(house, mark, (kind.command)(mark), kind.processes).await;
    if let Some(says) = kind.says {
        house.printed(&run, says).await;
    }
    run
}

#[rstest]
#[case::obedient(plain(commands::obedient, 1), Rung::Term, 200)]
#[case::setsid(plain(commands::setsid_child, 2), Rung::Term, 200)]
#[case::double_fork(plain(commands::double_fork, 2), Rung::Term, 200)]
#[case::closes_its_output(plain(commands::closes_its_output, 1), Rung::Term, 200)]
#[case::ignores_signals(saying("deaf", commands::ignores_signals, 1), Rung::Kill, 700)]
#[case::deaf_setsid(saying("deaf", commands::deaf_setsid_child, 2), Rung::Kill, 700)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gentle_stop_ends_every_process(#[case] kind: Kind, #[case] rung: Rung, #[case] limit_ms: u64) {
    let house = House::shared().await;
    let mark = Marker::new();
    let run = running_kind(&house, &mark, &kind).await;
    let (took, view) = stop_and_time(&house, &mark, &run, Push::Gentle, "gentle").await;
    assert!(took < allowed(Duration::from_millis(limit_ms) * SLACK), "{took:?}");
    assert_eq!(receipt(&view).rung, rung, "{view:#?}");
    the_next_message_works(&house).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_that_a_command_starts_at_its_term_is_ended_too() {
    let house = House::shared().await;
    let mark = Marker::new();
    let run = running_kind(&house, &mark, &saying("armed", commands::respawns_on_term, 1)).await;
    let (took, view) = stop_and_time(&house, &mark, &run, Push::Gentle, "gentle").await;
    assert!(took < allowed(Duration::from_millis(700) * SLACK), "{took:?}");
    // The successor may get the TERM of the next round, or be born too late for it.
    assert!(matches!(receipt(&view).rung, Rung::Term | Rung::Kill), "{view:#?}");
    the_next_message_works(&house).await;
    house.close().await;
}

#[rstest]
#[case::obedient(plain(commands::obedient, 1))]
#[case::double_fork(plain(commands::double_fork, 2))]
#[case::deaf_setsid(saying("deaf", commands::deaf_setsid_child, 2))]
#[case::stops_itself(plain(commands::stops_itself, 1))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_stop_ends_every_process_within_50_ms(#[case] kind: Kind) {
    let house = House::shared().await;
    let mark = Marker::new();
    let run = running_kind(&house, &mark, &kind).await;
    let (took, view) = stop_and_time(&house, &mark, &run, Push::Forced, "forced").await;
    assert!(took < allowed(Duration::from_millis(50) * SLACK), "{took:?}");
    // What obeys may be gone by the TERM that comes a moment before the KILL.
    assert!(matches!(receipt(&view).rung, Rung::Term | Rung::Kill), "{view:#?}");
    the_next_message_works(&house).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_warden_leaves_nothing_and_the_run_goes_on() {
    let house = House::alone().await;
    let mark = Marker::new();
    let run = running(&house, &mark, commands::deaf_setsid_child(&mark), 2).await;
    house.model.script(Behaviour::text("it was killed"));
    let children = leaks::children_of(std::process::id());
    let wardens: Vec<_> = children.iter().filter(|child| child.command.contains("warden")).collect();
    let [warden] = wardens.as_slice() else { panic!("not one warden: {children:#?}") };
    let pid = Pid::from_raw(i32::try_from(warden.pid).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    mark.gone(PATIENCE).await;
    let view = house.ended(&run).await;
    assert_eq!(view.verdict, Some(Verdict::Completed), "{view:#?}");
    assert!(receipt(&view).leftovers.is_empty(), "{view:#?}");
    let seen = flat(&house.last_messages());
    assert!(seen.contains("its supervising process was killed"), "{seen}");
    the_next_message_works(&house).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forking_storm_is_over_within_the_hard_limit() {
    let house = House::shared().await;
    let mark = Marker::new();
    let run = running(&house, &mark, commands::fork_storm(&mark, 20, 100_000), 10).await;
    let hard = house.engine.config().stop.hard;
    let (took, _) = stop_and_time(&house, &mark, &run, Push::Forced, "fork storm").await;
    assert!(took < hard, "{took:?}");
    the_next_message_works(&house).await;
    house.close().await;
}

#[rstest]
#[case::in_its_group(commands::background_server)]
#[case::detached(commands::detached_server)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_left_behind_is_dead_when_the_call_returns_and_the_model_is_told(#[case] command: Command) {
    let house = House::shared().await;
    let mark = Marker::new();
    house.model.script(Behaviour::tool_call("c1", "shell", &json!({"command": command(&mark)})));
    house.model.script(Behaviour::SilentBeforeHeaders);
    let run = house.send(message("s", "start the server")).await;
    // The call has returned: its result is in the second request.
    let request = house.model.request(1).arrived().await;
    assert_eq!(mark.survivors(), []);
    let seen = flat(request.messages());
    assert!(seen.contains("started") && seen.contains("left running"), "{seen}");
    assert!(seen.contains("background: true"), "{seen}");
    house.stop(&run);
    let view = house.ended(&run).await;
    let row = receipt(&view).resources.iter().find(|row| row.kind == ResourceKind::Process).unwrap();
    assert!(row.process.as_ref().unwrap().swept >= 1, "{row:?}");
    house.close().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_stopped_command_had_printed_is_in_the_next_request(#[values(Push::Gentle, Push::Forced)] push: Push) {
    let house = House::shared().await;
    let mark = Marker::new();
    let run = running(&house, &mark, commands::prints_then_waits(&mark, 7), 1).await;
    let mut follower = house.engine.live(&run).unwrap().follow(0);
    let mut printed = String::new();
    while !printed.contains("line 7\n") {
        let event = follower.next().await.unwrap();
        if let quell_protocol::EventKind::ToolOutput { text, .. } = &event.kind {
            printed.push_str(text);
        }
    }
    stop_and_time(&house, &mark, &run, push, "prints and waits").await;
    let seen = the_next_message_works(&house).await;
    assert!((1..=7).all(|line| seen.contains(&format!("line {line}\\n"))), "{seen}");
    house.close().await;
}
