//! The Unix socket in the data directory: who may use it, for what, and as whom.

use reqwest::{Client, Method, Response};

use super::*;
use crate::test_engine::shell_call;

/// A client of the socket that sends no token.
fn socket_client(home: &DaemonHome) -> Client {
    // Installs the TLS provider that reqwest needs.
    drop(quell_testkit::daemon::http_client());
    let builder = Client::builder().tls_certs_only([]).unix_socket(home.data_dir().join("quell.sock"));
    builder.pool_max_idle_per_host(0).build().unwrap()
}

async fn send_request(client: &Client, method: Method, path: &str) -> Response {
    client.request(method, format!("http://localhost{path}")).json(&json!({})).send().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_needs_no_token_at_the_socket() {
    let fixture = EndlessRunDaemon::start().await;
    let client = socket_client(fixture.daemon.home());
    let stopped = send_request(&client, Method::POST, &format!("/api/runs/{}/stop?wait=1", fixture.run)).await;
    assert_eq!(stopped.status(), 200);
    let receipt: Value = serde_json::from_str(&stopped.text().await.unwrap()).unwrap();
    assert_eq!(receipt["verdict"]["by"]["principal"], "admin", "{receipt:#}");
    fixture.assert_stopped().await;
    for path in ["/api/stop", "/api/sessions/s/stop", "/api/agent/main/abort"] {
        assert_eq!(send_request(&client, Method::POST, path).await.status(), 200, "{path}");
    }
    let audit = fixture.daemon.api().get("/api/audit").await.expect_status(200);
    let from = format!("quell.sock, pid {}", std::process::id());
    let rows = audit["items"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["action"] == "stop" && row["from"] == json!(from)), "{audit:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_else_needs_one_there_too() {
    let daemon = TestDaemon::start(quell_exe(), "").await;
    let client = socket_client(daemon.home());
    for (method, path) in [
        (Method::GET, "/api/runs"),
        (Method::POST, "/api/sessions/s/runs"),
        (Method::PUT, "/api/hold"),
        (Method::DELETE, "/api/hold"),
        (Method::POST, "/api/sign-in-link"),
        (Method::POST, "/api/tokens"),
        (Method::GET, "/metrics"),
        (Method::DELETE, "/api/sessions/s"),
        (Method::POST, "/api/sessions/s/reset"),
    ] {
        assert_eq!(send_request(&client, method.clone(), path).await.status(), 401, "{method} {path}");
    }
    let shown = client.request(Method::GET, "http://localhost/api/runs").bearer_auth(daemon.token());
    assert_eq!(shown.send().await.unwrap().status(), 200);
    let stop = daemon.api().with_token("").post("/api/stop", &json!({})).await;
    assert_eq!(stop.status, 401, "over TCP a stop still needs a token");
}

/// In a mount namespace a command does not see the socket. Landlock alone does not hide it (ABI 7), but the daemon knows
/// the descendants of its wardens.
#[rstest]
#[case::unseen("", "no daemon answers")]
#[case::refused("isolate = \"none\"\n", "processes that the daemon has started may not use this socket")]
#[tokio::test(flavor = "multi_thread")]
async fn a_command_of_an_agent_is_refused_at_the_socket(#[case] agent: &str, #[case] why: &str) {
    // A checkout in /tmp is hidden.
    let agent = format!("{agent}readable = [{:?}]\n", quell_exe().canonicalize().unwrap());
    let fixture = EndlessRunDaemon::start_with_agent("", &agent).await;
    let (data, exe) = (fixture.daemon.home().data_dir(), quell_exe().display().to_string());
    let command = format!("QUELL_HOME='{}' '{exe}' stop --all 2>&1; echo \"code $?\"", data.display());
    fixture.model.script(shell_call(command)).script(ScriptedResponse::text("It did not work."));
    let run = fixture.daemon.api().send_message("other", "stop them").await;
    let log = fixture.daemon.api().run_events(&run, 0).await.read_to_end().await;
    assert_eq!(log.verdict(), "completed", "{log:?}");
    let result = fixture.model.recorded_requests().last().unwrap().messages().last().unwrap().to_string();
    assert!(result.contains(why) && result.contains("ncode ") && !result.contains("ncode 0"), "{result}");
    let other = fixture.daemon.api().run_view(&fixture.run).await;
    assert_eq!(other["state"], "running", "{other:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_goes_by_the_socket_first() {
    let fixture = EndlessRunDaemon::start().await;
    let home = fixture.daemon.home();
    let socket = home.data_dir().join("quell.sock");
    let found = std::fs::metadata(&socket).unwrap();
    assert_eq!((found.permissions().mode() & 0o777, found.uid()), (0o600, rustix::process::geteuid().as_raw()));
    // The address file is wrong, and is not needed.
    std::fs::write(home.data_dir().join("address"), "127.0.0.1:1\n").unwrap();
    assert_eq!(run_cli(home, &["runs"]).await.code, 0);
    std::fs::remove_file(home.data_dir().join("token")).unwrap();
    let refused = run_cli(home, &["runs"]).await;
    assert!(refused.code == 1 && refused.err.contains("no token"), "{refused:?}");
    let stopped = run_cli(home, &["stop", "--all"]).await;
    assert_eq!(stopped.code, 0, "{stopped:?}");
    fixture.assert_stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_socket_of_a_killed_daemon_is_replaced() {
    let first = TestDaemon::start(quell_exe(), "").await;
    first.kill9().await;
    let socket = first.home().data_dir().join("quell.sock");
    assert!(socket.exists(), "a killed daemon cannot remove its socket");
    let gone = run_cli(first.home(), &["stop", "--all"]).await;
    assert_eq!(gone.code, 4, "{gone:?}");
    let second = first.home().start(quell_exe()).await;
    assert_eq!(run_cli(second.home(), &["stop", "--all"]).await.code, 0);
    assert!(second.stop().await.success());
    assert!(!socket.exists(), "the socket outlived its daemon");
}
