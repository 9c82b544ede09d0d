//! Servers that people use: filesystem and memory from npm, and one written with FastMCP, on pipes and over HTTP.

use std::process::Stdio;

use quell_test_support::npm_packages;
use quell_testkit::skip::is_switched_off;
use tokio::net::TcpListener;
use tokio::process::Child;

use super::official_server::{SERVER_PACKAGES, call_tool, start_engine};
use super::*;

const MISSING_FASTMCP_HELP: &str = "this test needs FastMCP below target/tools: `cargo xtask test --full mcp` installs it, or leave it out with \
    QUELL_SKIP_FASTMCP=1";

fn npm_program(folder: &Path, package: &str) -> String {
    folder.join("node_modules/@modelcontextprotocol").join(package).join("dist/index.js").display().to_string()
}

/// An engine with this server of npm; `None` where tests with packages of npm are skipped.
async fn start_npm_server(package: &str, change: impl FnOnce(&mut McpConfig)) -> Option<TestEngine> {
    if npm_packages::is_skipped() {
        return None;
    }
    let folder = npm_packages::install_packages(&SERVER_PACKAGES).await;
    let mut server = McpConfig {
        command: Some("node".to_owned()),
        args: vec![npm_program(&folder, package)],
        ..McpConfig::default()
    };
    change(&mut server);
    Some(start_engine(server, &[folder]).await)
}

#[derive(Debug, Clone, Copy)]
pub(super) enum ServerTransport {
    Pipes,
    Http,
}

/// A FastMCP server: a child of the engine, or of the test.
pub(super) struct FastMcp {
    pub(super) test: TestEngine,
    marker: ProcessMarker,
    _process: Option<Child>,
}

impl FastMcp {
    /// `None` where tests with FastMCP are skipped.
    pub(super) async fn start(transport: ServerTransport) -> Option<Self> {
        if is_switched_off("QUELL_SKIP_FASTMCP") {
            return None;
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        // Not by the link below target, which no sandbox shows if the repository is below /tmp.
        let tools = root.join("../../target/tools/fastmcp").canonicalize().expect(MISSING_FASTMCP_HELP);
        let script = root.join("tests/clients/mcp/python/server.py");
        let python = tools.join("bin/python").display().to_string();
        let (marker, script) = (ProcessMarker::new(), script.display().to_string());
        let (server, process) = match transport {
            ServerTransport::Pipes => {
                let env = [("MCP_MARK".to_owned(), marker.as_str().to_owned())];
                let (args, env) = (vec![script], env.into_iter().collect());
                // Python takes seconds to start on a busy machine.
                let start_timeout_s = Some(60);
                (McpConfig { command: Some(python), args, env, start_timeout_s, ..McpConfig::default() }, None)
            }
            ServerTransport::Http => {
                let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
                let mut program = npm_packages::program_command(&python);
                program.args([&script, &port.to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
                let process = program.spawn().unwrap();
                let listens = async || std::net::TcpStream::connect(("127.0.0.1", port)).ok();
                poll_until("the server's port", listens).await;
                let url = Some(format!("http://127.0.0.1:{port}/mcp"));
                (McpConfig { url, ..McpConfig::default() }, Some(process))
            }
        };
        let test = start_engine(server, &[tools, root.to_owned()]).await;
        Some(Self { test, marker, _process: process })
    }

    /// Stops a run in this tool, whose call is at work by then. Prints how long the run took to end, and where the time went.
    async fn stop_inside(&self, tool: &str) -> RunView {
        self.test.model.script(ScriptedResponse::tool_call("slow", format!("all__{tool}"), &json!({"seconds": 60})));
        let run = self.test.send(submission("s", "take your time")).await;
        self.test.wait_printed(&run, "progress: 1 of 2").await;
        let mut watcher = NoticeRecorder::subscribe(&self.test.engine);
        let asked = Instant::now();
        self.test.stop(&run);
        watcher.wait_ended(&run).await;
        let took = asked.elapsed();
        let view = self.test.wait_ended(&run).await;
        let ms = |at: Option<&quell_protocol::Instant>| at.and_then(|at| at.ms).unwrap_or(f64::NAN);
        let receipt = receipt_of(&view);
        eprintln!(
            "stop of a FastMCP call of {tool} -> run.ended: {:.1} ms; the stop was delivered after {:.1} ms, the server has \
             answered the ping or the cancel after {:.1} ms, all was released after {:.1} ms",
            took.as_secs_f64() * 1000.0,
            ms(receipt.delivered_at.as_ref()),
            ms(call_row(&view).released_at.as_ref()),
            ms(Some(&receipt.settled_at)),
        );
        view
    }

    pub(super) async fn close(self) {
        self.test.close().await;
        self.marker.wait_gone(WAIT_TIMEOUT).await;
    }
}

#[rstest]
#[case::pipes(ServerTransport::Pipes)]
#[case::http(ServerTransport::Http)]
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_inside_fastmcp_names_the_call_and_keeps_the_server(#[case] transport: ServerTransport) {
    let Some(fast) = FastMcp::start(transport).await else { return };
    assert_eq!(call_tool(&fast.test, "add", json!({"a": 2, "b": 3})).await, "5");
    for tool in ["nap", "spin"] {
        let view = fast.stop_inside(tool).await;
        let row = call_row(&view);
        assert_eq!((row.how.as_str(), row.label.as_str()), ("unconfirmed", format!("all: {tool}").as_str()));
        assert!(receipt_of(&view).leftovers.is_empty() && receipt_of(&view).rung == Rung::Cancel, "{view:#?}");
        // What may go on there is named to the model, too.
        assert_eq!(call_tool(&fast.test, "add", json!({"a": 2, "b": 3})).await, "5");
        let shown = messages_as_text(&fast.test.last_messages());
        assert!(shown.contains("[Stopped while it ran: the MCP server all was told to cancel it."), "{shown}");
    }
    assert_eq!(fast.test.engine.mcp().count_live(), 1, "the connection was not kept");
    fast.close().await;
}

/// Neither call answers before the other one is there.
#[rstest]
#[case::pipes(ServerTransport::Pipes)]
#[case::http(ServerTransport::Http)]
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_fastmcp_marks_read_only_run_at_the_same_time(#[case] transport: ServerTransport) {
    let Some(fast) = FastMcp::start(transport).await else { return };
    call_tool(&fast.test, "add", json!({"a": 2, "b": 3})).await;
    let calls = ScriptedStream::new().tool_call("c1", "all__meet", &json!({})).tool_call("c2", "all__meet", &json!({}));
    fast.test.model.script(calls).script(ScriptedResponse::text("Both have met."));
    let view = fast.test.run_message("s", "meet").await;
    assert_eq!(view.output.as_deref(), Some("Both have met."), "{view:#?}");
    let results = messages_as_text(&fast.test.last_messages());
    assert_eq!(results.matches("\"met\"").count(), 2, "{results}");
    fast.close().await;
}

#[rstest]
#[case::pipes(ServerTransport::Pipes)]
#[case::http(ServerTransport::Http)]
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_fastmcp_adds_is_offered_to_the_next_model_call(#[case] transport: ServerTransport) {
    let Some(fast) = FastMcp::start(transport).await else { return };
    call_tool(&fast.test, "grow", json!({})).await;
    assert_eq!(call_tool(&fast.test, "grown", json!({})).await, "here");
    let offered = fast.test.model.recorded_requests().pop().unwrap().body["tools"].to_string();
    assert!(offered.contains("all__grown"), "{offered}");
    fast.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_filesystem_server_works_in_the_workdir() {
    // It is started in the workdir.
    let Some(test) = start_npm_server("server-filesystem", |server| server.args.push(".".to_owned())).await else {
        return;
    };
    let wrote = call_tool(&test, "write_file", json!({"path": "a.txt", "content": "hello"})).await;
    assert!(wrote.contains("Successfully wrote"), "{wrote}");
    assert_eq!(std::fs::read_to_string(test.workdir().join("a.txt")).unwrap(), "hello");
    let read = |stream: ScriptedStream, id| stream.tool_call(id, "all__read_text_file", &json!({"path": "a.txt"}));
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    test.model.script(read(read(ScriptedStream::new(), "c1"), "c2")).script(ScriptedResponse::text("Read."));
    let view = test.run_message("s", "read it twice").await;
    let outputs: Vec<String> = watcher.call_ends(&view.run_id).into_iter().map(|(_, output)| output).collect();
    assert_eq!(outputs, ["hello", "hello"]);
    let outside = call_tool(&test, "read_text_file", json!({"path": "/etc/hostname"})).await;
    assert!(outside.contains("Access denied"), "{outside}");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_server_remembers_from_run_to_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("memory.jsonl");
    let Some(test) = start_npm_server("server-memory", |server| {
        server.env.insert("MEMORY_FILE_PATH".to_owned(), file.display().to_string());
        // Its file lies outside of the workdir.
        server.sandbox = Some(SandboxMode::Off);
    })
    .await
    else {
        return;
    };
    let entity = json!({"name": "Ada", "entityType": "person", "observations": ["likes tea"]});
    call_tool(&test, "create_entities", json!({"entities": [entity]})).await;
    let found = call_tool(&test, "search_nodes", json!({"query": "tea"})).await;
    assert!(found.contains("Ada"), "{found}");
    assert!(std::fs::read_to_string(&file).unwrap().contains("likes tea"));
    test.close().await;
}
