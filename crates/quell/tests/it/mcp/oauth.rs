//! A server by URL that asks for a sign-in by OAuth: `quell mcp login`, tokens that are refreshed, clear refusals.

use std::os::unix::fs::PermissionsExt;

use quell_testkit::mcp::FakeMcpServer;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::*;
use crate::npm_packages::program_command;

/// An hour, so that no token is refreshed by itself.
const LONG_LIFETIME_S: u64 = 3600;

fn oauth_config(server: &FakeMcpServer) -> McpConfig {
    McpConfig { url: Some(server.url()), oauth: true, ..McpConfig::default() }
}

async fn start_engine(server: &FakeMcpServer) -> TestEngine {
    let server = oauth_config(server);
    TestEngine::start_with(ProcessLock::shared().await, |config| {
        config.mcp.insert("far".to_owned(), server);
    })
    .await
}

/// Signs in with the program, as a person with a browser does.
async fn sign_in(server: &FakeMcpServer, data_dir: &Path) -> String {
    let config = data_dir.join("sign-in.toml");
    std::fs::write(&config, format!("[mcp.far]\nurl = {:?}\noauth = true\n", server.url())).unwrap();
    let mut program = program_command(env!("CARGO_BIN_EXE_quell"));
    program.args(["mcp", "login", "far", "--config"]).arg(&config).env("QUELL_HOME", data_dir);
    let mut child = program.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut printed = String::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        printed.push_str(&line);
        if let Some(url) = line.trim().strip_prefix("http").map(|rest| format!("http{rest}")) {
            // Follows the redirect to the listener of the program.
            let page = reqwest::Client::builder().no_proxy().build().unwrap().get(url).send().await.unwrap();
            assert_eq!(page.text().await.unwrap(), "Signed in. You can close this page.");
        }
    }
    assert!(child.wait().await.unwrap().success(), "{printed}");
    printed
}

async fn call_echo(test: &TestEngine) -> String {
    test.model.script(ScriptedResponse::tool_call("c1", "far__echo", &json!({"text": "hello"})));
    test.model.script(ScriptedResponse::text("fine"));
    assert_eq!(test.run_message("s", "do it").await.output.as_deref(), Some("fine"));
    last_result(test)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_opens_the_server_and_its_token_is_for_the_owner_alone() {
    let server = FakeMcpServer::start_with_sign_in(LONG_LIFETIME_S).await;
    let test = start_engine(&server).await;
    let before = call_echo(&test).await;
    assert!(before.contains("nobody has signed in"), "{before}");
    let printed = sign_in(&server, test.test_dir.path()).await;
    assert!(printed.contains("signed in at the MCP server far"), "{printed}");
    let file = test.test_dir.path().join("mcp-tokens/far.json");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    // The next session does not wait for the pause after the failed start.
    assert_eq!(call_echo(&test).await, "hello");
    assert_eq!(server.grants(), ["authorization_code"]);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_expires_is_refreshed_and_a_refused_refresh_asks_for_a_sign_in() {
    let server = FakeMcpServer::start_with_sign_in(1).await;
    let test = start_engine(&server).await;
    sign_in(&server, test.test_dir.path()).await;
    assert_eq!(call_echo(&test).await, "hello");
    let grants = server.grants();
    assert!(grants.len() > 1 && grants[1..].iter().all(|grant| grant == "refresh_token"), "{grants:?}");
    server.refuse_refresh();
    let refused = call_echo(&test).await;
    assert!(refused.contains("its sign-in is no longer valid"), "{refused}");
    test.close().await;
}
