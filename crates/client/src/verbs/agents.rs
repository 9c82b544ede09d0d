//! `quell agents`: the agents as a tree, with what each does now.

use std::collections::BTreeSet;

use quell_protocol::AgentId;
use quell_protocol::api::AgentRow;

use super::table::{Cell, compute_cell, lay_out};
use super::{Exit, VerbError};
use crate::link::Link;
use crate::term::Io;

/// Arguments of `quell agents`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  quell agents\n  quell agents --json | jq '.[].id'")]
pub struct AgentsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(link: &Link, args: &AgentsArgs, io: &mut Io) -> Result<Exit, VerbError> {
    let agents = link.agents().await?;
    if args.json {
        io.screen.json(&agents)?;
        return Ok(Exit::Done);
    }
    if agents.is_empty() {
        io.screen.remark("no agents: name one in quell.toml under [agents.NAME]")?;
        return Ok(Exit::Done);
    }
    let rows: Vec<[Cell; 5]> = as_tree(&agents).into_iter().map(|(depth, agent)| row(depth, agent)).collect();
    for line in lay_out(io.screen.out(), ["AGENT", "MODEL", "ROLE", "STATE", "RUNS"], &rows) {
        io.screen.line(&line)?;
    }
    Ok(Exit::Done)
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
