//! Commands of an attacker with the daemon's own user: after a stop, after the end of the call, and after the death of the
//! daemon, nothing of them lives that the receipt does not name. Each as root and as an ordinary user, held by a PID namespace
//! and, where an agent has given that up, by the warden alone.

use std::fs;
use std::path::{Path, PathBuf};

use quell_testkit::commands::Marker;
use quell_testkit::daemon::{Daemon, Home};
use quell_testkit::hostile::{self, Program};
use quell_testkit::model::Behaviour;
use quell_testkit::{ScriptedModel, leaks};
use rstest::rstest;
use serde_json::{Value, json};

use crate::cli::exe;
use crate::crash::certain;
use crate::harness::PATIENCE;

/// No user of the machine has it.
const ORDINARY_USER: u32 = 48_151;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum User {
    Root,
    Ordinary,
}

/// A daemon with one agent, a model that answers by script, and a folder that its user may use.
struct Site {
    model: ScriptedModel,
    home: Home,
    quell: PathBuf,
    mark: Marker,
}

impl Site {
    /// None where this test may not become the user.
    async fn new(user: User, isolate: &str) -> Option<Self> {
        let model = ScriptedModel::start().await;
        let home = Home::new(&format!(
            "[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\n\
             [agents.main]\nmodel = \"scripted/m\"\nisolate = \"{isolate}\"\n",
            model.base_url()
        ));
        let quell = home.copy_of(exe());
        let is_root = rustix::process::geteuid().is_root();
        let home = match user {
            User::Ordinary if is_root => home.of_user(ORDINARY_USER),
            User::Root if !is_root => {
                eprintln!("skipped: it takes root");
                return None;
            }
            User::Root | User::Ordinary => home,
        };
        Some(Self { model, home, quell, mark: Marker::new() })
    }

    fn program(&self, program: Program) -> PathBuf {
        hostile::build(program, self.home.folder())
    }

    async fn daemon(&self) -> Daemon {
        self.home.start(&self.quell).await
    }

    /// A run whose shell runs `command`, once the command has done its worst.
    async fn attacked(&self, daemon: &Daemon, command: &str) -> String {
        self.attacked_by(daemon, command).await.0
    }

    /// As [`Self::attacked`], with what the command said.
    async fn attacked_by(&self, daemon: &Daemon, command: &str) -> (String, String) {
        self.model.script(Behaviour::tool_call("c1", "shell", &json!({"command": command})));
        let sent = json!({"text": "go"});
        let run = daemon.http().post("/api/sessions/s/runs", &sent).await.expect_status(202);
        let run = run["runId"].as_str().unwrap().to_owned();
        let said = self.said(daemon, &run, "hostile").await;
        (run, said)
    }

    /// Waits until the command of a run says this.
    async fn said(&self, daemon: &Daemon, run: &str, word: &str) -> String {
        let mut events = daemon.http().events(run, 0).await;
        loop {
            let Some(event) = events.next().await else {
                // The run was over before anybody followed it: the next request shows what the command said.
                let seen = self.model.seen();
                let last = seen.last().unwrap_or_else(|| panic!("the run ended early: {}", daemon.output()));
                let results = last.messages().iter().filter(|message| message["role"] == "tool");
                let said: String = results.map(Value::to_string).collect();
                assert!(said.contains(word), "the run ended early: {}", daemon.output());
                return said;
            };
            let text = event.data["text"].as_str().unwrap_or_default();
            if event.kind == "tool.output" && text.contains(word) {
                return text.to_owned();
            }
            assert_ne!(event.kind, "tool.ended", "{event:?}");
        }
    }

    /// Stops the run, and returns its receipt once nothing carries the mark.
    async fn stopped(&self, daemon: &Daemon, run: &str, force: bool) -> Value {
        let path = format!("/api/runs/{run}/stop?wait=1");
        let view = daemon.http().post(&path, &json!({"force": force})).await.expect_status(200);
        self.mark.gone(PATIENCE).await;
        view["receipt"].clone()
    }

    async fn next_message_works(&self, daemon: &Daemon) {
        self.model.script(Behaviour::text("fine"));
        let run = daemon.http().post("/api/sessions/s/runs", &json!({"text": "and now?"})).await.expect_status(202);
        let log = daemon.http().events(run["runId"].as_str().unwrap(), 0).await.to_end().await;
        assert_eq!(log.verdict(), "completed");
        self.model.assert_histories_valid();
    }
}

fn process_row(receipt: &Value) -> &Value {
    let rows = receipt["resources"].as_array().unwrap();
    rows.iter().find(|row| row["kind"] == "process").unwrap_or_else(|| panic!("no process: {receipt:#}"))
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_leader_is_dead_after_the_stop(
    #[values(User::Root, User::Ordinary)] user: User,
    #[values("auto", "none")] isolate: &str,
    #[values(false, true)] force: bool,
) {
    let Some(site) = Site::new(user, isolate).await else { return };
    let daemon = site.daemon().await;
    let command = hostile::zombie_leader(&site.program(Program::ZombieLeader), &site.mark);
    let run = site.attacked(&daemon, &command).await;
    let receipt = site.stopped(&daemon, &run, force).await;
    assert_eq!(receipt["leftovers"], json!([]), "{receipt:#}");
    let held_by = if isolate == "auto" { "namespace" } else { "sweep" };
    assert_eq!(process_row(&receipt)["heldBy"], held_by, "{receipt:#}");
    site.next_message_works(&daemon).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_leader_is_dead_when_the_call_has_ended(
    #[values(User::Root, User::Ordinary)] user: User,
    #[values("auto", "none")] isolate: &str,
) {
    let Some(site) = Site::new(user, isolate).await else { return };
    let daemon = site.daemon().await;
    let command = hostile::zombie_leader_left_behind(&site.program(Program::ZombieLeader), &site.mark);
    site.model.script(Behaviour::tool_call("c1", "shell", &json!({"command": command})));
    site.model.script(Behaviour::text("seen"));
    let run = daemon.http().post("/api/sessions/s/runs", &json!({"text": "go"})).await.expect_status(202);
    let log = daemon.http().events(run["runId"].as_str().unwrap(), 0).await.to_end().await;
    assert_eq!(log.verdict(), "completed");
    assert_eq!(site.mark.survivors(), [], "alive although its call has ended");
    assert_eq!(log.receipt()["leftovers"], json!([]));
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_leader_does_not_outlive_the_daemon(
    #[values(User::Root, User::Ordinary)] user: User,
    #[values("auto", "none")] isolate: &str,
) {
    let Some(site) = Site::new(user, isolate).await else { return };
    let daemon = site.daemon().await;
    let command = hostile::zombie_leader(&site.program(Program::ZombieLeader), &site.mark);
    site.attacked(&daemon, &command).await;
    daemon.kill9().await;
    site.mark.gone(PATIENCE).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_poses_as_a_warden_is_ended(
    #[values(User::Root, User::Ordinary)] user: User,
    #[values("auto", "none")] isolate: &str,
) {
    let Some(site) = Site::new(user, isolate).await else { return };
    let daemon = site.daemon().await;
    let folder = site.home.folder();
    let run = site.attacked(&daemon, &hostile::poses_as_warden(&site.quell, folder, &site.mark)).await;
    // Its warden is dead where the command could kill it; then the call ends by itself.
    let receipt = site.stopped(&daemon, &run, true).await;
    assert_eq!(receipt["leftovers"], json!([]), "{receipt:#}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_report_is_not_believed(
    #[values(User::Root, User::Ordinary)] user: User,
    #[values("auto", "none")] isolate: &str,
) {
    let Some(site) = Site::new(user, isolate).await else { return };
    let daemon = site.daemon().await;
    let go = site.home.folder().join("go");
    let command = hostile::forged_report(&site.program(Program::ForgedReport), &site.mark, &go);
    let (run, said) = site.attacked_by(&daemon, &command).await;
    site.model.script(Behaviour::text("seen"));
    fs::write(&go, "").unwrap();
    // In a namespace the parent is the namespace's first process, which has no such socket and cannot be killed from within.
    if isolate == "none" && said.contains("taken") {
        // Its warden is dead: the call ends by itself.
        assert_eq!(daemon.http().events(&run, 0).await.to_end().await.verdict(), "completed");
    }
    let receipt = site.stopped(&daemon, &run, true).await;
    assert_eq!(receipt["leftovers"], json!([]), "{receipt:#}");
    let shown = daemon.http().get(&format!("/api/runs/{run}")).await.expect_status(200);
    assert_eq!(shown["state"], "ended");
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_killed_its_daemon_is_ended_by_the_next(
    #[values(User::Root, User::Ordinary)] user: User,
    #[values("auto", "none")] isolate: &str,
) {
    let Some(site) = Site::new(user, isolate).await else { return };
    let daemon = site.daemon().await;
    let command = hostile::kills_its_daemon(&site.mark);
    site.model.script(Behaviour::tool_call("c1", "shell", &json!({"command": command})));
    site.model.script(Behaviour::text("seen"));
    let run = daemon.http().post("/api/sessions/s/runs", &json!({"text": "go"})).await.expect_status(202);
    let run = run["runId"].as_str().unwrap().to_owned();
    if isolate == "auto" {
        // It reaches nothing outside of its namespace, where its own group is all that it can kill.
        assert_eq!(daemon.http().events(&run, 0).await.to_end().await.verdict(), "completed");
        assert_eq!(site.mark.survivors(), []);
        return site.next_message_works(&daemon).await;
    }
    daemon.ended().await;
    let next = site.daemon().await;
    site.mark.gone(PATIENCE).await;
    let shown = next.http().get(&format!("/api/runs/{run}")).await.expect_status(200);
    assert_eq!(certain(&shown["receipt"]["leftovers"]), [""; 0], "{shown:#}");
    assert!(next.output().contains("were ended now"), "{}", next.output());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_hid_from_its_daemon_is_named_by_the_next() {
    let Some(site) = Site::new(User::Ordinary, "none").await else { return };
    let daemon = site.daemon().await;
    let command = hostile::kills_its_daemon_and_hides(&site.mark);
    site.model.script(Behaviour::tool_call("c1", "shell", &json!({"command": command})));
    let run = daemon.http().post("/api/sessions/s/runs", &json!({"text": "go"})).await.expect_status(202);
    daemon.ended().await;
    let next = site.daemon().await;
    let path = format!("/api/runs/{}", run["runId"].as_str().unwrap());
    let shown = next.http().get(&path).await.expect_status(200);
    let named = shown["receipt"]["leftovers"].to_string();
    // It may be somebody else's where the daemon has no cgroup of its own: then it is named and not ended.
    let alive = site.mark.survivors();
    assert!(alive.iter().all(|process| named.contains(&format!("pid {} ", process.pid))), "{alive:#?}\n{named}");
    site.mark.kill_survivors();
}

#[rstest]
#[case::in_a_vfork(true)]
#[case::in_namespaces_of_its_own(false)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_ways_to_be_out_of_reach_end_with_the_stop(
    #[case] vfork: bool,
    #[values(User::Root, User::Ordinary)] user: User,
    #[values("auto", "none")] isolate: &str,
) {
    let Some(site) = Site::new(user, isolate).await else { return };
    let daemon = site.daemon().await;
    let command = if vfork {
        hostile::waits_for_its_vfork(&site.program(Program::WaitsForVfork), &site.mark)
    } else {
        hostile::nests_namespaces(&site.mark)
    };
    let run = site.attacked(&daemon, &command).await;
    let receipt = site.stopped(&daemon, &run, false).await;
    assert_eq!(receipt["leftovers"], json!([]), "{receipt:#}");
}

#[rstest]
#[case::work_in_the_kernel(Some(Program::LeavesWork))]
#[case::many_threads(Some(Program::ManyThreads))]
#[case::a_full_process_table(None)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_takes_much_of_the_machine_ends_with_the_stop(
    #[case] program: Option<Program>,
    #[values(User::Root, User::Ordinary)] user: User,
    #[values("auto", "none")] isolate: &str,
) {
    let Some(site) = Site::new(user, isolate).await else { return };
    let daemon = site.daemon().await;
    let command = match program {
        Some(program) => hostile::runs(&site.program(program), &site.mark),
        None => hostile::fills_the_process_table(&site.mark),
    };
    let run = site.attacked(&daemon, &command).await;
    let receipt = site.stopped(&daemon, &run, false).await;
    assert_eq!(receipt["leftovers"], json!([]), "{receipt:#}");
    site.next_message_works(&daemon).await;
}

/// Whoever may do this may also kill the daemon. It stops, or it is dead and nothing of its runs lives.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_may_have_nothing_more_stops_or_leaves_nothing(
    #[values("as=1:1", "nproc=1:1", "data=1:1", "stack=1:1")] limit: &str,
    #[values(User::Root, User::Ordinary)] user: User,
    #[values("auto", "none")] isolate: &str,
) {
    let Some(site) = Site::new(user, isolate).await else { return };
    let daemon = site.daemon().await;
    let run = site.attacked(&daemon, &hostile::limits_its_daemon(limit, &site.mark)).await;
    let asked = daemon.http();
    let path = format!("/api/runs/{run}/stop?wait=1");
    let body = json!({});
    let stopped = tokio::select! {
        answer = asked.post(&path, &body) => Some(answer.expect_status(200)),
        _ = daemon.ended() => None,
    };
    site.mark.gone(PATIENCE).await;
    let receipt = match stopped {
        Some(view) => view["receipt"].clone(),
        None => {
            let next = site.daemon().await;
            next.http().get(&format!("/api/runs/{run}")).await.expect_status(200)["receipt"].clone()
        }
    };
    assert_eq!(receipt["leftovers"], json!([]), "{receipt:#}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warden_without_descriptors_ends_its_command(
    #[values(User::Root, User::Ordinary)] user: User,
    #[values("auto", "none")] isolate: &str,
) {
    let Some(site) = Site::new(user, isolate).await else { return };
    let daemon = site.daemon().await;
    let go = site.home.folder().join("go");
    // Before the warden has told of its start, the call fails at once, as it should.
    let run = site.attacked(&daemon, &hostile::blinds_its_warden_when(&site.mark, &go)).await;
    fs::write(&go, "").unwrap();
    site.said(&daemon, &run, "blinds").await;
    let receipt = site.stopped(&daemon, &run, false).await;
    assert_eq!(receipt["leftovers"], json!([]), "{receipt:#}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_its_command_has_stopped_hears_a_stop(
    #[values(User::Root, User::Ordinary)] user: User,
    #[values("auto", "none")] isolate: &str,
) {
    let Some(site) = Site::new(user, isolate).await else { return };
    let daemon = site.daemon().await;
    let command = hostile::stops_its_daemon(&site.mark);
    let run = site.attacked(&daemon, &command).await;
    let receipt = site.stopped(&daemon, &run, false).await;
    assert_eq!(receipt["leftovers"], json!([]), "{receipt:#}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storms_without_their_warden_leave_no_zombies(#[values("auto", "none")] isolate: &str) {
    let Some(site) = Site::new(User::Root, isolate).await else { return };
    let daemon = site.daemon().await;
    for _ in 0..6 {
        let run = site.attacked(&daemon, &hostile::storm_without_warden(&site.mark)).await;
        let receipt = site.stopped(&daemon, &run, true).await;
        assert_eq!(receipt["leftovers"], json!([]), "{receipt:#}");
        let pid = daemon.pid();
        leaks::settled(PATIENCE, move || {
            let children = leaks::children_of(pid);
            if children.is_empty() { Ok(()) } else { Err(format!("{} children", children.len())) }
        })
        .await;
    }
    site.next_message_works(&daemon).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_command_are_not_in_its_warden() {
    let Some(site) = Site::new(User::Root, "none").await else { return };
    let daemon = site.daemon().await;
    let command = format!("echo hostile; sleep 600; : {}", site.mark.as_str());
    let run = site.attacked(&daemon, &command).await;
    let wardens = leaks::children_of(daemon.pid());
    assert_eq!(wardens.len(), 1, "{wardens:#?}");
    for warden in wardens {
        let environment = fs::read(Path::new("/proc").join(warden.pid.to_string()).join("environ")).unwrap();
        let environment = String::from_utf8_lossy(&environment);
        let names: Vec<&str> = environment.split('\0').filter_map(|entry| entry.split('=').next()).collect();
        assert_eq!(names, ["QUELL_RUN_ID", ""], "{environment}");
        assert!(!warden.command.contains("sleep"), "{}", warden.command);
    }
    site.stopped(&daemon, &run, false).await;
}
