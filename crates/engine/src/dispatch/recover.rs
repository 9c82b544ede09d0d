//! Recovery at start: it folds the journals of the runs that a crash left open, and seals them. It never starts or resumes a
//! run, those that waited included.

use std::collections::{BTreeMap, HashMap};

use futures_util::future::try_join_all;
use quell_kernel::journal::{Folded, Line};
use quell_kernel::turn::{InvalidTurn, PartialPolicy, Sealing, ToolCall, Turn, TurnDraft};
use quell_protocol::api::{RunResult, RunView};
use quell_protocol::{
    HookEvent, Instant, Leftover, Receipt, Resource, ResourceKind, RunId, Rung, StopReason, Surface, TurnRecord, Usage,
    Verdict,
};

use crate::agent::Workshop;
use crate::clock::Clock;
use crate::hooks::Hooks;
use crate::proc::Survivors;
use crate::runs::happening;
use crate::session::facts_of;
use crate::store::{RunRow, SealedRun, Spent, Store, StoreError, StoredState};

/// Runs that are sealed at a time, in one transaction.
const AT_A_TIME: usize = 256;

/// What a dead daemon's runs left alive, by run.
pub(super) type Alive = BTreeMap<RunId, Vec<String>>;

/// Ends what is alive of the runs that the last daemon left accepted or started, and answers what could not be ended. Nothing is
/// written.
///
/// # Errors
/// The store's error, which has ended nothing.
///
/// # Cancel safety
/// Safe: what was ended stays ended.
pub(super) async fn end_survivors(store: &Store, workshop: &Workshop) -> Result<Alive, StoreError> {
    let open = store.open_runs().await?;
    let Survivors { ended, alive } =
        workshop.wardens.end_survivors(&open.iter().map(|row| row.id.as_str()).collect()).await;
    for (run, names) in &ended {
        tracing::warn!(%run, ?names, "processes of a run outlived its daemon and were ended now");
    }
    for (run, names) in &alive {
        tracing::warn!(%run, ?names, "processes of a run outlived its daemon");
    }
    Ok(alive)
}

/// Seals every run that the last daemon left accepted or started, as its journal says it ended, else as aborted because the
/// daemon stopped. In the order of acceptance, which is the order of turns in each session.
///
/// # Errors
/// The store's error; no run is half-sealed then, and the same may be tried again.
///
/// # Cancel safety
/// Safe: every run is sealed in one transaction.
pub(super) async fn seal_what_was_open(
    store: &Store,
    clock: Clock,
    workshop: &Workshop,
    alive: &Alive,
) -> Result<(), StoreError> {
    let open = store.open_runs().await?;
    // Before anybody is told: a small write may find room where what follows does not, and hooks would be told once more.
    if open.is_empty() {
        store.touch().await?
    } else {
        store.probe().await?
    }
    for rows in open.chunks(AT_A_TIME) {
        let sealed = seal_all(store, clock, (workshop, alive), rows).await?;
        tell_ends((store, &workshop.hooks), &sealed).await?;
        store.seal_runs(sealed).await?;
        for run in rows {
            tracing::info!(run = %run.id, session = %run.session, "run of a daemon that died is sealed");
        }
    }
    workshop.wardens.forget_earlier_wardens();
    Ok(())
}

/// How the runs that the last daemon left will be sealed once that can be written: their turns are not in the database yet.
///
/// # Errors
/// The store's error.
///
/// # Cancel safety
/// Safe: it only reads.
pub(super) async fn views_of_open(
    store: &Store,
    clock: Clock,
    workshop: &Workshop,
    alive: &Alive,
) -> Result<HashMap<RunId, RunView>, StoreError> {
    let open = store.open_runs().await?;
    let mut views = HashMap::with_capacity(open.len());
    for rows in open.chunks(AT_A_TIME) {
        for run in seal_all(store, clock, (workshop, alive), rows).await? {
            let Ok(mut view) = serde_json::from_str::<RunView>(&run.view) else { continue };
            if let Some(receipt) = &mut view.receipt {
                receipt.turn.recorded = false;
            }
            views.insert(run.run, view);
        }
    }
    Ok(views)
}

async fn seal_all(
    store: &Store,
    clock: Clock,
    (workshop, alive): (&Workshop, &Alive),
    rows: &[RunRow],
) -> Result<Vec<SealedRun>, StoreError> {
    let agents = workshop.society.roll();
    let left = |row: &RunRow| alive.get(&row.id).map(Vec::as_slice).unwrap_or_default();
    let policy = |row: &RunRow| agents.get(&row.agent).map(|agent| agent.config.partial).unwrap_or_default();
    try_join_all(rows.iter().map(|row| seal(store, clock, (policy(row), left(row)), row))).await
}

/// The end of a run that had begun is told before it is stored: a daemon that dies between the two tells it again.
async fn tell_ends((store, hooks): (&Store, &Hooks), sealed: &[SealedRun]) -> Result<(), StoreError> {
    if !hooks.has(HookEvent::RunEnd) {
        return Ok(());
    }
    for run in sealed.iter().filter(|run| run.turn.is_some()) {
        if let Ok(view) = serde_json::from_str(&run.view) {
            let session = store.session(run.session.clone()).await?.and_then(|stored| facts_of(&stored));
            hooks.record(happening(HookEvent::RunEnd, view, session.as_ref())).await?;
        }
    }
    Ok(())
}

async fn seal(
    store: &Store,
    clock: Clock,
    (policy, left): (PartialPolicy, &[String]),
    row: &RunRow,
) -> Result<SealedRun, StoreError> {
    let mut view = view_of(row);
    let (lines, recorded) = store.journal(row.id.clone()).await?;
    let asked = TurnDraft::new(row.id.clone(), view.text.clone()).asked_at(view.accepted_at.clone());
    let folded = Folded::onto(asked, readable(row, &lines));
    let begun = row.state == StoredState::Started || recorded.is_some() || folded.at_work;
    let at = clock.rfc3339(clock.now());
    let lost = if recorded.is_some() { Vec::new() } else { lost(&folded, &view, &at) };
    let unreadable = |error: &InvalidTurn| tracing::error!(run = %row.id, %error, "the run's turn cannot be read");
    let (turn, asked_at) = match recorded.and_then(|turn| Turn::from_stored(&turn).inspect_err(unreadable).ok()) {
        Some(turn) => (turn, None),
        None => {
            let died = (Verdict::Aborted { reason: StopReason::DaemonStopped, by: None }, None);
            let (verdict, asked_at) = folded.ending.unwrap_or(died);
            let sealing = Sealing { verdict: &verdict, policy, sealed_at: at.clone(), usage: folded.usage };
            (folded.draft.seal(sealing), asked_at)
        }
    };
    view.steps = view.steps.max(folded.steps);
    view.seq = folded.numbers.beyond(view.seq);
    close(&mut view, &turn, Found { asked_at, at, left, lost }, begun);
    let view = serde_json::to_string(&view).unwrap_or_default();
    let (session, run) = (row.session.clone(), row.id.clone());
    let day = clock.day(clock.now()).to_string();
    let spent = Spent { agent: row.agent.clone(), day, usage: turn.usage(), counted: Usage::default() };
    Ok(SealedRun { session, run, turn: begun.then(|| turn.to_stored()), view, spent })
}

/// The stored view. One damaged row must not keep all others from starting: its run ends with what its columns say.
fn view_of(row: &RunRow) -> RunView {
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

/// The lines up to the first that this version cannot read: what came before it is true all the same.
fn readable<'a>(row: &'a RunRow, lines: &'a [String]) -> impl Iterator<Item = Line> + 'a {
    lines.iter().map_while(|line| {
        let read = serde_json::from_str(line);
        read.inspect_err(
            |error| tracing::warn!(run = %row.id, %error, "the journal ends at a line that cannot be read"),
        )
        .ok()
    })
}

struct Found<'a> {
    /// When a stop was asked for, if one was.
    asked_at: Option<String>,
    /// Now.
    at: String,
    /// Processes of it that live.
    left: &'a [String],
    /// What it held when the daemon died, as far as the journal knows.
    lost: Vec<Resource>,
}

/// What the journal knows to have begun and not to have ended. What it held besides, and how all of it ended, died with the
/// daemon; that nothing of it lives on is for the wardens and for [`Survivors`].
fn lost(folded: &Folded, view: &RunView, at: &str) -> Vec<Resource> {
    let begun = view.started_at.clone().unwrap_or_else(|| view.accepted_at.clone());
    let instant = |at: String| Instant { at, ms: None };
    let asking = folded.asking.map(|step| (ResourceKind::ModelRequest, format!("step {step}"), begun.clone()));
    let calls = folded.draft.running().map(|call| {
        let since = folded.began.get(&call.id).unwrap_or(&begun).clone();
        (kind_of(&call.tool), label_of(call), since)
    });
    let rows = asking.into_iter().chain(calls).zip(1..);
    rows.map(|((kind, label, since), id)| Resource {
        kind,
        id,
        label,
        opened_at: instant(since),
        released_at: Some(instant(at.to_owned())),
        how: "lost".to_owned(),
        process: None,
    })
    .collect()
}

/// What a call of this tool holds while it is at work.
fn kind_of(tool: &str) -> ResourceKind {
    match tool {
        "shell" | "process" => ResourceKind::Process,
        "fetch_url" => ResourceKind::HttpRequest,
        "spawn_agent" => ResourceKind::Run,
        name if name.contains("__") => ResourceKind::McpCall,
        _ => ResourceKind::Task,
    }
}

/// A call in a few words: its tool, and what tells it from others.
fn label_of(call: &ToolCall) -> String {
    let told = ["command", "url", "path", "agent"].iter().find_map(|name| call.arguments.get(name)?.as_str());
    match told {
        Some(told) if call.tool == "shell" => told.to_owned(),
        Some(told) => format!("{} {told}", call.tool),
        None => call.tool.clone(),
    }
}

/// The view of a run that is over, with its receipt. What it held died with its daemon; the wardens saw to that, or what they
/// could not end is named.
fn close(view: &mut RunView, turn: &Turn, found: Found<'_>, recorded: bool) {
    let Found { asked_at, at, left, lost } = found;
    let leftover = |name: &String| Leftover { kind: ResourceKind::Process, name: name.clone() };
    let verdict = turn.verdict().clone();
    view.state = "ended".to_owned();
    view.phase = None;
    view.processes = 0;
    view.ended_at = Some(at.clone());
    view.usage = turn.usage();
    view.output = turn.shown_text();
    view.verdict = Some(verdict.clone());
    view.result = Some(RunResult::of(&verdict, view.steps));
    view.receipt = Some(Receipt {
        run_id: view.run_id.clone(),
        verdict,
        requested_at: asked_at.map(|at| Instant { at, ms: None }),
        delivered_at: None,
        settled_at: Instant { at, ms: None },
        rung: if left.is_empty() { Rung::None } else { Rung::Abandoned },
        resources: lost,
        leftovers: left.iter().map(leftover).collect(),
        usage: turn.usage(),
        turn: TurnRecord { recorded },
        amendments: Vec::new(),
        recovered: recorded,
    });
}
