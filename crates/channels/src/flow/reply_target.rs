//! The message that a run answers, and the reactions on it that show the state of the run.

use std::sync::Arc;
use std::time::Duration;

use quell_protocol::{RunId, StopReason, Verdict};
use tokio::time::timeout;

use super::channel::ActiveChannel;
use super::send_retry::{RetrySafety, SendPersistence, retry};
use crate::network::{ChatAddress, MessageId, Reactions, SendError};

/// Time limit for a reaction at the end of a run.
pub(super) const FINAL_REACTION_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) const SEEN_EMOJI: &str = "👀";
pub(super) const DONE_EMOJI: &str = "✅";
pub(super) const FAILED_EMOJI: &str = "⚠️";
const STOPPED_EMOJI: &str = "⏹";

/// The message that a run answers, and where the answer goes.
#[derive(Debug, Clone)]
pub(super) struct ReplyTarget {
    pub(super) channel: Arc<ActiveChannel>,
    pub(super) address: ChatAddress,
    /// The message to which the run replies.
    pub(super) request_message: MessageId,
    pub(super) run_id: RunId,
}

impl ReplyTarget {
    pub(super) async fn add_reaction(&self, emoji: &str, limit: Duration) {
        let Some(reactions) = self.reactions() else { return };
        let add = || reactions.add(&self.address, &self.request_message, emoji);
        let adding = retry(add, RetrySafety::Idempotent, SendPersistence::UntilCancelled);
        self.log_failure("added to", emoji, timeout(limit, adding).await.ok());
    }

    pub(super) async fn remove_reaction(&self, emoji: &str) {
        let Some(reactions) = self.reactions() else { return };
        let remove = || reactions.remove(&self.address, &self.request_message, emoji);
        let removing = retry(remove, RetrySafety::Idempotent, SendPersistence::UntilCancelled);
        self.log_failure("removed from", emoji, timeout(FINAL_REACTION_TIMEOUT, removing).await.ok());
    }

    fn reactions(&self) -> Option<&dyn Reactions> {
        self.channel.network.features().reactions.filter(|_| self.channel.config.ack_reactions)
    }

    fn log_failure(&self, action: &str, emoji: &str, result: Option<Result<(), SendError>>) {
        if !matches!(result, Some(Ok(()))) {
            tracing::debug!(run = %self.run_id, sign = emoji, done = ?result, "a reaction was not {action} a message");
        }
    }
}

pub(super) fn verdict_emoji(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Completed => DONE_EMOJI,
        Verdict::Failed { .. } | Verdict::Aborted { reason: StopReason::Timeout, .. } => FAILED_EMOJI,
        Verdict::Aborted { .. } => STOPPED_EMOJI,
    }
}
