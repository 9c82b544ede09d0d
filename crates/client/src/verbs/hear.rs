//! Waiting for a stop's answer without hanging in silence: a daemon that does not answer is told of within two seconds, with its
//! number, and can be ended from here.

use std::future::Future;
use std::io::{BufRead, BufReader};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, interval, interval_at, sleep};

use super::VerbError;
use super::settle::REDRAW;
use crate::link::{DaemonProcess, Link, LinkError};
use crate::term::{Io, Tone};
use crate::words::millis;

/// How long a daemon that does not answer is waited for, once the person knows.
const LAST_WAIT: Duration = Duration::from_secs(8);
/// How long a daemon may take to end: a shutdown is over after five seconds.
const ENDING: Duration = Duration::from_secs(10);
/// Between two looks whether it has ended.
const LOOK: Duration = Duration::from_millis(50);

/// What a person reads of a daemon that does not answer.
pub(super) fn silent(pid: Option<i32>) -> String {
    match pid {
        Some(pid) => {
            format!("the daemon (pid {pid}) does not answer · `kill -TERM {pid}` ends it and everything that it runs")
        }
        None => "the daemon does not answer".into(),
    }
}

/// Shows on a terminal for how long the stop has been on its way, until the work is done or nobody answers any more.
pub(super) async fn while_heard<T>(link: &Link, io: &mut Io, work: impl Future<Output = T>) -> Result<T, VerbError> {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = while_shown(io, work.as_mut()) => return done,
            () = link.falls_silent() => {}
        }
        let pid = link.daemon().map(DaemonProcess::pid);
        io.screen.remark(&silent(pid))?;
        let mut consent = ask(link, io)?;
        tokio::select! {
            done = &mut work => return Ok(done),
            () = link.answers_again() => {}
            answer = consented(&mut consent) => match (answer, link.daemon()) {
                (true, Some(daemon)) => return Err(end(daemon).await),
                _ => return Err(LinkError::Silent { pid }.into()),
            },
        }
        io.screen.remark("it answers again")?;
    }
}

async fn while_shown<T>(io: &mut Io, mut work: std::pin::Pin<&mut impl Future<Output = T>>) -> Result<T, VerbError> {
    let started = Instant::now();
    let mut redraw = interval_at(started + REDRAW, REDRAW);
    loop {
        tokio::select! {
            // The work is pinned outside: a tick does not drop it.
            done = &mut work => return Ok(done),
            _ = redraw.tick() => {
                let ms = started.elapsed().as_secs_f64() * 1000.0;
                io.screen.status(Tone::Stopping, &format!("◆ stopping · {}", millis(ms)))?;
            }
        }
    }
}

/// Asks a person at a terminal whether the daemon is to be ended.
fn ask(link: &Link, io: &mut Io) -> Result<Option<oneshot::Receiver<bool>>, VerbError> {
    if link.daemon().is_none() || !io.screen.err().is_terminal() {
        return Ok(None);
    }
    io.screen.remark("end it now, and everything that it runs? [y/N]")?;
    let input = std::mem::replace(&mut io.input, Box::new(std::io::empty()));
    let (answer, asked) = oneshot::channel();
    // Whoever does not answer keeps this thread until the process ends.
    let reading = std::thread::Builder::new().name("consent".into()).spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(input).read_line(&mut line).is_ok();
        let _ = answer.send(read && matches!(line.trim(), "y" | "Y" | "yes"));
    });
    Ok(reading.is_ok().then_some(asked))
}

/// The person's answer; without a person, no after a while.
async fn consented(asked: &mut Option<oneshot::Receiver<bool>>) -> bool {
    match asked {
        Some(asked) => asked.await.unwrap_or(false),
        None => {
            sleep(LAST_WAIT).await;
            false
        }
    }
}

/// Ends the daemon, and says what came of it.
async fn end(daemon: &DaemonProcess) -> VerbError {
    let pid = daemon.pid();
    if let Err(error) = daemon.terminate() {
        return VerbError::DaemonEnded(format!("the daemon (pid {pid}) cannot be ended from here: {error}"));
    }
    let mut look = interval(LOOK);
    let until = Instant::now() + ENDING;
    while !daemon.is_over() {
        if Instant::now() >= until {
            let why = format!(
                "the daemon (pid {pid}) has not ended; `kill -KILL {pid}` ends it, and its wardens what it runs"
            );
            return VerbError::DaemonEnded(why);
        }
        look.tick().await;
    }
    VerbError::DaemonEnded(format!(
        "the daemon (pid {pid}) has ended, and with it what it ran · `quell serve` starts it again, `quell runs` shows the receipts"
    ))
}
