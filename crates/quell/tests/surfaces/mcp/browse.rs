//! Resources and prompts for people: over HTTP, in chats and on the command line; a stop ends what waits.

use quell_testkit::networks::telegram::{FakeTelegram, TOKEN, TelegramTestUser};

use super::*;

const ANN: TelegramTestUser = TelegramTestUser { id: 77, name: "ann" };
/// A private chat has the id of its user.
const CHAT: i64 = 77;

/// A daemon with the MCP server `test`.
struct BrowseFixture {
    _lock: ProcessLock,
    model: ScriptedModel,
    daemon: TestDaemon,
    marker: ProcessMarker,
    folder: tempfile::TempDir,
}

impl BrowseFixture {
    /// Starts with more sections of the configuration.
    async fn start_with(more: &str) -> Self {
        let lock = ProcessLock::shared().await;
        let (marker, folder) = (ProcessMarker::new(), tempfile::tempdir().unwrap());
        let log = folder.path().join("log");
        let env = format!("MCP_LOG = {log:?}, MCP_MARK = {:?}", marker.as_str());
        let model = ScriptedModel::start().await;
        let config = config_toml(&model, &format!("{}{more}", config_section(folder.path(), &env)));
        let daemon = DaemonHome::new(&config).with_env("TOKEN", TOKEN).start(quell_exe()).await;
        Self { _lock: lock, model, daemon, marker, folder }
    }

    /// Starts a request for a prompt that the server never answers.
    async fn start_hanging_request(&self) -> tokio::task::JoinHandle<TestApiResponse> {
        let api = self.daemon.api();
        let asking = tokio::spawn(async move { api.post("/api/mcp/test/prompt", &json!({"name": "hang"})).await });
        self.wait_hanging(1).await;
        asking
    }

    /// Waits until the server has received this many requests for a prompt.
    async fn wait_hanging(&self, count: usize) {
        let log = self.folder.path().join("log");
        let asked = async || (mcp::received_messages_of(&log, "prompts/get").len() >= count).then_some(());
        poll_until("a request for a prompt", asked).await;
    }
}

fn telegram_section(telegram: &FakeTelegram) -> String {
    let base = telegram.base_url();
    format!(
        "[channels.telegram]\nkind = \"telegram\"\napi_base = \"{base}\"\ntoken_env = \"TOKEN\"\nallow = [\"77\"]\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_everything_ends_a_person_s_request_and_its_server() {
    let fixture = BrowseFixture::start_with("").await;
    let asking = fixture.start_hanging_request().await;
    fixture.daemon.api().post("/api/stop", &json!({"hold": true})).await.expect_status(200);
    let answer = asking.await.unwrap();
    assert_problem(&answer, 502, "mcp_unavailable");
    assert!(answer.body["detail"].as_str().unwrap().contains("stopped"), "{:#}", answer.body);
    fixture.marker.wait_gone(WAIT_TIMEOUT).await;
    // Nothing is started for a person while runs are held.
    let listed = fixture.daemon.api().get("/api/mcp/prompts").await.expect_status(200);
    let problem = listed["unavailable"][0]["problem"].as_str().unwrap();
    assert!(listed["items"] == json!([]) && problem.contains("on hold"), "{listed:#}");
    let refused = fixture.daemon.api().post("/api/mcp/test/prompt", &json!({"name": "greet"})).await;
    assert_problem(&refused, 503, "held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_who_leaves_ends_the_server_at_work_for_them() {
    let fixture = BrowseFixture::start_with("").await;
    let asking = fixture.start_hanging_request().await;
    asking.abort();
    fixture.marker.wait_gone(WAIT_TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_does_not_wait_for_a_person_s_request() {
    let fixture = BrowseFixture::start_with("").await;
    let asking = fixture.start_hanging_request().await;
    assert!(fixture.daemon.stop().await.success());
    asking.abort();
    fixture.marker.wait_gone(WAIT_TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_sends_a_prompt_and_a_resource_as_its_message() {
    let telegram = FakeTelegram::start().await;
    let fixture = BrowseFixture::start_with(&telegram_section(&telegram)).await;
    let says = async |text: &str, answer: &str| {
        telegram.post_message(CHAT, ANN, text);
        telegram.wait_for(answer, |it| it.bot_texts(CHAT).iter().any(|shown| shown.contains(answer))).await;
    };
    says("/prompts", "test greet who= [when=] - Greets.").await;
    says("/resources", "test note://today - The note of today.").await;
    let last_message = || {
        let request = fixture.model.recorded_requests().pop().unwrap();
        messages_as_text(request.body["messages"].as_array().unwrap())
    };
    fixture.model.script(ScriptedResponse::text("Hello, Ada."));
    says("/prompt test greet who=Ada", "Hello, Ada.").await;
    assert!(last_message().contains("Greet Ada."), "{}", last_message());
    fixture.model.script(ScriptedResponse::text("The milk."));
    says("/resource test note://today What is urgent?", "The milk.").await;
    let sent = last_message();
    assert!(sent.contains("Buy milk.") && sent.contains("What is urgent?"), "{sent}");
    says("/prompt nowhere greet", "there is no MCP server").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_in_a_chat_ends_a_prompt_before_it_is_a_message() {
    let telegram = FakeTelegram::start().await;
    let fixture = BrowseFixture::start_with(&telegram_section(&telegram)).await;
    telegram.post_message(CHAT, ANN, "/prompt test hang");
    fixture.wait_hanging(1).await;
    telegram.post_message(CHAT, ANN, "/stop");
    let stopped = "The command has changed nothing.";
    telegram.wait_for(stopped, |it| it.bot_texts(CHAT).iter().any(|shown| shown.contains(stopped))).await;
    fixture.marker.wait_gone(WAIT_TIMEOUT).await;
    assert!(fixture.model.recorded_requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_shows_prompts_and_resources() {
    let fixture = BrowseFixture::start_with("").await;
    let quell = |args: &[&str]| run_cli(fixture.daemon.home(), args);
    let shown = |args: &[&str]| {
        let ended = quell(args);
        assert_eq!(ended.code, 0, "{args:?}: {}{}", ended.out, ended.err);
        ended.out
    };
    assert_eq!(shown(&["mcp", "prompts", "test"]), "greet who= [when=]  Greets.\nhang  \n");
    assert_eq!(shown(&["mcp", "prompts", "test", "greet", "who=Ada"]), "Greet Ada.\n");
    let listed: Value = serde_json::from_str(&shown(&["mcp", "resources", "test", "--json"])).unwrap();
    assert_eq!(listed[0]["id"], "note://today");
    assert!(shown(&["mcp", "resources", "test", "note://today"]).ends_with("Buy milk.\n"));
    let unknown = quell(&["mcp", "prompts", "none"]);
    assert!(unknown.code != 0 && unknown.err.contains("there is no [mcp.none]"), "{}", unknown.err);
    fixture.marker.wait_gone(WAIT_TIMEOUT).await;
}
