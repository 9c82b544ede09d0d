//! What one run shows and leaves: its draft, its events, its times, its receipt. A fact behind one lock, no await inside.
//!
//! The agent loop writes through a [`Pen`]; sealing takes the draft away, and whatever the pen writes later is refused: the
//! fence for late results. Readers follow the events by cursor. The cell knows no registry and no database.

mod feed;
mod hub;
mod pen;
mod receipt;
#[cfg(test)]
mod tests;
mod usage;
mod view;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use quell_kernel::journal::{Line, Numbers};
use quell_kernel::registry::{NewRun, Phase};
use quell_kernel::rights::Rights;
use quell_kernel::turn::{PartialPolicy, Sealing, Turn, TurnDraft};
use quell_kernel::{Debts, Moment};
use quell_protocol::hook::SessionFacts;
use quell_protocol::{Amendment, CallId, EventKind, Receipt, RunEvent, RunId, Usage, Verdict};
use tokio::sync::watch;

use crate::channel::Errand;
use crate::clock::Clock;
use crate::journal::{Page, Unwritten};
use crate::scope::Scope;
use feed::Feed;
pub use feed::Follower;
pub use hub::{Hub, Notice, Overrun, Subscription};
pub use pen::{Pen, Sealed};
pub use usage::Bill;

/// How far a run has come, as a value to wait for. Only rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// In the registry, not yet in the database.
    Accepted,
    /// Its acceptance is durable.
    Durable,
    /// It works.
    Started,
    /// Its verdict stands.
    Ending,
    /// It is over.
    Ended,
}

/// Whether the acceptance of a run reached the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acceptance {
    /// Not known yet.
    Pending,
    /// Yes.
    Durable,
    /// It was not let in after all: it leaves no trace.
    Refused,
}

/// What a run is born with.
#[derive(Debug, Clone)]
pub struct Birth {
    /// As it was asked for.
    pub run: NewRun,
    /// What idempotency compares, hashed.
    pub fingerprint: String,
    /// What becomes of text that a stop cuts off.
    pub policy: PartialPolicy,
    /// When its time is used up.
    pub deadline: Moment,
    /// Its page of the journal.
    pub page: Page,
    /// What it has to do with the chat network that its message came from.
    pub errand: Option<Errand>,
    /// What it may do at the most, when another run started it.
    pub ceiling: Option<Rights>,
}

/// One run's cell.
pub struct Cell {
    /// The run as it was asked for.
    pub run: NewRun,
    /// What idempotency compares, hashed.
    pub fingerprint: String,
    /// When its time is used up.
    pub deadline: Moment,
    /// Its scope.
    pub scope: Scope,
    clock: Clock,
    hub: Hub,
    /// What the model sees of a text that was cut.
    pub policy: PartialPolicy,
    /// Its session, once it has entered it.
    pub session: OnceLock<SessionFacts>,
    /// Who provides its model, once it has one.
    pub bill: OnceLock<Bill>,
    /// What it has to do with the chat network that its message came from.
    pub errand: Option<Errand>,
    /// What it may do at the most, when another run started it.
    pub ceiling: Option<Rights>,
    page: Page,
    facts: Mutex<Facts>,
    progress: watch::Sender<Progress>,
    acceptance: watch::Sender<Acceptance>,
    seq: watch::Sender<u64>,
}

struct Facts {
    feed: Feed,
    numbers: Numbers,
    draft: Option<TurnDraft>,
    sealed: Option<Arc<Turn>>,
    times: Times,
    verdict: Option<Verdict>,
    receipt: Option<Receipt>,
    state: &'static str,
    phase: Phase,
    steps: u32,
    /// Calls at work, and since when.
    calls: BTreeMap<CallId, Moment>,
    usage: Usage,
    /// Estimate of the model call that is under way, until it is counted.
    step_usage: Usage,
    recorded: bool,
    /// What became known of its calls after they had been given back.
    amendments: Vec<Amendment>,
}

#[derive(Clone, Copy)]
struct Times {
    accepted: Moment,
    started: Option<Moment>,
    requested: Option<Moment>,
    delivered: Option<Moment>,
    settled: Option<Moment>,
}

impl Cell {
    /// A cell for a run that was just let in.
    #[must_use]
    pub fn new(birth: Birth, scope: Scope, clock: Clock, hub: Hub) -> Self {
        let Birth { run, fingerprint, policy, deadline, page, errand, ceiling } = birth;
        let times = Times { accepted: clock.now(), started: None, requested: None, delivered: None, settled: None };
        let facts = Facts {
            feed: Feed::default(),
            numbers: Numbers::default(),
            draft: Some(TurnDraft::new(run.id.clone(), run.text.clone()).asked_at(clock.rfc3339(times.accepted))),
            sealed: None,
            times,
            verdict: None,
            receipt: None,
            state: "queued",
            phase: Phase::Processing,
            steps: 0,
            calls: BTreeMap::new(),
            usage: Usage::default(),
            step_usage: Usage::default(),
            recorded: false,
            amendments: Vec::new(),
        };
        Self {
            run,
            fingerprint,
            deadline,
            scope,
            clock,
            hub,
            policy,
            session: OnceLock::new(),
            bill: OnceLock::new(),
            errand,
            ceiling,
            page,
            facts: Mutex::new(facts),
            progress: watch::Sender::new(Progress::Accepted),
            acceptance: watch::Sender::new(Acceptance::Pending),
            seq: watch::Sender::new(0),
        }
    }

    /// Waits until the run has come as far as `goal`.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn reached(&self, goal: Progress) {
        // The sender lives in self, so waiting cannot fail.
        let _ = self.progress.subscribe().wait_for(|now| *now >= goal).await;
    }

    /// How far the run has come.
    #[must_use]
    pub fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    /// Waits until it is known whether the acceptance reached the database.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn acceptance(&self) -> Acceptance {
        let mut acceptance = self.acceptance.subscribe();
        acceptance.wait_for(|now| *now != Acceptance::Pending).await.map_or(Acceptance::Refused, |now| *now)
    }

    /// Waits for the sealed turn.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn sealed(&self) -> Arc<Turn> {
        let mut seq = self.seq.subscribe();
        loop {
            if let Some(turn) = self.sealed_now() {
                return turn;
            }
            // Sealing touches the counter; the sender lives in self.
            let _ = seq.changed().await;
        }
    }

    /// The sealed turn, if the draft is closed.
    #[must_use]
    pub fn sealed_now(&self) -> Option<Arc<Turn>> {
        self.facts().sealed.clone()
    }

    /// The verdict, once there is one.
    #[must_use]
    pub fn verdict(&self) -> Option<Verdict> {
        self.facts().verdict.clone()
    }

    /// Model steps so far.
    #[must_use]
    pub fn steps(&self) -> u32 {
        self.facts().steps
    }

    /// The number of the last event.
    #[must_use]
    pub fn last_seq(&self) -> u64 {
        self.facts().feed.last_seq()
    }

    /// Text and reasoning of the step that streams, for a door that shows them whole.
    #[must_use]
    pub fn streaming_text(&self) -> String {
        self.facts().draft.as_ref().map(|draft| draft.partial_text().to_owned()).unwrap_or_default()
    }

    /// The text of the step that streams, or what the sealed turn shows, and the number of the last event that it contains.
    #[must_use]
    pub fn streaming(&self) -> (u64, String) {
        let facts = self.facts();
        let text = match &facts.draft {
            Some(draft) => draft.partial_text().to_owned(),
            None => facts.output().unwrap_or_default(),
        };
        (facts.feed.last_seq(), text)
    }

    /// The acceptance is durable, or the run is refused after all.
    pub fn set_acceptance(&self, acceptance: Acceptance) {
        self.acceptance.send_replace(acceptance);
        if acceptance == Acceptance::Refused {
            // Nothing will be said under its id; whoever waits for its end waits no longer.
            self.advance(Progress::Ended);
        }
        if acceptance == Acceptance::Durable {
            self.advance(Progress::Durable);
            let mut facts = self.facts();
            if facts.feed.last_seq() == 0 {
                self.emit(&mut facts, EventKind::Queued { agent: self.run.agent.clone() });
            }
        }
    }

    /// The run starts.
    pub fn started(&self) {
        let mut facts = self.facts();
        facts.times.started = Some(self.clock.now());
        facts.state = "running";
        self.emit(&mut facts, EventKind::Started { agent: self.run.agent.clone() });
        drop(facts);
        self.advance(Progress::Started);
    }

    /// Another run took this message over: nothing will be said under its own id.
    pub fn handed_over(&self) {
        self.facts().state = "steered";
        self.advance(Progress::Ended);
    }

    /// True when another run has this message.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.facts().state == "steered"
    }

    /// A stop was asked for now. The first one counts; `requested` is the moment at which the door had it.
    pub fn stop_requested(&self, requested: Moment) {
        let mut facts = self.facts();
        if facts.times.requested.is_none() && facts.times.settled.is_none() {
            facts.times.requested = Some(requested);
        }
    }

    /// The token has fired and the wardens are told.
    pub fn stop_delivered(&self) {
        let mut facts = self.facts();
        if facts.times.requested.is_some() && facts.times.delivered.is_none() && facts.times.settled.is_none() {
            facts.times.delivered = Some(self.clock.now());
        }
    }

    /// Notes what the run is doing.
    pub fn set_phase(&self, phase: Phase) {
        self.facts().phase = phase;
    }

    /// Announces the verdict: no delta and no tool start follows. It is on its way into the journal when this returns.
    pub fn announce_ending(&self, verdict: &Verdict) {
        let mut facts = self.facts();
        if facts.feed.last_seq() == 0 {
            self.emit(&mut facts, EventKind::Queued { agent: self.run.agent.clone() });
        }
        let requested_at = facts.times.requested.map(|requested| self.clock.rfc3339(requested));
        self.page.write(Line::Ending { verdict: verdict.clone(), requested_at });
        facts.verdict = Some(verdict.clone());
        facts.state = "ending";
        self.emit(&mut facts, EventKind::Ending { verdict: verdict.clone() });
        facts.feed.close_stream();
        drop(facts);
        self.advance(Progress::Ending);
    }

    /// Closes the draft. A second call changes nothing.
    pub fn seal(&self) {
        let mut facts = self.facts();
        let (Some(mut draft), Some(verdict)) = (facts.draft.take(), facts.verdict.clone()) else { return };
        facts.settle_step_usage();
        for (call, since) in &facts.calls {
            draft.cut_off(call, feed::microseconds(self.clock.now().since(*since)));
        }
        let usage = facts.usage;
        let sealed_at = self.clock.rfc3339(self.clock.now());
        let turn = Arc::new(draft.seal(Sealing { verdict: &verdict, policy: self.policy, sealed_at, usage }));
        facts.sealed = Some(Arc::clone(&turn));
        self.end_calls(&mut facts, &turn);
        drop(facts);
        self.seq.send_modify(|_| {});
    }

    /// The turn is in the database. Until then the journal goes on to be written: it can rebuild the turn.
    pub fn recorded(&self) {
        self.facts().recorded = true;
        self.close_page();
    }

    /// True while a sealed turn is not in the database.
    #[must_use]
    pub fn is_unrecorded(&self) -> bool {
        let facts = self.facts();
        facts.sealed.is_some() && !facts.recorded
    }

    /// Waits until the journal holds what this run has gone through so far, or is not needed any more.
    ///
    /// # Errors
    /// [`Unwritten`] when the database refused.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn written(&self) -> Result<(), Unwritten> {
        self.page.written().await
    }

    /// Nothing more of this run is to be in the journal.
    pub fn close_page(&self) {
        self.page.close();
    }

    /// Announces the end with the receipt.
    pub fn announce_ended(&self, debts: Debts, count: impl FnOnce(&Receipt)) {
        let mut facts = self.facts();
        let now = self.clock.now();
        facts.times.settled = Some(now);
        facts.settle_step_usage();
        facts.state = "ended";
        let Some(verdict) = facts.verdict.clone() else { return };
        let receipt = self.make_receipt(&facts, &verdict, debts);
        facts.receipt = Some(receipt.clone());
        // Before anybody hears of the end: who has heard of it finds it counted.
        count(&receipt);
        let text = match verdict {
            Verdict::Completed => facts.sealed.as_ref().and_then(|turn| turn.final_text()),
            Verdict::Failed { .. } | Verdict::Aborted { .. } => None,
        };
        let steps = facts.steps;
        self.emit(&mut facts, EventKind::Ended { verdict, receipt: Box::new(receipt), steps, text });
        drop(facts);
        self.advance(Progress::Ended);
    }

    /// A debt was paid after the end: the receipt is made anew.
    pub fn amend_receipt(&self, debts: Debts) {
        let mut facts = self.facts();
        if let Some(verdict) = facts.verdict.clone() {
            facts.receipt = Some(self.make_receipt(&facts, &verdict, debts));
        }
    }

    /// Follows the events after number `after`; 0 is from the beginning.
    #[must_use]
    pub fn follow(self: &Arc<Self>, after: u64) -> Follower {
        Follower::new(Arc::clone(self), after)
    }

    /// The pen for the agent loop.
    #[must_use]
    pub fn pen(self: &Arc<Self>) -> Pen {
        Pen::new(Arc::clone(self))
    }

    /// Tokens so far, what is not counted yet as an estimate.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.facts().usage_so_far()
    }

    /// The id, for logs.
    #[must_use]
    pub fn id(&self) -> &RunId {
        &self.run.id
    }

    /// Calls that were cut off have an end as well: the one that the turn says.
    fn end_calls(&self, facts: &mut Facts, turn: &Turn) {
        for call in std::mem::take(&mut facts.calls).into_keys() {
            if let Some(result) = turn.result_of(&call) {
                self.emit(facts, feed::ended(call, result));
            }
        }
    }

    fn make_receipt(&self, facts: &Facts, verdict: &Verdict, debts: Debts) -> Receipt {
        let times = &facts.times;
        receipt::write(receipt::Source {
            run: &self.run.id,
            verdict,
            clock: self.clock,
            requested: times.requested,
            delivered: times.delivered,
            settled: times.settled.unwrap_or_else(|| self.clock.now()),
            rows: self.scope.ledger().rows(),
            usage: facts.usage,
            recorded: facts.recorded,
            amendments: facts.amendments.clone(),
            debts,
        })
    }

    fn emit(&self, facts: &mut Facts, kind: EventKind) {
        let event = RunEvent {
            run_id: self.run.id.clone(),
            session_key: self.run.session.clone(),
            seq: facts.feed.last_seq() + 1,
            at: self.clock.rfc3339(self.clock.now()),
            kind,
        };
        if let Some(line) = facts.numbers.used(event.seq) {
            self.page.write(line);
        }
        let event = Arc::new(event);
        facts.feed.push(Arc::clone(&event));
        self.seq.send_replace(event.seq);
        self.hub.publish(&Notice::Run(event));
    }

    fn advance(&self, to: Progress) {
        self.progress.send_if_modified(|now| {
            let rises = *now < to;
            *now = to.max(*now);
            rises
        });
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cell({:?})", self.run.id)
    }
}
