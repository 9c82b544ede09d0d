//! `quell chat`: interactive terminal chat; a pure state machine and one event loop around it.
//!
//! [`state`] and [`update`](mod@update) take inputs and return effects; [`event_loop`] reads the inputs and runs the
//! effects.

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

use quell_protocol::{AgentId, SessionKey, Surface};

use self::event_loop::LoopExit;
use self::state::{ChatIdGenerator, ChatState};
use self::texts::Texts;
use self::theme::TerminalCapabilities;
use crate::daemon_client::{DaemonClient, ReconnectPolicy};
use crate::term::CommandIo;

/// Wait for a lost daemon without limit.
const RECONNECT_POLICY: ReconnectPolicy = ReconnectPolicy {
    initial_pause: Duration::from_millis(100),
    max_pause: Duration::from_secs(2),
    give_up_after: Duration::MAX,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChatEnd {
    UserLeft,
    /// A signal ended it, or the terminal is gone.
    Terminated,
}

/// True when stdin and stdout are terminals.
pub(crate) fn has_terminal() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Runs the chat until the user leaves, then prints how to resume the session.
///
/// # Errors
/// The terminal cannot be set up or written to.
///
/// # Cancel safety
/// Dropping it restores the terminal; runs continue in the daemon.
pub(crate) async fn run_chat(
    client: &DaemonClient,
    session: Option<SessionKey>,
    agent: Option<AgentId>,
    io: &mut CommandIo,
) -> io::Result<ChatEnd> {
    let client = client.clone().with_surface(Surface::Tui).with_reconnect_policy(RECONNECT_POLICY);
    let capabilities = TerminalCapabilities { color: io.color, glyphs: io.locale.glyphs };
    let mut ids = new_id_generator();
    let session = match session {
        Some(session) => session,
        None => ids.next_session_key().map_err(io::Error::other)?,
    };
    let chat = ChatState::new(Texts(io.locale.language), ids, session, agent);
    let (chat, exit) = event_loop::run_event_loop(chat, client, capabilities).await;
    // Also after an error, so that typed text is printed and not lost.
    for line in chat.exit_messages() {
        io.output.eprint_line(&line)?;
    }
    Ok(match exit? {
        LoopExit::UserLeft => ChatEnd::UserLeft,
        LoopExit::Terminated => ChatEnd::Terminated,
    })
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
