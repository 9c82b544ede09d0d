//! Agents that are deleted: never under a run, by force only when it is over, with all below them.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use quell_engine::dispatch::Removal;
use quell_kernel::Push;
use quell_kernel::registry::StopAsk;
use quell_protocol::{AgentId, StopReason, Surface};
use quell_testkit::Behaviour;
use serde_json::{Value, json};

use super::{endless, ids, make, path, send_to};
use crate::doors::{House, assert_problem, escape};
use crate::harness::{PATIENCE, root};

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_agent_goes_with_all_below_it_and_stays_gone() {
    let house = House::open().await;
    make(&house, "top", json!({"parent": "main"})).await;
    make(&house, "middle", json!({"parent": "top"})).await;
    make(&house, "low", json!({"parent": "middle"})).await;
    make(&house, "other", json!({})).await;
    let deleted = house.http.delete("/api/agents/top").await.expect_status(200);
    assert_eq!(deleted, json!({"deleted": ["low", "middle", "top"], "runIds": []}));
    assert_problem(&house.http.delete("/api/agents/top").await, 404, "agent_not_found");
    assert_problem(&house.http.get("/api/agents/low").await, 404, "agent_not_found");
    let refused = house.post_run("s", &json!({"text": "x", "agent": "middle"})).await;
    assert_problem(&refused, 404, "agent_not_found");
    let house = house.reopen().await;
    assert_eq!(ids(&house.http).await, ["main", "other", "team/writer"]);
    // Its id is free, and what comes in its place takes runs.
    make(&house, "top", json!({})).await;
    house.model.script(Behaviour::text("here"));
    let run = send_to(&house, "top", "s", "x").await;
    assert_eq!(house.ended(&run).await["output"], "here");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_configuration_names_is_removed_there() {
    let house = House::open().await;
    for id in ["main", "team/writer"] {
        for query in ["", "?force"] {
            let answer = house.http.delete(&format!("{}{query}", path(id))).await;
            assert_problem(&answer, 409, "conflict");
            let detail = answer.body["detail"].as_str().unwrap();
            assert!(detail.contains(&format!("remove [agents.{id}] from quell.toml")), "{detail}");
        }
    }
    assert_problem(&house.http.delete("/api/agents/nobody").await, 404, "agent_not_found");
    assert_problem(&house.http.delete("/api/agents/%20").await, 400, "missing_agent_id");
    assert_problem(&house.http.delete("/api/agents/main?forse").await, 400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_with_runs_below_it_is_deleted_by_force_only() {
    let house = House::open().await;
    make(&house, "top", json!({})).await;
    make(&house, "low", json!({"parent": "top"})).await;
    let running = endless(&house, "low", "s").await;
    let queued = send_to(&house, "top", "s", "and then").await;
    for query in ["", "?force=0", "?force=false"] {
        let answer = house.http.delete(&format!("/api/agents/top{query}")).await;
        assert_problem(&answer, 409, "agent_busy");
        let detail = answer.body["detail"].as_str().unwrap();
        assert!(detail.contains(&running) && detail.contains(&queued), "both are named: {detail}");
    }
    assert_eq!(house.http.get("/api/agents/low").await.expect_status(200)["activeRuns"], json!([running]));
    let third = send_to(&house, "low", "t", "it still takes runs").await;
    let deleted = house.http.delete("/api/agents/top?force").await.expect_status(200);
    assert_eq!(deleted["deleted"], json!(["low", "top"]));
    let stopped: BTreeSet<&str> = deleted["runIds"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    for run in [&running, &queued] {
        assert!(stopped.contains(run.as_str()), "{stopped:?}");
    }
    for run in [&running, &queued, &third] {
        let view = house.http.get(&format!("/api/runs/{run}")).await.expect_status(200);
        assert_eq!(view["state"], "ended", "the answer came when all was over: {view:#}");
    }
    let view = house.http.get(&format!("/api/runs/{running}")).await.expect_status(200);
    assert_eq!(view["receipt"]["leftovers"], json!([]));
    assert_eq!(view["verdict"]["by"], json!({"principal": "admin", "surface": "http"}));
    house.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_agent_is_gone_goes_on_with_the_default_one() {
    let house = House::open().await;
    make(&house, "guest", json!({"tools": []})).await;
    house.model.script(Behaviour::text("I am the guest."));
    let run = send_to(&house, "guest", "s", "remember amber").await;
    house.ended(&run).await;
    let _ = house.http.delete("/api/agents/guest").await.expect_status(200);
    house.model.script(Behaviour::text("I am main."));
    let run = house.send("s", "who now?").await;
    assert_eq!(house.ended(&run).await["agent"], "main");
    let asked = house.model.seen()[1].body["messages"].to_string();
    assert!(asked.contains("remember amber") && asked.contains("I am the guest."), "the history stays: {asked}");
    house.model.assert_histories_valid();
}

/// The session says itself how it works, and was set up for the agent that is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_set_up_for_an_agent_that_is_gone_goes_on_with_the_default_one() {
    let house = House::open().await;
    make(&house, "guest", json!({"tools": []})).await;
    let asked = json!({"userId": "u", "chatId": "c", "provider": "scripted", "agent": "guest", "maxTokens": 77});
    let made = house.http.post("/api/sessions", &asked).await.expect_status(201);
    let key = made["key"].as_str().unwrap().to_owned();
    house.model.script(Behaviour::text("I am the guest."));
    let run = house.send(&key, "who?").await;
    assert_eq!(house.ended(&run).await["agent"], "guest");
    let _ = house.http.delete("/api/agents/guest").await.expect_status(200);
    let shown = house.http.get(&format!("/api/sessions/{}", escape(&key))).await;
    assert_eq!(shown.status, 200, "{shown:?}");
    // Alive, and after a restart.
    let mut house = house;
    for text in ["and now?", "and after a restart?"] {
        house.model.script(Behaviour::text("I am main."));
        let run = house.send(&key, text).await;
        let view = house.ended(&run).await;
        assert_eq!((&view["agent"], &view["verdict"]["kind"]), (&json!("main"), &json!("completed")), "{view:#}");
        assert_eq!(house.model.seen().last().unwrap().body["max_tokens"], 77, "what it says itself stays");
        house = house.reopen().await;
    }
    house.model.assert_histories_valid();
}

/// Messages keep coming to an agent and to one below it while it is deleted by force: each is refused, or its run is over when
/// the deletion answers. None works on behind it.
#[tokio::test(flavor = "multi_thread")]
async fn no_run_slips_in_while_an_agent_is_deleted_by_force() {
    const SENDERS: usize = 8;
    const MESSAGES: usize = 25;
    let house = House::open().await;
    house.model.by_prompt(|_, _| Behaviour::silent_mid_stream("for ever"));
    for round in 0..4 {
        make(&house, "top", json!({"tools": []})).await;
        make(&house, "low", json!({"parent": "top", "tools": []})).await;
        let send = |sender: usize| {
            let house = &house;
            async move {
                let mut taken = Vec::new();
                for number in 0..MESSAGES {
                    let agent = if number % 2 == 0 { "top" } else { "low" };
                    let session = format!("{round}-{sender}-{number}");
                    let answer = house.post_run(&session, &json!({"text": "x", "agent": agent})).await;
                    match answer.status {
                        202 => taken.push(answer.body["runId"].as_str().unwrap().to_owned()),
                        _ => assert_problem(&answer, 404, "agent_not_found"),
                    }
                }
                taken
            }
        };
        let senders = join_all((0..SENDERS).map(send));
        let delete = async {
            // In the midst of the messages.
            house.model.requests(house.model.request_count() + 10).await;
            let deleted = house.http.delete("/api/agents/top?force").await.expect_status(200);
            let active = house.http.get("/api/runs?state=active").await.expect_status(200);
            assert_eq!(active["items"], json!([]), "the deletion answers when all is over");
            deleted
        };
        let (taken, deleted) = tokio::join!(senders, delete);
        let taken: BTreeSet<String> = taken.into_iter().flatten().collect();
        let stopped: BTreeSet<String> =
            deleted["runIds"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect();
        assert!(
            !taken.is_empty() && taken.len() < SENDERS * MESSAGES,
            "some came before, some behind: {}",
            taken.len()
        );
        assert_eq!(taken, stopped, "each that was taken was stopped");
        for run in &taken {
            let view: Value = house.http.get(&format!("/api/runs/{run}")).await.expect_status(200);
            assert_eq!((&view["state"], &view["receipt"]["leftovers"]), (&json!("ended"), &json!([])), "{view:#}");
        }
        assert_eq!(house.engine.model_requests(), 0, "every model request is closed");
        assert_eq!(ids(&house.http).await, ["main", "team/writer"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_goes_on_and_is_listed_when_its_caller_leaves() {
    let house = House::open().await;
    make(&house, "top", json!({})).await;
    let run = endless(&house, "top", "s").await;
    let ask = StopAsk { push: Push::Gentle, reason: StopReason::User, surface: Surface::Http };
    let (id, caller) = (AgentId::parse("top").unwrap(), root());
    let deletion = house.engine.delete_agent(&caller, &id, Removal::Force(ask));
    let left = tokio::time::timeout(Duration::ZERO, deletion).await;
    assert!(left.is_err(), "it has to wait for the run");
    assert_eq!(house.ended(&run).await["verdict"]["by"]["principal"], "root");
    let listed = async {
        while !house.http.get("/api/audit").await.expect_status(200).to_string().contains("delete_agent") {
            // The list is written behind the deed; nobody but a test waits for it.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, listed).await.expect("the deletion is listed");
    assert!(house.engine.agent(&id).is_none());
    assert_eq!(ids(&house.reopen().await.http).await, ["main", "team/writer"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_that_delete_one_agent_at_once_one_does_it() {
    let house = House::open().await;
    make(&house, "top", json!({})).await;
    endless(&house, "top", "s").await;
    let answers = join_all((0..4).map(|_| house.http.delete("/api/agents/top?force"))).await;
    let done = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!(done, 1, "{answers:?}");
    for other in answers.iter().filter(|answer| answer.status != 200) {
        assert!(matches!(other.code(), Some("conflict" | "agent_not_found")), "{other:?}");
    }
    make(&house, "top", json!({})).await;
}
