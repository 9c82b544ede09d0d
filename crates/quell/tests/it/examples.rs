//! Examples of the pages in docs/, as they stand there, and Python, in which some of them are written.
//!
//! `QUELL_SKIP_PYTHON=1` leaves out what needs it, and says so.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::io::{BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::harness::PATIENCE;
use crate::node;

/// The blocks of this language on a page.
pub(crate) fn blocks(page: &'static str, language: &str) -> Vec<&'static str> {
    let parts = page.split(&format!("```{language}\n")).skip(1).collect::<Vec<_>>();
    parts.into_iter().map(|rest| rest.split_once("```").unwrap().0).collect()
}

/// True when tests that need Python are to be left out.
pub(crate) fn skips_python() -> bool {
    #[expect(clippy::disallowed_methods, reason = "the one switch of a test that needs another program")]
    let skips = std::env::var("QUELL_SKIP_PYTHON").is_ok();
    if skips {
        eprintln!("skipped: QUELL_SKIP_PYTHON is set");
    }
    skips
}

/// A program in Python, which ends with its test.
pub(crate) struct Python {
    printed: Lines<BufReader<ChildStdout>>,
    input: ChildStdin,
    _child: Child,
}

impl Python {
    /// Starts it, with what `set` says of its environment.
    pub(crate) fn start(program: &str, set: impl FnOnce(&mut Command)) -> Self {
        let mut python = node::command("python3");
        python.args(["-c", program]).stdin(Stdio::piped()).stdout(Stdio::piped());
        set(&mut python);
        let needs = "this test needs python3; install it, or leave it out with QUELL_SKIP_PYTHON=1";
        let mut child = python.spawn().unwrap_or_else(|error| panic!("{needs} ({error})"));
        let (printed, input) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
        Self { printed: BufReader::new(printed).lines(), input, _child: child }
    }

    /// Waits for the next line that it prints.
    pub(crate) async fn line(&mut self) -> String {
        let line = timeout(PATIENCE, self.printed.next_line()).await.expect("it prints nothing").unwrap();
        line.expect("it has ended")
    }

    /// Writes a line into its input.
    pub(crate) async fn type_line(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }
}
