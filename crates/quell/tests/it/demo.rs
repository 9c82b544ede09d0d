//! The `quell demo` tour and its output, also when a process cannot be ended.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use quell_testkit::skip::{announce_skip, lacks_root};
use rustix::process::{Pid, Signal, kill_process};

use crate::prelude::*;

/// The user `nobody` on every Linux.
const NOBODY_UID: &str = "65534";

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

/// A program that becomes root, out of reach of the user who started it, as `sudo` does.
fn setuid_program(folder: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let setpriv = std::env::split_paths(&path).map(|place| place.join("setpriv")).find(|file| file.is_file())?;
    let copy = folder.join("become-root");
    fs::copy(setpriv, &copy).ok()?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).ok()?;
    Some(copy)
}

fn command_as_nobody(home: &DaemonHome, program: &Path) -> std::process::Command {
    let mut command = home.command(Path::new("setpriv"));
    command.args(["--reuid", NOBODY_UID, "--regid", NOBODY_UID, "--clear-groups"]).arg(program);
    let folder = home.config_file().with_file_name("nobody");
    command.env("HOME", &folder).env("TMPDIR", &folder).env("QUELL_HOME", &folder).current_dir(&folder);
    command
}

#[test]
fn a_process_that_survives_is_named_and_the_tour_fails() {
    if lacks_root() {
        return;
    }
    let home = DaemonHome::new("");
    let folder = home.config_file().with_file_name("nobody");
    fs::create_dir(&folder).unwrap();
    // Only its owner may enter the home directory, and perhaps also the directory of the binary.
    fs::set_permissions(home.config_file().parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let quell = folder.join("quell");
    fs::copy(quell_exe(), &quell).unwrap();
    fs::set_permissions(&quell, fs::Permissions::from_mode(0o755)).unwrap();
    let Some(become_root) = setuid_program(&folder) else {
        announce_skip("there is no setpriv to copy");
        return;
    };
    let become_root = become_root.display();
    let works = run_to_exit(
        command_as_nobody(&home, Path::new("sh"))
            .args(["-c", &format!("{become_root} --reuid=0 --regid=0 --clear-groups sh -c 'test \"$(id -ru)\" = 0'")]),
    );
    if works.code != 0 {
        announce_skip(&format!("set-user-id programs do not work here: {works:?}"));
        return;
    }
    let survivor = folder.join("survivor");
    let script = format!(
        "{become_root} --reuid=0 --regid=0 --clear-groups sh -c 'echo $$ > {0}; exec sleep 60' &\n\
         while ! [ -s {0} ]; do :; done\necho ready\nwait",
        survivor.display()
    );
    let shown = run_to_exit(command_as_nobody(&home, &quell).args(["demo", "--isolate", "none", "--command", &script]));
    let pid: i32 = fs::read_to_string(&survivor).unwrap().trim().parse().unwrap();
    let lived = leaks::read_process(u32::try_from(pid).unwrap());
    // The test cleans up, since the tour could not end this process and has to report it.
    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
    assert!(lived.is_some(), "the process did not survive, so this test proves nothing: {shown:?}");
    assert_eq!(shown.code, 1, "{shown:?}");
    assert!(shown.out.contains("1 process still alive") && shown.out.contains(&format!("pid {pid}")), "{}", shown.out);
}
