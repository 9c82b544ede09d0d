//! A hook that is a command: `sh -c` under a warden, the event on its standard input, its first line as its reason.

use std::convert::Infallible;
use std::time::Duration;

use quell_protocol::ToolOutputStream;
use tokio::net::unix::pipe::Sender;

use super::{Errand, Failure, Inner};
use crate::proc::{CommandSpec, Isolate, Leash, OutputSink, ProcessEnd, ProcessStop, RUN_ID_VARIABLE, SpawnError};
use crate::scope::{Scope, StopLevel};

/// Of what it prints this much is looked at for its first line.
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
    let mut running = match hooks.wardens.start(&spec(hooks, command, errand), scope) {
        Ok(running) => running,
        Err(error) => return Err(Failure { said: None, how: in_one_line(&error) }),
    };
    let mut dropped = KillOnDrop(Some(running.leash()));
    let input = running.take_input();
    let mut lines = FirstLines::default();
    let end = {
        let collecting = running.collect(&mut lines);
        let feeding = async {
            if let Some(input) = input {
                feed(input, errand.json.as_bytes()).await;
            }
            // waits: for ever, beside the life of the command.
            std::future::pending::<Infallible>().await
        };
        // waits: for the command, whose time is limited; its scope tells it to end, and `ask` drops all of this at a stop.
        tokio::select! {
            end = collecting => end,
            never = feeding => match never {},
        }
    };
    dropped.0 = None;
    match end {
        Ok(end) if end.why == ProcessStop::Own && end.code == Some(0) => Ok(()),
        Ok(end) => Err(Failure { said: lines.reason(), how: words_of(&end, hooks.limit) }),
        Err(error) => Err(Failure { said: None, how: in_one_line(&error) }),
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
#[derive(Debug, Default)]
struct FirstLines {
    stdout: String,
    stderr: String,
}

impl OutputSink for FirstLines {
    fn output(&mut self, stream: ToolOutputStream, text: &str) {
        let heard = match stream {
            ToolOutputStream::Stdout => &mut self.stdout,
            ToolOutputStream::Stderr => &mut self.stderr,
        };
        let room = text.floor_char_boundary(HEARD.saturating_sub(heard.len()));
        heard.push_str(text.get(..room).unwrap_or_default());
    }
}

impl FirstLines {
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
        let mut lines = FirstLines::default();
        lines.output(ToolOutputStream::Stderr, stderr);
        lines.output(ToolOutputStream::Stdout, stdout);
        lines.reason()
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
        let mut lines = FirstLines::default();
        for _ in 0..10_000 {
            lines.output(ToolOutputStream::Stdout, "äöü no line end ");
        }
        assert!(lines.stdout.len() <= HEARD, "{}", lines.stdout.len());
        assert_eq!(lines.reason().unwrap().chars().count(), REASON);
    }
}
