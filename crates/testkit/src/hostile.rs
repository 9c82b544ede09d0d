//! Commands of an attacker who has the daemon's user and wants to survive a stop unnoticed. Those that need more than a
//! shell are small C programs beside this file, compiled on first use.
//!
//! Each prints a line that begins with `hostile` when its attack is in place, and ends by itself within about ten
//! minutes.

use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

use crate::commands::ProcessMarker;
use crate::leaks;
use crate::or_fail::OrFail as _;

/// Compiles one of the programs into `folder`, where the daemon's user may execute it.
///
/// # Panics
/// When the compiler is missing or reports an error.
pub fn compile(program: HostileProgram, folder: &Path) -> PathBuf {
    let HostileProgram(name, text) = program;
    let (source, target) = (folder.join(format!("{name}.c")), folder.join(name));
    let written = std::fs::write(&source, text);
    #[expect(clippy::disallowed_methods, reason = "test support compiles its own programs")]
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-O1", "-pthread", "-o"]).arg(&target).arg(&source);
    let built = written.and_then(|()| compiler.output());
    let output = built.or_fail(format_args!("{name}.c cannot be built"));
    assert!(output.status.success(), "{name}.c cannot be built: {}", String::from_utf8_lossy(&output.stderr));
    target
}

/// A program by its name, with its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostileProgram(&'static str, &'static str);

impl HostileProgram {
    /// Looks dead while one of its threads lives, in the group of its warden.
    pub const ZOMBIE_LEADER: Self = Self("zombie_leader", include_str!("hostile/zombie_leader.c"));
    /// Reports to the daemon, in the warden's name, that everything has ended.
    pub const FORGED_REPORT: Self = Self("forged_report", include_str!("hostile/forged_report.c"));
    /// Waits in the kernel for a child that shares its memory and never continues: SIGTERM does not reach it.
    pub const WAITS_FOR_VFORK: Self = Self("waits_for_vfork", include_str!("hostile/waits_for_vfork.c"));
    /// Has work in the kernel, shared with a child: an io_uring with its own thread and reads that never end.
    pub const LEAVES_WORK: Self = Self("leaves_work", include_str!("hostile/leaves_work.c"));
    /// Has two thousand threads.
    pub const MANY_THREADS: Self = Self("many_threads", include_str!("hostile/many_threads.c"));
}

/// A live process whose first thread is dead, in the warden's group; the shell waits beside it.
pub fn zombie_leader(program: &Path, mark: &ProcessMarker) -> String {
    format!("exec {} $PPID {}", program.display(), mark.as_str())
}

/// Like [`zombie_leader`], but the call ends by itself.
pub fn zombie_leader_left_behind(program: &Path, mark: &ProcessMarker) -> String {
    format!("{} $PPID {} & sleep 1; kill -9 $!; exit 0", program.display(), mark.as_str())
}

/// Sends a report in the warden's name and kills the warden, once the file `go` exists.
pub fn forged_report(program: &Path, mark: &ProcessMarker, go: &Path) -> String {
    format!("exec {} $PPID {} {}", program.display(), mark.as_str(), go.display())
}

/// Kills the warden and leaves a process of the daemon's own binary behind, without the run's environment: `serve` with
/// a data directory in the workdir.
pub fn poses_as_warden(quell: &Path, mark: &ProcessMarker) -> String {
    format!(
        "f=$PWD/fake; mkdir -p $f; (env -i HOME=$f QUELL_HOME=$f QUELL_MARK={0} setsid {1} serve --listen 127.0.0.1:0 >$f.log 2>&1 &); \
         until grep -q http $f.log; do sleep 0.1; done; echo hostile posing; kill -9 $PPID; sleep 600",
        mark.as_str(),
        quell.display()
    )
}

/// Tries to stop the warden, and to kill the daemon and the warden. A child with an empty environment continues.
pub fn kills_its_daemon(mark: &ProcessMarker) -> String {
    format!(
        "env -i sh -c 'while :; do sleep 1; done' {} & \
         set -- $(cat /proc/$PPID/stat); echo hostile kills; kill -STOP $PPID; kill -9 $4 $PPID; sleep 600",
        mark.as_str()
    )
}

/// Leaves an orphan with an empty environment in its own session: only its start time tells whose it is.
pub fn hides_from_its_daemon(mark: &ProcessMarker) -> String {
    format!(
        "(env -i setsid sh -c 'while :; do sleep 1; done' {} &); sleep 0.2; echo hostile hid; sleep 600",
        mark.as_str()
    )
}

/// What a program of the same user can do that no sandbox holds back: stops the warden of the marked processes, and kills
/// the daemon and the warden.
pub fn kill_daemon_and_warden(daemon: u32, mark: &ProcessMarker) {
    let marked = mark.marked_processes();
    let mut warden = marked.first().or_fail("no process carries the marker").pid;
    loop {
        let parent = leaks::read_process(warden).or_fail("the process is gone").parent;
        if parent == daemon {
            break;
        }
        warden = parent;
    }
    let pid = |pid: u32| i32::try_from(pid).ok().and_then(Pid::from_raw).or_fail("a pid");
    for (process, signal) in [(warden, Signal::STOP), (daemon, Signal::KILL), (warden, Signal::KILL)] {
        kill_process(pid(process), signal).or_fail("the process is gone");
    }
}

/// A process tree in its own user and PID namespaces.
pub fn nests_namespaces(mark: &ProcessMarker) -> String {
    format!(
        "unshare --user --map-root-user --pid --fork --mount-proc sh -c \
         'setsid sh -c \"while :; do sleep 1; done\" {0} & echo hostile nests; wait' {0}; \
         echo hostile refused; sh -c 'while :; do sleep 1; done' {0}",
        mark.as_str()
    )
}

/// Takes away all descriptors of the warden, which then receives nothing.
pub fn blinds_its_warden(mark: &ProcessMarker) -> String {
    format!(
        "prlimit --pid $PPID --nofile=0:0; echo hostile blinds; sh -c 'while :; do sleep 1; done' {} & wait",
        mark.as_str()
    )
}

/// Like [`blinds_its_warden`], once the file `go` exists.
pub fn blinds_its_warden_when(mark: &ProcessMarker, go: &Path) -> String {
    format!("echo hostile waits; until [ -e {} ]; do sleep 0.01; done; {}", go.display(), blinds_its_warden(mark))
}

/// Stops the daemon with SIGSTOP, so that it receives no stop.
pub fn stops_its_daemon(mark: &ProcessMarker) -> String {
    format!(
        "set -- $(cat /proc/$PPID/stat); echo hostile stops; kill -STOP $4; sh -c 'while :; do sleep 1; done' {}",
        mark.as_str()
    )
}

/// A fork storm, each process in its own session, whose warden is killed.
pub fn storm_without_warden(mark: &ProcessMarker) -> String {
    format!(
        "for i in 1 2 3 4 5 6 7 8; do (while :; do setsid sh -c '(sleep 0.01 &)' {} & wait; done) & done; \
         echo hostile storms; kill -9 $PPID; wait",
        mark.as_str()
    )
}

/// Runs a program whose only argument is the marker.
pub fn runs_program(program: &Path, mark: &ProcessMarker) -> String {
    format!("exec {} {}", program.display(), mark.as_str())
}

/// Starts as many processes as the limits of its user permit, or 64.
pub fn fills_the_process_table(mark: &ProcessMarker) -> String {
    format!(
        "(ulimit -u 64 2>/dev/null; i=0; while [ $i -lt 400 ]; do sh -c 'trap : TERM; while :; do sleep 9; done' {0} & i=$((i + 1)); done) \
         2>/dev/null; echo hostile full; exec sh -c 'while :; do sleep 1; done' {0}",
        mark.as_str()
    )
}

/// Lowers a limit of the daemon: memory (`as`), processes (`nproc`), CPU time (`cpu`).
pub fn limits_its_daemon(limit: &str, mark: &ProcessMarker) -> String {
    format!(
        "set -- $(cat /proc/$PPID/stat); prlimit --pid $4 --{limit}; echo hostile limits; sh -c 'while :; do sleep 1; done' {}",
        mark.as_str()
    )
}
