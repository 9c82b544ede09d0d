//! The agent loop: model, tools, model, until there is an answer. It reads like its own description.
//!
//! It knows its scope, its pen and its reins, and nothing of registries, databases or doors. Every wait is raced, and between
//! waits it checks, so a stop never has to reach a particular place first.

mod answer;
mod approve;
mod compact;
mod config;
mod delegate;
mod keep_pictures;
mod pictures;
mod remember;
mod rights;
mod society;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use quell_kernel::registry::Phase;
use quell_kernel::rights::lists;
use quell_kernel::run::Outcome;
use quell_kernel::spend::DailyLimit;
use quell_kernel::turn::{CallResult, ToolCall, Turn, TurnDraft};
use quell_protocol::{AgentId, CallEnd, CallId, RunId, SessionKey, StopReason, ToolOutputStream, Usage};
use tokio::time::Instant;

use crate::approvals::Approvals;
use crate::cell::{Bill, Pen};
use crate::hooks::Hooks;
use crate::journal::Unwritten;
use crate::llm::{Model, ModelAnswer, ModelError, ModelRequest, ModelSink, ToolSpec};
use crate::mcp::{CallSpot, Endpoint, Mcp, Visit, Visitor, server_of};
use crate::memory::Memory;
use crate::proc::{OutputSink, Wardens};
use crate::scope::{Cancelled, Point, Scope};
use crate::tools::background::{Background, Owner};
use crate::tools::{Toolbox, UnknownTool, Workbench};
pub use answer::unusable_because;
use answer::{Answered, MAX_TURN_BYTES, failed, invalid_arguments, too_large};
pub use approve::ask_person;
use compact::{Allowance, Room, Wanted};
pub use config::{AgentConfig, Limits, NO_THINKING, Thinking};
pub use delegate::{Child, ChildOrder, ChildPlace, report_of};
pub use pictures::Gallery;
pub use rights::SEND_FILE;
pub use society::{
    BadAgent, BadSociety, Changes, Kept, Materials, Plan, RESERVED, Roll, Society, Stale, Stays, Unwelcome,
    expand_home, tree_of,
};

/// An agent, ready to run: its configuration with everything resolved.
#[derive(Debug, Clone)]
pub struct Agent {
    /// Its id.
    pub id: AgentId,
    /// As configured.
    pub config: AgentConfig,
    /// Its model.
    pub model: Model,
    /// The tools of its own that it is offered; those by which it reaches other agents name who exists when a run starts.
    pub tools: Arc<[ToolSpec]>,
    /// Its system prompt.
    pub system: String,
    /// Where its tools work.
    pub workdir: PathBuf,
    /// True when its model or an MCP endpoint is one that its session brought along, or that of a run above.
    pub own_model: bool,
}

impl Agent {
    /// Who is paid for its tokens.
    #[must_use]
    pub fn bill(&self) -> Bill {
        if self.own_model {
            // Its name is its session's to choose, and so is whom it pays.
            return Bill { provider: "own".to_owned(), price: None };
        }
        Bill { provider: self.model.provider_name().to_owned(), price: self.config.daily_limit().price }
    }

    /// As which its runs come to MCP servers.
    #[must_use]
    pub fn visitor(&self, run: &RunId, session: &SessionKey, endpoint: Option<Endpoint>) -> Visitor {
        Visitor {
            run: run.clone(),
            session: session.clone(),
            workdir: self.workdir.clone(),
            servers: self.config.mcp.clone(),
            endpoint,
            tools: self.config.tools.clone(),
        }
    }
}

/// What all agents share.
#[derive(Debug)]
pub struct Workshop {
    /// The agents that exist now.
    pub society: Society,
    /// Every tool.
    pub toolbox: Arc<Toolbox>,
    /// Every MCP server.
    pub mcp: Mcp,
    /// Lifecycle hooks.
    pub hooks: Hooks,
    /// Starts processes.
    pub wardens: Wardens,
    /// The environment of processes.
    pub environment: Vec<(OsString, OsString)>,
    /// Commands that go on after their call.
    pub background: Background,
    /// What is remembered.
    pub memory: Memory,
    /// Calls that wait for a person.
    pub approvals: Approvals,
    /// Limits of runs.
    pub limits: Limits,
}

/// What the loop tells and asks the run it works for.
pub trait Reins: Send + Sync {
    /// It now waits for the model, or does anything else.
    fn phase(&self, phase: Phase);
    /// News for this run and messages that wait to steer it join its turn. They leave the queue.
    fn take_messages(&self);
    /// What all runs of the agent have used today.
    fn spent_today(&self) -> Usage;
    /// A budget is used up: the run is to be aborted for that reason.
    fn out_of_budget(&self, reason: StopReason);
    /// Starts a sub-run. From its acceptance on a stop of this run covers it, whatever becomes of the future; the error is
    /// the reason why not, for the model.
    fn start_child(&self, order: ChildOrder) -> BoxFuture<'_, Result<Child, String>>;
}

/// Checks a configured tool list: `*`, or names. Which tools an MCP server in `servers` has is known only once it runs.
///
/// # Errors
/// [`UnknownTool`] for the first name that is no tool.
pub fn check_tools<'s>(allowed: &[String], servers: impl Iterator<Item = &'s String>) -> Result<(), UnknownTool> {
    let servers: BTreeSet<&str> = servers.map(String::as_str).collect();
    let own = |name: &&String| names_besides().any(|known| known == name.as_str());
    let of_server = |name: &&String| server_of(name).is_some_and(|server| servers.contains(server));
    let rest: Vec<String> = allowed.iter().filter(|name| !own(name) && !of_server(name)).cloned().collect();
    Toolbox::check(&rest).map_err(|mut unknown| {
        unknown.known.extend(names_besides());
        unknown
    })
}

/// The tools that an agent may have besides those of MCP servers, in lower case.
#[must_use]
pub fn own_tool_names(toolbox: &Toolbox) -> BTreeSet<String> {
    let of_toolbox = toolbox.specs(&["*".to_owned()]).into_iter().map(|spec| spec.name);
    of_toolbox.chain(names_besides().map(str::to_owned)).map(|name| name.to_lowercase()).collect()
}

/// The tools that are not in the toolbox.
fn names_besides() -> impl Iterator<Item = &'static str> {
    [delegate::NAMES, remember::NAMES].into_iter().flatten().chain([SEND_FILE])
}

/// One run's work.
pub struct Job<'a> {
    /// The run.
    pub run: &'a RunId,
    /// The agent.
    pub agent: &'a Agent,
    /// What it shares with others.
    pub workshop: &'a Workshop,
    /// Sealed turns of the session.
    pub history: &'a [Arc<Turn>],
    /// The tools by which it gives work to agents, naming those that it could give it to when the run started.
    pub delegation: Arc<[ToolSpec]>,
    /// What the model reads before the message in each step of this run, and no turn holds.
    pub preamble: Option<String>,
    /// The pictures that it has looked for.
    pub gallery: Gallery,
    /// Its use of MCP servers.
    pub visit: Visit,
    /// Its scope.
    pub scope: &'a Scope,
    /// Its hand.
    pub pen: Pen,
    /// Its reins.
    pub reins: &'a dyn Reins,
}

impl Job<'_> {
    /// Works until there is an answer, a failure, or a stop.
    ///
    /// # Errors
    /// [`Cancelled`] when the scope was cancelled; what was finished until then is in the draft.
    ///
    /// # Cancel safety
    /// May be dropped at any await: the draft is in the cell, what is held is in the ledger.
    pub async fn work(&self) -> Result<Outcome, Cancelled> {
        for step in 1.. {
            self.scope.check(Point::BeforeStep)?;
            self.within_budget(step)?;
            self.reins.take_messages();
            self.pen.step(step)?;
            let calls = match self.ask_model().await? {
                Answered::Calls(calls) => calls,
                Answered::Done => return Ok(Outcome::Completed),
                Answered::Failed { code, message } => return Ok(Outcome::Failed { code, message }),
            };
            for call in calls {
                if let Some(outcome) = self.carry_out(&call).await? {
                    return Ok(outcome);
                }
                if self.pen.draft(TurnDraft::bytes)? > MAX_TURN_BYTES {
                    return Ok(too_large());
                }
            }
        }
        Err(Cancelled)
    }

    fn within_budget(&self, step: u32) -> Result<(), Cancelled> {
        let limits = &self.workshop.limits;
        let reason = if step > limits.max_steps {
            StopReason::Steps
        } else if limits.max_run_tokens.is_some_and(|most| self.pen.tokens() >= most) {
            StopReason::Tokens
        } else {
            return self.within_daily_limit();
        };
        self.reins.out_of_budget(reason);
        Err(Cancelled)
    }

    /// Asked before each model call: what other runs of the agent use meanwhile counts, too.
    fn within_daily_limit(&self) -> Result<(), Cancelled> {
        let limit = self.agent.config.daily_limit();
        if limit == DailyLimit::default() || !limit.is_reached(self.reins.spent_today()) {
            return Ok(());
        }
        self.reins.out_of_budget(StopReason::DailyLimit);
        Err(Cancelled)
    }

    /// One model call of a step. A conversation that is too long is made shorter first, and once more when the provider says
    /// so.
    async fn ask_model(&self) -> Result<Answered, Cancelled> {
        // waits: for files, with the scope, in `pictures`.
        self.look().await?;
        // waits: the model is called with the scope, in `compact`.
        if let Room::Failed(problem) = self.make_room(Wanted::Window).await? {
            // How full the window is was an estimate, so the model itself may find room.
            tracing::warn!(run = %self.run, %problem, "older turns could not be summarised");
        }
        let overflow = match self.call_model(self.allowance(Wanted::Window)?).await? {
            Err(error @ ModelError::ContextOverflow { .. }) => error,
            Ok(answer) => return self.take_answer(answer),
            Err(error) => return Ok(failed(&error)),
        };
        let half = self.allowance(Wanted::Half)?;
        // waits: the same, in `compact`.
        match self.make_room(Wanted::Half).await? {
            Room::Made => {}
            Room::Nothing if self.can_shrink(half)? => {}
            Room::Nothing => return Ok(failed(&overflow)),
            Room::Failed(problem) => {
                self.keep_last_words()?;
                return Ok(too_long(&problem));
            }
        }
        match self.call_model(half).await? {
            Ok(answer) => self.take_answer(answer),
            Err(error) => Ok(failed(&error)),
        }
    }

    async fn call_model(&self, allowance: Allowance) -> Result<Result<ModelAnswer, ModelError>, Cancelled> {
        // Spelled outside of the cell, which a stop needs: with pictures that takes its time.
        let draft = self.pen.draft(|draft| self.shown_draft(draft, allowance).into_owned())?;
        let conversation = self.spell(&self.agent.system, self.history, &draft, self.preamble.as_deref());
        // waits: the scope goes with it, in `offered_tools`.
        let tools = self.offered_tools().await?;
        self.scope.check(Point::ContextBuilt)?;
        self.within_daily_limit()?;
        let request = ModelRequest {
            run: self.run,
            agent: &self.agent.id,
            conversation: &conversation,
            tools: &tools,
            temperature: self.agent.config.temperature,
            max_tokens: self.agent.config.max_tokens,
            thinking: self.agent.config.thinking_mode(),
        };
        self.reins.phase(Phase::Waiting);
        let mut sink = StepSink { pen: &self.pen, attempts: self.agent.model.attempts() };
        let answer = self.agent.model.call(&request, self.scope, &mut sink).await;
        self.reins.phase(Phase::Processing);
        // An error that surfaces after the stop is part of it (row E2).
        self.scope.check(Point::AfterModel)?;
        match answer {
            Err(ModelError::Cancelled) => Err(Cancelled),
            other => Ok(other),
        }
    }

    /// What the agent may call without any server.
    fn own_tools(&self) -> impl Iterator<Item = &ToolSpec> {
        let allowed = &self.agent.config.tools;
        let is_allowed = move |spec: &&ToolSpec| lists(allowed, &spec.name);
        self.agent.tools.iter().chain(self.delegation.iter().filter(is_allowed))
    }

    /// Everything that the model may call: what the agent has of its own, and what its servers have.
    async fn offered_tools(&self) -> Result<Vec<ToolSpec>, Cancelled> {
        let mut tools: Vec<ToolSpec> = self.own_tools().cloned().collect();
        // waits: for servers that start, raced in `offered`.
        tools.extend(self.visit.offered(self.scope).await?);
        Ok(tools)
    }

    /// One call, with its result in the draft. Answers the run's outcome when it cannot go on.
    async fn carry_out(&self, call: &ToolCall) -> Result<Option<Outcome>, Cancelled> {
        self.scope.check(Point::BeforeTool)?;
        let instead = match invalid_arguments(call) {
            Some(result) => Some(result),
            // waits: the wait for a person is raced in `approve`.
            None => self.denial(call).await?,
        };
        // A call that has its result already runs nothing that a crash could leave undone.
        if instead.is_none()
            && let Err(unwritten) = self.scope.race(Point::Journal, self.pen.announce_call(&call.id)).await?
        {
            return Ok(Some(Outcome::Failed {
                code: "store".to_owned(),
                message: not_written(&call.tool, &unwritten),
            }));
        }
        self.pen.begin_call(call)?;
        let begun = Instant::now();
        let result = match instead {
            Some(result) => result,
            None => self.call_tool(call).await?,
        };
        let result = if self.scope.is_cancelled() { result.after_the_stop() } else { result };
        self.pen.finish_call(&call.id, result, begun.elapsed())?;
        self.scope.check(Point::AfterTool)?;
        Ok(None)
    }

    async fn call_tool(&self, call: &ToolCall) -> Result<CallResult, Cancelled> {
        let mut sink = CallSink { pen: &self.pen, call: &call.id };
        let output_limit = self.workshop.limits.tool_output_bytes;
        let mut spot = CallSpot { scope: self.scope, output_limit, sink: &mut sink };
        // waits: the spot holds the scope; a stop is seen through by the errand, within its grace.
        if let Some(answer) = self.visit.call(&call.tool, &call.arguments, &mut spot).await {
            // waits: on a thread of the scope, which is told of a stop.
            return Ok(self.keep_pictures(answer?).await);
        }
        let run = self.pen.run();
        let owner = Owner { session: run.session.clone(), run: run.id.clone(), principal: run.principal.clone() };
        let mut bench = Workbench {
            scope: self.scope,
            owner: &owner,
            background: &self.workshop.background,
            workdir: &self.agent.workdir,
            wardens: &self.workshop.wardens,
            environment: &self.workshop.environment,
            output_limit: self.workshop.limits.tool_output_bytes,
            shell_timeout_s: self.agent.config.shell_timeout_s,
            isolate: self.agent.config.isolate,
            sink: &mut sink,
        };
        if !self.own_tools().any(|tool| tool.name == call.tool) {
            let names: Vec<&str> = self.own_tools().map(|tool| tool.name.as_str()).collect();
            let output = format!("there is no tool named {:?}; the tools are: {}", call.tool, names.join(", "));
            return Ok(CallResult::new(CallEnd::Error, output));
        }
        // waits: each wait is raced in `delegate`.
        if let Some(output) = self.delegate(&call.tool, &call.arguments).await {
            return Ok(output?.bounded(self.workshop.limits.tool_output_bytes).into());
        }
        // waits: each wait is raced in `remember`.
        if let Some(output) = self.use_memory(&call.tool, &call.arguments).await {
            return Ok(output?.bounded(self.workshop.limits.tool_output_bytes).into());
        }
        // waits: the bench holds the scope.
        Ok(self.workshop.toolbox.call(&call.tool, &call.arguments, &mut bench).await?.into())
    }
}

fn too_long(problem: &str) -> Answered {
    let message = format!(
        "the conversation is too long for the model, and summarising it failed: {problem}; it goes on from its last messages: send this one again, or reset the session"
    );
    Answered::Failed { code: "context_overflow".to_owned(), message }
}

fn not_written(tool: &str, why: &Unwritten) -> String {
    format!(
        "{tool} was not started, because what a run does is written down first, and {why}; mend that and send the message again"
    )
}

struct StepSink<'a> {
    pen: &'a Pen,
    /// Attempts of a call that there are at most.
    attempts: u32,
}

impl ModelSink for StepSink<'_> {
    fn text(&mut self, delta: &str) {
        self.pen.text(delta);
    }

    fn thinking(&mut self, delta: &str) {
        self.pen.thinking(delta);
    }

    fn retrying(&mut self, attempt: u32, delay: Duration, why: &str) {
        tracing::info!(attempt, delay_ms = delay.as_secs_f64() * 1000.0, why, "model call is retried");
        self.pen.retry((attempt, self.attempts), delay, why);
    }

    fn input_sent(&mut self, estimated_tokens: u64) {
        self.pen.call_sent(estimated_tokens);
    }

    fn cost_nothing(&mut self) {
        self.pen.call_counted(Usage::default());
    }

    fn usage(&mut self, usage: Usage) {
        self.pen.call_counted(usage);
    }
}

struct CallSink<'a> {
    pen: &'a Pen,
    call: &'a CallId,
}

impl OutputSink for CallSink<'_> {
    fn output(&mut self, stream: ToolOutputStream, text: &str) {
        self.pen.output(self.call, stream, text);
    }
}
