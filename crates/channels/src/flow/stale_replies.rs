//! Repair drafts and reactions that a killed daemon left in chats.
//!
//! They look as if the bot were still working. The next daemon ends them once the channel is connected, like those of a
//! stopped run, and tells the sender once.
//!
//! Only replies that were stored before they were shown are known ([`super::progress`]). A draft whose message id was
//! not stored in time stays as it is. Its reaction is removed all the same, and the outcome comes as a message below
//! it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use quell_engine::channel_origin::DeliveryError;
use quell_engine::cluster::Cluster;
use quell_kernel::channel::chat_language::ChatLanguage;
use quell_kernel::lease::Epoch;
use quell_kernel::turn::CODE_WITHHELD;
use quell_protocol::api::{HistoryMessage, RunView};
use quell_protocol::{Receipt, ResourceKind, RunId, StopReason, Verdict};
use quell_store::{PendingReply, StaleReply};
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
/// Between two looks whether this node listens.
const LISTENER_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Number of last turns in which to look for the turn of a run that a crash ended.
const HISTORY_PAGE_SIZE: usize = 8;

/// What earlier daemons, or dead nodes, left in chats, as far as this daemon tells it.
#[derive(Default)]
pub(super) struct StaleReplies(Mutex<StaleRepliesState>);

#[derive(Default)]
struct StaleRepliesState {
    /// The runs whose outcome a repair tells, also after it has told it.
    runs: BTreeSet<RunId>,
    /// Given to this daemon by the database, and not repaired yet.
    taken: Vec<StaleReply>,
}

impl StaleReplies {
    fn add_taken(&self, replies: Vec<StaleReply>) {
        let mut state = self.lock();
        state.runs.extend(replies.iter().map(|stale| stale.pending_reply.run.clone()));
        state.taken.extend(replies);
    }

    fn taken_of_channel(&self, channel: &str) -> Vec<StaleReply> {
        let state = self.lock();
        state.taken.iter().filter(|stale| stale.pending_reply.channel == channel).cloned().collect()
    }

    fn remove_taken(&self, run: &RunId) {
        self.lock().taken.retain(|stale| stale.pending_reply.run != *run);
    }

    fn lock(&self) -> MutexGuard<'_, StaleRepliesState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
    channels.0.stale_replies.lock().runs.extend(stale_replies.into_iter().map(|stale| stale.pending_reply.run));
}

/// True if a chat still showed something of this run when its daemon had died: the repair tells its outcome.
pub(super) async fn is_stale_run(channels: &Channels, run: &RunId) -> bool {
    let is_known = || channels.0.stale_replies.lock().runs.contains(run);
    if is_known() || channels.engine().cluster().is_none() {
        return is_known();
    }
    // A repair notes the run before it deletes the row.
    channels.engine().channel_store().has_pending_reply(run.clone()).await.unwrap_or(false) || is_known()
}

/// Repairs the stale replies of a channel, from its first connection until they are repaired or the channel is stopped.
/// In a cluster, also those of each node that dies, while this node listens to the channel.
pub(super) async fn repair_channel(channels: Channels, channel: Arc<ActiveChannel>) {
    let repair = async {
        let mut rounds_left = MAX_ROUNDS;
        loop {
            channel.wait_until_connected().await;
            // Before the replies are taken: a node that is settled after this is noticed.
            let members = list_members(&channels);
            if !channel.is_listener() {
                // The lease of the duty has ended, which the listener finds out now.
                sleep(LISTENER_CHECK_INTERVAL).await;
                continue;
            }
            rounds_left -= 1;
            if repair_round(&channels, &channel).await == NotificationStatus::RetryLater {
                if rounds_left > 0 {
                    sleep(ROUND_INTERVAL).await;
                    continue;
                }
                tracing::warn!(channel = channel.name, "stale replies are left; the next start tries again");
            }
            if !wait_until_node_settled(&channels, members).await {
                return;
            }
            rounds_left = MAX_ROUNDS;
        }
    };
    tokio::select! {
        // Unrepaired replies stay stored.
        () = channel.stop_requested.cancelled() => {}
        () = channels.scope().cancelled() => {}
        () = repair => {}
    }
}

fn list_members(channels: &Channels) -> BTreeSet<Epoch> {
    let nodes = channels.engine().cluster().map(Cluster::nodes).unwrap_or_default();
    nodes.iter().map(|row| row.membership.epoch).collect()
}

/// Waits until one of these memberships, or a later one, is settled. False without a cluster.
async fn wait_until_node_settled(channels: &Channels, mut members: BTreeSet<Epoch>) -> bool {
    let Some(cluster) = channels.engine().cluster() else { return false };
    loop {
        let current = list_members(channels);
        if !members.is_subset(&current) {
            return true;
        }
        members = current;
        cluster.wait_for_renewal().await;
    }
}

async fn repair_round(channels: &Channels, channel: &Arc<ActiveChannel>) -> NotificationStatus {
    let stale_replies = &channels.0.stale_replies;
    match channels.engine().channel_store().take_stale_replies(channel.name.clone()).await {
        Ok(taken) => stale_replies.add_taken(taken),
        Err(error) => {
            tracing::error!(channel = channel.name, %error, "cannot read stale replies");
            return NotificationStatus::RetryLater;
        }
    }
    let taken = stale_replies.taken_of_channel(&channel.name);
    if !taken.is_empty() {
        let runs = taken.len();
        tracing::info!(channel = channel.name, runs, "repairing replies that an earlier daemon left in chats");
    }
    let repair = |stale: StaleReply| async {
        let run = stale.pending_reply.run.clone();
        let status = repair_stale_reply(channels, channel, stale).await;
        if status == NotificationStatus::Settled {
            stale_replies.remove_taken(&run);
        }
        status
    };
    let statuses: Vec<NotificationStatus> =
        stream::iter(taken).map(repair).buffer_unordered(MAX_CONCURRENT_REPAIRS).collect().await;
    if statuses.contains(&NotificationStatus::RetryLater) {
        NotificationStatus::RetryLater
    } else {
        NotificationStatus::Settled
    }
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
    let language = match &view {
        Some(view) => channels.conversation_language(channel, &view.session_key),
        None => channels.channel_language(channel),
    };
    let Some(outcome) = StaleRunOutcome::from_view(view.as_ref(), language) else { return NotificationStatus::Settled };
    let finished_reply = FinishedReply {
        target: ReplyTarget {
            channel: Arc::clone(channel),
            address: ChatAddress { target, thread },
            request_message: MessageId(asked),
            run_id: run,
        },
        language,
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
    let run = &finished_reply.target.run_id;
    if status == NotificationStatus::Settled
        && let Err(error) = engine.channel_store().mark_outcome_sent(run.clone()).await
    {
        tracing::debug!(%run, %error, "the outcome of a run may be sent again after a restart");
    }
    finished_reply.target.remove_reaction(SEEN_EMOJI).await;
    finished_reply.add_final_reaction(emoji).await;
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
    fn from_view(view: Option<&RunView>, language: ChatLanguage) -> Option<Self> {
        let Some(view) = view else {
            // The run was deleted: there is no outcome to tell.
            let verdict = Verdict::Aborted { reason: StopReason::DaemonStopped, by: None };
            return Some(Self { verdict, fallback_text: None, is_withheld: false, delivery_result: None });
        };
        let (verdict, receipt) = (view.verdict.clone()?, view.receipt.as_ref()?);
        let fallback_text = match &verdict {
            // A shutdown with enough time would have told the outcome and left no stale reply.
            Verdict::Aborted { reason: StopReason::DaemonStopped | StopReason::Shutdown, .. } => {
                Some(texts::RESTARTED.text(language).to_owned())
            }
            // This daemon wrote the receipt, which does not list what the run held.
            Verdict::Aborted { reason: StopReason::Timeout, .. } => Some(texts::TIMED_OUT.text(language).to_owned()),
            other => texts::no_answer_text(other, receipt, language),
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
