//! Webhooks that nobody waits for: in the database before anything else, then delivered in order for each URL, at least once.
//!
//! One task for each URL sends what is there, waits longer after each failure, and goes on where it was after a restart. A
//! receiver that is away for days, or says that it is gone, loses what was meant for it, and the log says so.

use std::sync::Arc;
use std::time::Duration;

use quell_kernel::retry::RetryPolicy;
use reqwest::StatusCode;
use tokio::sync::watch;
use tokio::time::sleep;

use super::config::shown_url;
use super::webhook::{Answer, Letter, Receiver, post};
use super::{Errand, Hooks, Inner};
use crate::clock::Clock;
use crate::store::{Delivery, StoreError, StoredDelivery};

/// Webhooks that are kept, to all URLs together.
const MOST: u32 = 10_000;
/// After this many seconds a webhook is given up.
const KEPT_S: i64 = 3 * 24 * 3600;
/// Between two tries of one webhook.
const AGAIN: RetryPolicy =
    RetryPolicy { max_retries: u32::MAX, base: Duration::from_secs(1), cap: Duration::from_secs(600) };
/// Between two tries to read a database that refuses.
const DATABASE_AGAIN: Duration = Duration::from_secs(10);

/// The way to one receiver.
pub(super) struct Lane {
    pub(super) receiver: Receiver,
    state: watch::Sender<State>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    standing: Standing,
    /// How often something was put here.
    puts: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Its task has something to do, or looks whether it has.
    Working,
    /// Everything is delivered.
    Resting,
    /// The receiver did not take the first one, and gets time.
    Waiting,
}

/// What becomes of a webhook that was sent.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Delivered,
    GivenUp(String),
    Again(Duration, String),
}

impl Lane {
    pub(super) fn new(receiver: Receiver) -> Self {
        Self { receiver, state: watch::Sender::new(State { standing: Standing::Working, puts: 0 }) }
    }

    /// Waits until everything was delivered, or tried and not taken.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub(super) async fn tried(&self) {
        // waits: for the daemon at its end, until its deadline; the sender lives in self.
        let _ = self.state.subscribe().wait_for(|state| state.standing != Standing::Working).await;
    }

    /// Something was put into the database.
    fn wake(&self) {
        self.state.send_modify(|state| {
            state.puts += 1;
            if state.standing == Standing::Resting {
                state.standing = Standing::Working;
            }
        });
    }

    /// There was nothing to deliver when so much had been put here.
    fn rest(&self, puts: u64) {
        self.state.send_modify(|state| {
            if state.puts == puts {
                state.standing = Standing::Resting;
            }
        });
    }

    fn stand(&self, standing: Standing) {
        self.state.send_modify(|state| state.standing = standing);
    }

    fn puts(&self) -> u64 {
        self.state.borrow().puts
    }
}

/// Starts the task of each URL. What waits for URLs that are not configured any more goes.
pub(super) async fn start(hooks: &Hooks) {
    let lanes = &hooks.0.lanes;
    let urls = lanes.iter().map(|lane| lane.receiver.url.to_string()).collect();
    // waits: for the database, at the start of the daemon.
    match hooks.0.store.keep_deliveries_to(urls).await {
        Ok(0) => {}
        Ok(dropped) => tracing::warn!(dropped, "webhooks to URLs that are not configured any more are dropped"),
        Err(error) => tracing::warn!(%error, "the webhooks that wait could not be looked through"),
    }
    let _runtime = hooks.0.runtime.enter();
    for lane in lanes {
        hooks.0.tasks.spawn(deliver(hooks.clone(), Arc::clone(lane)));
    }
}

/// As [`try_put`]; that it failed is a line in the log.
///
/// # Cancel safety
/// As there.
pub(super) async fn put(hooks: &Inner, lanes: &[Arc<Lane>], errand: &Errand) {
    // waits: for the database; `Hooks::ask` races it against the scope of a run, all others are tasks of the hooks' own.
    if let Err(error) = try_put(hooks, lanes, errand).await {
        let (event, id) = (errand.body.event, &errand.body.id);
        tracing::warn!(%event, id, %error, "a webhook could not be stored and is not delivered");
    }
}

/// Puts an event into the database, for each of these URLs.
///
/// # Cancel safety
/// Dropped before it is handed to the database it is not put there.
pub(super) async fn try_put(hooks: &Inner, lanes: &[Arc<Lane>], errand: &Errand) -> Result<(), StoreError> {
    if lanes.is_empty() {
        return Ok(());
    }
    let queued_at = Clock::wall_seconds();
    let delivery = |lane: &Arc<Lane>| Delivery {
        url: lane.receiver.url.to_string(),
        id: errand.body.id.clone(),
        event: errand.body.event.word().to_owned(),
        body: errand.json.clone(),
        queued_at,
    };
    // waits: for the database, as `put` says.
    let dropped = hooks.store.keep_deliveries(lanes.iter().map(delivery).collect(), MOST).await?;
    if dropped > 0 {
        tracing::warn!(dropped, most = MOST, "too many webhooks wait; the oldest are dropped");
    }
    for lane in lanes {
        lane.wake();
    }
    Ok(())
}

/// The task of one URL. It ends with the scope of the hooks.
async fn deliver(hooks: Hooks, lane: Arc<Lane>) {
    let ended = hooks.0.tasks.clone();
    let all = async {
        loop {
            // waits: in a task of the hooks' own, raced below.
            deliver_next(&hooks.0, &lane).await;
        }
    };
    // waits: in the hooks' own task. A webhook that is dropped on its way stays in the database.
    tokio::select! {
        () = ended.cancelled() => lane.stand(Standing::Resting),
        () = all => {}
    }
}

async fn deliver_next(hooks: &Inner, lane: &Lane) {
    let (puts, url) = (lane.puts(), &lane.receiver.url);
    let shown = shown_url(url);
    // waits: in a task of the hooks' own, raced in `deliver`, like all below.
    let stored = match hooks.store.next_delivery(url.to_string()).await {
        Ok(Some(stored)) => stored,
        Ok(None) => {
            lane.rest(puts);
            // waits: in the hooks' own task; the sender lives in the lane.
            let _ = lane.state.subscribe().wait_for(|state| state.standing == Standing::Working).await;
            return;
        }
        Err(error) => {
            tracing::warn!(to = shown, %error, "the webhooks that wait cannot be read");
            lane.stand(Standing::Waiting);
            // waits: in the hooks' own task.
            sleep(DATABASE_AGAIN).await;
            return lane.stand(Standing::Working);
        }
    };
    let StoredDelivery { number, attempts, delivery } = stored;
    let letter = Letter { event: &delivery.event, id: &delivery.id, body: &delivery.body, wanted: 0 };
    // waits: in the hooks' own task.
    let answer = post(hooks, &lane.receiver, letter, hooks.limit).await;
    let age_s = Clock::wall_seconds().saturating_sub(delivery.queued_at);
    let (event, id) = (&delivery.event, &delivery.id);
    match fate(answer, attempts, age_s) {
        Fate::Delivered => {}
        Fate::GivenUp(why) => {
            tracing::warn!(event, id, to = shown, attempts = attempts + 1, why, "a webhook is given up");
        }
        Fate::Again(wait, why) => {
            if attempts == 0 {
                tracing::warn!(event, id, to = shown, why, "a webhook was not taken; it is tried again");
            } else {
                tracing::debug!(event, id, to = shown, attempts, why, "a webhook was not taken again");
            }
            // waits: in the hooks' own task. Not written, it is tried a little longer than it would be.
            let _ = hooks.store.note_failed_delivery(number).await;
            lane.stand(Standing::Waiting);
            // waits: in the hooks' own task.
            sleep(wait).await;
            return lane.stand(Standing::Working);
        }
    }
    // waits: in the hooks' own task.
    if let Err(error) = hooks.store.forget_delivery(number).await {
        tracing::warn!(event, id, to = shown, %error, "a webhook that is done with could not be forgotten; it is sent again");
        lane.stand(Standing::Waiting);
        // waits: in the hooks' own task.
        sleep(DATABASE_AGAIN).await;
        lane.stand(Standing::Working);
    }
}

/// What becomes of a webhook that was not taken `attempts` times before, and is `age_s` seconds old.
fn fate(answer: Answer, attempts: u32, age_s: i64) -> Fate {
    let (why, retry_after) = match answer {
        Answer::Taken(_) => return Fate::Delivered,
        Answer::Refused { status: StatusCode::GONE, .. } => return Fate::GivenUp("its receiver is gone".to_owned()),
        Answer::Refused { status, retry_after, .. } => (format!("its receiver answered {status}"), retry_after),
        Answer::None(why) => (why, None),
    };
    if age_s >= KEPT_S {
        return Fate::GivenUp(format!("{why}, for {} days", KEPT_S / (24 * 3600)));
    }
    match AGAIN.delay(attempts.saturating_add(1), retry_after) {
        Some(wait) => Fate::Again(wait, why),
        None => Fate::GivenUp(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: StatusCode) -> Answer {
        Answer::Refused { status, reason: None, retry_after: None }
    }

    fn wait(fate: Fate) -> Duration {
        match fate {
            Fate::Again(wait, _) => wait,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_webhook_is_tried_after_longer_and_longer_waits_until_it_is_too_old() {
        assert_eq!(fate(Answer::Taken(Vec::new()), 3, KEPT_S + 1), Fate::Delivered);
        let waits = [0, 1, 5, 30].map(|attempts| wait(fate(refused(StatusCode::NOT_FOUND), attempts, 10)).as_secs());
        assert_eq!(waits, [1, 2, 32, 600]);
        assert_eq!(wait(fate(Answer::None("dead".to_owned()), 0, KEPT_S - 1)).as_secs(), 1);
        assert!(matches!(fate(refused(StatusCode::BAD_GATEWAY), 400, KEPT_S), Fate::GivenUp(_)));
        let asked = Answer::Refused {
            status: StatusCode::TOO_MANY_REQUESTS,
            reason: None,
            retry_after: Some(Duration::from_secs(7)),
        };
        assert_eq!(wait(fate(asked, 0, 0)).as_secs(), 7);
    }

    #[test]
    fn a_receiver_that_says_that_it_is_gone_gets_nothing_again() {
        assert_eq!(fate(refused(StatusCode::GONE), 0, 0), Fate::GivenUp("its receiver is gone".to_owned()));
    }
}
