//! The protocol between the daemon and a warden, and the launch request.
//!
//! There is one socket, the warden's standard input. The daemon sends the launch request and the lifetime limit as
//! descriptors, those that the request names, and then single bytes; the warden answers with lines of JSON.
//!
//! The launch request is a file in memory, because every process of the same user can read the arguments and the
//! environment of a process. The environment of a tool server contains its keys.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::time::Duration;

use quell_protocol::receipt::Containment;
use quell_protocol::sandbox::SandboxFacts;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use super::fd_passing::CommandInput;
use super::sandbox::SandboxError;
use super::{Isolate, PROXY_PORT, ProcessEndMethod, SandboxSpec};

pub(super) const WARDEN_ARGUMENT: &str = "__warden";
/// The name that `ps` shows. Without the name of the product, so that `pkill -9 quell` ends the daemon and leaves the
/// wardens alive to end the rest.
pub(super) const PROCESS_NAME: &str = "warden";

/// Asks for SIGTERM to all processes, and SIGKILL after the grace.
pub(super) const GENTLE_STOP_BYTE: u8 = b'T';
/// Asks for SIGKILL to all processes.
pub(super) const FORCED_STOP_BYTE: u8 = b'K';

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WardenReport {
    Started {
        /// Pid of the leader.
        pid: i32,
        held_by: Containment,
        sandbox: Option<SandboxFacts>,
    },
    Refused(StartFailure),
    /// All processes of the command have ended except the leftovers.
    Ended(CommandEndReport),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StartStep {
    Warden,
    Isolate,
    Sandbox,
    Program,
    /// The lifetime limit has passed.
    Lifetime,
}

/// Why a command was not started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StartFailure {
    pub(super) step: StartStep,
    /// `errno` of the failed step; 0 if it has none.
    pub(super) errno: i32,
    /// The step and its error for people, where the number alone does not say enough.
    pub(super) detail: Option<String>,
}

impl StartFailure {
    pub(super) fn new(step: StartStep, error: &io::Error) -> Self {
        Self { step, errno: error.raw_os_error().unwrap_or(0), detail: None }
    }

    pub(super) fn warden(error: impl Into<io::Error>) -> Self {
        Self::new(StartStep::Warden, &error.into())
    }

    pub(super) fn isolate(error: impl Into<io::Error>) -> Self {
        Self::new(StartStep::Isolate, &error.into())
    }

    /// `step` says what was tried.
    pub(super) fn network(step: &str, error: &io::Error) -> Self {
        Self { step: StartStep::Sandbox, errno: 0, detail: Some(format!("{step}: {error}")) }
    }

    pub(super) fn proxy_port_in_use() -> Self {
        let detail = format!(
            "a command of this session in the background uses port {PROXY_PORT} of all addresses, which the proxy of the \
             network list needs: end it, or let it use another port"
        );
        Self { step: StartStep::Sandbox, errno: 0, detail: Some(detail) }
    }

    pub(super) fn lifetime_over() -> Self {
        Self { step: StartStep::Lifetime, errno: 0, detail: None }
    }

    pub(super) fn program(error: impl Into<io::Error>) -> Self {
        Self::new(StartStep::Program, &error.into())
    }
}

impl From<SandboxError> for StartFailure {
    fn from(error: SandboxError) -> Self {
        Self { step: StartStep::Sandbox, errno: 0, detail: Some(error.to_string()) }
    }
}

/// The end of a command as its warden saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CommandEndReport {
    pub(super) code: Option<i32>,
    pub(super) signal: Option<i32>,
    /// The strongest rung that was needed.
    pub(super) how: ProcessEndMethod,
    pub(super) leader_alive_at_stop: bool,
    pub(super) ended_by_lifetime_limit: bool,
    /// Descendants other than the leader that had to be ended.
    pub(super) swept: u32,
    pub(super) leftovers: Vec<LeftoverProcess>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeftoverProcess {
    pub(super) pid: i32,
    /// Pid, name and reason, for people.
    pub(super) name: String,
}

/// Sends one report. Ignores errors: they mean that the daemon is gone, which the sender notices by its own poll.
pub(super) fn send_report(to: impl AsFd, report: &WardenReport) {
    let Ok(mut line) = serde_json::to_vec(report) else { return };
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

/// Parses the reports in all complete lines.
pub(super) fn parse_reports(bytes: &[u8]) -> impl Iterator<Item = WardenReport> {
    bytes.split_inclusive(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
}

/// The command of a warden, with its settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LaunchRequest {
    /// Time from SIGTERM to SIGKILL.
    pub(super) term: Duration,
    pub(super) isolate: Isolate,
    pub(super) sandbox: Option<Arc<SandboxSpec>>,
    pub(super) input: CommandInput,
    #[serde(skip)]
    pub(super) argv: Vec<OsString>,
    #[serde(skip)]
    pub(super) env: Vec<(OsString, OsString)>,
    /// The command's soft limit of open files, if it differs from the warden's.
    pub(super) open_files: Option<u64>,
    /// True when the descriptor of the warden record follows, for the entry of the warden's end.
    pub(super) record: bool,
    /// The address at which the init of the namespace listens for the proxy. The descriptor of a socket follows, for the
    /// listener.
    pub(super) proxy: Option<Ipv4Addr>,
    /// True when the descriptors of a [`NamespaceExchange`](super::session_network::NamespaceExchange) follow.
    pub(super) shares_network: bool,
}

impl LaunchRequest {
    /// Writes the request to a file in memory, which is sent to the warden.
    pub(super) fn to_file(&self) -> io::Result<OwnedFd> {
        let mut file = File::from(memfd_create("order", MemfdFlags::CLOEXEC)?);
        file.write_all(&self.to_bytes()?)?;
        file.rewind()?;
        Ok(file.into())
    }

    /// Reads the request from the file that was sent.
    ///
    /// # Errors
    /// The error of the read, or `InvalidData` when the file contains no valid request.
    pub(super) fn from_file(file: OwnedFd) -> io::Result<Self> {
        let mut bytes = Vec::new();
        File::from(file).read_to_end(&mut bytes)?;
        Self::from_bytes(&bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The settings as JSON, the number of arguments, the arguments, the variables. Each field ends with a zero byte,
    /// which none of them can contain.
    fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let head = [serde_json::to_string(self)?, self.argv.len().to_string()];
        let variables = self.env.iter().flat_map(|(name, value)| [name.as_os_str(), value.as_os_str()]);
        let mut bytes = Vec::new();
        for field in head.iter().map(OsStr::new).chain(self.argv.iter().map(OsString::as_os_str)).chain(variables) {
            bytes.extend_from_slice(field.as_bytes());
            bytes.push(0);
        }
        Ok(bytes)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut fields = bytes.strip_suffix(&[0])?.split(|byte| *byte == 0);
        let settings: Self = serde_json::from_slice(fields.next()?).ok()?;
        let count: usize = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let mut rest: Vec<OsString> = fields.map(|field| OsString::from_vec(field.to_vec())).collect();
        if count == 0 || count > rest.len() {
            return None;
        }
        let mut variables = rest.split_off(count).into_iter();
        let mut env = Vec::new();
        while let Some(name) = variables.next() {
            env.push((name, variables.next()?));
        }
        Some(Self { argv: rest, env, ..settings })
    }
}

#[cfg(test)]
mod tests {
    use quell_protocol::sandbox::SandboxMode;

    use super::*;

    fn launch_request() -> LaunchRequest {
        LaunchRequest {
            term: Duration::from_millis(500),
            isolate: Isolate::Pid,
            sandbox: Some(Arc::new(SandboxSpec {
                hidden: vec!["/home/user/.ssh".into()],
                ..SandboxSpec::new(SandboxMode::Workspace)
            })),
            input: CommandInput::Pipe,
            argv: vec!["sh".into(), "-c".into(), "echo \"a b\"\nexit 3".into(), OsString::new()],
            env: vec![("PATH".into(), "/bin".into()), ("EMPTY".into(), OsString::new())],
            open_files: Some(1024),
            record: true,
            proxy: Some(Ipv4Addr::LOCALHOST),
            shares_network: false,
        }
    }

    #[test]
    fn an_order_survives_its_file() {
        let unlimited = LaunchRequest { open_files: None, ..launch_request() };
        for request in [launch_request(), unlimited] {
            assert_eq!(LaunchRequest::from_file(request.to_file().unwrap()).unwrap(), request);
        }
    }

    #[test]
    fn a_cut_order_is_none() {
        let bytes = launch_request().to_bytes().unwrap();
        for end in 0..bytes.len() {
            assert_ne!(LaunchRequest::from_bytes(&bytes[..end]), Some(launch_request()), "{end}");
        }
        let no_command = LaunchRequest { argv: Vec::new(), ..launch_request() };
        assert_eq!(LaunchRequest::from_bytes(&no_command.to_bytes().unwrap()), None);
    }

    #[test]
    fn a_cut_line_is_no_word() {
        let started = br#"{"started":{"pid":7,"held_by":"sweep","sandbox":null}}"#;
        assert_eq!(
            parse_reports(started).collect::<Vec<_>>(),
            [WardenReport::Started { pid: 7, held_by: Containment::Sweep, sandbox: None }]
        );
        assert_eq!(parse_reports(&started[..10]).count(), 0);
    }
}
