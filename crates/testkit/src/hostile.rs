//! Commands of an attacker who has the daemon's user and wants to outlive a stop unseen. The ones that need more than a shell are
//! small C programs beside this file, built when first asked for: a C compiler is there wherever Quell is built.
//!
//! Each prints a line that begins with `hostile` when it has done its worst, and ends by itself within ten minutes or so.

use std::path::{Path, PathBuf};

use crate::commands::Marker;

/// Builds one of the programs into `folder`, where the daemon's user may execute it.
///
/// # Panics
/// When the compiler is missing or complains.
#[must_use]
pub fn build(program: Program, folder: &Path) -> PathBuf {
    let (name, text) = program.source();
    let (source, target) = (folder.join(format!("{name}.c")), folder.join(name));
    let written = std::fs::write(&source, text);
    #[expect(clippy::disallowed_methods, reason = "test support builds its own programs")]
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-O1", "-pthread", "-o"]).arg(&target).arg(&source);
    let built = written.and_then(|()| compiler.output());
    match built {
        Ok(output) if output.status.success() => target,
        Ok(output) => panic!("{name}.c cannot be built: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => panic!("{name}.c cannot be built: {error}"),
    }
}

/// The programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// Looks dead while a thread of it lives, in the group of its warden.
    ZombieLeader,
    /// Tells the daemon in the warden's name that everything is over.
    ForgedReport,
    /// Waits for a child that shares its memory and never goes on.
    WaitsForVfork,
    /// Has work in the kernel: a ring with a thread of its own and reads that never end, which a child has too.
    LeavesWork,
    /// Has two thousand threads.
    ManyThreads,
}

impl Program {
    fn source(self) -> (&'static str, &'static str) {
        match self {
            Self::ZombieLeader => ("zombie_leader", include_str!("hostile/zombie_leader.c")),
            Self::WaitsForVfork => ("waits_for_vfork", include_str!("hostile/waits_for_vfork.c")),
            Self::LeavesWork => ("leaves_work", include_str!("hostile/leaves_work.c")),
            Self::ManyThreads => ("many_threads", include_str!("hostile/many_threads.c")),
            Self::ForgedReport => ("forged_report", include_str!("hostile/forged_report.c")),
        }
    }
}

/// A process that lives with a dead first thread, in the warden's group; the shell waits beside it.
#[must_use]
pub fn zombie_leader(program: &Path, mark: &Marker) -> String {
    format!("exec {} $PPID {}", program.display(), mark.as_str())
}

/// As [`zombie_leader`], and the call ends by itself.
#[must_use]
pub fn zombie_leader_left_behind(program: &Path, mark: &Marker) -> String {
    format!("{} $PPID {} & sleep 1; kill -9 $!; exit 0", program.display(), mark.as_str())
}

/// A report in the warden's name, and its death, once the file `go` is there.
#[must_use]
pub fn forged_report(program: &Path, mark: &Marker, go: &Path) -> String {
    format!("exec {} $PPID {} {}", program.display(), mark.as_str(), go.display())
}

/// Kills the warden and leaves a process of the daemon's own program behind, with nothing of the run in its environment: `serve`
/// in a data directory of its own.
#[must_use]
pub fn poses_as_warden(quell: &Path, folder: &Path, mark: &Marker) -> String {
    format!(
        "mkdir -p {0}/fake; (env -i HOME={0}/fake QUELL_HOME={0}/fake QUELL_MARK={1} setsid {2} serve --listen 127.0.0.1:0 >{0}/fake.log 2>&1 &); \
         until grep -q http {0}/fake.log; do sleep 0.1; done; echo hostile posing; kill -9 $PPID; sleep 600",
        folder.display(),
        mark.as_str(),
        quell.display()
    )
}

/// Stops the warden, then kills the daemon and the warden; a child with an empty environment goes on.
#[must_use]
pub fn kills_its_daemon(mark: &Marker) -> String {
    format!(
        "env -i sh -c 'while :; do sleep 1; done' {} & \
         set -- $(cat /proc/$PPID/stat); echo hostile kills; kill -STOP $PPID; kill -9 $4 $PPID; sleep 600",
        mark.as_str()
    )
}

/// As [`kills_its_daemon`], and the child is an orphan in a session of its own: nothing but its birth tells whose it is.
#[must_use]
pub fn kills_its_daemon_and_hides(mark: &Marker) -> String {
    format!(
        "(env -i setsid sh -c 'while :; do sleep 1; done' {} &); sleep 0.2; \
         set -- $(cat /proc/$PPID/stat); kill -STOP $PPID; kill -9 $4 $PPID; sleep 600",
        mark.as_str()
    )
}

/// A process that waits in the kernel for its child, which does not go on: SIGTERM does not reach it.
#[must_use]
pub fn waits_for_its_vfork(program: &Path, mark: &Marker) -> String {
    format!("exec {} {}", program.display(), mark.as_str())
}

/// A tree in a user and PID namespace of its own making.
#[must_use]
pub fn nests_namespaces(mark: &Marker) -> String {
    format!(
        "unshare --user --map-root-user --pid --fork --mount-proc sh -c \
         'setsid sh -c \"while :; do sleep 1; done\" {0} & echo hostile nests; wait' {0}; \
         echo hostile refused; sh -c 'while :; do sleep 1; done' {0}",
        mark.as_str()
    )
}

/// Takes all descriptors from the warden, which can then hear nobody.
#[must_use]
pub fn blinds_its_warden(mark: &Marker) -> String {
    format!(
        "prlimit --pid $PPID --nofile=0:0; echo hostile blinds; sh -c 'while :; do sleep 1; done' {} & wait",
        mark.as_str()
    )
}

/// As [`blinds_its_warden`], once the file `go` is there.
#[must_use]
pub fn blinds_its_warden_when(mark: &Marker, go: &Path) -> String {
    format!("echo hostile waits; until [ -e {} ]; do sleep 0.01; done; {}", go.display(), blinds_its_warden(mark))
}

/// Stops the daemon with SIGSTOP, so that it hears no stop.
#[must_use]
pub fn stops_its_daemon(mark: &Marker) -> String {
    format!(
        "set -- $(cat /proc/$PPID/stat); echo hostile stops; kill -STOP $4; sh -c 'while :; do sleep 1; done' {}",
        mark.as_str()
    )
}

/// A storm of processes, each in a session of its own, whose warden is killed.
#[must_use]
pub fn storm_without_warden(mark: &Marker) -> String {
    format!(
        "for i in 1 2 3 4 5 6 7 8; do (while :; do setsid sh -c '(sleep 0.01 &)' {} & wait; done) & done; \
         echo hostile storms; kill -9 $PPID; wait",
        mark.as_str()
    )
}

/// One of the programs that take nothing but a mark.
#[must_use]
pub fn runs(program: &Path, mark: &Marker) -> String {
    format!("exec {} {}", program.display(), mark.as_str())
}

/// As many processes as its user, or a bound, lets it have.
#[must_use]
pub fn fills_the_process_table(mark: &Marker) -> String {
    format!(
        "(ulimit -u 64 2>/dev/null; i=0; while [ $i -lt 400 ]; do sh -c 'trap : TERM; while :; do sleep 9; done' {0} & i=$((i + 1)); done) \
         2>/dev/null; echo hostile full; exec sh -c 'while :; do sleep 1; done' {0}",
        mark.as_str()
    )
}

/// Takes from the daemon what it may have of one thing: memory (`as`), processes (`nproc`), time (`cpu`).
#[must_use]
pub fn limits_its_daemon(limit: &str, mark: &Marker) -> String {
    format!(
        "set -- $(cat /proc/$PPID/stat); prlimit --pid $4 --{limit}; echo hostile limits; sh -c 'while :; do sleep 1; done' {}",
        mark.as_str()
    )
}
