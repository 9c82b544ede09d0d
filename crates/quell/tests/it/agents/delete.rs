//! Delete agents: never under a run, by force with all descendants.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use quell_engine::engine::AgentRemoval;
use quell_kernel::registry::StopRequest;
use quell_protocol::Surface;

use super::{agent_ids, agent_path, create_agent, send_to_agent, start_endless_run};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_agent_goes_with_all_below_it_and_stays_gone() {
    let server = TestServer::start().await;
    create_agent(&server, "top", json!({"parent": "main"})).await;
    create_agent(&server, "middle", json!({"parent": "top"})).await;
    create_agent(&server, "low", json!({"parent": "middle"})).await;
    create_agent(&server, "other", json!({})).await;
    let deleted = server.http.delete("/api/agents/top").await.expect_status(200);
    assert_eq!(deleted, json!({"deleted": ["low", "middle", "top"], "runIds": []}));
    assert_problem(&server.http.delete("/api/agents/top").await, 404, "agent_not_found");
    assert_problem(&server.http.get("/api/agents/low").await, 404, "agent_not_found");
    let refused = server.post_run("s", &json!({"text": "x", "agent": "middle"})).await;
    assert_problem(&refused, 404, "agent_not_found");
    let server = server.restart().await;
    assert_eq!(agent_ids(&server.http).await, ["main", "other", "team/writer"]);
    // The id is free again, and a new agent with this id accepts runs.
    create_agent(&server, "top", json!({})).await;
    server.model.script(ScriptedResponse::text("here"));
    let run = send_to_agent(&server, "top", "s", "x").await;
    assert_eq!(server.wait_ended(&run).await["output"], "here");
}

#[tokio::test(flavor = "multi_thread")]
async fn configured_agents_can_only_be_removed_in_the_file() {
    let server = TestServer::start().await;
    for id in ["main", "team/writer"] {
        for query in ["", "?force"] {
            let answer = server.http.delete(&format!("{}{query}", agent_path(id))).await;
            assert_problem(&answer, 409, "conflict");
            let detail = answer.body["detail"].as_str().unwrap();
            assert!(detail.contains(&format!("remove [agents.{id}] from quell.toml")), "{detail}");
        }
    }
    assert_problem(&server.http.delete("/api/agents/nobody").await, 404, "agent_not_found");
    assert_problem(&server.http.delete("/api/agents/%20").await, 400, "missing_agent_id");
    assert_problem(&server.http.delete("/api/agents/main?forse").await, 400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_with_runs_below_it_is_deleted_by_force_only() {
    let server = TestServer::start().await;
    create_agent(&server, "top", json!({})).await;
    create_agent(&server, "low", json!({"parent": "top"})).await;
    let running = start_endless_run(&server, "low", "s").await;
    let queued = send_to_agent(&server, "top", "s", "and then").await;
    for query in ["", "?force=0", "?force=false"] {
        let answer = server.http.delete(&format!("/api/agents/top{query}")).await;
        assert_problem(&answer, 409, "agent_busy");
        let detail = answer.body["detail"].as_str().unwrap();
        assert!(detail.contains(&running) && detail.contains(&queued), "both runs must be named: {detail}");
    }
    assert_eq!(server.http.get("/api/agents/low").await.expect_status(200)["activeRuns"], json!([running]));
    let third = send_to_agent(&server, "low", "t", "it still takes runs").await;
    let deleted = server.http.delete("/api/agents/top?force").await.expect_status(200);
    assert_eq!(deleted["deleted"], json!(["low", "top"]));
    let stopped: BTreeSet<&str> = deleted["runIds"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    for run in [&running, &queued] {
        assert!(stopped.contains(run.as_str()), "{stopped:?}");
    }
    for run in [&running, &queued, &third] {
        let view = server.http.run_view(run).await;
        assert_eq!(view["state"], "ended", "the deletion answered before the run was over: {view:#}");
    }
    let view = server.http.run_view(&running).await;
    assert_eq!(view["receipt"]["leftovers"], json!([]));
    assert_eq!(view["verdict"]["by"], json!({"principal": "admin", "surface": "http"}));
    server.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_agent_is_gone_goes_on_with_the_default_one() {
    let server = TestServer::start().await;
    create_agent(&server, "guest", json!({"tools": []})).await;
    server.model.script(ScriptedResponse::text("I am the guest."));
    let run = send_to_agent(&server, "guest", "s", "remember amber").await;
    server.wait_ended(&run).await;
    let _ = server.http.delete("/api/agents/guest").await.expect_status(200);
    server.model.script(ScriptedResponse::text("I am main."));
    let run = server.send_message("s", "who now?").await;
    assert_eq!(server.wait_ended(&run).await["agent"], "main");
    let asked = server.model.recorded_requests()[1].body["messages"].to_string();
    assert!(asked.contains("remember amber") && asked.contains("I am the guest."), "the history was lost: {asked}");
    server.model.assert_histories_valid();
}

/// The session has settings of its own and named the deleted agent.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_set_up_for_an_agent_that_is_gone_goes_on_with_the_default_one() {
    let server = TestServer::start().await;
    create_agent(&server, "guest", json!({"tools": []})).await;
    let asked = json!({"userId": "u", "chatId": "c", "provider": "scripted", "agent": "guest", "maxTokens": 77});
    let made = server.http.post("/api/sessions", &asked).await.expect_status(201);
    let key = made["key"].as_str().unwrap().to_owned();
    server.model.script(ScriptedResponse::text("I am the guest."));
    let run = server.send_message(&key, "who?").await;
    assert_eq!(server.wait_ended(&run).await["agent"], "guest");
    let _ = server.http.delete("/api/agents/guest").await.expect_status(200);
    let shown = server.http.get(&format!("/api/sessions/{}", percent_encode(&key))).await;
    assert_eq!(shown.status, 200, "{shown:?}");
    // First without a restart, then after one.
    let mut server = server;
    for text in ["and now?", "and after a restart?"] {
        server.model.script(ScriptedResponse::text("I am main."));
        let run = server.send_message(&key, text).await;
        let view = server.wait_ended(&run).await;
        assert_eq!((&view["agent"], &view["verdict"]["kind"]), (&json!("main"), &json!("completed")), "{view:#}");
        assert_eq!(
            server.model.recorded_requests().last().unwrap().body["max_tokens"],
            77,
            "the session's own setting was lost"
        );
        server = server.restart().await;
    }
    server.model.assert_histories_valid();
}

/// Messages keep arriving at an agent and its child during a forced deletion. Each is refused, or its run is over when
/// the deletion answers.
#[tokio::test(flavor = "multi_thread")]
async fn no_run_slips_in_while_an_agent_is_deleted_by_force() {
    const SENDERS: usize = 8;
    const MESSAGES: usize = 25;
    let server = TestServer::start().await;
    server.model.respond_by_prompt(|_, _| ScriptedResponse::silent_mid_stream("for ever"));
    for round in 0..4 {
        create_agent(&server, "top", json!({"tools": []})).await;
        create_agent(&server, "low", json!({"parent": "top", "tools": []})).await;
        let send = |sender: usize| {
            let server = &server;
            async move {
                let mut accepted = Vec::new();
                for number in 0..MESSAGES {
                    let agent = if number % 2 == 0 { "top" } else { "low" };
                    let session = format!("{round}-{sender}-{number}");
                    let answer = server.post_run(&session, &json!({"text": "x", "agent": agent})).await;
                    match answer.status {
                        202 => accepted.push(answer.body["runId"].as_str().unwrap().to_owned()),
                        _ => assert_problem(&answer, 404, "agent_not_found"),
                    }
                }
                accepted
            }
        };
        let senders = join_all((0..SENDERS).map(send));
        let delete = async {
            // While messages arrive.
            server.model.wait_for_requests(server.model.request_count() + 10).await;
            let deleted = server.http.delete("/api/agents/top?force").await.expect_status(200);
            let active = server.http.get("/api/runs?state=active").await.expect_status(200);
            assert_eq!(active["items"], json!([]), "the deletion answered before all runs were over");
            deleted
        };
        let (accepted, deleted) = tokio::join!(senders, delete);
        let accepted: BTreeSet<String> = accepted.into_iter().flatten().collect();
        let stopped: BTreeSet<String> =
            deleted["runIds"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect();
        assert!(
            !accepted.is_empty() && accepted.len() < SENDERS * MESSAGES,
            "the deletion must fall between the messages: {} accepted",
            accepted.len()
        );
        assert_eq!(accepted, stopped, "an accepted run was not stopped");
        for run in &accepted {
            let view: Value = server.http.run_view(run).await;
            assert_eq!((&view["state"], &view["receipt"]["leftovers"]), (&json!("ended"), &json!([])), "{view:#}");
        }
        assert_eq!(server.engine.count_model_requests(), 0, "a model request is still open");
        assert_eq!(agent_ids(&server.http).await, ["main", "team/writer"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_goes_on_and_is_listed_when_its_caller_leaves() {
    let server = TestServer::start().await;
    create_agent(&server, "top", json!({})).await;
    let run = start_endless_run(&server, "top", "s").await;
    let ask = StopRequest { level: StopLevel::Gentle, reason: StopReason::User, surface: Surface::Http };
    let (id, caller) = (AgentId::parse("top").unwrap(), root());
    let deletion = server.engine.delete_agent(&caller, &id, AgentRemoval::Force(ask));
    let left = tokio::time::timeout(Duration::ZERO, deletion).await;
    assert!(left.is_err(), "it has to wait for the run");
    assert_eq!(server.wait_ended(&run).await["verdict"]["by"]["principal"], "root");
    // The audit entry is written after the deletion.
    poll_until("the deletion in the audit log", async || {
        let audit = server.http.get("/api/audit").await.expect_status(200).to_string();
        audit.contains("delete_agent").then_some(())
    })
    .await;
    assert!(server.engine.find_agent(&id).is_none());
    assert_eq!(agent_ids(&server.restart().await.http).await, ["main", "team/writer"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_that_delete_one_agent_at_once_one_does_it() {
    let server = TestServer::start().await;
    create_agent(&server, "top", json!({})).await;
    start_endless_run(&server, "top", "s").await;
    let answers = join_all((0..4).map(|_| server.http.delete("/api/agents/top?force"))).await;
    let done = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!(done, 1, "{answers:?}");
    for other in answers.iter().filter(|answer| answer.status != 200) {
        assert!(matches!(other.problem_code(), Some("conflict" | "agent_not_found")), "{other:?}");
    }
    create_agent(&server, "top", json!({})).await;
}
