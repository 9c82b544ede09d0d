//! A server by URL that asks for a sign-in by OAuth: `quell mcp login`, tokens that are refreshed, clear refusals.

use std::os::unix::fs::PermissionsExt;

use quell_test_support::npm_packages::program_command;
use quell_testkit::mcp::FakeMcpServer;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::*;

/// An hour, so that no token is refreshed by itself.
const LONG_LIFETIME_S: u64 = 3600;
/// The secret of a client that is registered by hand.
const SECRET: &str = "hush";

fn oauth_config(server: &FakeMcpServer) -> McpConfig {
    McpConfig { url: Some(server.url()), oauth: true, ..McpConfig::default() }
}

async fn start_engine(server: &FakeMcpServer) -> TestEngine {
    start_engine_with(oauth_config(server)).await
}

async fn start_engine_with(server: McpConfig) -> TestEngine {
    TestEngine::start_with(ProcessLock::shared().await, |config| {
        config.mcp.insert("far".to_owned(), server);
    })
    .await
}

/// The command `quell mcp VERB far` with this configuration of the server.
fn mcp_command(server: &FakeMcpServer, data_dir: &Path, verb: &str, keys: &str) -> tokio::process::Command {
    let config = data_dir.join("sign-in.toml");
    std::fs::write(&config, format!("[mcp.far]\nurl = {:?}\noauth = true\n{keys}", server.url())).unwrap();
    let mut program = program_command(quell_exe().to_str().unwrap());
    program.args(["mcp", verb, "far", "--config"]).arg(&config).env("QUELL_HOME", data_dir).env("FAR_SECRET", SECRET);
    program
}

/// Signs in with the program, as a person with a browser does.
async fn sign_in(server: &FakeMcpServer, data_dir: &Path) -> String {
    sign_in_with(server, data_dir, "").await
}

async fn sign_in_with(server: &FakeMcpServer, data_dir: &Path, keys: &str) -> String {
    let mut program = mcp_command(server, data_dir, "login", keys);
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

/// A server whose tokens live long, and an engine that has signed in there and called it once.
async fn start_signed_in() -> (FakeMcpServer, TestEngine) {
    let server = FakeMcpServer::start_with_sign_in(LONG_LIFETIME_S).await;
    let test = start_engine(&server).await;
    sign_in(&server, test.test_dir.path()).await;
    assert_eq!(call_echo(&test).await, "hello");
    (server, test)
}

/// Starts a run whose call needs a refresh. The refresh token is replaced, and the answer held back.
async fn start_held_refresh(server: &FakeMcpServer, test: &TestEngine) -> RunId {
    server.revoke_token();
    server.hold_token_answers();
    test.model.script(ScriptedResponse::tool_call("c2", "far__echo", &json!({"text": "hello"})));
    let run = test.send(submission("s", "do it")).await;
    server.wait_grants(2).await;
    run
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

/// A server that refuses the token before its end, as after a restart of its authorization server.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_refused_in_use_is_replaced_and_the_call_repeated() {
    let (server, test) = start_signed_in().await;
    server.revoke_token();
    assert_eq!(call_echo(&test).await, "hello");
    assert_eq!(server.grants(), ["authorization_code", "refresh_token"]);
    assert_eq!(server.received_count("initialize"), 1, "the connection was not kept");
    // Nobody can help where the refresh token is refused, too.
    server.revoke_token();
    server.refuse_refresh();
    let refused = call_echo(&test).await;
    assert!(refused.contains("its sign-in is no longer valid"), "{refused}");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_closed_with_the_token_that_replaced_its_first_one() {
    let (server, test) = start_signed_in().await;
    server.revoke_token();
    assert_eq!(call_echo(&test).await, "hello");
    test.close().await;
    assert_eq!(server.authorizations_of("DELETE"), [Some("Bearer token-2".to_owned())]);
}

/// Without published data, the server itself would be taken for the authorization server of the tokens.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hides_its_metadata_gets_no_refresh_token() {
    let (server, test) = start_signed_in().await;
    server.hide_metadata();
    server.revoke_token();
    let refused = call_echo(&test).await;
    assert!(refused.contains("it publishes no usable data about its sign-in"), "{refused}");
    assert_eq!(server.grants(), ["authorization_code"]);
    let stored = std::fs::read_to_string(test.test_dir.path().join("mcp-tokens/far.json")).unwrap();
    assert!(stored.contains("refresh-1"), "the tokens were lost");
    test.close().await;
}

/// The authorization server has replaced the refresh token when the stop comes, and its answer is on the way.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_in_a_refresh_does_not_lose_the_new_tokens() {
    let (server, test) = start_signed_in().await;
    let run = start_held_refresh(&server, &test).await;
    let view = test.stop_and_wait(&run).await;
    assert!(receipt_of(&view).leftovers.is_empty(), "{view:#?}");
    server.release_token_answers();
    let file = test.test_dir.path().join("mcp-tokens/far.json");
    let is_stored = async || std::fs::read_to_string(&file).unwrap().contains("refresh-2").then_some(());
    poll_until("the new tokens", is_stored).await;
    assert_eq!(call_echo(&test).await, "hello");
    assert_eq!(server.grants(), ["authorization_code", "refresh_token"]);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_out_waits_for_a_refresh_and_its_tokens_go_too() {
    let (server, test) = start_signed_in().await;
    let run = start_held_refresh(&server, &test).await;
    test.model.script(ScriptedResponse::text("fine"));
    let mut sign_out = mcp_command(&server, test.test_dir.path(), "logout", "").spawn().unwrap();
    server.release_token_answers();
    assert!(sign_out.wait().await.unwrap().success());
    test.wait_ended(&run).await;
    assert!(!test.test_dir.path().join("mcp-tokens/far.json").exists(), "the refresh brought the tokens back");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_registered_by_hand_signs_in_and_refreshes() {
    let server = FakeMcpServer::start_with_sign_in(1).await;
    let client_id = server.require_client(SECRET);
    let (client, secret) = (Some(client_id.to_owned()), Some(SECRET.to_owned().into()));
    let config = McpConfig { oauth_client_id: client, oauth_client_secret: secret, ..oauth_config(&server) };
    let test = start_engine_with(config).await;
    let without = mcp_command(&server, test.test_dir.path(), "login", "").output().await.unwrap();
    let told = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(!without.status.success() && told.contains("`oauth_client_id`"), "{told}");
    let keys = format!("oauth_client_id = {client_id:?}\noauth_client_secret_env = \"FAR_SECRET\"\n");
    sign_in_with(&server, test.test_dir.path(), &keys).await;
    assert_eq!(call_echo(&test).await, "hello");
    let grants = server.grants();
    assert!(grants.len() > 1 && grants[1..].iter().all(|grant| grant == "refresh_token"), "{grants:?}");
    test.close().await;
}

/// What a server says about its sign-in must not lead Quell into the network of the operator.
#[tokio::test(flavor = "multi_thread")]
async fn an_authorization_server_at_a_private_address_is_not_asked() {
    let server = FakeMcpServer::start_with_sign_in(LONG_LIFETIME_S).await;
    server.name_authorization_server("http://10.255.255.1:9");
    let folder = tempfile::tempdir().unwrap();
    let refused = mcp_command(&server, folder.path(), "login", "").output().await.unwrap();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("`oauth_private_addresses = true`"), "{told}");
}
