//! What is checked while every session rests: that the daemon holds what it held at the beginning and nothing more, and that
//! each run since the last time has one end, one receipt, and a verdict that somebody asked for.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use quell_testkit::leaks::{self, Descriptors};
use serde_json::Value;

use crate::feed::Feed;
use crate::histories;
use crate::script::{Order, Standing};
use crate::site::{Site, settled};
use crate::tally::{Facts, Fault, verdict_word};

/// How long the daemon may take to be at rest after its last run; unused MCP servers go after a second.
const REST: Duration = Duration::from_secs(20);
/// Threads for blocking work go after ten seconds without any, and so do sessions.
const LONG_REST: Duration = Duration::from_secs(30);
/// Rows of a page of runs.
const PAGE: usize = 200;
/// Histories that one audit reads.
const HISTORIES: usize = 20;

/// The gauges that are zero at rest.
const GAUGES: &[&str] = &["quell_runs", "quell_processes", "quell_background_processes", "quell_model_requests"];
/// Sessions that nobody uses leave the memory, unless something still counts on them.
const AT_LAST: &[&str] =
    &["quell_runs", "quell_processes", "quell_background_processes", "quell_model_requests", "quell_sessions_live"];

/// Remembers the beginning and what was audited already.
pub(crate) struct Auditor {
    site: Arc<Site>,
    feed: Feed,
    at_begin: Descriptors,
    threads_at_begin: u64,
    pub(crate) threads: u64,
    audited: HashSet<String>,
    /// Sessions of the next histories.
    next_session: usize,
    pub(crate) standing: Standing,
    /// Gaps in the feed before this audit: they excuse no end that is missing in it.
    gaps: u64,
}

impl Auditor {
    /// What the daemon holds now is what it may hold at rest.
    pub(crate) async fn begin(site: &Arc<Site>, feed: &Feed) -> Self {
        let pid = site.daemon.pid();
        let mut auditor = Self {
            site: Arc::clone(site),
            feed: feed.clone(),
            at_begin: Descriptors::default(),
            threads_at_begin: leaks::threads_of(pid).unwrap_or(0),
            threads: 0,
            audited: HashSet::new(),
            next_session: 0,
            standing: Standing::default(),
            gaps: 0,
        };
        auditor.daemon_rests().await;
        auditor.at_begin = leaks::descriptors_of(pid).expect("the daemon can be looked into");
        auditor
    }

    /// Everything that can be checked while nothing runs.
    pub(crate) async fn audit(&mut self) {
        self.daemon_rests().await;
        self.descriptors_are_back().await;
        self.model_rests().await;
        self.runs_are_over().await;
        self.some_histories(HISTORIES).await;
        self.site.tally.facts().audits += 1;
    }

    /// What takes longer, at the very end: threads, all histories, and nobody marked anywhere on the machine.
    pub(crate) async fn rest(&mut self, sessions: usize) {
        self.next_session = 0;
        self.some_histories(sessions).await;
        self.gauges_are_zero(AT_LAST, LONG_REST).await;
        let (pid, most) = (self.site.daemon.pid(), self.threads_at_begin);
        let back = settled(LONG_REST, || async move {
            let threads = leaks::threads_of(pid).unwrap_or(0);
            if threads <= most { Ok(()) } else { Err(format!("{threads} threads, {most} at the beginning")) }
        });
        if let Err(why) = back.await {
            self.site.tally.fault(Fault::Task, "the daemon", why);
        }
        self.threads = leaks::threads_of(pid).unwrap_or(0);
        for (mark, who) in self.site.marks.look().await.iter() {
            self.site.tally.fault(Fault::Process, mark, format!("{who:#?}"));
        }
    }

    /// Waits until these gauges are zero.
    async fn gauges_are_zero(&self, wanted: &[&str], limit: Duration) {
        let site = &self.site;
        let gauges = settled(limit, || async {
            let held = |name: &str| wanted.iter().any(|gauge| name.split('{').next() == Some(gauge));
            let gauges = site.gauges().await;
            let busy: Vec<_> = gauges.into_iter().filter(|(name, value)| held(name) && *value != 0.0).collect();
            if busy.is_empty() { Ok(()) } else { Err(format!("at rest, and yet {busy:?}")) }
        });
        if let Err(why) = gauges.await {
            site.tally.fault(Fault::Task, "the daemon", why);
        }
    }

    async fn daemon_rests(&self) {
        self.gauges_are_zero(GAUGES, REST).await;
        let (site, pid) = (&self.site, self.site.daemon.pid());
        let alone = settled(REST, || async move {
            let below = leaks::descendants_of(pid);
            if below.is_empty() { Ok(()) } else { Err(format!("{} processes below it: {below:#?}", below.len())) }
        });
        if let Err(why) = alone.await {
            site.tally.fault(Fault::Process, "the daemon", why);
        }
    }

    async fn descriptors_are_back(&self) {
        let (site, pid, then) = (&self.site, self.site.daemon.pid(), self.at_begin);
        let sockets = settled(REST, || async move {
            let now = leaks::descriptors_of(pid).map_err(|error| error.to_string())?;
            if now.sockets <= then.sockets { Ok(()) } else { Err(format!("{now:?}, {then:?} at the beginning")) }
        });
        if let Err(why) = sockets.await {
            site.tally.fault(Fault::Socket, "the daemon", why);
        }
        let others = settled(REST, || async move {
            let now = leaks::descriptors_of(pid).map_err(|error| error.to_string())?;
            let rest = |held: Descriptors| held.total() - held.sockets;
            if rest(now) <= rest(then) { Ok(()) } else { Err(format!("{now:?}, {then:?} at the beginning")) }
        });
        if let Err(why) = others.await {
            site.tally.fault(Fault::Descriptor, "the daemon", why);
        }
    }

    async fn model_rests(&mut self) {
        let (site, standing) = (&self.site, std::cell::Cell::new(Standing::default()));
        let rests = settled(REST, || async {
            let now = site.model.order(Order::Count).await;
            let open = now.connections;
            standing.set(now);
            if open == 0 { Ok(()) } else { Err(format!("{open} connections to the model are open")) }
        });
        if let Err(why) = rests.await {
            site.tally.fault(Fault::Socket, "the daemon", why);
        }
        let standing = standing.take();
        for complaint in standing.complaints.iter().skip(self.standing.complaints.len()) {
            site.tally.fault(Fault::InvalidHistory, "the model", complaint);
        }
        self.standing = standing;
    }

    /// Every run that is new since the last audit, newest first.
    async fn runs_are_over(&mut self) {
        let mut cursor = String::new();
        loop {
            let page = self.site.http.get(&format!("/api/runs?limit={PAGE}{cursor}")).await.expect_status(200);
            let rows = page["items"].as_array().cloned().unwrap_or_default();
            let fresh: Vec<&Value> = rows.iter().filter(|row| self.audited.insert(id(row).to_owned())).collect();
            for row in &fresh {
                self.run_is_over(row).await;
            }
            match page["nextCursor"].as_str() {
                Some(next) if fresh.len() == rows.len() => cursor = format!("&cursor={next}"),
                _ => break,
            }
        }
        for run in self.feed.doubles() {
            self.site.tally.fault(Fault::DoubleEnd, &run, "its end was told more than once");
        }
        self.gaps = self.feed.gaps();
        // What they explain has been audited.
        let mut facts = self.site.tally.facts();
        facts.named.clear();
        facts.maybe.clear();
    }

    async fn run_is_over(&self, row: &Value) {
        if row["state"] == "steered" {
            return;
        }
        let (run, tally) = (id(row), &self.site.tally);
        let receipt = &row["receipt"];
        if row["state"] != "ended" || !receipt.is_object() {
            tally.fault(Fault::MissingEnd, run, format!("no end or no receipt: {row}"));
            return;
        }
        let open = |resource: &&Value| !resource["releasedAt"].is_object() && resource["how"] != "kept";
        let unreleased = receipt["resources"].as_array().into_iter().flatten().find(open);
        if unreleased.is_some() || receipt["leftovers"] != serde_json::json!([]) {
            tally.fault(Fault::Leftover, run, format!("{receipt}"));
        }
        let told = settled(Duration::from_secs(5), || async {
            if self.feed.ends_of(run) > 0 || self.feed.gaps() > self.gaps {
                Ok(())
            } else {
                Err("no client was told".to_owned())
            }
        });
        if let Err(why) = told.await {
            tally.fault(Fault::MissingEnd, run, format!("{why}: {row}"));
        }
        let mut facts = tally.facts();
        facts.audited += 1;
        facts.sub_runs += u64::from(row["parent"].is_string());
        *facts.ends.entry(verdict_word(row)).or_default() += 1;
        let unexplained = unexplained(&facts, row);
        drop(facts);
        if let Some(why) = unexplained {
            let said = self.site.said_of(&[run, row["sessionKey"].as_str().unwrap_or(run)]);
            tally.fault(Fault::Verdict, run, format!("{why}: {row}\n{said}"));
        }
    }

    async fn some_histories(&mut self, count: usize) {
        let rows = self.site.http.get("/api/sessions?limit=1000").await.expect_status(200);
        let mut keys: Vec<&str> =
            rows["items"].as_array().into_iter().flatten().filter_map(|row| row["key"].as_str()).collect();
        keys.sort_unstable();
        for at in 0..count.min(keys.len()) {
            let key = keys[(self.next_session + at) % keys.len()];
            let page = self.site.http.get(&format!("/api/sessions/{key}/history?turns=100")).await.expect_status(200);
            for fault in histories::faults(page["items"].as_array().map_or(&[][..], Vec::as_slice)) {
                self.site.tally.fault(Fault::InvalidHistory, key, fault);
            }
            self.site.tally.facts().histories_read += 1;
        }
        self.next_session += count;
    }
}

/// Why a verdict is not what the stops of the soak explain.
fn unexplained(facts: &Facts, row: &Value) -> Option<String> {
    let (run, verdict) = (id(row), &row["verdict"]);
    let aborted = verdict["kind"] == "aborted";
    let by_a_stop = matches!(verdict["reason"].as_str(), Some("user" | "command"));
    let named = facts.named.contains(run);
    if verdict["kind"] == "failed" {
        return Some("it failed".to_owned());
    }
    if named && !aborted {
        return Some("an answer said that it was stopped".to_owned());
    }
    // A sub-run may end with its parent, and is named with it or not.
    let explained = named || facts.maybe.contains(run) || row["parent"].is_string();
    (aborted && by_a_stop && !explained).then(|| "nobody was told that it was stopped".to_owned())
}

fn id(row: &Value) -> &str {
    row["runId"].as_str().unwrap_or_default()
}
