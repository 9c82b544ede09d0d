//! Kill the daemon at every point: it kills itself with SIGKILL in a process of its own. A new daemon on the same data
//! finds every run sealed, starts none of them, and answers the next message.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;

use futures_util::future::pending;
use quell_store::test_support::CountedRows;
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::checks::send_next_message;
use super::*;

/// A sequence number that an event of a killed run may have had without a line in the journal.
const UNJOURNALED_SEQ: u64 = 65_000;
const CRASH_NOTE: &str = "[The request above was stopped because the service went down";

/// What the process that will be killed has to do; it is passed in a file.
#[derive(Serialize, Deserialize)]
struct KillOrder {
    case: usize,
    marker: String,
    database: TestDatabase,
}

const DATA_DIR: &str = "data";
const ORDER_FILE: &str = "order.json";
/// File with the process ids of the daemon's wardens.
const WARDENS_FILE: &str = "wardens.json";

/// Plays one case and kills its own process at the moment of the case.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: does nothing unless the test below starts it as a process"]
async fn dies() {
    let Ok(order) = std::fs::read_to_string(ORDER_FILE) else { return };
    let order: KillOrder = serde_json::from_str(&order).unwrap();
    let case = &cases::all_cases()[order.case];
    let dir = TestDir::Borrowed(PathBuf::from(DATA_DIR));
    let mark = order.marker.clone();
    let mark_commands = |config: &mut EngineConfig| config.environment.push(("QUELL_TEST_MARKER".into(), mark.into()));
    let sweep = SweepEngine::start_in(dir, order.database, mark_commands).await;
    sweep.write_files();
    let case_run = CaseRun::new(&sweep, case, "Crash");
    (case.prepare)(&case_run).await;
    match case.moment {
        StopMoment::BeforeMessage | StopMoment::WhileAccepted => {}
        StopMoment::OnCondition(moment) => {
            case_run.submit(case).await;
            moment(&case_run).await;
            // Each process of the run carries the marker, except its wardens, which hide their environment.
            let of_run = wait_all_marked(&case_run.mark, &order.marker).await;
            let wardens: Vec<u32> = wardens_of(std::process::id()).iter().map(|warden| warden.pid).collect();
            assert!(of_run.is_empty() || !wardens.is_empty(), "no warden holds {of_run:#?}");
            std::fs::write(WARDENS_FILE, serde_json::to_string(&wardens).unwrap()).unwrap();
            kill_self();
        }
        StopMoment::AtPoint(point, nth) => {
            sweep.test_engine.point_hook.arm(point, nth, kill_self);
            case_run.submit(case).await;
            pending::<()>().await;
        }
    }
}

/// Waits until each process of the run carries the marker. Each look reads the processes twice: one that ends or
/// replaces its program in between may be missing in the second list.
async fn wait_all_marked(of_run: &ProcessMarker, mark: &str) -> Vec<leaks::ObservedProcess> {
    let begun = Instant::now();
    loop {
        let (of_run, marked) = (of_run.marked_processes(), leaks::processes_with_marker(mark));
        if of_run.iter().all(|process| marked.iter().any(|marked| marked.pid == process.pid)) {
            return of_run;
        }
        assert!(begun.elapsed() < WAIT_TIMEOUT, "not all of {of_run:#?} carry the marker");
        tokio::task::yield_now().await;
    }
}

fn wardens_of(daemon: u32) -> Vec<leaks::ObservedProcess> {
    leaks::children_of(daemon).into_iter().filter(is_warden).collect()
}

fn is_warden(process: &leaks::ObservedProcess) -> bool {
    process.command.contains("__warden")
}

/// Waits until no warden of the dead daemon lives, as far as the daemon has listed them.
async fn wait_wardens_gone(home: &Path) {
    let Ok(text) = std::fs::read_to_string(home.join(WARDENS_FILE)) else { return };
    let wardens: Vec<u32> = serde_json::from_str(&text).unwrap();
    leaks::wait_until(WAIT_TIMEOUT, move || {
        let left: Vec<_> = wardens.iter().filter_map(|pid| leaks::read_process(*pid)).filter(is_warden).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("wardens outlived their daemon: {left:#?}")) }
    })
    .await;
}

fn kill_self() {
    kill_process(getpid(), Signal::KILL).unwrap();
}

#[rstest]
#[ignore = "full: a crash at every point"]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[ignore = "full: PostgreSQL"]
#[case::cluster_node(StoreKind::ClusterNode)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_is_killed_anywhere_leaves_no_process_and_no_open_turn(#[case] kind: StoreKind) {
    let cases = cases::all_cases();
    let dies_within =
        |(_, case): &(usize, &SweepCase)| !matches!(case.moment, StopMoment::BeforeMessage | StopMoment::WhileAccepted);
    let played: Vec<_> = cases.iter().enumerate().filter(dies_within).step_by(step_of(kind)).collect();
    assert!(played.len() * step_of(kind) > 50, "only {} cases", played.len());
    kill_in_cases(kind, &played).await;
}

/// One death from outside, while a command prints, and one at a point.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_is_killed_in_a_call_leaves_no_process_and_no_open_turn() {
    let cases = cases::all_cases();
    let played = ["tool running (shell)", "between tools of one batch"];
    let played: Vec<_> = cases.iter().enumerate().filter(|(_, case)| played.contains(&case.name.as_str())).collect();
    assert_eq!(played.len(), 2);
    kill_in_cases(StoreKind::Sqlite, &played).await;
}

/// Kills a daemon in each of these cases, which are given with their places in the list, and starts the next one.
async fn kill_in_cases(kind: StoreKind, played: &[(usize, &SweepCase)]) {
    let Some(store) = kind.start() else { return };
    // Each case has a session and runs of its own, so they can share what is on a server.
    let database = store.new_database();
    for &(number, case) in played {
        let home = tempfile::tempdir().unwrap();
        let mark = ProcessMarker::new();
        let order = KillOrder { case: number, marker: mark.as_str().to_owned(), database: database.clone() };
        run_until_killed(home.path(), &order).await;
        mark.wait_gone(WAIT_TIMEOUT).await;
        wait_wardens_gone(home.path()).await;
        let sweep =
            SweepEngine::start_in(TestDir::Borrowed(home.path().join(DATA_DIR)), database.clone(), |_| {}).await;
        if kind == StoreKind::ClusterNode {
            wait_predecessor_settled(&sweep).await;
        }
        let case_run = CaseRun::new(&sweep, case, "Crash");
        let record = check_runs_sealed(&case_run, case, kind).await;
        check_next_message(&case_run, case, record).await;
        sweep.test_engine.close().await;
    }
}

/// On a node of a cluster every fourth case is played, and all cases if `QUELL_FULL_SWEEP` is set. On PostgreSQL without
/// a cluster, all are played in any case.
fn step_of(kind: StoreKind) -> usize {
    let is_full = std::env::var_os("QUELL_FULL_SWEEP").is_some();
    if kind == StoreKind::ClusterNode && !is_full { 4 } else { 1 }
}

/// A node begins to work before it has sealed the runs of its predecessor.
async fn wait_predecessor_settled(sweep: &SweepEngine) {
    let database = sweep.test_engine.connect_to_database();
    let count = move || database.count(CountedRows::Memberships);
    leaks::wait_for_value("the memberships of the cluster", 1, count).await;
}

/// Plays a case in its own process until that is killed.
async fn run_until_killed(home: &Path, order: &KillOrder) {
    std::fs::write(home.join(ORDER_FILE), serde_json::to_string(order).unwrap()).unwrap();
    std::fs::create_dir(home.join(DATA_DIR)).unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap());
    victim.args(["sweep::crash::dies", "--exact", "--ignored", "--nocapture"]).current_dir(home);
    let output = home.join("output");
    let log = File::create(&output).unwrap();
    victim.stdout(log.try_clone().unwrap()).stderr(log).kill_on_drop(true);
    let status = tokio::time::timeout(WAIT_TIMEOUT, victim.spawn().unwrap().wait()).await;
    let status = status.expect("the daemon is not killed").unwrap();
    let output = || std::fs::read_to_string(&output).unwrap();
    assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "case {}: {}", order.case, output());
}

/// What a killed daemon has left of the run of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CrashRecord {
    /// The next daemon sealed the run.
    Sealed { has_turn: bool },
    /// The end of the run was with the database server when the daemon died, and was committed there.
    Committed,
}

/// True if the verdict is that which the daemon wrote when it was killed: a server that has a commit does not need its
/// client any more, and the lock for which it waited went with the daemon. SQLite has no process of its own.
fn was_committed(case: &SweepCase, verdict: Option<&Verdict>, kind: StoreKind) -> bool {
    let is_as_written = match (case.expected, verdict) {
        (ExpectedOutcome::Completed, Some(Verdict::Completed)) => true,
        (ExpectedOutcome::AbortedEarlier, Some(Verdict::Aborted { reason, .. })) => *reason == StopReason::User,
        _ => false,
    };
    is_as_written && kind != StoreKind::Sqlite
}

/// Checks all runs after the restart.
async fn check_runs_sealed(case_run: &CaseRun<'_>, case: &SweepCase, kind: StoreKind) -> CrashRecord {
    let test_engine = &case_run.sweep.test_engine;
    assert!(test_engine.engine.active_runs().is_empty(), "{}: {:?}", case.name, test_engine.engine.active_runs());
    assert!(test_engine.model.recorded_requests().is_empty(), "{}: a run came back", case.name);
    for run in list_runs(test_engine, None).await {
        // A steering message belongs to the run that received it; the next request shows it.
        if run.state != "steered" {
            assert_eq!(run.state, "ended", "{}: {run:#?}", case.name);
            assert!(receipt_of(&run).leftovers.is_empty(), "{}: {run:#?}", case.name);
        }
    }
    let view = test_engine.engine.find_run(&case_run.run).await.unwrap().unwrap();
    let recorded = receipt_of(&view).turn.recorded;
    if was_committed(case, view.verdict.as_ref(), kind) {
        assert!(recorded, "{}: {view:#?}", case.name);
        return CrashRecord::Committed;
    }
    let is_sealed = matches!(view.verdict, Some(Verdict::Aborted { reason: StopReason::DaemonStopped, .. }));
    assert!(is_sealed, "{}: {view:#?}", case.name);
    // A run killed in the moment of its start may not be known as started.
    assert!(recorded == case.started || view.steps == 0, "{}: {view:#?}", case.name);
    let Ok(Some(RunFollow::Ended(events))) = test_engine.engine.follow_run(&case_run.run, UNJOURNALED_SEQ).await else {
        panic!("{}", case.name)
    };
    let [.., last] = events.as_slice() else { panic!("{}: no end", case.name) };
    assert!(matches!(last.kind, EventKind::Ended { .. }), "{}: {events:#?}", case.name);
    assert!(events.iter().all(|event| event.seq > UNJOURNALED_SEQ), "{}: numbers go backwards: {events:#?}", case.name);
    let lines = case_run.sweep.database.lock().unwrap().count(CountedRows::JournalLines);
    assert_eq!(lines, 0, "{}: the journal is kept", case.name);
    CrashRecord::Sealed { has_turn: recorded }
}

/// The newest runs of the database, of one session or of all.
async fn list_runs(test_engine: &TestEngine, session: Option<&str>) -> Vec<RunView> {
    let session = session.map(parse_session_key);
    let filter = quell_store::RunListFilter { session, principal: None, visible_to: None, limit: 100, cursor: None };
    test_engine.engine.list_runs(filter).await.unwrap().items
}

async fn check_next_message(case_run: &CaseRun<'_>, case: &SweepCase, record: CrashRecord) {
    let seen = send_next_message(case_run, case).await;
    let has_turn = record != CrashRecord::Sealed { has_turn: false };
    match record {
        CrashRecord::Sealed { has_turn: false } => {}
        CrashRecord::Sealed { has_turn: true } => assert!(seen.contains(CRASH_NOTE), "{}: {seen}", case.name),
        CrashRecord::Committed => assert!(!seen.contains(CRASH_NOTE), "{}: {seen}", case.name),
    }
    assert_eq!(seen.contains(&case_run.text), has_turn, "{}: {seen}", case.name);
    let runs = list_runs(&case_run.sweep.test_engine, Some(&case_run.session)).await;
    for taken in runs.into_iter().filter(|run| run.state == "steered") {
        assert!(seen.contains(&taken.text), "{}: {:?} is in no turn: {seen}", case.name, taken.text);
    }
}
