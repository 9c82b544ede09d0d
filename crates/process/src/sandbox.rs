//! The sandbox of a command: what its processes can reach.
//!
//! It is applied to the command alone, between fork and exec: by the init of the command's namespace where there is
//! one, else by the warden. Nothing here is ever called in the daemon.
//!
//! Two walls stand behind each other: a mount namespace, in which hidden places are covered and the rest is read-only,
//! and Landlock, which also works where namespaces are forbidden. [`SandboxFacts`] says which layers were applied.

mod carve;
mod landlock_rules;
mod limits;
mod mounts;
mod network;
mod paths;
mod privileges;
mod syscall_filter;
mod syscalls;

use std::fmt;
use std::fs::DirBuilder;
use std::io;
use std::net::{SocketAddrV4, TcpListener};
use std::os::unix::fs::{DirBuilderExt, lchown};
use std::path::{Path, PathBuf};

use quell_protocol::sandbox::{MissingLayer, ResourceLimits, SandboxFacts, SandboxLayer, SandboxMode};
use quell_scope::Scope;
use seccompiler::BpfProgram;
use serde::{Deserialize, Serialize};

use landlock_rules::LandlockRules;

pub(super) use mounts::mount_own_proc;
pub(super) use network::listen_for_proxy;

/// What the processes of a command may reach. All paths are absolute; those that do not exist are left out. `readable`
/// and `writable` have no symbolic links: a place that has become one is left out, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    pub mode: SandboxMode,
    /// Files and directories that no mode shows: Quell's own data, configuration and keys.
    pub protected: Vec<PathBuf>,
    /// Files and directories that are hidden, but in the mode `off`.
    pub hidden: Vec<PathBuf>,
    /// Home directories of people, in every mode but `off`: what begins with a dot, sockets, and what is made later is
    /// hidden; other files and directories can be read.
    pub closed_homes: Vec<PathBuf>,
    /// Read-only places, also inside of hidden ones.
    pub readable: Vec<PathBuf>,
    /// Places to read and write, also inside of hidden ones; read-only in the mode `read-only`.
    pub writable: Vec<PathBuf>,
    /// The directory that the command sees as its home, to read and write, with further variables that lead to
    /// directories. The mode `off` leaves the variables of the command as they are.
    pub home: Option<PathBuf>,
    pub variables: Vec<(String, PathBuf)>,
    /// The directory that the command sees as `/tmp`; an empty one that lives as long as the command if `None`.
    pub temporary: Option<PathBuf>,
    /// User and group id of the command; those of this process if `None`. Needs the rights of root, and a mount
    /// namespace: the directories above hidden places may be closed to that user.
    pub user: Option<u32>,
    pub network: SandboxNetwork,
    /// Whether the command may create namespaces, as the sandbox of Chromium does.
    pub nested_namespaces: bool,
    pub limits: ResourceLimits,
    /// Whether a command is refused where a layer is missing.
    pub is_required: bool,
}

/// The network of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxNetwork {
    /// That of the daemon.
    Daemon,
    /// Nothing but a loopback interface, of its own or of a [`SessionNetwork`](super::SessionNetwork).
    Closed,
    /// As `Closed`, with a [`CommandNetwork`] that listens on port [`PROXY_PORT`] of the loopback interface.
    Proxied,
}

/// The first version of Landlock with rules for `truncate`.
const TRUNCATION_ABI: i64 = 3;

/// The port of the proxy in the network namespace of a command, the usual one of HTTP proxies.
pub const PROXY_PORT: u16 = 3128;

/// Serves the way out of a command's network namespace, in the daemon.
pub trait CommandNetwork: Send + Sync + fmt::Debug {
    /// The variables that lead programs to the proxy at this address.
    fn environment(&self, proxy: SocketAddrV4) -> Vec<(&'static str, String)>;

    /// Serves connections to this listener, which lives in the namespace of the command, until the result is dropped or
    /// the scope is stopped. Called once. Must not block.
    ///
    /// # Errors
    /// The listener cannot be used. The command then has no network.
    fn serve(&self, listener: TcpListener, scope: &Scope) -> io::Result<Box<dyn Send + Sync>>;
}

impl SandboxSpec {
    /// A sandbox of this mode with the network of the daemon, without any path.
    #[must_use]
    pub fn new(mode: SandboxMode) -> Self {
        Self {
            mode,
            protected: Vec::new(),
            hidden: Vec::new(),
            closed_homes: Vec::new(),
            readable: Vec::new(),
            writable: Vec::new(),
            home: None,
            variables: Vec::new(),
            temporary: None,
            user: None,
            network: SandboxNetwork::Daemon,
            nested_namespaces: false,
            limits: ResourceLimits::default(),
            is_required: false,
        }
    }

    /// The same places in another mode.
    #[must_use]
    pub fn with_mode(&self, mode: SandboxMode) -> Self {
        Self { mode, ..self.clone() }
    }

    /// Creates the directory for temporary files.
    pub(super) fn create_temporary_directory(&self) -> Result<(), String> {
        let Some(directory) = self.temporary.as_ref().filter(|_| !self.is_off()) else { return Ok(()) };
        let parent = directory.parent().unwrap_or(directory);
        let created = DirBuilder::new().recursive(true).mode(0o700).create(parent);
        let given = created.and_then(|()| match DirBuilder::new().mode(0o700).create(directory) {
            Ok(()) => lchown(directory, self.user, self.user),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        });
        given.map_err(|error| format!("the directory {} cannot be created: {error}", directory.display()))
    }

    fn is_off(&self) -> bool {
        self.mode == SandboxMode::Off
    }

    /// The namespaces that the init of the command needs besides its PID and mount namespaces, as flags of `clone`.
    pub(super) fn namespace_flags(&self) -> libc::c_int {
        let ipc = if self.is_off() { 0 } else { libc::CLONE_NEWIPC };
        let network = if self.network == SandboxNetwork::Daemon { 0 } else { libc::CLONE_NEWNET };
        ipc | network
    }
}

/// The namespaces of the process that applies the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OwnNamespaces {
    pub(super) mount: bool,
    pub(super) process: bool,
    pub(super) ipc: bool,
    pub(super) network: bool,
    /// In this one only the own user exists.
    pub(super) user: bool,
}

impl OwnNamespaces {
    pub(super) const NONE: Self = Self { mount: false, process: false, ipc: false, network: false, user: false };

    /// Those that `clone` has created with these flags.
    pub(super) fn of_flags(flags: libc::c_int) -> Self {
        let has = |flag: libc::c_int| flags & flag != 0;
        Self {
            mount: has(libc::CLONE_NEWNS),
            process: has(libc::CLONE_NEWPID),
            ipc: has(libc::CLONE_NEWIPC),
            network: has(libc::CLONE_NEWNET),
            user: has(libc::CLONE_NEWUSER),
        }
    }
}

/// The sandbox of one command, prepared up to the steps that the command's own process has to make.
pub(super) struct PreparedSandbox {
    facts: SandboxFacts,
    landlock: Option<LandlockRules>,
    filters: Vec<BpfProgram>,
    keeps_some_capabilities: bool,
    user: Option<u32>,
    memory_bytes: Option<u64>,
    forbids_new_privileges: bool,
    environment: Vec<(String, PathBuf)>,
}

impl PreparedSandbox {
    /// Covers and opens places in the own mount namespace, if there is one, and prepares the rest.
    ///
    /// # Errors
    /// The text says which step failed. Nothing must be started then.
    pub(super) fn new(spec: &SandboxSpec, namespaces: OwnNamespaces) -> Result<Self, SandboxError> {
        let mut layers = LayerList::default();
        let has_mounts = namespaces.mount && mounts::apply(spec)?;
        layers.note(SandboxLayer::Mounts, has_mounts, "the system permits no mount namespace");
        if spec.user.is_some() && !(has_mounts && !namespaces.user && privileges::may_become_another_user()) {
            return Err(SandboxError::User);
        }
        let has_own_proc = has_mounts && namespaces.process && mount_own_proc().is_ok();
        let no_own_proc = match namespaces.process {
            true => "the system permits no /proc of its own, so all processes can be seen",
            false => "the system permits no PID namespace",
        };
        layers.note(SandboxLayer::Processes, has_own_proc, no_own_proc);
        if spec.limits != ResourceLimits::default() {
            let missing = limits::limit_processes(spec.limits.processes, namespaces.process).err();
            layers.note(SandboxLayer::Limits, missing.is_none(), &missing.unwrap_or_default());
        }
        if has_mounts {
            mounts::cover_kernel_controls()?;
        }
        if !spec.is_off() {
            layers.note(SandboxLayer::Ipc, namespaces.ipc, "the system permits no IPC namespace");
        }
        if namespaces.network {
            network::raise_loopback().map_err(|error| SandboxError::new("raise the loopback interface", error))?;
        }
        if spec.network == SandboxNetwork::Proxied {
            layers.note(
                SandboxLayer::Network,
                namespaces.network,
                "without a network namespace no server can be reached",
            );
        }
        // In the mode `off` the mounts alone hide what is protected, so that programs with rights of their own work.
        let needs_landlock = !(spec.is_off() && has_mounts);
        let landlock = if needs_landlock { LandlockRules::new(spec, has_mounts, namespaces.network)? } else { None };
        if needs_landlock {
            layers.note(SandboxLayer::Landlock, landlock.is_some(), landlock_rules::reason_of_absence());
            if landlock.is_some() && !has_mounts && landlock_rules::abi_version() < TRUNCATION_ABI {
                let reason = "Landlock keeps files from being emptied from Linux 6.2 on";
                layers.note(SandboxLayer::Landlock, false, reason);
            }
        }
        let filters = syscall_filter::programs(spec, namespaces)?;
        if !filters.is_empty() {
            layers.note(SandboxLayer::SystemCalls, true, "");
        }
        if spec.network == SandboxNetwork::Closed {
            layers.note(SandboxLayer::Network, true, "");
        }
        layers.note(SandboxLayer::Privileges, true, "");
        let facts = SandboxFacts { mode: spec.mode, user: spec.user, layers: layers.applied, missing: layers.missing };
        if let Some(missing) = facts.missing.first().filter(|_| spec.is_required) {
            return Err(SandboxError::Required(missing.clone()));
        }
        Ok(Self {
            facts,
            forbids_new_privileges: !spec.is_off() || landlock.is_some() || !filters.is_empty(),
            landlock,
            filters,
            keeps_some_capabilities: spec.is_off(),
            user: spec.user,
            memory_bytes: spec.limits.memory_bytes,
            environment: environment(spec, has_mounts),
        })
    }

    pub(super) fn facts(&self) -> &SandboxFacts {
        &self.facts
    }

    /// Variables that the command needs in this sandbox.
    pub(super) fn environment(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.environment.iter().map(|(name, path)| (name.as_str(), path.as_path()))
    }

    /// Binds the calling process, which must have one thread and is about to `exec`. The order is that of the kernel's
    /// rules: capabilities go while they may be dropped, and the filter comes last.
    pub(super) fn enter(&mut self) -> io::Result<()> {
        privileges::drop_privileges(self.keeps_some_capabilities, self.user)?;
        if self.forbids_new_privileges {
            rustix::thread::set_no_new_privs(true)?;
        }
        if let Some(rules) = self.landlock.take() {
            rules.restrict_self()?;
        }
        // What this process itself needs is allocated by now.
        if let Some(bytes) = self.memory_bytes {
            limits::limit_memory(bytes)?;
        }
        for filter in &self.filters {
            seccompiler::apply_filter(filter).map_err(|error| match error {
                // Whoever starts the command is told the number alone.
                seccompiler::Error::Prctl(cause) | seccompiler::Error::Seccomp(cause) => cause,
                other => io::Error::other(other),
            })?;
        }
        Ok(())
    }
}

/// The variables of the sandbox. Where `/tmp` cannot be replaced, one leads to the directory for temporary files.
fn environment(spec: &SandboxSpec, has_mounts: bool) -> Vec<(String, PathBuf)> {
    let home = spec.home.iter().map(|home| ("HOME".to_owned(), home.clone()));
    let name = |user: u32| ["USER", "LOGNAME"].map(|name| (name.to_owned(), PathBuf::from(user.to_string())));
    if spec.is_off() {
        // Another user cannot enter the home of this one.
        return spec.user.into_iter().flat_map(|user| name(user).into_iter().chain(home.clone())).collect();
    }
    let names = spec.user.into_iter().flat_map(name);
    let mut environment: Vec<(String, PathBuf)> = spec.variables.iter().cloned().chain(home).chain(names).collect();
    match &spec.temporary {
        Some(_) if has_mounts => environment.push(("TMPDIR".to_owned(), PathBuf::from("/tmp"))),
        Some(temporary) => environment.push(("TMPDIR".to_owned(), temporary.clone())),
        None => {}
    }
    environment
}

#[derive(Default)]
struct LayerList {
    applied: Vec<SandboxLayer>,
    missing: Vec<MissingLayer>,
}

impl LayerList {
    fn note(&mut self, layer: SandboxLayer, is_applied: bool, reason: &str) {
        match is_applied {
            true => self.applied.push(layer),
            false => self.missing.push(MissingLayer { layer, reason: reason.to_owned() }),
        }
    }
}

/// Why a sandbox could not be set up. The command was not started.
#[derive(Debug, thiserror::Error)]
pub(super) enum SandboxError {
    /// A step failed that the system should permit.
    #[error("{step}: {source}")]
    Step {
        /// What was tried, such as `cover /home/user/.ssh`.
        step: String,
        source: io::Error,
    },
    /// `sandbox_require = true`, and the system does not permit this layer.
    #[error("{} is required and missing: {}", .0.layer.description(), .0.reason)]
    Required(MissingLayer),
    /// Another user was asked for, and the system does not permit to become one in a mount namespace.
    #[error(
        "run_as needs a daemon of root with the capabilities CAP_SYS_ADMIN (mounts), CAP_SETUID, CAP_SETGID and \
         CAP_CHOWN; leave run_as out, or give it these"
    )]
    User,
}

impl SandboxError {
    fn new(step: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Step { step: step.into(), source: source.into() }
    }
}
