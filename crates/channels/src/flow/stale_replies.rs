//! Repair drafts and reactions that a killed daemon left in chats.
//!
//! They look as if the bot were still working. The next daemon ends them once the channel is connected, like those of a
//! stopped run, and tells the sender once.
//!
//! Only replies that were stored before they were shown are known ([`super::progress`]). A draft whose message id was
//! not stored in time stays as it is. Its reaction is removed all the same, and the outcome comes as a message below
//! it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use quell_engine::channel_origin::DeliveryError;
use quell_kernel::turn::CODE_WITHHELD;
use quell_protocol::api::{HistoryMessage, RunView};
use quell_protocol::{Receipt, ResourceKind, RunId, StopReason, Verdict};
use quell_store::{PendingReply, StaleReply, StoreError};
use tokio::time::sleep;

use super::channel::ActiveChannel;
use super::finished_reply::{FinishedReply, NotificationStatus};
use super::reply_target::{ReplyTarget, SEEN_EMOJI, verdict_emoji};
use super::{Channels, texts};
use crate::network::{ChatAddress, MessageId};

/// Replies that are repaired at the same time in one channel.
const MAX_CONCURRENT_REPAIRS: usize = 8;
/// Rounds in the lifetime of one daemon, and the pause between two rounds.
const MAX_ROUNDS: usize = 10;
const ROUND_INTERVAL: Duration = Duration::from_secs(60);
/// Number of last turns in which to look for the turn of a run that a crash ended.
const HISTORY_PAGE_SIZE: usize = 8;

/// Loads the stale replies before any message is received, and deletes those of channels that are no longer configured.
pub(super) async fn load_stale_replies(channels: &Channels, configured: Vec<String>) {
    let channel_store = channels.engine().channel_store();
    let loading = async {
        let deleted = channel_store.delete_stale_replies_except(configured).await?;
        if deleted > 0 {
            tracing::info!(runs = deleted, "stale replies of removed channels are deleted");
        }
        channel_store.list_stale_replies().await
    };
    let stale_replies = tokio::select! {
        () = channels.scope().cancelled() => return,
        left = loading => left.unwrap_or_else(|error| {
            tracing::error!(%error, "cannot load the replies that an earlier daemon left in chats");
            Vec::new()
        }),
    };
    // Set once: this function runs once.
    let channel_by_run = stale_replies
        .into_iter()
        .map(|StaleReply { pending_reply, .. }| (pending_reply.run, pending_reply.channel))
        .collect();
    let _ = channels.0.stale_runs.set(channel_by_run);
}

/// True if a chat still showed something of this run when the daemon started: the repair tells its outcome.
pub(super) fn is_stale_run(channels: &Channels, run: &RunId) -> bool {
    channels.0.stale_runs.get().is_some_and(|left| left.contains_key(run))
}

/// Repairs the stale replies of a channel, from its first connection until they are repaired or the channel is stopped.
pub(super) async fn repair_channel(channels: Channels, channel: Arc<ActiveChannel>) {
    if !channels.0.stale_runs.get().is_some_and(|left| left.values().any(|name| *name == channel.name)) {
        return;
    }
    let repair = async {
        channel.first_connected.cancelled().await;
        for _ in 0..MAX_ROUNDS {
            match repair_round(&channels, &channel).await {
                Ok(NotificationStatus::Settled) => return,
                Ok(NotificationStatus::RetryLater) => sleep(ROUND_INTERVAL).await,
                Err(error) => {
                    return tracing::error!(channel = channel.name, %error, "cannot read stale replies");
                }
            }
        }
        tracing::warn!(channel = channel.name, "stale replies are left; the next start tries again");
    };
    tokio::select! {
        // Unrepaired replies stay stored.
        () = channel.stop_requested.cancelled() => {}
        () = channels.scope().cancelled() => {}
        () = repair => {}
    }
}

async fn repair_round(channels: &Channels, channel: &Arc<ActiveChannel>) -> Result<NotificationStatus, StoreError> {
    let mut stale_replies = channels.engine().channel_store().list_stale_replies().await?;
    stale_replies.retain(|stale| stale.pending_reply.channel == channel.name);
    tracing::info!(
        channel = channel.name,
        runs = stale_replies.len(),
        "repairing replies that an earlier daemon left in chats"
    );
    let repair = |stale| repair_stale_reply(channels, channel, stale);
    let statuses: Vec<NotificationStatus> =
        stream::iter(stale_replies).map(repair).buffer_unordered(MAX_CONCURRENT_REPAIRS).collect().await;
    Ok(if statuses.contains(&NotificationStatus::RetryLater) {
        NotificationStatus::RetryLater
    } else {
        NotificationStatus::Settled
    })
}

async fn repair_stale_reply(
    channels: &Channels,
    channel: &Arc<ActiveChannel>,
    stale_reply: StaleReply,
) -> NotificationStatus {
    let StaleReply {
        pending_reply: PendingReply { run, target, thread, request_message: asked, draft_message, .. },
        steered_into,
        outcome_sent,
    } = stale_reply;
    let engine = channels.engine();
    // Read from the store: a repeated message may put a run with the same id, which has not ended, into memory for a
    // moment.
    let view = match engine.find_stored_run(steered_into.as_ref().unwrap_or(&run)).await {
        Ok(view) => view,
        Err(error) => {
            tracing::error!(%run, %error, "cannot read how a run ended");
            return NotificationStatus::RetryLater;
        }
    };
    let Some(outcome) = StaleRunOutcome::from_view(view.as_ref()) else { return NotificationStatus::Settled };
    let finished_reply = FinishedReply {
        target: ReplyTarget {
            channel: Arc::clone(channel),
            address: ChatAddress { target, thread },
            request_message: MessageId(asked),
            run_id: run,
        },
        draft_message: draft_message.map(MessageId),
        partial_text: partial_answer_text(channels, view.as_ref()).await,
        withheld: outcome.is_withheld,
        delivery_result: outcome.delivery_result,
    };
    // The run that the message was steered into sends its own outcome.
    let (status, emoji) = match steered_into {
        Some(_) => (NotificationStatus::Settled, Some(verdict_emoji(&outcome.verdict))),
        None if outcome_sent => (NotificationStatus::Settled, finished_reply.final_emoji(&outcome.verdict)),
        None => (
            finished_reply.send_outcome(&outcome.verdict, outcome.fallback_text).await,
            finished_reply.final_emoji(&outcome.verdict),
        ),
    };
    finished_reply.target.remove_reaction(SEEN_EMOJI).await;
    finished_reply.add_final_reaction(emoji).await;
    let run = &finished_reply.target.run_id;
    if status == NotificationStatus::Settled
        && let Err(error) = engine.channel_store().delete_pending_reply(run.clone()).await
    {
        tracing::warn!(%run, %error, "the outcome of a run will be sent again after a restart");
    }
    status
}

struct StaleRunOutcome {
    verdict: Verdict,
    /// Text in place of a reply.
    fallback_text: Option<String>,
    is_withheld: bool,
    delivery_result: Option<Result<(), DeliveryError>>,
}

impl StaleRunOutcome {
    /// Returns `None` if the run has not ended: this daemon has started it again.
    fn from_view(view: Option<&RunView>) -> Option<Self> {
        let Some(view) = view else {
            // The run was deleted: there is no outcome to tell.
            let verdict = Verdict::Aborted { reason: StopReason::DaemonStopped, by: None };
            return Some(Self { verdict, fallback_text: None, is_withheld: false, delivery_result: None });
        };
        let (verdict, receipt) = (view.verdict.clone()?, view.receipt.as_ref()?);
        let fallback_text = match &verdict {
            // A shutdown with enough time would have told the outcome and left no stale reply.
            Verdict::Aborted { reason: StopReason::DaemonStopped | StopReason::Shutdown, .. } => {
                Some(texts::RESTARTED.to_owned())
            }
            // This daemon wrote the receipt, which does not list what the run held.
            Verdict::Aborted { reason: StopReason::Timeout, .. } => Some(texts::TIMED_OUT.to_owned()),
            other => texts::no_answer_text(other, receipt),
        };
        let delivery_outcome = reply_delivery_outcome(receipt);
        let is_withheld = matches!(&verdict, Verdict::Failed { code, .. } if code == CODE_WITHHELD);
        let delivery_result = match (&verdict, delivery_outcome) {
            (Verdict::Completed, "finished") => Some(Ok(())),
            (Verdict::Completed, "undelivered" | "withheld") => None,
            // A receipt that this daemon wrote does not list the delivery.
            (Verdict::Completed, _) => Some(Err(DeliveryError::Unknown(String::new()))),
            (Verdict::Failed { .. } | Verdict::Aborted { .. }, _) => None,
        };
        Some(Self {
            verdict,
            fallback_text,
            is_withheld: is_withheld || delivery_outcome == "withheld",
            delivery_result,
        })
    }
}

/// The `how` of the last delivery in the receipt. Earlier ones are the fetches of attachments.
fn reply_delivery_outcome(receipt: &Receipt) -> &str {
    let last = receipt.resources.iter().rfind(|held| held.kind == ResourceKind::Delivery);
    last.map_or("", |held| &held.how)
}

/// The text that the draft may show: the streamed part of the reply, or the whole reply if it was being delivered.
async fn partial_answer_text(channels: &Channels, view: Option<&RunView>) -> String {
    let Some(view) = view else { return String::new() };
    let text = match &view.output {
        Some(output) => output.clone(),
        None => {
            let page = channels.engine().history_page(&view.session_key, HISTORY_PAGE_SIZE, None).await;
            let messages = page.map(|page| page.messages).unwrap_or_default();
            let of_run = |message: &&HistoryMessage| message.run_id.as_ref() == Some(&view.run_id);
            let last = messages.iter().filter(of_run).rfind(|message| message.role == "assistant");
            last.filter(|message| message.calls.is_empty()).map(|message| message.text.clone()).unwrap_or_default()
        }
    };
    channels.visible_draft_text(&text)
}
