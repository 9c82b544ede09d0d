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
            Self::Network => "no network",
        }
    }
}

/// What held the processes of a command back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SandboxFacts {
    pub mode: SandboxMode,
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
