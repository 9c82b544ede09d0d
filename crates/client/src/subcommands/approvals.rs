//! `quell approvals`: list pending approvals, allow or deny one.

use quell_protocol::approval::{ApprovalRow, Decision};

use super::{Exit, SubcommandError};
use crate::daemon_client::DaemonClient;
use crate::term::{CommandIo, OutputStyle};
use crate::text_format::{one_line, relative_age, time_left, tool_call_lines};

/// Arguments of `quell approvals`.
#[derive(Debug, clap::Args)]
#[command(after_help = "An agent asks where its configuration says so: approvals.shell = \"ask\".\n\n\
    Examples:\n  quell approvals\n  quell approvals allow 0198a3c2-...\n  quell approvals deny 0198a3c2-...")]
pub struct ApprovalsArgs {
    #[command(subcommand)]
    what: Option<ApprovalsSubcommand>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum ApprovalsSubcommand {
    /// List the waiting calls (the default)
    List,
    /// Allow a call to run
    Allow {
        /// The approval's id
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Deny a call; the model is told
    Deny {
        /// The approval's id
        #[arg(value_name = "ID")]
        id: String,
    },
}

pub(super) async fn run(
    client: &DaemonClient,
    args: ApprovalsArgs,
    io: &mut CommandIo,
) -> Result<Exit, SubcommandError> {
    match args.what {
        Some(ApprovalsSubcommand::Allow { id }) => decide_approval(client, &id, Decision::Allow, args.json, io).await,
        Some(ApprovalsSubcommand::Deny { id }) => decide_approval(client, &id, Decision::Deny, args.json, io).await,
        Some(ApprovalsSubcommand::List) | None => print_approvals(client, args.json, io).await,
    }
}

async fn decide_approval(
    client: &DaemonClient,
    id: &str,
    decision: Decision,
    json: bool,
    io: &mut CommandIo,
) -> Result<Exit, SubcommandError> {
    let row = client.answer_approval(id, decision).await?;
    if json {
        io.output.print_json(&row)?;
        return Ok(Exit::Done);
    }
    let word = match decision {
        Decision::Allow => "allowed",
        Decision::Deny => "denied",
    };
    let text = format!("{word}: {} of run {}", call_summary(&row), row.run_id);
    let text = io.output.stdout().apply_style(OutputStyle::Done, &text);
    io.output.print_line(&text)?;
    Ok(Exit::Done)
}

async fn print_approvals(client: &DaemonClient, json: bool, io: &mut CommandIo) -> Result<Exit, SubcommandError> {
    let rows = client.list_approvals().await?;
    if json {
        io.output.print_json(&rows)?;
        return Ok(Exit::Done);
    }
    if rows.is_empty() {
        io.output.eprint_line("nothing waits for an approval")?;
        return Ok(Exit::Done);
    }
    for (nth, row) in rows.iter().enumerate() {
        if nth > 0 {
            io.output.print_line("")?;
        }
        print_approval(row, io)?;
    }
    Ok(Exit::Done)
}

/// Prints a block instead of a table row, so that the whole call can be read before deciding.
fn print_approval(row: &ApprovalRow, io: &mut CommandIo) -> Result<(), SubcommandError> {
    let now = jiff::Timestamp::now();
    let head = io.output.stdout().apply_style(OutputStyle::Waiting, &format!("◔ {}", one_line(&row.tool, 60)));
    let asked = relative_age(&row.requested_at, now);
    let left = time_left(&row.expires_at, now).unwrap_or_default();
    io.output
        .print_line(&format!("{head}  agent {} · session {} · for {}", row.agent, row.session_key, row.principal))?;
    io.output
        .print_line(&format!("  asked {asked} · denied in {left} unless somebody answers · run {}", row.run_id))?;
    for line in tool_call_lines(&row.arguments) {
        io.output.print_line(&format!("  {line}"))?;
    }
    io.output.print_line(&format!("  quell approvals allow {}", row.id))?;
    Ok(())
}

fn call_summary(row: &ApprovalRow) -> String {
    one_line(&format!("{} {}", row.tool, row.arguments), 200)
}
