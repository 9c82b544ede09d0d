//! Sealing: from a draft in any state to a turn that is valid for every provider.
//!
//! Every text a model reads here is fixed per situation. It never holds a name, a time, an error's text or a caller's words:
//! the first would break prompt caches, the last would let whoever stops a run write into the prompt.

use quell_protocol::{RunId, StopReason, Verdict};

use crate::printed::folded;

use super::draft::{AnsweredAs, OpenCall};
use super::{CallResult, Partial, REFUSED, Sealing, TURN_VERSION, Turn, TurnDraft, VISION, WITHHELD, ids};

/// Follows the text of a cut message where a model gets to see it.
pub(crate) const INTERRUPTED_MARK: &str = "[Interrupted: this message was cut off here and is not a finished answer.]";

pub(super) const NOT_STARTED: &str = "[Not started: the request ended before this call began. It did nothing.]";
pub(super) const AFTER_STOP: &str = "[It came to its own end after the request was stopped. Its effects stand.]";
pub(super) const STOPPED_SILENT: &str =
    "[Stopped while it ran. It had printed nothing. Side effects are possible; check before you rely on its result.]";
pub(super) const STOPPED: &str = "[Stopped while it ran. Side effects are possible; check before you rely on its result. \
                       What it had printed until then follows.]";

const FAILED: &str = "[The request above failed before it was finished. Do not resume it and do not repeat its actions \
                      unless the user asks for that.]";

const REFUSED_NOTE: &str = "[A request of the user stood here. The model refused it, so it is not shown any more. What was done \
                            for it stands.]";

const VISION_NOTE: &str = "[A request of the user stood here. The model could not take the pictures in it or before it, so it is not \
                           shown any more. What was done for it stands.]";

const WITHHELD_NOTE: &str =
    "[A message of the user stood here. It was kept back before it was read, and nothing was done.]";

macro_rules! aborted_note {
    ($how:literal) => {
        concat!(
            "[The request above was stopped ",
            $how,
            ", before it was finished. Do not resume it and do not repeat its actions unless the user asks for that.]"
        )
    };
}

impl TurnDraft {
    /// Closes the draft. Every open call gets a result, a cut message becomes the turn's partial, and the model is told what
    /// became of the request.
    #[must_use]
    pub fn seal(self, sealing: Sealing<'_>) -> Turn {
        let note = note(sealing.verdict, self.has_output());
        let items = self.items(|open| unanswered(self.run(), open));
        let for_people = self.for_people().clone().without_what_is_in(&items);
        let (text, thinking) = (self.partial_text().to_owned(), self.partial_thinking().to_owned());
        let streamed = !text.is_empty() || !thinking.is_empty();
        Turn {
            version: TURN_VERSION,
            run_id: self.run().clone(),
            compaction: self.compaction().cloned(),
            items,
            partial: streamed.then_some(Partial { text, thinking, policy: sealing.policy }),
            note: note.map(str::to_owned),
            for_people,
            verdict: sealing.verdict.clone(),
            sealed_at: sealing.sealed_at,
            usage: sealing.usage,
        }
    }
}

fn unanswered(run: &RunId, open: &OpenCall<'_>) -> AnsweredAs {
    let result = match open.output {
        None => CallResult::not_started(),
        Some(output) => CallResult::stopped(&folded(&output.text())),
    };
    AnsweredAs { result, synthetic: Some(ids::synthetic_id(run, open.ordinal, open.id)) }
}

pub(super) fn is_refusal(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Failed { code, .. } if code == REFUSED)
}

pub(super) fn is_withheld(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Failed { code, .. } if code == WITHHELD)
}

pub(super) fn is_blindness(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Failed { code, .. } if code == VISION)
}

/// What the model is told about the end of the request, by class of reason.
fn note(verdict: &Verdict, has_output: bool) -> Option<&'static str> {
    let reason = match verdict {
        Verdict::Completed => return None,
        Verdict::Failed { .. } if is_refusal(verdict) => return Some(REFUSED_NOTE),
        Verdict::Failed { .. } if is_blindness(verdict) => return Some(VISION_NOTE),
        Verdict::Failed { .. } if is_withheld(verdict) => return Some(WITHHELD_NOTE),
        Verdict::Failed { .. } => return Some(FAILED),
        Verdict::Aborted { reason, .. } => reason,
    };
    Some(match reason {
        StopReason::Superseded if !has_output => return None,
        StopReason::User | StopReason::Command | StopReason::Other(_) => aborted_note!("on purpose by the user"),
        StopReason::Timeout => aborted_note!("on purpose because its time was used up"),
        StopReason::Steps => aborted_note!("on purpose because its steps were used up"),
        StopReason::Tokens => aborted_note!("on purpose because its tokens were used up"),
        StopReason::DailyLimit => aborted_note!("on purpose because what may be spent in a day was used up"),
        StopReason::Superseded => aborted_note!("on purpose because a newer message took its place"),
        StopReason::Shutdown => aborted_note!("on purpose because the service was shut down"),
        StopReason::DaemonStopped => aborted_note!("because the service went down"),
        StopReason::Disconnect => aborted_note!("on purpose because the client went away"),
    })
}
