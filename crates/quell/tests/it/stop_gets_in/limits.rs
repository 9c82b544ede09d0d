//! What another process of the same user can do to the daemon: stop it, and lower its limits.

use quell_testkit::pty::{Pty, Size};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::json;

use super::{Site, verb};
use crate::cli::exe;

/// Lowers a limit of the daemon as `prlimit` does; the hard one too, when that is asked for.
fn lower(site: &Site, resource: Resource, hard: Option<u64>) {
    let pid = Pid::from_raw(i32::try_from(site.daemon.pid()).unwrap());
    let now = rustix::process::getrlimit(resource);
    let maximum = hard.or(now.maximum);
    prlimit(pid, resource, Rlimit { current: Some(0), maximum }).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_daemon_hears_a_stop() {
    let site = Site::open().await;
    site.daemon.signal(Signal::STOP);
    site.stop_by_command().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_may_open_nothing_more_hears_a_stop() {
    let mut site = Site::open().await;
    lower(&site, Resource::Nofile, None);
    site.stop_by_command().await;
    site.run = site.begin().await;
    lower(&site, Resource::Nofile, None);
    site.stop_over_http().await;
}

/// Nothing gives a limit back that was lowered for good: the person is told in time, with what is left to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_hears_nobody_is_named_with_its_remedy() {
    let site = Site::open().await;
    lower(&site, Resource::Nofile, Some(0));
    let ran = verb(site.daemon.home(), &["stop", "--all"]).await;
    let remedy = format!("kill -TERM {}", site.daemon.pid());
    assert!(ran.code == 4 && ran.err.contains(&remedy) && ran.err.contains("does not answer"), "{ran:?}");
    site.daemon.stop().await;
    site.model.connections(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_at_a_terminal_may_end_a_daemon_that_hears_nobody() {
    let site = Site::open().await;
    lower(&site, Resource::Nofile, Some(0));
    let mut command = site.daemon.home().command(exe());
    command.args(["stop", "--all"]);
    let mut terminal = Pty::start(&command, Size { rows: 24, columns: 100 });
    terminal.shows("end it now").await;
    terminal.keys("y\r");
    let status = terminal.ended().await;
    assert_eq!(status.code(), Some(1), "{}", terminal.now().text());
    assert!(terminal.now().text().contains("has ended"), "{}", terminal.now().text());
    site.daemon.ended().await;
    site.model.connections(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_may_write_nothing_more_lives_and_stops() {
    let site = Site::open().await;
    lower(&site, Resource::Fsize, None);
    let refused = site.daemon.http().post("/api/sessions/t/runs", &json!({"text": "go"})).await;
    assert_eq!((refused.status, refused.code()), (503, Some("store_unavailable")), "{refused:?}");
    let path = format!("/api/runs/{}/stop?wait=1", site.run);
    let stopped = site.daemon.http().post(&path, &json!({})).await.expect_status(200);
    assert_eq!(stopped["aborted"], true, "{stopped:#}");
    site.model.connections(0).await;
    assert!(!site.daemon.has_ended(), "{}", site.daemon.output());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_somebody_locks_keeps_no_stop_out() {
    let site = Site::open().await;
    let somebody = rusqlite::Connection::open(site.daemon.home().data().join("quell.db")).unwrap();
    somebody.execute_batch("BEGIN IMMEDIATE").unwrap();
    let path = format!("/api/runs/{}/stop?wait=1", site.run);
    let stopped = site.daemon.http().post(&path, &json!({})).await.expect_status(200);
    assert_eq!((&stopped["state"], &stopped["receipt"]["leftovers"]), (&json!("ended"), &json!([])), "{stopped:#}");
    site.model.connections(0).await;
    somebody.execute_batch("ROLLBACK").unwrap();
}
