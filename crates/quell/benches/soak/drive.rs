//! Drives the sessions, stands still for an audit now and then, and ends with the table.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};

use crate::audit::Auditor;
use crate::chance::Chance;
use crate::feed::Feed;
use crate::memory::Memory;
use crate::options::Options;
use crate::plan::Dialect;
use crate::report;
use crate::round::Round;
use crate::site::Site;
use crate::tally::Fault;

/// Between two audits.
const AUDIT_EVERY: Duration = Duration::from_secs(10);
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// Longest round; on the way it waits for nothing longer than half of it.
const ROUND: Duration = Duration::from_secs(90);
/// More faults say nothing new.
const ENOUGH: usize = 200;

/// Soaks; true when nothing was wrong.
pub(crate) async fn soak(options: &Options) -> bool {
    let site = Arc::new(Site::open().await);
    eprintln!(
        "soak: seed {}, {:.1} minutes, {} sessions, daemon {}",
        options.seed,
        options.time.as_secs_f64() / 60.0,
        options.sessions,
        site.daemon.pid()
    );
    let feed = Feed::open(&site).await;
    greet(&site).await;
    let mut auditor = Auditor::begin(&site, &feed).await;
    let memory = Memory::watch(site.daemon.pid());
    let gate = Arc::new(Semaphore::new(options.at_once as usize));
    let end = Instant::now() + options.time;
    let mut sessions = JoinSet::new();
    for number in 0..options.sessions {
        sessions.spawn(session(Arc::clone(&site), Arc::clone(&gate), (number, options.seed), end));
    }
    let progress = tokio::spawn(progress(Arc::clone(&site), memory.clone()));
    while Instant::now() + AUDIT_EVERY < end && !hopeless(&site) {
        tokio::time::sleep(AUDIT_EVERY).await;
        // Fair: who asked before comes first, who asks later waits. All of it means that every session rests.
        let _all = gate.acquire_many(options.at_once).await.expect("the gate stays");
        auditor.audit().await;
    }
    while sessions.join_next().await.is_some() {}
    progress.abort();
    auditor.audit().await;
    auditor.rest(options.sessions).await;
    report::print(&site, &auditor, &memory, options)
}

/// A run in each dialect: what the daemon opens once, it has open then.
async fn greet(site: &Site) {
    for dialect in Dialect::ALL {
        let body = json!({"text": "hello", "agent": dialect.agent("main")});
        let sent = site.http.post("/api/sessions/greeting/runs", &body).await.expect_status(202);
        let run = sent["runId"].as_str().unwrap_or_default().to_owned();
        drop(site.http.events(&run, 0).await.to_end().await);
    }
}

/// One session after the other round, each in a task of its own so that one that breaks off is a fault and no end.
async fn session(site: Arc<Site>, gate: Arc<Semaphore>, (number, seed): (usize, u64), end: Instant) {
    let mut chance = Chance::new(seed, number as u64);
    for nth in 0.. {
        let _turn = gate.acquire().await.expect("the gate stays");
        if Instant::now() >= end || hopeless(&site) {
            return;
        }
        let round = Round::draw(&site, number, nth, &mut chance);
        let title = round.title();
        let mut task = tokio::spawn(round.play());
        let broke = match tokio::time::timeout(ROUND, &mut task).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => words_of(error),
            Err(_) => {
                task.abort();
                format!("not over after {ROUND:?}")
            }
        };
        site.tally.fault(Fault::Stuck, &title, broke);
    }
}

fn words_of(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "its task was ended".to_owned() };
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
}

fn hopeless(site: &Site) -> bool {
    site.daemon.has_ended() || site.tally.facts().findings.len() > ENOUGH
}

async fn progress(site: Arc<Site>, memory: Memory) {
    loop {
        tokio::time::sleep(PROGRESS_EVERY).await;
        let seconds = site.begun.elapsed().as_secs_f64();
        let facts = site.tally.facts();
        let (stops, faults) = (facts.stops(), facts.findings.len());
        #[expect(clippy::cast_precision_loss, reason = "a count of stops")]
        let rate = stops as f64 * 60.0 / seconds;
        let (rounds, sent, rss) = (facts.rounds, facts.sent, memory.now());
        eprintln!(
            "{seconds:6.0} s  {rounds} rounds, {sent} runs, {stops} stops ({rate:.0} a minute), {rss:.0} MiB, {faults} faults"
        );
    }
}
