//! `quell undo`: take the file changes of a run back.

use quell_protocol::RunId;
use quell_protocol::undo::{UndoReport, UndoRequest, UndoneChange};

use super::{Exit, SubcommandContext, SubcommandResult};
use crate::daemon_client::DaemonClient;
use crate::term::{CommandIo, OutputStyle};
use crate::text_format::{format_count, one_line};

/// Characters of a path or a phrase.
const MAX_CHARS: usize = 300;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Puts the files back that the file tools of the run and its sub-runs have changed. Changes by commands are not\n\
    covered, and the answer names them. If somebody has changed one of the files since, nothing is undone.\n\n\
    Examples:\n  quell undo 0198c2a4-7d1e-7c33-b1de-9f3a52c7e001\n  quell undo 0198c2a4-7d1e-7c33-b1de-9f3a52c7e001 --force"
)]
pub struct UndoArgs {
    /// The run's id
    #[arg(value_name = "RUN")]
    run: RunId,
    /// Also put files back that were changed since; those changes are lost
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(client: &DaemonClient, args: UndoArgs, io: &mut CommandIo) -> SubcommandResult {
    let cx = &mut SubcommandContext::new(client, io, args.json);
    let report = client.undo_run(&args.run, UndoRequest { force: args.force }).await?;
    if !cx.print_json(&report)? {
        print_report(cx, &report)?;
    }
    Ok(Exit::Done)
}

fn print_report(cx: &mut SubcommandContext<'_>, report: &UndoReport) -> SubcommandResult<()> {
    let count = format_count(report.files.len() as u64, "file was put back", "files were put back");
    let head = if report.files.is_empty() { "nothing had to be put back".to_owned() } else { count };
    cx.print_styled(OutputStyle::Done, &head)?;
    for file in &report.files {
        let word = match file.change {
            UndoneChange::Restored => "restored",
            UndoneChange::Removed => "removed",
        };
        cx.io.output.print_line(&format!("  {word}  {}", one_line(&file.path, MAX_CHARS)))?;
    }
    for path in &report.unchanged {
        cx.io.output.print_line(&format!("  as before  {}", one_line(path, MAX_CHARS)))?;
    }
    for what in &report.not_covered {
        cx.print_styled(OutputStyle::Waiting, &format!("not covered: {}", one_line(what, MAX_CHARS)))?;
    }
    Ok(())
}
