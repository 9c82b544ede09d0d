//! Check at rest: gauges, processes, descriptors, model connections, runs, receipts, histories.
//!
//! While all sessions are paused, the daemon must hold no more than at the beginning. Each new run must have one end,
//! one receipt, and a verdict that the soak's stops explain.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use quell_testkit::daemon::TestDaemon;
use quell_testkit::leaks::{self, DescriptorCounts};
use serde_json::Value;

use crate::fixture::{SoakFixture, poll_until};
use crate::histories;
use crate::results::{FaultKind, SoakCounts, verdict_text};
use crate::run_ends::RunEndFeed;

/// Time for the daemon to come to rest after its last run; unused MCP servers are ended after a second.
const REST_TIMEOUT: Duration = Duration::from_secs(20);
/// Idle threads for blocking work end after ten seconds, and sessions expire.
const FINAL_REST_TIMEOUT: Duration = Duration::from_secs(30);
const RUN_PAGE_SIZE: usize = 200;
/// Histories that one audit reads.
const HISTORIES_PER_AUDIT: usize = 20;

/// Gauges that must be 0 at rest.
const REST_GAUGES: &[&str] = &["quell_runs", "quell_processes", "quell_background_processes", "quell_model_requests"];

type CountDescriptors = fn(DescriptorCounts) -> usize;

struct InitialCounts {
    pid: u32,
    descriptors: DescriptorCounts,
    threads: u64,
}

/// Keeps the state of the beginning and what was audited already.
pub(crate) struct SoakAuditor {
    fixture: Arc<SoakFixture>,
    run_ends: RunEndFeed,
    /// What each daemon held at the beginning.
    initial: Vec<InitialCounts>,
    audited_runs: HashSet<String>,
    /// Index of the first session whose history the next audit reads.
    next_session: usize,
    /// Complaints of the model that are faults already.
    model_complaints: usize,
    /// Gaps in the feed before this audit. Only a later gap excuses a missing end.
    earlier_gaps: u64,
}

impl SoakAuditor {
    /// Takes what the daemon holds now as the limit for all audits.
    pub(crate) async fn begin(fixture: &Arc<SoakFixture>, run_ends: &RunEndFeed) -> Self {
        let mut auditor = Self {
            fixture: Arc::clone(fixture),
            run_ends: run_ends.clone(),
            initial: Vec::new(),
            audited_runs: HashSet::new(),
            next_session: 0,
            model_complaints: 0,
            earlier_gaps: 0,
        };
        auditor.check_daemon_idle().await;
        let counts = |daemon: &TestDaemon| {
            let pid = daemon.pid();
            let descriptors = leaks::count_descriptors(pid).expect("the daemon's descriptors can be read");
            InitialCounts { pid, descriptors, threads: leaks::threads_of(pid).unwrap_or(0) }
        };
        auditor.initial = fixture.daemons.iter().map(counts).collect();
        auditor
    }

    /// Checks everything that can be checked while nothing runs.
    pub(crate) async fn audit(&mut self) {
        self.check_daemon_idle().await;
        self.check_descriptors().await;
        self.check_model_idle().await;
        self.check_new_runs().await;
        self.check_histories(HISTORIES_PER_AUDIT).await;
        self.fixture.results.lock().audits += 1;
    }

    /// The final checks, which take longer: threads, all histories, and marked processes anywhere on the machine.
    pub(crate) async fn audit_final(&mut self, sessions: usize) {
        self.next_session = 0;
        self.check_histories(sessions).await;
        // All sessions have expired.
        self.check_gauges_zero(&[REST_GAUGES, &["quell_sessions_live"]].concat(), FINAL_REST_TIMEOUT).await;
        for InitialCounts { pid, threads: most, .. } in &self.initial {
            self.expect_soon(FaultKind::Task, FINAL_REST_TIMEOUT, || {
                let threads = leaks::threads_of(*pid).unwrap_or(0);
                if threads <= *most { Ok(()) } else { Err(format!("{threads} threads, {most} at the beginning")) }
            })
            .await;
        }
        for (mark, who) in self.fixture.markers.scan().await.iter() {
            self.fixture.results.add_fault(FaultKind::Process, mark, format!("{who:#?}"));
        }
    }

    /// Waits until these gauges are 0.
    async fn check_gauges_zero(&self, wanted: &[&str], limit: Duration) {
        let fixture = &self.fixture;
        let gauges = poll_until(limit, || async {
            let held = |name: &str| wanted.iter().any(|gauge| name.split('{').next() == Some(gauge));
            let gauges = fixture.gauges().await;
            let busy: Vec<_> = gauges.into_iter().filter(|(name, value)| held(name) && *value != 0.0).collect();
            if busy.is_empty() { Ok(()) } else { Err(format!("not 0 at rest: {busy:?}")) }
        });
        if let Err(why) = gauges.await {
            fixture.results.add_fault(FaultKind::Task, "the daemon", why);
        }
    }

    /// Polls until `probe` succeeds; its last error is a fault of this kind.
    async fn expect_soon(&self, kind: FaultKind, limit: Duration, mut probe: impl FnMut() -> Result<(), String>) {
        if let Err(why) = poll_until(limit, || std::future::ready(probe())).await {
            self.fixture.results.add_fault(kind, "the daemon", why);
        }
    }

    async fn check_daemon_idle(&self) {
        self.check_gauges_zero(REST_GAUGES, REST_TIMEOUT).await;
        for daemon in &self.fixture.daemons {
            self.expect_soon(FaultKind::Process, REST_TIMEOUT, || {
                let below = leaks::descendants_of(daemon.pid());
                if below.is_empty() { Ok(()) } else { Err(format!("{} processes below it: {below:#?}", below.len())) }
            })
            .await;
        }
    }

    async fn check_descriptors(&self) {
        let counts: [(FaultKind, CountDescriptors); 2] =
            [(FaultKind::Socket, |held| held.sockets), (FaultKind::Descriptor, |held| held.total() - held.sockets)];
        for InitialCounts { pid, descriptors: then, .. } in &self.initial {
            for (kind, count) in counts {
                self.expect_soon(kind, REST_TIMEOUT, || {
                    let now = leaks::count_descriptors(*pid).map_err(|error| error.to_string())?;
                    if count(now) <= count(*then) { Ok(()) } else { Err(format!("{now:?}, {then:?} at the beginning")) }
                })
                .await;
            }
        }
    }

    async fn check_model_idle(&mut self) {
        let model = &self.fixture.model.server;
        self.expect_soon(FaultKind::Socket, REST_TIMEOUT, || match model.connection_count() {
            0 => Ok(()),
            open => Err(format!("{open} connections to the model are open")),
        })
        .await;
        let complaints = model.protocol_errors();
        for complaint in &complaints[self.model_complaints..] {
            self.fixture.results.add_fault(FaultKind::InvalidHistory, "the model", complaint);
        }
        self.model_complaints = complaints.len();
    }

    /// Checks every run since the last audit, newest first.
    async fn check_new_runs(&mut self) {
        let mut cursor = String::new();
        loop {
            let page =
                self.fixture.http().get(&format!("/api/runs?limit={RUN_PAGE_SIZE}{cursor}")).await.expect_status(200);
            let rows = page["items"].as_array().cloned().unwrap_or_default();
            let fresh: Vec<&Value> =
                rows.iter().filter(|row| self.audited_runs.insert(run_id(row).to_owned())).collect();
            for row in &fresh {
                self.check_run(row).await;
            }
            match page["nextCursor"].as_str() {
                Some(next) if fresh.len() == rows.len() => cursor = format!("&cursor={next}"),
                _ => break,
            }
        }
        let ends = self.run_ends.lock();
        for run in ends.runs_ended_twice() {
            self.fixture.results.add_fault(FaultKind::DoubleEnd, &run, "its end was reported more than once");
        }
        self.earlier_gaps = ends.gaps;
        // These sets explain runs that are audited now.
        let mut facts = self.fixture.results.lock();
        facts.named_runs.clear();
        facts.maybe_stopped.clear();
        facts.stop_answers.clear();
        facts.all_maybe_stopped = false;
    }

    async fn check_run(&self, row: &Value) {
        if row["state"] == "steered" {
            return;
        }
        let (run, results) = (run_id(row), &self.fixture.results);
        let receipt = &row["receipt"];
        if row["state"] != "ended" || !receipt.is_object() {
            results.add_fault(FaultKind::MissingEnd, run, format!("no end or no receipt: {row}"));
            return;
        }
        let open = |resource: &&Value| !resource["releasedAt"].is_object() && resource["how"] != "kept";
        let unreleased = receipt["resources"].as_array().into_iter().flatten().find(open);
        if unreleased.is_some() || receipt["leftovers"] != serde_json::json!([]) {
            results.add_fault(FaultKind::Leftover, run, format!("{receipt}"));
        }
        let reported = poll_until(Duration::from_secs(5), || async {
            let ends = self.run_ends.lock();
            let is_known = ends.is_reported(run) || ends.gaps > self.earlier_gaps;
            if is_known { Ok(()) } else { Err("its end was not reported to a client".to_owned()) }
        });
        if let Err(why) = reported.await {
            results.add_fault(FaultKind::MissingEnd, run, format!("{why}: {row}"));
        }
        let mut facts = results.lock();
        facts.audited += 1;
        facts.sub_runs += u64::from(row["parent"].is_string());
        *facts.ends.entry(verdict_text(row)).or_default() += 1;
        let unexplained = unexplained_verdict(&facts, row);
        let names = [run, row["sessionKey"].as_str().unwrap_or(run), row["agent"].as_str().unwrap_or(run), "/api/stop"];
        let is_about = |answer: &&String| names.iter().any(|name| answer.contains(name));
        let stops: Vec<String> = match unexplained {
            Some(_) => facts.stop_answers.iter().filter(is_about).cloned().collect(),
            None => Vec::new(),
        };
        drop(facts);
        if let Some(why) = unexplained {
            let log_lines = self.fixture.log_lines_of(&names[..2]);
            let stops = stops.join("\n");
            results.add_fault(FaultKind::Verdict, run, format!("{why}: {row}\n{stops}\n{log_lines}"));
        }
    }

    async fn check_histories(&mut self, count: usize) {
        let rows = self.fixture.http().get("/api/sessions?limit=1000").await.expect_status(200);
        let mut keys: Vec<&str> =
            rows["items"].as_array().into_iter().flatten().filter_map(|row| row["key"].as_str()).collect();
        keys.sort_unstable();
        for at in 0..count.min(keys.len()) {
            let key = keys[(self.next_session + at) % keys.len()];
            let page =
                self.fixture.http().get(&format!("/api/sessions/{key}/history?turns=100")).await.expect_status(200);
            for fault in histories::history_faults(page["items"].as_array().map_or(&[][..], Vec::as_slice)) {
                self.fixture.results.add_fault(FaultKind::InvalidHistory, key, fault);
            }
            self.fixture.results.lock().histories_read += 1;
        }
        self.next_session += count;
    }
}

/// Returns why the soak's stops do not explain this verdict.
fn unexplained_verdict(facts: &SoakCounts, row: &Value) -> Option<String> {
    let (run, verdict) = (run_id(row), &row["verdict"]);
    let aborted = verdict["kind"] == "aborted";
    let by_a_stop = matches!(verdict["reason"].as_str(), Some("user" | "command"));
    let named = facts.named_runs.contains(run);
    if verdict["kind"] == "failed" {
        return Some("it failed".to_owned());
    }
    if named && !aborted {
        return Some("an answer said that it was stopped".to_owned());
    }
    // A stop ends sub-runs with their parent, and may or may not name them.
    let session = row["sessionKey"].as_str().unwrap_or_default();
    let maybe = [run, session].iter().any(|name| facts.maybe_stopped.contains(*name)) || facts.all_maybe_stopped;
    let explained = named || maybe || row["parent"].is_string();
    (aborted && by_a_stop && !explained).then(|| "it was aborted, but no answer to a stop named it".to_owned())
}

fn run_id(row: &Value) -> &str {
    row["runId"].as_str().unwrap_or_default()
}
