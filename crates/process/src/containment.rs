//! Start the command of a warden in its containment: a PID namespace, a cgroup, or neither.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use quell_protocol::sandbox::SandboxFacts;
use rustix::process::{Pid, getpid};

use super::cgroup::Cgroup;
use super::command_start::start_command;
use super::lifetime_limit::ReceivedLimit;
use super::namespace::NetworkSetup;
use super::process_tree::{self, ChildLookup};
use super::sandbox::{OwnNamespaces, PreparedSandbox};
use super::warden_protocol::{LaunchRequest, StartFailure, StartStep};
use super::{Isolate, namespace};

pub(super) struct StartedCommand {
    /// The command, or the init of its namespace.
    pub(super) leader: Pid,
    pub(super) command: Pid,
    /// The socket on which the init reports how the command ended.
    pub(super) namespace_reports: Option<UnixStream>,
    /// Only without a namespace.
    pub(super) cgroup: Option<Cgroup>,
    pub(super) sandbox: Option<SandboxFacts>,
}

impl StartedCommand {
    /// `network` is used if the command gets a network namespace.
    pub(super) fn new(
        request: &LaunchRequest,
        input: &mut Option<OwnedFd>,
        network: NetworkSetup,
        limit: &mut ReceivedLimit,
    ) -> Result<Self, StartFailure> {
        match request.isolate {
            Isolate::Auto | Isolate::Pid => match namespace::start_in_namespace(request, input, network, limit) {
                Err(StartFailure { step: StartStep::Isolate, errno, .. })
                    if request.isolate == Isolate::Auto && is_permanent(errno) =>
                {
                    Self::without_namespace(request, input, limit)
                }
                inside => Ok(Self::in_namespace(inside?)),
            },
            Isolate::None => Self::without_namespace(request, input, limit),
        }
    }

    fn in_namespace(init: namespace::NamespaceInit) -> Self {
        let mut children = ChildLookup::cheapest(getpid()).children(init.pid).into_iter();
        // The command may have ended already; then the init has reported it.
        let command =
            children.find(|child| process_tree::innermost_pid(*child) == Some(init.command)).unwrap_or(init.pid);
        Self { leader: init.pid, command, namespace_reports: Some(init.reports), cgroup: None, sandbox: init.sandbox }
    }

    fn without_namespace(
        request: &LaunchRequest,
        input: &mut Option<OwnedFd>,
        limit: &mut ReceivedLimit,
    ) -> Result<Self, StartFailure> {
        let spec = request.sandbox.as_deref();
        let mut sandbox = spec.map(|spec| PreparedSandbox::new(spec, OwnNamespaces::NONE)).transpose()?;
        let facts = sandbox.as_ref().map(|sandbox| sandbox.facts().clone());
        let cgroup = Cgroup::create();
        limit.check()?;
        let mut start = || start_command(request, input.take().map_or_else(Stdio::null, Stdio::from), sandbox.take());
        let started = match &cgroup {
            Some(cgroup) => cgroup.start(&mut start),
            None => start(),
        };
        let leader = started.map_err(StartFailure::program)?;
        Ok(Self { leader, command: leader, namespace_reports: None, cgroup, sandbox: facts })
    }
}

/// Whether a system that refuses a namespace with this error always does. A shortage is no reason for less isolation: a
/// command of another call may have caused it. Zero stands for an init that was ended.
fn is_permanent(errno: i32) -> bool {
    match errno {
        0 | libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE => false,
        libc::ENOSPC => {
            let most = std::fs::read_to_string("/proc/sys/user/max_user_namespaces");
            most.is_ok_and(|most| most.trim() == "0")
        }
        _ => true,
    }
}
