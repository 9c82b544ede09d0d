//! How a run ended, as the chat shows it.

use quell_client::receipt_line::{amendment_lines, awaits_amendment, receipt_line};
use quell_protocol::api::{RunResult, RunView};
use quell_protocol::{Receipt, StopReason, Verdict};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChatTurnEnd {
    pub(crate) verdict: Verdict,
    pub(crate) steps: Option<u32>,
    pub(crate) receipt: Option<String>,
    /// Lines that became known after the end.
    pub(crate) amendments: Vec<String>,
    /// More amendments may follow.
    pub(crate) awaits_amendment: bool,
    pub(crate) has_leftovers: bool,
}

impl ChatTurnEnd {
    pub(crate) fn from_receipt(verdict: Verdict, receipt: &Receipt, steps: u32) -> Self {
        let has_leftovers = !receipt.leftovers.is_empty();
        let amendments = amendment_lines(receipt);
        let awaits_amendment = awaits_amendment(receipt);
        Self {
            verdict,
            steps: Some(steps),
            receipt: Some(receipt_line(receipt)),
            amendments,
            awaits_amendment,
            has_leftovers,
        }
    }

    /// From `GET /api/runs/{id}`; none while the run has not ended.
    pub(crate) fn from_view(view: &RunView) -> Option<Self> {
        let receipt = view.receipt.as_ref();
        let leftovers = receipt.is_some_and(|receipt| !receipt.leftovers.is_empty());
        let verdict = view.verdict.clone().filter(|_| view.state == "ended")?;
        let amended = receipt.map(amendment_lines).unwrap_or_default();
        let unsettled = receipt.is_some_and(awaits_amendment);
        let (steps, receipt) = (Some(view.steps), receipt.map(receipt_line));
        Some(Self {
            verdict,
            steps,
            receipt,
            amendments: amended,
            awaits_amendment: unsettled,
            has_leftovers: leftovers,
        })
    }

    /// Completed steps, and whether one was cut off: a stop cuts the current step, a budget is checked between steps.
    pub(crate) fn completed_steps(&self) -> Option<(u32, bool)> {
        let steps = self.steps?;
        let cut = match &self.verdict {
            Verdict::Completed => false,
            Verdict::Failed { .. } => true,
            Verdict::Aborted { reason, .. } => {
                !matches!(reason, StopReason::Steps | StopReason::Tokens | StopReason::DailyLimit)
            }
        };
        Some(if cut && steps > 0 { (steps - 1, true) } else { (steps, false) })
    }

    /// Result text of the run: `Execution paused` after a stop.
    pub(crate) fn error_text(&self) -> Option<String> {
        RunResult::of(&self.verdict, self.steps.unwrap_or(0)).error
    }
}
