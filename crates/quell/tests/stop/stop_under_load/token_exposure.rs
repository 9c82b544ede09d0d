//! Clients send no token to an impostor, and the daemon exposes no key at startup.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;

use rustix::fs::{Mode, OFlags, open};

use super::*;

/// The user `nobody` on every Linux.
const NOBODY_UID: u32 = 65534;

#[tokio::test(flavor = "multi_thread")]
async fn a_process_on_a_dead_daemons_port_gets_no_token() {
    let daemon = TestDaemon::start(quell_exe(), "").await;
    daemon.kill9().await;
    let impostor = TcpListener::bind(daemon.address()).unwrap();
    impostor.set_nonblocking(true).unwrap();
    let ways = [
        vec!["stop", "--all", "--hold"],
        vec!["stop", "--all", "--url", daemon.url()],
        vec!["runs", "--token", "mine"],
        vec!["doctor"],
    ];
    for arguments in ways {
        let ran = run_cli(daemon.home(), &arguments).await;
        let connection = impostor.accept();
        assert!(connection.is_err(), "{arguments:?} connected to the impostor");
        // `quell doctor` checks the lock before the port.
        let says_why = ran.err.contains("no daemon uses the data directory") && ran.code != 0;
        let says_why = says_why || (arguments == ["doctor"] && ran.out.contains("none runs"));
        assert!(says_why, "{arguments:?}: {ran:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_users_listener_gets_no_token_from_a_living_lock() {
    if quell_testkit::skip::lacks_root() {
        return;
    }
    // A daemon of this user holds the lock; its address file names a daemon of another user.
    let (own, other) = (TestDaemon::start(quell_exe(), "").await, DaemonHome::new("").owned_by_user(NOBODY_UID));
    let folder = other.data_dir();
    let mut foreign = other.command(&other.copy_executable(quell_exe()));
    foreign.args(["serve", "--listen", "127.0.0.1:0"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut foreign = foreign.spawn().unwrap();
    let address_file = async || std::fs::read_to_string(folder.join("address")).ok();
    let address = poll_until("the address file", address_file).await;
    std::fs::write(own.home().data_dir().join("address"), &address).unwrap();
    std::fs::remove_file(own.home().data_dir().join("quell.sock")).unwrap();
    let ran = run_cli(own.home(), &["stop", "--all", "--hold"]).await;
    foreign.kill().unwrap();
    foreign.wait().unwrap();
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.err.contains("user 65534 listens") && ran.err.contains("nothing was sent"), "{ran:?}");
}

/// The configuration is a pipe, so the moment before it is read lasts as long as the test needs.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_is_hidden_before_it_reads_its_configuration() {
    let home = DaemonHome::new("");
    let (data, pipe) = (home.data_dir(), home.config_file());
    std::fs::remove_file(&pipe).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::from(0o644), 0).unwrap();
    std::fs::set_permissions(data.parent().unwrap(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut serve = home.command(&home.copy_executable(quell_exe()));
    serve.arg("serve").arg("--config").arg(&pipe).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    serve.current_dir("/");
    if rustix::process::geteuid().is_root() {
        // The owner of files in /proc shows whether a process is hidden. For processes of root it is always root, so
        // run as another user.
        std::os::unix::fs::chown(&data, Some(NOBODY_UID), Some(NOBODY_UID)).unwrap();
        serve.uid(NOBODY_UID).gid(NOBODY_UID);
    }
    let mut child = serve.spawn().unwrap();
    // The pipe opens for writing once the daemon has opened it for reading; the daemon then waits for its content.
    let open_pipe = async || open(&pipe, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).ok();
    let writer = poll_until("the daemon to read its configuration", open_pipe).await;
    let owner = std::fs::metadata(format!("/proc/{}/environ", child.id())).unwrap().uid();
    drop(writer);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(owner, 0, "other processes of this user can read its memory while it reads its keys");
}
