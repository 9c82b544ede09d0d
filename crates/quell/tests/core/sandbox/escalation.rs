//! Calls that ask to run outside of the sandbox: always a person's decision, on the real binary.

use super::*;

/// A daemon whose agent `main` has a sandbox, and a file outside of it.
struct EscalationDaemon {
    test: SandboxDaemon,
    outside: PathBuf,
    approver: TestApiClient,
}

impl EscalationDaemon {
    /// `agent` continues the section of `main`.
    async fn start(agent: &str) -> Option<Self> {
        let test = SandboxDaemon::start(SandboxUser::Ordinary, agent).await?;
        let outside = test.daemon.home().root_dir().join("person/desk/new");
        let made = test.daemon.api().post("/api/tokens", &json!({"name": "approver", "scope": ["approve"]})).await;
        let approver = test.daemon.api().with_token(made.expect_status(201)["token"].as_str().unwrap());
        Some(Self { test, outside, approver })
    }

    fn api(&self) -> TestApiClient {
        self.test.daemon.api()
    }

    /// A command that proves by a file that it ran outside of the sandbox.
    fn write_command(&self) -> String {
        format!("echo ran > {}", self.outside.display())
    }

    /// Starts a run whose model makes this call.
    async fn start_call(&self, session: &str, tool: &str, arguments: &Value) -> String {
        self.test
            .model
            .script(ScriptedResponse::tool_call("c1", tool, arguments))
            .script(ScriptedResponse::text("seen"));
        self.api().send_message(session, "go").await
    }

    async fn start_escalated(&self, session: &str, command: &str) -> String {
        self.start_call(session, "shell", &json!({"command": command, "escalate": "the desk is elsewhere"})).await
    }

    async fn answer(&self, row: &Value, answer: &Value) -> Value {
        let path = format!("/api/approvals/{}", row["id"].as_str().unwrap());
        self.approver.post(&path, answer).await.expect_status(200)
    }

    /// The run after its end, and what the model was told about its call.
    async fn wait_told(&self, run: &str) -> (String, Value) {
        let view = self.api().wait_ended(run).await;
        assert_eq!(view["verdict"]["kind"], "completed", "{view:#}");
        let requests = self.test.model.recorded_requests();
        let told = requests.last().unwrap().messages().last().unwrap()["content"].as_str().unwrap().to_owned();
        (told, view)
    }

    async fn assert_nothing_waits(&self) {
        assert_eq!(self.api().get("/api/approvals").await.expect_status(200)["items"], json!([]));
    }

    async fn audit_details(&self) -> String {
        self.api().get("/api/audit").await.expect_status(200)["items"].to_string()
    }
}

/// The escalation is in the row with its reason, rule and effect; it opens files, and no credentials of Quell.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_allowed_call_leaves_the_sandbox_and_reaches_no_credential() {
    let Some(test) = EscalationDaemon::start("approvals.shell = \"auto\"\n").await else { return };
    let token = test.test.daemon.home().data_dir().join("token");
    let command = format!("{}; cat {} || echo no-token", test.write_command(), token.display());
    let run = test.start_escalated("s", &command).await;
    let row = test.api().wait_approval().await;
    assert_eq!((&row["arguments"], &row["escalation"]["mode"]), (&json!({"command": command}), &json!("workspace")));
    assert_eq!(row["escalation"]["reason"], "the desk is elsewhere");
    assert!(row["escalation"]["rule"].as_str().unwrap().contains("permits changes in"), "{row:#}");
    assert!(row["escalation"]["opens"].as_str().unwrap().contains("stay out of reach"), "{row:#}");
    assert!(!test.outside.exists(), "it ran before it was allowed");
    // The principal of the run is what asked.
    let path = format!("/api/approvals/{}", row["id"].as_str().unwrap());
    assert_problem(&test.api().post(&path, &json!({"decision": "allow"})).await, 403, "forbidden");
    // The copy: this user may not reach the checkout.
    let listed = run_to_exit(test.test.daemon.home().command(&test.test.quell).arg("approvals"));
    assert!(
        listed.out.contains("OUTSIDE OF THE SANDBOX") && listed.out.contains("the desk is elsewhere"),
        "{listed:?}"
    );
    test.answer(&row, &json!({"decision": "allow"})).await;
    let (told, view) = test.wait_told(&run).await;
    assert!(told.contains("no-token") && !told.contains(&test.test.token()), "{told}");
    assert_eq!(std::fs::read_to_string(&test.outside).unwrap(), "ran\n");
    assert_eq!(process_row(&view)["sandbox"]["mode"], "off");
    assert!(test.audit_details().await.contains("outside of the sandbox"));
    // Once is once.
    let again = test.start_escalated("s", "true").await;
    test.answer(&test.api().wait_approval().await, &json!({"decision": "deny", "reason": "not now"})).await;
    let (told, view) = test.wait_told(&again).await;
    assert!(told.contains("not now") && told.contains("may not run outside of the sandbox"), "{told}");
    assert!(view["receipt"]["resources"].as_array().unwrap().iter().all(|row| row["kind"] != "process"), "{view:#}");
    test.test.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_remembered_for_the_tool_never_covers_an_escalation() {
    let Some(test) = EscalationDaemon::start("approvals.shell = \"ask\"\n").await else { return };
    let session = json!({"decision": "allow", "scope": "session"});
    let run = test.start_call("s", "shell", &json!({"command": "echo one"})).await;
    test.answer(&test.api().wait_approval().await, &session).await;
    test.wait_told(&run).await;
    // Remembered for calls inside.
    let inside = test.start_call("s", "shell", &json!({"command": "echo two"})).await;
    assert!(test.wait_told(&inside).await.0.starts_with("two"));
    let outside = test.start_escalated("s", &test.write_command()).await;
    let row = test.api().wait_approval().await;
    assert_eq!(row["runId"], outside);
    assert!(!test.outside.exists());
    // Outside of the sandbox there is no rule for a session.
    let path = format!("/api/approvals/{}", row["id"].as_str().unwrap());
    let refused = test.approver.post(&path, &session).await;
    assert_problem(&refused, 400, "invalid_request");
    let exactly = json!({"decision": "allow", "scope": "pattern", "pattern": test.write_command()});
    test.answer(&row, &exactly).await;
    test.wait_told(&outside).await;
    assert!(test.outside.exists());
    // Now it is remembered for this command outside.
    std::fs::remove_file(&test.outside).unwrap();
    let (_, view) = test.wait_told(&test.start_escalated("s", &test.write_command()).await).await;
    assert_eq!(process_row(&view)["sandbox"]["mode"], "off");
    assert!(test.outside.exists());
    let audit = test.audit_details().await;
    assert!(audit.contains("approval_rule ") && audit.contains("for the session"), "{audit}");
    let elsewhere = test.start_escalated("t", "true").await;
    test.answer(&test.api().wait_approval().await, &json!({"decision": "deny"})).await;
    test.wait_told(&elsewhere).await;
    // Until somebody deletes it.
    let rules = test.approver.get("/api/approval-rules").await.expect_status(200)["items"].clone();
    let rules = rules.as_array().unwrap();
    assert_eq!(rules.iter().map(|rule| rule["escalated"].clone()).collect::<Vec<_>>(), [json!(false), json!(true)]);
    for rule in rules {
        test.approver.delete(&format!("/api/approval-rules/{}", rule["id"].as_str().unwrap())).await.expect_status(204);
    }
    let asked = test.start_escalated("s", "true").await;
    test.answer(&test.api().wait_approval().await, &json!({"decision": "deny"})).await;
    test.wait_told(&asked).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pattern_covers_matching_calls_and_no_second_command() {
    let Some(test) = EscalationDaemon::start("").await else { return };
    let desk = test.outside.parent().unwrap().display().to_string();
    let run = test.start_escalated("s", &format!("touch {desk}/a")).await;
    let row = test.api().wait_approval().await;
    let path = format!("/api/approvals/{}", row["id"].as_str().unwrap());
    for wrong in [
        json!({"decision": "allow", "scope": "pattern", "pattern": "rm *"}),
        json!({"decision": "deny", "scope": "session"}),
        json!({"decision": "allow", "scope": "pattern"}),
    ] {
        assert_problem(&test.approver.post(&path, &wrong).await, 400, "invalid_request");
    }
    let pattern = json!({"decision": "allow", "scope": "pattern", "pattern": format!("touch {desk}/*")});
    test.answer(&row, &pattern).await;
    test.wait_told(&run).await;
    test.wait_told(&test.start_escalated("t", &format!("touch {desk}/b")).await).await;
    assert!(test.outside.with_file_name("b").exists());
    let other = test.start_escalated("t", &format!("touch {desk}/c; rm {desk}/b")).await;
    test.answer(&test.api().wait_approval().await, &json!({"decision": "deny"})).await;
    test.wait_told(&other).await;
    assert!(test.outside.with_file_name("b").exists() && !test.outside.with_file_name("c").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_tool_leaves_the_workdir_only_when_a_person_allows_it() {
    let Some(test) = EscalationDaemon::start("").await else { return };
    let arguments = json!({"path": test.outside, "content": "ran"});
    let refused = test.start_call("s", "write_file", &arguments).await;
    let (told, _) = test.wait_told(&refused).await;
    assert!(told.contains("leads outside the working directory") && told.contains("`escalate`"), "{told}");
    let asked = json!({"path": test.outside, "content": "ran", "escalate": "why"});
    let run = test.start_call("s", "write_file", &asked).await;
    test.answer(&test.api().wait_approval().await, &json!({"decision": "allow"})).await;
    test.wait_told(&run).await;
    assert_eq!(std::fs::read_to_string(&test.outside).unwrap(), "ran");
    let token = test.test.daemon.home().data_dir().join("token");
    let run = test.start_call("s", "read_file", &json!({"path": token, "escalate": "why"})).await;
    test.answer(&test.api().wait_approval().await, &json!({"decision": "allow"})).await;
    let (told, _) = test.wait_told(&run).await;
    assert!(told.contains("Quell's own configuration or data"), "{told}");
}

/// A policy that denies the tool, a configuration without `escalate`, and one in which nobody has time to answer.
#[rstest]
#[case::denied("approvals.shell = \"deny\"\n", "The configuration denies this tool", true)]
#[case::forbidden("escalate = false\n", "`escalate = false`", false)]
#[case::nobody("[limits]\napproval_timeout_s = 0\n", "Nobody can allow", true)]
#[case::no_reason("", "must be a text", true)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_nobody_may_grant_is_refused_with_the_reason(
    #[case] agent: &str,
    #[case] reason: &str,
    #[case] is_offered: bool,
) {
    let Some(test) = EscalationDaemon::start(agent).await else { return };
    let request = if agent.is_empty() { json!(true) } else { json!("why") };
    let call = json!({"command": test.write_command(), "escalate": request});
    let run = test.start_call("s", "shell", &call).await;
    let (told, view) = test.wait_told(&run).await;
    assert!(told.contains(reason), "{told}");
    assert!(!test.outside.exists());
    assert!(view["receipt"]["resources"].as_array().unwrap().iter().all(|row| row["kind"] != "process"), "{view:#}");
    test.assert_nothing_waits().await;
    let tools = test.test.model.recorded_requests()[0].body["tools"].to_string();
    assert_eq!(tools.contains("\"escalate\""), is_offered, "{tools}");
    assert_eq!(tools.contains("may ask with `escalate`"), is_offered, "{tools}");
}

/// An agent below one that may not ask may not ask, either.
#[rstest]
#[case::forbidden_above("escalate = false\n", false)]
#[case::permitted("", true)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sub_run_asks_only_where_every_run_above_it_might(#[case] main: &str, #[case] may_ask: bool) {
    let Some(test) = EscalationDaemon::start(&format!("{main}delegates = [\"other\"]\n")).await else { return };
    let call = json!({"command": test.write_command(), "escalate": "why"});
    let spawn = json!({"agent": "other", "prompt": "work"});
    test.test.model.respond_by_prompt(move |_, request| {
        let messages = request.body["messages"].to_string();
        match (messages.contains("delegate it"), messages.contains("\"role\":\"tool\"")) {
            (_, true) => ScriptedResponse::text("That is all."),
            (true, false) => ScriptedResponse::tool_call("c1", "spawn_agent", &spawn),
            (false, false) => ScriptedResponse::tool_call("c2", "shell", &call),
        }
    });
    let run = test.api().send_message("s", "delegate it").await;
    if may_ask {
        let row = test.api().wait_approval().await;
        assert_eq!((&row["agent"], &row["principal"]), (&json!("other"), &json!("admin")));
        assert_ne!(row["sessionKey"], "s", "an allowance for the session above does not cover it");
        test.answer(&row, &json!({"decision": "allow"})).await;
    }
    let view = test.api().wait_ended(&run).await;
    assert_eq!(view["verdict"]["kind"], "completed", "{view:#}");
    assert_eq!(test.outside.exists(), may_ask);
    let seen: String =
        test.test.model.recorded_requests().iter().map(|request| request.body["messages"].to_string()).collect();
    assert_eq!(seen.contains("`escalate = false`"), !may_ask, "{seen}");
}

/// A stop while the request waits: it is withdrawn, nothing runs, and a late answer is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_withdraws_a_request_to_leave_the_sandbox() {
    let Some(test) = EscalationDaemon::start("").await else { return };
    let run = test.start_escalated("s", &test.write_command()).await;
    let row = test.api().wait_approval().await;
    let receipt = test.api().stop_run(&run).await;
    assert_eq!(receipt["receipt"]["leftovers"], json!([]), "{receipt:#}");
    test.assert_nothing_waits().await;
    let path = format!("/api/approvals/{}", row["id"].as_str().unwrap());
    assert_problem(&test.approver.post(&path, &json!({"decision": "allow"})).await, 409, "conflict");
    assert_eq!(test.approver.get("/api/approval-rules").await.expect_status(200)["items"], json!([]));
    assert!(!test.outside.exists());
}

/// The person sees where a link leads, and a link that is made afterwards is not followed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_person_saw_is_what_a_file_tool_writes() {
    let Some(test) = EscalationDaemon::start("").await else { return };
    let (workdir, other) = (test.test.daemon.home().work_dir().join("main"), test.outside.with_file_name("other"));
    for file in [&test.outside, &other] {
        std::fs::write(file, "theirs").unwrap();
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o666)).unwrap();
    }
    std::os::unix::fs::symlink(&test.outside, workdir.join("notes.txt")).unwrap();
    let asked = json!({"path": "notes.txt", "content": "ran", "escalate": "to save my notes"});
    let run = test.start_call("s", "write_file", &asked).await;
    let row = test.api().wait_approval().await;
    assert_eq!(row["arguments"]["path"], json!(test.outside.canonicalize().unwrap()), "{row:#}");
    test.answer(&row, &json!({"decision": "allow"})).await;
    test.wait_told(&run).await;
    assert_eq!(std::fs::read_to_string(&test.outside).unwrap(), "ran");
    let run = test.start_call("s", "write_file", &asked).await;
    let row = test.api().wait_approval().await;
    std::fs::remove_file(&test.outside).unwrap();
    std::os::unix::fs::symlink(&other, &test.outside).unwrap();
    test.answer(&row, &json!({"decision": "allow"})).await;
    let (told, _) = test.wait_told(&run).await;
    assert!(told.contains("symlinks"), "{told}");
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "theirs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_is_told_of_files_that_the_agent_can_change() {
    let Some(test) = EscalationDaemon::start("").await else { return };
    let workdir = test.test.daemon.home().work_dir().join("main");
    std::fs::write(workdir.join("deploy.sh"), "echo \"$GIT_CONFIG_KEY_0=$GIT_CONFIG_VALUE_0\"").unwrap();
    let run = test.start_escalated("s", "sh ./deploy.sh").await;
    let row = test.api().wait_approval().await;
    let opens = row["escalation"]["opens"].as_str().unwrap();
    assert!(opens.contains("the agent can change files in") && opens.ends_with(", also ./deploy.sh"), "{opens}");
    test.answer(&row, &json!({"decision": "allow"})).await;
    // Git would run what the settings of a repository name.
    assert!(test.wait_told(&run).await.0.starts_with("core.fsmonitor=false"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_asked_about_a_call_that_cannot_begin() {
    let Some(test) = EscalationDaemon::start("approvals.shell = \"ask\"\n").await else { return };
    for (tool, arguments) in [
        ("apply_patch", json!({"patch": "*** Begin Patch", "escalate": "why"})),
        ("shell", json!({"comand": "true"})),
        ("no_such_tool", json!({})),
    ] {
        let run = test.start_call("s", tool, &arguments).await;
        let (told, _) = test.wait_told(&run).await;
        assert!(told.contains("Bad arguments") || told.contains("no tool named"), "{told}");
    }
    test.assert_nothing_waits().await;
    assert_eq!(test.approver.get("/api/approval-rules").await.expect_status(200)["items"], json!([]));
}
