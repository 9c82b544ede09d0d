//! `quell agents`: the agents as a list and as a tree, with what each does and has spent; made and deleted at run time.

mod create;

use std::collections::BTreeSet;

use quell_protocol::AgentId;
use quell_protocol::api::AgentRow;
use quell_protocol::society::{AgentNode, AgentsDeleted, Spend};

use super::table::{Cell, compute_cell, lay_out, painted};
use super::{Exit, Format, VerbError, agent_id};
use crate::link::Link;
use crate::term::{Io, Tone};
use crate::words::one_line;
use create::CreateArgs;

/// Arguments of `quell agents`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  quell agents\n  quell agents tree\n  quell agents show coder\n  \
    quell agents create scout --model openai/gpt-5 --parent main --role scout --tool read_file\n  \
    quell agents delete scout --force\n  quell agents --json | jq '.[].id'")]
pub struct AgentsArgs {
    #[command(subcommand)]
    what: Option<AgentsVerb>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum AgentsVerb {
    /// List the agents (the default)
    List,
    /// Show an agent: what it does and what it has spent today
    Show {
        /// Its id
        #[arg(value_parser = agent_id)]
        id: AgentId,
    },
    /// Draw the agents as a tree
    Tree,
    /// Make an agent; it is there again after a restart
    Create(Box<CreateArgs>),
    /// Delete an agent that was made at run time, with all below it
    Delete {
        /// Its id
        #[arg(value_parser = agent_id)]
        id: AgentId,
        /// Stop its runs and those of all below it first, and wait until they are over
        #[arg(long)]
        force: bool,
    },
}

pub(super) async fn run(link: &Link, args: AgentsArgs, io: &mut Io) -> Result<Exit, VerbError> {
    let format = Format::from(args.json);
    match args.what {
        Some(AgentsVerb::List) | None => list(link, format, io).await?,
        Some(AgentsVerb::Show { id }) => show(link, &id, format, io).await?,
        Some(AgentsVerb::Tree) => tree(link, format, io).await?,
        Some(AgentsVerb::Create(args)) => {
            let made = link.create_agent(&args.agent()).await?;
            if format == Format::Json {
                io.screen.json(&made)?;
            } else {
                io.screen.line(&format!("agent {} is made; talk to it with `quell send --agent {0} TEXT`", made.id))?;
            }
        }
        Some(AgentsVerb::Delete { id, force: false }) => said(&link.delete_agent(&id).await?, format, io)?,
        Some(AgentsVerb::Delete { id, force: true }) => said(&link.delete_agent_by_force(&id).await?, format, io)?,
    }
    Ok(Exit::Done)
}

fn said(deleted: &AgentsDeleted, format: Format, io: &mut Io) -> Result<(), VerbError> {
    if format == Format::Json {
        io.screen.json(deleted)?;
        return Ok(());
    }
    for run in &deleted.run_ids {
        io.screen.line(&format!("run {run} was stopped"))?;
    }
    for id in &deleted.deleted {
        io.screen.line(&format!("agent {id} is deleted"))?;
    }
    Ok(())
}

async fn list(link: &Link, format: Format, io: &mut Io) -> Result<(), VerbError> {
    let agents = link.agents().await?;
    if format == Format::Json {
        io.screen.json(&agents)?;
        return Ok(());
    }
    if agents.is_empty() {
        io.screen.remark("no agents: name one in quell.toml under [agents.NAME]")?;
        return Ok(());
    }
    let rows: Vec<[Cell; 5]> = as_tree(&agents).into_iter().map(|(depth, agent)| row(depth, agent)).collect();
    for line in lay_out(io.screen.out(), HEADS, &rows) {
        io.screen.line(&line)?;
    }
    Ok(())
}

const HEADS: [&str; 5] = ["AGENT", "MODEL", "ROLE", "STATE", "RUNS"];

async fn show(link: &Link, id: &AgentId, format: Format, io: &mut Io) -> Result<(), VerbError> {
    let agent = link.agent(id).await?;
    if format == Format::Json {
        io.screen.json(&agent)?;
        return Ok(());
    }
    let row = &agent.row;
    let mark = if row.default { " (default)" } else { "" };
    let head = format!("{}{mark} · {}", row.id, one_line(&row.model, 80));
    let state = painted(io.screen.out(), &compute_cell(row.compute_status));
    let head = io.screen.out().paint(Tone::Strong, &head);
    io.screen.line(&format!("{head} · {state}"))?;
    if let Some(role) = &row.role {
        io.screen.line(&format!("role: {}", one_line(role, 80)))?;
    }
    if let Some(parent) = &row.parent {
        io.screen.line(&format!("parent: {parent}"))?;
    }
    if !row.children.is_empty() {
        let children: Vec<&str> = row.children.iter().map(AgentId::as_str).collect();
        io.screen.line(&format!("children: {}", children.join(", ")))?;
    }
    io.screen.line(&spent(&agent.spend))?;
    for run in &row.active_runs {
        io.screen.line(&format!("active: run {run} · stop it with `quell stop {run}`"))?;
    }
    Ok(())
}

fn spent(spend: &Spend) -> String {
    let tokens = spend.daily_tokens.map(|most| format!(" of {most}")).unwrap_or_default();
    let cost = spend.cost.map(|cost| {
        let most = spend.daily_cost.map(|most| format!(" of {most}")).unwrap_or_default();
        format!(" · cost {cost:.4}{most}")
    });
    format!("spent on {} (UTC): {} tokens{tokens}{}", one_line(&spend.day, 10), spend.tokens, cost.unwrap_or_default())
}

async fn tree(link: &Link, format: Format, io: &mut Io) -> Result<(), VerbError> {
    let roots = link.agent_tree().await?;
    if format == Format::Json {
        io.screen.json(&roots)?;
        return Ok(());
    }
    let branches = if io.screen.out().is_terminal() { Branches::Drawn } else { Branches::Indented };
    let mut rows = Vec::new();
    for root in &roots {
        draw(root, ("", ""), branches, &mut rows);
    }
    for line in lay_out(io.screen.out(), HEADS, &rows) {
        io.screen.line(&line)?;
    }
    Ok(())
}

/// How children stand below their parent.
#[derive(Debug, Clone, Copy)]
enum Branches {
    /// For a person's eyes.
    Drawn,
    /// For programs that cut lines at their first letter.
    Indented,
}

impl Branches {
    /// What stands before a child and before all below it; `more` when another child follows.
    fn of(self, more: Follows) -> (&'static str, &'static str) {
        match (self, more) {
            (Self::Drawn, Follows::Another) => ("├ ", "│ "),
            (Self::Drawn, Follows::None) => ("└ ", "  "),
            (Self::Indented, _) => ("  ", "  "),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Follows {
    Another,
    None,
}

/// The daemon bounds the depth of the tree, and the reader of its JSON does.
fn draw(node: &AgentNode, (own, below): (&str, &str), branches: Branches, rows: &mut Vec<[Cell; 5]>) {
    let mark = if node.default { " (default)" } else { "" };
    let name = format!("{own}{}{mark}", node.id);
    let runs = if node.active_runs.is_empty() { String::new() } else { node.active_runs.len().to_string() };
    let role = node.role.as_deref().unwrap_or_default();
    rows.push([
        Cell::from(name),
        Cell::cut(&node.model, 40),
        Cell::cut(role, 40),
        compute_cell(node.compute_status),
        Cell::from(runs),
    ]);
    for (at, child) in node.children.iter().enumerate() {
        let follows = if at + 1 < node.children.len() { Follows::Another } else { Follows::None };
        let (branch, rest) = branches.of(follows);
        draw(child, (&format!("{below}{branch}"), &format!("{below}{rest}")), branches, rows);
    }
}

fn row(depth: usize, agent: &AgentRow) -> [Cell; 5] {
    let mark = if agent.default { " (default)" } else { "" };
    let runs = if agent.active_runs.is_empty() { String::new() } else { agent.active_runs.len().to_string() };
    [
        Cell::from(format!("{}{}{mark}", "· ".repeat(depth), agent.id)),
        Cell::cut(&agent.model, 40),
        Cell::cut(agent.role.as_deref().unwrap_or_default(), 40),
        compute_cell(agent.compute_status),
        Cell::from(runs),
    ]
}

/// Every agent once, children below their parent. What a broken tree hides is still shown, at the top level.
fn as_tree(agents: &[AgentRow]) -> Vec<(usize, &AgentRow)> {
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
