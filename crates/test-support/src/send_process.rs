//! Test support: `quell send` as a process, read while it answers.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncReadExt;

use crate::prelude::*;

/// `quell send` at work.
pub struct SendProcess {
    child: tokio::process::Child,
    out: tokio::process::ChildStdout,
    seen: String,
}

impl SendProcess {
    pub fn start(home: &DaemonHome, args: &[&str]) -> Self {
        let mut command = home.command(quell_exe());
        command.arg("send").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut command = tokio::process::Command::from(command);
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        let out = child.stdout.take().unwrap();
        Self { child, out, seen: String::new() }
    }

    /// Reads on until the output ends with `end`.
    pub async fn wait_output_ending(&mut self, end: &str) {
        let reading = async {
            let mut bytes = [0; 1024];
            while !self.seen.ends_with(end) {
                let n = self.out.read(&mut bytes).await.unwrap();
                assert!(n > 0, "the answer ended with {:?}", self.seen);
                self.seen.push_str(std::str::from_utf8(&bytes[..n]).unwrap());
            }
        };
        assert!(tokio::time::timeout(WAIT_TIMEOUT, reading).await.is_ok(), "{end:?} is missing in {:?}", self.seen);
    }

    /// Sends SIGINT, as a terminal does for Ctrl-C.
    pub fn send_ctrl_c(&self) {
        self.send_signal(Signal::INT);
    }

    pub fn send_signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).unwrap())).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Closes the pipe that the process writes its answer to, as `| head` does. Returns how the process ends.
    pub async fn close_output(self) -> Option<i32> {
        drop(self.out);
        tokio::time::timeout(WAIT_TIMEOUT, self.child.wait_with_output()).await.unwrap().unwrap().status.code()
    }

    pub async fn wait_exit(mut self) -> QuellCliOutput {
        let mut out = self.seen;
        self.out.read_to_string(&mut out).await.unwrap();
        let ended = tokio::time::timeout(WAIT_TIMEOUT, self.child.wait_with_output()).await.unwrap().unwrap();
        let err = String::from_utf8(ended.stderr).unwrap();
        QuellCliOutput { code: ended.status.code().unwrap_or(-1), out, err }
    }
}
