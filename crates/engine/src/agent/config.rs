//! `[agents.X]` and `[limits]` of the configuration.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use quell_kernel::Bounds;
use quell_kernel::approval::ApprovalPolicy;
use quell_kernel::rights::policy_of;
use quell_kernel::spend::DailyLimit;
use quell_kernel::turn::PartialPolicy;
use quell_protocol::AgentId;
use quell_protocol::society::Price;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::llm::ThinkingMode;
use crate::proc::Isolate;

/// The smallest budget for thinking that the API takes.
const LEAST_THINKING: u32 = 1024;

/// What can read the file of a skill.
const READERS: [&str; 2] = ["read_file", "shell"];

/// What is wrong with thinking where nobody is asked for it.
pub const NO_THINKING: &str = "only providers of kind \"anthropic\" are asked for thinking";

/// One agent: a model, a prompt, tools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AgentConfig {
    /// `provider/model`, such as `openai/gpt-5`.
    pub model: String,
    /// The system prompt.
    pub prompt: String,
    /// Tool names; `*` is all of them, those of MCP servers too (`SERVER__TOOL`).
    pub tools: Vec<String>,
    /// MCP servers that it may use; every configured one without it.
    pub mcp: Option<Vec<String>>,
    /// The agent above this one in the tree.
    #[schemars(with = "Option<String>")]
    pub parent: Option<AgentId>,
    /// The agents that it may give work to with `spawn_agent` and `send_message`; itself and all below it in the tree without it.
    /// A run that it starts never has more tools than its own, and each approval that its own needs.
    #[schemars(with = "Option<Vec<String>>")]
    pub delegates: Option<Vec<AgentId>>,
    /// Its role, in a word.
    pub role: Option<String>,
    /// Sampling temperature; the provider's default without it.
    pub temperature: Option<f64>,
    /// Most tokens of one model answer; the provider's default without it.
    pub max_tokens: Option<u32>,
    /// Tokens that the model can read at once. When a conversation fills four fifths of them, its older turns are summarised.
    pub window_tokens: usize,
    /// `adaptive`: the model thinks as much as it finds right, which newer models of providers of kind `anthropic` want in place
    /// of `thinking_tokens`. No thinking is asked for without either.
    #[schemars(with = "Option<String>")]
    pub thinking: Option<Thinking>,
    /// Tokens of each answer that may go into thinking, at least 1024 and fewer than `max_tokens`; only for models of
    /// providers of kind `anthropic`. No thinking is asked for without it.
    pub thinking_tokens: Option<u32>,
    /// Whether the model sees pictures: those in the messages of users then go to it; else they leave the text.
    pub vision: bool,
    /// Language of answers, such as `en-US`; the model's choice without it.
    pub language: Option<String>,
    /// Where its tools work; else `work/AGENT` in the data directory.
    pub workdir: Option<PathBuf>,
    /// A folder below the workdir with a folder for each skill; their names and descriptions stand in its prompt. No skills
    /// without it.
    pub skills: Option<String>,
    /// What becomes of text that a stop cut off: `discard` (people see it, the model does not) or `keep`.
    #[schemars(with = "String")]
    pub partial: PartialPolicy,
    /// Per tool, or `*` for all others: `auto` (it runs), `ask` (a person is asked each time), `deny`.
    #[schemars(with = "BTreeMap<String, String>")]
    pub approvals: BTreeMap<String, ApprovalPolicy>,
    /// Seconds without use after which a session of this agent expires; as `[sessions]` says without it.
    pub idle_s: Option<u64>,
    /// Tokens, in and out, that its runs may use in one UTC day; no limit without it.
    pub daily_tokens: Option<u64>,
    /// What its runs may cost in one UTC day, in the currency of `price`; no limit without it.
    pub daily_cost: Option<f64>,
    /// What a million tokens cost: `{ input = 3.0, output = 15.0 }`.
    #[schemars(with = "Option<BTreeMap<String, f64>>")]
    pub price: Option<Price>,
    /// Seconds after which a command of `shell` is ended whose call names no `timeout_s`; none in the background is.
    pub shell_timeout_s: u64,
    /// `auto`: commands run in a PID namespace of their own where the kernel gives one; `pid`: or not at all; `none`: never.
    pub isolate: Isolate,
}

/// The value of `thinking`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Thinking {
    /// As much as the model finds right.
    Adaptive,
}

impl AgentConfig {
    /// How its model is asked to think.
    #[must_use]
    pub fn thinking_mode(&self) -> Option<ThinkingMode> {
        match self.thinking {
            Some(Thinking::Adaptive) => Some(ThinkingMode::Adaptive),
            None => self.thinking_tokens.map(ThinkingMode::Tokens),
        }
    }

    /// What is wrong with the way in which its model is asked to think: the API's rules, so that a wrong setting is found
    /// here and not at the first message.
    #[must_use]
    pub fn thinking_problem(&self) -> Option<String> {
        match self.thinking_mode()? {
            ThinkingMode::Adaptive if self.thinking_tokens.is_some() => {
                return Some("is not needed with thinking = \"adaptive\"; leave one of them out".to_owned());
            }
            ThinkingMode::Adaptive => {}
            ThinkingMode::Tokens(budget) => {
                if let Some(text) = budget_problem(budget, self.max_tokens) {
                    return Some(text);
                }
            }
        }
        let warm = self.temperature.filter(|temperature| (temperature - 1.0).abs() > f64::EPSILON)?;
        Some(format!("a thinking model takes no temperature but 1, not {warm}; leave temperature out"))
    }

    /// The tool with which it reads its skills.
    #[must_use]
    pub fn reads_with(&self) -> Option<&'static str> {
        READERS.into_iter().find(|tool| self.has_tool(tool) && self.approval(tool) != ApprovalPolicy::Deny)
    }

    /// What is wrong with the folder of its skills.
    #[must_use]
    pub fn skills_problem(&self) -> Option<String> {
        let folder = self.skills.as_deref()?;
        let is_below = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        let names_one = Path::new(folder).file_name().is_some() && !folder.contains(char::is_control);
        if !names_one || !Path::new(folder).components().all(is_below) {
            return Some(format!(
                "{folder:?} is no folder below the workdir; name it as from there, such as \"skills\""
            ));
        }
        let told = "nothing could read them: allow the agent the tool read_file, or shell";
        self.reads_with().is_none().then(|| told.to_owned())
    }

    /// What it may spend in a day.
    #[must_use]
    pub fn daily_limit(&self) -> DailyLimit {
        DailyLimit { tokens: self.daily_tokens, cost: self.daily_cost, price: self.price }
    }

    /// Whether calls of a tool wait for a person.
    #[must_use]
    pub fn approval(&self, tool: &str) -> ApprovalPolicy {
        policy_of(&self.approvals, tool)
    }
}

fn budget_problem(budget: u32, max_tokens: Option<u32>) -> Option<String> {
    if budget < LEAST_THINKING {
        return Some(format!(
            "{budget} is too few; the least is {LEAST_THINKING}, and without the key there is no thinking"
        ));
    }
    let most = max_tokens.filter(|most| *most <= budget)?;
    Some(format!("{budget} must be less than max_tokens = {most}, of which it is a part"))
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            model: "demo/demo".to_owned(),
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
            vision: false,
            language: None,
            workdir: None,
            skills: None,
            partial: PartialPolicy::Discard,
            approvals: BTreeMap::new(),
            idle_s: None,
            daily_tokens: None,
            daily_cost: None,
            price: None,
            shell_timeout_s: 600,
            isolate: Isolate::Auto,
        }
    }
}

/// Limits of runs and doors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Runs at work at the same time.
    pub in_flight_runs: usize,
    /// Messages that may wait in one session.
    pub queued_per_session: usize,
    /// How many sub-runs may stand below each other; 0 forbids them.
    pub sub_run_depth: usize,
    /// Sub-runs of one run that are at work at the same time.
    pub sub_runs_per_run: usize,
    /// Commands of one session that may run in the background at the same time.
    pub background_per_session: usize,
    /// Seconds after which a call that nobody allowed counts as denied.
    pub approval_timeout_s: u64,
    /// Seconds a run may take from its acceptance.
    pub run_timeout_s: u64,
    /// Model calls of one run.
    pub max_steps: u32,
    /// Tokens of one run, in and out; no limit without it.
    pub max_run_tokens: Option<u64>,
    /// Bytes of a request body.
    pub request_body_bytes: usize,
    /// Bytes of a session that is imported.
    pub import_bytes: usize,
    /// Bytes of a tool's output that the model gets.
    pub tool_output_bytes: usize,
}

impl Limits {
    /// What the registry needs to know of them.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        let (queued, depth, children) = (self.queued_per_session, self.sub_run_depth, self.sub_runs_per_run);
        Bounds { queued, depth, children }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let bounds = Bounds::default();
        Self {
            in_flight_runs: 64,
            queued_per_session: bounds.queued,
            sub_run_depth: bounds.depth,
            sub_runs_per_run: bounds.children,
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
