//! The Unix socket in the data directory: who may use it, for what, and as whom.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use quell_testkit::daemon::{Daemon, Home};
use quell_testkit::model::Behaviour;
use reqwest::{Client, Method, Response};
use rstest::rstest;
use serde_json::{Value, json};

use super::{Site, verb};
use crate::cli::exe;

/// A client of the socket that shows no token.
fn client(home: &Home) -> Client {
    // The provider that clients need.
    drop(quell_testkit::daemon::client());
    Client::builder().unix_socket(home.data().join("quell.sock")).pool_max_idle_per_host(0).build().unwrap()
}

async fn ask(client: &Client, method: Method, path: &str) -> Response {
    client.request(method, format!("http://localhost{path}")).json(&json!({})).send().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_needs_no_token_at_the_socket() {
    let site = Site::open().await;
    let client = client(site.daemon.home());
    let stopped = ask(&client, Method::POST, &format!("/api/runs/{}/stop?wait=1", site.run)).await;
    assert_eq!(stopped.status(), 200);
    let receipt: Value = serde_json::from_str(&stopped.text().await.unwrap()).unwrap();
    assert_eq!(receipt["verdict"]["by"]["principal"], "admin", "{receipt:#}");
    site.assert_stopped().await;
    for path in ["/api/stop", "/api/sessions/s/stop", "/api/agent/main/abort"] {
        assert_eq!(ask(&client, Method::POST, path).await.status(), 200, "{path}");
    }
    let audit = site.daemon.http().get("/api/audit").await.expect_status(200);
    let from = format!("quell.sock, pid {}", std::process::id());
    let rows = audit["items"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["action"] == "stop" && row["from"] == json!(from)), "{audit:#}");
}

#[rstest]
#[case(Method::GET, "/api/runs")]
#[case(Method::POST, "/api/sessions/s/runs")]
#[case(Method::PUT, "/api/hold")]
#[case(Method::DELETE, "/api/hold")]
#[case(Method::POST, "/api/sign-in-link")]
#[case(Method::POST, "/api/tokens")]
#[case(Method::GET, "/metrics")]
#[case(Method::DELETE, "/api/sessions/s")]
#[case(Method::POST, "/api/sessions/s/reset")]
#[tokio::test(flavor = "multi_thread")]
async fn everything_else_needs_one_there_too(#[case] method: Method, #[case] path: &str) {
    let daemon = Daemon::start(exe(), "").await;
    let client = client(daemon.home());
    assert_eq!(ask(&client, method.clone(), path).await.status(), 401);
    let shown = client.request(Method::GET, "http://localhost/api/runs").bearer_auth(daemon.token());
    assert_eq!(shown.send().await.unwrap().status(), 200);
    let stop = daemon.http().with_token("").post("/api/stop", &json!({})).await;
    assert_eq!(stop.status, 401, "over TCP a stop needs a token as ever");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_of_an_agent_is_refused_at_the_socket() {
    let site = Site::open().await;
    let (data, exe) = (site.daemon.home().data(), exe().display().to_string());
    let command = format!("QUELL_HOME='{}' '{exe}' stop --all 2>&1; echo \"code $?\"", data.display());
    site.model.script(Behaviour::tool_call("c1", "shell", &json!({"command": command})));
    site.model.script(Behaviour::text("It did not work."));
    let body = json!({"text": "stop them"});
    let run = site.daemon.http().post("/api/sessions/other/runs", &body).await.expect_status(202);
    let run = run["runId"].as_str().unwrap();
    let log = site.daemon.http().events(run, 0).await.to_end().await;
    assert_eq!(log.verdict(), "completed", "{log:?}");
    let told = site.model.seen().last().unwrap().messages().last().unwrap().to_string();
    assert!(told.contains("not for what the daemon has started itself") && told.contains("code 1"), "{told}");
    let other = site.daemon.http().get(&format!("/api/runs/{}", site.run)).await.expect_status(200);
    assert_eq!(other["state"], "running", "{other:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_goes_by_the_socket_first() {
    let site = Site::open().await;
    let home = site.daemon.home();
    let socket = home.data().join("quell.sock");
    let found = std::fs::metadata(&socket).unwrap();
    assert_eq!((found.permissions().mode() & 0o777, found.uid()), (0o600, rustix::process::geteuid().as_raw()));
    // The address leads nowhere, and is not needed.
    std::fs::write(home.data().join("address"), "127.0.0.1:1\n").unwrap();
    assert_eq!(verb(home, &["runs"]).await.code, 0);
    std::fs::remove_file(home.data().join("token")).unwrap();
    let refused = verb(home, &["runs"]).await;
    assert!(refused.code == 1 && refused.err.contains("no token"), "{refused:?}");
    let stopped = verb(home, &["stop", "--all"]).await;
    assert_eq!(stopped.code, 0, "{stopped:?}");
    site.assert_stopped().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_socket_of_a_killed_daemon_is_replaced() {
    let first = Daemon::start(exe(), "").await;
    first.kill9().await;
    let socket = first.home().data().join("quell.sock");
    assert!(socket.exists(), "nobody was left to remove it");
    let gone = verb(first.home(), &["stop", "--all"]).await;
    assert_eq!(gone.code, 4, "{gone:?}");
    let second = first.home().start(exe()).await;
    assert_eq!(verb(second.home(), &["stop", "--all"]).await.code, 0);
    assert!(second.stop().await.success());
    assert!(!socket.exists(), "it outlived its daemon");
}
