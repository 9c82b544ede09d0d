//! MCP servers: a small one of our own that misbehaves, and the official test server.

mod everything;
mod http;
mod late;
mod latency;
mod lives;
mod pictures;
mod shared;
mod stops;
mod trouble;
mod uses;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use quell_engine::mcp::McpConfig;
use quell_protocol::api::RunView;
use quell_protocol::{Resource, ResourceKind, RunId};
use quell_testkit::commands::Marker;
use quell_testkit::{Behaviour, leaks, mcp};
use serde_json::{Value, json};

use crate::harness::{Claim, House, PATIENCE, flat, message, receipt};

/// A house whose agents have the server `test`.
struct Scene {
    house: House,
    mark: Marker,
    log: PathBuf,
}

impl Scene {
    async fn open() -> Self {
        Self::with(|_| {}).await
    }

    /// A house whose server's section is changed before it starts.
    async fn with(change: impl FnOnce(&mut McpConfig)) -> Self {
        let (mark, folder) = (Marker::new(), tempfile::tempdir().unwrap().keep());
        let log = folder.join("log");
        let mut server = own_server(&mark, &log);
        change(&mut server);
        let house = House::with(Claim::shared().await, |config| {
            config.mcp.insert("test".to_owned(), server);
        })
        .await;
        Self { house, mark, log }
    }

    /// A run whose model makes one call.
    async fn calling(&self, session: &str, tool: &str, arguments: Value) -> RunId {
        let name = format!("test__{tool}");
        self.house.model.script(Behaviour::tool_call(format!("call-{session}-{tool}"), name, &arguments));
        self.house.send(message(session, "do it")).await
    }

    /// What a call answers, in a run that then ends by itself.
    async fn answer(&self, session: &str, tool: &str) -> String {
        let arguments = json!({"text": "hello"});
        self.house.model.script(Behaviour::tool_call(format!("a-{tool}"), format!("test__{tool}"), &arguments));
        self.house.model.script(Behaviour::text("fine"));
        let view = self.house.ask(session, "do it").await;
        assert_eq!(view.output.as_deref(), Some("fine"), "{view:#?}");
        self.last_result()
    }

    /// The result that the model got last.
    fn last_result(&self) -> String {
        let messages = self.house.last_messages();
        let result = messages.iter().rfind(|message| message["role"] == "tool");
        result.and_then(|message| message["content"].as_str()).unwrap_or_default().to_owned()
    }

    /// Waits until the server has got so many messages of a method.
    async fn got(&self, method: &'static str, count: usize) -> Vec<mcp::Received> {
        let log = self.log.clone();
        leaks::settled(PATIENCE, move || {
            let found = mcp::received_of(&log, method).len();
            if found >= count {
                Ok(())
            } else {
                Err(format!("{found} messages of {method}: {:#?}", mcp::received(&log)))
            }
        })
        .await;
        mcp::received_of(&self.log, method)
    }

    /// Waits until so many servers are alive.
    async fn servers(&self, count: usize) {
        let mcp = self.house.engine.mcp().clone();
        leaks::settled(PATIENCE, move || {
            let alive = mcp.alive();
            if alive == count { Ok(()) } else { Err(format!("{alive} servers are alive, not {count}")) }
        })
        .await;
    }

    async fn close(self) {
        self.house.close().await;
        self.mark.gone(PATIENCE).await;
        std::fs::remove_dir_all(self.log.parent().unwrap()).unwrap();
    }
}

pub(crate) fn own_server(mark: &Marker, log: &Path) -> McpConfig {
    let env = [("MCP_LOG", log.display().to_string()), ("MCP_MARK", mark.as_str().to_owned())];
    McpConfig {
        command: Some("sh".to_owned()),
        args: vec!["-c".to_owned(), mcp::SERVER.to_owned()],
        env: env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<BTreeMap<_, _>>(),
        ..McpConfig::default()
    }
}

/// The one row of the receipt that is a call, not the wait for a server.
fn call_row(view: &RunView) -> &Resource {
    let is_call = |row: &&Resource| row.kind == ResourceKind::McpCall && !row.label.ends_with(": start");
    let mut rows = receipt(view).resources.iter().filter(is_call);
    let row = rows.next().unwrap_or_else(|| panic!("no call: {view:#?}"));
    assert!(rows.next().is_none(), "{view:#?}");
    row
}

/// All that the model was shown last.
fn shown(house: &House) -> String {
    flat(&house.last_messages())
}
