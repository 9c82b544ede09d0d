//! An external server of a test: a process whose output says when it is ready.

use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Child;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::NamedTempFile;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::leaks;
use crate::or_fail::OrFail as _;

/// The process and its output. Dropping it kills it with all its descendants.
#[derive(Debug)]
pub(crate) struct ExternalServer {
    child: Child,
    output: NamedTempFile,
}

impl ExternalServer {
    /// Waits until `find` finds something in a line of the standard output; returns the output when it does not.
    pub(crate) async fn watch<T: Send + 'static>(
        mut child: Child,
        limit: Duration,
        find: impl FnMut(&str) -> Option<T> + Send + 'static,
    ) -> Result<(Self, T), String> {
        let output = NamedTempFile::with_prefix("quell-server-").or_fail("no file for the output of a server");
        let (announce, announced) = oneshot::channel();
        let (stdout, copy) = (child.stdout.take(), output.reopen().or_fail("the output of a server is gone"));
        let process = Self { child, output };
        // The thread ends with the output.
        let reading = std::thread::Builder::new().name("server-output".into());
        reading
            .spawn(move || stdout.map(|stdout| read_output(stdout, copy, find, announce)))
            .or_fail("no thread for a server");
        match timeout(limit, announced).await {
            Ok(Ok(found)) => Ok((process, found)),
            _ => Err(process.output()),
        }
    }

    pub(crate) fn output(&self) -> String {
        fs::read_to_string(self.output.path()).unwrap_or_default()
    }

    pub(crate) fn kill(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            // Its pid may belong to another process by now.
            return;
        }
        let below = leaks::descendants_of(self.child.id());
        let _ = self.child.kill();
        let _ = self.child.wait();
        for pid in below.iter().filter_map(|process| Pid::from_raw(i32::try_from(process.pid).ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Drop for ExternalServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Copies the output, and sends what `find` finds first.
pub(crate) fn read_output<T>(
    stdout: impl Read,
    mut copy: impl Write,
    mut find: impl FnMut(&str) -> Option<T>,
    announce: oneshot::Sender<T>,
) {
    let (mut lines, mut line, mut announce) = (BufReader::new(stdout), Vec::new(), Some(announce));
    while lines.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        let _ = copy.write_all(&line);
        if announce.is_some()
            && let Some(found) = find(String::from_utf8_lossy(&line).trim_end())
        {
            let _ = announce.take().map(|announce| announce.send(found));
        }
        line.clear();
    }
}

/// Starts a server, again when its port was taken meanwhile.
///
/// # Panics
/// When no attempt succeeds, with the last output.
pub(crate) async fn start_server<T>(name: &str, mut start: impl AsyncFnMut() -> Result<T, String>) -> T {
    const START_ATTEMPTS: u32 = 5;
    let mut last = String::new();
    for _ in 0..START_ATTEMPTS {
        match start().await {
            Ok(server) => return server,
            Err(output) => last = output,
        }
    }
    panic!("{name} does not start\n{last}");
}

/// A port that is free now.
pub(crate) fn free_port() -> u16 {
    let bound = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    bound.or_fail("no free port").port()
}
