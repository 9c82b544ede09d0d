//! What a session brings along: an MCP endpoint of its own, settings that do not fit its agent, keys that cannot be read any more,
//! a provider that is gone. Nothing of it is anybody else's fault.

use std::sync::Arc;

use quell_engine::dispatch::{Got, NotMade};
use quell_protocol::session::{Secret, SessionRequest};
use quell_testkit::mcp::HttpServer;
use quell_testkit::model::{Behaviour, Stream};
use quell_testkit::{ScriptedModel, leaks};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::{Around, Scene, request};
use crate::doors::{House, assert_problem, escape};
use crate::harness::{PATIENCE, agent, alice, message};

fn with_endpoint(server: &HttpServer, key: &str) -> SessionRequest {
    let mut asked = request("u", "c");
    (asked.mcp_url, asked.mcp_api_key) = (Some(server.url()), Some(Secret::new(key.to_owned())));
    asked
}

fn echo(id: &str) -> Behaviour {
    Behaviour::tool_call(id, "mcp__echo", &json!({"text": "hello"}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_calls_the_endpoint_of_its_session_with_its_key_also_while_that_is_changed() {
    let scene = Scene::open().await;
    let (old, new) = (HttpServer::start().await, HttpServer::start().await);
    let (session, _) = scene.house.engine.open_session(&alice(), with_endpoint(&old, "sk-old")).await.unwrap();
    let then = Stream::new().text("wait").wait_for("changed").tool_call("c2", "mcp__echo", &json!({"text": "again"}));
    scene.house.script("first", [echo("c1"), then.into(), Behaviour::text("done")]);
    let run = scene.house.send(message(session.as_str(), "marker:first")).await;
    scene.house.text_came(&run).await;
    scene.house.engine.open_session(&alice(), with_endpoint(&new, "sk-new")).await.unwrap();
    scene.house.model.open_gate("changed");
    scene.house.ended(&run).await;
    // It went on with what it had.
    assert_eq!(old.keys_of("tools/call"), vec![Some("Bearer sk-old".to_owned()); 2]);
    scene.house.script("second", [echo("c3"), Behaviour::text("done")]);
    scene.house.ask(session.as_str(), "marker:second").await;
    assert_eq!(new.keys_of("tools/call"), [Some("Bearer sk-new".to_owned())], "the next run has the old endpoint");
    assert_eq!(old.got("tools/call"), 2);
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_something_else_keeps_the_connection_to_its_endpoint() {
    let scene = Scene::open().await;
    let server = HttpServer::start().await;
    let mut asked = with_endpoint(&server, "sk");
    for (marker, language) in [("first", "ko-KR"), ("second", "de-DE")] {
        asked.language = Some(language.to_owned());
        let (session, _) = scene.house.engine.open_session(&alice(), asked.clone()).await.unwrap();
        scene.house.script(marker, [echo(marker), Behaviour::text("done")]);
        scene.house.ask(session.as_str(), &format!("marker:{marker}")).await;
    }
    assert_eq!((server.got("tools/call"), server.got("initialize")), (2, 1));
    scene.house.close().await;
}

#[rstest]
#[case::temperature(json!({"temperature": 0.5}), "no temperature but 1")]
#[case::tokens(json!({"maxTokens": 2000}), "less than max_tokens")]
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_its_agent_cannot_work_with_is_refused_and_not_stored(#[case] extra: Value, #[case] says: &str) {
    let house = House::with(|plan| {
        let anthropic = quell_engine::llm::ProviderConfig::new(quell_engine::llm::ProviderKind::Anthropic);
        plan.engine.providers.insert("thinker".to_owned(), anthropic);
        let main = plan.engine.agents.values_mut().next().unwrap();
        (main.model, main.thinking_tokens) = ("thinker/model".to_owned(), Some(4000));
    })
    .await;
    let mut asked = json!({"userId": "u", "chatId": "c", "provider": "thinker"});
    // The defaults do: a model that thinks gets no temperature.
    let _ = house.http.post("/api/sessions", &asked).await.expect_status(201);
    let shown = |house: &House| {
        let api = house.http.clone();
        async move {
            api.get(&format!("/api/sessions/{}", escape("u:c:thinker"))).await.expect_status(200)["config"].clone()
        }
    };
    let before = shown(&house).await;
    assert!(before.get("temperature").is_none(), "{before}");
    asked.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let refused = house.http.post("/api/sessions", &asked).await;
    assert_problem(&refused, 422, "agent_configuration_error");
    assert!(refused.expect_status(422)["detail"].as_str().unwrap().contains(says));
    assert_eq!(shown(&house).await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_asks_for_in_vain_is_no_error_of_those_who_wait() {
    let undo_gate = Arc::new(Semaphore::new(0));
    let around = Around { names: vec!["a"], undo_gate: Some(Arc::clone(&undo_gate)), ..Around::default() };
    let scene = Scene::with(around, |_| {}).await;
    scene.house.engine.open_session(&alice(), request("u", "c")).await.unwrap();
    scene.time.skip(super::LONG);
    scene.house.engine.sweep_sessions();
    // Everybody waits for the clean-up; who comes first then asks for what cannot be.
    let mut bad = request("u", "c");
    bad.temperature = Some(7.5);
    let open = |asked| {
        let engine = scene.house.engine.clone();
        async move { engine.open_session(&alice(), asked).await }
    };
    let asked = (0..20).map(|number| if number == 10 { request("u", "c") } else { bad.clone() });
    let (opened, ()) = tokio::join!(futures_util::future::join_all(asked.map(open)), async {
        let engine = scene.house.engine.clone();
        leaks::settled(PATIENCE, move || match engine.awaiting_sessions() {
            20 => Ok(()),
            waiting => Err(format!("{waiting} wait")),
        })
        .await;
        undo_gate.add_permits(10);
    });
    for (number, opened) in opened.into_iter().enumerate() {
        match opened {
            Ok((_, got)) => assert!(number == 10 && got == Got::Known, "{number}: {got:?}"),
            Err(error) => assert!(number != 10 && matches!(error, NotMade::Configuration(_)), "{number}: {error}"),
        }
    }
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_cannot_be_read_any_more_can_be_given_again() {
    let house = House::open().await;
    let mut asked = json!({
        "userId": "u", "chatId": "c", "provider": "scripted", "apiKey": "sk-lost", "instruction": "Be brief.",
    });
    let _ = house.http.post("/api/sessions", &asked).await.expect_status(201);
    std::fs::remove_file(house.engine.config().data_dir.join("session.key")).unwrap();
    let house = house.reopen().await;
    let path = format!("/api/sessions/{}", escape("u:c:scripted"));
    let shown = house.http.get(&path).await.expect_status(200);
    let problem = shown["configProblem"].as_str().unwrap();
    assert!(problem.contains("give them again") && shown.get("config").is_none(), "{shown}");
    let run = house.send("u:c:scripted", "hello").await;
    assert_eq!(house.ended(&run).await["verdict"]["code"], "agent_configuration_error");
    asked["apiKey"] = json!("sk-new");
    asked.as_object_mut().unwrap().remove("instruction");
    let _ = house.http.post("/api/sessions", &asked).await.expect_status(200);
    house.model.script(Behaviour::text("done"));
    let run = house.send("u:c:scripted", "hello").await;
    house.ended(&run).await;
    let seen = house.model.seen().pop().unwrap();
    assert_eq!(seen.header("authorization"), Some("Bearer sk-new"));
    assert!(seen.messages()[0].to_string().contains("Be brief."), "the rest of its configuration is lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_provider_is_gone_says_so_before_its_next_run_fails() {
    let mine = ScriptedModel::start().await;
    let add = |plan: &mut crate::doors::Plan| {
        let mut provider = quell_engine::llm::ProviderConfig::new(quell_engine::llm::ProviderKind::Openai);
        provider.base_url = Some(mine.base_url());
        plan.engine.providers.insert("mine".to_owned(), provider);
    };
    let house = House::with(add).await;
    let asked = json!({"userId": "u", "chatId": "c", "provider": "mine", "model": "small"});
    let _ = house.http.post("/api/sessions", &asked).await.expect_status(201);
    let house = house.reopen().await;
    let shown = house.http.get(&format!("/api/sessions/{}", escape("u:c:mine"))).await.expect_status(200);
    assert!(shown["configProblem"].as_str().is_some_and(|problem| problem.contains("mine")), "{shown}");
    let run = house.send("u:c:mine", "hello").await;
    assert_eq!(house.ended(&run).await["verdict"]["code"], "agent_configuration_error");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_of_another_agent_from_now_on_may_be_idle_for_as_long_as_that_one_says() {
    let scene = Scene::with(Around { names: vec!["a"], ..Around::default() }, |config| {
        let mut hasty = config.agents[&agent("main")].clone();
        hasty.idle_s = Some(60);
        config.agents.insert(agent("hasty"), hasty);
    })
    .await;
    let mut asked = request("u", "c");
    scene.house.engine.open_session(&alice(), asked.clone()).await.unwrap();
    asked.agent = Some(agent("hasty"));
    scene.house.engine.open_session(&alice(), asked).await.unwrap();
    scene.pass(std::time::Duration::from_secs(62));
    scene.alive(0).await;
    scene.house.close().await;
}
