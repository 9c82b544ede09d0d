//! Recovery at start: it seals what a crash left open. It never starts or resumes a run.

use quell_kernel::turn::{PartialPolicy, Sealing, TurnDraft};
use quell_protocol::api::{RunResult, RunView};
use quell_protocol::{Instant, Receipt, Rung, StopReason, TurnRecord, Verdict};

use crate::clock::Clock;
use crate::store::{RunRow, Store, StoreError, StoredState};

/// Seals every run that the last daemon left accepted or started, as aborted because the daemon stopped.
///
/// # Errors
/// The store's error; nothing is half-sealed then, and the next start tries again.
///
/// # Cancel safety
/// Safe: every run is sealed in one transaction of its own.
pub(super) async fn seal_what_was_open(store: &Store, clock: Clock) -> Result<(), StoreError> {
    for row in store.open_runs().await? {
        tracing::info!(run = %row.id, session = %row.session, "run of a daemon that died is sealed");
        seal(store, clock, row).await?;
    }
    Ok(())
}

async fn seal(store: &Store, clock: Clock, row: RunRow) -> Result<(), StoreError> {
    let Ok(mut view) = serde_json::from_str::<RunView>(&row.view) else {
        return Err(StoreError::Corrupt(format!("the stored view of run {} cannot be read", row.id)));
    };
    let verdict = Verdict::Aborted { reason: StopReason::DaemonStopped, by: None };
    let at = clock.rfc3339(clock.now());
    let started = row.state == StoredState::Started;
    view.state = "ended".to_owned();
    view.phase = None;
    view.processes = 0;
    view.ended_at = Some(at.clone());
    view.verdict = Some(verdict.clone());
    view.result = Some(RunResult::of(&verdict, view.steps));
    view.receipt = Some(Receipt {
        run_id: row.id.clone(),
        verdict: verdict.clone(),
        requested_at: None,
        delivered_at: None,
        settled_at: Instant { at: at.clone(), ms: None },
        rung: Rung::None,
        resources: Vec::new(),
        leftovers: Vec::new(),
        usage: view.usage,
        turn: TurnRecord { recorded: started },
    });
    let text = serde_json::to_string(&view).unwrap_or_default();
    if started {
        let draft = TurnDraft::new(row.id.clone(), view.text.clone());
        let sealing = Sealing { verdict: &verdict, policy: PartialPolicy::Discard, sealed_at: at, usage: view.usage };
        let turn = draft.seal(sealing);
        store.append_turn(row.session, row.id.clone(), turn.to_stored(), text.clone()).await?;
    }
    store.end_run(row.id, text).await
}
