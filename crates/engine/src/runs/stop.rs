//! Result of a stop, with tickets to wait for the ends of the covered runs.

use std::sync::Arc;

use quell_mcp::{ServerProgram, ServerStop};
use quell_protocol::RunId;
use quell_protocol::background::ProcessRow;
use quell_tools::background::BackgroundStop;

use crate::cluster::{PeerStopWait, PeerStops};
use crate::live_run::{LiveRun, RunProgress};
use crate::schedules::PausedSchedules;

#[derive(Debug, Default)]
pub struct StopResult {
    pub aborted: Vec<RunId>,
    pub already_ending: Vec<RunId>,
    /// The queued ones of the aborted runs, with their texts.
    pub withdrawn: Vec<(RunId, String)>,
    /// Every run that the stop covers, aborted by this call or not.
    pub tickets: Vec<Ticket>,
    pub background: BackgroundStop,
    /// The programs of MCP servers that it ended.
    pub servers: ServerStop,
    /// The schedules that it paused.
    pub schedules: PausedSchedules,
    /// The part of other nodes of the cluster.
    pub peers: PeerStops,
}

impl StopResult {
    /// True if this call stopped a run, a background command or an MCP server.
    pub fn stopped_anything(&self) -> bool {
        !self.aborted.is_empty() || self.newly_ended_processes() > 0 || self.peers.stopped_anything()
    }

    /// The number of background commands and MCP servers that this call was the first to end.
    pub fn newly_ended_processes(&self) -> usize {
        self.background.newly_ended + self.servers.newly_ended
    }

    /// True if it covers a background command or an MCP server that had not ended.
    pub fn has_processes(&self) -> bool {
        self.count_processes() > 0
    }

    /// The number of background commands and MCP servers that it covers and that had not ended.
    pub fn count_processes(&self) -> usize {
        self.background.processes.len() + self.servers.programs.len()
    }

    /// The covered background commands and MCP servers, as they are now.
    pub fn process_rows(&self) -> Vec<ProcessRow> {
        let commands = self.background.processes.iter().map(|process| process.to_row());
        // A shared server is named once.
        commands
            .chain(self.servers.programs.iter().filter_map(|program| program.to_rows().into_iter().next()))
            .collect()
    }

    /// The ids of those background commands and MCP servers that have not ended cleanly.
    pub fn unclean_processes(&self) -> Vec<String> {
        let commands = self.background.processes.iter().filter(|process| !process.ended_cleanly());
        let programs = self.servers.programs.iter().filter(|program| !program.ended_cleanly());
        commands.map(|process| process.id.clone()).chain(programs.map(ServerProgram::id)).collect()
    }

    /// True if the answer waits for no other node, and for no pause of a schedule.
    pub fn is_carried_out(&self) -> bool {
        self.peers.is_empty() && self.schedules.is_stored()
    }

    /// Waits until other nodes have carried out the stop, so that the answer contains what they have stopped, and until
    /// the pauses of schedules are stored, so that none fires after the answer.
    ///
    /// # Cancel safety
    /// Safe: the stop itself has already happened, or is on its way.
    pub async fn wait_carried_out(&mut self) {
        tokio::join!(self.peers.wait(PeerStopWait::CarriedOut), self.schedules.wait_stored());
    }

    /// Waits until everything that the stop covers is over, on all nodes.
    ///
    /// # Cancel safety
    /// Safe: the stop itself has already happened, or is on its way.
    pub async fn wait_settled_everywhere(&mut self) {
        // The other nodes first: their answers have a deadline.
        tokio::join!(self.peers.wait(PeerStopWait::Ended), self.schedules.wait_stored());
        self.wait_settled().await;
    }

    /// Waits until everything that the stop covers on this node is over.
    ///
    /// # Cancel safety
    /// Safe: it waits for conditions; the stop itself has already happened.
    pub async fn wait_settled(&self) {
        for ticket in &self.tickets {
            ticket.wait_settled().await;
        }
        self.background.wait_ended().await;
        self.servers.wait_ended().await;
    }
}

/// Lets any number of callers wait for the end of a run, any number of times.
#[derive(Debug, Clone)]
pub struct Ticket(pub(super) Arc<LiveRun>);

impl Ticket {
    pub fn live_run(&self) -> &Arc<LiveRun> {
        &self.0
    }

    /// Waits for the end of the run.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition; the stop itself has already happened.
    pub async fn wait_settled(&self) {
        self.0.wait_for_progress(RunProgress::Ended).await;
    }
}
