//! Test support: extract code blocks from the documentation and run Python programs.
//!
//! `QUELL_SKIP_PYTHON=1` skips the tests that need Python, with a message.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::io::{BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::npm_packages;
use crate::prelude::*;

/// The code blocks of a page in this language.
pub fn code_blocks(page: &'static str, language: &str) -> Vec<&'static str> {
    let parts = page.split(&format!("```{language}\n")).skip(1).collect::<Vec<_>>();
    parts.into_iter().map(|rest| rest.split_once("```").unwrap().0).collect()
}

/// True when tests that need Python are to be skipped.
pub fn skips_python() -> bool {
    quell_testkit::skip::is_switched_off("QUELL_SKIP_PYTHON")
}

/// A running Python program, which is killed when dropped.
pub struct PythonProgram {
    printed: Lines<BufReader<ChildStdout>>,
    input: ChildStdin,
    _child: Child,
}

impl PythonProgram {
    /// Starts the program; `set` changes its environment.
    pub fn start(program: &str, set: impl FnOnce(&mut Command)) -> Self {
        let mut python = npm_packages::program_command("python3");
        python.args(["-c", program]).stdin(Stdio::piped()).stdout(Stdio::piped());
        set(&mut python);
        let needs = "this test needs python3; install it, or leave it out with QUELL_SKIP_PYTHON=1";
        let mut child = python.spawn().unwrap_or_else(|error| panic!("{needs} ({error})"));
        let (printed, input) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
        Self { printed: BufReader::new(printed).lines(), input, _child: child }
    }

    pub async fn next_line(&mut self) -> String {
        let line = timeout(WAIT_TIMEOUT, self.printed.next_line()).await.expect("the program prints nothing").unwrap();
        line.expect("the program has exited")
    }

    pub async fn write_line(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }
}
