//! Misbehaving commands in real runs leave no process after a stop or a call, and the model is told.

use std::slice::from_ref;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::prelude::*;

/// How much slower a busy machine may be than the time limits.
const SLOWDOWN_FACTOR: u32 = 3;

type CommandFn = fn(&ProcessMarker) -> String;

/// Starts a run whose shell runs `command`; waits until `processes` of its processes are running.
async fn start_command_run(test: &TestEngine, marker: &ProcessMarker, command: String, processes: usize) -> RunId {
    test.model.script(ScriptedResponse::tool_call("c1", "shell", &json!({"command": command})));
    let run = test.send(submission("s", "run it")).await;
    test.wait_resource_held(&run, ResourceKind::Process).await;
    marker.wait_for_count(processes).await;
    run
}

/// Stops the run; returns how long its processes lived on, as the operating system reports it.
#[expect(clippy::print_stdout, reason = "the measured time is a result of the test")]
async fn stop_and_time(
    test: &TestEngine,
    marker: &ProcessMarker,
    run: &RunId,
    level: StopLevel,
    what: &str,
) -> (Duration, RunView) {
    let asked = Instant::now();
    let stop = test.engine.stop(&alice(), &run_stop_scope(run), &stop_ask(level));
    assert_eq!(stop.aborted, from_ref(run));
    marker.wait_gone(WAIT_TIMEOUT).await;
    let took = asked.elapsed();
    let view = test.wait_ended(run).await;
    println!("{what}, {level:?}: all processes gone after {:.1} ms", took.as_secs_f64() * 1000.0);
    leaks::wait_no_process_with_env(&format!("QUELL_RUN_ID={run}"), WAIT_TIMEOUT).await;
    assert!(receipt_of(&view).leftovers.is_empty(), "{view:#?}");
    (took, view)
}

struct CommandKind {
    command: CommandFn,
    /// How many processes the command starts.
    processes: usize,
    /// What the command prints once its signal handling is set up.
    ready_output: Option<&'static str>,
}

/// A command that is ready as soon as its processes run.
fn ready_when_running(command: CommandFn, processes: usize) -> CommandKind {
    CommandKind { command, processes, ready_output: None }
}

/// A command that prints a text when it is ready.
fn ready_when_printed(output: &'static str, command: CommandFn, processes: usize) -> CommandKind {
    CommandKind { command, processes, ready_output: Some(output) }
}

async fn start_kind(test: &TestEngine, marker: &ProcessMarker, kind: &CommandKind) -> RunId {
    let run = start_command_run(test, marker, (kind.command)(marker), kind.processes).await;
    if let Some(output) = kind.ready_output {
        test.wait_printed(&run, output).await;
    }
    run
}

#[rstest]
#[case::obedient(ready_when_running(commands::obeys_signals, 1), Rung::Term, 200)]
#[case::setsid(ready_when_running(commands::setsid_child, 2), Rung::Term, 200)]
#[case::double_fork(ready_when_running(commands::double_fork, 2), Rung::Term, 200)]
#[case::closes_its_output(ready_when_running(commands::closes_its_output, 1), Rung::Term, 200)]
#[case::ignores_signals(ready_when_printed("deaf", commands::ignores_signals, 1), Rung::Kill, 700)]
#[case::deaf_setsid(ready_when_printed("deaf", commands::signal_ignoring_setsid_child, 2), Rung::Kill, 700)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gentle_stop_ends_every_process(#[case] kind: CommandKind, #[case] rung: Rung, #[case] limit_ms: u64) {
    let test = TestEngine::start_shared().await;
    let marker = ProcessMarker::new();
    let run = start_kind(&test, &marker, &kind).await;
    let (took, view) = stop_and_time(&test, &marker, &run, StopLevel::Gentle, "gentle").await;
    assert!(took < scaled_limit(Duration::from_millis(limit_ms) * SLOWDOWN_FACTOR), "{took:?}");
    assert_eq!(receipt_of(&view).rung, rung, "{view:#?}");
    test.next_request_text().await;
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_that_a_command_starts_at_its_term_is_ended_too() {
    let test = TestEngine::start_shared().await;
    let marker = ProcessMarker::new();
    let run = start_kind(&test, &marker, &ready_when_printed("armed", commands::respawns_on_term, 1)).await;
    let (took, view) = stop_and_time(&test, &marker, &run, StopLevel::Gentle, "gentle").await;
    assert!(took < scaled_limit(Duration::from_millis(700) * SLOWDOWN_FACTOR), "{took:?}");
    // The new process may get the SIGTERM of the next round, or start too late for it.
    assert!(matches!(receipt_of(&view).rung, Rung::Term | Rung::Kill), "{view:#?}");
    test.next_request_text().await;
    test.close().await;
}

#[rstest]
#[case::obedient(ready_when_running(commands::obeys_signals, 1))]
#[case::double_fork(ready_when_running(commands::double_fork, 2))]
#[case::deaf_setsid(ready_when_printed("deaf", commands::signal_ignoring_setsid_child, 2))]
#[case::stops_itself(ready_when_running(commands::stops_itself, 1))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_stop_ends_every_process_within_50_ms(#[case] kind: CommandKind) {
    let test = TestEngine::start_shared().await;
    let marker = ProcessMarker::new();
    let run = start_kind(&test, &marker, &kind).await;
    let (took, view) = stop_and_time(&test, &marker, &run, StopLevel::Forced, "forced").await;
    assert!(took < scaled_limit(Duration::from_millis(50) * SLOWDOWN_FACTOR), "{took:?}");
    // Obedient commands may end at the SIGTERM that precedes the SIGKILL.
    assert!(matches!(receipt_of(&view).rung, Rung::Term | Rung::Kill), "{view:#?}");
    test.next_request_text().await;
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_warden_leaves_nothing_and_the_run_goes_on() {
    let test = TestEngine::start_exclusive().await;
    let marker = ProcessMarker::new();
    let run = start_command_run(&test, &marker, commands::signal_ignoring_setsid_child(&marker), 2).await;
    test.model.script(ScriptedResponse::text("it was killed"));
    let children = leaks::children_of(std::process::id());
    let wardens: Vec<_> = children.iter().filter(|child| child.command.contains("warden")).collect();
    let [warden] = wardens.as_slice() else { panic!("not one warden: {children:#?}") };
    let pid = Pid::from_raw(i32::try_from(warden.pid).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    marker.wait_gone(WAIT_TIMEOUT).await;
    let view = test.wait_ended(&run).await;
    assert_eq!(view.verdict, Some(Verdict::Completed), "{view:#?}");
    assert!(receipt_of(&view).leftovers.is_empty(), "{view:#?}");
    let seen = messages_as_text(&test.last_messages());
    assert!(seen.contains("its supervising process was killed"), "{seen}");
    test.next_request_text().await;
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forking_storm_is_over_within_the_hard_limit() {
    let test = TestEngine::start_shared().await;
    let marker = ProcessMarker::new();
    let run = start_command_run(&test, &marker, commands::fork_storm(&marker, 20, 100_000), 10).await;
    let hard = test.engine.config().stop_timeouts.hard;
    let (took, _) = stop_and_time(&test, &marker, &run, StopLevel::Forced, "fork storm").await;
    assert!(took < hard, "{took:?}");
    test.next_request_text().await;
    test.close().await;
}

#[rstest]
#[case::in_its_group(commands::background_server)]
#[case::detached(commands::detached_server)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_left_behind_is_dead_when_the_call_returns_and_the_model_is_told(#[case] command: CommandFn) {
    let test = TestEngine::start_shared().await;
    let marker = ProcessMarker::new();
    test.model.script(ScriptedResponse::tool_call("c1", "shell", &json!({"command": command(&marker)})));
    test.model.script(ScriptedResponse::SilentBeforeHeaders);
    let run = test.send(submission("s", "start the server")).await;
    // The call has returned: the second request holds its result.
    let request = test.model.request_at(1).wait_arrived().await;
    assert_eq!(marker.marked_processes(), []);
    let seen = messages_as_text(request.messages());
    assert!(seen.contains("started") && seen.contains("left running"), "{seen}");
    assert!(seen.contains("background: true"), "{seen}");
    test.stop(&run);
    let view = test.wait_ended(&run).await;
    let row = receipt_of(&view).resources.iter().find(|row| row.kind == ResourceKind::Process).unwrap();
    assert!(row.process.as_ref().unwrap().swept >= 1, "{row:?}");
    test.close().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_of_a_stopped_command_is_in_the_next_request(
    #[values(StopLevel::Gentle, StopLevel::Forced)] level: StopLevel,
) {
    let test = TestEngine::start_shared().await;
    let marker = ProcessMarker::new();
    let run = start_command_run(&test, &marker, commands::prints_then_waits(&marker, 7), 1).await;
    let mut follower = test.engine.live_run(&run).unwrap().follow(0);
    let mut printed = String::new();
    while !printed.contains("line 7\n") {
        let event = follower.next().await.unwrap();
        if let EventKind::ToolOutput { text, .. } = &event.kind {
            printed.push_str(text);
        }
    }
    stop_and_time(&test, &marker, &run, level, "prints and waits").await;
    let seen = test.next_request_text().await;
    assert!((1..=7).all(|line| seen.contains(&format!("line {line}\\n"))), "{seen}");
    test.close().await;
}
