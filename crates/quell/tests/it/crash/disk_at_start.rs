//! A disk that is full when the daemon starts: what the last daemon left is ended, looks and stops work, nothing is promised, and
//! with room the daemon is an ordinary one. The whole data directory lies on a small file system that outlives its daemons.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

use quell_testkit::ScriptedModel;
use quell_testkit::commands::Marker;
use quell_testkit::daemon::{Daemon, Home};
use quell_testkit::hostile;
use quell_testkit::model::Behaviour;
use serde_json::{Value, json};

use super::certain;
use crate::cli::{exe, run};
use crate::harness::PATIENCE;

struct Site {
    model: ScriptedModel,
    home: Home,
    /// Starts the daemon where the small disk is mounted.
    wrapper: PathBuf,
    /// The data directory as this test sees it.
    data: PathBuf,
    /// Keeps the disk.
    holder: Child,
}

impl Site {
    async fn open() -> Self {
        let model = ScriptedModel::start().await;
        let home = Home::new("").env("QUELL_TOKEN", "a-token-of-the-test");
        let token = home.folder().join("token");
        let config = format!(
            "[server]\ntoken_file = {token:?}\n[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\n\
             [agents.main]\nmodel = \"scripted/m\"\nisolate = \"none\"\n",
            model.base_url()
        );
        std::fs::write(home.config(), config).unwrap();
        // The second is where the scaffold looks; the daemon sees its disk there.
        for place in [token, home.data().join("token")] {
            std::fs::write(&place, "a-token-of-the-test\n").unwrap();
            std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        let disk = home.data();
        let first = format!("mount -t tmpfs -o size=8m,mode=700 small {disk:?} && echo mounted && cat");
        #[expect(clippy::disallowed_methods, reason = "the scaffold keeps a file system for the binary under test")]
        let mut command = std::process::Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &first]);
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "mounted\n");
        let pid = holder.id();
        let wrapper = home.folder().join("wrapper");
        let enter = format!("nsenter --target {pid} --user --mount --preserve-credentials");
        std::fs::write(&wrapper, format!("#!/bin/sh\nexec {enter} -- '{}' \"$@\"\n", exe().display())).unwrap();
        std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).unwrap();
        let data = Path::new("/proc").join(pid.to_string()).join("root").join(disk.strip_prefix("/").unwrap());
        Self { model, home, wrapper, data, holder }
    }

    /// Leaves not a byte.
    fn fill(&self) {
        let mut filler = std::fs::File::create(self.data.join("filler")).unwrap();
        while filler.write(&[0; 512]).is_ok() {}
    }

    fn make_room(&self) {
        std::fs::remove_file(self.data.join("filler")).unwrap();
    }

    async fn send(&self, daemon: &Daemon) -> quell_testkit::daemon::Answer {
        daemon.http().post("/api/sessions/s/runs", &json!({"text": "go"})).await
    }

    async fn ready(&self, daemon: &Daemon) {
        let begun = Instant::now();
        while daemon.http().get("/readyz").await.status != 200 {
            assert!(begun.elapsed() < PATIENCE, "not ready although there is room\n{}", daemon.output());
        }
    }

    async fn says(&self, daemon: &Daemon, text: &str) {
        self.model.script(Behaviour::text(text));
        let run = self.send(daemon).await.expect_status(202)["runId"].as_str().unwrap().to_owned();
        let log = daemon.http().events(&run, 0).await.to_end().await;
        assert_eq!((log.verdict(), &log.receipt()["turn"]["recorded"]), ("completed", &json!(true)));
        assert_eq!(view(daemon, &run).await["output"], text);
        self.model.assert_histories_valid();
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        // It ends with its input.
        let _ = self.holder.wait();
    }
}

async fn view(daemon: &Daemon, run: &str) -> Value {
    daemon.http().get(&format!("/api/runs/{run}")).await.expect_status(200)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_on_a_full_disk_ends_what_was_left_and_waits_for_room() {
    let site = Site::open().await;
    let first = site.home.start(&site.wrapper).await;
    let mark = Marker::new();
    site.model.script(Behaviour::tool_call("c1", "shell", &json!({"command": hostile::kills_its_daemon(&mark)})));
    let left = site.send(&first).await.expect_status(202)["runId"].as_str().unwrap().to_owned();
    first.ended().await;
    assert_ne!(mark.survivors(), []);
    // The next daemon removes it, which would give it room.
    std::fs::remove_file(site.data.join("address")).unwrap();
    site.fill();

    let next = site.home.start_unready(&site.wrapper).await;
    mark.gone(PATIENCE).await;
    let shown = view(&next, &left).await;
    assert_eq!(
        (&shown["state"], &shown["verdict"]["reason"]),
        (&json!("ended"), &json!("daemon_stopped")),
        "{shown:#}"
    );
    assert_eq!(certain(&shown["receipt"]["leftovers"]), [""; 0], "{shown:#}");
    assert_eq!(shown["receipt"]["turn"]["recorded"], false, "its turn cannot be in the database");
    let unready = next.http().get("/readyz").await;
    assert_eq!((unready.status, unready.code()), (503, Some("store_unavailable")), "{unready:?}");
    assert!(next.output().contains("no run is taken until the database can be written"), "{}", next.output());
    let refused = site.send(&next).await;
    assert_eq!((refused.status, refused.code()), (503, Some("store_unavailable")), "{refused:?}");
    assert!(format!("{refused:?}").contains("make room on the disk"), "{refused:?}");
    let held = next.http().send(next.http().request(reqwest::Method::PUT, "/api/hold")).await;
    assert_eq!(held.status, 503, "{held:?}");
    assert_eq!(next.http().get("/api/hold").await.expect_status(200)["held"], true);
    let doctor = run(site.home.command(&site.wrapper).args(["doctor", "--json"]));
    assert!(doctor.out.contains("it takes no runs"), "{doctor:?}");
    assert!(doctor.out.contains("0 MiB are free"), "{doctor:?}");

    site.make_room();
    site.ready(&next).await;
    assert_eq!(view(&next, &left).await["receipt"]["turn"]["recorded"], true);
    assert_eq!(site.send(&next).await.code(), Some("held"), "the hold went with the full disk");
    let lifted = next.http().send(next.http().request(reqwest::Method::DELETE, "/api/hold")).await;
    assert_eq!(lifted.status, 200, "{lifted:?}");
    site.says(&next, "Here again.").await;
    assert!(next.stop().await.success(), "{}", next.output());
}

/// After an orderly end neither the log of the database nor its index is there, and there is no room for either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_after_an_orderly_end_is_no_reason_not_to_start() {
    let site = Site::open().await;
    let first = site.home.start(&site.wrapper).await;
    site.says(&first, "Before.").await;
    assert!(first.stop().await.success());
    assert!(!site.data.join("quell.db-wal").exists());
    site.fill();

    let next = site.home.start_unready(&site.wrapper).await;
    let past = next.http().get("/api/sessions/s/history").await.expect_status(200);
    assert!(past.to_string().contains("Before."), "{past:#}");
    assert_eq!(site.send(&next).await.code(), Some("store_unavailable"));
    let doctor = run(site.home.command(&site.wrapper).args(["doctor", "--json"]));
    assert!(doctor.out.contains("it takes no runs"), "{doctor:?}");
    assert!(!doctor.out.contains("end the other program"), "the daemon is taken for a stranger: {doctor:?}");

    site.make_room();
    site.ready(&next).await;
    site.says(&next, "After.").await;
    let listed = run(site.home.command(&site.wrapper).args(["runs", "list"]));
    assert_eq!(listed.code, 0, "{listed:?}");
    assert!(next.stop().await.success(), "{}", next.output());
    let last = site.home.start(&site.wrapper).await;
    site.says(&last, "And on.").await;
}
