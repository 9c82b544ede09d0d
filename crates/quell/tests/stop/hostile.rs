//! Commands of an attacker with the daemon's user id leave nothing alive that the receipt does not name.
//!
//! Checked after a stop, after the end of the call and after the death of the daemon; as root and as an ordinary user;
//! in a PID namespace and, where the agent disables it, with the warden alone.

use std::fs;

use quell_test_support::crash_copies::certain_leftovers;
use quell_testkit::hostile::HostileProgram;
use quell_testkit::skip::lacks_root;

use crate::prelude::*;
use crate::test_engine::{background_call, shell_call};

/// A user id that no user of the machine has.
const ORDINARY_USER: u32 = 48_151;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DaemonUser {
    Root,
    Ordinary,
}

/// A home, a model that answers by script, and a copy of the binary that the daemon's user may run.
struct HostileFixture {
    model: ScriptedModel,
    home: DaemonHome,
    quell: PathBuf,
    marker: ProcessMarker,
}

impl HostileFixture {
    /// Starts a daemon. `None` when this process may not become the user.
    async fn start(user: DaemonUser, isolate: &str) -> Option<(Self, TestDaemon)> {
        let model = ScriptedModel::start().await;
        let home = DaemonHome::new(&config_toml(&model, &format!("isolate = \"{isolate}\"\nsandbox = \"off\"\n")));
        let quell = home.copy_executable(quell_exe());
        let is_root = rustix::process::geteuid().is_root();
        let home = match user {
            DaemonUser::Ordinary if is_root => home.owned_by_user(ORDINARY_USER),
            DaemonUser::Root if lacks_root() => return None,
            DaemonUser::Root | DaemonUser::Ordinary => home,
        };
        let daemon = home.start(&quell).await;
        Some((Self { model, home, quell, marker: ProcessMarker::new() }, daemon))
    }

    /// The command that attacks with this program.
    fn command_of(&self, program: HostileProgram, command: fn(&Path, &ProcessMarker) -> String) -> String {
        command(&hostile::compile(program, self.home.root_dir()), &self.marker)
    }

    /// Starts a run whose shell runs `command`, and waits until the command reports that its attack is in place.
    async fn start_attack(&self, daemon: &TestDaemon, command: &str) -> String {
        self.model.script(shell_call(command));
        let run = daemon.api().send_message("s", "go").await;
        self.wait_output(daemon, &run, "hostile").await;
        run
    }

    /// Waits until the command of a run prints `word`, and returns the output.
    async fn wait_output(&self, daemon: &TestDaemon, run: &str, word: &str) -> String {
        let mut events = daemon.api().run_events(run, 0).await;
        loop {
            let Some(event) = events.next().await else {
                // The run was over before the test followed it: the next model request has the output.
                let seen = self.model.recorded_requests();
                let last = seen.last().unwrap_or_else(|| panic!("the run ended early: {}", daemon.output()));
                let results = last.messages().iter().filter(|message| message["role"] == "tool");
                let output: String = results.map(Value::to_string).collect();
                assert!(output.contains(word), "the run ended early: {}", daemon.output());
                return output;
            };
            let text = event.data["text"].as_str().unwrap_or_default();
            if event.kind == "tool.output" && text.contains(word) {
                return text.to_owned();
            }
            assert_ne!(event.kind, "tool.ended", "{event:?}");
        }
    }

    /// Stops the run, waits until no marked process lives, and returns the receipt, which names no leftovers.
    async fn stop_and_wait_gone(&self, daemon: &TestDaemon, run: &str, force: bool) -> Value {
        let path = format!("/api/runs/{run}/stop?wait=1");
        let view = daemon.api().post(&path, &json!({"force": force})).await.expect_status(200);
        self.marker.wait_gone(WAIT_TIMEOUT).await;
        assert_eq!(view["receipt"]["leftovers"], json!([]), "{view:#}");
        view["receipt"].clone()
    }

    async fn assert_next_message_works(&self, daemon: &TestDaemon) {
        self.model.script(ScriptedResponse::text("fine"));
        let run = daemon.api().send_message("s", "and now?").await;
        assert_eq!(daemon.api().wait_ended(&run).await["verdict"]["kind"], "completed");
        self.model.assert_histories_valid();
    }
}

fn process_row(receipt: &Value) -> &Value {
    let rows = receipt["resources"].as_array().unwrap();
    rows.iter().find(|row| row["kind"] == "process").unwrap_or_else(|| panic!("no process: {receipt:#}"))
}

/// After a stop, a forced stop, or the death of the daemon.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_leader_is_dead_after_the_stop(
    #[values(DaemonUser::Root, DaemonUser::Ordinary)] user: DaemonUser,
    #[values("auto", "none")] isolate: &str,
    #[values(Some(false), Some(true), None)] forced_stop: Option<bool>,
) {
    let Some((fixture, daemon)) = HostileFixture::start(user, isolate).await else { return };
    let command = fixture.command_of(HostileProgram::ZOMBIE_LEADER, hostile::zombie_leader);
    let run = fixture.start_attack(&daemon, &command).await;
    let Some(force) = forced_stop else {
        daemon.kill9().await;
        fixture.marker.wait_gone(WAIT_TIMEOUT).await;
        return;
    };
    let receipt = fixture.stop_and_wait_gone(&daemon, &run, force).await;
    let held_by = if isolate == "auto" { "namespace" } else { "sweep" };
    assert_eq!(process_row(&receipt)["heldBy"], held_by, "{receipt:#}");
    fixture.assert_next_message_works(&daemon).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_leader_is_dead_when_the_call_has_ended(
    #[values(DaemonUser::Root, DaemonUser::Ordinary)] user: DaemonUser,
    #[values("auto", "none")] isolate: &str,
) {
    let Some((fixture, daemon)) = HostileFixture::start(user, isolate).await else { return };
    let command = fixture.command_of(HostileProgram::ZOMBIE_LEADER, hostile::zombie_leader_left_behind);
    fixture.model.script(shell_call(command)).script(ScriptedResponse::text("seen"));
    let run = daemon.api().send_message("s", "go").await;
    let log = daemon.api().run_events(&run, 0).await.read_to_end().await;
    assert_eq!(log.verdict(), "completed");
    assert_eq!(fixture.marker.marked_processes(), [], "a process outlived its call");
    assert_eq!(log.receipt()["leftovers"], json!([]));
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_report_is_not_believed(
    #[values(DaemonUser::Root, DaemonUser::Ordinary)] user: DaemonUser,
    #[values("auto", "none")] isolate: &str,
) {
    let Some((fixture, daemon)) = HostileFixture::start(user, isolate).await else { return };
    let go = fixture.home.root_dir().join("go");
    let program = hostile::compile(HostileProgram::FORGED_REPORT, fixture.home.root_dir());
    let command = hostile::forged_report(&program, &fixture.marker, &go);
    let run = fixture.start_attack(&daemon, &command).await;
    let output = fixture.wait_output(&daemon, &run, "hostile").await;
    fixture.model.script(ScriptedResponse::text("seen"));
    fs::write(&go, "").unwrap();
    // In a namespace the parent is the namespace's first process, which has no such socket and cannot be killed from
    // inside.
    if isolate == "none" && output.contains("taken") {
        // Its warden is dead, so the call ends by itself.
        assert_eq!(daemon.api().run_events(&run, 0).await.read_to_end().await.verdict(), "completed");
    }
    fixture.stop_and_wait_gone(&daemon, &run, true).await;
    let shown = daemon.api().run_view(&run).await;
    assert_eq!(shown["state"], "ended");
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_reaches_neither_its_daemon_nor_its_warden(
    #[values(DaemonUser::Root, DaemonUser::Ordinary)] user: DaemonUser,
    #[values("auto", "none")] isolate: &str,
) {
    let Some((fixture, daemon)) = HostileFixture::start(user, isolate).await else { return };
    let run = fixture.start_attack(&daemon, &hostile::kills_its_daemon(&fixture.marker)).await;
    if isolate == "auto" {
        fixture.model.script(ScriptedResponse::text("seen"));
        // It reaches nothing outside of its namespace, where it can kill only its own group.
        assert_eq!(daemon.api().run_events(&run, 0).await.read_to_end().await.verdict(), "completed");
        assert_eq!(fixture.marker.marked_processes(), []);
    } else {
        // Landlock refuses the signals (Linux 6.12).
        fixture.wait_output(&daemon, &run, "not permitted").await;
        fixture.stop_and_wait_gone(&daemon, &run, true).await;
    }
    fixture.assert_next_message_works(&daemon).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_outlived_its_daemon_and_its_warden_is_ended_by_the_next_daemon(
    #[values(DaemonUser::Root, DaemonUser::Ordinary)] user: DaemonUser,
    #[values("auto", "none")] isolate: &str,
) {
    let Some((fixture, daemon)) = HostileFixture::start(user, isolate).await else { return };
    let mark = fixture.marker.as_str();
    let command = format!("env -i sh -c 'echo hostile runs; while :; do sleep 1; done' {mark} & wait");
    let run = fixture.start_attack(&daemon, &command).await;
    hostile::kill_daemon_and_warden(daemon.pid(), &fixture.marker);
    daemon.wait_exit().await;
    let next = fixture.home.start(&fixture.quell).await;
    fixture.marker.wait_gone(WAIT_TIMEOUT).await;
    let shown = next.api().run_view(&run).await;
    assert_eq!(certain_leftovers(&shown["receipt"]["leftovers"]), [""; 0], "{shown:#}");
    // The namespace dies with its init, whose parent is the warden.
    assert_eq!(next.output().contains("were ended now"), isolate == "none", "{}", next.output());
}

/// The daemon dies after the end of the run where the command was left in the background.
#[rstest]
#[case::of_a_run_that_was_open(false)]
#[case::of_a_run_that_had_ended(true)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_hid_is_named_by_the_next_daemon(#[case] background: bool) {
    let Some((fixture, daemon)) = HostileFixture::start(DaemonUser::Ordinary, "none").await else { return };
    let command = hostile::hides_from_its_daemon(&fixture.marker);
    let run = if background {
        fixture.model.script(background_call(command)).script(ScriptedResponse::text("It runs."));
        let run = daemon.api().send_message("s", "go").await;
        daemon.api().run_events(&run, 0).await.read_to_end().await;
        run
    } else {
        fixture.start_attack(&daemon, &command).await
    };
    fixture.marker.wait_for_count(1).await;
    hostile::kill_daemon_and_warden(daemon.pid(), &fixture.marker);
    daemon.wait_exit().await;
    let next = fixture.home.start(&fixture.quell).await;
    let shown = next.api().run_view(&run).await;
    let named = if background {
        let amendments = &shown["receipt"]["amendments"];
        assert_eq!(amendments[0]["kind"], "outlived_daemon", "{shown:#}");
        amendments[0]["leftovers"].to_string()
    } else {
        shown["receipt"]["leftovers"].to_string()
    };
    // Without a cgroup of its own, the daemon cannot know whose process it is: it names the process and does not end
    // it.
    let alive = fixture.marker.marked_processes();
    assert!(!alive.is_empty(), "it did not hide: {shown:#}");
    assert!(alive.iter().all(|process| named.contains(&format!("pid {} ", process.pid))), "{alive:#?}\n{named}");
    fixture.marker.kill_survivors();
}

/// Where a command could kill its warden, its call ends by itself.
#[rstest]
#[case::poses_as_a_warden(|it: &HostileFixture| hostile::poses_as_warden(&it.quell, &it.marker), true)]
#[case::in_a_vfork(|it: &HostileFixture| it.command_of(HostileProgram::WAITS_FOR_VFORK, hostile::runs_program), false)]
#[case::in_namespaces_of_its_own(|it: &HostileFixture| hostile::nests_namespaces(&it.marker), false)]
#[case::work_in_the_kernel(|it: &HostileFixture| it.command_of(HostileProgram::LEAVES_WORK, hostile::runs_program), false)]
#[case::many_threads(|it: &HostileFixture| it.command_of(HostileProgram::MANY_THREADS, hostile::runs_program), false)]
#[case::a_full_process_table(|it: &HostileFixture| hostile::fills_the_process_table(&it.marker), false)]
#[case::stops_its_daemon(|it: &HostileFixture| hostile::stops_its_daemon(&it.marker), false)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_out_of_reach_ends_with_the_stop(
    #[case] command: fn(&HostileFixture) -> String,
    #[case] force: bool,
    #[values(DaemonUser::Root, DaemonUser::Ordinary)] user: DaemonUser,
    #[values("auto", "none")] isolate: &str,
) {
    let Some((fixture, daemon)) = HostileFixture::start(user, isolate).await else { return };
    let run = fixture.start_attack(&daemon, &command(&fixture)).await;
    fixture.stop_and_wait_gone(&daemon, &run, force).await;
    fixture.assert_next_message_works(&daemon).await;
}

/// A command that can do this can also kill the daemon. So the daemon stops the run, or it is dead and nothing of its
/// runs lives.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_may_have_nothing_more_stops_or_leaves_nothing(
    #[values("as=1:1", "nproc=1:1", "data=1:1", "stack=1:1")] limit: &str,
    #[values(DaemonUser::Root, DaemonUser::Ordinary)] user: DaemonUser,
    #[values("auto", "none")] isolate: &str,
) {
    let Some((fixture, daemon)) = HostileFixture::start(user, isolate).await else { return };
    let run = fixture.start_attack(&daemon, &hostile::limits_its_daemon(limit, &fixture.marker)).await;
    let asked = daemon.api();
    let stopped = tokio::select! {
        view = asked.stop_run(&run) => Some(view),
        _ = daemon.wait_exit() => None,
    };
    fixture.marker.wait_gone(WAIT_TIMEOUT).await;
    let view = match stopped {
        Some(view) => view,
        None => fixture.home.start(&fixture.quell).await.api().run_view(&run).await,
    };
    assert_eq!(view["receipt"]["leftovers"], json!([]), "{view:#}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warden_without_descriptors_ends_its_command(
    #[values(DaemonUser::Root, DaemonUser::Ordinary)] user: DaemonUser,
    #[values("auto", "none")] isolate: &str,
) {
    let Some((fixture, daemon)) = HostileFixture::start(user, isolate).await else { return };
    let go = fixture.home.root_dir().join("go");
    // Before the warden has reported its start, the call would fail at once.
    let run = fixture.start_attack(&daemon, &hostile::blinds_its_warden_when(&fixture.marker, &go)).await;
    fs::write(&go, "").unwrap();
    fixture.wait_output(&daemon, &run, "blinds").await;
    fixture.stop_and_wait_gone(&daemon, &run, false).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storms_without_their_warden_leave_no_zombies(#[values("auto", "none")] isolate: &str) {
    let Some((fixture, daemon)) = HostileFixture::start(DaemonUser::Root, isolate).await else { return };
    for _ in 0..6 {
        let run = fixture.start_attack(&daemon, &hostile::storm_without_warden(&fixture.marker)).await;
        fixture.stop_and_wait_gone(&daemon, &run, true).await;
        let pid = daemon.pid();
        leaks::wait_for_value("children of the daemon", 0, move || leaks::children_of(pid).len()).await;
    }
    fixture.assert_next_message_works(&daemon).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_command_are_not_in_its_warden() {
    let Some((fixture, daemon)) = HostileFixture::start(DaemonUser::Root, "none").await else { return };
    let command = format!("echo hostile; sleep 600; : {}", fixture.marker.as_str());
    let run = fixture.start_attack(&daemon, &command).await;
    let wardens = leaks::children_of(daemon.pid());
    assert_eq!(wardens.len(), 1, "{wardens:#?}");
    for warden in wardens {
        let environment = fs::read(Path::new("/proc").join(warden.pid.to_string()).join("environ")).unwrap();
        let environment = String::from_utf8_lossy(&environment);
        let names: Vec<&str> = environment.split('\0').filter_map(|entry| entry.split('=').next()).collect();
        assert_eq!(names, ["QUELL_RUN_ID", ""], "{environment}");
        assert!(!warden.command.contains("sleep"), "{}", warden.command);
    }
    fixture.stop_and_wait_gone(&daemon, &run, false).await;
}
