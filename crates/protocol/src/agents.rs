//! Bodies of agents: create, show, tree, delete.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::{AgentRow, ComputeStatus};
use crate::ids::{AgentId, RunId};
use crate::json_object::optional_object;
use crate::sandbox::SandboxMode;

/// Body of `POST /api/agents`. The fields have the same meaning and the same defaults as the keys under `[agents.X]` in
/// the configuration.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewAgent {
    /// The id. No other agent may have it.
    pub id: AgentId,
    /// `provider/model`.
    pub model: String,
    /// The system prompt.
    pub prompt: Option<String>,
    /// Names of tools; `*` means all of them.
    pub tools: Option<Vec<String>>,
    /// MCP servers that the agent may use. Default: every configured one.
    pub mcp: Option<Vec<String>>,
    /// The parent in the tree of agents: a configured agent, or one that was created at run time.
    pub parent: Option<AgentId>,
    /// Agents that this agent may delegate work to. Default: itself and all agents below it.
    pub delegates: Option<Vec<AgentId>>,
    /// The role, in one word.
    pub role: Option<String>,
    pub temperature: Option<f64>,
    /// Maximum number of tokens in one model answer.
    pub max_tokens: Option<u32>,
    /// Size of the model's context window in tokens.
    pub window_tokens: Option<u64>,
    /// Mode of thinking: `adaptive`.
    pub thinking: Option<String>,
    /// Maximum number of tokens of one answer that may be used for thinking.
    pub thinking_tokens: Option<u32>,
    /// True if the provider may search the web by itself.
    pub web_search: Option<bool>,
    /// True if the model can see images.
    pub vision: Option<bool>,
    /// Language of answers, such as `en-US`.
    pub language: Option<String>,
    /// The working directory of its tools. Default: `$QUELL_WORK/ID`, else `ID` in `<data directory>-work`.
    pub workdir: Option<String>,
    /// A folder below the working directory, with one folder for each skill.
    pub skills: Option<String>,
    /// Whether its prompt has the `AGENTS.md` of the working directory. Default: if `workdir` is set.
    pub agents_md: Option<bool>,
    /// Treatment of text that a stop cut off: `discard` or `keep`.
    pub partial: Option<String>,
    /// Approval policy per tool, or `*` for all others: `auto`, `ask`, `deny`.
    pub approvals: Option<BTreeMap<String, String>>,
    /// Number of different principals that must allow a call that asks.
    pub approval_quorum: Option<u32>,
    /// Isolation of commands: `auto`, `pid` or `none`.
    pub isolate: Option<String>,
    /// What commands and file tools may reach; `workspace` if absent.
    pub sandbox: Option<SandboxMode>,
    /// Directories that commands may write besides the working directory.
    pub writable: Option<Vec<String>>,
    /// Places that commands may read although they are hidden.
    pub readable: Option<Vec<String>>,
    /// Further places that commands may not see.
    pub hidden: Option<Vec<String>>,
    /// User and group id of its commands, where the daemon runs as root.
    pub run_as: Option<u32>,
    /// Servers that commands may reach: `on`, `off`, or a list such as `["example.org:443"]`.
    pub network: Option<NetworkSetting>,
    /// True if commands may create namespaces, as Chromium's sandbox does.
    pub nested_namespaces: Option<bool>,
    /// Processes and threads that one command may have at the same time; 0 for no limit.
    pub max_processes: Option<u32>,
    /// Writable memory of each process of a command, in MiB.
    pub max_memory_mb: Option<u64>,
    /// True if commands are refused where a layer of the sandbox is missing.
    pub sandbox_require: Option<bool>,
    /// True if calls may ask a person to run outside of the sandbox; true if absent.
    pub escalate: Option<bool>,
    /// Time limit in seconds of a foreground command whose call sets none.
    pub shell_timeout_s: Option<u64>,
    /// Seconds without use after which a session of this agent expires.
    pub idle_s: Option<u64>,
    /// Tokens, input and output together, that its runs may use in one UTC day.
    pub daily_tokens: Option<u64>,
    /// Cost of its runs in one UTC day, in the currency of `price`.
    pub daily_cost: Option<f64>,
    /// Price of a million tokens.
    #[serde(default, deserialize_with = "optional_object")]
    pub price: Option<Price>,
}

/// Servers that the commands of an agent may reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum NetworkSetting {
    /// `on` or `off`.
    Word(String),
    /// Entries such as `example.org:443`.
    List(Vec<String>),
}

/// Price of a million tokens, in the currency of `dailyCost`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Price of a million input tokens.
    pub input: f64,
    /// Price of a million output tokens.
    pub output: f64,
}

/// An agent, as `GET /api/agents/{id}` returns it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AgentView {
    /// The agent, as the list shows it.
    #[serde(flatten)]
    pub row: AgentRow,
    /// The spending of today.
    pub spend: Spend,
}

/// Spending of an agent in one day, and its limits.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Spend {
    /// The UTC day, `YYYY-MM-DD`.
    pub day: String,
    /// Tokens, input and output together, active runs included.
    pub tokens: u64,
    /// Cost of these tokens, if a price is configured.
    pub cost: Option<f64>,
    /// Tokens that the agent may use in a day.
    pub daily_tokens: Option<u64>,
    /// Cost that the agent may cause in a day.
    pub daily_cost: Option<f64>,
}

impl NewAgent {
    /// Makes an agent with nothing but a model.
    #[must_use]
    pub fn new(id: AgentId, model: String) -> Self {
        Self {
            id,
            model,
            prompt: None,
            tools: None,
            mcp: None,
            parent: None,
            delegates: None,
            role: None,
            temperature: None,
            max_tokens: None,
            window_tokens: None,
            thinking: None,
            thinking_tokens: None,
            web_search: None,
            vision: None,
            language: None,
            workdir: None,
            skills: None,
            agents_md: None,
            partial: None,
            approvals: None,
            approval_quorum: None,
            isolate: None,
            sandbox: None,
            writable: None,
            readable: None,
            hidden: None,
            run_as: None,
            network: None,
            nested_namespaces: None,
            max_processes: None,
            max_memory_mb: None,
            sandbox_require: None,
            escalate: None,
            shell_timeout_s: None,
            idle_s: None,
            daily_tokens: None,
            daily_cost: None,
            price: None,
        }
    }
}

/// An agent in the tree of all agents, as `GET /api/agents/tree` returns it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentNode {
    pub id: AgentId,
    pub role: Option<String>,
    /// `provider/model`; the first one of a list of models.
    pub model: String,
    /// All models, in the order in which they take over when a provider fails.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// Compute status over all runs of the agent.
    pub compute_status: ComputeStatus,
    /// Runs of the agent that have not ended.
    pub active_runs: Vec<RunId>,
    /// True for the agent that runs when a message names none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default: bool,
    /// The agents directly below this one.
    #[schema(no_recursion)]
    pub children: Vec<AgentNode>,
}

/// Answer of `DELETE /api/agents/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentsDeleted {
    /// The agent and all agents below it.
    pub deleted: Vec<AgentId>,
    /// Runs of these agents, and their sub-runs, that this call stopped, queued ones included. Empty without `?force`.
    pub run_ids: Vec<RunId>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::NewAgent;

    #[test]
    fn the_price_of_an_agent_is_no_array() {
        let agent = |price: Value| from_value::<NewAgent>(json!({"id": "a", "model": "p/m", "price": price}));
        assert!(agent(json!([1.0, 2.0])).is_err());
        assert!(agent(json!({"input": 1.0, "output": 2.0})).unwrap().price.is_some());
        assert!(agent(Value::Null).unwrap().price.is_none());
    }
}
