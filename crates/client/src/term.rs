//! Standard streams, interruptions and locale that a subcommand is given.

mod locale;
mod output;

use std::io::{self, IsTerminal, Read};
use std::time::Duration;

use futures_util::stream::{self, BoxStream, Fuse, Stream, StreamExt};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Interval, interval};

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
        let (output, interrupts) = (CliOutput::new(out, err), Interrupts::of_process());
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

/// What ends the wait of a subcommand from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interruption {
    /// Ctrl-C.
    CtrlC,
    /// The process is to end: SIGTERM or SIGHUP.
    End,
    /// Nobody reads the output any more, as after `| head`.
    ReaderGone,
}

/// Interruptions, as a stream that tests can replace.
pub struct Interrupts(Fuse<BoxStream<'static, Interruption>>);

impl Interrupts {
    pub fn new(interruptions: impl Stream<Item = Interruption> + Send + 'static) -> Self {
        Self(interruptions.boxed().fuse())
    }

    /// Those of this process. The handlers are installed on the first wait, so that a subcommand that never waits keeps
    /// the default behaviour. SIGHUP stays ignored if it was, as by `nohup`.
    pub fn of_process() -> Self {
        Self::new(stream::unfold(None, |sources| async move {
            let mut sources = match sources {
                Some(sources) => sources,
                None => InterruptSources::install().ok()?,
            };
            let interruption = sources.next().await;
            Some((interruption, Some(sources)))
        }))
    }

    /// Waits for the next interruption; waits forever when the stream has ended.
    ///
    /// # Cancel safety
    /// Safe: an interruption that arrives between two calls is kept.
    pub async fn next(&mut self) -> Interruption {
        match self.0.next().await {
            Some(interruption) => interruption,
            None => std::future::pending().await,
        }
    }
}

/// How often the reader of the output is looked at while nothing is written.
const READER_CHECK_INTERVAL: Duration = Duration::from_millis(200);

struct InterruptSources {
    ctrl_c: Signal,
    term: Signal,
    hangup: Option<Signal>,
    /// When to look at the reader of the output again; none once it is gone.
    reader_check: Option<Interval>,
}

impl InterruptSources {
    fn install() -> io::Result<Self> {
        Ok(Self {
            ctrl_c: signal(SignalKind::interrupt())?,
            term: signal(SignalKind::terminate())?,
            hangup: if ignores_hangup() { None } else { Some(signal(SignalKind::hangup())?) },
            reader_check: Some(interval(READER_CHECK_INTERVAL)),
        })
    }

    async fn next(&mut self) -> Interruption {
        let Self { ctrl_c, term, hangup, reader_check } = self;
        let hangup = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        let reader_gone = async {
            let Some(check) = reader_check else { return std::future::pending().await };
            while has_reader() {
                check.tick().await;
            }
        };
        tokio::select! {
            _ = ctrl_c.recv() => Interruption::CtrlC,
            _ = term.recv() => Interruption::End,
            _ = hangup => Interruption::End,
            // It stays so: told once.
            () = reader_gone => {
                self.reader_check = None;
                Interruption::ReaderGone
            }
        }
    }
}

/// False once the other end of the pipe, or of the terminal, behind standard output is closed; a file has none.
fn has_reader() -> bool {
    let output = io::stdout();
    let mut polled = [PollFd::new(&output, PollFlags::empty())];
    // A failed call tells nothing.
    !(poll(&mut polled, Some(&Timespec::default())).is_ok()
        && polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP))
}

/// True if whoever started this process has it ignore SIGHUP.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or_default();
    // Bit 0 is signal 1, see proc_pid_status(5).
    u64::from_str_radix(ignored.trim(), 16).is_ok_and(|mask| mask & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn interrupts_that_are_over_wait_for_ever_instead_of_spinning() {
        let mut interrupts = Interrupts::new(stream::iter([Interruption::CtrlC]));
        assert_eq!(interrupts.next().await, Interruption::CtrlC);
        let again = futures_util::FutureExt::now_or_never(interrupts.next());
        assert!(again.is_none());
    }
}
