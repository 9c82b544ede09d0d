//! No token goes to who is not the daemon, and no key to who watches its start.

use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use quell_testkit::daemon::{Daemon, Home};
use rustix::fs::{Mode, OFlags, open};

use super::verb;
use crate::cli::exe;
use crate::harness::PATIENCE;

/// Nobody, on every Linux.
const NOBODY: u32 = 65534;

#[tokio::test(flavor = "multi_thread")]
async fn who_took_a_dead_daemons_port_gets_no_token() {
    let daemon = Daemon::start(exe(), "").await;
    daemon.kill9().await;
    let somebody = TcpListener::bind(daemon.address()).unwrap();
    somebody.set_nonblocking(true).unwrap();
    let ways = [
        vec!["stop", "--all", "--hold"],
        vec!["stop", "--all", "--url", daemon.url()],
        vec!["runs", "--token", "mine"],
        vec!["doctor"],
    ];
    for words in ways {
        let ran = verb(daemon.home(), &words).await;
        let heard = somebody.accept();
        assert!(heard.is_err(), "{words:?} went to somebody else");
        // The doctor looks at the lock first, and at the port.
        let says_why = ran.err.contains("no daemon uses the data directory") && ran.code != 0;
        let says_why = says_why || (words == ["doctor"] && ran.out.contains("none runs"));
        assert!(says_why, "{words:?}: {ran:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_users_listener_gets_no_token_from_a_living_lock() {
    if !rustix::process::geteuid().is_root() {
        println!("left out: another user is needed, and only root can become one");
        return;
    }
    // A daemon of this user holds the lock; its address file leads to a daemon of another user.
    let (own, other) = (Daemon::start(exe(), "").await, Home::new("").of_user(NOBODY));
    let folder = other.data();
    let mut foreign = other.command(&other.copy_of(exe()));
    foreign.args(["serve", "--listen", "127.0.0.1:0"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut foreign = foreign.spawn().unwrap();
    let file = folder.join("address");
    let there = file.clone();
    quell_testkit::leaks::settled(PATIENCE, move || {
        std::fs::metadata(&there).map(drop).map_err(|error| error.to_string())
    })
    .await;
    let address = std::fs::read_to_string(file).unwrap();
    std::fs::write(own.home().data().join("address"), &address).unwrap();
    std::fs::remove_file(own.home().data().join("quell.sock")).unwrap();
    let ran = verb(own.home(), &["stop", "--all", "--hold"]).await;
    foreign.kill().unwrap();
    foreign.wait().unwrap();
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.err.contains("user 65534 listens") && ran.err.contains("nothing was sent"), "{ran:?}");
}

/// Its configuration is a pipe, so that the moment before it is read lasts as long as the test looks.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_is_hidden_before_it_reads_its_configuration() {
    let home = Home::new("");
    let (data, pipe) = (home.data(), home.config());
    std::fs::remove_file(&pipe).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::from(0o644), 0).unwrap();
    std::fs::set_permissions(data.parent().unwrap(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut serve = home.command(&home.copy_of(exe()));
    serve.arg("serve").arg("--config").arg(&pipe).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    serve.current_dir("/");
    if rustix::process::geteuid().is_root() {
        // The kernel shows it by the owner of the files in /proc, which is root in any case for a process of root.
        std::os::unix::fs::chown(&data, Some(NOBODY), Some(NOBODY)).unwrap();
        serve.uid(NOBODY).gid(NOBODY);
    }
    let mut child = serve.spawn().unwrap();
    // It opens when the daemon has opened it to read, and the daemon waits for what is written.
    let opened = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Ok(writer) = open(&pipe, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()) {
                return writer;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let writer = opened.await.expect("the daemon reads its configuration");
    let owner = std::fs::metadata(format!("/proc/{}/environ", child.id())).unwrap().uid();
    drop(writer);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(owner, 0, "other processes of this user can read its memory while it reads its keys");
}
