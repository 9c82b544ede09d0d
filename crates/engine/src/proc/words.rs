//! What the daemon and a warden say to each other, and the order that a warden starts from.
//!
//! One socket, the warden's standard input: the daemon sends the order as a descriptor and then single bytes, the warden
//! answers in lines of JSON. The order is a file in memory and not arguments, because arguments and environment of a process
//! can be read by every process of the same user, and the environment of a tool server holds its keys.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use quell_protocol::receipt::Containment;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use super::input::Input;
use super::{Isolate, ProcessHow};

/// First argument of a warden.
pub(super) const WARDEN: &str = "__warden";
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
        /// What ends everything that it starts.
        held_by: Containment,
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

/// In place of a limit that is not set.
const NO_LIMIT: &str = "-";

/// What a warden is asked to run.
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
    /// The command's whole environment.
    pub(super) env: Vec<(OsString, OsString)>,
    /// The command's soft limit of open files, where it is not the warden's.
    pub(super) open_files: Option<u64>,
    /// Whether the record of births follows, to note the own end in it.
    pub(super) record: bool,
}

impl Order {
    /// As a file in memory, to be sent to the warden.
    pub(super) fn to_file(&self) -> io::Result<OwnedFd> {
        let mut file = File::from(memfd_create("order", MemfdFlags::CLOEXEC)?);
        file.write_all(&self.to_bytes())?;
        file.rewind()?;
        Ok(file.into())
    }

    /// From the file that was sent.
    ///
    /// # Errors
    /// What the file cannot be read for, and `InvalidData` when it is no order.
    pub(super) fn from_file(file: OwnedFd) -> io::Result<Self> {
        let mut bytes = Vec::new();
        File::from(file).read_to_end(&mut bytes)?;
        Self::from_bytes(&bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Fields that end in a zero byte, which no argument and no variable can hold.
    fn to_bytes(&self) -> Vec<u8> {
        let term = self.term.as_millis().to_string();
        let count = self.argv.len().to_string();
        let record = if self.record { "record" } else { "no-record" };
        let files = self.open_files.map_or_else(|| NO_LIMIT.to_owned(), |limit| limit.to_string());
        let head =
            [term.as_str(), self.isolate.word(), self.input.word(), &files, record, count.as_str()].map(OsStr::new);
        let variables = self.env.iter().flat_map(|(name, value)| [name.as_os_str(), value.as_os_str()]);
        let mut bytes = Vec::new();
        for field in head.into_iter().chain(self.argv.iter().map(OsString::as_os_str)).chain(variables) {
            bytes.extend_from_slice(field.as_bytes());
            bytes.push(0);
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut fields = bytes.strip_suffix(&[0])?.split(|byte| *byte == 0);
        let mut word = || std::str::from_utf8(fields.next()?).ok();
        let term = Duration::from_millis(word()?.parse().ok()?);
        let isolate = Isolate::from_word(word()?)?;
        let input = Input::from_word(word()?)?;
        let open_files = match word()? {
            NO_LIMIT => None,
            limit => Some(limit.parse().ok()?),
        };
        let record = word()? == "record";
        let count: usize = word()?.parse().ok()?;
        let mut rest: Vec<OsString> = fields.map(|field| OsString::from_vec(field.to_vec())).collect();
        if count == 0 || count > rest.len() {
            return None;
        }
        let mut variables = rest.split_off(count).into_iter();
        let mut env = Vec::new();
        while let Some(name) = variables.next() {
            env.push((name, variables.next()?));
        }
        Some(Self { term, isolate, input, argv: rest, env, open_files, record })
    }
}

/// The error number, for [`Word::Refused`].
pub(super) fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> Order {
        Order {
            term: Duration::from_millis(500),
            isolate: Isolate::Pid,
            input: Input::Pipe,
            argv: vec!["sh".into(), "-c".into(), "echo \"a b\"\nexit 3".into(), OsString::new()],
            env: vec![("PATH".into(), "/bin".into()), ("EMPTY".into(), OsString::new())],
            open_files: Some(1024),
            record: true,
        }
    }

    #[test]
    fn an_order_survives_its_file() {
        let unlimited = Order { open_files: None, ..order() };
        for order in [order(), unlimited] {
            assert_eq!(Order::from_file(order.to_file().unwrap()).unwrap(), order);
        }
    }

    #[test]
    fn a_cut_order_is_none() {
        let bytes = order().to_bytes();
        for end in 0..bytes.len() {
            assert_ne!(Order::from_bytes(&bytes[..end]), Some(order()), "{end}");
        }
        let no_command = Order { argv: Vec::new(), ..order() };
        assert_eq!(Order::from_bytes(&no_command.to_bytes()), None);
    }

    #[test]
    fn a_cut_line_is_no_word() {
        let started = br#"{"started":{"pid":7,"held_by":"sweep"}}"#;
        assert_eq!(words(started).collect::<Vec<_>>(), [Word::Started { pid: 7, held_by: Containment::Sweep }]);
        assert_eq!(words(&started[..10]).count(), 0);
    }
}
