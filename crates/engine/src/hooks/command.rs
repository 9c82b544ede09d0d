//! A hook that is a command: `sh -c` under a warden, the event on its standard input, its first line as its reason, or all
//! that it prints as its answer.

use std::convert::Infallible;
use std::time::Duration;

use quell_protocol::ToolOutputStream;
use tokio::net::unix::pipe::Sender;

use super::{Errand, Failure, Inner};
use crate::proc::{CommandSpec, Isolate, Leash, OutputSink, ProcessEnd, ProcessStop, RUN_ID_VARIABLE, SpawnError};
use crate::scope::{Scope, StopLevel};

/// Of what it prints this many bytes are looked at for its first line.
const HEARD: usize = 4096;
/// The most characters of a reason.
const REASON: usize = 300;
/// Of its whole output nothing is kept beyond this.
const OUTPUT: usize = 1024;

const EVENT_VARIABLE: &str = "QUELL_HOOK";
const SESSION_VARIABLE: &str = "QUELL_SESSION";

/// Runs a command to its end. A scope that ends tells it to end, and this then says so.
///
/// # Cancel safety
/// Safe: dropping it kills the command, and the scope waits for that.
pub(super) async fn run(hooks: &Inner, command: &str, errand: &Errand, scope: &Scope) -> Result<(), Failure> {
    let mut heard = Heard::at_most(HEARD);
    // waits: for the command, as `to_end` says.
    let ended = to_end(hooks, command, errand, scope, &mut heard).await;
    ended.map_err(|how| Failure { said: heard.reason(), how })
}

/// As [`run`]; answers the beginning of what the command prints: a byte more than `wanted` shows that it was more. What it
/// prints is the text of a message, so that a failure says no word of it.
///
/// # Cancel safety
/// As there.
pub(super) async fn ask(
    hooks: &Inner,
    command: &str,
    errand: &Errand,
    wanted: usize,
    scope: &Scope,
) -> Result<Vec<u8>, Failure> {
    let mut heard = Heard::at_most(wanted + 1);
    // waits: for the command, as `to_end` says.
    match to_end(hooks, command, errand, scope, &mut heard).await {
        Ok(()) => Ok(heard.stdout.into_bytes()),
        Err(how) => Err(Failure { said: first_line(&heard.stderr), how }),
    }
}

/// The error says how it ended.
async fn to_end(hooks: &Inner, command: &str, errand: &Errand, scope: &Scope, heard: &mut Heard) -> Result<(), String> {
    let mut running = hooks.wardens.start(&spec(hooks, command, errand), scope).map_err(|error| in_one_line(&error))?;
    let mut dropped = KillOnDrop(Some(running.leash()));
    let input = running.take_input();
    let end = {
        let collecting = running.collect(heard);
        let feeding = async {
            if let Some(input) = input {
                feed(input, errand.json.as_bytes()).await;
            }
            // waits: for ever, beside the life of the command.
            std::future::pending::<Infallible>().await
        };
        // waits: for the command, whose time is limited; its scope tells it to end, and who asks drops all of this at a stop.
        tokio::select! {
            end = collecting => end,
            never = feeding => match never {},
        }
    };
    dropped.0 = None;
    match end {
        Ok(end) if end.why == ProcessStop::Own && end.code == Some(0) => Ok(()),
        Ok(end) => Err(words_of(&end, hooks.limit)),
        Err(error) => Err(in_one_line(&error)),
    }
}

/// Writes as long as somebody reads; then the input is closed.
async fn feed(input: Sender, mut rest: &[u8]) {
    while !rest.is_empty() {
        // waits: beside the life of the command, in the `select!` above.
        if input.writable().await.is_err() {
            return;
        }
        match input.try_write(rest) {
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            // It does not want to read; that is its own affair.
            Err(_) => return,
        }
    }
}

fn spec(hooks: &Inner, command: &str, errand: &Errand) -> CommandSpec {
    let body = &errand.body;
    let mut env = hooks.environment.clone();
    env.push((EVENT_VARIABLE.into(), body.event.word().into()));
    if let Some(session) = &body.session {
        env.push((SESSION_VARIABLE.into(), session.key.as_str().into()));
    }
    env.push((RUN_ID_VARIABLE.into(), errand.mark.as_str().into()));
    CommandSpec {
        argv: vec!["sh".into(), "-c".into(), command.into()],
        label: command.to_owned(),
        cwd: hooks.cwd.clone(),
        env,
        timeout: Some(hooks.limit),
        output_limit: OUTPUT,
        isolate: Isolate::None,
    }
}

fn words_of(end: &ProcessEnd, limit: Duration) -> String {
    match (end.why, end.code, end.signal) {
        (ProcessStop::TimedOut, ..) => format!("it took longer than {} ms and was ended", limit.as_millis()),
        (ProcessStop::Stopped, ..) => "it was ended, because what caused it is over".to_owned(),
        (ProcessStop::WardenLost, ..) => "its supervising process was killed, and it with that".to_owned(),
        (ProcessStop::Own, Some(code), _) => format!("it ended with exit code {code}"),
        (ProcessStop::Own, None, Some(signal)) => format!("it was ended by signal {signal}"),
        (ProcessStop::Own, None, None) => "it ended in an unknown way".to_owned(),
    }
}

fn in_one_line(error: &SpawnError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Kills the command when the future that waits for it is dropped: a stop waits for nobody's hook.
struct KillOnDrop(Option<Leash>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(leash) = &self.0 {
            leash.end(StopLevel::Forced);
        }
    }
}

/// The beginning of what a command prints.
#[derive(Debug)]
struct Heard {
    stdout: String,
    stderr: String,
    /// So many bytes of its standard output are kept.
    most: usize,
}

impl OutputSink for Heard {
    fn output(&mut self, stream: ToolOutputStream, text: &str) {
        let (heard, most) = match stream {
            ToolOutputStream::Stdout => (&mut self.stdout, self.most),
            ToolOutputStream::Stderr => (&mut self.stderr, HEARD),
        };
        // Up to the end of the character: who cuts at its beginning would not show that there was more.
        let room = text.ceil_char_boundary(most.saturating_sub(heard.len()));
        heard.push_str(text.get(..room).unwrap_or_default());
    }
}

impl Heard {
    fn at_most(most: usize) -> Self {
        Self { stdout: String::new(), stderr: String::new(), most }
    }

    fn reason(&self) -> Option<String> {
        [&self.stdout, &self.stderr].into_iter().find_map(|heard| first_line(heard))
    }
}

/// The first line that says something, short enough and without control characters for an error and a log.
pub(super) fn first_line(text: &str) -> Option<String> {
    let plain = |line: &str| {
        let spaced = line.chars().map(|c| if c == '\t' { ' ' } else { c });
        spaced.filter(|c| !c.is_control()).take(REASON).collect::<String>()
    };
    text.lines().map(|line| plain(line.trim())).find(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(stdout: &str, stderr: &str) -> Option<String> {
        let mut heard = Heard::at_most(HEARD);
        heard.output(ToolOutputStream::Stderr, stderr);
        heard.output(ToolOutputStream::Stdout, stdout);
        heard.reason()
    }

    #[test]
    fn the_reason_is_the_first_line_that_says_something_of_stdout_then_of_stderr() {
        assert_eq!(heard("\n  too many\nsessions\n", "trouble\n").as_deref(), Some("too many"));
        assert_eq!(heard(" \n\t\n", "trouble\r\nmore").as_deref(), Some("trouble"));
        assert_eq!(heard("", ""), None);
        assert_eq!(heard("\u{1b}[31mred\u{7}", "").as_deref(), Some("[31mred"));
    }

    #[test]
    fn output_without_end_is_not_kept() {
        let mut heard = Heard::at_most(HEARD);
        for _ in 0..10_000 {
            heard.output(ToolOutputStream::Stdout, "äöü no line end ");
        }
        assert!((HEARD..HEARD + 4).contains(&heard.stdout.len()), "{}", heard.stdout.len());
        assert_eq!(heard.reason().unwrap().chars().count(), REASON);
    }
}
