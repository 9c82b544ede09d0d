//! Store webhooks in the database and deliver them in order per URL, at least once, with back-off.
//!
//! One task per URL sends the stored webhooks, waits longer after each failure, and continues after a restart. A
//! webhook is dropped, with a line in the log, when its receiver is unreachable for days or answers 410 Gone.

use std::sync::Arc;
use std::time::Duration;

use quell_kernel::retry::RetryPolicy;
use quell_scope::clock::Clock;
use quell_store::{QueuedWebhook, StoreError, StoredWebhook};
use tokio::sync::watch;
use tokio::time::sleep;

use super::config::redacted_url;
use super::webhook::{WebhookReceiver, WebhookRequest, send_webhook};
use super::{HookJob, Hooks, HooksInner};
use crate::webhook_delivery::{WebhookOutcome, WebhookPatience, decide_outcome};

/// The maximum number of stored webhooks, for all URLs together.
const MAX_STORED_WEBHOOKS: u32 = 10_000;
/// A webhook is given up after three days.
const PATIENCE: WebhookPatience = WebhookPatience {
    retry_policy: RetryPolicy { max_retries: u32::MAX, base: Duration::from_secs(1), cap: Duration::from_secs(600) },
    max_age_s: 3 * 24 * 3600,
};
/// The delay before the next attempt to read a failing database.
const DATABASE_RETRY_DELAY: Duration = Duration::from_secs(10);

pub(super) struct WebhookQueue {
    pub(super) receiver: WebhookReceiver,
    state: watch::Sender<WebhookQueueState>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WebhookQueueState {
    phase: WebhookQueuePhase,
    /// How often a webhook was stored for this queue.
    put_count: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WebhookQueuePhase {
    /// The task is delivering, or checks for more.
    Delivering,
    Idle,
    /// The receiver did not accept the first webhook; the task waits before the next attempt.
    BackingOff,
}

impl WebhookQueue {
    pub(super) fn new(receiver: WebhookReceiver) -> Self {
        Self {
            receiver,
            state: watch::Sender::new(WebhookQueueState { phase: WebhookQueuePhase::Delivering, put_count: 0 }),
        }
    }

    /// Waits until each webhook was delivered, or tried without success.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub(super) async fn wait_tried(&self) {
        // waits: at the end of the daemon, until its deadline; the sender lives in `self`.
        let _ = self.state.subscribe().wait_for(|state| state.phase != WebhookQueuePhase::Delivering).await;
    }

    /// Wakes the task, because a webhook was stored.
    fn note_put(&self) {
        self.state.send_modify(|state| {
            state.put_count += 1;
            if state.phase == WebhookQueuePhase::Idle {
                state.phase = WebhookQueuePhase::Delivering;
            }
        });
    }

    /// Marks the queue as idle, unless a webhook was stored since `seen_put_count` was read.
    fn set_idle_unless_new(&self, seen_put_count: u64) {
        self.state.send_modify(|state| {
            if state.put_count == seen_put_count {
                state.phase = WebhookQueuePhase::Idle;
            }
        });
    }

    fn set_phase(&self, phase: WebhookQueuePhase) {
        self.state.send_modify(|state| state.phase = phase);
    }

    fn put_count(&self) -> u64 {
        self.state.borrow().put_count
    }
}

impl Hooks {
    /// Starts to deliver webhooks, first those that an earlier daemon could not deliver. Webhooks to URLs that are no
    /// longer configured are deleted. Call it once.
    ///
    /// # Cancel safety
    /// Not to be dropped: the URLs whose task has not started get no webhooks.
    pub async fn start(&self) {
        let webhook_queues = &self.0.webhook_queues;
        let urls = webhook_queues.iter().map(|webhook_queue| webhook_queue.receiver.url.to_string()).collect();
        // waits: for the database, at the start of the daemon.
        match self.0.store.webhooks().delete_except(urls).await {
            Ok(0) => {}
            Ok(dropped) => tracing::warn!(dropped, "webhooks to URLs that are not configured any more are dropped"),
            Err(error) => tracing::warn!(%error, "the stored webhooks could not be checked"),
        }
        let _runtime = self.0.runtime.enter();
        for webhook_queue in webhook_queues {
            self.0.tasks.spawn(run_delivery(self.clone(), Arc::clone(webhook_queue)));
        }
    }
}

/// As [`try_store_webhooks`]; a failure is logged.
///
/// # Cancel safety
/// As [`try_store_webhooks`].
pub(super) async fn store_webhooks(hooks: &HooksInner, webhook_queues: &[Arc<WebhookQueue>], job: &HookJob) {
    // waits: for the database; `Hooks::call_hooks` races it against the scope of the caller, all other callers are tasks of
    // the hooks.
    if let Err(error) = try_store_webhooks(hooks, webhook_queues, job).await {
        let (event, id) = (job.body.event, &job.body.id);
        tracing::warn!(%event, id, %error, "a webhook could not be stored and is not delivered");
    }
}

/// Stores an event in the database, for each of these URLs.
///
/// # Cancel safety
/// If it is dropped before the write is queued, nothing is stored.
pub(super) async fn try_store_webhooks(
    hooks: &HooksInner,
    webhook_queues: &[Arc<WebhookQueue>],
    job: &HookJob,
) -> Result<(), StoreError> {
    if webhook_queues.is_empty() {
        return Ok(());
    }
    let queued_at = Clock::wall_seconds();
    let queued_webhook = |webhook_queue: &Arc<WebhookQueue>| QueuedWebhook {
        url: webhook_queue.receiver.url.to_string(),
        id: job.body.id.clone(),
        event: job.body.event.as_str().to_owned(),
        body: job.json.clone(),
        queued_at,
    };
    // waits: for the database, as described for `store_webhooks`.
    let dropped =
        hooks.store.webhooks().save(webhook_queues.iter().map(queued_webhook).collect(), MAX_STORED_WEBHOOKS).await?;
    if dropped > 0 {
        tracing::warn!(dropped, most = MAX_STORED_WEBHOOKS, "too many webhooks are waiting; the oldest were dropped");
    }
    for webhook_queue in webhook_queues {
        webhook_queue.note_put();
    }
    Ok(())
}

/// The task of one URL. It ends with the scope of the hooks.
async fn run_delivery(hooks: Hooks, webhook_queue: Arc<WebhookQueue>) {
    let hooks_scope = hooks.0.tasks.clone();
    let delivery_loop = async {
        loop {
            // waits: in a task of the hooks, raced below.
            deliver_next_webhook(&hooks.0, &webhook_queue).await;
        }
    };
    // waits: in a task of the hooks. A webhook that is dropped half-way stays in the database.
    tokio::select! {
        () = hooks_scope.cancelled() => webhook_queue.set_phase(WebhookQueuePhase::Idle),
        () = delivery_loop => {}
    }
}

async fn deliver_next_webhook(hooks: &HooksInner, webhook_queue: &WebhookQueue) {
    let (seen_put_count, url) = (webhook_queue.put_count(), &webhook_queue.receiver.url);
    let shown = redacted_url(url);
    // waits: in a task of the hooks, raced in `run_delivery`, like all below.
    let stored = match hooks.store.webhooks().next(url.to_string()).await {
        Ok(Some(stored)) => stored,
        Ok(None) => {
            webhook_queue.set_idle_unless_new(seen_put_count);
            // waits: in a task of the hooks; the sender lives in the queue.
            let _ =
                webhook_queue.state.subscribe().wait_for(|state| state.phase == WebhookQueuePhase::Delivering).await;
            return;
        }
        Err(error) => {
            tracing::warn!(to = shown, %error, "the stored webhooks cannot be read");
            webhook_queue.set_phase(WebhookQueuePhase::BackingOff);
            // waits: in a task of the hooks.
            sleep(DATABASE_RETRY_DELAY).await;
            return webhook_queue.set_phase(WebhookQueuePhase::Delivering);
        }
    };
    let StoredWebhook { number, attempts, webhook: delivery } = stored;
    let request =
        WebhookRequest { event: &delivery.event, id: &delivery.id, body: &delivery.body, max_answer_bytes: 0 };
    // waits: in a task of the hooks.
    let answer = send_webhook(hooks, &webhook_queue.receiver, request, hooks.timeout).await;
    let age_s = Clock::wall_seconds().saturating_sub(delivery.queued_at);
    let (event, id) = (&delivery.event, &delivery.id);
    match decide_outcome(answer, attempts, age_s, &PATIENCE) {
        WebhookOutcome::Delivered => {}
        WebhookOutcome::GivenUp(why) => {
            tracing::warn!(event, id, to = shown, attempts = attempts + 1, why, "a webhook is given up");
        }
        WebhookOutcome::RetryAfter(wait, why) => {
            if attempts == 0 {
                tracing::warn!(event, id, to = shown, why, "a webhook was not accepted; it will be retried");
            } else {
                tracing::debug!(event, id, to = shown, attempts, why, "a webhook was not accepted again");
            }
            // waits: in a task of the hooks. If the count is not written, the delays grow a little later.
            let _ = hooks.store.webhooks().count_failed_attempt(number).await;
            webhook_queue.set_phase(WebhookQueuePhase::BackingOff);
            // waits: in a task of the hooks.
            sleep(wait).await;
            return webhook_queue.set_phase(WebhookQueuePhase::Delivering);
        }
    }
    // waits: in a task of the hooks.
    if let Err(error) = hooks.store.webhooks().delete(number).await {
        tracing::warn!(event, id, to = shown, %error, "a finished webhook could not be deleted; it will be sent again");
        webhook_queue.set_phase(WebhookQueuePhase::BackingOff);
        // waits: in a task of the hooks.
        sleep(DATABASE_RETRY_DELAY).await;
        webhook_queue.set_phase(WebhookQueuePhase::Delivering);
    }
}
