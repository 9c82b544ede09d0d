//! What a daemon that was killed left in chats: signs and drafts that look as if somebody were working. The next daemon ends them,
//! once the channel is connected, as it ends those of a run that was stopped; whoever asked is told once.
//!
//! Only what was written down before it was shown is known ([`super::present`]). A draft whose name had not been written down
//! when the daemon died stays as it is; the sign is taken off all the same, and what happened is said below it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use quell_engine::channel::Undelivered;
use quell_engine::store::{LeftTrace, StoreError, Trace};
use quell_kernel::turn::WITHHELD;
use quell_protocol::api::{HistoryMessage, RunView};
use quell_protocol::{Receipt, ResourceKind, RunId, StopReason, Verdict};
use tokio::time::sleep;

use super::channel::Channel;
use super::ended::{Ended, Told};
use super::signs::{SEEN, sign_of};
use super::{Channels, words};
use crate::channels::seam::{MessageId, Place};

/// Runs that are put right at the same time in one channel.
const AT_ONCE: usize = 8;
/// How often it is tried in one life of the daemon, and the pause between two tries.
const ROUNDS: usize = 10;
const PAUSE: Duration = Duration::from_secs(60);
/// Turns of a conversation among which one that a crash ended is looked for.
const NEWEST: usize = 8;

/// Looks what there is, before anything is heard, and forgets what was left in channels that are gone.
pub(super) async fn look(channels: &Channels, configured: Vec<String>) {
    let engine = channels.engine();
    let looking = async {
        engine.keep_traces_in(configured).await?;
        engine.left_traces().await
    };
    let left = tokio::select! {
        () = channels.scope().cancelled() => return,
        left = looking => left.unwrap_or_else(|error| {
            tracing::error!(%error, "it is not known what an earlier daemon left in chats");
            Vec::new()
        }),
    };
    // It is looked once only.
    let by_run = left.into_iter().map(|LeftTrace { trace, .. }| (trace.run, trace.channel)).collect();
    let _ = channels.0.leaves.set(by_run);
}

/// True when a chat showed something of this run when the daemon started: what became of it is told there.
pub(super) fn is_left(channels: &Channels, run: &RunId) -> bool {
    channels.0.leaves.get().is_some_and(|left| left.contains_key(run))
}

/// Puts right what an earlier daemon left in a channel, as soon as it is connected and until it is stopped.
pub(super) async fn tidy(channels: Channels, channel: Arc<Channel>) {
    if !channels.0.leaves.get().is_some_and(|left| left.values().any(|name| *name == channel.name)) {
        return;
    }
    let work = async {
        channel.reached().await;
        for _ in 0..ROUNDS {
            match round(&channels, &channel).await {
                Ok(Told::Yes) => return,
                Ok(Told::NotYet) => sleep(PAUSE).await,
                Err(error) => {
                    return tracing::error!(channel = channel.name, %error, "what was left in chats cannot be read");
                }
            }
        }
        tracing::warn!(channel = channel.name, "what was left in chats is put right at the next start");
    };
    tokio::select! {
        // What is not put right by then is still written down.
        () = channel.stopped() => {}
        () = channels.scope().cancelled() => {}
        () = work => {}
    }
}

async fn round(channels: &Channels, channel: &Arc<Channel>) -> Result<Told, StoreError> {
    let mut left = channels.engine().left_traces().await?;
    left.retain(|left| left.trace.channel == channel.name);
    tracing::info!(channel = channel.name, runs = left.len(), "what a daemon that died left in chats is put right");
    let put_right = |left| put_right(channels, channel, left);
    let told: Vec<Told> = stream::iter(left).map(put_right).buffer_unordered(AT_ONCE).collect().await;
    Ok(if told.contains(&Told::NotYet) { Told::NotYet } else { Told::Yes })
}

async fn put_right(channels: &Channels, channel: &Arc<Channel>, left: LeftTrace) -> Told {
    let LeftTrace { trace: Trace { run, target, thread, asked, draft, .. }, steered_into, told } = left;
    let engine = channels.engine();
    // Not from memory: where its message is told again, something may go by its id for a moment that is not over.
    let view = match engine.stored_run(steered_into.as_ref().unwrap_or(&run)).await {
        Ok(view) => view,
        Err(error) => {
            tracing::error!(%run, %error, "how a run ended cannot be read");
            return Told::NotYet;
        }
    };
    let Some(end) = End::of(view.as_ref()) else { return Told::Yes };
    let ended = Ended {
        channel: Arc::clone(channel),
        place: Place { target, thread },
        asked: MessageId(asked),
        run,
        draft: draft.map(MessageId),
        partial: partial(channels, view.as_ref()).await,
        withheld: end.withheld,
        carried: end.carried,
    };
    // Whatever took a message in has an end of its own to tell.
    let (told, sign) = match steered_into {
        Some(_) => (Told::Yes, Some(sign_of(&end.verdict))),
        None if told => (Told::Yes, ended.last_sign(&end.verdict)),
        None => (ended.finish(&end.verdict, end.instead).await, ended.last_sign(&end.verdict)),
    };
    ended.signs().take_off(SEEN).await;
    ended.sign(sign).await;
    if told == Told::Yes
        && let Err(error) = engine.forget_trace(&ended.run).await
    {
        tracing::warn!(run = %ended.run, %error, "the end of a run will be told again after a restart");
    }
    told
}

/// How a run of an earlier daemon ended.
struct End {
    verdict: Verdict,
    /// What is said in the place of an answer.
    instead: Option<String>,
    withheld: bool,
    carried: Option<Result<(), Undelivered>>,
}

impl End {
    /// Nothing when it is not over: this daemon has begun it anew.
    fn of(view: Option<&RunView>) -> Option<Self> {
        let Some(view) = view else {
            // It was deleted, and nobody waits for its answer.
            let verdict = Verdict::Aborted { reason: StopReason::DaemonStopped, by: None };
            return Some(Self { verdict, instead: None, withheld: false, carried: None });
        };
        let (verdict, receipt) = (view.verdict.clone()?, view.receipt.as_ref()?);
        let instead = match &verdict {
            // A shutdown that had the time to say so has left nothing.
            Verdict::Aborted { reason: StopReason::DaemonStopped | StopReason::Shutdown, .. } => {
                Some(words::RESTARTED.to_owned())
            }
            // Its receipt was written by this daemon, and does not know what the run held.
            Verdict::Aborted { reason: StopReason::Timeout, .. } => Some(words::TIMED_OUT.to_owned()),
            other => words::without_an_answer(other, receipt),
        };
        let way = way_of_answer(receipt);
        let kept_back = matches!(&verdict, Verdict::Failed { code, .. } if code == WITHHELD);
        let carried = match (&verdict, way) {
            (Verdict::Completed, "finished") => Some(Ok(())),
            (Verdict::Completed, "undelivered" | "withheld") => None,
            // A receipt that this daemon has written does not know it.
            (Verdict::Completed, _) => Some(Err(Undelivered::Unknown(String::new()))),
            (Verdict::Failed { .. } | Verdict::Aborted { .. }, _) => None,
        };
        Some(Self { verdict, instead, withheld: kept_back || way == "withheld", carried })
    }
}

/// What became of the answer, in a word of the receipt. What came with a message was there before.
fn way_of_answer(receipt: &Receipt) -> &str {
    let last = receipt.resources.iter().rfind(|held| held.kind == ResourceKind::Delivery);
    last.map_or("", |held| &held.how)
}

/// What the draft may show of the answer: what had streamed of it, or the whole of one that was on its way.
async fn partial(channels: &Channels, view: Option<&RunView>) -> String {
    let engine = channels.engine();
    let Some(view) = view.filter(|_| !engine.asks_about_answers()) else { return String::new() };
    let text = match &view.output {
        Some(output) => output.clone(),
        None => {
            let page = engine.history(&view.session_key, NEWEST, None).await;
            let messages = page.map(|page| page.messages).unwrap_or_default();
            let of_run = |message: &&HistoryMessage| message.run_id.as_ref() == Some(&view.run_id);
            let last = messages.iter().filter(of_run).rfind(|message| message.role == "assistant");
            last.filter(|message| message.calls.is_empty()).map(|message| message.text.clone()).unwrap_or_default()
        }
    };
    words::so_far(&text, &channels.0.tools)
}
