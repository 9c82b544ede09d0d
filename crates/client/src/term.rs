//! Standard streams, Ctrl-C and locale that a subcommand is given.

mod locale;
mod output;

use std::io::{self, IsTerminal, Read};

use futures_util::stream::{self, BoxStream, Fuse, Stream, StreamExt};
use tokio::signal::unix::{SignalKind, signal};

pub use locale::{Glyphs, Language, Locale};
pub use output::{CliOutput, CliOutputStream, CliOutputStreamKind, OutputStyle};

pub struct CommandIo {
    pub output: CliOutput,
    /// Input for commands that are given `-` in place of a text or a file.
    pub input: Box<dyn Read + Send>,
    pub interrupts: Interrupts,
    pub color: ColorMode,
    pub locale: Locale,
}

impl CommandIo {
    /// The streams of the process. The binary derives `color` from `NO_COLOR`; a stream that is no terminal never has
    /// colour.
    pub fn standard(color: ColorMode, locale: Locale) -> Self {
        let kind = |terminal: bool| match (terminal, color) {
            (false, _) => CliOutputStreamKind::Pipe,
            (true, ColorMode::Never) => CliOutputStreamKind::Plain,
            (true, ColorMode::Auto) => CliOutputStreamKind::Colored,
        };
        let out = CliOutputStream::new(io::stdout(), kind(io::stdout().is_terminal()));
        let err = CliOutputStream::new(io::stderr(), kind(io::stderr().is_terminal()));
        let (output, interrupts) = (CliOutput::new(out, err), Interrupts::ctrl_c());
        Self { output, input: Box::new(io::stdin()), interrupts, color, locale }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColorMode {
    /// Colour on terminals.
    Auto,
    /// No colour (`NO_COLOR`).
    Never,
}

/// Presses of Ctrl-C, as a stream that tests can replace.
pub struct Interrupts(Fuse<BoxStream<'static, ()>>);

impl Interrupts {
    pub fn new(presses: impl Stream<Item = ()> + Send + 'static) -> Self {
        Self(presses.boxed().fuse())
    }

    /// Listens for SIGINT. The handler is installed on the first wait, so that a subcommand that never waits keeps the
    /// default Ctrl-C.
    pub fn ctrl_c() -> Self {
        Self::new(stream::unfold(None, |caught| async move {
            let mut caught = match caught {
                Some(caught) => caught,
                None => signal(SignalKind::interrupt()).ok()?,
            };
            caught.recv().await.map(|()| ((), Some(caught)))
        }))
    }

    /// Waits for the next press; waits forever when the stream has ended.
    ///
    /// # Cancel safety
    /// Safe: a press that arrives between two calls is kept.
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
