//! The task of one run: from its start through its work to the release of everything that it held. Outside the run's
//! scope, so that a stop cannot interrupt its end.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::thread;

use futures_util::FutureExt;
use quell_kernel::api_key::KeyRefusal;
use quell_kernel::run::WorkOutcome;
use quell_kernel::turn::{ModelMessage, Turn};
use quell_kernel::{Moment, RunStateInput, StopLevel};
use quell_llm::ModelHandle;
use quell_mcp::SessionEndpoint;
use quell_process::CommandNetwork;
use quell_protocol::{ErrorCode, StopReason};
use quell_scope::{Cancelled, Held, Interrupted, Point, Release};
use tokio::sync::OwnedSemaphorePermit;

use super::channel_delivery::AnswerDelivery;
use super::{RunTable, channel_delivery};
use crate::agent::{Agent, AgentLoop, ImageCache, RunControl, call_model_for_client};
use crate::channel_origin::ChannelOrigin;
use crate::live_run::{BillingInfo, ClientHistory, ClientWork, LiveRun, RunProgress, RunWork};

/// The permit of a run to be in flight.
#[derive(Debug)]
pub struct RunPermit {
    pub held: Held,
    pub permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
pub struct RunInputs {
    /// The agent, as configured for its session.
    pub agent: Arc<Agent>,
    pub endpoint: Option<SessionEndpoint>,
    /// The sealed turns that the run continues on.
    pub history: Vec<Arc<Turn>>,
}

/// Why a run could not be set up: it fails.
#[derive(Debug)]
pub struct RunSetupError {
    pub code: &'static str,
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
    /// Must not be dropped: it is spawned on the engine's task tracker.
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
            let outcome = work_until_forced(live_run, self.work(live_run, control, inputs, &mut permit)).await;
            if let Some(run_permit) = permit {
                run_permit.release();
            }
            self.release_run(live_run, outcome).await;
        };
        let record = self.record_when_sealed(live_run);
        // Requested first: the database writer keeps the order of requests.
        let start = self.store_run_start(live_run);
        // Started before anything that could end this run, so that a reset of its session deletes this note, too. A
        // chat message is saved later, after its hooks have changed it.
        let save = async {
            let is_message = matches!(live_run.work, RunWork::Answer { .. } | RunWork::AnswerClient(_));
            if live_run.channel_origin.is_none() && is_message {
                self.save_message_note(live_run).await;
            }
        };
        futures_util::join!(start, save, release, record);
    }

    /// Drives a started plain model call to its end, as [`RunTable::run_to_completion`] does. It needs no permit and no
    /// session.
    ///
    /// # Cancel safety
    /// Must not be dropped: it is spawned on the engine's task tracker.
    pub async fn call_to_completion(&self, live_run: &Arc<LiveRun>, model: &ModelHandle, client: ClientWork) {
        let release = async {
            let billing = BillingInfo { provider: model.provider_name().to_owned(), price: model.price() };
            let _ = live_run.billing_info.set(billing);
            let set_phase = |phase| self.set_phase(live_run, phase);
            let work = call_model_for_client(live_run, model, client, &set_phase);
            let outcome = work_until_forced(live_run, work).await;
            self.release_run(live_run, outcome).await;
        };
        futures_util::join!(release, self.record_when_sealed(live_run));
    }

    /// Reports the outcome of the work and closes the scope.
    async fn release_run(&self, live_run: &LiveRun, outcome: thread::Result<Result<WorkOutcome, Cancelled>>) {
        // Tasks of their own close the resources that the cancel dropped. They go before the book-keeping: when a
        // thousand runs are stopped at once, the last socket does not wait for 999 receipts.
        tokio::task::yield_now().await;
        self.apply_input(live_run.id(), RunStateInput::WorkReturned(outcome_of_work(live_run, outcome)));
        let _released = live_run.scope.close().await;
        self.apply_input(live_run.id(), RunStateInput::Released);
    }

    async fn record_when_sealed(&self, live_run: &Arc<LiveRun>) {
        live_run.wait_for_sealed_turn().await;
        if let Err(error) = self.record_turn(live_run).await {
            tracing::error!(run = %live_run.id(), %error, "turn could not be recorded; it is tried again");
            self.apply_input(live_run.id(), RunStateInput::RecordFailed);
        }
    }

    /// The work of a run, from its session to the delivered answer and the start of its consolidation.
    async fn work<O>(
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
        if let RunWork::AddMessage(text) = &live_run.work {
            live_run.scope.check(Point::BeforeStep)?;
            live_run.writer().finish_message(ModelMessage::new(Vec::new(), text.clone(), Vec::new()))?;
            return Ok(WorkOutcome::Completed);
        }
        if let RunWork::AnswerClient(client) = &live_run.work {
            live_run.writer().add_continuation(&client.continuation)?;
        }
        // Before anything that may take long: a stop there leaves the files with their message.
        // waits: raced in `save_message_files`.
        self.save_message_files(live_run, &live_run.writer(), &agent.workdir).await?;
        // waits: raced in the hooks.
        self.run_start_hooks(live_run).await?;
        if let Err(refusal) = agent.check_prices(&live_run.key) {
            return Ok(key_refusal(&refusal));
        }
        let _ = live_run.billing_info.set(agent.billing_info());
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
        let channel_message = channel_message.as_ref().map(|(origin, words)| (*origin, words.as_str()));
        let client = live_run.work.client();
        let history = match client.map(|client| &client.history) {
            Some(ClientHistory::OfRequest(turns)) => turns.clone(),
            Some(ClientHistory::OfSession) | None => history,
        };
        let history = channel_delivery::trim_history(history, channel_origin);
        let (services, session) = (self.services(), &live_run.run.session);
        let server_sandbox = services.mcp.starts_programs().then(|| services.sandbox(&agent, session));
        let server_network = services.toolbox.command_network(&agent.sandbox.network);
        let server_network = server_network.map(|network| network as Arc<dyn CommandNetwork>);
        let client_options = agent.mcp_client_options(
            live_run.id(),
            session,
            &live_run.run.principal,
            endpoint,
            server_sandbox,
            server_network,
        );
        // waits: raced in `recall_for_run`.
        let run_context = self.run_context(live_run, &agent, &history, channel_message).await?;
        let agent_loop = AgentLoop {
            run_id: live_run.id(),
            agent: &agent,
            chain_position: AtomicUsize::new(0),
            sandbox: OnceLock::new(),
            services,
            history: &history,
            delegation_tools: services.agents.delegation_tools(&agent),
            run_context,
            max_steps: channel_origin
                .and_then(|origin| origin.options().max_steps)
                .map_or(services.limits.max_steps, |steps| steps.min(services.limits.max_steps)),
            image_cache: ImageCache::default(),
            client,
            mcp_client: services.mcp.client_for_run(client_options),
            scope: &live_run.scope,
            writer: live_run.writer(),
            control,
        };
        let outcome = match &live_run.work {
            RunWork::Compact => return agent_loop.compact_on_request().await,
            _ => agent_loop.run().await?,
        };
        if outcome != WorkOutcome::Completed {
            return Ok(outcome);
        }
        if let Some(channel_origin) = channel_origin {
            // The delivery may take long, and needs no permit because it uses no model and no tool.
            if let Some(run_permit) = permit.take() {
                run_permit.release();
            }
            // waits: raced in `deliver_answer`.
            match self.deliver_answer(live_run, channel_origin, &agent).await? {
                AnswerDelivery::Sent => {}
                AnswerDelivery::Withheld => return Ok(WorkOutcome::Completed),
                AnswerDelivery::Failed(outcome) => return Ok(outcome),
            }
        }
        self.start_consolidation(live_run, &agent, channel_message);
        Ok(WorkOutcome::Completed)
    }

    /// What the model reads before the message: the conversation in the chat network, and the notes that fit.
    async fn run_context(
        &self,
        live_run: &LiveRun,
        agent: &Agent,
        history: &[Arc<Turn>],
        channel_message: Option<(&ChannelOrigin, &str)>,
    ) -> Result<Option<String>, Cancelled> {
        let conversation = live_run.channel_origin.as_ref().map(|origin| self.channel_context(origin, agent, history));
        let notes = self.services().memory.recall_for_run(&live_run.scope, &live_run.run, channel_message).await?;
        Ok([conversation, notes].into_iter().flatten().reduce(|context, notes| format!("{context}\n\n{notes}")))
    }
}

fn key_refusal(refusal: &KeyRefusal) -> WorkOutcome {
    WorkOutcome::Failed { code: ErrorCode::Forbidden.as_str().to_owned(), message: refusal.to_string() }
}

/// Runs the work to its end. Force drops it at any point: the resources that it holds end by themselves, and the scope
/// waits for them.
async fn work_until_forced(
    live_run: &LiveRun,
    work: impl Future<Output = Result<WorkOutcome, Cancelled>>,
) -> thread::Result<Result<WorkOutcome, Cancelled>> {
    tokio::select! {
        biased;
        () = live_run.scope.forced() => Ok(Err(Cancelled)),
        worked = AssertUnwindSafe(work).catch_unwind() => worked,
    }
}

/// The outcome for the run machine. The work is cancelled only after an abort, whose verdict then stands.
fn outcome_of_work(live_run: &LiveRun, worked: thread::Result<Result<WorkOutcome, Cancelled>>) -> WorkOutcome {
    let failed = |message: &str| WorkOutcome::Failed { code: "bug".to_owned(), message: message.to_owned() };
    match worked {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(Cancelled)) => failed("the work was cancelled without an abort; please report this"),
        Err(_panic) => {
            tracing::error!(run = %live_run.id(), "the work of a run panicked");
            failed("Quell has a bug: the work of this run panicked; the daemon goes on")
        }
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
