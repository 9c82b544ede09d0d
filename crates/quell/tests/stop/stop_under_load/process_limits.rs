//! Another process of the same user suspends the daemon or lowers its limits.

use quell_testkit::pty::{Pty, PtySize};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};

use super::*;

/// Lowers the soft limit of the daemon to 0, as `prlimit` does; also its hard limit if given.
fn lower_limit(fixture: &EndlessRunDaemon, resource: Resource, hard: Option<u64>) {
    let pid = Pid::from_raw(i32::try_from(fixture.daemon.pid()).unwrap());
    let now = rustix::process::getrlimit(resource);
    let maximum = hard.or(now.maximum);
    prlimit(pid, resource, Rlimit { current: Some(0), maximum }).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_daemon_hears_a_stop() {
    let fixture = EndlessRunDaemon::start().await;
    fixture.daemon.signal(Signal::STOP);
    fixture.stop_by_command().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_may_open_nothing_more_hears_a_stop() {
    let mut fixture = EndlessRunDaemon::start().await;
    lower_limit(&fixture, Resource::Nofile, None);
    fixture.stop_by_command().await;
    fixture.run = fixture.start_endless_run().await;
    lower_limit(&fixture, Resource::Nofile, None);
    fixture.stop_over_http().await;
}

/// A hard limit that was lowered cannot be raised again: `quell stop` reports in time what a person can do, and does it
/// for a person at a terminal.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_hears_nobody_is_named_with_its_remedy() {
    let fixture = EndlessRunDaemon::start().await;
    lower_limit(&fixture, Resource::Nofile, Some(0));
    let ran = run_cli(fixture.daemon.home(), &["stop", "--all"]).await;
    let remedy = format!("kill -TERM {}", fixture.daemon.pid());
    assert!(ran.code == 4 && ran.err.contains(&remedy) && ran.err.contains("does not answer"), "{ran:?}");
    let mut command = fixture.daemon.home().command(quell_exe());
    command.args(["stop", "--all"]);
    let mut terminal = Pty::start(&command, PtySize { rows: 24, columns: 100 });
    terminal.wait_text("end it now").await;
    terminal.type_keys("y\r");
    let status = terminal.wait_exit().await;
    assert_eq!(status.code(), Some(1), "{}", terminal.snapshot().text());
    assert!(terminal.snapshot().text().contains("has ended"), "{}", terminal.snapshot().text());
    fixture.daemon.wait_exit().await;
    fixture.model.wait_for_connections(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_may_write_nothing_more_lives_and_stops() {
    let fixture = EndlessRunDaemon::start().await;
    lower_limit(&fixture, Resource::Fsize, None);
    let refused = fixture.daemon.api().post_run("t", &json!({"text": "go"})).await;
    assert_eq!((refused.status, refused.problem_code()), (503, Some("store_unavailable")), "{refused:?}");
    let stopped = fixture.request_stop().await;
    assert_eq!(stopped["aborted"], true, "{stopped:#}");
    fixture.model.wait_for_connections(0).await;
    assert!(!fixture.daemon.has_exited(), "{}", fixture.daemon.output());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_somebody_locks_keeps_no_stop_out() {
    let fixture = EndlessRunDaemon::start().await;
    let database = OtherProgram::connect(&fixture.daemon.home().data_dir());
    database.lock_writes();
    let stopped = fixture.request_stop().await;
    assert_fields(&stopped, &json!({"state": "ended", "receipt": {"leftovers": []}}));
    fixture.model.wait_for_connections(0).await;
    database.unlock_writes();
}
