//! `quell chat`: check the terminal and the daemon, then run the chat.

use std::io;

use quell_protocol::{AgentId, SessionKey};

use super::{Exit, SubcommandError, parse_agent_id, parse_session_key};
use crate::chat::{self, ChatEnd};
use crate::daemon_client::{ClientError, DaemonClient};
use crate::term::CommandIo;

/// Arguments of `quell chat`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Enter sends, Alt-Enter starts a new line. While a run is active Esc stops it and a second Esc forces the stop; \
    the input stays usable, and Tab chooses what a new message does: wait, steer or interrupt.\n\
    Ctrl-C clears the input, then stops, then asks whether to leave. /help lists everything else.\n\
    Exit code: 0 left, 1 no terminal, 4 no daemon, 143 ended by a signal. Runs continue when the chat ends without a stop.\n\n\
    Examples:\n  quell chat\n  quell chat --session work --agent coder\n  LANG=C NO_COLOR=1 quell chat"
)]
pub struct ChatArgs {
    /// The session; else a new one
    #[arg(long, value_parser = parse_session_key, value_name = "KEY")]
    session: Option<SessionKey>,
    /// The agent; else the session's, else the default one
    #[arg(long, value_parser = parse_agent_id, value_name = "ID")]
    agent: Option<AgentId>,
}

pub(super) async fn run(client: &DaemonClient, args: ChatArgs, io: &mut CommandIo) -> Result<Exit, SubcommandError> {
    if !chat::has_terminal() {
        let problem = "`quell chat` needs a terminal at its input and its output; in a pipe use `quell send`";
        return Err(SubcommandError::Output(io::Error::new(io::ErrorKind::Unsupported, problem)));
    }
    // Report a wrong address or token before the alternate screen hides the message.
    match client.list_agents().await {
        Ok(_) | Err(ClientError::Refused(_)) => {}
        Err(error) => return Err(error.into()),
    }
    match chat::run_chat(client, args.session, args.agent, io).await? {
        ChatEnd::UserLeft => Ok(Exit::Done),
        ChatEnd::Terminated => Ok(Exit::Terminated),
    }
}
