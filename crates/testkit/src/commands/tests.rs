//! The misbehaving commands resist as described, so that a test of what ends them is not empty.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};

use rstest::rstest;
use rustix::process::kill_process;

use super::*;
use crate::WAIT_TIMEOUT;

/// Starts a command as a tool would: in its own process group, with its output read.
fn start_shell(command: &str) -> Child {
    #[expect(clippy::disallowed_methods, reason = "the test starts misbehaving commands")]
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", command]).process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    shell.spawn().unwrap()
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

/// Waits until a marked process is like this.
async fn wait_marked(mark: &ProcessMarker, fits: impl Fn(&ObservedProcess) -> bool + Send + 'static) {
    let marker = mark.as_str().to_owned();
    leaks::wait_until(WAIT_TIMEOUT, move || {
        let found = leaks::processes_with_marker(&marker);
        if found.iter().any(&fits) { Ok(()) } else { Err(format!("{found:#?}")) }
    })
    .await;
}

fn status_of(process: &ObservedProcess) -> String {
    fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap_or_default()
}

fn is_deaf(process: &ObservedProcess, _: &ObservedProcess) -> bool {
    let status = status_of(process);
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or_default();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap_or_default();
    [1, 2, 15].iter().all(|signal| ignored & (1 << (signal - 1)) != 0)
}

fn is_elsewhere(process: &ObservedProcess, leader: &ObservedProcess) -> bool {
    process.session != leader.session
}

fn is_deaf_elsewhere(process: &ObservedProcess, leader: &ObservedProcess) -> bool {
    is_elsewhere(process, leader) && is_deaf(process, leader)
}

fn is_no_descendant(process: &ObservedProcess, leader: &ObservedProcess) -> bool {
    is_elsewhere(process, leader) && leaks::descendants_of(leader.pid).iter().all(|other| other.pid != process.pid)
}

fn is_another_user(process: &ObservedProcess, leader: &ObservedProcess) -> bool {
    let may_change = rustix::process::geteuid().is_root() && std::path::Path::new("/usr/bin/setpriv").exists();
    is_elsewhere(process, leader) && (!may_change || status_of(process).contains("Uid:\t65534"))
}

fn is_stopped(process: &ObservedProcess, _: &ObservedProcess) -> bool {
    process.state == 'T'
}

#[rstest]
#[case::deaf(ignores_signals, is_deaf)]
#[case::setsid(setsid_child, is_elsewhere)]
#[case::deaf_setsid(signal_ignoring_setsid_child, is_deaf_elsewhere)]
#[case::double_fork(double_fork, is_no_descendant)]
#[case::sudo(sudo_like, is_another_user)]
#[case::stopped(stops_itself, is_stopped)]
#[tokio::test]
async fn a_command_resists_and_ends_with_its_marker(
    #[case] command: fn(&ProcessMarker) -> String,
    #[case] resists: fn(&ObservedProcess, &ObservedProcess) -> bool,
) {
    let mark = ProcessMarker::new();
    let mut started = start_shell(&command(&mark));
    let leader = leaks::read_process(started.id()).unwrap();
    wait_marked(&mark, move |process| resists(process, &leader)).await;
    let marker = mark.as_str().to_owned();
    drop(mark);
    started.wait().unwrap();
    leaks::wait_no_process_with_marker(&marker, WAIT_TIMEOUT).await;
}

#[tokio::test]
async fn a_command_that_respawns_leaves_a_successor_on_term() {
    let mark = ProcessMarker::new();
    let mut started = start_shell(&respawns_on_term(&mark));
    // The trap is set before the first child runs.
    mark.wait_for_count(2).await;
    let session = leaks::read_process(started.id()).unwrap().session;
    kill_process(pid_of(&started), Signal::TERM).unwrap();
    started.wait().unwrap();
    wait_marked(&mark, move |process| process.session != session).await;
}

#[test]
fn a_command_that_closes_its_output_lives_on() {
    let mark = ProcessMarker::new();
    let mut started = start_shell(&closes_its_output(&mark));
    let mut line = String::new();
    BufReader::new(started.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!((line.as_str(), started.try_wait().unwrap()), ("", None));
    mark.kill_survivors();
    started.wait().unwrap();
}

#[tokio::test]
async fn a_storm_changes_its_processes_all_the_time_within_its_bound_and_can_be_ended() {
    let mark = ProcessMarker::new();
    let mut started = start_shell(&fork_storm(&mark, 5, 100_000));
    let (marker, mut pids) = (mark.as_str().to_owned(), BTreeSet::new());
    leaks::wait_until(3 * WAIT_TIMEOUT, move || {
        let found = leaks::processes_with_marker(&marker);
        // A scan is no snapshot: new processes have higher ids, so it meets generation after generation. What is still there after it
        // was there at its end: two per chain, the leader, its sleep and one being started, and as many again that are slow to exit.
        let pids_after: BTreeSet<_> = leaks::processes_with_marker(&marker).iter().map(|process| process.pid).collect();
        let at_once: Vec<_> = found.iter().filter(|process| pids_after.contains(&process.pid)).collect();
        assert!(at_once.len() <= 2 * (2 * 5 + 3), "{at_once:#?}");
        pids.extend(found.iter().map(|process| process.pid));
        // More than could exist without any change.
        if pids.len() > 30 { Ok(()) } else { Err(format!("{} processes seen", pids.len())) }
    })
    .await;
    mark.kill_survivors();
    started.wait().unwrap();
    mark.wait_gone(WAIT_TIMEOUT).await;
}
