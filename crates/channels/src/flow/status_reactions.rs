//! Reactions on the request message that show the state of its run.

use std::time::Duration;

use quell_protocol::{RunId, StopReason, Verdict};
use tokio::time::timeout;

use super::channel::ActiveChannel;
use super::send_retry::{SendPersistence, retry_idempotent};
use crate::network::{ChatAddress, MessageId, Reactions, SendError};

/// Time limit for a reaction at the end of a run.
pub(super) const FINAL_REACTION_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) const SEEN_EMOJI: &str = "👀";
pub(super) const DONE_EMOJI: &str = "✅";
pub(super) const FAILED_EMOJI: &str = "⚠️";
const STOPPED_EMOJI: &str = "⏹";

/// The request message of a run, on which the reactions are set.
#[derive(Debug, Clone, Copy)]
pub(super) struct StatusReactions<'a> {
    pub(super) channel: &'a ActiveChannel,
    pub(super) address: &'a ChatAddress,
    pub(super) request_message: &'a MessageId,
    pub(super) run_id: &'a RunId,
}

impl StatusReactions<'_> {
    pub(super) async fn add(&self, emoji: &str, limit: Duration) {
        let Some(reactions) = self.reactions() else { return };
        let adding = retry_idempotent(
            || reactions.add(self.address, self.request_message, emoji),
            SendPersistence::UntilCancelled,
        );
        self.log_failure("added to", emoji, timeout(limit, adding).await.ok());
    }

    pub(super) async fn remove(&self, emoji: &str) {
        let Some(reactions) = self.reactions() else { return };
        let removing = retry_idempotent(
            || reactions.remove(self.address, self.request_message, emoji),
            SendPersistence::UntilCancelled,
        );
        self.log_failure("removed from", emoji, timeout(FINAL_REACTION_TIMEOUT, removing).await.ok());
    }

    fn reactions(&self) -> Option<&dyn Reactions> {
        self.channel.network.reactions().filter(|_| self.channel.config.ack_reactions)
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
