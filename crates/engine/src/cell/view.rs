//! A run as the doors show it and as the database keeps it.

use quell_kernel::Moment;
use quell_kernel::registry::Phase;
use quell_protocol::ResourceKind;
use quell_protocol::api::{ComputeStatus, RunResult, RunView};

use super::{Cell, Facts, receipt};

impl Cell {
    /// When it was accepted.
    #[must_use]
    pub fn accepted(&self) -> Moment {
        self.facts().times.accepted
    }

    /// The run as the doors show it.
    #[must_use]
    pub fn view(&self) -> RunView {
        let facts = self.facts();
        let rfc = |moment| self.clock.rfc3339(moment);
        let phase = (facts.state == "running").then_some(match facts.phase {
            Phase::Waiting => ComputeStatus::WaitingLlm,
            Phase::Processing => ComputeStatus::Processing,
        });
        let alive = |row: &crate::scope::Row| row.kind == ResourceKind::Process && row.released.is_none();
        let processes = self.scope.ledger().rows().iter().filter(|row| alive(row)).count();
        RunView {
            run_id: self.run.id.clone(),
            session_key: self.run.session.clone(),
            agent: self.run.agent.clone(),
            state: facts.state.to_owned(),
            phase,
            principal: self.run.principal.clone(),
            surface: self.run.surface,
            parent: self.run.parent.clone(),
            imported: None,
            text: self.run.text.clone(),
            accepted_at: rfc(facts.times.accepted),
            started_at: facts.times.started.map(rfc),
            expires_at: Some(rfc(self.run.expires_at)),
            ended_at: facts.times.settled.map(rfc),
            steps: facts.steps,
            usage: facts.usage_so_far(),
            seq: facts.feed.last_seq(),
            processes: u32::try_from(processes).unwrap_or(u32::MAX),
            verdict: facts.verdict.clone(),
            receipt: facts.receipt.clone(),
            output: facts.output(),
            result: facts.receipt.as_ref().map(|receipt| RunResult::of(&receipt.verdict, facts.steps)),
            held: Vec::new(),
            requested_at: None,
            delivered_at: None,
        }
    }

    /// The run as who looks at it alone sees it: while it is not over, with all that it has held so far.
    #[must_use]
    pub fn view_with_ledger(&self) -> RunView {
        let view = self.view();
        if view.receipt.is_some() {
            return view;
        }
        let times = self.facts().times;
        let instant = receipt::since(self.clock, times.requested);
        RunView {
            held: self.scope.ledger().rows().iter().map(|row| receipt::resource(row, &instant)).collect(),
            requested_at: times.requested.map(&instant),
            delivered_at: times.delivered.map(&instant),
            ..view
        }
    }
}

impl Facts {
    pub(super) fn output(&self) -> Option<String> {
        let text = match (&self.sealed, &self.draft) {
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
