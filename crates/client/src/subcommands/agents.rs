//! `quell agents`: list, show, create and delete agents.

mod create;

use std::collections::BTreeSet;

use quell_protocol::AgentId;
use quell_protocol::agents::{AgentNode, AgentsDeleted, Spend};
use quell_protocol::api::AgentRow;

use super::table::{CliTableCell, cell_text, compute_cell};
use super::{Exit, SubcommandContext, SubcommandResult};
use crate::daemon_client::DaemonClient;
use crate::term::{CommandIo, OutputStyle};
use crate::text_format::one_line;
use create::CreateAgentArgs;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  quell agents\n  quell agents tree\n  quell agents show coder\n  \
    quell agents create scout --model openai/gpt-5 --parent main --role scout --tool read_file\n  \
    quell agents delete scout --force\n  quell agents --json | jq '.[].id'")]
pub struct AgentsArgs {
    #[command(subcommand)]
    what: Option<AgentsSubcommand>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum AgentsSubcommand {
    /// List the agents (the default)
    List,
    /// Show an agent: its state and what it has spent today
    Show {
        /// The agent's id
        id: AgentId,
    },
    /// Show the agents as a tree
    Tree,
    /// Create an agent; it is kept across restarts
    Create(Box<CreateAgentArgs>),
    /// Delete an agent that was created at run time, with all its descendants
    Delete {
        /// The agent's id
        id: AgentId,
        /// Stop its runs and those of its descendants first, and wait until they have ended
        #[arg(long)]
        force: bool,
    },
}

pub(super) async fn run(client: &DaemonClient, args: AgentsArgs, io: &mut CommandIo) -> SubcommandResult {
    let cx = &mut SubcommandContext::new(client, io, args.json);
    match args.what {
        Some(AgentsSubcommand::List) | None => print_agents(cx).await?,
        Some(AgentsSubcommand::Show { id }) => print_agent(cx, &id).await?,
        Some(AgentsSubcommand::Tree) => print_agent_tree(cx).await?,
        Some(AgentsSubcommand::Create(args)) => {
            let made = client.create_agent(&args.into_new_agent()).await?;
            let text = format!("agent {} is made; talk to it with `quell send --agent {0} TEXT`", made.id);
            cx.print_value(&made, &text)?;
        }
        Some(AgentsSubcommand::Delete { id, force: false }) => {
            print_deleted_agents(cx, &client.delete_agent(&id).await?)?
        }
        Some(AgentsSubcommand::Delete { id, force: true }) => {
            print_deleted_agents(cx, &client.stop_and_delete_agent(&id).await?)?
        }
    }
    Ok(Exit::Done)
}

fn print_deleted_agents(cx: &mut SubcommandContext<'_>, deleted: &AgentsDeleted) -> SubcommandResult<()> {
    if cx.print_json(deleted)? {
        return Ok(());
    }
    for run in &deleted.run_ids {
        cx.io.output.print_line(&format!("run {run} was stopped"))?;
    }
    for id in &deleted.deleted {
        cx.io.output.print_line(&format!("agent {id} is deleted"))?;
    }
    Ok(())
}

async fn print_agents(cx: &mut SubcommandContext<'_>) -> SubcommandResult<()> {
    let agents = cx.client.list_agents().await?;
    if cx.print_json(&agents)? {
        return Ok(());
    }
    if agents.is_empty() {
        return Ok(cx.io.output.eprint_line("no agents: name one in quell.toml under [agents.NAME]")?);
    }
    let rows: Vec<[CliTableCell; 5]> =
        tree_order(&agents).into_iter().map(|(depth, agent)| agent_row(depth, agent)).collect();
    Ok(cx.print_rows(TABLE_HEADS, &rows)?)
}

const TABLE_HEADS: [&str; 5] = ["AGENT", "MODEL", "ROLE", "STATE", "RUNS"];

async fn print_agent(cx: &mut SubcommandContext<'_>, id: &AgentId) -> SubcommandResult<()> {
    let agent = cx.client.get_agent(id).await?;
    if cx.print_json(&agent)? {
        return Ok(());
    }
    let row = &agent.row;
    let mark = if row.default { " (default)" } else { "" };
    let head = format!("{}{mark} · {}", row.id, one_line(&chain_text(&row.model, &row.models), 200));
    let state = cell_text(cx.io.output.stdout(), &compute_cell(row.compute_status));
    let head = cx.io.output.stdout().apply_style(OutputStyle::Strong, &head);
    cx.io.output.print_line(&format!("{head} · {state}"))?;
    if let Some(role) = &row.role {
        cx.io.output.print_line(&format!("role: {}", one_line(role, 80)))?;
    }
    if let Some(parent) = &row.parent {
        cx.io.output.print_line(&format!("parent: {parent}"))?;
    }
    if !row.children.is_empty() {
        let children: Vec<&str> = row.children.iter().map(AgentId::as_str).collect();
        cx.io.output.print_line(&format!("children: {}", children.join(", ")))?;
    }
    cx.io.output.print_line(&spend_text(&agent.spend))?;
    for run in &row.active_runs {
        cx.io.output.print_line(&format!("active: run {run} · stop it with `quell stop {run}`"))?;
    }
    Ok(())
}

/// The models in their order. An older daemon names only the first.
fn chain_text(first: &str, models: &[String]) -> String {
    if models.len() > 1 { models.join(", then ") } else { first.to_owned() }
}

fn spend_text(spend: &Spend) -> String {
    let tokens = spend.daily_tokens.map(|most| format!(" of {most}")).unwrap_or_default();
    let cost = spend.cost.map(|cost| {
        let most = spend.daily_cost.map(|most| format!(" of {most}")).unwrap_or_default();
        format!(" · cost {cost:.4}{most}")
    });
    format!("spent on {} (UTC): {} tokens{tokens}{}", one_line(&spend.day, 10), spend.tokens, cost.unwrap_or_default())
}

async fn print_agent_tree(cx: &mut SubcommandContext<'_>) -> SubcommandResult<()> {
    let roots = cx.client.get_agent_tree().await?;
    if cx.print_json(&roots)? {
        return Ok(());
    }
    let branches = if cx.io.output.stdout().is_terminal() { TreeBranches::Drawn } else { TreeBranches::Indented };
    let mut rows = Vec::new();
    for root in &roots {
        push_tree_rows(root, "", "", branches, &mut rows);
    }
    Ok(cx.print_rows(TABLE_HEADS, &rows)?)
}

#[derive(Debug, Clone, Copy)]
enum TreeBranches {
    /// With box-drawing characters, for terminals.
    Drawn,
    /// With spaces only, for programs that read the columns.
    Indented,
}

impl TreeBranches {
    /// Prefix of a child's own row and of the rows below it.
    fn prefixes(self, more: SiblingPosition) -> (&'static str, &'static str) {
        match (self, more) {
            (Self::Drawn, SiblingPosition::Middle) => ("├ ", "│ "),
            (Self::Drawn, SiblingPosition::Last) => ("└ ", "  "),
            (Self::Indented, _) => ("  ", "  "),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum SiblingPosition {
    Middle,
    Last,
}

/// Recursion is safe: the daemon and the JSON parser both limit the depth of the tree.
fn push_tree_rows(node: &AgentNode, own: &str, below: &str, branches: TreeBranches, rows: &mut Vec<[CliTableCell; 5]>) {
    let mark = if node.default { " (default)" } else { "" };
    let runs = if node.active_runs.is_empty() { String::new() } else { node.active_runs.len().to_string() };
    rows.push([
        CliTableCell::from(format!("{own}{}{mark}", node.id)),
        CliTableCell::truncated(&chain_text(&node.model, &node.models), 60),
        CliTableCell::truncated(node.role.as_deref().unwrap_or_default(), 40),
        compute_cell(node.compute_status),
        CliTableCell::from(runs),
    ]);
    for (at, child) in node.children.iter().enumerate() {
        let follows = if at + 1 < node.children.len() { SiblingPosition::Middle } else { SiblingPosition::Last };
        let (branch, rest) = branches.prefixes(follows);
        push_tree_rows(child, &format!("{below}{branch}"), &format!("{below}{rest}"), branches, rows);
    }
}

fn agent_row(depth: usize, agent: &AgentRow) -> [CliTableCell; 5] {
    let mark = if agent.default { " (default)" } else { "" };
    let runs = if agent.active_runs.is_empty() { String::new() } else { agent.active_runs.len().to_string() };
    [
        CliTableCell::from(format!("{}{}{mark}", "· ".repeat(depth), agent.id)),
        CliTableCell::truncated(&chain_text(&agent.model, &agent.models), 60),
        CliTableCell::truncated(agent.role.as_deref().unwrap_or_default(), 40),
        compute_cell(agent.compute_status),
        CliTableCell::from(runs),
    ]
}

/// Lists every agent once, children below their parent. Agents that a broken tree does not reach follow at the top
/// level.
fn tree_order(agents: &[AgentRow]) -> Vec<(usize, &AgentRow)> {
    let ids: BTreeSet<&AgentId> = agents.iter().map(|agent| &agent.id).collect();
    let is_root = |agent: &&AgentRow| agent.parent.as_ref().is_none_or(|parent| !ids.contains(parent));
    let mut open: Vec<(usize, &AgentRow)> = agents.iter().filter(is_root).map(|agent| (0, agent)).rev().collect();
    let mut shown: Vec<(usize, &AgentRow)> = Vec::new();
    let mut done: BTreeSet<&AgentId> = BTreeSet::new();
    while let Some((depth, agent)) = open.pop() {
        if done.insert(&agent.id) {
            shown.push((depth, agent));
            let below = agents.iter().filter(|child| child.parent.as_ref() == Some(&agent.id));
            open.extend(below.map(|child| (depth + 1, child)).rev());
        }
    }
    shown.extend(agents.iter().filter(|agent| !done.contains(&agent.id)).map(|agent| (0, agent)));
    shown
}
