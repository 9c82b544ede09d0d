//! `quell audit`: print the audit log, or export it as lines of JSON.

use quell_protocol::audit::AuditRow;

use super::table::CliTableCell;
use super::{Exit, SubcommandContext, SubcommandResult};
use crate::daemon_client::DaemonClient;
use crate::term::CommandIo;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  quell audit\n  quell audit --after 120\n  quell audit --json\n  quell audit export > audit.jsonl\n\n\
    Needs the admin token. The oldest entries come first; --after N continues after entry N."
)]
pub struct AuditArgs {
    #[command(subcommand)]
    what: Option<AuditSubcommand>,
    /// Only entries with a greater number
    #[arg(long, value_name = "N", default_value_t = 0, global = true)]
    after: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum AuditSubcommand {
    /// Print all entries as lines of JSON, the oldest first
    Export,
}

pub(super) async fn run(client: &DaemonClient, args: AuditArgs, io: &mut CommandIo) -> SubcommandResult {
    if let Some(AuditSubcommand::Export) = args.what {
        return export(client, args.after, io).await;
    }
    let rows = client.list_audit_entries(args.after).await?;
    let heads = ["NR", "WHEN", "WHO", "FROM", "DID", "TO", "MORE"];
    let nothing = "no entries: stops, holds, approvals, deletions and token changes are recorded when they happen";
    SubcommandContext::new(client, io, args.json).print_table(&rows, heads, audit_row, nothing)
}

/// Prints page by page, so that a long log is never held in memory.
async fn export(client: &DaemonClient, mut after: u64, io: &mut CommandIo) -> SubcommandResult {
    loop {
        let (rows, next) = client.list_audit_page(after).await?;
        for row in &rows {
            io.output.print_line(&serde_json::to_string(row).unwrap_or_default())?;
        }
        let Some(next) = next else { return Ok(Exit::Done) };
        after = next;
    }
}

fn audit_row(row: &AuditRow) -> [CliTableCell; 7] {
    let from = match &row.from {
        Some(from) => format!("{} {from}", row.surface.as_str()),
        None => row.surface.as_str().to_owned(),
    };
    [
        row.seq.to_string().into(),
        CliTableCell::truncated(row.at.get(..19).unwrap_or(&row.at), 32),
        CliTableCell::truncated(row.principal.as_str(), 40),
        CliTableCell::truncated(&from, 80),
        CliTableCell::truncated(&row.action, 24),
        CliTableCell::truncated(row.target.as_deref().unwrap_or_default(), 80),
        CliTableCell::truncated(row.detail.as_deref().unwrap_or_default(), 200),
    ]
}
