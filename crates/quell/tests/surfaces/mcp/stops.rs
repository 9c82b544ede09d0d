//! Stop a run in the middle of a call: cancel, keep or restart the server, and how fast the cancel is there.

use quell_engine::engine::SubmitOutcome;
use quell_kernel::registry::{BackgroundPolicy, QueuedPolicy};
use quell_protocol::receipt::summary_line::receipt_line;

use super::*;
use crate::test_engine::skip_time;

fn session_stop_scope(key: &str) -> StopScope {
    let (queued, background) = (QueuedPolicy::Withdraw, BackgroundPolicy::Stop);
    StopScope::Session { key: parse_session_key(key), queued, background }
}

/// It is ended for its silence only after a minute, for which no stop waits.
#[rstest]
#[case::silent("wait", &[], "unconfirmed", "[Stopped while it ran: the MCP server test was told to cancel it. Side effects")]
#[case::refusing_pings("wait", &["MCP_NO_PING"], "unconfirmed", "the MCP server test was told to cancel it. Side effects")]
#[case::answering("decline", &[], "cancelled", "[Stopped while it ran: the MCP server test has cancelled it. Side effects")]
#[case::finishing(
    "finish",
    &[],
    "finished",
    "came to its own end after the request was stopped. Its effects stand.]\\nfinished all the same"
)]
#[tokio::test(flavor = "multi_thread")]
async fn an_obedient_server_is_told_and_kept(
    #[case] tool: &str,
    #[case] env: &[&str],
    #[case] how: &str,
    #[case] shown: &str,
) {
    let fixture = McpFixture::start_with(|server| {
        server.grace_ms = Some(LONG_GRACE_MS);
        set_env(server, env);
    })
    .await;
    let before = fixture.call_and_answer("s", "pid").await;
    let run = fixture.start_held_call("s", tool, json!({}), 2).await;
    let calls = fixture.wait_messages("tools/call", 2).await;
    let view = fixture.stop_to_end(&run).await;
    let cancels = fixture.wait_messages("notifications/cancelled", 1).await;
    assert_eq!(cancels[0].message["params"]["requestId"], calls[1].message["id"]);
    assert!(matches!(view.verdict, Some(Verdict::Aborted { .. })), "{view:#?}");
    let row = call_row(&view);
    assert_eq!((row.how.as_str(), row.label.as_str()), (how, format!("test: {tool}").as_str()));
    let rung = receipt_of(&view).rung;
    assert!(rung == Rung::Cancel || (how == "finished" && rung < Rung::Cancel), "{view:#?}");
    assert_eq!(fixture.call_and_answer("s", "pid").await, before, "the connection was not kept");
    assert!(last_request_text(&fixture).contains(shown), "{}", last_request_text(&fixture));
    assert_eq!(fixture.wait_messages("notifications/cancelled", 1).await.len(), 1, "the cancel was sent again");
    fixture.close().await;
}

#[rstest]
#[case::deaf("deaf")]
#[case::with_descendants("fork")]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_goes_on_is_restarted_and_the_receipt_says_so(#[case] tool: &str) {
    let fixture = McpFixture::start_with(|server| server.grace_ms = Some(300)).await;
    let before = fixture.call_and_answer("s", "pid").await;
    let run = fixture.start_call("s", tool, json!({})).await;
    fixture.wait_printed(&run, "progress").await;
    let marker = fixture.marker.as_str().to_owned();
    // The server says so before it starts its own processes.
    leaks::wait_until(WAIT_TIMEOUT, move || match leaks::processes_with_marker(&marker) {
        found if found.len() > 1 => Ok(()),
        found => Err(format!("{found:#?}")),
    })
    .await;
    let view = fixture.stop_to_end(&run).await;
    let row = call_row(&view);
    assert_eq!(row.how, "term", "{row:#?}");
    assert!(row.label.contains("does not read its input") && row.label.contains("was restarted"), "{row:#?}");
    assert_eq!(receipt_of(&view).rung, Rung::Term, "{view:#?}");
    // No process of the server is alive once the run has ended.
    assert_eq!(fixture.marker.marked_processes(), []);
    assert_ne!(fixture.call_and_answer("s", "pid").await, before);
    let shown = last_request_text(&fixture);
    assert!(shown.contains("[Stopped while it ran: the MCP server test went on with it and was ended."), "{shown}");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_stop_does_not_wait_for_the_grace() {
    let fixture = McpFixture::start_with(|server| server.grace_ms = Some(LONG_GRACE_MS)).await;
    let run = fixture.start_call("s", "deaf", json!({})).await;
    fixture.wait_printed(&run, "progress").await;
    let stop = fixture.engine.stop(&alice(), &run_stop_scope(&run), &stop_ask(StopLevel::Forced));
    assert_eq!(stop.aborted.len(), 1);
    let view = fixture.wait_ended(&run).await;
    assert!(matches!(call_row(&view).how.as_str(), "term" | "kill"), "{view:#?}");
    fixture.marker.wait_gone(WAIT_TIMEOUT).await;
    fixture.close().await;
}

/// It reports progress all the time. For half of the grace the stop cannot tell whether that was sent before the cancel.
#[tokio::test]
async fn a_server_that_works_on_in_secret_is_restarted_when_it_is_found_out() {
    let fixture = McpFixture::start_with(|server| {
        server.grace_ms = Some(LONG_GRACE_MS);
        set_env(server, &["MCP_WORKER"]);
    })
    .await;
    let run = fixture.start_call("s", "hum", json!({})).await;
    fixture.wait_printed(&run, "progress").await;
    let view = fixture.stop_to_end(&run).await;
    assert_eq!((call_row(&view).how.as_str(), receipt_of(&view).rung), ("unconfirmed", Rung::Cancel), "{view:#?}");
    skip_time(Duration::from_millis(LONG_GRACE_MS)).await;
    fixture.wait_servers(0).await;
    fixture.marker.wait_gone(WAIT_TIMEOUT).await;
    assert_eq!(fixture.call_and_answer("s", "echo").await, "hello");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_while_a_server_starts_ends_the_server() {
    let fixture = McpFixture::start_with(|server| set_env(server, &["MCP_MUTE", "MCP_STUCK"])).await;
    fixture.model.script(ScriptedResponse::text("never said"));
    let run = fixture.send(submission("s", "hello")).await;
    fixture.wait_messages("initialize", 1).await;
    let view = fixture.stop_to_end(&run).await;
    assert_eq!(fixture.marker.marked_processes(), [], "the server outlived the run that waited for it");
    let rows = &receipt_of(&view).resources;
    let start = rows.iter().find(|row| row.label == "test: start").unwrap_or_else(|| panic!("{rows:#?}"));
    assert_eq!(start.how, "kill");
    fixture.wait_servers(0).await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_before_a_server_is_needed_starts_none() {
    let fixture = McpFixture::start().await;
    fixture.model.script(ScriptedResponse::text("never said"));
    let (engine, alive) = (fixture.engine.clone(), Arc::new(Mutex::new(None)));
    let seen = Arc::clone(&alive);
    fixture.point_hook.arm(Point::McpStart, 1, move || {
        let scope = StopScope::whole_session(parse_session_key("s"));
        let stop = engine.stop(&alice(), &scope, &stop_ask(StopLevel::Gentle));
        *seen.lock().unwrap() = Some((stop.aborted.len(), engine.mcp().count_live()));
    });
    let run = fixture.send(submission("s", "hello")).await;
    let view = fixture.wait_ended(&run).await;
    assert_eq!(*alive.lock().unwrap(), Some((1, 0)), "a server was started before the stop was noticed");
    assert!(receipt_of(&view).resources.iter().all(|row| row.kind != ResourceKind::McpCall), "{view:#?}");
    fixture.wait_servers(0).await;
    assert_eq!(mcp::received_messages(&fixture.log).len(), 0);
    fixture.close().await;
}

mod timing {
    use std::time::SystemTime;

    use super::*;

    /// The target is 10 ms.
    #[tokio::test(flavor = "multi_thread")]
    async fn the_cancel_reaches_the_server() {
        let fixture = McpFixture::start().await;
        for number in 1..=5 {
            let run = fixture.start_held_call(&format!("s{number}"), "decline", json!({}), number).await;
            let asked = SystemTime::now();
            fixture.stop(&run);
            let cancels = fixture.wait_messages("notifications/cancelled", number).await;
            report_time("a cancel at the server", cancels[number - 1].at.duration_since(asked).unwrap_or_default());
            fixture.wait_ended(&run).await;
        }
        fixture.close().await;
    }

    /// The target is 800 ms.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_forced_stop_ends_a_deaf_server() {
        let fixture = McpFixture::start().await;
        let run = fixture.start_call("s", "deaf", json!({})).await;
        fixture.wait_printed(&run, "progress").await;
        let _ = fixture.engine.stop(&alice(), &run_stop_scope(&run), &stop_ask(StopLevel::Forced));
        let settled_ms = receipt_of(&fixture.wait_ended(&run).await).settled_at.ms.unwrap();
        report_time("a forced stop of a deaf server", Duration::from_secs_f64(settled_ms / 1000.0));
        fixture.close().await;
    }
}

/// What a server has started goes on after its call. It ends with everything, and with its session by force.
#[rstest]
#[case::everything(StopScope::Everything, StopLevel::Gentle)]
#[case::everything_by_force(StopScope::Everything, StopLevel::Forced)]
#[case::its_session_by_force(session_stop_scope("s"), StopLevel::Forced)]
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_idle_servers_with_what_they_started(#[case] scope: StopScope, #[case] level: StopLevel) {
    let fixture = McpFixture::start().await;
    let before = fixture.call_and_answer("s", "pid").await;
    assert_eq!(fixture.call_and_answer("s", "spawn").await, "spawned");
    // A gentle stop of the session keeps a server that is at rest.
    let gentle = fixture.engine.stop(&alice(), &session_stop_scope("s"), &stop_ask(StopLevel::Gentle));
    assert!(gentle.aborted.is_empty());
    assert_eq!(fixture.call_and_answer("s", "pid").await, before);
    let listed = fixture.session_servers("s");
    assert_eq!((listed[0].command.as_str(), listed[0].state.as_str()), ("MCP server test", "running"));
    assert_alive_as_the_system_shows(&fixture, &listed[0]);
    let stop = fixture.engine.stop(&root(), &scope, &stop_ask(level));
    let named = build_stop_answer(&stop);
    assert!(named.aborted, "{named:#?}");
    assert_eq!(named.processes.iter().map(|row| &row.id).collect::<Vec<_>>(), [&listed[0].id]);
    stop.wait_settled().await;
    assert_eq!(fixture.marker.marked_processes(), [], "the stop was over before the server");
    let ended = fixture.session_servers("s").remove(0);
    assert!(ended.state == "ended" && ended.alive.is_empty() && ended.leftovers.is_empty(), "{ended:#?}");
    assert_eq!(build_stop_answer(&stop).processes, [ended]);
    assert_ne!(fixture.call_and_answer("s", "pid").await, before, "the next message has a new one");
    fixture.close().await;
}

/// Nobody ends the servers of others.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_everything_leaves_the_servers_of_others() {
    let fixture = McpFixture::start().await;
    let before = fixture.call_and_answer("s", "pid").await;
    let _stopped = fixture.engine.stop(&bob(), &StopScope::Everything, &stop_ask(StopLevel::Forced));
    assert_eq!(fixture.call_and_answer("s", "pid").await, before);
    fixture.close().await;
}

/// The server need not have a call when the run is stopped.
#[rstest]
#[case::in_a_call(Some("wait"))]
#[case::between_calls(None)]
#[tokio::test(flavor = "multi_thread")]
async fn a_gentle_stop_ends_a_server_with_what_was_born_in_the_run(#[case] call: Option<&str>) {
    let fixture = McpFixture::start().await;
    let before = fixture.call_and_answer("s", "pid").await;
    fixture.model.script(ScriptedResponse::tool_call("call-1", "test__spawn", &json!({"text": "hello"})));
    match call {
        Some(tool) => fixture.model.script(ScriptedResponse::tool_call("call-2", format!("test__{tool}"), &json!({}))),
        None => fixture.model.script(ScriptedResponse::silent_mid_stream("thinking")),
    };
    let run = fixture.send(submission("s", "do it")).await;
    match call {
        Some(_) => drop(fixture.wait_messages("tools/call", 3).await),
        None => fixture.wait_text(&run).await,
    }
    let view = fixture.stop_to_end(&run).await;
    assert_eq!(fixture.marker.marked_processes(), [], "the stop was over before what the server had started");
    let row = server_row(&view);
    assert!(row.process.as_ref().is_some_and(|facts| facts.swept > 0), "{row:#?}");
    assert_eq!(row.how, "term", "{row:#?}");
    assert!(row.label.contains("a process that it had started outlived the stop"), "{row:#?}");
    assert!(row.process.as_ref().is_some_and(|facts| facts.pid > 0), "{row:#?}");
    assert_ne!(fixture.call_and_answer("s", "pid").await, before);
    fixture.close().await;
}

/// What it started for an earlier run is no reason to end it.
#[tokio::test(flavor = "multi_thread")]
async fn a_gentle_stop_keeps_a_server_that_has_started_nothing_in_the_run() {
    let fixture = McpFixture::start().await;
    let before = fixture.call_and_answer("s", "pid").await;
    let finished = fixture.run_call("s", "spawn").await;
    assert_eq!(server_row(&finished).how, "kept");
    let run = fixture.start_held_call("s", "wait", json!({}), 3).await;
    let view = fixture.stop_to_end(&run).await;
    assert_eq!((server_row(&view).how.as_str(), receipt_of(&view).rung), ("kept", Rung::Cancel), "{view:#?}");
    let line = receipt_line(receipt_of(&view));
    assert!(!line.contains("process"), "a server that goes on is counted: {line}");
    assert_eq!(fixture.call_and_answer("s", "pid").await, before);
    assert_alive_as_the_system_shows(&fixture, &fixture.session_servers("s")[0]);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_stop_of_a_run_ends_its_server() {
    let fixture = McpFixture::start().await;
    let before = fixture.call_and_answer("s", "pid").await;
    fixture.model.script(ScriptedResponse::tool_call("call-1", "test__echo", &json!({"text": "hello"})));
    fixture.model.script(ScriptedResponse::silent_mid_stream("thinking"));
    let run = fixture.send(submission("s", "do it")).await;
    fixture.wait_text(&run).await;
    let _stopped = fixture.engine.stop(&alice(), &run_stop_scope(&run), &stop_ask(StopLevel::Forced));
    let view = fixture.wait_ended(&run).await;
    assert!(matches!(server_row(&view).how.as_str(), "term" | "kill"), "{view:#?}");
    assert_eq!(fixture.marker.marked_processes(), []);
    assert_ne!(fixture.call_and_answer("s", "pid").await, before);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_ends_the_server_of_a_session() {
    let fixture = McpFixture::start().await;
    fixture.call_and_answer("s", "spawn").await;
    let process = fixture.engine.session_processes(&parse_session_key("s")).remove(0);
    assert!(!fixture.engine.end_process(&bob(), &process, StopLevel::Gentle), "it works for another");
    assert!(fixture.engine.end_process(&alice(), &process, StopLevel::Gentle));
    process.wait_ended().await;
    assert_eq!(fixture.marker.marked_processes(), []);
    fixture.close().await;
}

/// Bob works in alice's session: her server is hers to end, but not while it works for him.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_of_a_session_is_its_starter_s_but_not_in_the_call_of_another() {
    let fixture = McpFixture::start().await;
    fixture.call_and_answer("s", "pid").await;
    let key = parse_session_key("s");
    fixture.engine.share_session(&alice(), &key, true).await.unwrap();
    fixture.model.script(ScriptedResponse::tool_call("c", "test__wait", &json!({})));
    let sent = fixture.engine.submit(&bob(), submission("s", "do it")).await.unwrap();
    let SubmitOutcome::Accepted(answer) = sent else { panic!("{sent:?}") };
    let run = answer.run_id;
    fixture.wait_messages("tools/call", 2).await;
    assert_eq!(fixture.session_servers("s")[0].principal.as_str(), "alice");
    let process = fixture.engine.session_processes(&key).remove(0);
    assert!(!fixture.engine.end_process(&bob(), &process, StopLevel::Gentle));
    assert!(fixture.engine.end_process(&alice(), &process, StopLevel::Forced));
    assert!(fixture.holds_call(&run), "his call was ended");
    let _stopped = fixture.engine.stop(&root(), &run_stop_scope(&run), &stop_ask(StopLevel::Gentle));
    fixture.wait_servers(0).await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_of_a_deleted_session_is_listed_no_more() {
    let fixture = McpFixture::start().await;
    fixture.call_and_answer("s", "pid").await;
    assert!(fixture.delete_session("s").await);
    fixture.wait_servers(0).await;
    assert_eq!(fixture.session_servers("s"), []);
    fixture.close().await;
}

/// The server with all that is below it, and nothing else.
fn assert_alive_as_the_system_shows(fixture: &McpFixture, server: &ProcessRow) {
    let mut shown: Vec<u32> = server.alive.iter().map(|process| process.pid).collect();
    let mut alive: Vec<u32> = fixture.marker.marked_processes().iter().map(|process| process.pid).collect();
    shown.sort_unstable();
    alive.sort_unstable();
    assert!(
        alive.len() > 1 && alive.iter().all(|pid| shown.contains(pid)),
        "{server:#?}, but the system has {alive:?}"
    );
    assert_eq!(server.pid, server.alive.first().map(|process| process.pid), "its own comes first");
}
