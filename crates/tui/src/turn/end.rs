//! How a run ended, as the chat shows it.

use quell_client::receipt_line::awaits_amendment;
use quell_protocol::api::{RunResult, RunView};
use quell_protocol::{Receipt, Verdict};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChatTurnEnd {
    pub(crate) verdict: Verdict,
    /// `None` in the history.
    pub(crate) steps: Option<u32>,
    pub(crate) receipt: Option<Receipt>,
}

impl ChatTurnEnd {
    /// From `GET /api/runs/{id}`; none while the run has not ended.
    pub(crate) fn from_view(view: &RunView) -> Option<Self> {
        let verdict = view.verdict.clone().filter(|_| view.state == "ended")?;
        Some(Self { verdict, steps: Some(view.steps), receipt: view.receipt.clone() })
    }

    /// True if more lines may become known after the end.
    pub(crate) fn awaits_amendment(&self) -> bool {
        self.receipt.as_ref().is_some_and(awaits_amendment)
    }

    pub(crate) fn has_leftovers(&self) -> bool {
        self.receipt.as_ref().is_some_and(|receipt| !receipt.leftovers.is_empty())
    }

    /// Completed steps, and whether one was cut off: a stop cuts the current step, a budget is checked between steps.
    pub(crate) fn completed_steps(&self) -> Option<(u32, bool)> {
        let steps = self.steps?;
        let cut = match &self.verdict {
            Verdict::Completed => false,
            Verdict::Failed { .. } => true,
            Verdict::Aborted { reason, .. } => reason.used_up_limit().is_none(),
        };
        Some(if cut && steps > 0 { (steps - 1, true) } else { (steps, false) })
    }

    /// Result text of the run: `Execution paused` after a stop.
    pub(crate) fn error_text(&self) -> Option<String> {
        RunResult::of(&self.verdict, self.steps.unwrap_or(0)).error
    }
}
