//! State of one run: draft, events, timestamps, receipt; behind one lock, without awaits inside.
//!
//! The agent loop writes through a [`RunWriter`]. Sealing removes the draft; later writes are refused, so late results
//! cannot change a sealed turn. Readers follow the events by cursor. This module knows no registry and no database.

mod events;
mod hub;
mod kept_files;
mod receipt;
mod request;
#[cfg(test)]
pub(crate) mod tests;
mod usage;
mod view;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use quell_kernel::api_key::ApiKey;
use quell_kernel::attachment::MessageFile;
use quell_kernel::client_request::AnswerEnd;
use quell_kernel::daily_spend::PricedUsage;
use quell_kernel::journal::{JournalLine, SeqReservation};
use quell_kernel::permissions::RunPermissions;
use quell_kernel::registry::{NewRun, RunPhase};
use quell_kernel::turn::{PartialPolicy, SealOptions, ToolCall, Turn, TurnDraft};
use quell_kernel::{Debts, Moment, expiry};
use quell_protocol::approval::ApprovalRow;
use quell_protocol::hook::SessionFacts;
use quell_protocol::{Amendment, CallId, EventKind, Receipt, RunEvent, RunId, Usage, Verdict};
use quell_scope::Scope;
use quell_scope::clock::Clock;
use tokio::sync::watch;
use uuid::Uuid;

use crate::channel_origin::ChannelOrigin;
use crate::journal::{JournalWriteError, RunJournal};
pub use events::Follower;
use events::RunEventRing;
pub use hub::{EngineNotice, Hub, SubscriberOverrun, Subscription};
pub use kept_files::ChangeOrigin;
use kept_files::KeptFiles;
pub use request::{ClientHistory, ClientWork, RunDefaults, RunRequest, RunWork, draft_with};
use usage::price_usage;
pub use usage::{BillingInfo, ProviderChange, usage_by_provider};
pub use writer::{RunWriter, TurnSealed};

/// How far a run has come, as a value to wait for. Only rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunProgress {
    /// In the registry, not yet in the database.
    Accepted,
    Durable,
    Started,
    /// It has a verdict.
    Ending,
    Ended,
}

/// How the answer to a client of a model API ended.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientAnswer {
    pub end: AnswerEnd,
    /// The calls that the client is to carry out.
    pub calls: Vec<ToolCall>,
    /// Full name of the model that answered last.
    pub model: String,
}

/// Whether the acceptance of a run reached the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acceptance {
    Pending,
    Durable,
    /// The run was not accepted after all: it leaves no trace.
    Refused,
}

pub struct LiveRun {
    pub run: NewRun,
    /// Without the files of its message, which are taken once: [`LiveRun::take_message_files`].
    pub work: RunWork,
    /// Hash of the request, compared for idempotency.
    pub fingerprint: String,
    pub deadline: Moment,
    pub scope: Scope,
    clock: Clock,
    hub: Hub,
    /// What happens to text that a stop cuts off.
    pub partial_policy: PartialPolicy,
    /// Set once the run has entered its session.
    pub session: OnceLock<SessionFacts>,
    /// Set once the run has a model.
    pub billing_info: OnceLock<BillingInfo>,
    /// The chat message that the run answers.
    pub channel_origin: Option<ChannelOrigin>,
    /// Upper bound of its permissions, if another run started it.
    pub max_permissions: Option<RunPermissions>,
    /// What the token may use whose holder started it.
    pub key: ApiKey,
    /// What its file tools keep for an undo.
    pub kept_files: KeptFiles,
    /// The runs above a sub-run, the root first.
    ancestors: OnceLock<Vec<AncestorRun>>,
    journal: RunJournal,
    state: Mutex<LiveRunState>,
    progress: watch::Sender<RunProgress>,
    acceptance: watch::Sender<Acceptance>,
    seq: watch::Sender<u64>,
    /// `seq` of its newest `approval.requested`.
    approval_seq: watch::Sender<u64>,
}

/// A run above a sub-run. It may end, and leave the memory, before a sub-run in the background does.
#[derive(Debug, Clone)]
struct AncestorRun {
    id: RunId,
    live_run: Weak<LiveRun>,
}

/// An approval that waits for a person, with the number of the event that announced it in this run.
struct AnnouncedApproval {
    seq: u64,
    row: ApprovalRow,
}

struct LiveRunState {
    events: RunEventRing,
    seq_reservation: SeqReservation,
    draft: Option<TurnDraft>,
    /// The files that came with its message, until they are saved or the run ends.
    message_files: Arc<[MessageFile]>,
    sealed_turn: Option<Arc<Turn>>,
    timestamps: RunTimestamps,
    verdict: Option<Verdict>,
    receipt: Option<Receipt>,
    status: RunStatus,
    phase: RunPhase,
    steps: u32,
    /// The number of messages in the draft when the newest step began.
    step_start: usize,
    running_calls: BTreeMap<CallId, Moment>,
    /// Announced calls that have not started.
    waiting_calls: BTreeSet<CallId>,
    /// The announced approvals of this run and of the runs below it, by their ids, which are ordered by time.
    pending_approvals: BTreeMap<String, AnnouncedApproval>,
    usage: Usage,
    /// Estimate for the current model call, until its usage is counted.
    step_usage: Usage,
    provider_changes: Vec<ProviderChange>,
    is_recorded: bool,
    /// How the answer to a client ended; for runs that a client of a model API started.
    client_answer: Option<ClientAnswer>,
    /// Late facts about its calls, from after their release.
    amendments: Vec<Amendment>,
}

/// The state of a run as its view shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunStatus {
    Queued,
    Running,
    Ending,
    Ended,
    /// Another run took its message over.
    Steered,
}

impl RunStatus {
    fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Ending => "ending",
            Self::Ended => "ended",
            Self::Steered => "steered",
        }
    }
}

#[derive(Clone, Copy)]
struct RunTimestamps {
    accepted: Moment,
    started: Option<Moment>,
    stop_requested: Option<Moment>,
    stop_delivered: Option<Moment>,
    settled: Option<Moment>,
}

impl LiveRun {
    /// Creates the live state of a requested run. `partial_policy` is its agent's.
    pub fn new(
        request: RunRequest,
        partial_policy: PartialPolicy,
        defaults: &RunDefaults,
        clock: Clock,
        hub: Hub,
    ) -> Self {
        let now = clock.now();
        let timeout = request.timeout.unwrap_or(defaults.run_timeout);
        let run = NewRun {
            id: request.id.unwrap_or_else(|| RunId::from_number(Uuid::now_v7().as_u128())),
            session: request.session,
            agent: request.agent,
            principal: request.principal,
            admin: request.admin,
            surface: request.surface,
            parent: request.parent,
            text: request.text,
            on_busy: request.on_busy,
            bypasses_queue: request.work.is_model_call(),
            interruption_scope: request
                .channel_origin
                .as_ref()
                .map(|origin| Arc::new(origin.message().interruption_scope())),
            expires_at: expiry::expires_at(now, timeout, &defaults.expiry),
        };
        let times =
            RunTimestamps { accepted: now, started: None, stop_requested: None, stop_delivered: None, settled: None };
        let mut work = request.work;
        let message_files = match &mut work {
            RunWork::Answer { files } => std::mem::take(files),
            _ => Arc::default(),
        };
        // The text of the run is for people. What the model reads may hold pictures.
        let asked = match &work {
            RunWork::AnswerClient(client) => client.text.clone(),
            _ => run.text.clone(),
        };
        let journal = defaults.journal.run_journal(run.id.clone());
        if work.is_model_call() {
            journal.close();
        }
        let state = LiveRunState {
            events: RunEventRing::default(),
            seq_reservation: SeqReservation::default(),
            draft: Some(TurnDraft::new(run.id.clone(), asked).with_asked_at(clock.rfc3339(times.accepted))),
            message_files,
            sealed_turn: None,
            timestamps: times,
            verdict: None,
            receipt: None,
            status: RunStatus::Queued,
            phase: RunPhase::Processing,
            steps: 0,
            step_start: 0,
            running_calls: BTreeMap::new(),
            waiting_calls: BTreeSet::new(),
            pending_approvals: BTreeMap::new(),
            usage: Usage::default(),
            step_usage: Usage::default(),
            provider_changes: Vec::new(),
            is_recorded: false,
            client_answer: None,
            amendments: Vec::new(),
        };
        Self {
            journal,
            run,
            work,
            fingerprint: request.fingerprint,
            deadline: now.plus(timeout),
            scope: Scope::new(clock, defaults.probe.clone()),
            clock,
            hub,
            partial_policy,
            session: OnceLock::new(),
            billing_info: OnceLock::new(),
            channel_origin: request.channel_origin,
            max_permissions: request.max_permissions,
            key: request.key,
            kept_files: KeptFiles::default(),
            ancestors: OnceLock::new(),
            state: Mutex::new(state),
            progress: watch::Sender::new(RunProgress::Accepted),
            acceptance: watch::Sender::new(Acceptance::Pending),
            seq: watch::Sender::new(0),
            approval_seq: watch::Sender::new(0),
        }
    }

    /// Takes the files that came with its message. They are in memory only until then.
    pub fn take_message_files(&self) -> Arc<[MessageFile]> {
        std::mem::take(&mut self.lock_state().message_files)
    }

    /// Sets the run that started this one. Only the first call counts.
    pub fn set_parent(&self, parent: &Arc<Self>) {
        let mut ancestors = parent.ancestors.get().cloned().unwrap_or_default();
        ancestors.push(AncestorRun { id: parent.run.id.clone(), live_run: Arc::downgrade(parent) });
        let _ = self.ancestors.set(ancestors);
    }

    /// The runs from the root of its tree to this one.
    pub fn lineage(&self) -> Vec<RunId> {
        let above = self.ancestors.get().into_iter().flatten().map(|ancestor| ancestor.id.clone());
        above.chain([self.run.id.clone()]).collect()
    }

    /// The runs above this one that are in memory, the nearest first.
    fn live_ancestors(&self) -> impl Iterator<Item = Arc<Self>> {
        self.ancestors.get().into_iter().flatten().rev().filter_map(|ancestor| ancestor.live_run.upgrade())
    }

    /// The calls of this run and of the runs below it that wait for a person, oldest first.
    pub fn pending_approvals(&self) -> Vec<ApprovalRow> {
        self.lock_state().pending_approvals.values().map(|pending| pending.row.clone()).collect()
    }

    /// Waits until the run has reached `goal`.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn wait_for_progress(&self, goal: RunProgress) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.progress.subscribe().wait_for(|now| *now >= goal).await;
    }

    /// Waits until the run has asked for an approval in an event after `seq`.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn wait_for_approval_after(&self, seq: u64) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.approval_seq.subscribe().wait_for(|newest| *newest > seq).await;
    }

    pub fn progress(&self) -> RunProgress {
        *self.progress.borrow()
    }

    /// Waits until it is known whether the acceptance reached the database.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn wait_for_acceptance(&self) -> Acceptance {
        let mut acceptance = self.acceptance.subscribe();
        acceptance.wait_for(|now| *now != Acceptance::Pending).await.map_or(Acceptance::Refused, |now| *now)
    }

    /// Waits for the sealed turn.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn wait_for_sealed_turn(&self) -> Arc<Turn> {
        let mut seq = self.seq.subscribe();
        loop {
            if let Some(turn) = self.sealed_turn() {
                return turn;
            }
            // Sealing touches the counter; the sender lives in `self`.
            let _ = seq.changed().await;
        }
    }

    /// The sealed turn, if the draft is closed.
    pub fn sealed_turn(&self) -> Option<Arc<Turn>> {
        self.lock_state().sealed_turn.clone()
    }

    /// The messages at the beginning of its draft that a client brought along.
    fn known_messages(&self) -> usize {
        match &self.work {
            RunWork::AnswerClient(client) => client.continuation.len(),
            // The draft of a model call has only the answer.
            _ => 0,
        }
    }

    /// How the answer to a client ended; `None` before that, and if no answer came about.
    pub fn client_answer(&self) -> Option<ClientAnswer> {
        self.lock_state().client_answer.clone()
    }

    pub fn verdict(&self) -> Option<Verdict> {
        self.lock_state().verdict.clone()
    }

    pub fn steps(&self) -> u32 {
        self.lock_state().steps
    }

    pub fn last_seq(&self) -> u64 {
        self.lock_state().events.last_seq()
    }

    /// Text of the current step so far, for a transport that shows it whole.
    pub fn streaming_text(&self) -> String {
        self.lock_state().draft.as_ref().map(|draft| draft.partial_text().to_owned()).unwrap_or_default()
    }

    /// The text of the current step, or what the sealed turn shows, and the sequence number of the last event that it
    /// contains.
    pub fn streaming_snapshot(&self) -> (u64, String) {
        let state = self.lock_state();
        let text = match &state.draft {
            Some(draft) => draft.partial_text().to_owned(),
            None => state.shown_output().unwrap_or_default(),
        };
        (state.events.last_seq(), text)
    }

    /// Sets the outcome of the acceptance: durable or refused.
    pub fn set_acceptance(&self, acceptance: Acceptance) {
        self.acceptance.send_replace(acceptance);
        if acceptance == Acceptance::Refused {
            // The run emits no events; end all waits for it.
            self.advance_progress(RunProgress::Ended);
        }
        if acceptance == Acceptance::Durable {
            self.advance_progress(RunProgress::Durable);
            let mut state = self.lock_state();
            if state.events.last_seq() == 0 {
                self.emit_event(&mut state, EventKind::Queued { agent: self.run.agent.clone() });
            }
        }
    }

    pub fn mark_started(&self) {
        let mut state = self.lock_state();
        state.timestamps.started = Some(self.clock.now());
        state.status = RunStatus::Running;
        self.emit_event(&mut state, EventKind::Started { agent: self.run.agent.clone() });
        drop(state);
        self.advance_progress(RunProgress::Started);
    }

    /// Marks that another run took this message over: this run emits no further events, and all waits for it end.
    pub fn mark_steered(&self) {
        self.lock_state().status = RunStatus::Steered;
        self.advance_progress(RunProgress::Ended);
    }

    /// True if another run took this message over.
    pub fn is_steered(&self) -> bool {
        self.lock_state().status == RunStatus::Steered
    }

    /// Records that a stop was requested. Only the first one counts; `requested` is the time at which it arrived.
    pub fn mark_stop_requested(&self, requested: Moment) {
        let mut state = self.lock_state();
        if state.timestamps.stop_requested.is_none() && state.timestamps.settled.is_none() {
            state.timestamps.stop_requested = Some(requested);
        }
    }

    /// Records that the scope is cancelled and the wardens have the stop.
    pub fn mark_stop_delivered(&self) {
        let mut state = self.lock_state();
        if state.timestamps.stop_requested.is_some()
            && state.timestamps.stop_delivered.is_none()
            && state.timestamps.settled.is_none()
        {
            state.timestamps.stop_delivered = Some(self.clock.now());
        }
    }

    pub fn set_phase(&self, phase: RunPhase) {
        self.lock_state().phase = phase;
    }

    /// Announces the verdict: no delta and no tool start follows. The verdict is queued for the journal when this
    /// returns.
    pub fn announce_ending(&self, verdict: &Verdict) {
        let mut state = self.lock_state();
        if state.events.last_seq() == 0 {
            self.emit_event(&mut state, EventKind::Queued { agent: self.run.agent.clone() });
        }
        let requested_at = state.timestamps.stop_requested.map(|requested| self.clock.rfc3339(requested));
        self.journal.write_line(JournalLine::Ending { verdict: verdict.clone(), requested_at });
        state.verdict = Some(verdict.clone());
        state.status = RunStatus::Ending;
        state.message_files = Arc::default();
        self.emit_event(&mut state, EventKind::Ending { verdict: verdict.clone() });
        state.events.close_stream();
        drop(state);
        self.advance_progress(RunProgress::Ending);
    }

    /// Seals the draft. A second call changes nothing.
    pub fn seal(&self) {
        let mut state = self.lock_state();
        let (Some(mut draft), Some(verdict)) = (state.draft.take(), state.verdict.clone()) else { return };
        state.settle_step_usage();
        for (call, since) in &state.running_calls {
            draft.record_cut_off(call, events::whole_micros(self.clock.now().since(*since)));
        }
        let usage = state.usage;
        let sealed_at = self.clock.rfc3339(self.clock.now());
        let turn =
            Arc::new(draft.seal(SealOptions { verdict: &verdict, policy: self.partial_policy, sealed_at, usage }));
        state.sealed_turn = Some(Arc::clone(&turn));
        self.end_cut_off_calls(&mut state, &turn);
        drop(state);
        self.seq.send_modify(|_| {});
    }

    /// Marks that the turn is in the database. Until then the journal is kept up to date: it can rebuild the turn.
    pub fn mark_recorded(&self) {
        self.lock_state().is_recorded = true;
        self.close_journal();
    }

    /// True while a sealed turn is not in the database.
    pub fn is_unrecorded(&self) -> bool {
        let state = self.lock_state();
        state.sealed_turn.is_some() && !state.is_recorded
    }

    /// Waits until the journal is stored up to this moment, or is no longer needed.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn wait_for_journal(&self) -> Result<(), JournalWriteError> {
        self.journal.wait_written().await
    }

    /// Ends the journal: later lines are dropped.
    pub fn close_journal(&self) {
        self.journal.close();
    }

    pub fn announce_ended(&self, debts: Debts, record_metrics: impl FnOnce(&Receipt, &[ProviderChange])) {
        let mut state = self.lock_state();
        let now = self.clock.now();
        state.timestamps.settled = Some(now);
        state.settle_step_usage();
        state.status = RunStatus::Ended;
        let Some(verdict) = state.verdict.clone() else { return };
        let receipt = self.build_receipt(&state, &verdict, debts);
        state.receipt = Some(receipt.clone());
        // Count before the event is published: a client that knows of the end finds it in the metrics.
        record_metrics(&receipt, &state.provider_changes);
        let text = match verdict {
            Verdict::Completed => state.sealed_turn.as_ref().and_then(|turn| turn.final_text()),
            Verdict::Failed { .. } | Verdict::Aborted { .. } => None,
        };
        let steps = state.steps;
        self.emit_event(&mut state, EventKind::Ended { verdict, receipt: Box::new(receipt), steps, text });
        drop(state);
        self.advance_progress(RunProgress::Ended);
    }

    /// Builds the receipt again after a debt was paid late.
    pub fn rebuild_receipt(&self, debts: Debts) {
        let mut state = self.lock_state();
        if let Some(verdict) = state.verdict.clone() {
            state.receipt = Some(self.build_receipt(&state, &verdict, debts));
        }
    }

    /// Follows the events after number `after`; 0 means from the beginning.
    #[must_use]
    pub fn follow(self: &Arc<Self>, after: u64) -> Follower {
        Follower::new(Arc::clone(self), after)
    }

    pub fn writer(self: &Arc<Self>) -> RunWriter {
        RunWriter::new(Arc::clone(self))
    }

    /// Tokens so far, including the estimate for what is not counted yet.
    pub fn usage(&self) -> Usage {
        self.lock_state().current_usage()
    }

    /// Tokens so far with their cost, as far as their models have a price.
    pub fn priced_usage(&self) -> PricedUsage {
        let state = self.lock_state();
        let usage = state.current_usage();
        let Some(billing) = self.billing_info.get() else { return PricedUsage { usage, cost_nanos: 0 } };
        price_usage(billing.price, &state.provider_changes, usage)
    }

    pub fn id(&self) -> &RunId {
        &self.run.id
    }

    /// Emits the end of calls that were cut off or never started, with their results from the sealed turn.
    fn end_cut_off_calls(&self, state: &mut LiveRunState, turn: &Turn) {
        let (running, waiting) = (std::mem::take(&mut state.running_calls), std::mem::take(&mut state.waiting_calls));
        for call in running.into_keys().chain(waiting) {
            if let Some(result) = turn.result_of(&call) {
                self.emit_event(state, events::tool_ended_event(call, result));
            }
        }
    }

    fn build_receipt(&self, state: &LiveRunState, verdict: &Verdict, debts: Debts) -> Receipt {
        let times = &state.timestamps;
        receipt::build_receipt(receipt::ReceiptSource {
            run_id: &self.run.id,
            verdict,
            clock: self.clock,
            stop_requested: times.stop_requested,
            stop_delivered: times.stop_delivered,
            settled: times.settled.unwrap_or_else(|| self.clock.now()),
            ledger_rows: self.scope.ledger().rows(),
            usage: state.usage,
            is_recorded: state.is_recorded,
            amendments: state.amendments.clone(),
            debts,
        })
    }

    fn emit_event(&self, state: &mut LiveRunState, kind: EventKind) {
        let event = RunEvent {
            run_id: self.run.id.clone(),
            session_key: self.run.session.clone(),
            seq: state.events.last_seq() + 1,
            at: self.clock.rfc3339(self.clock.now()),
            kind,
        };
        if let Some(line) = state.seq_reservation.reserve_through(event.seq) {
            self.journal.write_line(line);
        }
        let event = Arc::new(event);
        state.events.push(Arc::clone(&event));
        self.seq.send_replace(event.seq);
        if let EventKind::ApprovalRequested { .. } = event.kind {
            self.approval_seq.send_replace(event.seq);
        }
        self.hub.publish(&EngineNotice::Run(event));
    }

    fn advance_progress(&self, to: RunProgress) {
        self.progress.send_if_modified(|now| {
            let is_later = *now < to;
            *now = to.max(*now);
            is_later
        });
    }

    fn lock_state(&self) -> MutexGuard<'_, LiveRunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for LiveRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LiveRun({:?})", self.run.id)
    }
}
