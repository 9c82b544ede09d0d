//! The misbehaving commands really misbehave, and are found and ended.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};

use rstest::rstest;
use rustix::process::{kill_process, kill_process_group};

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

/// A command as a tool would start it: in a group of its own, its output read.
struct Started(Child);

impl Started {
    fn new(command: &str) -> Self {
        #[expect(clippy::disallowed_methods, reason = "misbehaving commands are what is tested")]
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", command]).process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Self(shell.spawn().unwrap())
    }

    fn id(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap()
    }

    fn first_line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Kills the whole group, and waits for the leader.
    fn kill_group(&mut self) {
        kill_process_group(self.id(), Signal::KILL).unwrap();
        self.0.wait().unwrap();
    }
}

/// What dies with the group needs a moment; what is in a session of its own is still there after it.
async fn only_other_sessions(mark: &Marker, session: u32) {
    let marker = mark.as_str().to_owned();
    leaks::settled(LIMIT, move || {
        let left = leaks::marked(&marker);
        if left.iter().all(|p| p.session != session) { Ok(()) } else { Err(format!("{left:#?}")) }
    })
    .await;
}

#[tokio::test]
async fn an_obedient_command_ends_with_its_group() {
    let mark = Marker::new();
    let mut started = Started::new(&obedient(&mark));
    mark.at_least(2).await;
    kill_process_group(started.id(), Signal::TERM).unwrap();
    started.0.wait().unwrap();
    mark.gone(LIMIT).await;
}

#[tokio::test]
async fn a_deaf_command_ignores_term_int_and_hup_with_its_children() {
    let mark = Marker::new();
    let mut started = Started::new(&ignores_signals(&mark));
    assert_eq!(started.first_line(), "deaf");
    mark.at_least(2).await;
    for survivor in mark.survivors() {
        let status = fs::read_to_string(format!("/proc/{}/status", survivor.pid)).unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
        for signal in [1, 2, 15] {
            assert!(ignored & (1 << (signal - 1)) != 0, "{survivor:?} heeds {signal}");
        }
    }
    started.kill_group();
    mark.gone(LIMIT).await;
}

#[rstest]
#[case::setsid(setsid_child)]
#[case::deaf_setsid(deaf_setsid_child)]
#[case::double_fork(double_fork)]
#[case::sudo(sudo_like)]
#[tokio::test]
async fn an_escaped_child_survives_the_kill_of_its_group(#[case] command: fn(&Marker) -> String) {
    let mark = Marker::new();
    let mut started = Started::new(&command(&mark));
    let leader = leaks::process(started.0.id()).unwrap();
    escaped(&mark, leader.session).await;
    started.kill_group();
    only_other_sessions(&mark, leader.session).await;
    assert!(!mark.survivors().is_empty());
    mark.kill_survivors();
    mark.gone(LIMIT).await;
}

/// Waits until some marked process is in a session of its own.
async fn escaped(mark: &Marker, session: u32) {
    let marker = mark.as_str().to_owned();
    leaks::settled(LIMIT, move || {
        let found = leaks::marked(&marker);
        if found.iter().any(|p| p.session != session) { Ok(()) } else { Err(format!("{found:#?}")) }
    })
    .await;
}

#[tokio::test]
async fn a_double_forked_grandchild_is_no_descendant_any_more() {
    let mark = Marker::new();
    let mut started = Started::new(&double_fork(&mark));
    let leader = leaks::process(started.0.id()).unwrap();
    let (marker, session) = (mark.as_str().to_owned(), leader.session);
    leaks::settled(LIMIT, move || {
        let family: BTreeSet<u32> = leaks::descendants_of(leader.pid).iter().map(|p| p.pid).collect();
        let found = leaks::marked(&marker);
        let lost = found.iter().any(|p| p.session != session && !family.contains(&p.pid));
        if lost { Ok(()) } else { Err(format!("{found:#?}")) }
    })
    .await;
    started.kill_group();
}

#[tokio::test]
async fn the_sudo_like_payload_runs_as_another_user_where_it_may() {
    let mark = Marker::new();
    let mut started = Started::new(&sudo_like(&mark));
    let may = rustix::process::geteuid().is_root() && std::path::Path::new("/usr/bin/setpriv").exists();
    let (marker, session) = (mark.as_str().to_owned(), leaks::process(started.0.id()).unwrap().session);
    leaks::settled(LIMIT, move || {
        let found = leaks::marked(&marker);
        let user = |p: &Process| fs::read_to_string(format!("/proc/{}/status", p.pid)).unwrap_or_default();
        let foreign = |p: &&Process| p.session != session && (!may || user(p).contains("Uid:\t65534"));
        if found.iter().any(|p| foreign(&p)) { Ok(()) } else { Err(format!("{found:#?}")) }
    })
    .await;
    started.kill_group();
}

#[rstest]
#[case::holds_the_output(background_server)]
#[case::detached(detached_server)]
#[tokio::test]
async fn a_server_is_left_behind(#[case] command: fn(&Marker) -> String) {
    let mark = Marker::new();
    let mut started = Started::new(&command(&mark));
    assert_eq!(started.first_line(), "started");
    assert!(started.0.wait().unwrap().success());
    mark.at_least(1).await;
    mark.kill_survivors();
    mark.gone(LIMIT).await;
}

#[tokio::test]
async fn a_command_that_respawns_leaves_a_successor_on_term() {
    let mark = Marker::new();
    let mut started = Started::new(&respawns_on_term(&mark));
    // The trap stands before the first child is up.
    mark.at_least(2).await;
    let session = leaks::process(started.0.id()).unwrap().session;
    kill_process(started.id(), Signal::TERM).unwrap();
    started.0.wait().unwrap();
    escaped(&mark, session).await;
}

#[tokio::test]
async fn a_command_that_stops_itself_is_stopped() {
    let mark = Marker::new();
    let mut started = Started::new(&stops_itself(&mark));
    let marker = mark.as_str().to_owned();
    leaks::settled(LIMIT, move || {
        let found = leaks::marked(&marker);
        if found.iter().any(|p| p.state == 'T') { Ok(()) } else { Err(format!("{found:#?}")) }
    })
    .await;
    started.kill_group();
}

#[tokio::test]
async fn a_command_that_closes_its_output_lives_on() {
    let mark = Marker::new();
    let mut started = Started::new(&closes_its_output(&mark));
    assert_eq!(started.first_line(), "");
    assert!(started.0.try_wait().unwrap().is_none());
    started.kill_group();
}

#[tokio::test]
async fn a_command_that_clears_its_environment_is_found_by_its_arguments_only() {
    let mark = Marker::new();
    let mut started = Started::new(&clears_its_environment(&mark));
    let marker = mark.as_str().to_owned();
    leaks::settled(LIMIT, move || {
        let found = leaks::marked(&marker);
        let environment = |p: &Process| fs::read(format!("/proc/{}/environ", p.pid)).unwrap_or_default();
        let cleared = |p: &Process| p.command.starts_with("sh -c n=0") && environment(p).starts_with(b"PATH=");
        if found.iter().any(cleared) { Ok(()) } else { Err(format!("{found:#?}")) }
    })
    .await;
    started.kill_group();
}

#[tokio::test]
async fn outputs_are_what_they_say() {
    let mark = Marker::new();
    let mut bytes = Vec::new();
    let mut flood = Started::new(&output_flood(&mark));
    flood.0.stdout.take().unwrap().take(3 << 20).read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), 3 << 20);
    flood.kill_group();
    let read = |command: String| {
        let mut started = Started::new(&command);
        let mut bytes = Vec::new();
        started.0.stdout.take().unwrap().read_to_end(&mut bytes).unwrap();
        started.0.wait().unwrap();
        bytes
    };
    assert_eq!(read(output_of(&mark, 123_456)).len(), 123_456);
    let invalid = read(invalid_utf8(&mark));
    assert!(invalid.starts_with(b"ok ") && std::str::from_utf8(&invalid).is_err());
    let mut waits = Started::new(&prints_then_waits(&mark, 3));
    let lines: Vec<String> =
        BufReader::new(waits.0.stdout.take().unwrap()).lines().take(3).map(Result::unwrap).collect();
    assert_eq!(lines, ["line 1", "line 2", "line 3"]);
    assert!(waits.0.try_wait().unwrap().is_none());
    waits.kill_group();
    mark.gone(LIMIT).await;
}

#[tokio::test]
async fn a_tree_writes_the_ids_of_all_its_processes() {
    let (mark, folder) = (Marker::new(), tempfile::tempdir().unwrap());
    let file = folder.path().join("pids of it's tree");
    let mut started = Started::new(&writes_its_pids(&mark, &file));
    let (marker, path) = (mark.as_str().to_owned(), file.clone());
    leaks::settled(LIMIT, move || {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let pids: Vec<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
        let alive = pids.iter().filter(|pid| leaks::is_marked(**pid, &marker)).count();
        if alive == 3 { Ok(()) } else { Err(format!("{pids:?}")) }
    })
    .await;
    started.kill_group();
    mark.kill_survivors();
    mark.gone(LIMIT).await;
}

#[tokio::test]
async fn a_storm_changes_its_processes_all_the_time_within_its_bound_and_can_be_ended() {
    let mark = Marker::new();
    let mut started = Started::new(&fork_storm(&mark, 5, 100_000));
    let (marker, mut pids) = (mark.as_str().to_owned(), BTreeSet::new());
    leaks::settled(3 * LIMIT, move || {
        let found = leaks::marked(&marker);
        // Two per chain; the leader, its sleep and one that is being started; a scan is no snapshot, hence twice that.
        assert!(found.len() <= 2 * (2 * 5 + 3), "{found:#?}");
        pids.extend(found.iter().map(|p| p.pid));
        // More than could be there without any change.
        if pids.len() > 30 { Ok(()) } else { Err(format!("{} processes seen", pids.len())) }
    })
    .await;
    mark.kill_survivors();
    started.0.wait().unwrap();
    mark.gone(LIMIT).await;
}

#[tokio::test]
async fn a_storm_ends_by_itself_after_its_generations() {
    let mark = Marker::new();
    let mut started = Started::new(&fork_storm(&mark, 3, 10));
    let marker = mark.as_str().to_owned();
    leaks::settled(LIMIT, move || {
        let found = leaks::marked(&marker);
        let waiting = found.iter().any(|p| p.command == "sleep 10");
        if waiting && found.len() == 2 { Ok(()) } else { Err(format!("{found:#?}")) }
    })
    .await;
    started.kill_group();
}

#[tokio::test]
async fn a_dropped_marker_ends_its_survivors() {
    let mark = Marker::new();
    let text = mark.as_str().to_owned();
    let mut started = Started::new(&detached_server(&mark));
    started.0.wait().unwrap();
    mark.at_least(1).await;
    drop(mark);
    leaks::no_process_marked(&text, LIMIT).await;
}
