//! Backup and restore with the real binary, while runs come and go.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::{Api, Daemon, Home};
use quell_testkit::model::Behaviour;
use serde_json::{Value, json};

use crate::cli::{Ran, exe, run};
use crate::doors::{House, assert_problem};

fn config(model: &ScriptedModel) -> String {
    format!(
        "[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\nmax_retries = 0\n[agents.main]\nmodel = \"scripted/m\"\n",
        model.base_url()
    )
}

fn verb(home: &Home, words: &[&str]) -> Ran {
    run(home.command(exe()).args(words))
}

async fn send(http: &Api, session: &str, text: &str) -> String {
    let answer = http.post(&format!("/api/sessions/{session}/runs"), &json!({"text": text})).await.expect_status(202);
    answer["runId"].as_str().unwrap().to_owned()
}

async fn over(http: &Api, run: &str) -> Value {
    http.events(run, 0).await.until("run.ended").await;
    http.get(&format!("/api/runs/{run}")).await.expect_status(200)
}

/// Runs that are accepted and end, one after the other in a few sessions, until they are told to stop.
struct Load {
    go_on: Arc<AtomicBool>,
    ended: Arc<AtomicUsize>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn on(daemon: &Daemon) -> Self {
        let (go_on, ended) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let tasks = (0..4).map(|lane| {
            let (http, go_on, ended) = (daemon.http(), Arc::clone(&go_on), Arc::clone(&ended));
            tokio::spawn(async move {
                while go_on.load(Ordering::Relaxed) {
                    let id = send(&http, &format!("lane-{lane}"), "go").await;
                    over(&http, &id).await;
                    ended.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let tasks = tasks.collect();
        Self { go_on, ended, tasks }
    }

    async fn stop(self) -> usize {
        self.go_on.store(false, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        self.ended.load(Ordering::Relaxed)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_load_is_restored_with_its_sessions_and_receipts_and_its_open_runs_are_sealed() {
    let model = ScriptedModel::start().await;
    let daemon = Daemon::start(exe(), &config(&model)).await;
    let http = daemon.http();
    model.by_prompt(|_, request| match request.markers.last().map(String::as_str) {
        Some("rest") => Behaviour::silent_mid_stream("begun"),
        _ => Behaviour::text("an answer"),
    });
    let first = send(&http, "s", "the first").await;
    let receipt = over(&http, &first).await["receipt"].clone();
    let open = send(&http, "t", "marker:rest").await;
    http.events(&open, 0).await.until("text.delta").await;

    let load = Load::on(&daemon);
    let file = daemon.home().config().with_file_name("copy.db");
    let (path, mut sizes) = (file.to_str().unwrap().to_owned(), Vec::new());
    for flags in [vec![], vec!["--force", "--json"]] {
        let (home, words) = (daemon.home().clone(), [&["backup", &path], flags.as_slice()].concat().join(" "));
        let made = tokio::task::spawn_blocking(move || verb(&home, &words.split(' ').collect::<Vec<_>>()));
        let made = made.await.unwrap();
        assert_eq!(made.code, 0, "{made:?}");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        sizes.push(std::fs::metadata(&file).unwrap().len());
    }
    assert!(sizes[1] > sizes[0], "the second is of a later moment: {sizes:?}");
    let again = verb(daemon.home(), &["backup", &path]);
    assert!(again.code == 1 && again.err.contains("--force"), "{again:?}");
    let under = verb(daemon.home(), &["restore", &path]);
    assert!(under.code == 1 && under.err.contains("another quell"), "{under:?}");
    assert!(load.stop().await > 0);
    let late = send(&http, "late", "after the backup").await;
    over(&http, &late).await;
    let rows = http.get("/api/audit").await.expect_status(200);
    let backups = rows["items"].as_array().unwrap().iter().filter(|row| row["action"] == "backup").count();
    assert_eq!(backups, 2, "{rows:#}");
    daemon.stop().await;

    let back = verb(daemon.home(), &["restore", &path]);
    assert!(back.code == 0 && back.out.contains("quell.db.before-"), "{back:?}");
    let daemon = daemon.home().start(exe()).await;
    let http = daemon.http();
    assert_eq!(http.get(&format!("/api/runs/{first}")).await.expect_status(200)["receipt"], receipt);
    assert_problem(&http.get(&format!("/api/runs/{late}")).await, 404, "run_not_found");
    let sealed = http.get(&format!("/api/runs/{open}")).await.expect_status(200);
    let verdict = (&sealed["state"], &sealed["verdict"]["kind"], &sealed["verdict"]["reason"]);
    assert_eq!(verdict, (&json!("ended"), &json!("aborted"), &json!("daemon_stopped")), "{sealed:#}");
    let open = http.get("/api/runs?state=active").await.expect_status(200);
    assert_eq!(open["items"], json!([]));
    // It goes on where the backup was made.
    let next = send(&http, "s", "the second").await;
    assert_eq!(over(&http, &next).await["verdict"]["kind"], "completed");
    let seen = model.seen().last().map(|request| json!(request.messages()).to_string()).unwrap();
    assert!(seen.contains("the first") && seen.contains("the second"), "{seen}");
    model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_without_a_daemon_reads_the_file_and_a_broken_one_leaves_nothing() {
    let model = ScriptedModel::start().await;
    let daemon = Daemon::start(exe(), &config(&model)).await;
    model.script(Behaviour::text("an answer"));
    let id = send(&daemon.http(), "s", "hello").await;
    over(&daemon.http(), &id).await;
    daemon.kill9().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("copy.db");
    let made = verb(daemon.home(), &["backup", file.to_str().unwrap()]);
    assert!(made.code == 0 && made.out.contains("checked"), "{made:?}");
    // Into a new data directory.
    let other = Home::new(&config(&model));
    let back = verb(&other, &["restore", file.to_str().unwrap(), "--json"]);
    let said: Value = serde_json::from_str(&back.out).unwrap();
    assert_eq!((back.code, &said["kept"]), (0, &Value::Null), "{back:?}");
    let moved = other.start(exe()).await;
    let _ = moved.http().get(&format!("/api/runs/{id}")).await.expect_status(200);
    moved.stop().await;

    let nobody = verb(&Home::new(""), &["backup", folder.path().join("none.db").to_str().unwrap()]);
    assert!(nobody.code == 1 && nobody.err.contains("no daemon answers"), "{nobody:?}");
    std::fs::write(&file, "half a file").unwrap();
    let bad = verb(&other, &["restore", file.to_str().unwrap()]);
    assert!(bad.code == 1 && bad.err.contains("copy.db"), "{bad:?}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["copy.db"], "nothing half-made stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_for_admins() {
    let house = House::open().await;
    let writer = house.api("writer", "write").await;
    assert_problem(&writer.get("/api/backup").await, 403, "forbidden");
    let answer = house.http.request(reqwest::Method::GET, "/api/backup").send().await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["content-type"]),
        (200, &"application/vnd.sqlite3".parse().unwrap())
    );
    assert!(answer.bytes().await.unwrap().starts_with(b"SQLite format 3\0"));
}
