//! Run all sessions, pause them for audits, print the report.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use quell_testkit::daemon::TestDaemon;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};

use crate::audit::SoakAuditor;
use crate::fixture::SoakFixture;
use crate::memory::MemorySamples;
use crate::options::SoakOptions;
use crate::plan::SoakDialect;
use crate::report;
use crate::results::FaultKind;
use crate::round::SoakRound;
use crate::run_ends::RunEndFeed;

const AUDIT_EVERY: Duration = Duration::from_secs(10);
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// Longest time of a round. No wait inside of a round is longer than half of it.
const ROUND_TIMEOUT: Duration = Duration::from_secs(90);
/// Give up after so many faults: more tell nothing new.
const MAX_FAULTS: usize = 200;

/// Runs the soak; true when there was no fault.
pub(crate) async fn drive_soak(options: &SoakOptions) -> bool {
    let fixture = Arc::new(SoakFixture::start(options.nodes.get()).await);
    eprintln!(
        "soak: seed {}, {:.1} minutes, {} sessions, daemons {:?}",
        options.seed,
        options.time.as_secs_f64() / 60.0,
        options.sessions,
        fixture.daemons.iter().map(TestDaemon::pid).collect::<Vec<_>>()
    );
    let run_ends = RunEndFeed::open(&fixture).await;
    warm_up(&fixture).await;
    let mut auditor = SoakAuditor::begin(&fixture, &run_ends).await;
    let memory_samples = MemorySamples::start(fixture.daemons[0].pid());
    let gate = Arc::new(Semaphore::new(options.at_once.get() as usize));
    let end = Instant::now() + options.time;
    let mut sessions = JoinSet::new();
    for number in 0..options.sessions.get() {
        sessions.spawn(run_session(Arc::clone(&fixture), Arc::clone(&gate), (number, options.seed), end));
    }
    let progress = tokio::spawn(print_progress(Arc::clone(&fixture), memory_samples.clone()));
    while Instant::now() + AUDIT_EVERY < end && !should_give_up(&fixture) {
        tokio::time::sleep(AUDIT_EVERY).await;
        // The semaphore is fair: the audit gets all permits once the current rounds have ended, so all sessions are
        // paused.
        let _all = gate.acquire_many(options.at_once.get()).await.expect("the gate stays open");
        auditor.audit().await;
    }
    while sessions.join_next().await.is_some() {}
    progress.abort();
    auditor.audit().await;
    auditor.audit_final(options.sessions.get()).await;
    report::print_report(&fixture, &memory_samples, options)
}

/// Does one run in each dialect, so that the daemon has opened what it opens only once.
async fn warm_up(fixture: &SoakFixture) {
    for dialect in SoakDialect::ALL {
        let body = json!({"text": "hello", "agent": dialect.agent_id("main")});
        let run = fixture.http().start_run("greeting", &body).await;
        drop(fixture.http().run_events(&run, 0).await.read_to_end().await);
    }
}

/// Does one round of a session after the other. Each has its own task, so that a panic in it is a fault and does not
/// end the soak.
async fn run_session(fixture: Arc<SoakFixture>, gate: Arc<Semaphore>, (number, seed): (usize, u64), end: Instant) {
    // One stream of random numbers a session: the same seed gives the same plan, however fast the others are.
    let mut random = Rng::with_seed(seed ^ (number as u64).wrapping_mul(0xA076_1D64_78BD_642F));
    for nth in 0.. {
        let _permit = gate.acquire().await.expect("the gate stays open");
        if Instant::now() >= end || should_give_up(&fixture) {
            return;
        }
        let round = SoakRound::draw(&fixture, number, nth, &mut random);
        let title = round.title();
        let mut task = tokio::spawn(round.run());
        let problem = match tokio::time::timeout(ROUND_TIMEOUT, &mut task).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => panic_text(error),
            Err(_) => {
                task.abort();
                format!("not ended after {ROUND_TIMEOUT:?}")
            }
        };
        fixture.results.add_fault(FaultKind::BrokenRound, &title, problem);
    }
}

fn panic_text(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "its task was ended".to_owned() };
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text").to_owned()
}

fn should_give_up(fixture: &SoakFixture) -> bool {
    fixture.has_exited() || fixture.results.lock().faults.len() > MAX_FAULTS
}

async fn print_progress(fixture: Arc<SoakFixture>, memory_samples: MemorySamples) {
    loop {
        tokio::time::sleep(PROGRESS_EVERY).await;
        let seconds = fixture.started_at.elapsed().as_secs_f64();
        let facts = fixture.results.lock();
        let (stops, faults) = (facts.stops(), facts.faults.len());
        #[expect(clippy::cast_precision_loss, reason = "a count of stops")]
        let rate = stops as f64 * 60.0 / seconds;
        let (rounds, sent, rss) = (facts.rounds, facts.sent_runs, memory_samples.latest());
        eprintln!(
            "{seconds:6.0} s  {rounds} rounds, {sent} runs, {stops} stops ({rate:.0} a minute), {rss:.0} MiB, {faults} faults"
        );
    }
}
