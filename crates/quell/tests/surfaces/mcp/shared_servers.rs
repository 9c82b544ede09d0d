//! One server shared by all sessions: other sessions learn what one session's stop costs them.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn sessions_have_servers_of_their_own_unless_one_is_shared() {
    let own = McpFixture::start().await;
    let (one, two) = (own.call_and_answer("one", "pid").await, own.call_and_answer("two", "pid").await);
    assert_ne!(one, two);
    assert_eq!(own.call_and_answer("one", "pid").await, one);
    own.close().await;
    let shared = McpFixture::start_with(|server| server.shared = true).await;
    assert_eq!(shared.call_and_answer("one", "pid").await, shared.call_and_answer("two", "pid").await);
    assert!(!shared.call_and_answer("two", "env").await.contains("QUELL_SESSION"));
    shared.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_a_shared_server_fails_no_call_silently() {
    let fixture = McpFixture::start_with(|server| {
        server.shared = true;
        server.grace_ms = Some(300);
    })
    .await;
    let before = fixture.call_and_answer("one", "pid").await;
    let other = fixture.start_held_call("two", "wait", json!({}), 2).await;
    let stopped = fixture.start_call("one", "deaf", json!({})).await;
    fixture.wait_printed(&stopped, "progress").await;
    fixture.model.script(ScriptedResponse::text("I see"));
    let view = fixture.stop_to_end(&stopped).await;
    let row = call_row(&view);
    assert!(row.label.contains("was restarted, which cost 1 call of another run"), "{row:#?}");
    let lost = fixture.wait_ended(&other).await;
    assert_eq!((lost.verdict.clone(), lost.output.as_deref()), (Some(Verdict::Completed), Some("I see")));
    assert_eq!(call_row(&lost).how, "failed");
    let result = last_result(&fixture);
    assert!(result.contains("was lost with the MCP server test: it was restarted because"), "{result}");
    assert!(result.contains("may have had effects"), "{result}");
    assert!(receipt_of(&lost).leftovers.is_empty());
    assert_ne!(fixture.call_and_answer("two", "pid").await, before);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_one_call_leaves_the_other_calls_alone() {
    let fixture = McpFixture::start_with(|server| server.shared = true).await;
    let other = fixture.start_held_call("two", "wait", json!({}), 1).await;
    let stopped = fixture.start_call("one", "wait", json!({})).await;
    fixture.wait_messages("tools/call", 2).await;
    assert_eq!(call_row(&fixture.stop_to_end(&stopped).await).how, "unconfirmed");
    assert!(fixture.holds_call(&other));
    fixture.stop_and_wait(&other).await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_one_that_waits_for_a_server_leaves_its_start_to_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("open");
    let fixture = McpFixture::start_with(|server| {
        server.shared = true;
        server.args[1].insert_str(0, &format!("while [ ! -e '{}' ]; do sleep 0.01; done\n", gate.display()));
    })
    .await;
    let stopped = fixture.send(submission("one", "do it")).await;
    fixture.wait_resource_held(&stopped, ResourceKind::McpCall).await;
    let other = fixture.send(submission("two", "do it")).await;
    fixture.wait_resource_held(&other, ResourceKind::McpCall).await;
    fixture.stop_to_end(&stopped).await;
    let call = ScriptedResponse::tool_call("c1", "test__pid", &json!({}));
    fixture.model.script(call).script(ScriptedResponse::text("fine"));
    std::fs::write(&gate, "").unwrap();
    assert_eq!(fixture.wait_ended(&other).await.output.as_deref(), Some("fine"));
    assert_eq!(fixture.wait_messages("initialize", 1).await.len(), 1, "the server was started more than once");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_stop_of_one_call_does_not_cost_the_calls_of_others() {
    let fixture = McpFixture::start_with(|server| server.shared = true).await;
    let before = fixture.call_and_answer("one", "pid").await;
    let other = fixture.start_call("two", "wait", json!({})).await;
    fixture.wait_messages("tools/call", 2).await;
    let stopped = fixture.start_call("one", "nap", json!({})).await;
    fixture.wait_printed(&stopped, "progress").await;
    let stop = fixture.engine.stop(&alice(), &run_stop_scope(&stopped), &stop_ask(StopLevel::Forced));
    assert_eq!(stop.aborted.len(), 1);
    let view = fixture.wait_ended(&stopped).await;
    assert!(!call_row(&view).label.contains("restarted"), "{view:#?}");
    assert!(fixture.holds_call(&other));
    assert_eq!(fixture.call_and_answer("one", "pid").await, before);
    fixture.stop_and_wait(&other).await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_listed_in_each_session_that_has_used_it_and_ended_by_an_admin_alone() {
    let fixture = McpFixture::start_with(|server| server.shared = true).await;
    let first = fixture.run_call("one", "spawn").await.run_id;
    let second = fixture.run_call("two", "echo").await.run_id;
    let (one, two) = (fixture.session_servers("one").remove(0), fixture.session_servers("two").remove(0));
    assert_eq!((&one.id, &one.alive, &one.started_by_run), (&two.id, &two.alive, &first));
    assert_eq!((two.session_key.as_str(), &two.started_by_run), ("two", &second));
    assert!(fixture.session_servers("three").is_empty());
    let process = fixture.engine.session_processes(&parse_session_key("one")).remove(0);
    assert!(!fixture.engine.end_process(&alice(), &process, StopLevel::Forced), "others work with it");
    assert!(fixture.engine.end_process(&root(), &process, StopLevel::Forced));
    process.wait_ended().await;
    assert_eq!(fixture.marker.marked_processes(), []);
    fixture.close().await;
}

#[rstest]
#[case::its_last_user_by_force(StopLevel::Forced, false, "echo", true)]
#[case::one_of_two_users_by_force(StopLevel::Forced, true, "echo", false)]
#[case::one_of_two_users_that_left_a_process(StopLevel::Gentle, true, "spawn", true)]
#[case::one_of_two_users_that_is_clean(StopLevel::Gentle, true, "echo", false)]
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_a_run_ends_it_for_what_the_run_has_left(
    #[case] level: StopLevel,
    #[case] has_other_user: bool,
    #[case] tool: &str,
    #[case] is_ended: bool,
) {
    let fixture = McpFixture::start_with(|server| server.shared = true).await;
    let before = fixture.call_and_answer("one", "pid").await;
    let mut other = None;
    if has_other_user {
        fixture.model.script(ScriptedResponse::tool_call("call-1", "test__echo", &json!({"text": "hello"})));
        fixture.model.script(ScriptedResponse::silent_mid_stream("thinking"));
        let run = fixture.send(submission("two", "do it")).await;
        fixture.wait_text(&run).await;
        other = Some(run);
    }
    fixture.model.script(ScriptedResponse::tool_call("call-2", format!("test__{tool}"), &json!({"text": "hello"})));
    fixture.model.script(ScriptedResponse::silent_mid_stream("thinking"));
    let run = fixture.send(submission("one", "do it")).await;
    fixture.wait_text(&run).await;
    let _stopped = fixture.engine.stop(&alice(), &run_stop_scope(&run), &stop_ask(level));
    let view = fixture.wait_ended(&run).await;
    assert_eq!(server_row(&view).how != "kept", is_ended, "{view:#?}");
    if let Some(other) = other {
        fixture.stop_and_wait(&other).await;
    }
    assert_eq!(fixture.call_and_answer("one", "pid").await != before, is_ended);
    fixture.close().await;
}

impl McpFixture {
    /// Starts a run that calls a tool and then waits for its model.
    async fn start_idle_user(&self, session: &str, tool: &str) -> RunId {
        let call =
            ScriptedResponse::tool_call(format!("u-{session}"), format!("test__{tool}"), &json!({"text": "hello"}));
        self.model.script(call).script(ScriptedResponse::silent_mid_stream("thinking"));
        let run = self.send(submission(session, "do it")).await;
        self.wait_text(&run).await;
        run
    }
}

/// Each of two users counts the other, until both are stopped.
#[rstest]
#[case::by_force(StopScope::Everything, StopLevel::Forced)]
#[case::gently(StopScope::Everything, StopLevel::Gentle)]
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_all_its_users_ends_it_before_their_receipts(#[case] scope: StopScope, #[case] level: StopLevel) {
    let fixture = McpFixture::start_with(|server| server.shared = true).await;
    let one = fixture.start_idle_user("one", "echo").await;
    let two = fixture.start_held_call("two", "wait", json!({}), 2).await;
    let stop = fixture.engine.stop(&root(), &scope, &stop_ask(level));
    for run in [&one, &two] {
        let row = server_row(&fixture.wait_ended(run).await).clone();
        assert_ne!(row.how, "kept", "{row:#?}");
    }
    stop.wait_settled().await;
    assert_eq!(fixture.marker.marked_processes(), []);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_stops_of_its_users_end_it_with_the_last_one() {
    let fixture = McpFixture::start_with(|server| server.shared = true).await;
    let (one, two) = (fixture.start_idle_user("one", "echo").await, fixture.start_idle_user("two", "echo").await);
    let force = |run: &RunId| drop(fixture.engine.stop(&alice(), &run_stop_scope(run), &stop_ask(StopLevel::Forced)));
    force(&one);
    assert_eq!(server_row(&fixture.wait_ended(&one).await).how, "kept");
    force(&two);
    assert_ne!(server_row(&fixture.wait_ended(&two).await).how, "kept");
    assert_eq!(fixture.marker.marked_processes(), []);
    fixture.close().await;
}

/// Nobody can tell whose a process is while another run is calling: the call goes on, and the last one who leaves cleans
/// up.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_does_not_cost_the_call_of_another_and_nothing_is_left_after_it() {
    let fixture = McpFixture::start_with(|server| server.shared = true).await;
    let stopped = fixture.start_idle_user("one", "spawn").await;
    let other = fixture.start_held_call("two", "wait", json!({}), 2).await;
    let view = fixture.stop_to_end(&stopped).await;
    assert_eq!(server_row(&view).how, "kept");
    assert!(fixture.holds_call(&other));
    fixture.stop_and_wait(&other).await;
    fixture.wait_servers(0).await;
    assert_eq!(fixture.marker.marked_processes(), []);
    fixture.close().await;
}

/// A cleanup that was left to the next run is done once: what later runs start and leave is theirs.
#[tokio::test(flavor = "multi_thread")]
async fn a_cleanup_that_was_left_to_another_run_is_done_once() {
    let fixture = McpFixture::start_with(|server| server.shared = true).await;
    let stopped = fixture.start_idle_user("one", "echo").await;
    let other = fixture.start_held_call("two", "wait", json!({}), 2).await;
    fixture.stop_to_end(&stopped).await;
    fixture.stop_to_end(&other).await;
    let before = fixture.call_and_answer("one", "pid").await;
    assert_eq!(fixture.call_and_answer("one", "spawn").await, "spawned");
    assert_eq!(fixture.call_and_answer("two", "pid").await, before, "a finished run has ended the server");
    fixture.close().await;
}
