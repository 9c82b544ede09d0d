//! What the daemon and a warden say to each other, and the arguments that make a process a warden.
//!
//! One socket, the warden's standard input: the daemon writes single bytes, the warden answers in lines of JSON.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::input::Input;
use super::{Isolate, ProcessHow};

/// First argument of a warden.
pub(super) const WARDEN: &str = "__warden";
/// First argument of the init of a PID namespace.
pub(super) const INIT: &str = "__warden-init";
/// What `ps` shows of a warden. Without the product's name, so that `pkill -9 quell` ends the daemon and leaves the wardens
/// alive to end the rest.
pub(super) const PROCESS_NAME: &str = "warden";

/// SIGTERM to every process, SIGKILL after the grace.
pub(super) const GENTLE: u8 = b'T';
/// SIGKILL to every process.
pub(super) const FORCED: u8 = b'K';

/// What a warden says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Word {
    /// The command runs.
    Started {
        /// Its leader.
        pid: i32,
    },
    /// The command could not be started.
    Refused {
        /// At which step.
        step: Step,
        /// The error number.
        errno: i32,
    },
    /// The command is over; nothing of it is alive except the leftovers.
    Ended(Ended),
}

/// The steps at which a start can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Step {
    /// Becoming a warden.
    Warden,
    /// Making the PID namespace.
    Isolate,
    /// Executing the program.
    Program,
}

/// The end of a command as its warden saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ended {
    /// Of the leader.
    pub(super) code: Option<i32>,
    /// Of the leader.
    pub(super) signal: Option<i32>,
    /// The highest rung.
    pub(super) how: ProcessHow,
    /// True when the leader was still alive when it was told to end.
    pub(super) told: bool,
    /// Descendants other than the leader that had to be ended.
    pub(super) swept: u32,
    /// What could not be ended.
    pub(super) leftovers: Vec<Leftover>,
}

/// A process that could not be ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Leftover {
    /// Its number.
    pub(super) pid: i32,
    /// In the words that a person needs.
    pub(super) name: String,
}

/// Says one word. An error means that nobody listens any more, which whoever speaks learns from its own poll.
pub(super) fn say(to: impl AsFd, word: &Word) {
    let Ok(mut line) = serde_json::to_vec(word) else { return };
    line.push(b'\n');
    let mut rest = line.as_slice();
    while !rest.is_empty() {
        match rustix::io::write(&to, rest) {
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// The words of all complete lines.
pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = Word> {
    bytes.split_inclusive(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
}

/// What a warden is told by its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Order {
    /// From SIGTERM to SIGKILL.
    pub(super) term: Duration,
    /// Whether the command gets a PID namespace.
    pub(super) isolate: Isolate,
    /// Where the command reads from.
    pub(super) input: Input,
    /// The command.
    pub(super) argv: Vec<OsString>,
}

impl Order {
    /// As arguments, [`WARDEN`] first.
    pub(super) fn to_args(&self) -> Vec<OsString> {
        let isolate = match self.isolate {
            Isolate::None => "none",
            Isolate::Pid => "pid",
        };
        let term = self.term.as_millis().to_string();
        let mut args: Vec<OsString> = vec![WARDEN.into(), term.into(), isolate.into(), self.input.word().into()];
        args.extend(self.argv.iter().cloned());
        args
    }

    /// From the arguments after [`WARDEN`].
    pub(super) fn from_args(mut args: impl Iterator<Item = OsString>) -> Option<Self> {
        let term = Duration::from_millis(args.next()?.to_str()?.parse().ok()?);
        let isolate = match args.next()?.to_str()? {
            "none" => Isolate::None,
            "pid" => Isolate::Pid,
            _ => return None,
        };
        let input = Input::from_word(args.next()?.to_str()?)?;
        let argv: Vec<OsString> = args.collect();
        (!argv.is_empty()).then_some(Self { term, isolate, input, argv })
    }
}

/// The error number, for [`Word::Refused`].
pub(super) fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_survives_the_command_line() {
        let order = Order {
            term: Duration::from_millis(500),
            isolate: Isolate::Pid,
            input: Input::Pipe,
            argv: vec!["sh".into(), "-c".into(), "echo \"a b\"\nexit 3".into()],
        };
        let args = order.to_args();
        assert_eq!(args.first().and_then(|arg| arg.to_str()), Some(WARDEN));
        assert_eq!(Order::from_args(args.into_iter().skip(1)), Some(order));
    }

    #[test]
    fn an_order_without_a_command_is_none() {
        assert_eq!(Order::from_args(["500", "none", "null"].into_iter().map(OsString::from)), None);
        assert_eq!(Order::from_args(["soon", "none", "null", "sh"].into_iter().map(OsString::from)), None);
        assert_eq!(Order::from_args(["500", "both", "null", "sh"].into_iter().map(OsString::from)), None);
        assert_eq!(Order::from_args(["500", "none", "file", "sh"].into_iter().map(OsString::from)), None);
    }

    #[test]
    fn a_cut_line_is_no_word() {
        let started = br#"{"started":{"pid":7}}"#;
        assert_eq!(words(started).collect::<Vec<_>>(), [Word::Started { pid: 7 }]);
        assert_eq!(words(&started[..10]).count(), 0);
    }
}
