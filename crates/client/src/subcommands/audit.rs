//! `quell audit`: print the audit log.

use quell_protocol::audit::AuditRow;

use super::table::CliTableCell;
use super::{SubcommandContext, SubcommandResult};
use crate::daemon_client::DaemonClient;
use crate::term::CommandIo;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  quell audit\n  quell audit --after 120\n  quell audit --json\n\n\
    Needs the admin token. The oldest entries come first; --after N continues after entry N.")]
pub struct AuditArgs {
    /// Only entries with a greater number
    #[arg(long, value_name = "N", default_value_t = 0)]
    after: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(client: &DaemonClient, args: AuditArgs, io: &mut CommandIo) -> SubcommandResult {
    let rows = client.list_audit_entries(args.after).await?;
    let heads = ["NR", "WHEN", "WHO", "FROM", "DID", "TO", "MORE"];
    let nothing = "no entries: stops, holds, approvals, deletions and token changes are recorded when they happen";
    SubcommandContext::new(client, io, args.json).print_table(&rows, heads, audit_row, nothing)
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
