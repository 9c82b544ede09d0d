//! Killed and stopped wardens, and killed daemons.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quell_process::{ProcessEndMethod, ProcessEndReason};
use quell_scope::StopLevel;
use rstest::rstest;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::fixture::{CommandFixture, WARDEN_BINARY, child_pids, processes_with_run_id, wait_for_death};

pub(crate) const PROCESS_TREE_SCRIPT: &str = "sleep 1000 & echo pid=$!
    setsid sleep 1000 & echo pid=$!
    (setsid sh -c 'echo pid=$$; trap \"\" TERM INT HUP; sleep 1000 & echo pid=$!; wait' &)
    env -i setsid sleep 1000 & echo pid=$!
    echo pid=$$; sleep 0.2; echo ready; wait";

#[tokio::test]
async fn the_daemon_ends_processes_that_a_killed_warden_left() {
    let fixture = CommandFixture::new().await;
    let mut running = fixture.start_script(PROCESS_TREE_SCRIPT);
    let pids = running.printed_pids().await;
    assert_eq!(pids.len(), 6);
    kill_process(fixture.warden_pid().await, Signal::KILL).unwrap();
    let end = running.handle.await.unwrap().unwrap();
    fixture.assert_gone();
    pids.into_iter().for_each(wait_for_death);
    assert_eq!((end.reason, end.how), (ProcessEndReason::WardenLost, ProcessEndMethod::Kill));
    assert_eq!((end.code, end.signal, end.swept), (None, Some(9), 5));
    assert_eq!(end.leftovers, Vec::<String>::new());
}

#[tokio::test]
async fn a_killed_warden_takes_no_other_command_with_it() {
    let fixture = CommandFixture::new().await;
    let other = fixture.with_new_scope();
    let mut survivor = other.start_script("echo ready; sleep 0.3; exit 5");
    survivor.wait_for_output("ready").await;
    // In the same run, and a child of the same process that is no warden's.
    let mut sibling = fixture.start_script("echo ready; sleep 0.3; exit 6");
    sibling.wait_for_output("ready").await;
    let mut own = Command::new("sleep").arg("1000").spawn().unwrap();
    let mut running = fixture.start_script(PROCESS_TREE_SCRIPT);
    running.wait_for_output("ready").await;
    kill_process(fixture.warden_pid().await, Signal::KILL).unwrap();
    assert_eq!(running.handle.await.unwrap().unwrap().reason, ProcessEndReason::WardenLost);
    assert_eq!(survivor.handle.await.unwrap().unwrap().code, Some(5));
    assert_eq!(sibling.handle.await.unwrap().unwrap().code, Some(6));
    assert!(own.try_wait().unwrap().is_none());
    own.kill().unwrap();
    own.wait().unwrap();
    fixture.assert_gone();
}

#[tokio::test]
async fn a_fork_storm_whose_warden_is_killed_is_over_within_the_hard_limit() {
    let fixture = CommandFixture::new().await;
    let mut running = fixture.start_script(
        "for i in 1 2 3 4 5; do (while :; do setsid sh -c '(sleep 0.01 &)' & wait; done) & done; echo ready; wait",
    );
    running.wait_for_output("ready").await;
    kill_process(fixture.warden_pid().await, Signal::KILL).unwrap();
    let end = running.handle.await.unwrap().unwrap();
    assert_eq!(end.leftovers, Vec::<String>::new());
    fixture.assert_gone();
}

#[tokio::test]
async fn a_warden_lets_term_int_and_hup_pass_by() {
    let fixture = CommandFixture::new().await;
    let mut running = fixture.start_script("echo ready; sleep 0.2; exit 3");
    running.wait_for_output("ready").await;
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        kill_process(fixture.warden_pid().await, signal).unwrap();
    }
    let end = running.handle.await.unwrap().unwrap();
    assert_eq!((end.code, end.reason), (Some(3), ProcessEndReason::ByItself));
}

#[rstest]
#[tokio::test]
async fn a_stopped_warden_still_does_its_work(#[values(StopLevel::Gentle, StopLevel::Forced)] level: StopLevel) {
    let fixture = CommandFixture::new().await;
    let mut running = fixture.start_script(PROCESS_TREE_SCRIPT);
    let pids = running.printed_pids().await;
    kill_process(fixture.warden_pid().await, Signal::STOP).unwrap();
    fixture.scope.stop(level);
    assert_eq!(running.handle.await.unwrap().unwrap().reason, ProcessEndReason::Stopped);
    fixture.assert_gone();
    pids.into_iter().for_each(wait_for_death);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warden_that_is_kept_from_its_work_cannot_delay_force() {
    force_beside_a_stopped_warden(&CommandFixture::new().await).await;
}

/// Returns the time until all processes are dead. It blocks the calling thread.
pub(crate) async fn force_beside_a_stopped_warden(fixture: &CommandFixture) -> Duration {
    let mut running = fixture.start_script(PROCESS_TREE_SCRIPT);
    let pids = running.printed_pids().await;
    let warden = fixture.warden_pid().await;
    let done = AtomicBool::new(false);
    let took = std::thread::scope(|threads| {
        threads.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = kill_process(warden, Signal::STOP);
            }
        });
        let asked = Instant::now();
        fixture.scope.stop(StopLevel::Forced);
        pids.into_iter().for_each(wait_for_death);
        done.store(true, Ordering::Relaxed);
        asked.elapsed()
    });
    assert_eq!(running.handle.await.unwrap().unwrap().reason, ProcessEndReason::Stopped);
    fixture.assert_gone();
    took
}

#[rstest]
#[tokio::test]
async fn a_killed_daemon_leaves_nothing(#[values("daemon", "isolating-daemon")] mode: &str) {
    let fixture = CommandFixture::new().await;
    let mut daemon = start_daemon(&fixture, Command::new(WARDEN_BINARY), &[mode, "sh", "-c", PROCESS_TREE_SCRIPT]);
    let mut lines = BufReader::new(daemon.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "ready"), "the daemon's command did not start");
    let mut below: Vec<Pid> = processes_with_run_id(&fixture.run_id).iter().filter_map(|line| pid_of(line)).collect();
    assert!(below.len() >= 5, "{below:?}");
    // Only root reads the environment of a warden.
    let wardens = child_pids(Pid::from_child(&daemon));
    assert!(!wardens.is_empty());
    below.extend(wardens);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    for pid in below {
        wait_for_death(pid);
        // This process is a sub-reaper as well, so it inherits the killed daemon's orphans.
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
    // The pipe ends when the last process that holds it is gone, whatever its environment contains.
    assert_eq!(lines.next(), None);
    assert_eq!(processes_with_run_id(&fixture.run_id), Vec::<String>::new());
}

#[rstest]
#[tokio::test]
async fn a_hardened_daemon_without_root_starts_wardens_through_its_own_descriptor(
    #[values("daemon", "isolating-daemon")] mode: &str,
) {
    let fixture = CommandFixture::new().await;
    let directory = world_writable_directory();
    let binary = directory.path().join("daemon");
    std::fs::copy(WARDEN_BINARY, &binary).unwrap();
    // The command removes the binary that the daemon was started from: this must change nothing.
    let script = format!("rm {}; exit 9", binary.display());
    let mut daemon = start_daemon(&fixture, command_as_nobody(&binary), &[mode, "sh", "-c", &script]);
    let code = daemon.wait().unwrap().code();
    // Namespaces are not permitted everywhere.
    assert!(code == Some(9) || (mode == "isolating-daemon" && code == Some(3)), "{code:?}");
}

/// Needs root to create a process that an ordinary user may not signal, and to hide it from that user.
#[rstest]
#[case::shown(command_as_nobody)]
#[case::hidden(command_as_nobody_with_hidden_proc)]
#[tokio::test]
async fn unsignallable_processes_are_named_as_leftovers(#[case] start: fn(&Path) -> Command) {
    let fixture = CommandFixture::new().await;
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it takes root");
        return;
    }
    let directory = world_writable_directory();
    let [binary, sudo] = ["daemon", "sudo"].map(|name| directory.path().join(name));
    std::fs::copy(WARDEN_BINARY, &binary).unwrap();
    std::fs::copy(WARDEN_BINARY, &sudo).unwrap();
    std::fs::set_permissions(&sudo, Permissions::from_mode(0o4755)).unwrap();
    let mark = directory.path().join("mark");
    let (sudo, mark) = (sudo.display(), mark.display());
    let script = format!(
        "{sudo} sudo sh -c 'echo $$ > {mark}; exec sleep 1000' & while ! test -s {mark}; do sleep 0.01; done; exit 6"
    );
    let mut daemon = start_daemon(&fixture, start(&binary), &["daemon", "sh", "-c", &script]);
    let output = BufReader::new(daemon.stdout.take().unwrap());
    let leftover =
        output.lines().map_while(Result::ok).find_map(|line| Some(line.strip_prefix("leftover: ")?.to_owned()));
    let leftover = leftover.unwrap();
    assert_eq!(daemon.wait().unwrap().code(), Some(6));
    let pid = std::fs::read_to_string(directory.path().join("mark")).unwrap();
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    if leftover.starts_with("pid ") {
        assert_eq!(leftover, format!("pid {pid} (sleep), cannot be signalled"));
    } else {
        assert!(leftover.ends_with("that /proc does not show"), "{leftover}");
    }
    kill_process(pid, Signal::KILL).unwrap();
    wait_for_death(pid);
    let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    assert_eq!(processes_with_run_id(&fixture.run_id), Vec::<String>::new());
}

/// Creates a directory that every user can enter and change.
fn world_writable_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
    directory
}

/// Runs the binary as an ordinary user if the test runs as root.
fn command_as_nobody(binary: &Path) -> Command {
    let mut command = Command::new(binary);
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    command
}

/// Runs the binary as an ordinary user who sees no processes of others.
fn command_as_nobody_with_hidden_proc(binary: &Path) -> Command {
    let script = "mount -t proc -o hidepid=invisible proc /proc && \
                  exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(binary);
    command
}

pub(crate) fn start_daemon(fixture: &CommandFixture, mut command: Command, args: &[&str]) -> Child {
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.args(args).current_dir("/").env_clear().env("PATH", path).env("QUELL_RUN_ID", &fixture.run_id);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
}

pub(crate) fn pid_of(line: &str) -> Option<Pid> {
    line.split_once(' ')?.0.parse().ok().and_then(Pid::from_raw)
}
