//! The `[agents.X]` and `[limits]` sections of the configuration, with their validation.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use quell_kernel::RunLimits;
use quell_kernel::approval::ApprovalPolicy;
use quell_kernel::client_request::AnswerOptions;
use quell_kernel::daily_spend::DailyLimit;
use quell_kernel::network_access::NetworkAccess;
use quell_kernel::permissions::approval_policy_for;
use quell_kernel::turn::PartialPolicy;
use quell_llm::{ProviderKind, ThinkingMode};
use quell_process::Isolate;
use quell_protocol::AgentId;
use quell_protocol::agents::Price;
use quell_protocol::approval::default_quorum;
use quell_protocol::sandbox::{ResourceLimits, SandboxMode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::model_chain::{ModelChain, ModelChainForm};

/// The smallest thinking budget that the API accepts.
const MIN_THINKING_TOKENS: u32 = 1024;

/// The tools that can read the file of a skill.
const SKILL_READING_TOOLS: [&str; 2] = ["read_file", "shell"];

/// The error for an agent whose provider has no thinking.
pub fn thinking_unsupported() -> String {
    let kinds = ProviderKind::all().filter(|kind| kind.has_thinking());
    let names: Vec<String> = kinds.map(|kind| format!("\"{}\"", kind.name())).collect();
    format!("only providers of kind {} are asked for thinking", names.join(" or "))
}

/// The error for an agent whose provider cannot search the web by itself.
pub fn web_search_unsupported() -> String {
    let kinds = ProviderKind::all().filter(|kind| kind.has_web_search());
    let names: Vec<String> = kinds.map(|kind| format!("\"{}\"", kind.name())).collect();
    format!(
        "only providers of kind {} search the web by themselves; use a model of one first, leave web_search out, or add an MCP \
         server that searches",
        names.join(" or ")
    )
}

/// One agent: a model, a prompt, tools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AgentConfig {
    /// `provider/model`, such as `openai/gpt-5`; or a list, whose next model takes over for a run when a provider is
    /// overloaded, without credit or lost before its answer begins.
    #[schemars(with = "ModelChainForm")]
    pub model: ModelChain,
    /// The system prompt.
    pub prompt: String,
    /// Tool names; `*` means all of them, including those of MCP servers (`SERVER__TOOL`).
    pub tools: Vec<String>,
    /// MCP servers that it may use; all configured ones if absent.
    pub mcp: Option<Vec<String>>,
    /// The agent above this one in the tree.
    #[schemars(with = "Option<String>")]
    pub parent: Option<AgentId>,
    /// The agents to which it may delegate work with `spawn_agent` and `send_message`; if absent, itself and all below
    /// it in the tree. A run that it starts never has more tools than its own run, and needs every approval that its
    /// own run needs.
    #[schemars(with = "Option<Vec<String>>")]
    pub delegates: Option<Vec<AgentId>>,
    /// Its role, in one word.
    pub role: Option<String>,
    /// Sampling temperature; the provider's default if absent.
    pub temperature: Option<f64>,
    /// Most tokens of one model answer; the provider's default if absent.
    pub max_tokens: Option<u32>,
    /// Context window of the model, in tokens. When a conversation fills four fifths of it, its older turns are
    /// summarised.
    pub window_tokens: usize,
    /// `adaptive`: the model decides how much it thinks. Newer models of providers of kind `anthropic` require this
    /// instead of `thinking_tokens`. Without both settings there is no thinking.
    #[schemars(with = "Option<String>")]
    pub thinking: Option<ThinkingSetting>,
    /// Tokens of each answer that may be used for thinking, at least 1024 and fewer than `max_tokens`; only for models
    /// of providers of kind `anthropic`. No thinking if absent.
    pub thinking_tokens: Option<u32>,
    /// Whether the provider may search the web by itself for the model; for kinds `openai-responses` and `gemini`. Models
    /// of a list that cannot do so go without.
    pub web_search: bool,
    /// Whether the model accepts images. If false, images are left out of the messages of users.
    pub vision: bool,
    /// Language of answers, such as `en-US`; the model's choice if absent.
    pub language: Option<String>,
    /// Working directory of its tools; `$QUELL_WORK/ID` if absent, else `ID` in the directory `<data directory>-work`.
    pub workdir: Option<PathBuf>,
    /// A folder below the workdir, with a folder for each skill. The names and descriptions of the skills are in its
    /// prompt. No skills if absent.
    pub skills: Option<String>,
    /// Whether the `AGENTS.md` of its workdir is in its prompt, and of the repository around it if its tools may leave
    /// the workdir. If absent: only if `workdir` is set.
    pub agents_md: Option<bool>,
    /// What happens to text that a stop cuts off: `discard` (people see it, the model does not) or `keep`.
    #[schemars(with = "String")]
    pub partial: PartialPolicy,
    /// Per tool, or `*` for all others: `auto` (runs without asking), `ask` (a person is asked each time), `deny`.
    #[schemars(with = "BTreeMap<String, String>")]
    pub approvals: BTreeMap<String, ApprovalPolicy>,
    /// How many different principals must allow a call that asks. One denial denies.
    pub approval_quorum: u32,
    /// Seconds without use after which a session of this agent expires; as in `[sessions]` if absent.
    pub idle_s: Option<u64>,
    /// Tokens, in and out, that its runs may use in one UTC day; no limit if absent.
    pub daily_tokens: Option<u64>,
    /// What its runs may cost in one UTC day, in the currency of `price`; no limit if absent.
    pub daily_cost: Option<f64>,
    /// The price of a million tokens: `{ input = 3.0, output = 15.0 }`.
    #[schemars(with = "Option<BTreeMap<String, f64>>")]
    pub price: Option<Price>,
    /// Seconds after which a `shell` command is ended if its call has no `timeout_s`. Background commands have no
    /// limit.
    pub shell_timeout_s: u64,
    /// `auto`: commands run in their own PID namespace if the kernel supports it; `pid`: they run only in one; `none`:
    /// never in one.
    pub isolate: Isolate,
    /// What its commands and file tools may reach. `workspace`: they change the workdir and the `writable` directories
    /// only, and see no credentials, other agents' files and sockets of services; `read-only`: they change nothing;
    /// `off`: files as the user of the daemon has them. If absent, `workspace`, and with `[tools] unconfined` `off`.
    /// Quell's own data, configuration and keys are out of reach in every mode.
    #[schemars(with = "Option<String>")]
    pub sandbox: Option<SandboxMode>,
    /// Directories that commands may write besides the workdir; absolute, or with a leading `~/`.
    pub writable: Vec<PathBuf>,
    /// Places that commands may read although they are hidden, such as the socket of an ssh-agent.
    pub readable: Vec<PathBuf>,
    /// Places that commands may not see, besides those that are hidden anyway.
    pub hidden: Vec<PathBuf>,
    /// User and group id of its commands and MCP programs, where the daemon runs as root: a user of its own for each
    /// agent. The workdir must belong to that user.
    pub run_as: Option<u32>,
    /// The servers that commands and `fetch_url` may reach: `on`, all that the daemon can reach; `off`, none; or a list
    /// such as `["example.org:443"]`, through a proxy of the daemon.
    pub network: NetworkAccess,
    /// Whether commands may create namespaces, as the sandbox of Chromium does.
    pub nested_namespaces: bool,
    /// Processes and threads that one command may have at the same time, at least 301; 0 for no limit.
    pub max_processes: u32,
    /// Writable memory of each process of a command, in MiB; no limit if absent.
    pub max_memory_mb: Option<u64>,
    /// Whether commands are refused where the system lacks a layer of the sandbox. Otherwise the log, `quell doctor` and
    /// the receipt name what is missing.
    pub sandbox_require: bool,
    /// Whether calls may ask a person to run outside of the sandbox. Each such call waits for approval, whatever
    /// `approvals` says, and Quell's own data, configuration and keys stay out of its reach.
    pub escalate: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ThinkingSetting {
    /// The model decides how much it thinks.
    Adaptive,
}

impl AgentConfig {
    /// The agent's own settings for an answer.
    pub fn answer_options(&self) -> AnswerOptions {
        AnswerOptions { temperature: self.temperature, max_tokens: self.max_tokens, ..AnswerOptions::default() }
    }

    pub fn thinking_mode(&self) -> Option<ThinkingMode> {
        match self.thinking {
            Some(ThinkingSetting::Adaptive) => Some(ThinkingMode::Adaptive),
            None => self.thinking_tokens.map(ThinkingMode::Tokens),
        }
    }

    /// What is wrong with the thinking settings, by the rules of the API: a wrong setting is then found here and not at
    /// the first message.
    #[must_use]
    pub fn thinking_problem(&self) -> Option<String> {
        match self.thinking_mode()? {
            ThinkingMode::Adaptive if self.thinking_tokens.is_some() => {
                return Some("is not needed with thinking = \"adaptive\"; leave one of them out".to_owned());
            }
            ThinkingMode::Adaptive => {}
            ThinkingMode::Tokens(budget) => {
                if let Some(text) = thinking_budget_problem(budget, self.max_tokens) {
                    return Some(text);
                }
            }
        }
        let other_temperature = self.temperature.filter(|temperature| (temperature - 1.0).abs() > f64::EPSILON)?;
        Some(format!("a thinking model takes no temperature but 1, not {other_temperature}; leave temperature out"))
    }

    /// The tool with which it reads its skills.
    pub fn skill_reading_tool(&self) -> Option<&'static str> {
        SKILL_READING_TOOLS
            .into_iter()
            .find(|tool| self.has_tool(tool) && self.approval_policy(tool) != ApprovalPolicy::Deny)
    }

    /// Whether it reads project instructions: only with a tool that could read them, too.
    pub fn reads_instructions(&self) -> bool {
        self.agents_md.unwrap_or(self.workdir.is_some()) && self.skill_reading_tool().is_some()
    }

    /// What is wrong with the folder of its skills.
    #[must_use]
    pub fn skills_problem(&self) -> Option<String> {
        let folder = self.skills.as_deref()?;
        let is_below = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        let has_folder_name = Path::new(folder).file_name().is_some() && !folder.contains(char::is_control);
        if !has_folder_name || !Path::new(folder).components().all(is_below) {
            return Some(format!(
                "{folder:?} is no folder below the workdir; name it as from there, such as \"skills\""
            ));
        }
        let no_reader_message = "nothing could read them: allow the agent the tool read_file, or shell";
        self.skill_reading_tool().is_none().then(|| no_reader_message.to_owned())
    }

    /// What is wrong with the sandbox settings: the key and the problem.
    #[must_use]
    pub fn sandbox_problem(&self, mode: SandboxMode) -> Option<(&'static str, String)> {
        let places = [("writable", &self.writable), ("readable", &self.readable), ("hidden", &self.hidden)];
        for (key, paths) in places {
            if let Some(path) = paths.iter().find(|path| !path.is_absolute()) {
                let problem = format!("{} is no absolute path; begin it with / or ~/", path.display());
                return Some((key, problem));
            }
            if mode == SandboxMode::Off && !paths.is_empty() {
                return Some((key, "has no effect with sandbox = \"off\"; leave one of them out".to_owned()));
            }
        }
        if mode == SandboxMode::ReadOnly && !self.writable.is_empty() {
            let problem = "contradicts sandbox = \"read-only\"; leave it out, or set sandbox = \"workspace\"";
            return Some(("writable", problem.to_owned()));
        }
        if self.run_as.is_some() && self.isolate == Isolate::None {
            let problem =
                "contradicts isolate = \"none\": another user's files need a mount namespace; leave isolate out";
            return Some(("run_as", problem.to_owned()));
        }
        if (1..ResourceLimits::MIN_PROCESSES).contains(&self.max_processes) {
            let least = ResourceLimits::MIN_PROCESSES;
            return Some(("max_processes", format!("must be at least {least}, or 0 for no limit")));
        }
        if self.max_memory_mb.is_some_and(|most| !(MIN_MEMORY_MB..=MAX_MEMORY_MB).contains(&most)) {
            return Some((
                "max_memory_mb",
                format!("must be from {MIN_MEMORY_MB} to {MAX_MEMORY_MB}; leave it out for no limit"),
            ));
        }
        (self.sandbox_require && self.isolate == Isolate::None).then(|| {
            let problem =
                "contradicts isolate = \"none\", without which no namespace holds a command; leave isolate out";
            ("sandbox_require", problem.to_owned())
        })
    }

    pub fn resource_limits(&self) -> ResourceLimits {
        let processes = Some(self.max_processes).filter(|most| *most > 0);
        ResourceLimits { processes, memory_bytes: self.max_memory_mb.map(|most| most << 20) }
    }

    /// What is wrong with `approval_quorum`.
    #[must_use]
    pub fn quorum_problem(&self) -> Option<String> {
        (self.approval_quorum == 0).then(|| {
            "0 would allow every call unasked; the least is 1, and approvals.TOOL = \"auto\" does not ask".to_owned()
        })
    }

    pub fn daily_limit(&self) -> DailyLimit {
        DailyLimit { tokens: self.daily_tokens, cost: self.daily_cost, price: self.price }
    }

    pub fn approval_policy(&self, tool: &str) -> ApprovalPolicy {
        approval_policy_for(&self.approvals, tool)
    }
}

fn thinking_budget_problem(budget: u32, max_tokens: Option<u32>) -> Option<String> {
    if budget < MIN_THINKING_TOKENS {
        return Some(format!(
            "{budget} is too few; the least is {MIN_THINKING_TOKENS}, and without the key there is no thinking"
        ));
    }
    let token_limit = max_tokens.filter(|most| *most <= budget)?;
    Some(format!("{budget} must be less than max_tokens = {token_limit}, of which it is a part"))
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            model: "demo/demo".into(),
            prompt: "You are a careful assistant. Use the tools when they help, and say what you did.".to_owned(),
            tools: vec!["*".to_owned()],
            mcp: None,
            parent: None,
            delegates: None,
            role: None,
            temperature: None,
            max_tokens: None,
            window_tokens: 128_000,
            thinking: None,
            thinking_tokens: None,
            web_search: false,
            vision: false,
            language: None,
            workdir: None,
            skills: None,
            agents_md: None,
            partial: PartialPolicy::Discard,
            approvals: BTreeMap::new(),
            approval_quorum: default_quorum(),
            idle_s: None,
            daily_tokens: None,
            daily_cost: None,
            price: None,
            shell_timeout_s: 600,
            isolate: Isolate::Auto,
            sandbox: None,
            writable: Vec::new(),
            readable: Vec::new(),
            hidden: Vec::new(),
            run_as: None,
            network: NetworkAccess::On,
            nested_namespaces: false,
            max_processes: 4096,
            max_memory_mb: None,
            sandbox_require: false,
            escalate: true,
        }
    }
}

/// Below this, shells themselves fail.
const MIN_MEMORY_MB: u64 = 16;
/// 64 TiB, more than a machine has.
const MAX_MEMORY_MB: u64 = 1 << 26;

/// Limits of runs and of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Runs that may be in flight at the same time; also the open requests to model APIs, A2A tasks and calls of the
    /// MCP server's `run_agent` that one token may have at the same time.
    pub in_flight_runs: usize,
    /// Messages that may wait in one session.
    pub queued_per_session: usize,
    /// How deep sub-runs may be nested; 0 forbids sub-runs.
    pub sub_run_depth: usize,
    /// Sub-runs of one run that may be active at the same time.
    pub sub_runs_per_run: usize,
    /// Tool calls of one message that may run at the same time.
    pub parallel_calls: usize,
    /// Background commands of one session that may run at the same time.
    pub background_per_session: usize,
    /// Seconds after which an unanswered approval counts as denied.
    pub approval_timeout_s: u64,
    /// Seconds that a run may take, from its acceptance.
    pub run_timeout_s: u64,
    /// Most model calls of one run.
    pub max_steps: u32,
    /// Tokens of one run, in and out; no limit if absent.
    pub max_run_tokens: Option<u64>,
    /// Most bytes of a request body.
    pub request_body_bytes: usize,
    /// Most bytes of an imported session.
    pub import_bytes: usize,
    /// Most bytes of a tool's output that the model gets.
    pub tool_output_bytes: usize,
}

impl Limits {
    pub fn run_limits(&self) -> RunLimits {
        let (queued, depth, children) = (self.queued_per_session, self.sub_run_depth, self.sub_runs_per_run);
        let clients = self.in_flight_runs;
        RunLimits { max_queued: queued, max_depth: depth, max_children: children, max_client_runs: clients }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let run_limits = RunLimits::default();
        Self {
            in_flight_runs: 64,
            queued_per_session: run_limits.max_queued,
            sub_run_depth: run_limits.max_depth,
            sub_runs_per_run: run_limits.max_children,
            parallel_calls: 8,
            background_per_session: 16,
            approval_timeout_s: 900,
            run_timeout_s: 3600,
            max_steps: 100,
            max_run_tokens: None,
            request_body_bytes: 25 * 1024 * 1024,
            import_bytes: 256 * 1024 * 1024,
            tool_output_bytes: 48 * 1024,
        }
    }
}
