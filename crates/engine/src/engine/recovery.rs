//! Recovery at start: end surviving processes, replay the journals of interrupted runs and seal them. Recovery never
//! starts or resumes a run, not even a queued one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures_util::future::try_join_all;
use quell_kernel::daily_spend::PricedUsage;
use quell_kernel::journal::{JournalLine, ReplayedRun};
use quell_kernel::turn::{InvalidTurn, PartialPolicy, SealOptions, ToolCall, Turn, TurnDraft};
use quell_process::Survivors;
use quell_protocol::api::{RunResult, RunView};
use quell_protocol::{
    Amendment, AmendmentKind, HookEvent, Instant, Leftover, Principal, Receipt, Requester, Resource, ResourceKind,
    RunId, Rung, StopReason, Surface, TurnRecord, Usage, Verdict,
};
use quell_scope::Release;
use quell_scope::clock::Clock;
use quell_store::{Membership, RunRow, RunSpend, SealedRun, Store, StoreError, StoredRunState};

use crate::access::is_token;
use crate::agent::{Services, resource_kind_of_tool};
use crate::hooks::Hooks;
use crate::runs::run_hook_trigger;
use crate::session::stored_session_facts;

/// Runs that are sealed in one transaction.
const SEAL_BATCH_RUNS: usize = 256;

/// Whose open runs are sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LeftRuns {
    /// All that are open: the last daemon had the database for itself.
    All,
    /// Those whose session belongs to no node, on behalf of a cluster.
    WithoutNode,
    Of(Membership),
}

/// The recovery of what the last daemon left.
#[derive(Debug, Clone)]
pub(super) struct Recovery {
    store: Store,
    clock: Clock,
    services: Arc<Services>,
    left_runs: LeftRuns,
    /// Names of processes that outlived their daemon, by run.
    survivors: BTreeMap<RunId, Vec<String>>,
}

/// The open runs that an earlier daemon of this data directory may have left processes of. Those of other nodes are alive:
/// they may be on the same machine.
async fn list_runs_left_here(store: &Store) -> Result<Vec<RunRow>, StoreError> {
    let Some(cluster) = store.cluster() else { return store.runs().list_open().await };
    let mut runs = cluster.open_runs_without_node().await?;
    let own = cluster.membership();
    for row in cluster.list_nodes().await? {
        if row.fenced && row.membership.node == own.node && row.membership.epoch != own.epoch {
            runs.extend(cluster.open_runs_of(row.membership.epoch).await?);
        }
    }
    Ok(runs)
}

impl Recovery {
    /// Ends the surviving processes of runs that the last daemon left accepted or started, and keeps the names of those
    /// that could not be ended. Writes nothing to the database.
    ///
    /// # Errors
    /// The store's error; no process was ended then.
    ///
    /// # Cancel safety
    /// Safe: processes that were ended stay ended.
    pub(super) async fn begin(store: Store, clock: Clock, services: Arc<Services>) -> Result<Self, StoreError> {
        let open_runs = list_runs_left_here(&store).await?;
        let Survivors { ended, alive: survivors } =
            services.wardens.end_survivors(&open_runs.iter().map(|row| row.id.as_str()).collect()).await;
        for (run, names) in &ended {
            tracing::warn!(%run, ?names, "processes of a run outlived its daemon and were ended now");
        }
        for (run, names) in &survivors {
            tracing::warn!(%run, ?names, "processes of a run outlived its daemon");
        }
        let left_runs = if store.cluster().is_some() { LeftRuns::WithoutNode } else { LeftRuns::All };
        Ok(Self { store, clock, services, left_runs, survivors })
    }

    /// The recovery of what another membership has left. Its processes have been ended by their wardens.
    pub(super) fn of_membership(&self, membership: Membership) -> Self {
        Self { left_runs: LeftRuns::Of(membership), ..self.clone() }
    }

    async fn list_left_runs(&self) -> Result<Vec<RunRow>, StoreError> {
        match (&self.left_runs, self.store.cluster()) {
            (LeftRuns::Of(membership), Some(cluster)) => cluster.open_runs_of(membership.epoch).await,
            (LeftRuns::WithoutNode, Some(cluster)) => cluster.open_runs_without_node().await,
            _ => self.store.runs().list_open().await,
        }
    }

    /// Who ended the runs: the node that has died, if the daemon had one.
    fn lost_node(&self) -> Option<Requester> {
        let LeftRuns::Of(membership) = &self.left_runs else { return None };
        let principal = Principal::parse(format!("node {}", membership.node)).ok()?;
        Some(Requester { principal, surface: Surface::Daemon })
    }

    /// Seals every run that the last daemon left accepted or started: with the ending in its journal, or else as
    /// aborted because the daemon stopped. Seals in order of acceptance, which is the order of turns in each session.
    ///
    /// # Errors
    /// The store's error; no run is half-sealed then, and a retry is possible.
    ///
    /// # Cancel safety
    /// Safe: every run is sealed in one transaction.
    pub(super) async fn seal_open_runs(&self) -> Result<(), StoreError> {
        let open_runs = self.list_left_runs().await?;
        // Check the database before the hooks are called. A small write may succeed where the seal does not fit, and a
        // retry would call the hooks again.
        if open_runs.is_empty() {
            self.store.maintenance().probe().await?
        } else {
            self.store.maintenance().check_health().await?
        }
        for rows in open_runs.chunks(SEAL_BATCH_RUNS) {
            let sealed = self.build_sealed_runs(rows).await?;
            record_run_end_hooks(&self.store, &self.services.hooks, &sealed).await?;
            self.store.runs().seal(sealed).await?;
            for run in rows {
                tracing::info!(run = %run.id, session = %run.session, "run of a daemon that died is sealed");
            }
        }
        if !matches!(self.left_runs, LeftRuns::Of(_)) {
            self.amend_ended_runs(&open_runs).await?;
            self.services.wardens.forget_earlier_wardens();
        }
        Ok(())
    }

    /// Names the processes that outlived the daemon in the receipts of runs that had already ended: each had kept a
    /// background command.
    async fn amend_ended_runs(&self, open_runs: &[RunRow]) -> Result<(), StoreError> {
        for (run, names) in self.survivors.iter().filter(|(run, _)| open_runs.iter().all(|row| row.id != **run)) {
            let leftover = |name: &String| Leftover { kind: ResourceKind::Process, name: name.clone() };
            let amendment = Amendment {
                at: Instant { at: self.clock.rfc3339(self.clock.now()), ms: None },
                resource: 0,
                kind: AmendmentKind::OutlivedDaemon,
                text: format!("the daemon died, and its background command lives on: {}", names.join(", ")),
                leftovers: names.iter().map(leftover).collect(),
            };
            match self.store.runs().amend(run.clone(), amendment).await {
                // Its session was deleted: only the log names the processes.
                Ok(_) | Err(StoreError::NoSuchRun(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The views of the last daemon's runs as they will be sealed once the database can be written. Their turns are not
    /// recorded yet.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub(super) async fn views_of_open_runs(&self) -> Result<HashMap<RunId, RunView>, StoreError> {
        let open_runs = self.list_left_runs().await?;
        let mut views = HashMap::with_capacity(open_runs.len());
        for rows in open_runs.chunks(SEAL_BATCH_RUNS) {
            for run in self.build_sealed_runs(rows).await? {
                let Ok(mut view) = serde_json::from_str::<RunView>(&run.view) else { continue };
                if let Some(receipt) = &mut view.receipt {
                    receipt.turn.recorded = false;
                }
                views.insert(run.run, view);
            }
        }
        Ok(views)
    }

    async fn build_sealed_runs(&self, rows: &[RunRow]) -> Result<Vec<SealedRun>, StoreError> {
        let agents = self.services.agents.snapshot();
        let policy_of = |row: &RunRow| agents.get(&row.agent).map(|agent| agent.config.partial).unwrap_or_default();
        try_join_all(rows.iter().map(|row| self.build_sealed_run(row, policy_of(row)))).await
    }

    async fn build_sealed_run(&self, row: &RunRow, policy: PartialPolicy) -> Result<SealedRun, StoreError> {
        let clock = self.clock;
        let surviving = self.survivors.get(&row.id).map(Vec::as_slice).unwrap_or_default();
        let mut run_view = load_view(row);
        let (lines, recorded) = self.store.journal().read(row.id.clone()).await?;
        let empty_draft =
            TurnDraft::new(row.id.clone(), run_view.text.clone()).with_asked_at(run_view.accepted_at.clone());
        let replayed = ReplayedRun::replay(empty_draft, parse_journal_lines(row, &lines));
        let has_begun = row.state == StoredRunState::Started || recorded.is_some() || replayed.has_started;
        let now = clock.rfc3339(clock.now());
        let lost_resources =
            if recorded.is_some() { Vec::new() } else { collect_lost_resources(&replayed, &run_view, &now) };
        let unreadable = |error: &InvalidTurn| tracing::error!(run = %row.id, %error, "the run's turn cannot be read");
        let (turn, stop_requested_at) = match recorded
            .and_then(|turn| Turn::from_stored(&turn).inspect_err(unreadable).ok())
        {
            Some(turn) => (turn, None),
            None => {
                let default_ending =
                    (Verdict::Aborted { reason: StopReason::DaemonStopped, by: self.lost_node() }, None);
                let (verdict, stop_requested_at) = replayed.ending.unwrap_or(default_ending);
                let sealing = SealOptions { verdict: &verdict, policy, sealed_at: now.clone(), usage: replayed.usage };
                (replayed.draft.seal(sealing), stop_requested_at)
            }
        };
        run_view.steps = run_view.steps.max(replayed.steps);
        run_view.seq = replayed.seq_reservation.first_unused_after(run_view.seq);
        complete_view(
            &mut run_view,
            &turn,
            RecoveredRunFacts { stop_requested_at, now, surviving, lost_resources },
            has_begun,
        );
        let view = serde_json::to_string(&run_view).unwrap_or_default();
        let (session, run) = (row.session.clone(), row.id.clone());
        let day = clock.day(clock.now()).to_string();
        let price = self.services.agents.get(&row.agent).and_then(|agent| agent.billing_info().price);
        let spent = RunSpend {
            agent: row.agent.clone(),
            day,
            usage: turn.usage(),
            already_counted: Usage::default(),
            key: is_token(&row.principal).then(|| row.principal.clone()),
            cost: PricedUsage::new(turn.usage(), price).cost_nanos,
            cost_already_counted: 0,
        };
        Ok(SealedRun { session, run, turn: has_begun.then(|| turn.to_stored()), view, spent })
    }
}

/// Queues the run-end hooks before the seal is stored: a daemon that dies between the two queues them again.
async fn record_run_end_hooks(store: &Store, hooks: &Hooks, sealed: &[SealedRun]) -> Result<(), StoreError> {
    if !hooks.has_hooks_for(HookEvent::RunEnd) {
        return Ok(());
    }
    for run in sealed.iter().filter(|run| run.turn.is_some()) {
        if let Ok(view) = serde_json::from_str(&run.view) {
            let session =
                store.sessions().find(run.session.clone()).await?.and_then(|stored| stored_session_facts(&stored));
            hooks.notify_durably(run_hook_trigger(HookEvent::RunEnd, view, session.as_ref())).await?;
        }
    }
    Ok(())
}

/// Parses the stored view. One damaged row must not block the start: its run gets a view from the columns of its row.
fn load_view(row: &RunRow) -> RunView {
    serde_json::from_str(&row.view).unwrap_or_else(|error| {
        tracing::error!(run = %row.id, %error, "the stored view of the run cannot be read; its message is lost");
        RunView {
            run_id: row.id.clone(),
            session_key: row.session.clone(),
            agent: row.agent.clone(),
            state: String::new(),
            phase: None,
            principal: row.principal.clone(),
            surface: Surface::Daemon,
            parent: None,
            imported: None,
            text: "[This message was damaged in the database.]".to_owned(),
            accepted_at: row.accepted_at.clone(),
            started_at: None,
            expires_at: None,
            ended_at: None,
            steps: 0,
            usage: Usage::default(),
            seq: 0,
            processes: 0,
            verdict: None,
            receipt: None,
            output: None,
            result: None,
            held: Vec::new(),
            requested_at: None,
            delivered_at: None,
        }
    })
}

/// Parses the lines up to the first unreadable one; the lines before it are valid.
fn parse_journal_lines<'a>(row: &'a RunRow, lines: &'a [String]) -> impl Iterator<Item = JournalLine> + 'a {
    lines.iter().map_while(|line| {
        let read = serde_json::from_str(line);
        read.inspect_err(
            |error| tracing::warn!(run = %row.id, %error, "the journal ends at a line that cannot be read"),
        )
        .ok()
    })
}

struct RecoveredRunFacts<'a> {
    /// When a stop was requested, if one was.
    stop_requested_at: Option<String>,
    now: String,
    /// Processes of the run that are still alive.
    surviving: &'a [String],
    /// What the run held when the daemon died, as far as the journal knows.
    lost_resources: Vec<Resource>,
}

/// The model request and the calls that had begun and not ended, according to the journal. Other resources are unknown;
/// the wardens and [`Survivors`] make sure that none of them lives on.
fn collect_lost_resources(replayed: &ReplayedRun, view: &RunView, at: &str) -> Vec<Resource> {
    let started_at = view.started_at.clone().unwrap_or_else(|| view.accepted_at.clone());
    let instant = |at: String| Instant { at, ms: None };
    let asking = replayed
        .pending_model_step
        .map(|step| (ResourceKind::ModelRequest, format!("step {step}"), started_at.clone()));
    let calls = replayed.draft.running_calls().map(|call| {
        let since = replayed.call_started_at.get(&call.id).unwrap_or(&started_at).clone();
        (resource_kind_of_tool(&call.tool), call_label(call), since)
    });
    let rows = asking.into_iter().chain(calls).zip(1..);
    rows.map(|((kind, label, since), id)| Resource {
        kind,
        id,
        label,
        opened_at: instant(since),
        released_at: Some(instant(at.to_owned())),
        how: Release::Lost.as_str().to_owned(),
        process: None,
    })
    .collect()
}

/// A short label of a call: its tool and its distinguishing argument.
fn call_label(call: &ToolCall) -> String {
    let argument = ["command", "url", "path", "agent"].iter().find_map(|name| call.arguments.get(name)?.as_str());
    match argument {
        Some(argument) if call.tool == "shell" => argument.to_owned(),
        Some(argument) => format!("{} {argument}", call.tool),
        None => call.tool.clone(),
    }
}

/// Completes the view of a run that is over, with its receipt. Its resources died with the daemon; processes that could
/// not be ended are named as leftovers.
fn complete_view(view: &mut RunView, turn: &Turn, facts: RecoveredRunFacts<'_>, recorded: bool) {
    let RecoveredRunFacts { stop_requested_at, now, surviving, lost_resources } = facts;
    let leftover = |name: &String| Leftover { kind: ResourceKind::Process, name: name.clone() };
    let verdict = turn.verdict().clone();
    view.state = "ended".to_owned();
    view.phase = None;
    view.processes = 0;
    view.ended_at = Some(now.clone());
    view.usage = turn.usage();
    view.output = turn.shown_text();
    view.verdict = Some(verdict.clone());
    view.result = Some(RunResult::of(&verdict, view.steps));
    view.receipt = Some(Receipt {
        run_id: view.run_id.clone(),
        verdict,
        requested_at: stop_requested_at.map(|at| Instant { at, ms: None }),
        delivered_at: None,
        settled_at: Instant { at: now, ms: None },
        rung: if surviving.is_empty() { Rung::None } else { Rung::Abandoned },
        resources: lost_resources,
        leftovers: surviving.iter().map(leftover).collect(),
        usage: turn.usage(),
        turn: TurnRecord { recorded },
        amendments: Vec::new(),
        recovered: recorded,
    });
}
