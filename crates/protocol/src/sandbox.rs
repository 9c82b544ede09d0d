//! The sandbox of a command: its mode, and the layers that were applied, as receipts show them.

use serde::{Deserialize, Serialize};

use crate::word_enum::word_enum;

word_enum! {
    /// What a command may reach, the strictest first. Quell's own data, configuration and keys are out of reach in
    /// every mode.
    SandboxMode {
        /// Commands change nothing but their private home and temporary files.
        ReadOnly "read-only",
        /// Commands change the workdir, the `writable` directories, and their private home and temporary files.
        Workspace "workspace",
        /// Files and network as the user of the daemon has them.
        Off "off",
    }
}

word_enum! {
    /// One means of the kernel that holds a command back.
    SandboxLayer {
        /// A mount namespace: hidden and read-only places.
        Mounts "mounts",
        /// A PID namespace with its own `/proc`: no process outside can be seen or signalled.
        Processes "processes",
        /// An IPC namespace: no shared memory and message queues of other programs (System V, POSIX queues).
        Ipc "ipc",
        /// Landlock: files, signals, abstract sockets.
        Landlock "landlock",
        /// A filter of system calls (seccomp).
        SystemCalls "system_calls",
        /// No capabilities, and no gain of rights by `exec`.
        Privileges "privileges",
        /// Limits of processes and memory.
        Limits "limits",
        /// A network namespace with nothing but its own loopback, or no internet sockets at all.
        Network "network",
    }
}

impl SandboxLayer {
    /// Text for people.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::Mounts => "a mount namespace",
            Self::Processes => "a PID namespace with its own /proc",
            Self::Ipc => "an IPC namespace",
            Self::Landlock => "Landlock",
            Self::SystemCalls => "a filter of system calls",
            Self::Privileges => "dropped privileges",
            Self::Limits => "a limit of processes",
            Self::Network => "no network",
        }
    }
}

/// What the processes of a command may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// Processes and threads of one command at the same time.
    pub processes: Option<u32>,
    /// Writable memory of each process, in bytes.
    pub memory_bytes: Option<u64>,
}

impl ResourceLimits {
    /// The smallest limit of processes: a PID namespace needs `pid_max` above `RESERVED_PIDS`, 300 (`kernel/pid.c`).
    pub const MIN_PROCESSES: u32 = 301;

    /// The smaller one of each two limits.
    #[must_use]
    pub fn restricted_by(self, ceiling: Self) -> Self {
        fn smaller<T: Ord>(own: Option<T>, ceiling: Option<T>) -> Option<T> {
            own.into_iter().chain(ceiling).min()
        }
        Self {
            processes: smaller(self.processes, ceiling.processes),
            memory_bytes: smaller(self.memory_bytes, ceiling.memory_bytes),
        }
    }
}

/// What held the processes of a command back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SandboxFacts {
    pub mode: SandboxMode,
    /// The user id that the command ran with; that of the daemon if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// The layers that the command ran under.
    pub layers: Vec<SandboxLayer>,
    /// The layers of this mode that the system did not permit. Empty if all were applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingLayer>,
}

/// A layer that the system did not permit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MissingLayer {
    pub layer: SandboxLayer,
    /// The reason for people, in one line.
    pub reason: String,
}
