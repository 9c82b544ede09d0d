//! Wait for a stop's answer, report a daemon that does not answer within two seconds, and offer to terminate it.

use std::future::Future;
use std::io::{BufRead, BufReader};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, interval, sleep};

use super::stop_report::await_with_stop_status;
use super::{SubcommandContext, SubcommandError, SubcommandResult};
use crate::daemon_client::{ClientError, DaemonClient, DaemonProcess};
use crate::term::CommandIo;

/// Time to wait for an unresponsive daemon after it was reported.
const UNRESPONSIVE_GRACE: Duration = Duration::from_secs(8);
/// Time that a daemon may take to exit; a shutdown takes at most five seconds.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
const EXIT_CHECK_INTERVAL: Duration = Duration::from_millis(50);

pub(super) fn unresponsive_text(pid: Option<i32>) -> String {
    match pid {
        Some(pid) => {
            format!("the daemon (pid {pid}) does not answer · `kill -TERM {pid}` ends it and everything that it runs")
        }
        None => "the daemon does not answer".into(),
    }
}

/// Awaits `work` with its elapsed time on the terminal. Reports the daemon when it no longer answers, and offers to end
/// it.
pub(super) async fn await_or_report_silence<T>(
    cx: &mut SubcommandContext<'_>,
    work: impl Future<Output = T>,
) -> SubcommandResult<T> {
    let (client, io) = (cx.client, &mut *cx.io);
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = await_with_stop_status(io, work.as_mut()) => return done,
            () = client.wait_until_unresponsive() => {}
        }
        let pid = client.daemon_process().map(DaemonProcess::pid);
        io.output.eprint_line(&unresponsive_text(pid))?;
        let mut consent = ask_to_end_daemon(client, io)?;
        tokio::select! {
            done = &mut work => return Ok(done),
            () = client.wait_until_responsive() => {}
            answer = await_consent(&mut consent) => match (answer, client.daemon_process()) {
                (true, Some(daemon)) => return Err(end_daemon(daemon).await),
                _ => return Err(ClientError::Unresponsive { pid }.into()),
            },
        }
        io.output.eprint_line("it answers again")?;
    }
}

/// Asks the user at a terminal whether to end the daemon; none without a terminal or a known process.
fn ask_to_end_daemon(client: &DaemonClient, io: &mut CommandIo) -> SubcommandResult<Option<oneshot::Receiver<bool>>> {
    if client.daemon_process().is_none() || !io.output.stderr().is_terminal() {
        return Ok(None);
    }
    io.output.eprint_line("end it now, and everything that it runs? [y/N]")?;
    let input = std::mem::replace(&mut io.input, Box::new(std::io::empty()));
    let (consent_sender, consent_receiver) = oneshot::channel();
    // Without an answer this thread blocks until the process exits.
    let reading = std::thread::Builder::new().name("consent".into()).spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(input).read_line(&mut line).is_ok();
        let _ = consent_sender.send(read && matches!(line.trim(), "y" | "Y" | "yes"));
    });
    Ok(reading.is_ok().then_some(consent_receiver))
}

/// The user's answer; without a user, false after [`UNRESPONSIVE_GRACE`].
async fn await_consent(consent: &mut Option<oneshot::Receiver<bool>>) -> bool {
    match consent {
        Some(consent) => consent.await.unwrap_or(false),
        None => {
            sleep(UNRESPONSIVE_GRACE).await;
            false
        }
    }
}

/// Ends the daemon and returns the outcome as the error of the subcommand.
async fn end_daemon(daemon: &DaemonProcess) -> SubcommandError {
    let pid = daemon.pid();
    if let Err(error) = daemon.terminate() {
        return SubcommandError::DaemonEnded(format!("the daemon (pid {pid}) cannot be ended from here: {error}"));
    }
    let mut check = interval(EXIT_CHECK_INTERVAL);
    let until = Instant::now() + SHUTDOWN_TIMEOUT;
    while !daemon.has_exited() {
        if Instant::now() >= until {
            let why = format!(
                "the daemon (pid {pid}) has not ended; `kill -KILL {pid}` ends it, and its wardens what it runs"
            );
            return SubcommandError::DaemonEnded(why);
        }
        check.tick().await;
    }
    SubcommandError::DaemonEnded(format!(
        "the daemon (pid {pid}) has ended, and with it what it ran · `quell serve` starts it again, `quell runs` shows the receipts"
    ))
}
