//! `quell cluster`: show the nodes of the cluster.

use std::time::Duration;

use jiff::Timestamp;
use quell_protocol::cluster::{ClusterView, NodeState, NodeView};

use super::table::CliTableCell;
use super::{Exit, SubcommandContext, SubcommandResult};
use crate::daemon_client::DaemonClient;
use crate::term::{CommandIo, OutputStyle};
use crate::text_format::{age, format_millis};

/// A difference of the clocks that people have to know of: the database writes some of the times that lists show.
const NOTABLE_SKEW: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
#[command(
    after_help = "A silent node has missed renewals of its lease. When the lease has ended, the node is dead: another one\n\
    ends its runs, takes over its sessions, and the node leaves the list.\n\
    Exit code: 0 all nodes renew their leases, 1 a node is silent or dead, 3 this daemon is not in a cluster, 4 no daemon.\n\n\
    Examples:\n  quell cluster status\n  quell cluster status --json"
)]
pub struct ClusterArgs {
    #[command(subcommand)]
    what: Option<ClusterSubcommand>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum ClusterSubcommand {
    /// List the nodes and their state (the default)
    Status,
}

pub(super) async fn run(client: &DaemonClient, args: ClusterArgs, io: &mut CommandIo) -> SubcommandResult {
    let cx = &mut SubcommandContext::new(client, io, args.json);
    let ClusterSubcommand::Status = args.what.unwrap_or(ClusterSubcommand::Status);
    let cluster = client.get_cluster().await?;
    if !cx.print_json(&cluster)? {
        print_cluster(cx, &cluster)?;
    }
    let is_well = |node: &NodeView| matches!(node.state, NodeState::Active | NodeState::Draining);
    Ok(if cluster.nodes.iter().all(is_well) { Exit::Done } else { Exit::Failed })
}

fn print_cluster(cx: &mut SubcommandContext<'_>, cluster: &ClusterView) -> SubcommandResult<()> {
    let now = Timestamp::now();
    let rows: Vec<[CliTableCell; 8]> = cluster.nodes.iter().map(|node| node_row(node, now)).collect();
    cx.print_rows(["NODE", "STATE", "LEASE", "SESSIONS", "RUNS", "PROCESSES", "UP", "VERSION"], &rows)?;
    let lag = cluster.lag_ms.map(|lag| format!(" · a renewal takes {}", millis_text(lag)));
    let lag = lag.unwrap_or_default();
    let lease = millis_text(cluster.lease_ms);
    cx.print_styled(OutputStyle::Quiet, &format!("* {} answers · leases of {lease}{lag}", cluster.node))?;
    let skew = cluster.database_clock_skew_ms.unwrap_or(0);
    if u128::from(skew.unsigned_abs()) > NOTABLE_SKEW.as_millis() {
        let direction = if skew > 0 { "ahead of" } else { "behind" };
        let text = format!(
            "the clock of the database is {} {direction} that of {}; leases do not depend on it, but times in lists are wrong: \
             run NTP on both",
            millis_text(skew.unsigned_abs()),
            cluster.node
        );
        cx.io.output.eprint_line(&text)?;
    }
    Ok(())
}

fn node_row(node: &NodeView, now: Timestamp) -> [CliTableCell; 8] {
    let mark = if node.is_self { "*" } else { "" };
    let lease = match node.state {
        NodeState::Active | NodeState::Draining => millis_text(node.lease_ends_in_ms),
        NodeState::Silent => {
            format!("{} (silent for {})", millis_text(node.lease_ends_in_ms), millis_text(node.silent_for_ms))
        }
        NodeState::Dead => "ended".to_owned(),
    };
    [
        format!("{}{mark}", node.node).into(),
        state_cell(node.state),
        lease.into(),
        node.sessions.to_string().into(),
        format!("{}/{}", node.active_runs, node.max_in_flight).into(),
        node.processes.to_string().into(),
        age(&node.joined_at, now).unwrap_or_default().into(),
        CliTableCell::truncated(&node.version, 24),
    ]
}

fn state_cell(state: NodeState) -> CliTableCell {
    match state {
        NodeState::Active => CliTableCell::styled(OutputStyle::Done, "● active".to_owned()),
        NodeState::Draining => CliTableCell::styled(OutputStyle::Waiting, "◔ draining".to_owned()),
        NodeState::Silent => CliTableCell::styled(OutputStyle::Failure, "▲ silent".to_owned()),
        NodeState::Dead => CliTableCell::styled(OutputStyle::Failure, "■ dead".to_owned()),
    }
}

fn millis_text(ms: u64) -> String {
    format_millis(Duration::from_millis(ms).as_secs_f64() * 1e3)
}
