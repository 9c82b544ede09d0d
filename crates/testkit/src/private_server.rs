//! What private servers of tests have in common: their processes are those that work in their data directory, and a
//! guard ends them when the test process is killed.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::leaks::{ObservedProcess, read_process};
use crate::or_fail::OrFail as _;

/// Waits for the end of its input, which comes with the end of the test process. Then it kills every process in the
/// data directory, and removes PostgreSQL's System V shared memory (line 7 of `postmaster.pid`) and the folder.
const GUARD_SCRIPT: &str = r#"
read -r _
while
    found=
    for process in /proc/[0-9]*; do
        if [ "$process/cwd" -ef "$1/data" ]; then kill -KILL "${process#/proc/}"; found=1; fi
    done
    [ -n "$found" ]
do sleep 0.01; done
if [ -f "$1/data/postmaster.pid" ]; then ipcrm -m "$(sed -n '7s/.* //p' "$1/data/postmaster.pid")"; fi
rm -rf -- "$1"
"#;

/// Starts the guard of a server whose data directory is `data` in this folder. It acts when its standard input is closed.
pub(crate) fn start_guard(folder: &Path) -> Child {
    #[expect(clippy::disallowed_methods, reason = "the guard outlives the test process")]
    let mut command = Command::new("sh");
    command.args(["-c", GUARD_SCRIPT, "guard"]).arg(folder).current_dir("/");
    // Signals from the terminal or the test runner to the whole group must not end it first.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().or_fail("no guard for a server")
}

/// The live processes that work in this directory, named without symbolic links.
pub(crate) fn processes_in(data: &Path) -> Vec<ObservedProcess> {
    let entries = fs::read_dir("/proc").or_fail("no list of processes").flatten();
    let ours = entries.filter(|entry| fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == data));
    ours.filter_map(|entry| read_process(entry.file_name().to_str()?.parse().ok()?)).collect()
}

pub(crate) fn signal_processes(processes: &[ObservedProcess], signal: Signal) {
    for pid in processes.iter().filter_map(|process| Pid::from_raw(i32::try_from(process.pid).ok()?)) {
        // It may have ended just now.
        let _ = kill_process(pid, signal);
    }
}

pub(crate) fn is_listening(port: u16) -> bool {
    !TcpStream::connect(("127.0.0.1", port)).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}
