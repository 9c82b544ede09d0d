//! Probe whether the daemon answers, and resume its process if it was stopped by a signal.

use std::time::Duration;

use reqwest::Method;
use tokio::time::{sleep, timeout};

use super::{DaemonClient, DaemonProcess};

/// The delay and the timeout add up to less than two seconds, within which a user learns that the daemon does not
/// answer.
const FIRST_PROBE_DELAY: Duration = Duration::from_millis(400);
const PROBE_TIMEOUT: Duration = Duration::from_millis(1400);
/// Time between two probes of a daemon that answered.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// Outcome of a health probe, which every daemon answers at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HealthProbe {
    /// Answered, with any status.
    Answered,
    /// No connection.
    Failed,
    TimedOut,
}

impl DaemonClient {
    /// The daemon's process, if it is on this machine and verified.
    pub(crate) fn daemon_process(&self) -> Option<&DaemonProcess> {
        self.daemon_process.as_ref()
    }

    /// Resumes a daemon that was stopped with `SIGSTOP`.
    pub(super) fn wake_daemon(&self) {
        if let Some(daemon) = &self.daemon_process {
            daemon.continue_if_stopped();
        }
    }

    pub(crate) async fn probe_health(&self) -> HealthProbe {
        let Ok(request) = self.build_request(Method::GET, &["healthz"], &[]) else { return HealthProbe::Failed };
        match timeout(PROBE_TIMEOUT, request.send()).await {
            Ok(Ok(_)) => HealthProbe::Answered,
            Ok(Err(_)) => HealthProbe::Failed,
            Err(_elapsed) => HealthProbe::TimedOut,
        }
    }

    /// Waits until the daemon no longer answers.
    pub(crate) async fn wait_until_unresponsive(&self) {
        sleep(FIRST_PROBE_DELAY).await;
        while self.probe_health().await == HealthProbe::Answered {
            sleep(PROBE_INTERVAL).await;
        }
    }

    pub(crate) async fn wait_until_responsive(&self) {
        while self.probe_health().await != HealthProbe::Answered {
            sleep(FIRST_PROBE_DELAY).await;
        }
    }
}
