//! Convert a run to the `RunView` of the API and the database.

use quell_kernel::Moment;
use quell_kernel::registry::RunPhase;
use quell_protocol::ResourceKind;
use quell_protocol::api::{ComputeStatus, RunResult, RunView};

use super::{LiveRun, LiveRunState, RunStatus, receipt};

impl LiveRun {
    pub fn accepted_at(&self) -> Moment {
        self.lock_state().timestamps.accepted
    }

    pub fn view(&self) -> RunView {
        let state = self.lock_state();
        let format_time = |moment| self.clock.rfc3339(moment);
        let phase = (state.status == RunStatus::Running).then_some(match state.phase {
            RunPhase::Waiting => ComputeStatus::WaitingLlm,
            RunPhase::Processing => ComputeStatus::Processing,
        });
        let is_live_process = |row: &quell_scope::LedgerRow| row.kind == ResourceKind::Process && row.is_held();
        let processes = self.scope.ledger().rows().iter().filter(|row| is_live_process(row)).count();
        RunView {
            run_id: self.run.id.clone(),
            session_key: self.run.session.clone(),
            agent: self.run.agent.clone(),
            state: state.status.as_str().to_owned(),
            phase,
            principal: self.run.principal.clone(),
            surface: self.run.surface,
            parent: self.run.parent.clone(),
            imported: None,
            text: self.run.text.clone(),
            accepted_at: format_time(state.timestamps.accepted),
            started_at: state.timestamps.started.map(format_time),
            expires_at: Some(format_time(self.run.expires_at)),
            ended_at: state.timestamps.settled.map(format_time),
            steps: state.steps,
            usage: state.current_usage(),
            seq: state.events.last_seq(),
            processes: u32::try_from(processes).unwrap_or(u32::MAX),
            verdict: state.verdict.clone(),
            receipt: state.receipt.clone(),
            output: state.shown_output(),
            result: state.receipt.as_ref().map(|receipt| RunResult::of(&receipt.verdict, state.steps)),
            held: Vec::new(),
            requested_at: None,
            delivered_at: None,
        }
    }

    /// The view of a single run: while the run is not over, it includes everything that it held so far.
    pub fn detailed_view(&self) -> RunView {
        let view = self.view();
        if view.receipt.is_some() {
            return view;
        }
        let times = self.lock_state().timestamps;
        let instant = receipt::instant_formatter(self.clock, times.stop_requested);
        RunView {
            held: self.scope.ledger().rows().iter().map(|row| receipt::resource_from_row(row, &instant)).collect(),
            requested_at: times.stop_requested.map(&instant),
            delivered_at: times.stop_delivered.map(&instant),
            ..view
        }
    }
}

impl LiveRunState {
    pub(super) fn shown_output(&self) -> Option<String> {
        let text = match (&self.sealed_turn, &self.draft) {
            (Some(turn), _) => turn.shown_text(),
            (None, Some(draft)) => {
                let partial = Some(draft.partial_text()).filter(|text| !text.is_empty());
                partial.map(str::to_owned).or_else(|| draft.last_text())
            }
            (None, None) => None,
        };
        text.filter(|text| !text.is_empty())
    }
}
