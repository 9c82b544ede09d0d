//! Misbehaving commands in real runs leave no process after a stop or a call, and the model is told.

use std::slice::from_ref;
use std::time::Instant;

use quell_kernel::StopLevel::{Forced, Gentle};
use rustix::process::{Pid, Signal, kill_process};

use crate::prelude::*;

const TERM_OR_KILL: &[Rung] = &[Rung::Term, Rung::Kill];

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
async fn stop_and_time(
    test: &TestEngine,
    marker: &ProcessMarker,
    run: &RunId,
    level: StopLevel,
) -> (Duration, RunView) {
    let asked = Instant::now();
    let stop = test.engine.stop(&alice(), &run_stop_scope(run), &stop_ask(level));
    assert_eq!(stop.aborted, from_ref(run));
    marker.wait_gone(WAIT_TIMEOUT).await;
    let took = asked.elapsed();
    let view = test.wait_ended(run).await;
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

#[rstest]
#[ignore = "full: more commands of this kind"]
#[case::obedient(Gentle, ready_when_running(commands::obeys_signals, 1), &[Rung::Term])]
#[case::setsid(Gentle, ready_when_running(commands::setsid_child, 2), &[Rung::Term])]
#[case::double_fork(Gentle, ready_when_running(commands::double_fork, 2), &[Rung::Term])]
#[ignore = "full: more commands of this kind"]
#[case::closes_its_output(Gentle, ready_when_running(commands::closes_its_output, 1), &[Rung::Term])]
#[case::ignores_signals(Gentle, ready_when_printed("deaf", commands::ignores_signals, 1), &[Rung::Kill])]
#[case::deaf_setsid(Gentle, ready_when_printed("deaf", commands::signal_ignoring_setsid_child, 2), &[Rung::Kill])]
// The successor that it starts may get the SIGTERM of the next round, or start too late for it.
#[ignore = "full: more commands of this kind"]
#[case::respawns_at_its_term(Gentle, ready_when_printed("armed", commands::respawns_on_term, 1), TERM_OR_KILL)]
// A forced stop sends SIGKILL right after SIGTERM; obedient commands may end at the latter.
#[ignore = "full: more commands of this kind"]
#[case::forced_obedient(Forced, ready_when_running(commands::obeys_signals, 1), TERM_OR_KILL)]
#[ignore = "full: more commands of this kind"]
#[case::forced_double_fork(Forced, ready_when_running(commands::double_fork, 2), TERM_OR_KILL)]
#[case::forced_deaf(Forced, ready_when_printed("deaf", commands::signal_ignoring_setsid_child, 2), TERM_OR_KILL)]
#[ignore = "full: more commands of this kind"]
#[case::forced_stops_itself(Forced, ready_when_running(commands::stops_itself, 1), TERM_OR_KILL)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_every_process(#[case] level: StopLevel, #[case] kind: CommandKind, #[case] rungs: &[Rung]) {
    let (_, view) = stop_command(level, kind).await;
    assert!(rungs.contains(&receipt_of(&view).rung), "{view:#?}");
}

/// Returns the time until all processes of the command are gone, and the run.
async fn stop_command(level: StopLevel, kind: CommandKind) -> (Duration, RunView) {
    let test = TestEngine::start_shared().await;
    let marker = ProcessMarker::new();
    let run = start_command_run(&test, &marker, (kind.command)(&marker), kind.processes).await;
    if let Some(output) = kind.ready_output {
        test.wait_printed(&run, output).await;
    }
    let stopped = stop_and_time(&test, &marker, &run, level).await;
    test.next_request_text().await;
    test.close().await;
    stopped
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
    let (_, view) = stop_and_time(&test, &marker, &run, StopLevel::Forced).await;
    assert!(receipt_of(&view).rung < Rung::Abandoned, "{view:#?}");
    test.next_request_text().await;
    test.close().await;
}

#[rstest]
#[ignore = "full: more commands of this kind"]
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

mod timing {
    use super::*;

    /// The targets are 200 ms and 700 ms for gentle stops, and 50 ms for forced ones.
    #[rstest]
    #[case::obedient(Gentle, ready_when_running(commands::obeys_signals, 1))]
    #[case::deaf(Gentle, ready_when_printed("deaf", commands::signal_ignoring_setsid_child, 2))]
    #[case::forced_obedient(Forced, ready_when_running(commands::obeys_signals, 1))]
    #[case::forced_deaf(Forced, ready_when_printed("deaf", commands::signal_ignoring_setsid_child, 2))]
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_stop_ends_every_process(#[case] level: StopLevel, #[case] kind: CommandKind) {
        let (took, _) = stop_command(level, kind).await;
        report_time(&format!("{level:?} stop of a command"), took);
    }

    /// The target is the hard limit of 5 s.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_stop_ends_a_forking_storm() {
        let test = TestEngine::start_shared().await;
        let marker = ProcessMarker::new();
        let run = start_command_run(&test, &marker, commands::fork_storm(&marker, 20, 100_000), 10).await;
        let (took, _) = stop_and_time(&test, &marker, &run, StopLevel::Forced).await;
        report_time("forced stop of a fork storm", took);
        test.close().await;
    }
}
