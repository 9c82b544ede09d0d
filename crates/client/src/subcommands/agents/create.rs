//! Arguments of `quell agents create`: the keys of `[agents.X]` in the configuration, as options.

use std::collections::BTreeMap;

use quell_protocol::AgentId;
use quell_protocol::agents::{NewAgent, Price};

/// Arguments of `quell agents create`.
#[derive(Debug, clap::Args)]
pub(super) struct CreateAgentArgs {
    /// Id of the new agent; no other agent may have it
    id: AgentId,
    /// The model: PROVIDER/MODEL
    #[arg(long)]
    model: String,
    /// The system prompt
    #[arg(long)]
    prompt: Option<String>,
    /// A tool that it may use; repeat for more. Without this option all tools
    #[arg(long = "tool", value_name = "TOOL")]
    tools: Vec<String>,
    /// Allow no tool
    #[arg(long, conflicts_with = "tools")]
    no_tools: bool,
    /// An MCP server that it may use; repeat for more. Without this option all servers
    #[arg(long = "mcp", value_name = "SERVER")]
    mcp: Vec<String>,
    /// The parent of the agent in the tree
    #[arg(long)]
    parent: Option<AgentId>,
    /// Its role in the tree, in one word
    #[arg(long)]
    role: Option<String>,
    /// Sampling temperature
    #[arg(long)]
    temperature: Option<f64>,
    /// Most tokens of one answer
    #[arg(long)]
    max_tokens: Option<u32>,
    /// Language of its answers, such as en-US
    #[arg(long)]
    language: Option<String>,
    /// Working directory of its tools
    #[arg(long)]
    workdir: Option<String>,
    /// A folder below its workdir that has one folder for each skill
    #[arg(long, value_name = "FOLDER")]
    skills: Option<String>,
    /// Whether text that a stop cut off is discarded or kept: discard, keep
    #[arg(long)]
    partial: Option<String>,
    /// Whether commands get a PID namespace: auto, pid, none
    #[arg(long)]
    isolate: Option<String>,
    /// Seconds that a foreground command may take
    #[arg(long)]
    shell_timeout_s: Option<u64>,
    /// Whether calls of a tool wait for approval: auto, ask, deny; repeat for more
    #[arg(long = "approval", value_name = "TOOL=POLICY", value_parser = parse_approval)]
    approvals: Vec<(String, String)>,
    /// How many different people must allow a call that waits for approval
    #[arg(long)]
    approval_quorum: Option<u32>,
    /// Seconds without use after which one of its sessions expires
    #[arg(long)]
    idle_s: Option<u64>,
    /// Tokens that its runs may use in a day
    #[arg(long)]
    daily_tokens: Option<u64>,
    /// Cost that its runs may reach in a day, computed with --price
    #[arg(long, requires = "price")]
    daily_cost: Option<f64>,
    /// Price of a million tokens, input and output
    #[arg(long, value_name = "IN,OUT", value_parser = parse_price)]
    price: Option<Price>,
}

impl CreateAgentArgs {
    pub(super) fn into_new_agent(self) -> NewAgent {
        let list = |names: Vec<String>| Some(names).filter(|names| !names.is_empty());
        let approvals: BTreeMap<String, String> = self.approvals.into_iter().collect();
        NewAgent {
            prompt: self.prompt,
            tools: if self.no_tools { Some(Vec::new()) } else { list(self.tools) },
            mcp: list(self.mcp),
            parent: self.parent,
            role: self.role,
            temperature: self.temperature,
            max_tokens: self.max_tokens,
            language: self.language,
            workdir: self.workdir,
            skills: self.skills,
            partial: self.partial,
            isolate: self.isolate,
            approvals: Some(approvals).filter(|approvals| !approvals.is_empty()),
            approval_quorum: self.approval_quorum,
            shell_timeout_s: self.shell_timeout_s,
            idle_s: self.idle_s,
            daily_tokens: self.daily_tokens,
            daily_cost: self.daily_cost,
            price: self.price,
            ..NewAgent::new(self.id, self.model)
        }
    }
}

fn parse_approval(text: &str) -> Result<(String, String), String> {
    let (tool, policy) = text.split_once('=').ok_or("write TOOL=POLICY, such as shell=ask")?;
    Ok((tool.to_owned(), policy.to_owned()))
}

fn parse_price(text: &str) -> Result<Price, String> {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let both = text.split_once(',').and_then(|(input, output)| Some((number(input)?, number(output)?)));
    let (input, output) = both.ok_or("write two numbers, such as 3.0,15.0")?;
    Ok(Price { input, output })
}
