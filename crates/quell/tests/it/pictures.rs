//! Pictures that people send: read for models that see them, in both dialects, the same in every later request, and gone from
//! what a model sees when it did not take them.

use std::path::PathBuf;
use std::time::Duration;

use quell_engine::agent::AgentConfig;
use quell_engine::dispatch::Submission;
use quell_engine::llm::{ProviderConfig, ProviderKind};
use quell_kernel::Push;
use quell_kernel::view::MOST_PICTURES;
use quell_protocol::api::{OnBusy, RunView};
use quell_protocol::{ResourceKind, Verdict};
use quell_testkit::Behaviour;
use quell_testkit::model::Stream;
use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::{self, Claim, House, agent, alice, flat, key, message, of_run, receipt};

/// The smallest file that counts as a picture, and its base64.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
const BASE64: &str = "iVBORw0KGgo=";

/// The agent that sees, in each dialect, and the one that does not. All work in the same folder.
const OPENAI: &str = "seeing";
const CLAUDE: &str = "claude";
const BLIND: &str = "main";

async fn house() -> House {
    let house = House::with(Claim::shared().await, |config| {
        let base_url = config.providers["scripted"].base_url.clone();
        let provider = ProviderConfig { base_url, ..ProviderConfig::new(ProviderKind::Anthropic) };
        let provider = ProviderConfig { api_key: Some("sk-ant".to_owned().into()), ..provider };
        config.providers.insert("anthropic".to_owned(), provider);
        let workdir = Some(config.work_dir.join("main"));
        let seeing = AgentConfig { vision: true, workdir, ..config.agents[&agent(BLIND)].clone() };
        let claude = AgentConfig { model: "anthropic/claude".to_owned(), ..seeing.clone() };
        config.agents.extend([(agent(OPENAI), seeing), (agent(CLAUDE), claude)]);
    })
    .await;
    std::fs::write(picture(&house), PNG).unwrap();
    house
}

fn picture(house: &House) -> PathBuf {
    house.workdir().join("dot.png")
}

fn marker(house: &House) -> String {
    format!("[IMAGE:{}]", picture(house).display())
}

async fn ask(house: &House, who: &str, text: &str) -> RunView {
    let run = house.send(Submission { agent: Some(agent(who)), ..message("s", text) }).await;
    house.ended(&run).await
}

/// What the user said last, as it was sent.
fn last_said(house: &House) -> Value {
    house.last_messages().pop().unwrap()["content"].clone()
}

fn shown(text: &str) -> Value {
    let url = format!("data:image/png;base64,{BASE64}");
    json!([{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_sees_gets_the_picture_and_one_that_does_not_gets_the_text() {
    let house = house().await;
    let text = format!("what is this? {}", marker(&house));
    let view = ask(&house, OPENAI, &text).await;
    assert_eq!(last_said(&house), shown("what is this?"));
    let held = &receipt(&view).resources;
    assert!(held.iter().any(|row| row.kind == ResourceKind::Task && row.label == "pictures (1)"), "{held:#?}");
    ask(&house, CLAUDE, "and you?").await;
    let source = json!({"type": "base64", "media_type": "image/png", "data": BASE64});
    let first = house.last_messages().remove(0);
    assert_eq!(
        first["content"],
        json!([{"type": "text", "text": "what is this?"}, {"type": "image", "source": source}])
    );
    ask(&house, BLIND, "and you?").await;
    assert_eq!(house.last_messages()[1]["content"], "what is this?");
    ask(&house, BLIND, &marker(&house)).await;
    assert_eq!(last_said(&house), "(a picture, which this model cannot see)");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picture_is_the_same_in_every_later_request_as_long_as_its_file_is() {
    let house = house().await;
    house.model.script(Stream::new().text("I look.").tool_call("c1", "list_files", &json!({})));
    house.model.script(Behaviour::text("A dot."));
    ask(&house, OPENAI, &format!("what is this? {}", marker(&house))).await;
    ask(&house, OPENAI, "are you sure?").await;
    let seen = house.model.seen();
    for pair in seen.windows(2) {
        let (earlier, later) = (pair[0].messages(), pair[1].messages());
        assert_eq!(flat(&later[..earlier.len()]), flat(earlier), "byte for byte");
    }
    std::fs::remove_file(picture(&house)).unwrap();
    ask(&house, OPENAI, "and now?").await;
    let told = house.last_messages()[1]["content"].clone();
    let words = "what is this? (a picture stood here; it cannot be read any more)";
    assert_eq!(told, json!([{"type": "text", "text": words}]));
    house.close().await;
}

/// The file goes while the run works: its requests still begin alike.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_keeps_the_pictures_that_it_has_read() {
    let house = house().await;
    let remove = json!({"command": "rm dot.png"});
    house.model.script(Stream::new().tool_call("c1", "shell", &remove));
    house.model.script(Behaviour::text("Gone."));
    ask(&house, OPENAI, &format!("remove this {}", marker(&house))).await;
    assert!(!picture(&house).exists());
    let seen = house.model.seen();
    let (earlier, later) = (seen[0].messages(), seen[1].messages());
    assert_eq!(flat(&later[..earlier.len()]), flat(earlier));
    assert_eq!(later[1]["content"], shown("remove this"));
    house.close().await;
}

#[rstest]
#[case::outside("/etc/hostname", "it lies where this agent sees none")]
#[case::no_picture("WORKDIR/a.txt", "it is of a kind that cannot be shown")]
#[case::too_large("WORKDIR/large.png", "it is too large")]
#[case::gone("WORKDIR/none.png", "it cannot be read any more")]
#[case::plain_http("http://127.0.0.1:1/a.png", "it lies where this agent sees none")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_shown_leaves_a_word(#[case] source: &str, #[case] words: &str) {
    let house = house().await;
    std::fs::write(house.workdir().join("a.txt"), "a secret").unwrap();
    std::fs::write(house.workdir().join("large.png"), [PNG, &vec![0; 5 << 20]].concat()).unwrap();
    let source = source.replace("WORKDIR", &house.workdir().display().to_string());
    let view = ask(&house, OPENAI, &format!("see [IMAGE:{source}]!")).await;
    assert_eq!(view.verdict, Some(Verdict::Completed));
    let text = format!("see (a picture stood here; {words})!");
    assert_eq!(last_said(&house), json!([{"type": "text", "text": text}]));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picture_in_a_message_that_steers_is_seen_in_the_next_step() {
    let house = house().await;
    house.model.script(Stream::new().text("I look.").wait_for("go").tool_call("c1", "list_files", &json!({})));
    house.model.script(Behaviour::text("A dot."));
    let run = house.send(Submission { agent: Some(agent(OPENAI)), ..message("s", "look") }).await;
    house.model.requests(1).await[0].streaming().await;
    let steer = Submission { on_busy: OnBusy::Steer, agent: Some(agent(OPENAI)), ..message("s", &marker(&house)) };
    house.engine.submit(&alice(), steer).await.unwrap();
    house.model.open_gate("go");
    house.ended(&run).await;
    let said = last_said(&house);
    assert_eq!(said[0]["type"], "image_url", "{said:#}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_too_many_pictures_the_newest_are_sent() {
    let house = house().await;
    let data = format!("[IMAGE:data:image/png;base64,{BASE64}]");
    ask(&house, OPENAI, &data.repeat(MOST_PICTURES + 5)).await;
    let parts = last_said(&house).as_array().unwrap().clone();
    let pictures = parts.iter().filter(|part| part["type"] == "image_url").count();
    assert_eq!((pictures, parts[0]["type"].as_str()), (MOST_PICTURES, Some("text")));
    house.close().await;
}

/// A refusal as providers word it.
fn refuses_pictures() -> Behaviour {
    let body = json!({"error": {"message": "Invalid image data", "type": "invalid_request_error"}});
    Behaviour::Status { code: 400, headers: Vec::new(), body: body.to_string() }
}

fn failure(view: &RunView) -> (&str, &str) {
    match &view.verdict {
        Some(Verdict::Failed { code, message }) => (code, message),
        other => panic!("not failed: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picture_that_the_model_does_not_take_leaves_what_it_sees_and_stays_in_the_record() {
    let house = house().await;
    house.model.script(refuses_pictures());
    let text = format!("what is this? {}", marker(&house));
    let view = ask(&house, OPENAI, &text).await;
    let (code, message) = failure(&view);
    assert_eq!(code, "vision");
    assert!(message.contains("Invalid image data") && message.contains("without them"), "{message}");
    house.model.script(Behaviour::text("Fine."));
    let view = ask(&house, OPENAI, "and now?").await;
    assert_eq!(view.verdict, Some(Verdict::Completed));
    let seen = flat(&house.last_messages());
    assert!(!seen.contains("what is this?") && !seen.contains("image_url"), "{seen}");
    assert!(seen.contains("could not take the pictures"), "the model is told that there was something: {seen}");
    let page = house.engine.history(&key("s"), 10, None).await.unwrap();
    assert!(page.messages.iter().any(|message| message.text == text), "the record keeps it: {page:#?}");
    house.close().await;
}

/// The model of the session was changed for one that sees nothing: one message fails, and no other after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_picture_that_is_not_taken_any_more_fails_one_run_alone() {
    let house = house().await;
    ask(&house, OPENAI, &format!("what is this? {}", marker(&house))).await;
    house.model.script(refuses_pictures());
    assert_eq!(failure(&ask(&house, OPENAI, "and now?").await).0, "vision");
    let view = ask(&house, OPENAI, "and now?").await;
    assert_eq!(view.verdict, Some(Verdict::Completed));
    let seen = flat(&house.last_messages());
    assert!(seen.contains("what is this? (a picture stood here; it is not shown any more)"), "{seen}");
    assert!(!seen.contains("image_url"), "{seen}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_picture_does_not_count_as_text() {
    let house = House::with(Claim::shared().await, |config| {
        let seeing = config.agents.get_mut(&agent(BLIND)).unwrap();
        (seeing.vision, seeing.daily_tokens, seeing.window_tokens) = (true, Some(50_000), 20_000);
    })
    .await;
    // As text it would be 250,000 tokens.
    let bytes = [PNG, &vec![0; 750_000]].concat();
    std::fs::write(picture(&house), bytes).unwrap();
    house.model.script(Behaviour::silent_mid_stream("It is "));
    let run = house.send(message("s", &marker(&house))).await;
    house.text_came(&run).await;
    let _ = house.engine.stop(&alice(), &of_run(&run), &harness::ask(Push::Gentle));
    let view = house.ended(&run).await;
    assert!(view.usage.estimated && view.usage.input_tokens < 10_000, "{:?}", view.usage);
    let again = house.ask("s", "and now?").await;
    assert_eq!(again.verdict, Some(Verdict::Completed), "{again:#?}");
    assert_eq!(house.model.seen().len(), 2, "nothing was summarised");
    house.close().await;
}

/// The time that a stop may take while pictures are read is proven in the sweep; this is the largest load that is let through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pictures_of_one_request_have_a_bound_together() {
    let house = house().await;
    let mut text = String::new();
    for number in 0..8 {
        let file = house.workdir().join(format!("{number}.png"));
        std::fs::write(&file, [PNG, &vec![0; 4 << 20]].concat()).unwrap();
        text.push_str(&format!("[IMAGE:{}]", file.display()));
    }
    let view = tokio::time::timeout(Duration::from_secs(60), ask(&house, OPENAI, &text)).await.unwrap();
    assert_eq!(view.verdict, Some(Verdict::Completed), "{view:#?}");
    let parts = last_said(&house).as_array().unwrap().clone();
    let pictures = parts.iter().filter(|part| part["type"] == "image_url").count();
    assert_eq!(pictures, 4, "24 MiB of base64");
    let words = parts[0]["text"].as_str().unwrap();
    assert_eq!(words.matches("there is no room for it").count(), 4, "the older ones give way: {words}");
    house.close().await;
}
