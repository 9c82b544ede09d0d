//! `quell approvals`: calls that wait for a person, and the answer to one.

use quell_protocol::approval::{ApprovalRow, Decision};

use super::{Exit, VerbError};
use crate::link::Link;
use crate::term::{Io, Tone};
use crate::words::{ago, call_in_full, one_line, until};

/// Arguments of `quell approvals`.
#[derive(Debug, clap::Args)]
#[command(after_help = "An agent asks where its configuration says so: approvals.shell = \"ask\".\n\n\
    Examples:\n  quell approvals\n  quell approvals allow 0198a3c2-...\n  quell approvals deny 0198a3c2-...")]
pub struct ApprovalsArgs {
    #[command(subcommand)]
    what: Option<ApprovalVerb>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum ApprovalVerb {
    /// List the calls that wait (the default)
    List,
    /// Let a call run
    Allow {
        /// The approval's id
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Forbid a call; the model is told
    Deny {
        /// The approval's id
        #[arg(value_name = "ID")]
        id: String,
    },
}

pub(super) async fn run(link: &Link, args: ApprovalsArgs, io: &mut Io) -> Result<Exit, VerbError> {
    match args.what {
        Some(ApprovalVerb::Allow { id }) => answer(link, &id, Decision::Allow, args.json, io).await,
        Some(ApprovalVerb::Deny { id }) => answer(link, &id, Decision::Deny, args.json, io).await,
        Some(ApprovalVerb::List) | None => list(link, args.json, io).await,
    }
}

async fn answer(link: &Link, id: &str, decision: Decision, json: bool, io: &mut Io) -> Result<Exit, VerbError> {
    let row = link.answer_approval(id, decision).await?;
    if json {
        io.screen.json(&row)?;
        return Ok(Exit::Done);
    }
    let word = match decision {
        Decision::Allow => "allowed",
        Decision::Deny => "denied",
    };
    let text = format!("{word}: {} of run {}", what(&row), row.run_id);
    let text = io.screen.out().paint(Tone::Done, &text);
    io.screen.line(&text)?;
    Ok(Exit::Done)
}

async fn list(link: &Link, json: bool, io: &mut Io) -> Result<Exit, VerbError> {
    let rows = link.approvals().await?;
    if json {
        io.screen.json(&rows)?;
        return Ok(Exit::Done);
    }
    if rows.is_empty() {
        io.screen.remark("nothing waits for an approval")?;
        return Ok(Exit::Done);
    }
    for (nth, row) in rows.iter().enumerate() {
        if nth > 0 {
            io.screen.line("")?;
        }
        show(row, io)?;
    }
    Ok(Exit::Done)
}

/// A block, not a row of a table: who decides sees the call to its last character.
fn show(row: &ApprovalRow, io: &mut Io) -> Result<(), VerbError> {
    let now = jiff::Timestamp::now();
    let head = io.screen.out().paint(Tone::Waiting, &format!("◔ {}", one_line(&row.tool, 60)));
    let asked = ago(&row.requested_at, now);
    let left = until(&row.expires_at, now).unwrap_or_default();
    io.screen.line(&format!("{head}  agent {} · session {} · for {}", row.agent, row.session_key, row.principal))?;
    io.screen.line(&format!("  asked {asked} · counts as denied in {left} · run {}", row.run_id))?;
    for line in call_in_full(&row.arguments) {
        io.screen.line(&format!("  {line}"))?;
    }
    io.screen.line(&format!("  quell approvals allow {}", row.id))?;
    Ok(())
}

/// The call, as far as fits on a line.
fn what(row: &ApprovalRow) -> String {
    one_line(&format!("{} {}", row.tool, row.arguments), 200)
}
