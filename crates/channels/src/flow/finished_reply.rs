//! Send the outcome of a finished run to its chat: the final text, the end of the draft, the final reaction.

use std::time::Duration;

use quell_engine::channel_origin::DeliveryError;
use quell_kernel::channel::chat_language::ChatLanguage;
use quell_protocol::Verdict;
use tokio::time::timeout;

use super::reply_target::{DONE_EMOJI, FAILED_EMOJI, FINAL_REACTION_TIMEOUT, ReplyTarget, verdict_emoji};
use super::send_retry::{SendPersistence, edit_message, send_text};
use super::texts;
use crate::format::format_draft;
use crate::network::{MessageId, SendError};

/// Time limit for the final text of a run.
const FINAL_TEXT_TIMEOUT: Duration = Duration::from_secs(60);

/// The reply of a finished run, as far as the outcome message needs it.
pub(super) struct FinishedReply {
    /// With the current channel of this name: its configuration may have changed since the message arrived.
    pub(super) target: ReplyTarget,
    pub(super) language: ChatLanguage,
    /// The draft; `None` once a piece of the reply is shown, because the draft is its first piece then.
    pub(super) draft_message: Option<MessageId>,
    /// The text of an unfinished reply.
    pub(super) partial_text: String,
    /// A hook withheld the message or the reply.
    pub(super) withheld: bool,
    /// The result of the delivery, if there was one.
    pub(super) delivery_result: Option<Result<(), DeliveryError>>,
}

/// Whether the outcome still has to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotificationStatus {
    /// It was sent, or never can be.
    Settled,
    /// The network could not show it now; a later attempt may succeed.
    RetryLater,
}

impl FinishedReply {
    /// Sends the text for a run without a delivered reply, in place of the draft if there is one. `fallback_text` is
    /// the text for a run that did not complete.
    pub(super) async fn send_outcome(&self, verdict: &Verdict, fallback_text: Option<String>) -> NotificationStatus {
        let final_text = match (verdict, &self.delivery_result) {
            (Verdict::Completed, Some(Ok(()))) => return NotificationStatus::Settled,
            // The beginning of the reply is shown already, perhaps in place of the draft.
            (Verdict::Completed, Some(Err(DeliveryError::PartlyDelivered { .. } | DeliveryError::Unknown(_)))) => {
                return self.with_timeout(self.send_final_text(texts::DELIVERY_UNKNOWN.text(self.language))).await;
            }
            (Verdict::Completed, _) if self.withheld => None,
            (Verdict::Completed, _) => Some(texts::ANSWER_UNDELIVERED.text(self.language).to_owned()),
            (Verdict::Failed { .. } | Verdict::Aborted { .. }, _) => fallback_text,
        };
        let sending = async {
            match (self.finish_draft(verdict, final_text.as_deref()).await, &final_text) {
                (Ok(()), _) => NotificationStatus::Settled,
                (Err(_), Some(final_text)) => self.send_final_text(final_text).await,
                (Err(status), None) => status,
            }
        };
        self.with_timeout(sending).await
    }

    /// Ends the draft with the outcome.
    ///
    /// # Errors
    /// The status of a draft that could not be ended; `Settled` if there is no draft.
    async fn finish_draft(&self, verdict: &Verdict, final_text: Option<&str>) -> Result<(), NotificationStatus> {
        let ReplyTarget { channel, address, run_id, .. } = &self.target;
        let (Some(message), Some(drafts)) = (&self.draft_message, channel.network.features().drafts) else {
            return Err(NotificationStatus::Settled);
        };
        let ending = match (final_text, self.withheld) {
            (Some(final_text), _) => final_text,
            (None, true) => texts::ANSWER_WITHHELD.text(self.language),
            (None, false) => texts::draft_ending_text(verdict).text(self.language),
        };
        let partial = if self.withheld { "" } else { self.partial_text.trim() };
        let text = if partial.is_empty() { ending.to_owned() } else { format!("{partial}\n\n{ending}") };
        // A draft that is too long shows its end, which matters here.
        let piece = format_draft(&text, &channel.limits.message_format);
        edit_message(drafts, address, message, &piece).await.map_err(|error| {
            tracing::debug!(run = %run_id, %error, "a draft could not be ended");
            match error {
                SendError::Refused { .. } => NotificationStatus::Settled,
                SendError::NotDelivered { .. } | SendError::Unknown { .. } => NotificationStatus::RetryLater,
            }
        })
    }

    async fn with_timeout(&self, sending: impl Future<Output = NotificationStatus>) -> NotificationStatus {
        timeout(FINAL_TEXT_TIMEOUT, sending).await.unwrap_or_else(|_elapsed| {
            tracing::warn!(run = %self.target.run_id, "sending the outcome of a run timed out");
            NotificationStatus::RetryLater
        })
    }

    async fn send_final_text(&self, final_text: &str) -> NotificationStatus {
        let ReplyTarget { channel, address, run_id, .. } = &self.target;
        let key = format!("{run_id}-end");
        let sent = send_text(channel, address, final_text, &key, SendPersistence::UntilCancelled).await;
        let Err(error) = sent else { return NotificationStatus::Settled };
        channel.count_undelivered();
        tracing::warn!(run = %run_id, %error, "the outcome of a run was not delivered");
        match error {
            SendError::NotDelivered { .. } => NotificationStatus::RetryLater,
            // The text may be shown already, and must not be sent twice.
            SendError::Refused { .. } | SendError::Unknown { .. } => NotificationStatus::Settled,
        }
    }

    /// The reaction that stays; `None` for a withheld message.
    pub(super) fn final_emoji(&self, verdict: &Verdict) -> Option<&'static str> {
        match verdict {
            Verdict::Completed if self.delivery_result == Some(Ok(())) => Some(DONE_EMOJI),
            _ if self.withheld => None,
            Verdict::Completed => Some(FAILED_EMOJI),
            Verdict::Failed { .. } | Verdict::Aborted { .. } => Some(verdict_emoji(verdict)),
        }
    }

    pub(super) async fn add_final_reaction(&self, emoji: Option<&str>) {
        if let Some(emoji) = emoji {
            self.target.add_reaction(emoji, FINAL_REACTION_TIMEOUT).await;
        }
    }
}
