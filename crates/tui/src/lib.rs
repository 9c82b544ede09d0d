//! `quell chat`: the terminal chat, a pure state machine and one event loop around it.
//!
//! [`state`] and [`update`](mod@update) take inputs and return effects; [`event_loop`] reads the inputs and runs the
//! effects. The connection to the daemon is that of `quell-client`.

mod alt_keys;
mod composer;
mod detached_sends;
mod effect_runner;
mod effects;
mod event_loop;
#[cfg(test)]
mod harness;
mod keys;
mod markdown;
mod picker;
mod renderer;
mod responses;
mod slash_commands;
mod state;
mod terminal;
mod text_layout;
mod texts;
mod theme;
mod transcript;
mod turn;
mod unix_millis;
mod update;
mod user_actions;
mod view;

use std::io::{self, IsTerminal};
use std::time::Duration;

use quell_client::{
    ClientError, CommandIo, DaemonClient, DaemonTarget, Exit, ReconnectPolicy, SubcommandError, run_with_client,
};
use quell_protocol::{AgentId, SessionKey, Surface};

use self::event_loop::LoopExit;
use self::state::{ChatIdGenerator, ChatState};
use self::texts::Texts;
use self::theme::TerminalCapabilities;

/// Wait for a lost daemon without limit.
const RECONNECT_POLICY: ReconnectPolicy = ReconnectPolicy {
    initial_pause: Duration::from_millis(100),
    max_pause: Duration::from_secs(2),
    give_up_after: Duration::MAX,
};

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
    #[arg(long, value_name = "KEY")]
    session: Option<SessionKey>,
    /// The agent; else the session's, else the default one
    #[arg(long, value_name = "ID")]
    agent: Option<AgentId>,
}

/// Checks the terminal and the daemon that `target` names, then runs the chat until the user leaves. Errors are printed
/// to stderr.
///
/// # Cancel safety
/// Dropping it restores the terminal; runs continue in the daemon.
pub async fn run(args: ChatArgs, target: &DaemonTarget, io: CommandIo) -> Exit {
    run_with_client(target, io, async |client, io| open_chat(client, args, io).await).await
}

async fn open_chat(client: &DaemonClient, args: ChatArgs, io: &mut CommandIo) -> Result<Exit, SubcommandError> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        let problem = "`quell chat` needs a terminal at its input and its output; in a pipe use `quell send`";
        return Err(SubcommandError::Output(io::Error::new(io::ErrorKind::Unsupported, problem)));
    }
    // Report a wrong address or token before the alternate screen hides the message.
    match client.list_agents().await {
        Ok(_) | Err(ClientError::Refused(_)) => {}
        Err(error) => return Err(error.into()),
    }
    match run_chat(client, args, io).await? {
        LoopExit::UserLeft => Ok(Exit::Done),
        LoopExit::Terminated => Ok(Exit::Terminated),
    }
}

/// Runs the chat until the user leaves, then prints how to resume the session.
async fn run_chat(client: &DaemonClient, args: ChatArgs, io: &mut CommandIo) -> io::Result<LoopExit> {
    let client = client.clone().with_surface(Surface::Tui).with_reconnect_policy(RECONNECT_POLICY);
    let capabilities = TerminalCapabilities { color: io.color, glyphs: io.locale.glyphs };
    let mut ids = new_id_generator();
    let session = match args.session {
        Some(session) => session,
        None => ids.next_session_key().map_err(io::Error::other)?,
    };
    let chat = ChatState::new(Texts(io.locale.language), ids, session, args.agent);
    let (chat, exit) = event_loop::run_event_loop(chat, client, capabilities).await;
    // Also after an error, so that typed text is printed and not lost.
    for line in chat.exit_messages() {
        io.output.eprint_line(&line)?;
    }
    exit
}

/// Unique prefixes of run ids, and a session key with the date, so that people recognise it.
fn new_id_generator() -> ChatIdGenerator {
    let unique = uuid::Uuid::now_v7();
    let day = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    let tail: String = unique.simple().to_string().chars().rev().take(4).collect();
    ChatIdGenerator {
        run_prefix: unique.to_string(),
        session_prefix: format!("cli:{day}-{tail}"),
        session_count: 0,
        run_count: 0,
    }
}

#[cfg(test)]
mod tests;
