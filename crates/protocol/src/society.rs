//! Bodies of the routes that make, delete and draw agents.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::{AgentRow, ComputeStatus};
use crate::ids::{AgentId, RunId};
use crate::object::optional_object;

/// Body of `POST /api/agents`: what stands under `[agents.X]` of the configuration, with the same meaning. What is absent has
/// the default that it has there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewAgent {
    /// Its id, which no agent has.
    pub id: AgentId,
    /// `provider/model`.
    pub model: String,
    /// The system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Tool names; `*` is all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// MCP servers that it may use; every configured one without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp: Option<Vec<String>>,
    /// The agent above this one in the tree: a configured one, or one made at run time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<AgentId>,
    /// The agents that it may give work to; itself and all below it without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegates: Option<Vec<AgentId>>,
    /// Its role, in a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Sampling temperature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Most tokens of one model answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Tokens that the model can read at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_tokens: Option<u64>,
    /// `adaptive`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// Tokens of each answer that may go into thinking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking_tokens: Option<u32>,
    /// Whether the model sees pictures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vision: Option<bool>,
    /// Language of answers, such as `en-US`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Where its tools work; else `work/AGENT` in the data directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// A folder below the workdir with a folder for each skill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skills: Option<String>,
    /// What becomes of text that a stop cut off: `discard` or `keep`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
    /// Per tool, or `*` for all others: `auto`, `ask`, `deny`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approvals: Option<BTreeMap<String, String>>,
    /// `auto`, `pid` or `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolate: Option<String>,
    /// Seconds that a command in the foreground may take where its call says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell_timeout_s: Option<u64>,
    /// Seconds without use after which a session of it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_s: Option<u64>,
    /// Tokens, in and out, that its runs may use in one UTC day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daily_tokens: Option<u64>,
    /// What its runs may cost in one UTC day, in the currency of `price`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daily_cost: Option<f64>,
    /// What a million tokens cost.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "optional_object")]
    pub price: Option<Price>,
}

/// What a million tokens cost, in the currency of the limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// A million tokens sent to the model.
    pub input: f64,
    /// A million tokens that it makes.
    pub output: f64,
}

/// An agent, as `GET /api/agents/{id}` answers it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AgentView {
    /// As the list shows it.
    #[serde(flatten)]
    pub row: AgentRow,
    /// What it has spent today.
    pub spend: Spend,
}

/// What an agent has spent in a day, and what it may.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Spend {
    /// The UTC day, `YYYY-MM-DD`.
    pub day: String,
    /// Tokens, in and out; those of runs at work, too.
    pub tokens: u64,
    /// What they cost, where a price is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Tokens that it may use in a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daily_tokens: Option<u64>,
    /// What its runs may cost in a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daily_cost: Option<f64>,
}

impl NewAgent {
    /// An agent of which nothing but its model is said.
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
            vision: None,
            language: None,
            workdir: None,
            skills: None,
            partial: None,
            approvals: None,
            isolate: None,
            shell_timeout_s: None,
            idle_s: None,
            daily_tokens: None,
            daily_cost: None,
            price: None,
        }
    }
}

/// An agent in the tree of all, as `GET /api/agents/tree` answers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentNode {
    /// Its id.
    pub id: AgentId,
    /// Its role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// `provider/model`.
    pub model: String,
    /// What its runs are doing.
    pub compute_status: ComputeStatus,
    /// Its runs that are not over.
    pub active_runs: Vec<RunId>,
    /// True for the agent that runs when none is named.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default: bool,
    /// The agents right below it.
    #[schema(no_recursion)]
    pub children: Vec<AgentNode>,
}

/// Answer of `DELETE /api/agents/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentsDeleted {
    /// The agent and all that stood below it.
    pub deleted: Vec<AgentId>,
    /// Runs of theirs, and below those, that this call stopped; queued ones included. Empty without `?force`.
    pub run_ids: Vec<RunId>,
}
