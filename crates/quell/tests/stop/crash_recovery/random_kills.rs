//! SIGKILL the daemon at random moments while tools run, again and again on the same data.

use fastrand::Rng;
use quell_testkit::mcp;
use quell_testkit::seed::test_seed;

use super::*;
use crate::test_engine::{ResponsesByMarker, shell_call};

/// Daemons in parallel, and restarts of each.
const DAEMONS: u64 = 4;
const RESTARTS: u64 = 25;
/// Runs per uptime, one in each session.
const SESSIONS_PER_DAEMON: u64 = 4;
/// A daemon is killed within this time after its start.
const MAX_UPTIME_MS: u64 = 150;

#[rstest]
#[ignore = "full: a hundred deaths"]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_deaths_leave_no_process_and_every_session_usable(#[case] kind: StoreKind) {
    let Some(store) = kind.start() else { return };
    let (model, scripts) = (ScriptedModel::start().await, ResponsesByMarker::default());
    scripts.install(&model);
    let mut random = Rng::with_seed(test_seed());
    let daemons = (0..DAEMONS).map(|index| {
        let home = DaemonHome::new(&format!("{}{}", store.new_database().config_toml(), kill_test_config(&model)));
        tokio::spawn(restart_repeatedly(home, scripts.clone(), index, random.fork()))
    });
    for restarted in futures_util::future::join_all(daemons).await {
        restarted.unwrap();
    }
    model.assert_histories_valid();
}

async fn restart_repeatedly(home: DaemonHome, scripts: ResponsesByMarker, daemon_index: u64, mut random: Rng) {
    for _ in 0..RESTARTS {
        let daemon = home.start(quell_exe()).await;
        assert_all_runs_ended(&daemon).await;
        let mut markers = Vec::new();
        for session in 0..SESSIONS_PER_DAEMON {
            let marker = ProcessMarker::new();
            let response = RUN_ACTIONS[random.usize(..RUN_ACTIONS.len())](&marker);
            scripts.script(marker.as_str(), [response]);
            scripts.script(&format!("below-{}", marker.as_str()), [shell_call(commands::setsid_child(&marker))]);
            daemon
                .api()
                .send_message(&format!("session {session}"), &format!("go on marker:{}", marker.as_str()))
                .await;
            markers.push(marker);
        }
        // This test is about the moment of the kill, so it waits for no condition.
        tokio::time::sleep(Duration::from_millis(random.u64(..MAX_UPTIME_MS))).await;
        daemon.kill9().await;
        for marker in markers {
            marker.wait_gone(WAIT_TIMEOUT).await;
        }
    }
    let daemon = home.start(quell_exe()).await;
    assert_all_runs_ended(&daemon).await;
    for session in 0..SESSIONS_PER_DAEMON {
        let run = daemon.api().send_message(&format!("session {session}"), "and now? marker:last").await;
        let log = daemon.api().run_events(&run, 0).await.read_to_end().await;
        assert_eq!(log.verdict(), "completed", "daemon {daemon_index}, session {session}");
    }
    assert!(daemon.stop().await.success(), "{}", daemon.output());
}

/// No run is active in a new daemon, and every run of earlier daemons has its end and its receipt.
async fn assert_all_runs_ended(daemon: &TestDaemon) {
    let active = daemon.api().get("/api/runs?state=active").await.expect_status(200);
    assert_eq!(active["items"], json!([]), "a run is active after a restart");
    let all = daemon.api().get("/api/runs?limit=100").await.expect_status(200);
    for run in all["items"].as_array().unwrap() {
        assert_eq!(run["state"], "ended", "{run:#}");
        assert_eq!(certain_leftovers(&run["receipt"]["leftovers"]), [""; 0], "{run:#}");
    }
}

/// What a run does when its daemon dies. A sub-agent runs the action whose marker begins with `below-`.
const RUN_ACTIONS: &[fn(&ProcessMarker) -> ScriptedResponse] = &[
    |marker| shell_call(commands::obeys_signals(marker)),
    |marker| shell_call(commands::ignores_signals(marker)),
    |marker| shell_call(commands::setsid_child(marker)),
    |marker| shell_call(commands::signal_ignoring_setsid_child(marker)),
    |marker| shell_call(commands::double_fork(marker)),
    |marker| shell_call(commands::respawns_on_term(marker)),
    |marker| {
        let start = json!({"command": commands::detached_server(marker), "background": true});
        let wait = json!({"action": "wait", "timeout_s": 600});
        ScriptedStream::new().tool_call("c1", "shell", &start).tool_call("c2", "process", &wait).into()
    },
    |marker| ScriptedResponse::tool_call("c1", "test__fork", &json!({"text": marker.as_str()})),
    |marker| {
        let prompt = format!("help marker:below-{}", marker.as_str());
        ScriptedResponse::tool_call("c1", "spawn_agent", &json!({"agent": "scout", "prompt": prompt}))
    },
    |_| ScriptedResponse::silent_mid_stream("I think"),
    |_| ScriptedResponse::tokens_forever(Duration::from_millis(1)),
];

fn kill_test_config(model: &ScriptedModel) -> String {
    let script: Value = json!(mcp::SERVER_SCRIPT);
    format!(
        "{}[mcp.test]\ncommand = \"sh\"\nargs = [\"-c\", {script}]\n\
         [agents.main]\nmodel = \"scripted/m\"\n[agents.scout]\nmodel = \"scripted/m\"\nparent = \"main\"\nmcp = []\n",
        provider_toml(model)
    )
}
