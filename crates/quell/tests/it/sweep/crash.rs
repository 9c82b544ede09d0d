//! The same places, and the daemon is killed there: by itself, with SIGKILL, in a process of its own. A new daemon on the same
//! data finds every run sealed, starts none of them, and answers the next message.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use futures_util::future::pending;
use quell_engine::dispatch::Follow;
use quell_protocol::api::RunView;
use quell_protocol::{EventKind, StopReason};
use quell_testkit::commands::Marker;
use quell_testkit::leaks;
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::cases::{self, Case, Moment};
use super::scene::{Scene, Site};
use crate::harness::{Ground, House, PATIENCE, abort_reason, flat, receipt};

/// How long anything of a killed daemon may live (the issue of this contract says so).
const GONE: Duration = Duration::from_secs(2);
/// A number that an event of a killed run may have had without a line in the journal.
const MAY_HAVE_SEEN: u64 = 65_000;
/// What the model is told of a request whose daemon died.
const NOTE: &str = "[The request above was stopped because the service went down";

/// What the process that is to die is told, in a file.
#[derive(Serialize, Deserialize)]
struct Order {
    case: usize,
    marker: String,
}

const ORDER: &str = "order.json";
/// The numbers of the wardens that the dying daemon had.
const WARDENS: &str = "wardens.json";

/// Plays one case and kills itself where the case says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process of the test below"]
async fn dies() {
    let Ok(order) = std::fs::read_to_string(ORDER) else { return };
    let order: Order = serde_json::from_str(&order).unwrap();
    let case = &cases::all()[order.case];
    let house = Ground::Lent(PathBuf::from("house"));
    let mark = order.marker.clone();
    let site = Site::on(house, |config| config.environment.push(("QUELL_TEST_HOUSE".into(), mark.into()))).await;
    site.lay_out();
    let scene = Scene::of(&site, case, "Crash");
    (case.prepare)(&scene).await;
    match case.moment {
        Moment::Before => {}
        Moment::When(moment) => {
            scene.submit(case).await;
            moment(&scene).await;
            // Everything that the run started carries the mark, but for its wardens, which show nothing of it.
            let of_run = all_marked(&scene.mark, &order.marker).await;
            let wardens: Vec<u32> = wardens_of(std::process::id()).iter().map(|warden| warden.pid).collect();
            assert!(of_run.is_empty() || !wardens.is_empty(), "no warden holds {of_run:#?}");
            std::fs::write(WARDENS, serde_json::to_string(&wardens).unwrap()).unwrap();
            die();
        }
        Moment::At(point, nth) => {
            site.house.trap.arm(point, nth, die);
            scene.submit(case).await;
            pending::<()>().await;
        }
    }
}

/// Waits until each process of the run carries the mark: one that ends, or becomes another program in this very moment, is seen in
/// one look and not in the next.
async fn all_marked(of_run: &Marker, mark: &str) -> Vec<leaks::Process> {
    let begun = Instant::now();
    loop {
        let (of_run, marked) = (of_run.survivors(), leaks::marked(mark));
        if of_run.iter().all(|process| marked.iter().any(|marked| marked.pid == process.pid)) {
            return of_run;
        }
        assert!(begun.elapsed() < PATIENCE, "of {of_run:#?} not all carry the mark");
        tokio::task::yield_now().await;
    }
}

fn wardens_of(daemon: u32) -> Vec<leaks::Process> {
    leaks::children_of(daemon).into_iter().filter(is_warden).collect()
}

fn is_warden(process: &leaks::Process) -> bool {
    process.command.contains("__warden")
}

/// Waits until no warden lives that the dead daemon had at its end, as far as it could say.
async fn wardens_gone(home: &Path) {
    let Ok(told) = std::fs::read_to_string(home.join(WARDENS)) else { return };
    let wardens: Vec<u32> = serde_json::from_str(&told).unwrap();
    leaks::settled(GONE, move || {
        let left: Vec<_> = wardens.iter().filter_map(|pid| leaks::process(*pid)).filter(is_warden).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("wardens outlived their daemon: {left:#?}")) }
    })
    .await;
}

fn die() {
    kill_process(getpid(), Signal::KILL).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_is_killed_anywhere_leaves_no_process_and_no_open_turn() {
    let mut deaths = 0;
    for (number, case) in cases::all().iter().enumerate().filter(|(_, case)| !matches!(case.moment, Moment::Before)) {
        let home = tempfile::tempdir().unwrap();
        let mark = Marker::new();
        let status = killed(home.path(), &Order { case: number, marker: mark.as_str().to_owned() }).await;
        let gone = mark.gone(GONE).await;
        wardens_gone(home.path()).await;
        let begun = Instant::now();
        let site = Site::on(Ground::Lent(home.path().join("house")), |_| {}).await;
        let ready = begun.elapsed();
        let scene = Scene::of(&site, case, "Crash");
        let recorded = everything_is_sealed(&scene, case).await;
        the_next_message_works(&scene, case, recorded).await;
        site.close().await;
        show(&case.name, status, gone, ready);
        deaths += 1;
    }
    assert!(deaths > 50, "only {deaths} cases");
}

/// Plays a case in a process of its own until that is dead.
async fn killed(home: &Path, order: &Order) -> ExitStatus {
    std::fs::write(home.join(ORDER), serde_json::to_string(order).unwrap()).unwrap();
    std::fs::create_dir(home.join("house")).unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap());
    victim.args(["sweep::crash::dies", "--exact", "--ignored", "--nocapture"]).current_dir(home);
    let said = home.join("said");
    let log = File::create(&said).unwrap();
    victim.stdout(log.try_clone().unwrap()).stderr(log).kill_on_drop(true);
    let status = tokio::time::timeout(PATIENCE, victim.spawn().unwrap().wait()).await;
    let status = status.expect("the daemon is not killed").unwrap();
    let said = || std::fs::read_to_string(&said).unwrap();
    assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "case {}: {}", order.case, said());
    status
}

/// Answers whether the run has left a turn.
async fn everything_is_sealed(scene: &Scene<'_>, case: &Case) -> bool {
    let house = &scene.site.house;
    assert!(house.engine.active_runs().is_empty(), "{}: {:?}", case.name, house.engine.active_runs());
    assert!(house.model.seen().is_empty(), "{}: a run came back", case.name);
    for run in all_runs(house).await {
        // What another run took is that run's; the next request shows it.
        if run.state != "steered" {
            assert_eq!(run.state, "ended", "{}: {run:#?}", case.name);
            assert!(receipt(&run).leftovers.is_empty(), "{}: {run:#?}", case.name);
        }
    }
    let view = house.engine.run(&scene.run).await.unwrap().unwrap();
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::DaemonStopped, "{}", case.name);
    let recorded = receipt(&view).turn.recorded;
    // A run that dies in the instant of its start may never have been known to have started.
    assert!(recorded == case.started || view.steps == 0, "{}: {view:#?}", case.name);
    let Ok(Some(Follow::Over(events))) = house.engine.follow(&scene.run, MAY_HAVE_SEEN).await else {
        panic!("{}", case.name)
    };
    let [.., last] = events.as_slice() else { panic!("{}: no end", case.name) };
    assert!(matches!(last.kind, EventKind::Ended { .. }), "{}: {events:#?}", case.name);
    assert!(events.iter().all(|event| event.seq > MAY_HAVE_SEEN), "{}: numbers go backwards: {events:#?}", case.name);
    let lines: i64 = {
        let database = scene.site.database.lock().unwrap();
        database.query_row("SELECT count(*) FROM journal", [], |row| row.get(0)).unwrap()
    };
    assert_eq!(lines, 0, "{}: the journal is kept", case.name);
    recorded
}

async fn all_runs(house: &House) -> Vec<RunView> {
    let filter = quell_engine::store::RunFilter { session: None, principal: None, limit: 100, cursor: None };
    house.engine.runs(filter).await.unwrap().items
}

async fn the_next_message_works(scene: &Scene<'_>, case: &Case, recorded: bool) {
    let house = &scene.site.house;
    let marker = format!("next-{}", scene.run);
    let next = house.ask(&scene.session, &format!("and now? marker:{marker}")).await;
    assert_eq!(next.verdict, Some(quell_protocol::Verdict::Completed), "{}", case.name);
    house.model.assert_histories_valid();
    let seen = flat(house.model.marked(&marker).await.messages());
    assert!(seen.contains(NOTE) || !recorded, "{}: {seen}", case.name);
    assert_eq!(seen.contains(&scene.text), recorded, "{}: {seen}", case.name);
    for taken in all_runs(house).await.into_iter().filter(|run| run.state == "steered") {
        assert!(seen.contains(&taken.text), "{}: {:?} is in no turn: {seen}", case.name, taken.text);
    }
}

#[expect(clippy::print_stdout, reason = "the table is what a person reads of the sweep")]
fn show(name: &str, status: ExitStatus, gone: Duration, ready: Duration) {
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    println!("{name:<44} {status:<20} gone ms {:>7.1} recovered ms {:>7.1}", ms(gone), ms(ready));
}
