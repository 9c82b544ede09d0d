//! Delete agents: never under a run, by force with all descendants.

use quell_kernel::registry::StopRequest;
use quell_protocol::Surface;

use super::*;

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
    assert_eq!(run_agent(&server, "top", "s", "x", "here").await["output"], "here");
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

/// Also one that names the agent in settings of its own, which it keeps.
#[rstest]
#[case::without_settings(false)]
#[case::with_settings(true)]
#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_agent_is_gone_goes_on_with_the_default_one(#[case] has_settings: bool) {
    let mut server = TestServer::start().await;
    create_agent(&server, "guest", json!({"tools": []})).await;
    let asked = json!({"userId": "u", "chatId": "c", "provider": "scripted", "agent": "guest", "maxTokens": 77});
    let (key, named) = if has_settings { ("u:c:scripted", json!({})) } else { ("s", json!({"agent": "guest"})) };
    if has_settings {
        assert_eq!(server.http.post("/api/sessions", &asked).await.expect_status(201)["key"], key);
    }
    server.model.script(ScriptedResponse::text("I am the guest."));
    let mut body = json!({"text": "remember amber"});
    body.as_object_mut().unwrap().extend(named.as_object().unwrap().clone());
    let run = server.http.start_run(key, &body).await;
    assert_eq!(server.wait_ended(&run).await["agent"], "guest");
    let _ = server.http.delete("/api/agents/guest").await.expect_status(200);
    let _ = server.http.get(&format!("/api/sessions/{}", percent_encode(key))).await.expect_status(200);
    // First without a restart, then after one.
    for text in ["and now?", "and after a restart?"] {
        let view = server.run_scripted(key, text, ScriptedResponse::text("I am main.")).await;
        assert_eq!((&view["agent"], &view["verdict"]["kind"]), (&json!("main"), &json!("completed")), "{view:#}");
        let asked = server.model.recorded_requests().pop().unwrap().body.clone();
        assert_eq!(asked["max_tokens"] == 77, has_settings, "the session's own setting was lost");
        let messages = asked["messages"].to_string();
        assert!(messages.contains("remember amber") && messages.contains("I am the guest."), "{messages}");
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
        let stopped = deleted["runIds"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned());
        let stopped: BTreeSet<String> = stopped.collect();
        let count = accepted.len();
        assert!((1..SENDERS * MESSAGES).contains(&count), "{count} accepted: none after, or none before the deletion");
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
