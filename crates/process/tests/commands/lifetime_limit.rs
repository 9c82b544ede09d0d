//! The lifetime limit: wardens end everything when it passes, also under a daemon that is stopped.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::pin::pin;
use std::process::Command;
use std::time::{Duration, Instant};

use quell_kernel::StopTimeouts;
use quell_process::{
    Isolate, ProcessEnd, ProcessEndMethod, ProcessEndReason, SpawnError, WardenExe, Wardens, boot_time_now,
};
use quell_scope::Release;
use rstest::rstest;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::fixture::{
    CommandFixture, StartedScript, WARDEN_BINARY, WatchedOutput, child_pids, processes_with_run_id, stat_field,
};
use crate::isolation::isolating_fixture;
use crate::killed_wardens::{PROCESS_TREE_SCRIPT, pid_of, start_daemon};

/// Time from setting a limit to the `ready` of a command, also on a busy machine. Between two of the moments at which a
/// warden looks for its daemon, so that only its timer is in time.
const START_TIME: Duration = Duration::from_millis(2500);
const HOUR: Duration = Duration::from_secs(3600);

/// Returns `None` where namespaces are asked for and not permitted.
pub(crate) async fn fixture_with(isolate: Isolate) -> Option<CommandFixture> {
    match isolate {
        Isolate::Auto | Isolate::Pid => isolating_fixture().await,
        Isolate::None => Some(CommandFixture::new().await),
    }
}

fn assert_ended_by_limit(end: &ProcessEnd) {
    assert!(end.ended_by_lifetime_limit, "{end:?}");
    assert_eq!(
        (end.how, end.reason, end.signal),
        (ProcessEndMethod::Kill, ProcessEndReason::Stopped, Some(9)),
        "{end:?}"
    );
    assert_eq!((end.left_behind, end.leftovers.len()), (0, 0), "{end:?}");
}

#[rstest]
#[tokio::test]
async fn the_tree_dies_when_the_limit_passes(#[values(Isolate::None, Isolate::Pid)] isolate: Isolate) {
    let Some(fixture) = fixture_with(isolate).await else { return };
    pass_limit(&fixture).await;
}

/// Returns how late after the limit everything has ended.
pub(crate) async fn pass_limit(fixture: &CommandFixture) -> Duration {
    fixture.wardens.lifetime_limit().extend(boot_time_now() + START_TIME);
    let mut running = fixture.start_script(PROCESS_TREE_SCRIPT);
    let until = extend_until_ready(fixture, &mut running).await;
    let end = running.handle.await.unwrap().unwrap();
    let ended_at = boot_time_now();
    fixture.assert_gone();
    assert_ended_by_limit(&end);
    assert_eq!(end.swept, 5, "{end:?}");
    assert_eq!(fixture.scope.ledger().rows().last().unwrap().release(), Some(Release::Kill));
    ended_at.checked_sub(until).unwrap_or_else(|| panic!("ended before the limit"))
}

/// Waits until the command is ready. On a busy machine, where that takes longer than usual, the limit is extended
/// meanwhile. Returns the limit.
async fn extend_until_ready(fixture: &CommandFixture, running: &mut StartedScript) -> Duration {
    let mut ready = pin!(running.wait_for_output("ready"));
    loop {
        let until = boot_time_now() + START_TIME;
        fixture.wardens.lifetime_limit().extend(until);
        if tokio::time::timeout(START_TIME / 2, ready.as_mut()).await.is_ok() {
            return until;
        }
    }
}

#[rstest]
#[tokio::test]
async fn a_first_limit_reaches_running_commands(#[values(Isolate::None, Isolate::Pid)] isolate: Isolate) {
    let Some(fixture) = fixture_with(isolate).await else { return };
    set_passed_limit(&fixture).await;
}

/// Returns the time until everything has ended.
pub(crate) async fn set_passed_limit(fixture: &CommandFixture) -> Duration {
    let mut running = fixture.start_script(PROCESS_TREE_SCRIPT);
    running.wait_for_output("ready").await;
    let limited_at = Instant::now();
    fixture.wardens.lifetime_limit().extend(boot_time_now());
    let end = running.handle.await.unwrap().unwrap();
    fixture.assert_gone();
    assert_ended_by_limit(&end);
    limited_at.elapsed()
}

#[rstest]
#[tokio::test]
async fn an_extension_in_time_keeps_a_command_alive(#[values(Isolate::None, Isolate::Pid)] isolate: Isolate) {
    let Some(fixture) = fixture_with(isolate).await else { return };
    fixture.wardens.lifetime_limit().extend(boot_time_now() + START_TIME);
    let mut running = fixture.start_script("echo ready; sleep 2.7; echo late; exit 5");
    let first = extend_until_ready(&fixture, &mut running).await;
    fixture.wardens.lifetime_limit().extend(boot_time_now() + HOUR);
    let end = running.handle.await.unwrap().unwrap();
    assert!(boot_time_now() > first);
    assert_eq!((end.code, end.how, end.reason), (Some(5), ProcessEndMethod::Exited, ProcessEndReason::ByItself));
    assert!(!end.ended_by_lifetime_limit && end.output.text().ends_with("late\n"), "{end:?}");
}

/// The trap starts its `sleep` when the SIGTERM of the stop has reached everything. It must not get another one when the
/// first limit passes.
#[tokio::test]
async fn an_extension_changes_nothing_about_a_gentle_stop() {
    let fixture = CommandFixture::with_long_grace().await;
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    fixture.wardens.lifetime_limit().extend(boot_time_now() + START_TIME);
    let mut running = fixture.start_script(&format!(
        "trap 'echo caught; until test -e {}; do :; done; sleep 2.7 && echo cleaned; exit 4' TERM
        echo ready; while :; do sleep 0.01; done",
        go.display()
    ));
    let first = extend_until_ready(&fixture, &mut running).await;
    fixture.scope.cancel();
    running.wait_for_output("caught").await;
    fixture.wardens.lifetime_limit().extend(boot_time_now() + HOUR);
    std::fs::write(&go, "").unwrap();
    let end = running.handle.await.unwrap().unwrap();
    assert!(boot_time_now() > first);
    assert_eq!((end.code, end.how, end.reason), (Some(4), ProcessEndMethod::Term, ProcessEndReason::Stopped));
    assert!(!end.ended_by_lifetime_limit && end.output.text().contains("cleaned\n"), "{end:?}");
}

#[tokio::test]
async fn the_limit_ends_the_grace_of_a_gentle_stop() {
    let fixture = CommandFixture::with_long_grace().await;
    fixture.wardens.lifetime_limit().extend(boot_time_now() + START_TIME);
    let mut running = fixture.start_script("trap 'echo caught' TERM; echo ready; while :; do sleep 0.01; done");
    extend_until_ready(&fixture, &mut running).await;
    fixture.scope.cancel();
    running.wait_for_output("caught").await;
    let end = running.handle.await.unwrap().unwrap();
    fixture.assert_gone();
    assert_ended_by_limit(&end);
}

#[rstest]
#[tokio::test]
async fn nothing_outlives_the_limit_of_a_stopped_daemon(
    #[values("limited-daemon", "limited-isolating-daemon")] mode: &str,
) {
    let isolate = if mode == "limited-daemon" { Isolate::None } else { Isolate::Pid };
    let Some(fixture) = fixture_with(isolate).await else { return };
    let until = boot_time_now() + START_TIME;
    let limit = until.as_nanos().to_string();
    let args = [mode, &limit, "sh", "-c", PROCESS_TREE_SCRIPT];
    let mut daemon = start_daemon(&fixture, Command::new(WARDEN_BINARY), &args);
    let mut lines = BufReader::new(daemon.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "ready"), "the daemon's command did not start");
    let daemon_pid = Pid::from_child(&daemon);
    kill_process(daemon_pid, Signal::STOP).unwrap();
    let all = processes_with_run_id(&fixture.run_id);
    let mut below: Vec<Pid> = all.iter().filter_map(|line| pid_of(line)).filter(|pid| *pid != daemon_pid).collect();
    assert!(below.len() >= 5, "{below:?}");
    // Only root reads the environment of a warden.
    let wardens = child_pids(daemon_pid);
    assert!(!wardens.is_empty());
    below.extend(wardens);
    for pid in below {
        wait_for_death_under_stopped_daemon(pid, daemon_pid);
    }
    assert!(boot_time_now() > until, "ended before the limit");
    assert_eq!(stat_field(daemon_pid, 0), "T");
    kill_process(daemon_pid, Signal::CONT).unwrap();
    assert_eq!(lines.next().as_deref(), Some("ended by the limit: true, leftovers: 0"));
    // The pipe ends when the last process that holds it is gone, whatever its environment contains.
    assert_eq!(lines.next(), None);
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
    assert_eq!(processes_with_run_id(&fixture.run_id), Vec::<String>::new());
}

/// Stops the daemon again and again, because its warden continues it each second. At most ten seconds.
fn wait_for_death_under_stopped_daemon(pid: Pid, daemon: Pid) {
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let timeout = Timespec::try_from(Duration::from_millis(5)).unwrap();
    let begun = Instant::now();
    while poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) != Ok(1) {
        kill_process(daemon, Signal::STOP).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10), "pid {pid} is alive");
    }
}

#[rstest]
#[tokio::test]
async fn end_now_kills_at_once(
    #[values(Isolate::None, Isolate::Pid)] isolate: Isolate,
    #[values(None, Some(HOUR))] limit: Option<Duration>,
) {
    let Some(fixture) = fixture_with(isolate).await else { return };
    if let Some(limit) = limit {
        fixture.wardens.lifetime_limit().extend(boot_time_now() + limit);
    }
    end_now(&fixture).await;
}

/// Returns the time until everything has ended.
pub(crate) async fn end_now(fixture: &CommandFixture) -> Duration {
    let mut running = fixture.start_script(PROCESS_TREE_SCRIPT);
    running.wait_for_output("ready").await;
    let asked = Instant::now();
    fixture.wardens.lifetime_limit().end_now();
    let end = running.handle.await.unwrap().unwrap();
    let took = asked.elapsed();
    fixture.assert_gone();
    assert_ended_by_limit(&end);
    took
}

#[tokio::test]
async fn end_now_ends_the_command_of_a_stopped_warden() {
    let fixture = CommandFixture::new().await;
    let mut running = fixture.start_script(PROCESS_TREE_SCRIPT);
    running.wait_for_output("ready").await;
    kill_process(fixture.warden_pid().await, Signal::STOP).unwrap();
    fixture.wardens.lifetime_limit().end_now();
    assert_ended_by_limit(&running.handle.await.unwrap().unwrap());
    fixture.assert_gone();
}

#[rstest]
#[tokio::test]
async fn a_command_after_the_end_is_refused(#[values(false, true)] is_final: bool) {
    let fixture = CommandFixture::new().await;
    let directory = tempfile::tempdir().unwrap();
    let spec = fixture.spec(&format!("touch {}", directory.path().join("mark").display()));
    let limit = fixture.wardens.lifetime_limit();
    if is_final {
        limit.end_now()
    } else {
        limit.extend(Duration::ZERO)
    }
    assert!(matches!(fixture.run_spec(&spec).await, Err(SpawnError::LifetimeOver)));
    assert_eq!(fixture.scope.ledger().rows().last().unwrap().release(), Some(Release::Failed));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    limit.extend(boot_time_now() + HOUR);
    assert_eq!(fixture.run_spec(&spec).await.is_ok(), !is_final);
}

/// The warden waits for a file before it begins.
#[rstest]
#[tokio::test]
async fn a_late_warden_starts_nothing_after_the_limit(#[values(Isolate::None, Isolate::Pid)] isolate: Isolate) {
    let Some(fixture) = fixture_with(isolate).await else { return };
    let directory = tempfile::tempdir().unwrap();
    let [late_warden, go, mark] = ["warden", "go", "mark"].map(|name| directory.path().join(name));
    let wait = format!("#!/bin/sh\nuntil test -e {}; do sleep 0.01; done\n", go.display());
    std::fs::write(&late_warden, format!("{wait}exec {WARDEN_BINARY} \"$@\"\n")).unwrap();
    std::fs::set_permissions(&late_warden, Permissions::from_mode(0o755)).unwrap();
    let mut fixture = fixture.with_new_scope();
    fixture.wardens = Wardens::new(WardenExe::Path(late_warden), StopTimeouts::default()).unwrap();
    let spec = fixture.spec(&format!("touch {}", mark.display()));
    let running = fixture.wardens.start(&spec, &fixture.scope).unwrap();
    fixture.wardens.lifetime_limit().extend(Duration::ZERO);
    std::fs::write(&go, "").unwrap();
    let end = running.collect(&mut WatchedOutput::new().0).await;
    assert!(matches!(end, Err(SpawnError::LifetimeOver)), "{end:?}");
    assert!(!mark.exists());
    fixture.assert_gone();
}

/// The limit passes before, during and after the start of a command.
#[rstest]
#[tokio::test]
async fn no_command_escapes_a_limit_during_its_start(#[values(Isolate::None, Isolate::Pid)] isolate: Isolate) {
    let Some(fixture) = fixture_with(isolate).await else { return };
    for millis in 0..30 {
        fixture.wardens.lifetime_limit().extend(boot_time_now() + Duration::from_millis(millis));
        match fixture.run_spec(&fixture.spec("sleep 1000")).await {
            Err(SpawnError::LifetimeOver) => {}
            Ok(end) => assert_ended_by_limit(&end),
            Err(error) => panic!("{error:?}"),
        }
    }
}
