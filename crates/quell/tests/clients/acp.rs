//! `quell acp` on real standard input and output, driven by the official client and by acpx, both unmodified.

mod acpx;
mod permissions;
mod sessions;
mod slow_editor;
mod stops;
mod version_2;

use quell_test_support::acp_client::{self as client, AcpTestClient};

use crate::prelude::*;

/// A scripted model, a daemon with the agents `main` and `other`, and a directory that an editor has open.
pub(crate) struct AcpFixture {
    pub(crate) model: ScriptedModel,
    pub(crate) daemon: TestDaemon,
    project: tempfile::TempDir,
}

impl AcpFixture {
    /// `None` when tests that need Node are switched off. `more` continues the section of the agent `main`.
    pub(crate) async fn start(more: &str) -> Option<Self> {
        if quell_test_support::npm_packages::is_skipped() {
            return None;
        }
        let (model, daemon) = start_daemon(&format!("{more}\n[agents.other]\nmodel = \"scripted/other\"\n")).await;
        Some(Self { model, daemon, project: tempfile::TempDir::with_prefix("quell-acp-").unwrap() })
    }

    /// The directory that the editor has open.
    fn project(&self) -> &str {
        self.project.path().to_str().unwrap()
    }

    pub(crate) async fn connect(&self) -> AcpTestClient {
        self.connect_with(&[]).await
    }

    async fn connect_with(&self, args: &[&str]) -> AcpTestClient {
        AcpTestClient::start(&self.daemon, args).await
    }

    /// Opens a session in the project.
    pub(crate) async fn new_session(&self, client: &mut AcpTestClient) -> String {
        let params = json!({"cwd": self.project(), "mcpServers": []});
        let opened = client.call("session/new", params).await.unwrap();
        opened["sessionId"].as_str().unwrap().to_owned()
    }

    /// The newest run of a session, once it has ended.
    pub(crate) async fn ended_run(&self, session: &str) -> Value {
        let path = format!("/api/runs?session={}", percent_encode(session));
        poll_until("the newest run has ended", async || {
            let runs = self.daemon.api().get(&path).await.expect_status(200);
            runs["items"].as_array().unwrap().first().filter(|run| run["state"] == "ended").cloned()
        })
        .await
    }
}

pub(crate) fn text_prompt(session: &str, text: &str) -> Value {
    json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]})
}
