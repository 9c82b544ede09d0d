//! The misbehaving commands behave as described, and are found and killed.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};

use rstest::rstest;
use rustix::process::{kill_process, kill_process_group};

use super::*;
use crate::WAIT_TIMEOUT;

/// A command started as a tool would start it: in its own process group, with its output read.
struct SpawnedShell(Child);

impl SpawnedShell {
    fn new(command: &str) -> Self {
        #[expect(clippy::disallowed_methods, reason = "the test starts misbehaving commands")]
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", command]).process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Self(shell.spawn().unwrap())
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap()
    }

    fn first_line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Kills the whole group and waits for the leader.
    fn kill_group(&mut self) {
        kill_process_group(self.pid(), Signal::KILL).unwrap();
        self.0.wait().unwrap();
    }
}

/// Waits until only processes in other sessions are left; the group dies after a moment.
async fn wait_only_other_sessions(mark: &ProcessMarker, session: u32) {
    let marker = mark.as_str().to_owned();
    leaks::wait_until(WAIT_TIMEOUT, move || {
        let left = leaks::processes_with_marker(&marker);
        if left.iter().all(|p| p.session != session) { Ok(()) } else { Err(format!("{left:#?}")) }
    })
    .await;
}

#[tokio::test]
async fn an_obedient_command_ends_with_its_group() {
    let mark = ProcessMarker::new();
    let mut started = SpawnedShell::new(&obeys_signals(&mark));
    mark.wait_for_count(2).await;
    kill_process_group(started.pid(), Signal::TERM).unwrap();
    started.0.wait().unwrap();
    mark.wait_gone(WAIT_TIMEOUT).await;
}

#[tokio::test]
async fn a_deaf_command_ignores_term_int_and_hup_with_its_children() {
    let mark = ProcessMarker::new();
    let mut started = SpawnedShell::new(&ignores_signals(&mark));
    assert_eq!(started.first_line(), "deaf");
    mark.wait_for_count(2).await;
    for survivor in mark.marked_processes() {
        let status = fs::read_to_string(format!("/proc/{}/status", survivor.pid)).unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
        for signal in [1, 2, 15] {
            assert!(ignored & (1 << (signal - 1)) != 0, "{survivor:?} heeds {signal}");
        }
    }
    started.kill_group();
    mark.wait_gone(WAIT_TIMEOUT).await;
}

#[rstest]
#[case::setsid(setsid_child)]
#[case::deaf_setsid(signal_ignoring_setsid_child)]
#[case::double_fork(double_fork)]
#[case::sudo(sudo_like)]
#[tokio::test]
async fn an_escaped_child_survives_the_kill_of_its_group(#[case] command: fn(&ProcessMarker) -> String) {
    let mark = ProcessMarker::new();
    let mut started = SpawnedShell::new(&command(&mark));
    let leader = leaks::read_process(started.0.id()).unwrap();
    wait_other_session(&mark, leader.session).await;
    started.kill_group();
    wait_only_other_sessions(&mark, leader.session).await;
    assert!(!mark.marked_processes().is_empty());
    mark.kill_survivors();
    mark.wait_gone(WAIT_TIMEOUT).await;
}

/// Waits until a marked process is in another session.
async fn wait_other_session(mark: &ProcessMarker, session: u32) {
    let marker = mark.as_str().to_owned();
    leaks::wait_until(WAIT_TIMEOUT, move || {
        let found = leaks::processes_with_marker(&marker);
        if found.iter().any(|p| p.session != session) { Ok(()) } else { Err(format!("{found:#?}")) }
    })
    .await;
}

#[tokio::test]
async fn a_double_forked_grandchild_is_no_descendant_any_more() {
    let mark = ProcessMarker::new();
    let mut started = SpawnedShell::new(&double_fork(&mark));
    let leader = leaks::read_process(started.0.id()).unwrap();
    let (marker, session) = (mark.as_str().to_owned(), leader.session);
    leaks::wait_until(WAIT_TIMEOUT, move || {
        let family: BTreeSet<u32> = leaks::descendants_of(leader.pid).iter().map(|p| p.pid).collect();
        let found = leaks::processes_with_marker(&marker);
        let lost = found.iter().any(|p| p.session != session && !family.contains(&p.pid));
        if lost { Ok(()) } else { Err(format!("{found:#?}")) }
    })
    .await;
    started.kill_group();
}

#[tokio::test]
async fn the_sudo_like_payload_runs_as_another_user_where_it_may() {
    let mark = ProcessMarker::new();
    let mut started = SpawnedShell::new(&sudo_like(&mark));
    let may = rustix::process::geteuid().is_root() && std::path::Path::new("/usr/bin/setpriv").exists();
    let (marker, session) = (mark.as_str().to_owned(), leaks::read_process(started.0.id()).unwrap().session);
    leaks::wait_until(WAIT_TIMEOUT, move || {
        let found = leaks::processes_with_marker(&marker);
        let user = |p: &ObservedProcess| fs::read_to_string(format!("/proc/{}/status", p.pid)).unwrap_or_default();
        let foreign = |p: &&ObservedProcess| p.session != session && (!may || user(p).contains("Uid:\t65534"));
        if found.iter().any(|p| foreign(&p)) { Ok(()) } else { Err(format!("{found:#?}")) }
    })
    .await;
    started.kill_group();
}

#[rstest]
#[case::holds_the_output(background_server)]
#[case::detached(detached_server)]
#[tokio::test]
async fn a_server_is_left_behind(#[case] command: fn(&ProcessMarker) -> String) {
    let mark = ProcessMarker::new();
    let mut started = SpawnedShell::new(&command(&mark));
    assert_eq!(started.first_line(), "started");
    assert!(started.0.wait().unwrap().success());
    mark.wait_for_count(1).await;
    mark.kill_survivors();
    mark.wait_gone(WAIT_TIMEOUT).await;
}

#[tokio::test]
async fn a_command_that_respawns_leaves_a_successor_on_term() {
    let mark = ProcessMarker::new();
    let mut started = SpawnedShell::new(&respawns_on_term(&mark));
    // The trap is set before the first child runs.
    mark.wait_for_count(2).await;
    let session = leaks::read_process(started.0.id()).unwrap().session;
    kill_process(started.pid(), Signal::TERM).unwrap();
    started.0.wait().unwrap();
    wait_other_session(&mark, session).await;
}

#[tokio::test]
async fn a_command_that_stops_itself_is_stopped() {
    let mark = ProcessMarker::new();
    let mut started = SpawnedShell::new(&stops_itself(&mark));
    let marker = mark.as_str().to_owned();
    leaks::wait_until(WAIT_TIMEOUT, move || {
        let found = leaks::processes_with_marker(&marker);
        if found.iter().any(|p| p.state == 'T') { Ok(()) } else { Err(format!("{found:#?}")) }
    })
    .await;
    started.kill_group();
}

#[tokio::test]
async fn a_command_that_closes_its_output_lives_on() {
    let mark = ProcessMarker::new();
    let mut started = SpawnedShell::new(&closes_its_output(&mark));
    assert_eq!(started.first_line(), "");
    assert!(started.0.try_wait().unwrap().is_none());
    started.kill_group();
}

#[tokio::test]
async fn a_command_that_clears_its_environment_is_found_by_its_arguments_only() {
    let mark = ProcessMarker::new();
    let mut started = SpawnedShell::new(&clears_its_environment(&mark));
    let marker = mark.as_str().to_owned();
    leaks::wait_until(WAIT_TIMEOUT, move || {
        let found = leaks::processes_with_marker(&marker);
        let environment = |p: &ObservedProcess| fs::read(format!("/proc/{}/environ", p.pid)).unwrap_or_default();
        let cleared = |p: &ObservedProcess| p.command.starts_with("sh -c n=0") && environment(p).starts_with(b"PATH=");
        if found.iter().any(cleared) { Ok(()) } else { Err(format!("{found:#?}")) }
    })
    .await;
    started.kill_group();
}

#[tokio::test]
async fn outputs_are_what_they_say() {
    let mark = ProcessMarker::new();
    let mut bytes = Vec::new();
    let mut flood = SpawnedShell::new(&output_flood(&mark));
    flood.0.stdout.take().unwrap().take(3 << 20).read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), 3 << 20);
    flood.kill_group();
    let read = |command: String| {
        let mut started = SpawnedShell::new(&command);
        let mut bytes = Vec::new();
        started.0.stdout.take().unwrap().read_to_end(&mut bytes).unwrap();
        started.0.wait().unwrap();
        bytes
    };
    assert_eq!(read(prints_bytes(&mark, 123_456)).len(), 123_456);
    let invalid = read(prints_invalid_utf8(&mark));
    assert!(invalid.starts_with(b"ok ") && std::str::from_utf8(&invalid).is_err());
    let mut waits = SpawnedShell::new(&prints_then_waits(&mark, 3));
    let lines: Vec<String> =
        BufReader::new(waits.0.stdout.take().unwrap()).lines().take(3).map(Result::unwrap).collect();
    assert_eq!(lines, ["line 1", "line 2", "line 3"]);
    assert!(waits.0.try_wait().unwrap().is_none());
    waits.kill_group();
    mark.wait_gone(WAIT_TIMEOUT).await;
}

#[tokio::test]
async fn a_tree_writes_the_ids_of_all_its_processes() {
    let (mark, folder) = (ProcessMarker::new(), tempfile::tempdir().unwrap());
    let file = folder.path().join("pids of it's tree");
    let mut started = SpawnedShell::new(&writes_its_pids(&mark, &file));
    let (marker, path) = (mark.as_str().to_owned(), file.clone());
    leaks::wait_until(WAIT_TIMEOUT, move || {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let pids: Vec<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
        let alive = pids.iter().filter(|pid| leaks::has_marker(**pid, &marker)).count();
        if alive == 3 { Ok(()) } else { Err(format!("{pids:?}")) }
    })
    .await;
    started.kill_group();
    mark.kill_survivors();
    mark.wait_gone(WAIT_TIMEOUT).await;
}

#[tokio::test]
async fn a_storm_changes_its_processes_all_the_time_within_its_bound_and_can_be_ended() {
    let mark = ProcessMarker::new();
    let mut started = SpawnedShell::new(&fork_storm(&mark, 5, 100_000));
    let (marker, mut pids) = (mark.as_str().to_owned(), BTreeSet::new());
    leaks::wait_until(3 * WAIT_TIMEOUT, move || {
        let found = leaks::processes_with_marker(&marker);
        // Two per chain, the leader, its sleep and one being started; a scan is no snapshot, hence twice that.
        assert!(found.len() <= 2 * (2 * 5 + 3), "{found:#?}");
        pids.extend(found.iter().map(|p| p.pid));
        // More than could exist without any change.
        if pids.len() > 30 { Ok(()) } else { Err(format!("{} processes seen", pids.len())) }
    })
    .await;
    mark.kill_survivors();
    started.0.wait().unwrap();
    mark.wait_gone(WAIT_TIMEOUT).await;
}

#[tokio::test]
async fn a_storm_ends_by_itself_after_its_generations() {
    let mark = ProcessMarker::new();
    let mut started = SpawnedShell::new(&fork_storm(&mark, 3, 10));
    let marker = mark.as_str().to_owned();
    leaks::wait_until(WAIT_TIMEOUT, move || {
        let found = leaks::processes_with_marker(&marker);
        let waiting = found.iter().any(|p| p.command == "sleep 10");
        if waiting && found.len() == 2 { Ok(()) } else { Err(format!("{found:#?}")) }
    })
    .await;
    started.kill_group();
}

#[tokio::test]
async fn a_dropped_marker_ends_its_survivors() {
    let mark = ProcessMarker::new();
    let text = mark.as_str().to_owned();
    let mut started = SpawnedShell::new(&detached_server(&mark));
    started.0.wait().unwrap();
    mark.wait_for_count(1).await;
    drop(mark);
    leaks::wait_no_process_with_marker(&text, WAIT_TIMEOUT).await;
}
