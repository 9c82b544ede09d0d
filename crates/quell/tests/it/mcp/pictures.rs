//! Pictures that a server answers with: kept for the session, shown to models that see in both dialects, told to those that do
//! not, and there again after a restart.

use std::path::{Path, PathBuf};

use quell_engine::agent::AgentConfig;
use quell_engine::dispatch::Submission;
use quell_engine::llm::{ProviderConfig, ProviderKind};
use quell_engine::scope::Point;
use quell_kernel::Push;
use quell_protocol::ResourceKind;
use quell_protocol::api::RunView;
use quell_testkit::Behaviour;
use quell_testkit::commands::Marker;
use serde_json::{Value, json};

use super::own_server;
use crate::harness::{self, Claim, DataDir, Ground, House, agent, alice, flat, key, message, of_run, receipt};

const OPENAI: &str = "seeing";
const CLAUDE: &str = "claude";
const BLIND: &str = "main";
/// What the server's tool `picture` answers besides its picture.
const SAYS: &str = "look\n[an image, image/png, ";

/// A house on this ground, whose agents work in one folder and use the server `test`.
async fn house(dir: &Path) -> House {
    let (mark, log) = (Marker::new(), dir.join("log"));
    House::on(Ground::Lent(dir.to_owned()), Claim::shared().await, |config| {
        config.mcp.insert("test".to_owned(), own_server(&mark, &log));
        let base_url = config.providers["scripted"].base_url.clone();
        let provider = ProviderConfig { base_url, ..ProviderConfig::new(ProviderKind::Anthropic) };
        let provider = ProviderConfig { api_key: Some("sk-ant".to_owned().into()), ..provider };
        config.providers.insert("anthropic".to_owned(), provider);
        let workdir = Some(config.work_dir.join("main"));
        let seeing = AgentConfig { vision: true, workdir, ..config.agents[&agent(BLIND)].clone() };
        let claude = AgentConfig { model: "anthropic/claude".to_owned(), ..seeing.clone() };
        config.agents.extend([(agent(OPENAI), seeing), (agent(CLAUDE), claude)]);
    })
    .await
}

async fn ask(house: &House, who: &str, text: &str) -> RunView {
    let run = house.send(Submission { agent: Some(agent(who)), ..message("s", text) }).await;
    house.ended(&run).await
}

/// A run whose model asks the server for its picture.
async fn show(house: &House, who: &str) -> RunView {
    house.model.script(Behaviour::tool_call("c1", "test__picture", &json!({"text": "a dot"})));
    house.model.script(Behaviour::text("A dot."));
    ask(house, who, "show me").await
}

/// The files of pictures below the workdir of a house.
fn kept(house: &House) -> Vec<PathBuf> {
    let sessions = std::fs::read_dir(house.workdir().join("attachments")).into_iter().flatten().flatten();
    let tools = sessions.filter_map(|session| std::fs::read_dir(session.path().join("tools")).ok());
    tools.flatten().flatten().map(|file| file.path()).collect()
}

/// The parts of the message in which an OpenAI model is shown the pictures of tools.
fn behind_the_tools(messages: &[Value]) -> Vec<Value> {
    let at = messages.iter().position(|message| message["role"] == "tool").unwrap();
    assert_eq!(messages[at + 1]["role"], "user", "{messages:#?}");
    messages[at + 1]["content"].as_array().unwrap().clone()
}

/// The content of the one result in a request to an Anthropic model.
fn in_the_result(messages: &[Value]) -> Value {
    let blocks = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    let mut results = blocks.filter(|block| block["type"] == "tool_result");
    results.next().unwrap_or_else(|| panic!("no result in {messages:#?}"))["content"].clone()
}

/// Byte for byte, but for the mark of the place up to which a provider is to keep its work, which moves on.
fn begins_with(later: &[Value], earlier: &[Value]) {
    let unmarked = |messages| flat(messages).replace(r#","cache_control":{"type":"ephemeral"}"#, "");
    assert_eq!(unmarked(&later[..earlier.len()]), unmarked(earlier));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picture_of_a_tool_reaches_models_that_see_in_both_dialects() {
    let dir = DataDir::new();
    let house = house(dir.path()).await;
    let view = show(&house, OPENAI).await;
    assert_eq!(view.output.as_deref(), Some("A dot."), "{view:#?}");
    let held = &receipt(&view).resources;
    assert!(
        held.iter().any(|row| row.kind == ResourceKind::Task && row.label == "pictures of a result (1)"),
        "{held:#?}"
    );
    let files = kept(&house);
    assert_eq!(files.len(), 1, "{files:?}");

    let messages = house.last_messages();
    let parts = behind_the_tools(&messages);
    assert_eq!(parts.len(), 2, "{parts:#?}");
    let url = parts[1]["image_url"]["url"].as_str().unwrap();
    let data = url.strip_prefix("data:image/png;base64,").unwrap().to_owned();
    let result = messages.iter().find(|message| message["role"] == "tool").unwrap();
    assert!(result["content"].as_str().unwrap().starts_with(SAYS), "{result:#}");

    ask(&house, OPENAI, "are you sure?").await;
    let again = house.last_messages();
    begins_with(&again, &messages);
    ask(&house, CLAUDE, "and you?").await;
    let content = in_the_result(&house.last_messages());
    assert!(content[0]["text"].as_str().unwrap().starts_with(SAYS), "{content:#}");
    assert_eq!(
        content[1],
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}})
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_reads_text_is_told_that_there_is_a_picture() {
    let dir = DataDir::new();
    let house = house(dir.path()).await;
    show(&house, BLIND).await;
    let told = flat(&house.last_messages());
    assert!(told.contains("(a picture, which this model cannot see)") && !told.contains("base64"), "{told}");
    // The picture is there for a model that sees.
    ask(&house, CLAUDE, "and you?").await;
    assert_eq!(in_the_result(&house.last_messages())[1]["type"], "image");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picture_of_a_tool_is_the_same_after_a_restart_and_goes_with_its_session() {
    let dir = DataDir::new();
    let first = house(dir.path()).await;
    show(&first, CLAUDE).await;
    let before = first.last_messages();
    first.close().await;

    let second = house(dir.path()).await;
    ask(&second, CLAUDE, "and now?").await;
    begins_with(&second.last_messages(), &before);
    let files = kept(&second);
    std::fs::remove_file(&files[0]).unwrap();
    ask(&second, CLAUDE, "and without it?").await;
    let content = in_the_result(&second.last_messages());
    assert_eq!(content[1], json!({"type": "text", "text": "(a picture stood here; it cannot be read any more)"}));
    show(&second, CLAUDE).await;
    assert_eq!(kept(&second).len(), 1);
    second.engine.delete_session(&alice(), &key("s"), &harness::ask(Push::Gentle)).await.unwrap();
    assert!(kept(&second).is_empty(), "{:?}", kept(&second));
    second.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_while_a_picture_is_kept_leaves_the_result() {
    let dir = DataDir::new();
    let house = house(dir.path()).await;
    let (engine, run) = (house.engine.clone(), harness::run_id("stopped"));
    let stopped = run.clone();
    house.trap.arm(Point::KeepPictures, 1, move || {
        drop(engine.stop(&alice(), &of_run(&stopped), &harness::ask(Push::Gentle)));
    });
    house.model.script(Behaviour::tool_call("c1", "test__picture", &json!({"text": "a dot"})));
    house.send(Submission { agent: Some(agent(OPENAI)), ..harness::message_as(&run, "s", "show me") }).await;
    house.trap.sprung().await;
    let view = house.ended(&run).await;
    assert_eq!(view.verdict.as_ref().map(|verdict| verdict.word()), Some("aborted"), "{view:#?}");
    ask(&house, OPENAI, "go on").await;
    let told = flat(&house.last_messages());
    assert!(told.contains("look") && told.contains("its pictures were not kept"), "{told}");
    assert!(kept(&house).is_empty());
    house.close().await;
}
