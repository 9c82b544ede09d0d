//! `quell audit`: who did what, when and from where.

use quell_protocol::audit::AuditRow;

use super::table::{Cell, lay_out};
use super::{Exit, Format, VerbError};
use crate::link::Link;
use crate::term::Io;

/// Arguments of `quell audit`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  quell audit\n  quell audit --after 120\n  quell audit --json\n\n\
    Needs the admin token. The oldest entries come first; --after goes on where an earlier look ended.")]
pub struct AuditArgs {
    /// Only entries behind this number
    #[arg(long, value_name = "N", default_value_t = 0)]
    after: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(link: &Link, args: AuditArgs, io: &mut Io) -> Result<Exit, VerbError> {
    let rows = link.audit(args.after).await?;
    if Format::from(args.json) == Format::Json {
        io.screen.json(&rows)?;
        return Ok(Exit::Done);
    }
    if rows.is_empty() {
        io.screen
            .remark("no entries: what stops, holds, answers, deletes or changes tokens is written down from now on")?;
        return Ok(Exit::Done);
    }
    let cells: Vec<[Cell; 7]> = rows.iter().map(row).collect();
    for line in lay_out(io.screen.out(), ["NR", "WHEN", "WHO", "FROM", "DID", "TO", "MORE"], &cells) {
        io.screen.line(&line)?;
    }
    Ok(Exit::Done)
}

fn row(row: &AuditRow) -> [Cell; 7] {
    let from = match &row.from {
        Some(from) => format!("{} {from}", row.surface.word()),
        None => row.surface.word().to_owned(),
    };
    [
        row.seq.to_string().into(),
        Cell::cut(row.at.get(..19).unwrap_or(&row.at), 32),
        Cell::cut(row.principal.as_str(), 40),
        Cell::cut(&from, 80),
        Cell::cut(&row.action, 24),
        Cell::cut(row.target.as_deref().unwrap_or_default(), 80),
        Cell::cut(row.detail.as_deref().unwrap_or_default(), 200),
    ]
}
