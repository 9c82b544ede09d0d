//! The agent loop: call the model, execute its tool calls, repeat until there is an answer, a failure or a stop.
//!
//! It knows its scope, its [`RunWriter`] and its [`RunControl`], and no registry, database or transport. Every wait is
//! raced, and between waits it checks for a stop. So a stop does not have to reach a particular point first.

mod approval;
mod client_answer;
mod compaction;
mod config;
mod escalation;
mod image_cache;
mod model_answer;
mod model_call;
mod model_chain;
mod permissions;
mod registry;
mod result_images;
mod sandbox;
mod session_networks;
mod tool_calls;
mod tools;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use quell_kernel::ToolSpec;
use quell_kernel::api_key::{ApiKey, KeyRefusal};
use quell_kernel::daily_spend::DailyLimit;
use quell_kernel::model_chain::{AnswerProgress, next_model};
use quell_kernel::permissions::SandboxRights;
use quell_kernel::registry::RunPhase;
use quell_kernel::run::WorkOutcome;
use quell_kernel::turn::{ToolCall, Turn};
use quell_llm::{ModelAnswer, ModelCallRequest, ModelError, ModelHandle, ModelSink};
use quell_mcp::{Mcp, McpClient, McpClientOptions, SessionEndpoint};
use quell_process::{CommandNetwork, SandboxSpec, Wardens};
use quell_protocol::agents::Price;
use quell_protocol::schedule::{ScheduleRequest, ScheduleView};
use quell_protocol::{AgentId, Principal, RunId, SessionKey, StopReason, Usage};
use quell_scope::{Cancelled, Interrupted, Point, Scope};
use quell_tools::background::BackgroundWork;
use quell_tools::{FileBackup, Toolbox};

use crate::approvals::Approvals;
use crate::hooks::Hooks;
use crate::live_run::{BillingInfo, ClientWork, LiveRun, RunWriter};
use crate::memory::NoteMemory;
use crate::schedules::{ScheduleChangeError, Schedules};
pub use approval::{ApprovalRequest, request_approval};
use compaction::{CompactionOutcome, CompactionTarget, RequestBudget};
pub use config::{AgentConfig, Limits, ThinkingSetting, thinking_unsupported, web_search_unsupported};
pub use image_cache::ImageCache;
pub use model_answer::unusable_answer_reason;
use model_answer::{ModelStepOutcome, model_failure};
pub use model_call::call_model_for_client;
pub use model_chain::ModelChain;
pub use registry::{
    AddAgentError, AgentConfigError, AgentFactory, AgentRegistry, AgentRegistryError, AgentReloadChanges,
    AgentReloadPlan, AgentSnapshot, MODEL_CALLS, RESERVED, RemoveAgentError, RestorableAgent, StaleReloadPlan,
    build_agent_tree, check_sandbox, expand_home,
};
pub use sandbox::{SandboxSite, mcp_directories, open_places, reserved_place_problem};
pub use tools::{
    CRON_ADD, SEND_FILE, SubRunRequest, SubRunSession, UnknownTool, check_tool_names, own_tool_names,
    resource_kind_of_tool, sub_run_report,
};

/// An agent, ready to run: its configuration with everything resolved.
#[derive(Debug, Clone)]
pub struct Agent {
    pub id: AgentId,
    pub config: AgentConfig,
    pub model: ModelHandle,
    /// The models that take over in a run, in order, when the one before has failed.
    pub fallbacks: Arc<[ModelHandle]>,
    /// Its built-in tools. The delegation tools are separate, because their descriptions list the agents that exist
    /// when a run starts.
    pub tool_specs: Arc<[ToolSpec]>,
    pub system_prompt: String,
    /// Working directory of its tools.
    pub workdir: PathBuf,
    /// What its commands and file tools may reach besides the workdir.
    pub sandbox: SandboxRights,
    /// True if its model or an MCP endpoint comes from its session, or from that of a parent run.
    pub own_model: bool,
}

impl Agent {
    /// The provider that bills its tokens, and their price.
    pub fn billing_info(&self) -> BillingInfo {
        if self.own_model {
            // The session chooses the provider's name and is billed itself.
            return BillingInfo { provider: "own".to_owned(), price: None };
        }
        BillingInfo { provider: self.model.provider_name().to_owned(), price: self.price_of(&self.model) }
    }

    /// The price of one of its models: its own price, which is that of all, else that of the model.
    pub fn price_of(&self, model: &ModelHandle) -> Option<Price> {
        if self.own_model { None } else { self.config.price.or_else(|| model.price()) }
    }

    /// Checks that the cost of each of its models can be counted, if the token has a limit for it.
    ///
    /// # Errors
    /// [`KeyRefusal::NoPrice`].
    pub fn check_prices(&self, key: &ApiKey) -> Result<(), KeyRefusal> {
        let mut models = (0..self.chain_length()).map(|position| self.model_at(position));
        models.try_for_each(|model| key.check_price(model.name(), self.price_of(model)))
    }

    /// The model at this position of its chain; 0 is the first one, which also stands for a position behind the end.
    pub fn model_at(&self, position: usize) -> &ModelHandle {
        position.checked_sub(1).and_then(|place| self.fallbacks.get(place)).unwrap_or(&self.model)
    }

    /// The number of models in its chain.
    pub fn chain_length(&self) -> usize {
        self.fallbacks.len() + 1
    }

    /// How its runs identify themselves to MCP servers.
    pub fn mcp_client_options(
        &self,
        run: &RunId,
        session: &SessionKey,
        principal: &Principal,
        endpoint: Option<SessionEndpoint>,
        sandbox: Option<Arc<SandboxSpec>>,
        network: Option<Arc<dyn CommandNetwork>>,
    ) -> McpClientOptions {
        McpClientOptions {
            run: run.clone(),
            session: session.clone(),
            principal: principal.clone(),
            agent: self.id.clone(),
            workdir: self.workdir.clone(),
            sandbox,
            network,
            allowed_servers: self.config.mcp.clone(),
            endpoint,
            allowed_tools: self.config.tools.clone(),
        }
    }
}

impl Services {
    /// What the commands of an agent may reach in a session.
    pub fn sandbox(&self, agent: &Agent, session: &SessionKey) -> Arc<SandboxSpec> {
        Arc::new(self.sandbox_site.sandbox(agent, &self.agents.other_workdirs(&agent.id), session))
    }
}

/// The services that all agents share.
#[derive(Debug)]
pub struct Services {
    pub agents: AgentRegistry,
    pub toolbox: Arc<Toolbox>,
    pub mcp: Mcp,
    pub hooks: Hooks,
    pub wardens: Wardens,
    pub environment: Vec<(OsString, OsString)>,
    /// The name of the machine's time zone, for models.
    pub time_zone: String,
    pub sandbox_site: Arc<SandboxSite>,
    pub background: BackgroundWork,
    pub memory: NoteMemory,
    pub schedules: Schedules,
    pub approvals: Approvals,
    pub limits: Limits,
}

/// What the agent loop reports to its run and requests from it.
pub trait RunControl: FileBackup {
    /// Reports whether the run waits for the model.
    fn set_phase(&self, phase: RunPhase);
    /// Moves waiting news and steering messages into the turn of this run.
    fn apply_pending_messages(&self);
    /// Usage of all runs of the agent today.
    fn usage_today(&self) -> Usage;
    /// True if the token whose holder started the run has reached its daily cost.
    fn is_key_spent(&self) -> bool;
    /// Aborts the run, because a budget is used up.
    fn abort_over_budget(&self, reason: StopReason);
    /// Makes a schedule for the person of the run. A stop of the run pauses it, even if the future is dropped.
    fn create_schedule(&self, request: ScheduleRequest) -> BoxFuture<'_, Result<ScheduleView, ScheduleChangeError>>;
    /// Starts a sub-run. Once it is accepted, a stop of this run covers it, even if the future is dropped. The error is
    /// a text for the model.
    fn start_sub_run(&self, request: SubRunRequest) -> BoxFuture<'_, Result<Arc<LiveRun>, String>>;
}

pub struct AgentLoop<'a> {
    pub run_id: &'a RunId,
    pub agent: &'a Agent,
    /// The place of the model in use in the chain of the agent; 0 at the start of a run.
    pub chain_position: AtomicUsize,
    /// What its commands may reach; made for the first call of a tool.
    pub sandbox: OnceLock<Arc<SandboxSpec>>,
    pub services: &'a Services,
    /// Sealed turns of the session.
    pub history: &'a [Arc<Turn>],
    /// The delegation tools, with the agents that existed when the run started.
    pub delegation_tools: Arc<[ToolSpec]>,
    /// Text that the model reads before the message in each step of this run, and that no turn stores.
    pub run_context: Option<String>,
    /// Most model calls of this run.
    pub max_steps: u32,
    pub image_cache: ImageCache,
    /// What the client asked for, if the conversation is a client's.
    pub client: Option<&'a ClientWork>,
    pub mcp_client: McpClient,
    pub scope: &'a Scope,
    pub writer: RunWriter,
    pub control: &'a dyn RunControl,
}

impl AgentLoop<'_> {
    /// Runs until there is an answer, a failure, or a stop.
    ///
    /// # Errors
    /// [`Cancelled`] if the scope was cancelled; the finished part is in the draft.
    ///
    /// # Cancel safety
    /// Safe to drop at any await: the draft is in the live run, and held resources are in the ledger.
    pub async fn run(&self) -> Result<WorkOutcome, Cancelled> {
        for step in 1.. {
            self.scope.check(Point::BeforeStep)?;
            self.check_budget(step)?;
            self.control.apply_pending_messages();
            self.writer.begin_step(step)?;
            let calls = match self.run_model_step().await? {
                ModelStepOutcome::Calls(calls) => calls,
                ModelStepOutcome::Finished => {
                    self.end_client_answer(Vec::new())?;
                    return Ok(WorkOutcome::Completed);
                }
                ModelStepOutcome::Failed { code, message } => return Ok(WorkOutcome::Failed { code, message }),
            };
            let (for_client, own): (Vec<ToolCall>, Vec<ToolCall>) =
                calls.into_iter().partition(|call| self.is_call_for_client(call));
            // waits: each call is raced in `execute_call`.
            if let Some(outcome) = self.execute_calls(&own).await? {
                return Ok(outcome);
            }
            if !for_client.is_empty() {
                self.end_client_answer(for_client)?;
                return Ok(WorkOutcome::Completed);
            }
        }
        Err(Cancelled)
    }

    fn check_budget(&self, step: u32) -> Result<(), Cancelled> {
        let limits = &self.services.limits;
        let reason = if step > self.max_steps {
            StopReason::Steps
        } else if limits.max_run_tokens.is_some_and(|most| self.writer.total_tokens() >= most) {
            StopReason::Tokens
        } else {
            return self.check_daily_limit();
        };
        self.control.abort_over_budget(reason);
        Err(Cancelled)
    }

    /// Checked before each model call, because other runs of the agent and of the same token count, too.
    fn check_daily_limit(&self) -> Result<(), Cancelled> {
        let limit = self.agent.config.daily_limit();
        let is_agent_spent = limit != DailyLimit::default() && limit.is_reached(self.control.usage_today());
        if !is_agent_spent && !self.control.is_key_spent() {
            return Ok(());
        }
        self.control.abort_over_budget(StopReason::DailyLimit);
        Err(Cancelled)
    }

    /// One model call of a step. A conversation that is too long is compacted first, and once more if the provider
    /// refuses it as too long.
    async fn run_model_step(&self) -> Result<ModelStepOutcome, Cancelled> {
        // waits: for files, with the scope, in `load_images`.
        self.load_images().await?;
        // waits: the model is called with the scope, in `compact_history`.
        if let CompactionOutcome::Failed(problem) = self.compact_history(CompactionTarget::FitWindow).await? {
            // The size was only estimated, so the request may still fit.
            tracing::warn!(run = %self.run_id, %problem, "older turns could not be summarised");
        }
        let overflow_error = match self.call_model(self.request_budget(CompactionTarget::FitWindow)?).await {
            Ok(answer) => return self.process_answer(answer),
            Err(Interrupted::Failed(error @ ModelError::ContextOverflow { .. })) => error,
            Err(interrupted) => return interrupted.into_failure().map(|error| model_failure(&error)),
        };
        let half_budget = self.request_budget(CompactionTarget::HalveRequest)?;
        // waits: the model is called with the scope, in `compact_history`.
        match self.compact_history(CompactionTarget::HalveRequest).await? {
            CompactionOutcome::Compacted => {}
            CompactionOutcome::NothingToCompact if self.can_shorten_draft(half_budget)? => {}
            CompactionOutcome::NothingToCompact => return Ok(model_failure(&overflow_error)),
            CompactionOutcome::Failed(problem) => {
                self.compact_to_last_messages()?;
                return Ok(context_overflow_failure(&problem));
            }
        }
        match self.call_model(half_budget).await {
            Ok(answer) => self.process_answer(answer),
            Err(interrupted) => interrupted.into_failure().map(|error| model_failure(&error)),
        }
    }

    /// The model that the run uses now.
    fn model(&self) -> &ModelHandle {
        self.agent.model_at(self.chain_position.load(Ordering::Relaxed))
    }

    /// Whether the provider of the model in use may search the web.
    fn searches_web(&self) -> bool {
        self.agent.config.web_search && self.model().supports_web_search()
    }

    /// Calls the model in use. When its provider fails before the answer begins, the next model of the chain takes over
    /// for the rest of the run.
    async fn call_model(&self, budget: RequestBudget) -> Result<ModelAnswer, Interrupted<ModelError>> {
        loop {
            let mut sink = ModelStepSink {
                writer: &self.writer,
                max_attempts: self.model().max_attempts(),
                answer: AnswerProgress::NotBegun,
            };
            // waits: with the scope, in `call_model_in_use`.
            match self.call_model_in_use(budget, &mut sink).await {
                Err(Interrupted::Failed(error)) => {
                    if !self.switch_model(&error, sink.answer)? {
                        return Err(Interrupted::Failed(error));
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// Makes the next model of the chain the one in use; false if the failure stays.
    fn switch_model(&self, error: &ModelError, answer: AnswerProgress) -> Result<bool, Cancelled> {
        let (in_use, length) = (self.chain_position.load(Ordering::Relaxed), self.agent.chain_length());
        let Some(next) = next_model(in_use, length, error.provider_failure(), answer) else { return Ok(false) };
        self.scope.check(Point::ModelFallback)?;
        let from = self.model().name();
        self.chain_position.store(next, Ordering::Relaxed);
        let reason = error.to_string();
        tracing::warn!(run = %self.run_id, from, to = self.model().name(), %reason, "another model takes over");
        self.writer.report_fallback(from, self.model(), self.agent.price_of(self.model()), reason)?;
        Ok(true)
    }

    async fn call_model_in_use(
        &self,
        budget: RequestBudget,
        sink: &mut ModelStepSink<'_>,
    ) -> Result<ModelAnswer, Interrupted<ModelError>> {
        // Encode without the lock of the live run, which a stop needs: encoding images takes time.
        let draft = self.writer.with_draft(|draft| self.draft_within_budget(draft, budget).into_owned());
        let draft = draft.map_err(Cancelled::from)?;
        let conversation =
            self.build_conversation(&self.system_prompt(), self.history, &draft, self.run_context.as_deref());
        // waits: for servers that start, with the scope, in `available_tools`.
        let tools = self.available_tools().await?;
        self.scope.check(Point::ContextBuilt)?;
        self.check_daily_limit()?;
        let request = ModelCallRequest {
            run: self.run_id,
            agent: &self.agent.id,
            conversation: &conversation,
            tools: &tools,
            answer: &self.answer_options(&draft),
            thinking: self.thinking_mode(),
            web_search: self.searches_web(),
        };
        self.control.set_phase(RunPhase::Waiting);
        let answer = self.model().call(&request, self.scope, sink).await;
        self.control.set_phase(RunPhase::Processing);
        // An error after the stop counts as part of the stop (row E2 in `docs/design/requirements.md`).
        self.scope.check(Point::AfterModel)?;
        answer.map_err(|error| match error {
            ModelError::Cancelled => Interrupted::Cancelled,
            error => Interrupted::Failed(error),
        })
    }
}

fn context_overflow_failure(problem: &str) -> ModelStepOutcome {
    let message = format!(
        "the conversation is too long for the model, and summarising it failed: {problem}; it continues with its last messages only: send this one again, or reset the session"
    );
    ModelStepOutcome::Failed { code: "context_overflow".to_owned(), message }
}

struct ModelStepSink<'a> {
    writer: &'a RunWriter,
    max_attempts: u32,
    answer: AnswerProgress,
}

impl ModelSink for ModelStepSink<'_> {
    fn on_text_delta(&mut self, delta: &str) {
        self.writer.append_text(delta);
    }

    fn on_thinking_delta(&mut self, delta: &str) {
        self.writer.append_thinking(delta);
    }

    fn on_web_search(&mut self, query: &str) {
        self.writer.report_web_search(query);
    }

    fn on_answer_begun(&mut self) {
        self.answer = AnswerProgress::Begun;
    }

    fn on_retry(&mut self, attempt: u32, delay: Duration, why: &str) {
        tracing::info!(attempt, delay_ms = delay.as_secs_f64() * 1000.0, why, "model call is retried");
        self.writer.report_retry(attempt, self.max_attempts, delay, why);
    }

    fn on_request_sent(&mut self, estimated_tokens: u64) {
        self.writer.record_model_request(estimated_tokens);
    }

    fn on_request_not_billed(&mut self) {
        self.writer.record_model_usage(Usage::default());
    }

    fn on_usage(&mut self, usage: Usage) {
        self.writer.record_model_usage(usage);
    }
}
