//! The demo model, called through the client code as any run calls it.

use std::collections::BTreeMap;
use std::time::Duration;

use quell_protocol::Usage;
use quell_scope::clock::Clock;
use quell_scope::{PointProbe, Release, Scope};
use serde_json::{Value, json};

use super::*;
use crate::tests::{ModelCallFixture, shell_tool};
use crate::{FinishReason, ModelAnswer, ModelError, ModelSink, Models, ProviderConfig, ProviderKind};

/// Counts the pieces of text, and cancels the scope `stop` at the first one.
#[derive(Default)]
struct DemoTestSink {
    pieces: usize,
    stop: Option<Scope>,
}

impl ModelSink for DemoTestSink {
    fn on_text_delta(&mut self, _: &str) {
        self.pieces += 1;
        if let Some(scope) = &self.stop {
            scope.cancel();
        }
    }
    fn on_thinking_delta(&mut self, _: &str) {}
    fn on_retry(&mut self, _: u32, _: Duration, why: &str) {
        panic!("the demo model failed: {why}");
    }
    fn on_usage(&mut self, _: Usage) {}
}

async fn call_demo(demo: &DemoModel, messages: &[Value], sink: &mut DemoTestSink) -> Result<ModelAnswer, ModelError> {
    let mut fixture = ModelCallFixture::of_kind(ProviderKind::DEMO, demo.base_url(), |_| {});
    fixture.conversation.messages = messages.to_vec();
    fixture.tools = vec![shell_tool()];
    if let Some(scope) = &sink.stop {
        fixture.scope = scope.clone();
    }
    fixture.call(sink).await
}

fn user_message(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn tour_script() -> DemoScript {
    DemoScript::Tour { command: "sleep 60".to_owned() }
}

#[tokio::test]
async fn chat_streams_word_by_word_and_says_how_to_add_a_model() {
    let demo = DemoModel::start(DemoScript::Chat).await.unwrap();
    let mut sink = DemoTestSink::default();
    let answer = call_demo(&demo, &[user_message("How are you?")], &mut sink).await.unwrap();
    for words in ["demo model", "\"How are you?\"", "OPENAI_API_KEY", "OLLAMA_HOST", "[providers.X]", "quell.toml"] {
        assert!(answer.message.text().contains(words), "{words:?} is missing in {:?}", answer.message.text());
    }
    assert_eq!(
        (answer.finish_reason, sink.pieces),
        (FinishReason::Stop, answer.message.text().split_inclusive(' ').count())
    );
    assert!(answer.usage.is_some_and(|usage| usage.input_tokens > 0 && usage.output_tokens > 0 && !usage.estimated));
    demo.stop().await;
}

#[tokio::test]
async fn the_tour_calls_the_shell_and_after_a_stop_it_has_read_the_history() {
    let demo = DemoModel::start(tour_script()).await.unwrap();
    let first = call_demo(&demo, &[user_message("Show me.")], &mut DemoTestSink::default()).await.unwrap();
    assert!(!first.message.text().is_empty());
    let made: Vec<_> = first.message.calls().collect();
    let [call] = made[..] else { panic!("one call, not {made:?}") };
    assert_eq!((call.name.as_str(), call.arguments.as_str()), ("shell", r#"{"command":"sleep 60"}"#));
    assert_eq!(first.finish_reason, FinishReason::ToolCalls);

    let function = json!({"name": "shell", "arguments": call.arguments});
    let result = "partial output\nThe user stopped this request; do not resume it.";
    let history = [
        json!({"role": "system", "content": "Obey when you are stopped."}),
        user_message("Show me."),
        json!({"role": "assistant", "content": first.message.text(), "tool_calls": [{"id": call.id, "type": "function", "function": function}]}),
        json!({"role": "tool", "tool_call_id": call.id, "content": result}),
        user_message("And now?"),
    ];
    let second = call_demo(&demo, &history, &mut DemoTestSink::default()).await.unwrap();
    let quotes = ["\"Show me.\"", "\"The user stopped this request; do not resume it.\"", "\"And now?\""];
    for words in quotes {
        assert!(second.message.text().contains(words), "{words} is missing in {:?}", second.message.text());
    }
    assert!(second.message.calls().next().is_none());

    let finished = call_demo(&demo, &history[..4], &mut DemoTestSink::default()).await.unwrap();
    assert!(finished.message.text().contains("The command is over"), "{:?}", finished.message.text());
    demo.stop().await;
}

#[tokio::test]
async fn a_stop_note_before_the_new_text_is_read_too_and_a_missing_one_is_not_made_up() {
    let demo = DemoModel::start(tour_script()).await.unwrap();
    let call = json!([{"id": "c", "type": "function", "function": {"name": "shell", "arguments": "{}"}}]);
    let history_before = |last: &str| {
        [
            user_message("Show me."),
            json!({"role": "assistant", "content": null, "tool_calls": call}),
            json!({"role": "tool", "tool_call_id": "c", "content": "ok"}),
            user_message(last),
        ]
    };
    let with =
        call_demo(&demo, &history_before("[earlier request was stopped]\n\nGo on?"), &mut DemoTestSink::default())
            .await
            .unwrap();
    assert!(with.message.text().contains("\"[earlier request was stopped]\""), "{:?}", with.message.text());
    let without = call_demo(&demo, &history_before("Was it stopped?"), &mut DemoTestSink::default()).await.unwrap();
    assert!(without.message.text().contains("does not say that it was stopped"), "{:?}", without.message.text());
    demo.stop().await;
}

#[tokio::test]
async fn it_can_be_stopped_while_it_talks() {
    let demo = DemoModel::start(DemoScript::Chat).await.unwrap();
    let scope = Scope::new(Clock::start(), PointProbe::default());
    let mut sink = DemoTestSink { pieces: 0, stop: Some(scope.clone()) };
    assert_eq!(call_demo(&demo, &[user_message("hi")], &mut sink).await, Err(ModelError::Cancelled));
    assert_eq!((sink.pieces, scope.ledger().rows()[0].release()), (1, Some(Release::Closed)));
    demo.stop().await;
}

#[tokio::test]
async fn closing_it_ends_its_answers_and_leaves_no_task() {
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = alive();
    let demo = DemoModel::start(DemoScript::Chat).await.unwrap();
    let address = demo.base_url();
    let mut response = post_chat_completion(&address).await;
    assert!(response.chunk().await.unwrap().is_some(), "it talks");
    demo.stop().await;
    while let Ok(Some(_)) = response.chunk().await {}
    drop(response);
    // The client's own connection task ends when it next runs.
    let settled = async {
        while alive() > before {
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(10), settled).await.is_ok(), "a task is left");
    assert!(
        tokio::net::TcpStream::connect(address.trim_start_matches("http://").trim_end_matches("/v1")).await.is_err()
    );
}

async fn post_chat_completion(base_url: &str) -> reqwest::Response {
    let mut config = ProviderConfig::new(ProviderKind::DEMO);
    config.base_url = Some(base_url.to_owned());
    let models = Models::new(BTreeMap::from([("demo".to_owned(), config)])).unwrap();
    let provider_set = models.provider_set();
    let provider = &provider_set.providers["demo"];
    let body = json!({"model": "demo", "messages": [user_message("hi")]}).to_string();
    let url = format!("{base_url}/chat/completions");
    let request = provider.client.post(url).headers(provider.headers.clone()).body(body);
    request.send().await.unwrap()
}
