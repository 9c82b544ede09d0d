//! An external server of a test: a process whose output says when it is ready.

use std::io::{BufRead as _, BufReader, Read};
use std::net::TcpListener;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::WAIT_TIMEOUT;
use crate::leaks;
use crate::or_fail::OrFail as _;

/// The process and its output. Dropping it kills it with all its descendants.
#[derive(Debug)]
pub(crate) struct ExternalServer {
    child: Child,
    output: Arc<Mutex<String>>,
}

impl ExternalServer {
    /// Waits until `find` finds something in a line of the output; returns the output when it does not.
    pub(crate) async fn watch<T: Send + 'static>(
        mut child: Child,
        find: impl FnMut(&str) -> Option<T> + Send + 'static,
    ) -> Result<(Self, T), String> {
        let (output, (announce, announced)) = (Arc::<Mutex<String>>::default(), oneshot::channel());
        let (stdout, kept) = (child.stdout.take(), Arc::clone(&output));
        let process = Self { child, output };
        // The thread ends with the output.
        let reading = std::thread::Builder::new().name("server-output".into());
        reading
            .spawn(move || stdout.map(|stdout| read_output(stdout, &kept, find, announce)))
            .or_fail("no thread for a server");
        match timeout(WAIT_TIMEOUT, announced).await {
            Ok(Ok(found)) => Ok((process, found)),
            _ => Err(process.output()),
        }
    }

    pub(crate) fn output(&self) -> String {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
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

/// Keeps the output, and sends what `find` finds first.
fn read_output<T>(
    stdout: impl Read,
    kept: &Mutex<String>,
    mut find: impl FnMut(&str) -> Option<T>,
    announce: oneshot::Sender<T>,
) {
    let mut announce = Some(announce);
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_str(&line);
        kept.push('\n');
        drop(kept);
        if let Some(found) = find(&line)
            && let Some(announce) = announce.take()
        {
            let _ = announce.send(found);
        }
    }
}

/// A port that is free now.
pub(crate) fn free_port() -> u16 {
    let bound = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    bound.or_fail("no free port").port()
}
