//! The `quell demo` tour and its output, also when a process cannot be ended.

use std::fs;

use quell_testkit::skip::{announce_skip, lacks_root};
use rustix::process::{Pid, Signal, kill_process};

use crate::prelude::*;

#[test]
fn the_tour_stops_everything_and_shows_the_receipt() {
    let shown = run_to_exit(DaemonHome::new("").command(quell_exe()).arg("demo"));
    assert_eq!(shown.code, 0, "{shown:?}");
    for says in ["stopped in", " processes ended (", "history valid", "The next message works"] {
        assert!(shown.out.contains(says), "{says} is missing\n{}", shown.out);
    }
    assert!(!shown.out.contains("still alive"), "{}", shown.out);
}

#[test]
fn the_tour_as_json_is_the_receipt() {
    let shown = run_to_exit(DaemonHome::new("").command(quell_exe()).args(["demo", "--json"]));
    let receipt: Value = serde_json::from_str(&shown.out).unwrap_or_else(|error| panic!("{error}: {shown:?}"));
    assert_eq!(shown.code, 0);
    assert_fields(&receipt, &json!({"verdict": {"kind": "aborted"}, "leftovers": []}));
}

/// A group of frozen processes, which no signal ends (cgroup v1). Its drop thaws them.
struct FrozenProcesses(PathBuf);

impl FrozenProcesses {
    /// Creates an empty group; `None` where the system has no such groups.
    fn new() -> Option<Self> {
        let group = PathBuf::from(format!("/sys/fs/cgroup/freezer/quell-test-{}", std::process::id()));
        fs::create_dir(&group).ok()?;
        let group = Self(group);
        fs::write(group.0.join("freezer.state"), "FROZEN").ok().map(|()| group)
    }

    fn add(&self, pid: i32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for FrozenProcesses {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("freezer.state"), "THAWED");
        let members = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        for pid in members.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        // Refused until the last member is reaped; an empty group does no harm.
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_process_that_survives_is_named_and_the_tour_fails() {
    if lacks_root() {
        return;
    }
    let Some(frozen) = FrozenProcesses::new() else {
        announce_skip("no process can be frozen here (cgroup v1)");
        return;
    };
    let home = DaemonHome::new("");
    let folder = tempfile::tempdir().unwrap();
    let (survivor, go) = (folder.path().join("survivor"), folder.path().join("go"));
    let script = format!(
        "sleep 600 & echo $! > {0}.new; mv {0}.new {0}; until [ -e {1} ]; do sleep 0.01; done; echo ready; wait",
        survivor.display(),
        go.display()
    );
    let mut tour = home.command(quell_exe());
    tour.args(["demo", "--isolate", "none", "--sandbox", "off", "--command", &script]);
    let tour = std::thread::spawn(move || run_to_exit(&mut tour));
    let pid: i32 = loop {
        match fs::read_to_string(&survivor) {
            Ok(pid) => break pid.trim().parse().unwrap(),
            Err(_) => assert!(!tour.is_finished(), "the tour ended early: {:?}", tour.join()),
        }
    };
    frozen.add(pid);
    fs::write(&go, "").unwrap();
    let shown = tour.join().unwrap();
    let lived = leaks::read_process(u32::try_from(pid).unwrap());
    drop(frozen);
    assert!(lived.is_some(), "the process did not survive, so this test proves nothing: {shown:?}");
    assert_eq!(shown.code, 1, "{shown:?}");
    assert!(shown.out.contains("1 process still alive") && shown.out.contains(&format!("pid {pid}")), "{}", shown.out);
}
