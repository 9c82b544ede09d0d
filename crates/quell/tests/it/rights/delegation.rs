//! Work that is handed to another agent is done with the rights of who hands it out, at the most.

use std::path::PathBuf;
use std::sync::Arc;

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::Daemon;
use quell_testkit::model::Behaviour;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{over, provider, send};
use crate::cli::exe;
use crate::harness::{Claim, PATIENCE};

/// A daemon with `main`, who has every tool, and one agent more.
struct Site {
    daemon: Daemon,
    model: Arc<ScriptedModel>,
    _claim: Claim,
}

impl Site {
    async fn with(agent: &str) -> Self {
        let (claim, model) = (Claim::shared().await, Arc::new(ScriptedModel::start().await));
        let config = format!(
            "{}[agents.main]\nmodel = \"scripted/m\"\n[agents.other]\nmodel = \"scripted/m\"\n{agent}",
            provider(&model)
        );
        let daemon = Daemon::start(exe(), &config).await;
        Self { daemon, model, _claim: claim }
    }

    /// The model of `other` hands a command to `main`, whose model runs it.
    fn hands_out(&self, tool: &str, command: &str) {
        let to = json!({"agent": "main", "prompt": "run it marker:below"});
        let told = json!({"to": "main", "text": "run it marker:below"});
        let order = Behaviour::tool_call("c1", tool, if tool == "spawn_agent" { &to } else { &told });
        let deed = Behaviour::tool_call("c2", "shell", &json!({"command": command}));
        self.model.by_prompt(move |_, request| {
            let has_result = request.body["messages"].to_string().contains("\"role\":\"tool\"");
            let below = request.markers.last().is_some_and(|marker| marker == "below");
            match (below, has_result) {
                (_, true) => Behaviour::text("That is all."),
                (true, false) => deed.clone(),
                (false, false) => order.clone(),
            }
        });
    }

    fn proof(&self) -> PathBuf {
        self.daemon.home().data().with_file_name("proof")
    }

    /// Everything that models were sent, but for the descriptions of tools.
    fn told(&self) -> String {
        self.model.seen().iter().map(|request| request.body["messages"].to_string()).collect()
    }

    /// The approval that waits.
    async fn asked(&self) -> Value {
        let begun = Instant::now();
        loop {
            let pending = self.daemon.http().get("/api/approvals").await.expect_status(200);
            if let Some(row) = pending["items"].as_array().and_then(|rows| rows.first()) {
                return row.clone();
            }
            assert!(begun.elapsed() < PATIENCE, "nobody asks: {}", self.told());
        }
    }
}

#[rstest]
#[case::asked("approvals.shell = \"ask\"\n")]
#[case::denied("approvals.shell = \"deny\"\n")]
#[case::without("tools = [\"spawn_agent\", \"send_message\"]\n")]
#[tokio::test(flavor = "multi_thread")]
async fn nobody_gives_work_to_an_agent_that_is_not_below_it(#[case] agent: &str) {
    let site = Site::with(agent).await;
    for tool in ["spawn_agent", "send_message"] {
        site.hands_out(tool, &format!("touch {}", site.proof().display()));
        let run = send(&site.daemon, "other", "go").await;
        assert_eq!(over(&site.daemon, &run).await["verdict"]["kind"], "completed");
        assert!(!site.proof().exists(), "{tool} ran a shell");
        let told = site.told();
        assert!(told.contains("is no agent that you may give work to. You may give work to: other."), "{told}");
    }
    let tools = site.model.seen()[0].body["tools"].to_string();
    assert!(tools.contains("may give work to are: other.") && tools.contains("\"enum\":[\"other\"]"), "{tools}");
}

#[rstest]
#[case::denied("approvals.shell = \"deny\"\n", "The configuration denies this tool")]
#[case::without("tools = [\"spawn_agent\", \"send_message\"]\n", "there is no tool named \\\"shell\\\"")]
#[tokio::test(flavor = "multi_thread")]
async fn a_delegate_has_no_shell_where_its_parent_has_none(#[case] agent: &str, #[case] why: &str) {
    let site = Site::with(&format!("delegates = [\"main\"]\n{agent}")).await;
    for tool in ["spawn_agent", "send_message"] {
        site.hands_out(tool, &format!("touch {}", site.proof().display()));
        let run = send(&site.daemon, "other", "go").await;
        over(&site.daemon, &run).await;
        assert!(!site.proof().exists(), "{tool} ran a shell");
        assert!(site.told().contains(why), "{}", site.told());
    }
    // Who is asked by a person has all that it was given.
    site.model.by_prompt(|_, _| Behaviour::text("Done."));
    let touch = json!({"command": format!("touch {}", site.proof().display())});
    site.model.script(Behaviour::tool_call("c1", "shell", &touch));
    let run = send(&site.daemon, "main", "go").await;
    over(&site.daemon, &run).await;
    assert!(site.proof().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delegates_shell_waits_for_a_person_as_its_parents_does() {
    let site = Site::with("delegates = [\"main\"]\napprovals.shell = \"ask\"\n").await;
    site.hands_out("spawn_agent", &format!("touch {}", site.proof().display()));
    let run = send(&site.daemon, "other", "go").await;
    let row = site.asked().await;
    assert_eq!((&row["agent"], &row["tool"]), (&json!("main"), &json!("shell")), "{row:#}");
    assert!(!site.proof().exists());
    let path = format!("/api/approvals/{}", row["id"].as_str().unwrap());
    let _ = site.daemon.http().post(&path, &json!({"decision": "allow"})).await.expect_status(200);
    over(&site.daemon, &run).await;
    assert!(site.proof().exists(), "{}", site.told());
}

/// The configuration of the agent in the middle is loosened while its sub-run waits to start: what its parent had is still the bound.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_in_the_middle_of_a_chain_frees_nobody() {
    let site = Site::with("delegates = [\"main\"]\napprovals.shell = \"deny\"\n").await;
    site.hands_out("spawn_agent", &format!("touch {}", site.proof().display()));
    let first = quell_testkit::model::Stream::new().text("wait").hold_headers("changed");
    site.model.script(first.tool_call("c1", "spawn_agent", &json!({"agent": "main", "prompt": "marker:below"})));
    let run = send(&site.daemon, "other", "go").await;
    site.model.requests(1).await;
    let config = std::fs::read_to_string(site.daemon.home().config()).unwrap();
    std::fs::write(site.daemon.home().config(), config.replace("\"deny\"", "\"auto\"")).unwrap();
    let begun = Instant::now();
    while !site.daemon.output().contains("configuration reloaded") {
        assert!(begun.elapsed() < PATIENCE, "{}", site.daemon.output());
        site.daemon.http().get("/readyz").await;
    }
    site.model.open_gate("changed");
    over(&site.daemon, &run).await;
    assert!(!site.proof().exists() && site.told().contains("The configuration denies this tool"), "{}", site.told());
}
