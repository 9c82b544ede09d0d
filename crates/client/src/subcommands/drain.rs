//! `quell drain`: let a node of a cluster take no new sessions, and wait until it has none.

use quell_protocol::cluster::{DrainRequest, DrainView};
use quell_protocol::display_text::format_count;

use super::{Exit, SubcommandContext, SubcommandResult};
use crate::daemon_client::DaemonClient;
use crate::term::{CommandIo, OutputStyle};

/// The daemon answers earlier when nothing is left.
const PROGRESS_INTERVAL_MS: u64 = 1000;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Idle sessions move to other nodes with their next message. Those with runs or background processes stay until\n\
    these have ended; --stop ends them. The daemon goes on answering requests, and a restart ends the drain.\n\
    Exit code: 0 done, 1 with --wait and Ctrl-C before the end, 3 this daemon is not in a cluster, 4 no daemon.\n\n\
    Examples:\n  quell drain --wait && systemctl restart quell\n  quell drain --stop --wait\n  quell drain --undo"
)]
pub struct DrainArgs {
    /// Stop all runs and background processes of the node
    #[arg(long)]
    stop: bool,
    /// Wait until nothing is left on the node
    #[arg(long)]
    wait: bool,
    /// Let the node take new sessions again
    #[arg(long, conflicts_with_all = ["stop", "wait"])]
    undo: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(client: &DaemonClient, args: DrainArgs, io: &mut CommandIo) -> SubcommandResult {
    let cx = &mut SubcommandContext::new(client, io, args.json);
    if args.undo {
        let left = client.end_drain().await?;
        cx.print_value(&left, "the node takes new sessions again")?;
        return Ok(Exit::Done);
    }
    let mut left = client.drain(&DrainRequest { stop: args.stop, wait_ms: None }).await?;
    while args.wait && !left.is_empty() {
        cx.io.output.show_status(OutputStyle::Waiting, &format!("◔ draining · {}", left_text(&left)))?;
        let again = client.drain(&DrainRequest { stop: false, wait_ms: Some(PROGRESS_INTERVAL_MS) });
        tokio::select! {
            // Cancel safe: the drain goes on.
            answered = again => left = answered?,
            _ = cx.io.interrupts.next() => {
                let text = format!(
                    "not waiting any more: {} left; the node goes on draining, `quell drain --undo` ends that",
                    left_text(&left)
                );
                cx.io.output.eprint_line(&text)?;
                return Ok(Exit::Failed);
            }
        }
    }
    let text = if left.is_empty() {
        "drained: nothing is left on the node, and it takes no new sessions".to_owned()
    } else {
        format!("draining: the node takes no new sessions · {} left · `quell drain --wait` waits", left_text(&left))
    };
    cx.print_value(&left, &text)?;
    Ok(Exit::Done)
}

fn left_text(left: &DrainView) -> String {
    let sessions = format_count(left.sessions, "session", "sessions");
    let runs = format_count(left.active_runs, "run", "runs");
    let processes = format_count(left.processes, "background process", "background processes");
    format!("{sessions}, {runs}, {processes}")
}
