//! `quell chat`: the terminal in which a person talks to agents and stops them.

use std::io;

use quell_protocol::{AgentId, SessionKey};

use super::{Exit, VerbError, agent_id, session_key};
use crate::chat::{self, ChatEnd};
use crate::link::{Link, LinkError};
use crate::term::Io;

/// Arguments of `quell chat`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Enter sends, Alt-Enter begins a new line. While a run is active Esc stops it and a second Esc forces; \
    the input stays usable, and Tab chooses what a new message does: wait, steer or interrupt.\n\
    Ctrl-C clears the input, then stops, then asks whether to leave. /help lists everything else.\n\
    Exit code: 0 left, 1 no terminal, 4 no daemon, 143 ended by a signal. Runs go on when the chat ends without a stop.\n\n\
    Examples:\n  quell chat\n  quell chat --session work --agent coder\n  LANG=C NO_COLOR=1 quell chat"
)]
pub struct ChatArgs {
    /// The conversation; else a new one
    #[arg(long, value_parser = session_key, value_name = "KEY")]
    session: Option<SessionKey>,
    /// The agent; else the session's, else the default one
    #[arg(long, value_parser = agent_id, value_name = "ID")]
    agent: Option<AgentId>,
}

pub(super) async fn run(link: &Link, args: ChatArgs, io: &mut Io) -> Result<Exit, VerbError> {
    if !chat::has_terminal() {
        let problem = "`quell chat` needs a terminal at its input and its output; in a pipe use `quell send`";
        return Err(VerbError::Output(io::Error::new(io::ErrorKind::Unsupported, problem)));
    }
    // A wrong address or token is said before the screen is taken, on which it would be gone again.
    match link.agents().await {
        Ok(_) | Err(LinkError::Refused(_)) => {}
        Err(error) => return Err(error.into()),
    }
    match chat::talk(link, args.session, args.agent, io).await? {
        ChatEnd::Left => Ok(Exit::Done),
        ChatEnd::Ended => Ok(Exit::Terminated),
    }
}
