//! `quell chat`: a conversation in the terminal, with everything that runs in sight and one key that stops it.
//!
//! A pure core ([`state`], [`update`](mod@update)) takes inputs and says what to do; [`run`](mod@run) is the one loop around it.

mod act;
mod answers;
mod clock;
mod commands;
mod composer;
mod effects;
mod errands;
mod keys;
mod left_behind;
mod look;
mod markdown;
mod painter;
mod pick;
mod presses;
mod run;
#[cfg(test)]
mod scene;
mod state;
mod terminal;
mod text;
mod texts;
mod transcript;
mod turn;
mod update;
mod view;

use std::io::{self, IsTerminal};
use std::time::Duration;

use quell_protocol::{AgentId, SessionKey, Surface};

use self::look::Look;
use self::run::Left;
use self::state::{Chat, Names};
use self::texts::Texts;
use crate::link::{Link, Patience};
use crate::term::Io;

/// The chat waits for a lost daemon for ever.
const PATIENCE: Patience =
    Patience { first: Duration::from_millis(100), longest: Duration::from_secs(2), give_up: Duration::MAX };

/// How a chat ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChatEnd {
    /// The person left.
    Left,
    /// A signal ended it, or its terminal is gone.
    Ended,
}

/// True when there is a terminal to talk on.
pub(crate) fn has_terminal() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Talks until the person leaves, then says how to come back.
///
/// # Errors
/// What the terminal says.
///
/// # Cancel safety
/// Dropping it gives the terminal back; runs go on in the daemon.
pub(crate) async fn talk(
    link: &Link,
    session: Option<SessionKey>,
    agent: Option<AgentId>,
    io: &mut Io,
) -> io::Result<ChatEnd> {
    let link = link.clone().with_surface(Surface::Tui).with_patience(PATIENCE);
    let look = Look { color: io.color, glyphs: io.locale.glyphs };
    let mut names = names();
    let session = match session {
        Some(session) => session,
        None => names.session().map_err(io::Error::other)?,
    };
    let chat = Chat::new(Texts(io.locale.language), names, session, agent);
    let (chat, left) = run::run(chat, link, look).await;
    // Also after an error: what was typed must not be lost with it.
    for line in chat.farewell() {
        io.screen.remark(&line)?;
    }
    Ok(match left? {
        Left::Asked => ChatEnd::Left,
        Left::Ended => ChatEnd::Ended,
    })
}

/// New names: ids of runs that nobody else makes, and a key by which a person recognises the day.
fn names() -> Names {
    let unique = uuid::Uuid::now_v7();
    let day = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    let tail: String = unique.simple().to_string().chars().rev().take(4).collect();
    Names { unique: unique.to_string(), session: format!("cli:{day}-{tail}"), sessions: 0, runs: 0 }
}

#[cfg(test)]
mod tests;
