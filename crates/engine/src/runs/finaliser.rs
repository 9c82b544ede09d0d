//! Drive a started run to its end, outside the run's scope: work, release, record, and store the receipt with retries.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use quell_kernel::run::WorkOutcome;
use quell_kernel::turn::Turn;
use quell_kernel::{Moment, RunStateInput, StopLevel};
use quell_mcp::SessionEndpoint;
use quell_protocol::StopReason;
use quell_scope::{Cancelled, Held, Interrupted, Release};
use quell_store::StoreError;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::channel_delivery::AnswerDelivery;
use super::{RunTable, channel_delivery};
use crate::agent::{Agent, AgentLoop, ImageCache, RunControl};
use crate::live_run::{Acceptance, LiveRun, RunProgress};

/// The permit of a run to be in flight.
#[derive(Debug)]
pub struct RunPermit {
    /// Its row in the ledger.
    pub held: Held,
    pub permit: OwnedSemaphorePermit,
}

/// What a run works with.
#[derive(Debug)]
pub struct RunInputs {
    /// The agent, as configured for its session.
    pub agent: Arc<Agent>,
    /// The session's own MCP endpoint.
    pub endpoint: Option<SessionEndpoint>,
    /// The sealed turns that the run continues on.
    pub history: Vec<Arc<Turn>>,
}

/// Why a run could not be set up: it fails.
#[derive(Debug)]
pub struct RunSetupError {
    /// A stable error code.
    pub code: &'static str,
    /// What happened, for people.
    pub message: String,
}

impl RunPermit {
    fn release(self) {
        drop(self.permit);
        self.held.release(Release::Finished);
    }
}

impl RunTable {
    /// Drives one started run to its end: work, release, record. Returns when all three are done, however long that
    /// takes. The run itself ends at its hard limit at the latest.
    ///
    /// # Cancel safety
    /// Must not be dropped: it is the finaliser, spawned on the engine's task tracker.
    pub async fn run_to_completion<O>(
        &self,
        live_run: &Arc<LiveRun>,
        control: &dyn RunControl,
        permit: Option<RunPermit>,
        inputs: O,
    ) where
        O: Future<Output = Result<RunInputs, Interrupted<RunSetupError>>>,
    {
        let release = async {
            let mut permit = permit;
            let outcome = self.run_guarded(live_run, control, inputs, &mut permit).await;
            if let Some(run_permit) = permit {
                run_permit.release();
            }
            // Tasks of their own close the resources that the cancel dropped. They go before the book-keeping: when a
            // thousand runs are stopped at once, the last socket does not wait for 999 receipts.
            tokio::task::yield_now().await;
            self.apply_input(live_run.id(), RunStateInput::WorkReturned(outcome));
            let _released = live_run.scope.close().await;
            self.apply_input(live_run.id(), RunStateInput::Released);
        };
        let record = async {
            live_run.wait_for_sealed_turn().await;
            if let Err(error) = self.record_turn(live_run).await {
                tracing::error!(run = %live_run.id(), %error, "turn could not be recorded; it is tried again");
                self.apply_input(live_run.id(), RunStateInput::RecordFailed);
            }
        };
        // Requested first: the database writer keeps the order of requests.
        let start = self.store_run_start(live_run);
        // Started before anything that could end this run, so that a reset of its session deletes this note, too. A
        // chat message is saved later, after its hooks have changed it.
        let save = async {
            if live_run.channel_origin.is_none() {
                self.save_message_note(live_run).await;
            }
        };
        futures_util::join!(start, save, release, record);
    }

    /// Stores the end of a run that is over, with its turn if the database refused that before. A repeat changes only
    /// the view.
    pub(crate) async fn store_run_end(&self, live_run: &Arc<LiveRun>) -> Result<(), StoreError> {
        if live_run.is_unrecorded() {
            self.record_turn(live_run).await?;
        }
        let run_spend = self.spending().spend_of_run(live_run);
        let stored =
            self.store().runs().record_end(live_run.run.id.clone(), serialize_view(live_run), run_spend.clone()).await;
        // The usage of a deleted run is counted all the same.
        if matches!(stored, Ok(()) | Err(StoreError::NoSuchRun(_))) {
            self.spending().count_stored(live_run.id(), &run_spend);
        }
        stored
    }

    async fn store_run_start(&self, live_run: &LiveRun) {
        if let Err(error) = self.store().runs().record_start(live_run.run.id.clone(), serialize_view(live_run)).await {
            tracing::error!(run = %live_run.id(), %error, "the start of a run could not be stored");
        }
    }

    async fn save_message_note(&self, live_run: &LiveRun) {
        let channel_message = live_run.channel_origin.as_ref().map(|origin| (origin, live_run.run.text.as_str()));
        self.services()
            .memory
            .save_message(&live_run.run, channel_message, live_run.accepted_at(), || live_run.view().accepted_at)
            .await;
    }

    async fn run_guarded<O>(
        &self,
        live_run: &Arc<LiveRun>,
        control: &dyn RunControl,
        inputs: O,
        permit: &mut Option<RunPermit>,
    ) -> WorkOutcome
    where
        O: Future<Output = Result<RunInputs, Interrupted<RunSetupError>>>,
    {
        let work = self.execute(live_run, control, inputs, permit);
        // Force drops the work at any point: the resources that it holds end by themselves, and the scope waits for
        // them.
        let outcome = tokio::select! {
            biased;
            () = live_run.scope.forced() => Ok(Err(Cancelled)),
            worked = AssertUnwindSafe(work).catch_unwind() => worked,
        };
        match outcome {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(Cancelled)) => WorkOutcome::Failed {
                code: "bug".to_owned(),
                message: "the work was cancelled without an abort; please report this".to_owned(),
            },
            Err(_panic) => {
                tracing::error!(run = %live_run.id(), "the work of a run panicked");
                let message = "Quell has a bug: the work of this run panicked; the daemon goes on".to_owned();
                WorkOutcome::Failed { code: "bug".to_owned(), message }
            }
        }
    }

    /// The work of a run, from its session to the delivered answer and the start of its consolidation.
    async fn execute<O>(
        &self,
        live_run: &Arc<LiveRun>,
        control: &dyn RunControl,
        inputs: O,
        permit: &mut Option<RunPermit>,
    ) -> Result<WorkOutcome, Cancelled>
    where
        O: Future<Output = Result<RunInputs, Interrupted<RunSetupError>>>,
    {
        // waits: the session races each of its waits.
        let RunInputs { agent, endpoint, history } = match inputs.await {
            Ok(inputs) => inputs,
            Err(interrupted) => {
                let RunSetupError { code, message } = interrupted.into_failure()?;
                return Ok(WorkOutcome::Failed { code: code.to_owned(), message });
            }
        };
        // waits: raced in the hooks.
        self.run_start_hooks(live_run).await?;
        let shared_agent = agent;
        let agent = &*shared_agent;
        let _ = live_run.billing_info.set(agent.billing_info());
        let (run_id, services, scope, writer) = (live_run.id(), &**self.services(), &live_run.scope, live_run.writer());
        let channel_origin = live_run.channel_origin.as_ref();
        let channel_message = match channel_origin {
            // waits: raced in `prepare_channel_message`.
            Some(channel_origin) => match self.prepare_channel_message(live_run, channel_origin, &agent.workdir).await?
            {
                Ok(words) => Some((channel_origin, words)),
                Err(outcome) => return Ok(outcome),
            },
            None => None,
        };
        let history = channel_delivery::trim_history(history, channel_origin);
        let message_words = channel_message.as_ref().map(|(channel_origin, words)| (*channel_origin, words.as_str()));
        let channel_context = channel_origin.map(|origin| self.channel_context(origin, agent, &history));
        let recalled_notes = services.memory.recall_for_run(scope, &live_run.run, message_words).await?;
        let run_context = [channel_context, recalled_notes]
            .into_iter()
            .flatten()
            .reduce(|context, notes| format!("{context}\n\n{notes}"));
        let mcp_client = services.mcp.client_for_run(agent.mcp_client_options(run_id, &live_run.run.session, endpoint));
        let delegation_tools = services.agents.delegation_tools(agent);
        let history = &history;
        let image_cache = ImageCache::default();
        let agent_loop = AgentLoop {
            run_id,
            agent,
            services,
            history,
            delegation_tools,
            run_context,
            image_cache,
            mcp_client,
            scope,
            writer,
            control,
        };
        let outcome = agent_loop.run().await?;
        if outcome != WorkOutcome::Completed {
            return Ok(outcome);
        }
        if let Some(channel_origin) = channel_origin {
            // The delivery may take long, and needs no permit because it uses no model and no tool.
            if let Some(run_permit) = permit.take() {
                run_permit.release();
            }
            // waits: raced in `deliver_answer`.
            match self.deliver_answer(live_run, channel_origin, agent).await? {
                AnswerDelivery::Sent => {}
                AnswerDelivery::Withheld => return Ok(WorkOutcome::Completed),
                AnswerDelivery::Failed(outcome) => return Ok(outcome),
            }
        }
        self.start_consolidation(live_run, &shared_agent, message_words);
        Ok(WorkOutcome::Completed)
    }
}

/// Sends an input to a run at a given time, unless the run is over before.
pub(super) async fn send_input_at(runs: RunTable, live_run: Arc<LiveRun>, at: Moment, input: RunStateInput) {
    let at = runs.clock().instant(at);
    tokio::select! {
        () = live_run.wait_for_progress(RunProgress::Ended) => {}
        () = tokio::time::sleep_until(at) => runs.apply_input(live_run.id(), input),
    }
}

/// Aborts a run at its deadline, unless it is ending before.
///
/// # Cancel safety
/// Must not be dropped: it is a timer of the engine.
pub async fn abort_at_deadline(runs: RunTable, live_run: Arc<LiveRun>, at: Moment) {
    let instant = runs.clock().instant(at);
    tokio::select! {
        () = live_run.wait_for_progress(RunProgress::Ending) => {}
        () = tokio::time::sleep_until(instant) => {
            runs.abort_runs(vec![live_run.run.id.clone()], StopLevel::Gentle, &StopReason::Timeout);
        }
    }
}

/// How long an end that cannot be stored is kept in memory and retried (row A6 in `docs/design/requirements.md`).
pub(super) const MAX_RETRY_TIME: Duration = Duration::from_secs(3600);
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(10);

/// Stores the end of a run, or its amended receipt, with its turn if the database refused that, and then forgets the
/// run. While the database refuses, the run stays in memory, so that its receipt can be read. Its journal stays in the
/// database, so that a later daemon can recover it.
pub(super) async fn store_end_and_forget(runs: RunTable, live_run: Arc<LiveRun>) {
    let started_at = Instant::now();
    if live_run.wait_for_acceptance().await == Acceptance::Durable {
        while let Err(error) = runs.store_run_end(&live_run).await {
            // Its session was deleted with all its runs: a retry cannot succeed.
            if matches!(error, StoreError::NoSuchRun(_)) {
                break;
            }
            tracing::error!(run = %live_run.id(), %error, "the end of a run could not be stored");
            if started_at.elapsed() > MAX_RETRY_TIME {
                break;
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }
    runs.give_up_recording(&live_run);
    runs.forget_run(live_run.id());
}

/// Stores that another run took a message, after that run's journal has it: a crash cannot lose the message between the
/// two.
pub(super) async fn store_steered_message(runs: RunTable, live_run: Arc<LiveRun>, into: Arc<LiveRun>) {
    runs.save_message_note(&live_run).await;
    while into.wait_for_journal().await.is_err() {
        tokio::time::sleep(RETRY_DELAY).await;
    }
    if let Err(error) = runs.store().runs().record_steered(live_run.run.id.clone(), into.run.id.clone()).await {
        tracing::error!(run = %live_run.id(), %error, "a steered message could not be stored");
    }
    runs.forget_steered_message(live_run.id());
}

/// A run's view as the database stores it.
#[must_use]
pub fn serialize_view(live_run: &LiveRun) -> String {
    serde_json::to_string(&live_run.view()).unwrap_or_default()
}
