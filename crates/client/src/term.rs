//! Where the verbs print and what they hear: the screen, the input, and the interrupts of the person.

mod locale;
mod screen;

use std::fmt;
use std::io::{self, IsTerminal, Read};

use futures_util::stream::{self, BoxStream, Fuse, Stream, StreamExt};
use tokio::signal::unix::{SignalKind, signal};

pub use locale::{Glyphs, Language, Locale};
pub use screen::{Pane, PaneKind, Screen, Tone};

/// Everything a verb is given besides its arguments.
pub struct Io {
    /// Where it prints.
    pub screen: Screen,
    /// Where `-` reads from.
    pub input: Box<dyn Read + Send>,
    /// Ctrl-C, each press once.
    pub interrupts: Interrupts,
    /// Whether colour is wanted.
    pub color: Color,
    /// Language and signs of the person's surroundings.
    pub locale: Locale,
}

impl fmt::Debug for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Io").field("screen", &self.screen).finish_non_exhaustive()
    }
}

impl Io {
    /// The process's own streams. `color` is how the roof read `NO_COLOR`; a stream that is no terminal has none anyway.
    #[must_use]
    pub fn standard(color: Color, locale: Locale) -> Self {
        let kind = |terminal: bool| match (terminal, color) {
            (false, _) => PaneKind::Pipe,
            (true, Color::Never) => PaneKind::Plain,
            (true, Color::Auto) => PaneKind::Colored,
        };
        let out = Pane::new(io::stdout(), kind(io::stdout().is_terminal()));
        let err = Pane::new(io::stderr(), kind(io::stderr().is_terminal()));
        let (screen, interrupts) = (Screen::new(out, err), Interrupts::ctrl_c());
        Self { screen, input: Box::new(io::stdin()), interrupts, color, locale }
    }
}

/// Whether colour is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Color {
    /// On terminals.
    Auto,
    /// Nowhere (`NO_COLOR`).
    Never,
}

/// The presses of Ctrl-C, as a stream that a test can replace.
pub struct Interrupts(Fuse<BoxStream<'static, ()>>);

impl fmt::Debug for Interrupts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interrupts")
    }
}

impl Interrupts {
    /// Any stream of presses.
    #[must_use]
    pub fn new(presses: impl Stream<Item = ()> + Send + 'static) -> Self {
        Self(presses.boxed().fuse())
    }

    /// The real signal. It is caught from the first wait on, so that a verb which never waits keeps the usual Ctrl-C.
    #[must_use]
    pub fn ctrl_c() -> Self {
        Self::new(stream::unfold(None, |caught| async move {
            let mut caught = match caught {
                Some(caught) => caught,
                None => signal(SignalKind::interrupt()).ok()?,
            };
            caught.recv().await.map(|()| ((), Some(caught)))
        }))
    }

    /// Waits for the next press; for ever when there will be none.
    ///
    /// # Cancel safety
    /// A press that arrives while nobody waits is kept for the next wait.
    pub async fn next(&mut self) {
        if self.0.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn interrupts_that_are_over_wait_for_ever_instead_of_spinning() {
        let mut interrupts = Interrupts::new(stream::iter([()]));
        interrupts.next().await;
        let again = futures_util::FutureExt::now_or_never(interrupts.next());
        assert!(again.is_none());
    }
}
