//! What agents get of a server, and servers of Quell.

use std::collections::BTreeSet;

use quell_engine::cell::Notice;
use quell_protocol::EventKind;
use quell_testkit::Behaviour;
use serde_json::{Value, json};

use super::{Scene, own_server, shown};
use crate::harness::{Claim, House, Watcher, agent};

fn offered(house: &House) -> Vec<String> {
    let request = house.model.seen().pop().unwrap();
    let tools = request.body["tools"].as_array().cloned().unwrap_or_default();
    tools.iter().filter_map(|tool| tool["function"]["name"].as_str().map(str::to_owned)).collect()
}

fn printed(notice: &Notice) -> Option<&str> {
    match notice {
        Notice::Run(event) => match &event.kind {
            EventKind::ToolOutput { text, .. } => Some(text),
            _ => None,
        },
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_are_offered_with_their_schemas_and_called() {
    let scene = Scene::open().await;
    assert_eq!(scene.answer("s", "echo").await, "hello");
    let names = offered(&scene.house);
    assert!(names.contains(&"test__echo".to_owned()) && names.contains(&"shell".to_owned()), "{names:?}");
    let odd = names.iter().find(|name| name.starts_with("test__dot_ted_")).unwrap().clone();
    let request = scene.house.model.seen().pop().unwrap();
    let tools = request.body["tools"].as_array().unwrap();
    let echo: &Value = tools.iter().find(|tool| tool["function"]["name"] == "test__echo").unwrap();
    assert_eq!(echo["function"]["description"], "Does echo.");
    assert_eq!(echo["function"]["parameters"]["properties"]["text"]["type"], "string");
    let odd = odd.strip_prefix("test__").unwrap().to_owned();
    assert_eq!(scene.answer("s", &odd).await, "dotted");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_shown_as_output_and_an_error_is_one() {
    let scene = Scene::open().await;
    let mut watcher = Watcher::of(&scene.house.engine);
    assert_eq!(scene.answer("s", "steps").await, "done");
    let output: String = watcher.seen().iter().filter_map(printed).collect();
    assert_eq!(output, "progress: 1 of 3\nprogress: 2 of 3\nprogress: 3 of 3\n");
    assert_eq!(scene.answer("s", "refuse").await, "no such thing");
    assert!(scene.answer("s", "nothing").await.contains("has no tool \"test__nothing\"; it has: test__echo"));
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_gets_little_environment_and_what_finds_it() {
    let scene = Scene::with(|server| {
        server.api_key_env = Some("TOKEN_OF_TEST".to_owned());
        server.api_key = Some("hush".to_owned().into());
    })
    .await;
    let seen = scene.answer("the session", "env").await;
    for part in ["QUELL_SESSION=the session", "QUELL_RUN_ID=mcp-test-", "TOKEN_OF_TEST=hush", "MCP_MARK="] {
        assert!(seen.contains(part), "{part} in {seen}");
    }
    assert!(!seen.contains("CARGO"), "{seen}");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_server_are_refused() {
    let scene = Scene::open().await;
    let refusals = scene.answer("s", "beg").await;
    // They come as they are ready.
    let refusals: BTreeSet<&str> = refusals.split_whitespace().collect();
    assert_eq!(refusals, BTreeSet::from(["e-32601", "r-32601", "s-32601"]));
    let hello = scene.got("initialize", 1).await;
    assert_eq!(hello[0].message["params"]["capabilities"], json!({}));
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_list_of_tools_is_read_again() {
    let scene = Scene::open().await;
    assert_eq!(scene.answer("s", "grow").await, "grown");
    scene.got("tools/list", 2).await;
    let refreshed = async {
        loop {
            scene.house.model.script(Behaviour::text("fine"));
            scene.house.ask("s", "again").await;
            if offered(&scene.house).contains(&"test__grown".to_owned()) {
                return;
            }
        }
    };
    tokio::time::timeout(crate::harness::PATIENCE, refreshed).await.expect("the new tool is offered");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_summary_of_calls_to_a_server_is_asked_for_with_its_tools() {
    let scene = Scene::open().await;
    assert_eq!(scene.answer("s", "echo").await, "hello");
    let overflow = json!({"error": {"message": "too many tokens", "code": "context_length_exceeded"}}).to_string();
    scene.house.model.script(Behaviour::Status { code: 400, headers: Vec::new(), body: overflow });
    scene.house.model.script(Behaviour::text("It said hello.")).script(Behaviour::text("fine"));
    scene.house.ask("s", "go on").await;
    let seen = scene.house.model.seen();
    let summary = &seen[seen.len() - 2].body;
    assert!(summary["messages"].to_string().contains("Summarise the whole conversation"), "{summary:#}");
    assert_eq!(summary["tools"], seen[seen.len() - 1].body["tools"]);
    assert!(summary["tools"].to_string().contains("test__echo"), "{summary:#}");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_and_junk_do_no_harm() {
    let scene = Scene::open().await;
    assert_eq!(scene.answer("s", "flood").await, "drained");
    assert_eq!(scene.answer("s", "junk").await, "survived");
    assert_eq!(scene.answer("s", "echo").await, "hello");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_has_only_the_servers_and_tools_that_it_is_given() {
    let mark = quell_testkit::commands::Marker::new();
    let folder = tempfile::tempdir().unwrap();
    let server = own_server(&mark, &folder.path().join("log"));
    let house = House::with(Claim::shared().await, |config| {
        config.mcp.insert("one".to_owned(), server.clone());
        config.mcp.insert("two".to_owned(), server);
        let main = config.agents.get_mut(&agent("main")).unwrap();
        main.tools = vec!["read_file".to_owned(), "one__echo".to_owned(), "two__pid".to_owned()];
        main.mcp = Some(vec!["one".to_owned()]);
    })
    .await;
    house.model.script(Behaviour::tool_call("c1", "two__pid", &json!({})));
    house.model.script(Behaviour::tool_call("c2", "one__pid", &json!({})));
    house.model.script(Behaviour::text("fine"));
    house.ask("s", "hello").await;
    assert_eq!(offered(&house), ["read_file", "one__echo"]);
    let shown = shown(&house);
    assert!(shown.contains("there is no tool named \\\"two__pid\\\"") || shown.contains("two__pid"), "{shown}");
    assert!(shown.contains("has no tool"), "{shown}");
    assert_eq!(house.engine.mcp().alive(), 1, "a server that the agent may not use was started");
    house.close().await;
}
