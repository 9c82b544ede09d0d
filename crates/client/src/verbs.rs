//! The command line verbs that talk to a daemon: each is one file, and one function from arguments to an exit code.

mod agents;
mod approvals;
mod archive;
mod audit;
mod channels;
mod chat;
mod hear;
mod hold;
mod memory;
mod page;
mod processes;
mod runs;
mod send;
mod sessions;
mod settle;
mod stop;
mod table;
mod token;
mod watch;

use std::io;
use std::process::ExitCode;

use quell_protocol::{AgentId, BadId, RunId, SessionKey};

use crate::link::{Greeting, Link, LinkError, Target};
use crate::term::{Io, Tone};

pub use agents::AgentsArgs;
pub use approvals::ApprovalsArgs;
pub use audit::AuditArgs;
pub use channels::ChannelsArgs;
pub use chat::ChatArgs;
pub use hold::HoldArgs;
pub use memory::MemoryArgs;
pub use page::PageArgs;
pub use processes::ProcessesArgs;
pub use runs::RunsArgs;
pub use send::SendArgs;
pub use sessions::SessionsArgs;
pub use stop::StopArgs;
pub use token::TokenArgs;

/// The verbs that talk to a daemon.
#[derive(Debug, clap::Subcommand)]
pub enum Verb {
    /// Send a message and stream the answer; Ctrl-C stops the run
    Send(SendArgs),
    /// Talk in the terminal; Esc stops what runs
    Chat(ChatArgs),
    /// Look at runs
    Runs(RunsArgs),
    /// Look at sessions, empty or remove them, export and import them
    Sessions(SessionsArgs),
    /// Look at the agents and what they do, make and delete some
    Agents(AgentsArgs),
    /// Look at what a session runs in the background, and end it
    Processes(ProcessesArgs),
    /// Look at what is remembered, and forget it
    Memory(MemoryArgs),
    /// Look at the calls that wait for a person, allow or deny one
    Approvals(ApprovalsArgs),
    /// See how the chat networks fare, test one, say something there
    Channels(ChannelsArgs),
    /// Stop a run, a session or everything, and wait until it is really over
    Stop(StopArgs),
    /// Refuse new runs until lifted
    Hold(HoldArgs),
    /// Print a one-time link that opens the web page
    Page(PageArgs),
    /// Make, list and revoke tokens
    Token(TokenArgs),
    /// See who stopped, held, approved or deleted what, when and from where
    Audit(AuditArgs),
}

/// How a verb ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0: done; a run completed; a stop settled.
    Done,
    /// 1: failed; something is left over.
    Failed,
    /// 2: the arguments make no sense.
    Usage,
    /// 3: there is no such run, session, agent or token.
    NotFound,
    /// 4: no daemon answers.
    NoDaemon,
    /// 130: the run was stopped.
    Stopped,
    /// 143: a signal ended it.
    Terminated,
}

impl Exit {
    /// The number that the process ends with.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::NoDaemon => 4,
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

/// In which form a verb prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Words,
    Json,
}

impl From<bool> for Format {
    /// Reads the flag `--json`.
    fn from(json: bool) -> Self {
        if json { Self::Json } else { Self::Words }
    }
}

/// Why a verb could not do its work.
#[derive(Debug, thiserror::Error)]
enum VerbError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("the output cannot be written: {0}")]
    Output(#[from] io::Error),
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    DaemonEnded(String),
}

impl VerbError {
    fn exit(&self) -> Exit {
        match self {
            Self::Link(LinkError::NoDaemon { .. } | LinkError::Lost { .. } | LinkError::Silent { .. }) => {
                Exit::NoDaemon
            }
            Self::DaemonEnded(_) => Exit::Failed,
            Self::Link(error) if error.is_not_found() => Exit::NotFound,
            Self::NotFound(_) => Exit::NotFound,
            Self::Link(LinkError::BadUrl { .. } | LinkError::Unspeakable(_)) | Self::Usage(_) => Exit::Usage,
            Self::Link(_) | Self::Output(_) => Exit::Failed,
        }
    }

    /// A reader that has seen enough (`| head`) is no failure worth a word.
    fn is_silent(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// Runs a verb against the daemon that `target` names. What went wrong is said on the pane of remarks.
///
/// # Cancel safety
/// Dropping it leaves the daemon as it is: no run is stopped by it.
pub async fn run(verb: Verb, target: &Target, mut io: Io) -> Exit {
    let outcome = match Link::discover(target) {
        Ok(link) => match greet(&verb, &link, &mut io).await {
            Ok(()) => perform(verb, &link, &mut io).await,
            Err(error) => Err(error),
        },
        Err(error) => Err(error.into()),
    };
    conclude(outcome, &mut io)
}

/// Says in time when a daemon of this machine does not answer; it is asked all the same. A stop asks no question first.
async fn greet(verb: &Verb, link: &Link, io: &mut Io) -> Result<(), VerbError> {
    let Some(daemon) = link.daemon() else { return Ok(()) };
    if matches!(verb, Verb::Stop(_)) || link.greet().await != Greeting::Silence {
        return Ok(());
    }
    io.screen.remark(&hear::silent(Some(daemon.pid())))?;
    Ok(())
}

async fn perform(verb: Verb, link: &Link, io: &mut Io) -> Result<Exit, VerbError> {
    match verb {
        Verb::Send(args) => send::run(link, args, io).await,
        Verb::Chat(args) => chat::run(link, args, io).await,
        Verb::Runs(args) => runs::run(link, args, io).await,
        Verb::Sessions(args) => sessions::run(link, args, io).await,
        Verb::Agents(args) => agents::run(link, args, io).await,
        Verb::Processes(args) => processes::run(link, args, io).await,
        Verb::Memory(args) => memory::run(link, args, io).await,
        Verb::Approvals(args) => approvals::run(link, args, io).await,
        Verb::Channels(args) => channels::run(link, args, io).await,
        Verb::Stop(args) => stop::run(link, args, io).await,
        Verb::Hold(args) => hold::run(link, args, io).await,
        Verb::Page(args) => page::run(link, args, io).await,
        Verb::Token(args) => token::run(link, args, io).await,
        Verb::Audit(args) => audit::run(link, args, io).await,
    }
}

fn conclude(outcome: Result<Exit, VerbError>, io: &mut Io) -> Exit {
    let finished = io.screen.finish().map_err(VerbError::from);
    let error = match (outcome, finished) {
        (Ok(exit), Ok(())) => return exit,
        (Err(error), _) | (Ok(_), Err(error)) => error,
    };
    if !error.is_silent() {
        let head = io.screen.err().paint(Tone::Failure, "error:");
        // Nobody is left to tell when this pane is gone too; the exit code still says it.
        let _ = io.screen.remark(&format!("{head} {error}"));
    }
    error.exit()
}

fn run_id(text: &str) -> Result<RunId, BadId> {
    RunId::parse(text)
}

fn session_key(text: &str) -> Result<SessionKey, BadId> {
    SessionKey::parse(text)
}

fn agent_id(text: &str) -> Result<AgentId, BadId> {
    AgentId::parse(text)
}

#[cfg(test)]
mod tests;
