//! Delegated work has at most the permissions of the delegating agent.

use super::*;

impl PermissionsFixture {
    /// Starts with a second agent `other`, whose section continues like this.
    async fn start_with_agent(agent: &str) -> Self {
        Self::start_with(&format!("[agents.other]\nmodel = \"scripted/m\"\n{agent}")).await
    }

    /// Scripts the model of `other` to delegate a command to `main`, and the model of `main` to run it: it makes the file
    /// of the proof.
    fn script_delegation(&self, tool: &str) {
        let command = format!("touch {}", self.proof_path().display());
        let work = match tool {
            "spawn_agent" => json!({"agent": "main", "prompt": "run it marker:below"}),
            _ => json!({"to": "main", "text": "run it marker:below"}),
        };
        let delegation = ScriptedResponse::tool_call("c1", tool, &work);
        let shell_call = shell_call(command);
        self.model.respond_by_prompt(move |_, request| {
            let has_result = request.body["messages"].to_string().contains("\"role\":\"tool\"");
            let below = request.markers.last().is_some_and(|marker| marker == "below");
            match (below, has_result) {
                (_, true) => ScriptedResponse::text("That is all."),
                (true, false) => shell_call.clone(),
                (false, false) => delegation.clone(),
            }
        });
    }

    /// Delegates with each tool: no shell runs, and the model is told why.
    async fn assert_no_shell(&self, why: &str) {
        for tool in ["spawn_agent", "send_message"] {
            self.script_delegation(tool);
            let run = send_message(&self.daemon, "other", "go").await;
            assert_eq!(self.daemon.api().wait_ended(&run).await["verdict"]["kind"], "completed");
            assert!(!self.proof_path().exists(), "{tool} ran a shell");
            assert!(self.request_messages().contains(why), "{}", self.request_messages());
        }
    }

    fn proof_path(&self) -> PathBuf {
        self.daemon.home().work_dir().join("main/proof")
    }

    /// All messages of all model requests, without the descriptions of tools.
    fn request_messages(&self) -> String {
        self.model.recorded_requests().iter().map(|request| request.body["messages"].to_string()).collect()
    }
}

#[rstest]
#[case::asked("approvals.shell = \"ask\"\n")]
#[case::denied("approvals.shell = \"deny\"\n")]
#[case::without("tools = [\"spawn_agent\", \"send_message\"]\n")]
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_delegates_only_to_agents_below_it(#[case] agent: &str) {
    let fixture = PermissionsFixture::start_with_agent(agent).await;
    fixture.assert_no_shell("is no agent that you may give work to. You may give work to: other.").await;
    let tools = fixture.model.recorded_requests()[0].body["tools"].to_string();
    assert!(tools.contains("may give work to are: other.") && tools.contains("\"enum\":[\"other\"]"), "{tools}");
}

#[rstest]
#[case::denied("approvals.shell = \"deny\"\n", "The configuration denies this tool")]
#[case::without("tools = [\"spawn_agent\", \"send_message\"]\n", "there is no tool named \\\"shell\\\"")]
#[tokio::test(flavor = "multi_thread")]
async fn a_delegate_has_no_shell_where_its_parent_has_none(#[case] agent: &str, #[case] why: &str) {
    let fixture = PermissionsFixture::start_with_agent(&format!("delegates = [\"main\"]\n{agent}")).await;
    fixture.assert_no_shell(why).await;
    // A run of `main` that a person started has all tools of `main`.
    fixture.model.respond_by_prompt(|_, _| ScriptedResponse::text("Done."));
    fixture.model.script(shell_call(format!("touch {}", fixture.proof_path().display())));
    let run = send_message(&fixture.daemon, "main", "go").await;
    fixture.daemon.api().wait_ended(&run).await;
    assert!(fixture.proof_path().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delegates_shell_waits_for_a_person_as_its_parents_does() {
    let fixture = PermissionsFixture::start_with_agent("delegates = [\"main\"]\napprovals.shell = \"ask\"\n").await;
    fixture.script_delegation("spawn_agent");
    let run = send_message(&fixture.daemon, "other", "go").await;
    let row = fixture.daemon.api().wait_approval().await;
    assert_eq!((&row["agent"], &row["tool"]), (&json!("main"), &json!("shell")), "{row:#}");
    assert!(!fixture.proof_path().exists());
    let path = format!("/api/approvals/{}", row["id"].as_str().unwrap());
    // The sub-run has the principal of the run above it, which asked.
    let allow = json!({"decision": "allow"});
    assert_problem(&fixture.daemon.api().post(&path, &allow).await, 403, "forbidden");
    let approver = fixture.create_token("approver", json!("approve")).await;
    let _ = approver.post(&path, &allow).await.expect_status(200);
    fixture.daemon.api().wait_ended(&run).await;
    assert!(fixture.proof_path().exists(), "{}", fixture.request_messages());
}

/// The configuration of `other` becomes less strict while its sub-run waits to start. The permissions at the time of
/// the delegation still bound the sub-run.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_in_the_middle_of_a_chain_frees_nobody() {
    let fixture = PermissionsFixture::start_with_agent("delegates = [\"main\"]\napprovals.shell = \"deny\"\n").await;
    fixture.script_delegation("spawn_agent");
    let first = ScriptedStream::new().text("wait").hold_headers("changed");
    fixture.model.script(first.tool_call("c1", "spawn_agent", &json!({"agent": "main", "prompt": "marker:below"})));
    let run = send_message(&fixture.daemon, "other", "go").await;
    fixture.model.wait_for_requests(1).await;
    let config = std::fs::read_to_string(fixture.daemon.home().config_file()).unwrap();
    std::fs::write(fixture.daemon.home().config_file(), config.replace("\"deny\"", "\"auto\"")).unwrap();
    let is_reloaded = async || fixture.daemon.output().contains("configuration reloaded").then_some(());
    poll_until("the reload of the configuration", is_reloaded).await;
    fixture.model.open_gate("changed");
    fixture.daemon.api().wait_ended(&run).await;
    assert!(!fixture.proof_path().exists());
    let messages = fixture.request_messages();
    assert!(messages.contains("The configuration denies this tool"), "{messages}");
}
