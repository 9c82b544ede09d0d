//! Whether the daemon answers at all. A request may take long for good reasons; a daemon that is alive says so at once.

use std::time::Duration;

use reqwest::Method;
use tokio::time::{sleep, timeout};

use super::{DaemonProcess, Link};

/// A person is told within two seconds that nobody answers: this long nothing is asked, then one answer may take this long.
const QUIET: Duration = Duration::from_millis(400);
const ANSWER: Duration = Duration::from_millis(1400);
/// Between two questions of a daemon that answered.
const AGAIN: Duration = Duration::from_secs(2);

/// What came of a question that every daemon answers at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Greeting {
    /// An answer, whatever it was.
    Answered,
    /// No connection.
    Failed,
    /// Nothing.
    Silence,
}

impl Link {
    /// The daemon's process, if it is on this machine and known for the real one.
    pub(crate) fn daemon(&self) -> Option<&DaemonProcess> {
        self.daemon.as_ref()
    }

    /// Lets a daemon that is stopped go on.
    pub(super) fn wake(&self) {
        if let Some(daemon) = &self.daemon {
            daemon.wake();
        }
    }

    /// Asks what every daemon answers at once.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    pub(crate) async fn greet(&self) -> Greeting {
        let Ok(request) = self.request(Method::GET, &["healthz"], &[]) else { return Greeting::Failed };
        match timeout(ANSWER, request.send()).await {
            Ok(Ok(_)) => Greeting::Answered,
            Ok(Err(_)) => Greeting::Failed,
            Err(_elapsed) => Greeting::Silence,
        }
    }

    /// Waits until the daemon does not answer any more.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    pub(crate) async fn falls_silent(&self) {
        sleep(QUIET).await;
        while self.greet().await == Greeting::Answered {
            sleep(AGAIN).await;
        }
    }

    /// Waits until the daemon answers.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    pub(crate) async fn answers_again(&self) {
        while self.greet().await != Greeting::Answered {
            sleep(QUIET).await;
        }
    }
}
