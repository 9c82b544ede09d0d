//! Push targets of runs: store, read and delete them, and follow runs for them.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use quell_kernel::visibility::Viewer;
use quell_protocol::api::RunView;
use quell_protocol::approval::ApprovalRow;
use quell_protocol::{EventKind, Principal, RunEvent, RunId, SessionKey};
use quell_scope::clock::Clock;
use quell_store::{PushTargetKey, PutPushTargetOutcome, StoreError, StoredPushTarget};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::runs::remaining_events;
use super::visibility::retain_visible_approvals;
use super::{Caller, Engine};
use crate::live_run::{LiveRun, RunProgress};
use crate::push::{
    MAX_PUSH_TARGETS, PushDelivery, PushError, PushNotice, PushOutcome, PushRegistration, PushTarget, PushTranslator,
};

/// Targets of other daemons that are taken over at once.
const TAKE_OVER_BATCH: usize = 256;
/// The pause after a batch, and after the database failed.
const TAKE_OVER_PAUSE: Duration = Duration::from_secs(10);
/// How often targets are looked for that nodes have left when they shut down.
const TAKE_OVER_INTERVAL: Duration = Duration::from_secs(300);

impl Engine {
    /// Accepts push targets from now on, and sends what an earlier daemon has left. Call it once, before clients are
    /// served, on a runtime.
    pub fn serve_push(&self, translator: Arc<dyn PushTranslator>) {
        let notifier = &self.inner().push;
        if notifier.set_translator(translator) {
            notifier.spawn(notify_left_targets(self.clone()));
        }
    }

    /// The Ed25519 key that receivers verify notifications with; `None` without a secret in `[hooks]` that is long enough.
    #[must_use]
    pub fn push_public_key(&self) -> Option<[u8; 32]> {
        self.inner().push.public_key()
    }

    /// Checks all that is known of a target before there is a run for it.
    ///
    /// # Errors
    /// [`PushError`], as [`Engine::put_push_target`] would return it.
    pub fn check_push_target(&self, caller: &Caller, target: &PushTarget) -> Result<(), PushError> {
        self.inner().push.check_target(&caller.principal, target)
    }

    /// Stores a target, in place of the caller's one with the same id. It hears first of the state that the run is in,
    /// then of each change, and of the end in any case.
    ///
    /// # Errors
    /// [`PushError`]; nothing was stored then.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn put_push_target(
        &self,
        caller: &Caller,
        run: &RunId,
        target: PushTarget,
    ) -> Result<PushTarget, PushError> {
        let notifier = self.inner().push.clone();
        let translator = notifier.translator().cloned().ok_or(PushError::NotAvailable)?;
        notifier.check_target(&caller.principal, &target)?;
        let place = notifier.take_place(&caller.principal)?;
        let source = self.find_push_source(caller, run).await?;
        let key = PushTargetKey { run: run.clone(), owner: caller.principal.clone(), id: target.id.clone() };
        let registration = PushRegistration { target, reads_all: caller.viewer().reads_all() };
        let sealed = notifier.seal_target(&key, &registration)?;
        let client = PushClient::new(self, translator, &key, &registration);
        let (engine, target) = (self.clone(), registration.target);
        let stored = self.run_detached(async move {
            let run = key.run.clone();
            match engine.inner().store.push_targets().put(key, sealed, MAX_PUSH_TARGETS).await? {
                PutPushTargetOutcome::NoSuchRun => Err(PushError::RunNotFound(run)),
                PutPushTargetOutcome::TooMany => Err(PushError::TooManyTargets),
                PutPushTargetOutcome::Stored(number) => {
                    let delivery = PushDelivery::new(notifier.clone(), number, run, target.clone(), place);
                    match source {
                        PushSource::Live(live_run, seq) => {
                            notifier.spawn(notify_of_live_run(delivery, client, live_run, seq));
                        }
                        PushSource::Ended(view) => notifier.spawn(notify_of_end(delivery, client, *view)),
                    }
                    Ok(target)
                }
            }
        });
        stored.await.ok_or(StoreError::Closed)?
    }

    /// A target that the caller has stored.
    ///
    /// # Errors
    /// [`PushError`].
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn push_target(&self, caller: &Caller, run: &RunId, id: &str) -> Result<PushTarget, PushError> {
        let targets = self.push_targets(caller, run).await?;
        let found = targets.into_iter().find(|target| target.id == id);
        found.ok_or_else(|| PushError::TargetNotFound(id.to_owned()))
    }

    /// The targets that the caller has stored, the oldest first. Those of others are not listed.
    ///
    /// # Errors
    /// [`PushError`].
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn push_targets(&self, caller: &Caller, run: &RunId) -> Result<Vec<PushTarget>, PushError> {
        let notifier = &self.inner().push;
        notifier.translator().ok_or(PushError::NotAvailable)?;
        self.check_push_run(caller, run).await?;
        let stored = self.inner().store.push_targets().list(run.clone(), caller.principal.clone()).await?;
        let opened = stored.iter().filter_map(|target| notifier.open_target(target));
        Ok(opened.map(|registration| registration.target).collect())
    }

    /// Deletes a target that the caller has stored. It gets nothing more, except what is being sent.
    ///
    /// # Errors
    /// [`PushError`].
    ///
    /// # Cancel safety
    /// Safe: it is deleted or not.
    pub async fn delete_push_target(&self, caller: &Caller, run: &RunId, id: &str) -> Result<(), PushError> {
        self.inner().push.translator().ok_or(PushError::NotAvailable)?;
        self.check_push_run(caller, run).await?;
        let key = PushTargetKey { run: run.clone(), owner: caller.principal.clone(), id: id.to_owned() };
        match self.inner().store.push_targets().delete(key).await? {
            true => Ok(()),
            false => Err(PushError::TargetNotFound(id.to_owned())),
        }
    }

    /// Deletes all targets of a principal whose token was revoked.
    pub(super) async fn delete_push_targets_of(&self, principal: Principal) {
        match self.inner().store.push_targets().delete_of_owner(principal.clone()).await {
            Ok(0) => {}
            Ok(targets) => tracing::info!(%principal, targets, "the push targets of a revoked token are deleted"),
            Err(error) => tracing::warn!(%principal, %error, "the push targets of a revoked token are still there"),
        }
    }

    /// A run of somebody else is not found.
    async fn check_push_run(&self, caller: &Caller, run: &RunId) -> Result<RunView, PushError> {
        let view = match self.live_run(run) {
            Some(live_run) => Some(live_run.view()),
            None => self.find_run(run).await?,
        };
        let readable = view.filter(|view| self.may_read_run_view(caller, view));
        readable.ok_or_else(|| PushError::RunNotFound(run.clone()))
    }

    async fn find_push_source(&self, caller: &Caller, run: &RunId) -> Result<PushSource, PushError> {
        // Before the view is read: a run that ends meanwhile is followed to its end all the same.
        let live_run = self.live_run(run);
        let view = self.check_push_run(caller, run).await?;
        match live_run.or_else(|| self.live_run(run)) {
            Some(live_run) => {
                let seq = live_run.last_seq();
                Ok(PushSource::Live(live_run, seq))
            }
            None if view.receipt.is_some() => Ok(PushSource::Ended(Box::new(view))),
            None => Err(PushError::OtherNode(run.clone())),
        }
    }

    /// Takes over targets that daemons have left. False if there may be more.
    async fn take_over_push_targets(&self) -> Result<bool, StoreError> {
        let notifier = &self.inner().push;
        let Some(translator) = notifier.translator() else { return Ok(true) };
        let limit = notifier.room().min(TAKE_OVER_BATCH);
        let left = self.inner().store.push_targets().take_over_ended(limit).await?;
        let is_all = left.len() < limit;
        for stored in left {
            match notifier.open_target(&stored) {
                Some(registration) => {
                    let client = PushClient::new(self, Arc::clone(translator), &stored.key, &registration);
                    let (run, target) = (stored.key.run.clone(), registration.target);
                    let place = notifier.take_place_of_left(&stored.key.owner);
                    let delivery = PushDelivery::new(notifier.clone(), stored.number, run, target, place);
                    notifier.spawn(notify_left_target(delivery, client, stored));
                }
                None => notifier.drop_target(&stored, "the secret in [hooks] is another one now").await,
            }
        }
        Ok(is_all)
    }
}

/// The client that has registered a target.
struct PushClient {
    engine: Engine,
    translator: Arc<dyn PushTranslator>,
    viewer: Viewer,
}

impl PushClient {
    fn new(
        engine: &Engine,
        translator: Arc<dyn PushTranslator>,
        key: &PushTargetKey,
        registration: &PushRegistration,
    ) -> Self {
        let (principal, read_all) = (key.owner.clone(), registration.reads_all);
        Self { engine: engine.clone(), translator, viewer: Viewer { principal, read_all, write_all: false } }
    }

    /// The body that tells of an event; `None` if the client need not know of it, or may read the run no more.
    fn notification(&self, run: &RunView, event: &RunEvent, mut waiting: Vec<ApprovalRow>) -> Option<Value> {
        if self.engine.access().has_token_ended(&self.viewer.principal)
            || !self.may_read(&run.principal, &run.session_key)
        {
            return None;
        }
        waiting.retain(|row| self.may_see_approval(row));
        self.translator.notification(run, event, &waiting)
    }

    /// The event as the client may see it, if the run may be in another state for it afterwards.
    fn state_change(&self, event: Arc<RunEvent>) -> Option<Arc<RunEvent>> {
        retain_visible_approvals(event, |row| self.may_see_approval(row)).filter(|event| changes_state(&event.kind))
    }

    /// The id of the first call that waits for a person and that the client may see.
    fn first_question(&self, waiting: Vec<ApprovalRow>) -> Option<String> {
        waiting.into_iter().find(|row| self.may_see_approval(row)).map(|row| row.id)
    }

    fn may_see_approval(&self, row: &ApprovalRow) -> bool {
        self.may_read(&row.principal, &row.session_key)
    }

    fn may_read(&self, principal: &Principal, session: &SessionKey) -> bool {
        self.viewer.may_read_run(principal, self.engine.session_ownership(session).as_ref())
    }
}

/// Where the events of a run come from.
enum PushSource {
    /// With the number of its last event.
    Live(Arc<LiveRun>, u64),
    Ended(Box<RunView>),
}

/// True for events after which a run may be in another state for its clients.
fn changes_state(kind: &EventKind) -> bool {
    matches!(
        kind,
        EventKind::Started { .. }
            | EventKind::ApprovalRequested { .. }
            | EventKind::ApprovalResolved { .. }
            | EventKind::SubRunApprovalRequested { .. }
            | EventKind::SubRunApprovalResolved { .. }
            // It stands for missed events.
            | EventKind::Snapshot { .. }
            | EventKind::Ended { .. }
    )
}

/// Sends the newest event up to `known_seq` that changed the state of the run, and each later one.
async fn notify_of_live_run(delivery: PushDelivery, client: PushClient, live_run: Arc<LiveRun>, known_seq: u64) {
    let mut follower = live_run.follow(0);
    // The first call that waits, as the client was told last.
    let mut told_question: Option<Option<String>> = None;
    let mut newest_known = None;
    while follower.last_seen_seq() < known_seq
        && let Some(event) = follower.try_next()
    {
        newest_known = client.state_change(event).or(newest_known);
    }
    loop {
        let event = match newest_known.take() {
            Some(event) => event,
            // It ends without an event if another run took its message.
            None => match follower.next().await {
                Some(event) => event,
                None => return,
            },
        };
        if let EventKind::Ended { .. } = event.kind {
            // The end may be sent for a long time, in which the run leaves the memory.
            let view = live_run.view();
            drop((follower, live_run));
            return notify_of_end(delivery, client, view).await;
        }
        if let Some(event) = client.state_change(event) {
            let question = client.first_question(live_run.pending_approvals());
            // A run that writes much outruns a slow receiver again and again.
            if matches!(event.kind, EventKind::Snapshot { .. }) && told_question.as_ref() == Some(&question) {
                continue;
            }
            told_question = Some(question);
            let body = || client.notification(&live_run.view(), &event, live_run.pending_approvals());
            let has_ended = live_run.wait_for_progress(RunProgress::Ended);
            let notice = PushNotice { seq: Some(event.seq), body: &body };
            if delivery.send_update(&notice, has_ended).await == PushOutcome::TargetGone {
                return;
            }
        }
    }
}

/// Sends the end of a run, until its receiver has it or is given up.
async fn notify_of_end(delivery: PushDelivery, client: PushClient, view: RunView) {
    let ended_at: Option<Timestamp> = view.ended_at.as_ref().and_then(|at| at.parse().ok());
    let ended_at_s = ended_at.map_or_else(Clock::wall_seconds, Timestamp::as_second);
    let seq = view.seq;
    let Some(event) = remaining_events(view.clone(), seq).and_then(|mut events| events.pop()) else { return };
    let body = || client.notification(&view, &event, Vec::new());
    delivery.send_end(&PushNotice { seq: None, body: &body }, ended_at_s).await;
}

/// Sends the end of a run that a daemon has left, which is in the database.
async fn notify_left_target(delivery: PushDelivery, client: PushClient, stored: StoredPushTarget) {
    let engine = client.engine.clone();
    loop {
        match engine.find_stored_run(&stored.key.run).await {
            Ok(Some(view)) => match engine.refresh_owner(&view.session_key).await {
                Ok(()) => return notify_of_end(delivery, client, view).await,
                Err(error) => log_unreadable(&stored, &error),
            },
            // Deleted meanwhile.
            Ok(None) => return,
            Err(StoreError::Corrupt(why)) => return engine.inner().push.drop_target(&stored, &why).await,
            Err(error) => log_unreadable(&stored, &error),
        }
        sleep(TAKE_OVER_PAUSE).await;
    }
}

fn log_unreadable(stored: &StoredPushTarget, error: &StoreError) {
    tracing::warn!(run = %stored.key.run, %error, "a run that ended cannot be read for its push target; it is tried again");
}

/// Sends what other daemons have left, until the daemon ends.
async fn notify_left_targets(engine: Engine) {
    let mut sealed_runs = engine.inner().push.subscribe_sealed_runs();
    loop {
        sealed_runs.borrow_and_update();
        match engine.take_over_push_targets().await {
            // The sender lives as long as the engine.
            Ok(true) => drop(timeout(TAKE_OVER_INTERVAL, sealed_runs.changed()).await),
            Ok(false) => sleep(TAKE_OVER_PAUSE).await,
            Err(error) => {
                tracing::debug!(%error, "push targets of earlier daemons cannot be read; it is tried again");
                sleep(TAKE_OVER_PAUSE).await;
            }
        }
    }
}
