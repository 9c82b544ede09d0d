//! Seals a draft: synthesises missing results and adds the note about its end.
//!
//! Every text for the model here is fixed per situation. It never contains a name, a time, an error text or a caller's
//! words. Variable text would break prompt caches, and would let the caller who stops a run write into the prompt.

use quell_protocol::{RunId, StopReason, Verdict};

use crate::terminal_output::overwrite_lines;

use super::draft::{OpenCall, SyntheticResult};
use super::{
    CODE_REFUSED, CODE_VISION, CODE_WITHHELD, CallResult, PartialMessage, SealOptions, TURN_VERSION, Turn, TurnDraft,
    call_ids,
};

/// Appended to a message that was cut off, if a model sees it.
pub(crate) const INTERRUPTED_MARK: &str = "[Interrupted: this message was cut off here and is not a finished answer.]";

pub(super) const NOT_STARTED: &str = "[Not started: the request ended before this call began. It did nothing.]";
pub(super) const AFTER_STOP: &str = "[It came to its own end after the request was stopped. Its effects stand.]";
pub(super) const STOPPED_WITHOUT_OUTPUT: &str =
    "[Stopped while it ran. It had printed nothing. Side effects are possible; check before you rely on its result.]";
pub(super) const STOPPED_WITH_OUTPUT: &str = "[Stopped while it ran. Side effects are possible; check before you rely on its result. \
                       What it had printed until then follows.]";

const FAILED_NOTE: &str = "[The request above failed before it was finished. Do not resume it and do not repeat its actions \
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
    /// Seals the draft. Every open call gets a result, and a note tells the model how the request ended. A message that
    /// was cut off becomes the partial message of the turn.
    #[must_use]
    pub fn seal(self, sealing: SealOptions<'_>) -> Turn {
        let note = end_note(sealing.verdict, self.has_output());
        let items = self.items(|open| synthesise_result(self.run_id(), open));
        let for_people = self.display_only().clone().without_thinking_in(&items);
        let (text, thinking) = (self.partial_text().to_owned(), self.partial_thinking().to_owned());
        let streamed = !text.is_empty() || !thinking.is_empty();
        Turn {
            version: TURN_VERSION,
            run_id: self.run_id().clone(),
            compaction: self.compaction().cloned(),
            items,
            partial: streamed.then_some(PartialMessage { text, thinking, policy: sealing.policy }),
            note: note.map(str::to_owned),
            for_people,
            verdict: sealing.verdict.clone(),
            sealed_at: sealing.sealed_at,
            usage: sealing.usage,
        }
    }
}

fn synthesise_result(run: &RunId, open: &OpenCall<'_>) -> SyntheticResult {
    let result = match open.output {
        None => CallResult::not_started(),
        Some(output) => CallResult::stopped(&overwrite_lines(&output.text())),
    };
    SyntheticResult { result, synthetic: Some(call_ids::synthetic_id(run, open.ordinal, open.id)) }
}

/// Text for the model about the end of the request, by class of reason.
fn end_note(verdict: &Verdict, has_output: bool) -> Option<&'static str> {
    let reason = match verdict {
        Verdict::Completed => return None,
        Verdict::Failed { code, .. } => {
            return Some(match code.as_str() {
                CODE_REFUSED => REFUSED_NOTE,
                CODE_VISION => VISION_NOTE,
                CODE_WITHHELD => WITHHELD_NOTE,
                _ => FAILED_NOTE,
            });
        }
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
