//! The subcommands that talk to a daemon, their arguments and their exit codes. Each is one file with one `run`
//! function.

mod agents;
mod approvals;
mod archive;
mod audit;
mod channels;
mod cluster;
mod diff;
mod drain;
mod hold;
mod memory;
mod page;
mod processes;
mod runs;
mod schedules;
mod send;
mod sessions;
mod stop;
mod stop_report;
mod table;
mod token;
mod undo;
mod unresponsive_daemon;
mod watch;

use std::io;
use std::process::ExitCode;

use serde::Serialize;

use crate::daemon_client::{ClientError, DaemonClient, DaemonTarget, HealthProbe};
use crate::mcp_stdio;
use crate::term::{CommandIo, OutputStyle};

pub use agents::AgentsArgs;
pub use approvals::ApprovalsArgs;
pub use audit::AuditArgs;
pub use channels::ChannelsArgs;
pub use cluster::ClusterArgs;
pub use drain::DrainArgs;
pub use hold::HoldArgs;
pub use memory::MemoryArgs;
pub use page::PageArgs;
pub use processes::ProcessesArgs;
pub use runs::RunsArgs;
pub use schedules::SchedulesArgs;
pub use send::SendMessageArgs;
pub use sessions::SessionsArgs;
pub use stop::StopArgs;
pub use token::TokenArgs;
pub use undo::UndoArgs;

/// The subcommands that talk to a daemon.
#[derive(Debug, clap::Subcommand)]
pub enum ClientSubcommand {
    /// Send a message and stream the answer; Ctrl-C stops the run
    Send(SendMessageArgs),
    /// List runs, show one with its receipt, or watch them
    Runs(RunsArgs),
    /// List, show, reset, delete, export and import sessions
    Sessions(SessionsArgs),
    /// List, show, create and delete agents
    Agents(AgentsArgs),
    /// List background processes, print their output, end one
    Processes(ProcessesArgs),
    /// List, search and forget memory notes
    Memory(MemoryArgs),
    /// List the calls that wait for approval, allow or deny one
    Approvals(ApprovalsArgs),
    /// List and test chat channels, send a text to a chat
    Channels(ChannelsArgs),
    /// List, make, pause and remove schedules: runs that start at a time
    Schedules(SchedulesArgs),
    /// Stop a run, a session or everything, and wait until it has ended
    Stop(StopArgs),
    /// Take the file changes of a run back
    Undo(UndoArgs),
    /// Refuse new runs until the hold is lifted
    Hold(HoldArgs),
    /// Show the nodes of the cluster
    Cluster(ClusterArgs),
    /// Let a node of the cluster take no new sessions, and wait until it has none
    Drain(DrainArgs),
    /// Print a one-time link that opens the web page
    Page(PageArgs),
    /// Create, list, rotate and revoke tokens
    Token(TokenArgs),
    /// Print the audit log: who stopped, held, approved or deleted something, when and from where
    Audit(AuditArgs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0: done; a run completed; a stop settled.
    Done,
    /// 1: failed; something is left over.
    Failed,
    /// 2: wrong arguments.
    Usage,
    /// 3: no such run, session, agent or token.
    NotFound,
    /// 4: no daemon answers.
    NoDaemon,
    /// 5: the run has used up its steps, its tokens or the limit of the day.
    LimitReached,
    /// 130: the run was stopped.
    Stopped,
    /// 143: ended by a signal.
    Terminated,
}

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::NoDaemon => 4,
            Self::LimitReached => 5,
            Self::Stopped => 130,
            Self::Terminated => 143,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CliOutputFormat {
    Text,
    Json,
}

type SubcommandResult<T = Exit> = Result<T, SubcommandError>;

struct SubcommandContext<'a> {
    client: &'a DaemonClient,
    io: &'a mut CommandIo,
    format: CliOutputFormat,
}

impl<'a> SubcommandContext<'a> {
    /// `json` is the flag `--json`.
    fn new(client: &'a DaemonClient, io: &'a mut CommandIo, json: bool) -> Self {
        let format = if json { CliOutputFormat::Json } else { CliOutputFormat::Text };
        Self { client, io, format }
    }

    /// Prints the value where `--json` is given; false otherwise.
    fn print_json(&mut self, value: &impl Serialize) -> io::Result<bool> {
        if self.format == CliOutputFormat::Json {
            self.io.output.print_json(value)?;
        }
        Ok(self.format == CliOutputFormat::Json)
    }

    /// Prints the value with `--json`, else the text as a line.
    fn print_value(&mut self, value: &impl Serialize, text: &str) -> io::Result<()> {
        if self.print_json(value)? { Ok(()) } else { self.io.output.print_line(text) }
    }

    fn print_styled(&mut self, style: OutputStyle, text: &str) -> io::Result<()> {
        let line = self.io.output.stdout().apply_style(style, text);
        self.io.output.print_line(&line)
    }
}

/// Why a subcommand failed, in words for people; it decides the exit code.
#[derive(Debug, thiserror::Error)]
pub enum SubcommandError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("the output cannot be written: {0}")]
    Output(#[from] io::Error),
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    DaemonEnded(String),
}

impl SubcommandError {
    fn exit(&self) -> Exit {
        match self {
            Self::Client(
                ClientError::NoDaemon { .. } | ClientError::ConnectionLost { .. } | ClientError::Unresponsive { .. },
            ) => Exit::NoDaemon,
            Self::DaemonEnded(_) => Exit::Failed,
            Self::Client(error) if error.is_not_found() => Exit::NotFound,
            Self::NotFound(_) => Exit::NotFound,
            Self::Client(ClientError::BadUrl { .. } | ClientError::InvalidPathSegment(_)) | Self::Usage(_) => {
                Exit::Usage
            }
            Self::Client(_) | Self::Output(_) => Exit::Failed,
        }
    }

    /// A reader that closes the pipe early (`| head`) is not reported as an error.
    fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// Runs a subcommand against the daemon that `target` names. Errors are printed to stderr.
///
/// # Cancel safety
/// Dropping it stops no run in the daemon.
pub async fn run(verb: ClientSubcommand, target: &DaemonTarget, io: CommandIo) -> Exit {
    let sends_stop = matches!(verb, ClientSubcommand::Stop(_));
    let body = async |client: &DaemonClient, io: &mut CommandIo| dispatch_subcommand(verb, client, io).await;
    if sends_stop {
        // A stop sends its request first, without a probe.
        discover_and_run(target, io, body).await
    } else {
        run_with_client(target, io, body).await
    }
}

/// Runs `body` with a client of the daemon that `target` names; warns early when a local daemon does not answer. Errors
/// are printed to stderr.
///
/// # Cancel safety
/// That of `body`.
pub async fn run_with_client(
    target: &DaemonTarget,
    io: CommandIo,
    body: impl AsyncFnOnce(&DaemonClient, &mut CommandIo) -> SubcommandResult,
) -> Exit {
    discover_and_run(target, io, async |client: &DaemonClient, io: &mut CommandIo| {
        warn_if_unresponsive(client, io).await?;
        body(client, io).await
    })
    .await
}

/// Serves an MCP client on standard input and output until it closes the input.
///
/// # Cancel safety
/// If dropped, the calls that are not answered are cancelled.
pub async fn serve_mcp(target: &DaemonTarget, io: CommandIo) -> Exit {
    run_with_client(target, io, async |client: &DaemonClient, _io: &mut CommandIo| mcp_stdio::serve(client).await).await
}

async fn discover_and_run(
    target: &DaemonTarget,
    mut io: CommandIo,
    body: impl AsyncFnOnce(&DaemonClient, &mut CommandIo) -> SubcommandResult,
) -> Exit {
    let outcome = match DaemonClient::discover(target) {
        Ok(client) => body(&client, &mut io).await,
        Err(error) => Err(error.into()),
    };
    finish_subcommand(outcome, &mut io)
}

/// The request is sent also to a daemon that does not answer.
async fn warn_if_unresponsive(client: &DaemonClient, io: &mut CommandIo) -> SubcommandResult<()> {
    let Some(daemon) = client.daemon_process() else { return Ok(()) };
    if client.probe_health().await == HealthProbe::TimedOut {
        io.output.eprint_line(&unresponsive_daemon::unresponsive_text(Some(daemon.pid())))?;
    }
    Ok(())
}

async fn dispatch_subcommand(verb: ClientSubcommand, client: &DaemonClient, io: &mut CommandIo) -> SubcommandResult {
    match verb {
        ClientSubcommand::Send(args) => send::run(client, args, io).await,
        ClientSubcommand::Runs(args) => runs::run(client, args, io).await,
        ClientSubcommand::Sessions(args) => sessions::run(client, args, io).await,
        ClientSubcommand::Agents(args) => agents::run(client, args, io).await,
        ClientSubcommand::Processes(args) => processes::run(client, args, io).await,
        ClientSubcommand::Memory(args) => memory::run(client, args, io).await,
        ClientSubcommand::Approvals(args) => approvals::run(client, args, io).await,
        ClientSubcommand::Schedules(args) => schedules::run(client, args, io).await,
        ClientSubcommand::Channels(args) => channels::run(client, args, io).await,
        ClientSubcommand::Stop(args) => stop::run(client, args, io).await,
        ClientSubcommand::Undo(args) => undo::run(client, args, io).await,
        ClientSubcommand::Hold(args) => hold::run(client, args, io).await,
        ClientSubcommand::Cluster(args) => cluster::run(client, args, io).await,
        ClientSubcommand::Drain(args) => drain::run(client, args, io).await,
        ClientSubcommand::Page(args) => page::run(client, args, io).await,
        ClientSubcommand::Token(args) => token::run(client, args, io).await,
        ClientSubcommand::Audit(args) => audit::run(client, args, io).await,
    }
}

fn finish_subcommand(outcome: SubcommandResult, io: &mut CommandIo) -> Exit {
    let finished = io.output.end_open_lines().map_err(SubcommandError::from);
    let error = match (outcome, finished) {
        (Ok(exit), Ok(())) => return exit,
        (Err(error), _) | (Ok(_), Err(error)) => error,
    };
    if !error.is_broken_pipe() {
        let head = io.output.stderr().apply_style(OutputStyle::Failure, "error:");
        // If stderr is gone too, the exit code still reports the error.
        let _ = io.output.eprint_line(&format!("{head} {error}"));
    }
    error.exit()
}

#[cfg(test)]
mod tests;
