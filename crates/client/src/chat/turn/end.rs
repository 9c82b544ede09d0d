//! How a run ended, to a person.

use quell_protocol::api::{RunResult, RunView};
use quell_protocol::{Receipt, StopReason, Verdict};

use crate::receipt_line::{amendment_lines, awaits_amendment, receipt_line};

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::chat) struct End {
    pub(in crate::chat) verdict: Verdict,
    pub(in crate::chat) steps: Option<u32>,
    pub(in crate::chat) receipt: Option<String>,
    /// What became known after the end, a line each.
    pub(in crate::chat) amended: Vec<String>,
    /// More may become known.
    pub(in crate::chat) unsettled: bool,
    pub(in crate::chat) leftovers: bool,
}

impl End {
    pub(in crate::chat) fn of(verdict: Verdict, receipt: &Receipt, steps: u32) -> Self {
        let leftovers = !receipt.leftovers.is_empty();
        let amended = amendment_lines(receipt);
        let unsettled = awaits_amendment(receipt);
        Self { verdict, steps: Some(steps), receipt: Some(receipt_line(receipt)), amended, unsettled, leftovers }
    }

    /// As `GET /api/runs/{id}` tells it; nothing while it is not over.
    pub(in crate::chat) fn of_view(view: &RunView) -> Option<Self> {
        let receipt = view.receipt.as_ref();
        let leftovers = receipt.is_some_and(|receipt| !receipt.leftovers.is_empty());
        let verdict = view.verdict.clone().filter(|_| view.state == "ended")?;
        let amended = receipt.map(amendment_lines).unwrap_or_default();
        let unsettled = receipt.is_some_and(awaits_amendment);
        let (steps, receipt) = (Some(view.steps), receipt.map(receipt_line));
        Some(Self { verdict, steps, receipt, amended, unsettled, leftovers })
    }

    /// Steps that were done, and whether one was cut off: a stop ends the step at work, a budget is looked at between two.
    pub(in crate::chat) fn steps_done(&self) -> Option<(u32, bool)> {
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

    /// The result in the words of an embedder: `Execution paused` after a stop.
    pub(in crate::chat) fn word(&self) -> Option<String> {
        RunResult::of(&self.verdict, self.steps.unwrap_or(0)).error
    }
}
