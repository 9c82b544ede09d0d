//! Start the daemon on a full disk, and recover once there is room.
//!
//! The daemon ends what the last one left, answers queries and accepts stops, but accepts no runs. The whole data
//! directory lies on a small file system that outlives its daemons.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};

use super::{SmallDisk, certain_leftovers};
use crate::prelude::*;

struct SmallDiskHome {
    model: ScriptedModel,
    home: DaemonHome,
    /// Starts the daemon inside the mount namespace of the small disk.
    wrapper: PathBuf,
    /// The data directory.
    disk: SmallDisk,
    /// Keeps the file system mounted.
    holder: Child,
}

impl SmallDiskHome {
    async fn mount() -> Self {
        let model = ScriptedModel::start().await;
        let home = DaemonHome::new("").with_env("QUELL_TOKEN", "a-token-of-the-test");
        let token = home.root_dir().join("token");
        let config = format!(
            "[server]\ntoken_file = {token:?}\n{}\
             [agents.main]\nmodel = \"scripted/m\"\nisolate = \"none\"\n",
            provider_toml(&model)
        );
        std::fs::write(home.config_file(), config).unwrap();
        // The second place is for the test support, which reads it outside the namespace; the daemon sees its disk
        // there.
        for place in [token, home.data_dir().join("token")] {
            std::fs::write(&place, "a-token-of-the-test\n").unwrap();
            std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        let disk = home.data_dir();
        let first = format!("mount -t tmpfs -o size=8m,mode=700 small {disk:?} && echo mounted && cat");
        #[expect(
            clippy::disallowed_methods,
            reason = "the test support keeps a file system mounted for the binary under test"
        )]
        let mut command = std::process::Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &first]);
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "mounted\n");
        let pid = holder.id();
        let enter = format!("exec nsenter --target {pid} --user --mount --preserve-credentials");
        let wrapper = format!("{enter} -- '{}' \"$@\"", quell_exe().display());
        let wrapper = write_shell_program(home.root_dir().join("wrapper"), &wrapper);
        Self { model, home, wrapper, disk: SmallDisk::of_process(pid, &disk), holder }
    }

    async fn send_message(&self, daemon: &TestDaemon) -> TestApiResponse {
        daemon.api().post_run("s", &json!({"text": "go"})).await
    }

    async fn wait_ready(&self, daemon: &TestDaemon) {
        let is_ready = async || (daemon.api().get("/readyz").await.status == 200).then_some(());
        poll_until("readiness although there is room", is_ready).await;
    }

    async fn assert_answers(&self, daemon: &TestDaemon, text: &str) {
        self.model.script(ScriptedResponse::text(text));
        let run = daemon.api().send_message("s", "go").await;
        let log = daemon.api().run_events(&run, 0).await.read_to_end().await;
        assert_eq!((log.verdict(), &log.receipt()["turn"]["recorded"]), ("completed", &json!(true)));
        assert_eq!(daemon.api().run_view(&run).await["output"], text);
        self.model.assert_histories_valid();
    }
}

impl Drop for SmallDiskHome {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        // It exits at the end of its input.
        let _ = self.holder.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_on_a_full_disk_ends_what_was_left_and_waits_for_room() {
    let fixture = SmallDiskHome::mount().await;
    let first = fixture.home.start(&fixture.wrapper).await;
    let marker = ProcessMarker::new();
    fixture.model.script(ScriptedResponse::tool_call(
        "c1",
        "shell",
        &json!({"command": hostile::kills_its_daemon(&marker)}),
    ));
    let left = first.api().send_message("s", "go").await;
    first.wait_exit().await;
    assert_ne!(marker.marked_processes(), []);
    // The next daemon would remove this file, which would free space.
    std::fs::remove_file(fixture.disk.0.join("address")).unwrap();
    fixture.disk.fill();

    let next = fixture.home.start_unready(&fixture.wrapper).await;
    marker.wait_gone(WAIT_TIMEOUT).await;
    let shown = next.api().run_view(&left).await;
    assert_eq!(
        (&shown["state"], &shown["verdict"]["reason"]),
        (&json!("ended"), &json!("daemon_stopped")),
        "{shown:#}"
    );
    assert_eq!(certain_leftovers(&shown["receipt"]["leftovers"]), [""; 0], "{shown:#}");
    assert_eq!(shown["receipt"]["turn"]["recorded"], false, "the receipt claims a turn that cannot be in the database");
    let unready = next.api().get("/readyz").await;
    assert_eq!((unready.status, unready.problem_code()), (503, Some("store_unavailable")), "{unready:?}");
    assert!(next.output().contains("no run is taken until the database can be written"), "{}", next.output());
    let refused = fixture.send_message(&next).await;
    assert_eq!((refused.status, refused.problem_code()), (503, Some("store_unavailable")), "{refused:?}");
    assert!(format!("{refused:?}").contains("make room on the disk"), "{refused:?}");
    let held = next.api().send(next.api().request(reqwest::Method::PUT, "/api/hold")).await;
    assert_eq!(held.status, 503, "{held:?}");
    assert_eq!(next.api().get("/api/hold").await.expect_status(200)["held"], true);
    let doctor = run_to_exit(fixture.home.command(&fixture.wrapper).args(["doctor", "--json"]));
    assert!(doctor.out.contains("it takes no runs"), "{doctor:?}");
    assert!(doctor.out.contains("0 MiB are free"), "{doctor:?}");

    fixture.disk.free();
    fixture.wait_ready(&next).await;
    assert_eq!(next.api().run_view(&left).await["receipt"]["turn"]["recorded"], true);
    assert_eq!(fixture.send_message(&next).await.problem_code(), Some("held"), "the hold was lost with the full disk");
    let lifted = next.api().send(next.api().request(reqwest::Method::DELETE, "/api/hold")).await;
    assert_eq!(lifted.status, 200, "{lifted:?}");
    fixture.assert_answers(&next, "Here again.").await;
    assert!(next.stop().await.success(), "{}", next.output());
}

/// After an orderly end neither the log of the database nor its index exists, and there is no room for either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_after_an_orderly_end_is_no_reason_not_to_start() {
    let fixture = SmallDiskHome::mount().await;
    let first = fixture.home.start(&fixture.wrapper).await;
    fixture.assert_answers(&first, "Before.").await;
    assert!(first.stop().await.success());
    assert!(!fixture.disk.0.join("quell.db-wal").exists());
    fixture.disk.fill();

    let next = fixture.home.start_unready(&fixture.wrapper).await;
    let past = next.api().get("/api/sessions/s/history").await.expect_status(200);
    assert!(past.to_string().contains("Before."), "{past:#}");
    assert_eq!(fixture.send_message(&next).await.problem_code(), Some("store_unavailable"));
    let doctor = run_to_exit(fixture.home.command(&fixture.wrapper).args(["doctor", "--json"]));
    assert!(doctor.out.contains("it takes no runs"), "{doctor:?}");
    assert!(
        !doctor.out.contains("end the other program"),
        "the doctor takes the daemon for another program: {doctor:?}"
    );

    fixture.disk.free();
    fixture.wait_ready(&next).await;
    fixture.assert_answers(&next, "After.").await;
    let listed = run_to_exit(fixture.home.command(&fixture.wrapper).args(["runs", "list"]));
    assert_eq!(listed.code, 0, "{listed:?}");
    assert!(next.stop().await.success(), "{}", next.output());
    let last = fixture.home.start(&fixture.wrapper).await;
    fixture.assert_answers(&last, "And on.").await;
}
