//! Signs on the message that is answered: one that it was seen, then one that says how it ended.

use std::time::Duration;

use quell_protocol::{RunId, StopReason, Verdict};
use tokio::time::timeout;

use super::channel::Channel;
use super::send::{Patience, repeated};
use crate::channels::seam::{MessageId, NotSent, Place, Reactions};

/// How long a sign at the end of a run may take.
pub(super) const AT_THE_END: Duration = Duration::from_secs(60);

pub(super) const SEEN: &str = "👀";
pub(super) const DONE: &str = "✅";
pub(super) const FAILED: &str = "⚠️";
const STOPPED: &str = "⏹";

/// The message of a run, which may have signs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signs<'a> {
    pub(super) channel: &'a Channel,
    pub(super) place: &'a Place,
    pub(super) asked: &'a MessageId,
    pub(super) run: &'a RunId,
}

impl Signs<'_> {
    pub(super) async fn put(&self, sign: &str, limit: Duration) {
        let Some(reactions) = self.reactions() else { return };
        let putting = repeated(|| reactions.add(self.place, self.asked, sign), Patience::Long);
        self.note("put on", sign, timeout(limit, putting).await.ok());
    }

    pub(super) async fn take_off(&self, sign: &str) {
        let Some(reactions) = self.reactions() else { return };
        let taking = repeated(|| reactions.remove(self.place, self.asked, sign), Patience::Long);
        self.note("taken off", sign, timeout(AT_THE_END, taking).await.ok());
    }

    fn reactions(&self) -> Option<&dyn Reactions> {
        self.channel.network.reactions().filter(|_| self.channel.config.ack_reactions)
    }

    fn note(&self, deed: &str, sign: &str, done: Option<Result<(), NotSent>>) {
        if !matches!(done, Some(Ok(()))) {
            tracing::debug!(run = %self.run, sign, ?done, "a sign was not {deed} a message");
        }
    }
}

pub(super) fn sign_of(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Completed => DONE,
        Verdict::Failed { .. } | Verdict::Aborted { reason: StopReason::Timeout, .. } => FAILED,
        Verdict::Aborted { .. } => STOPPED,
    }
}
