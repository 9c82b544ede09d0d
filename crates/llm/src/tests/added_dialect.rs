//! A dialect with the model in the URL, written as `docs/add-a-provider.md` says, but not in the table. It shows that a
//! new file is enough: client, retries, stops and counting are those of all dialects.

use quell_kernel::prompt::{DialectRules, PromptCall, PromptLine, PromptPart, Vision, build_lines};
use quell_kernel::turn::{MessageBlock, TurnDraft};
use quell_net::SseEvent;
use reqwest::Url;
use reqwest::header::HeaderName;
use serde::Deserialize;
use serde_json::Value;

use super::super::dialect::{Dialect, EncodeError, EncodedRequest, url_below};
use super::super::error_report::ProviderErrorReport;
use super::super::fake_server::{FakeModelServer, FakeServerStep, event_step, plain_response, stream_head};
use super::super::partial_answer::{PartialAnswer, ResponseError, StreamStatus, null_as_default};
use super::super::tool_calls::ToolCallFragment;
use super::stops::stop_after_first_piece;
use super::*;

#[derive(Debug)]
struct ExampleDialect;

impl Dialect for ExampleDialect {
    fn kind(&self) -> &'static str {
        "example"
    }

    fn description(&self) -> &'static str {
        "The API of the example."
    }

    fn default_base_url(&self) -> Result<&'static str, &'static str> {
        Ok("https://api.example.com/v1")
    }

    fn key_header(&self, key: &str) -> (HeaderName, String) {
        (HeaderName::from_static("x-example-key"), key.to_owned())
    }

    fn encode_conversation(&self, prompt: &Prompt<'_>) -> Conversation {
        let is_legal_call_id = |id: &str| id.len() <= 64;
        let rules = DialectRules { is_legal_call_id, accepts_thinking: |_| false };
        let messages = build_lines(prompt, &rules).iter().flat_map(render_line).collect();
        Conversation { system: prompt.system.to_owned(), messages, ..Conversation::default() }
    }

    fn encode_request(
        &self,
        base_url: &Url,
        model: &str,
        request: &ModelCallRequest<'_>,
    ) -> Result<EncodedRequest, EncodeError> {
        let mut url = url_below(base_url, &["models", &format!("{model}:stream")]);
        url.query_pairs_mut().append_pair("alt", "sse");
        let tool = |tool: &ToolSpec| json!({"name": tool.name, "about": tool.description, "schema": *tool.parameters});
        let body = json!({
            "system": request.conversation.system,
            "contents": request.conversation.messages,
            "tools": request.tools.iter().map(tool).collect::<Vec<Value>>(),
            "settings": {"temperature": request.answer.temperature, "maxTokens": request.answer.max_tokens},
        });
        Ok(EncodedRequest { url, body: serde_json::to_string(&body)? })
    }

    fn apply_event(&self, event: &SseEvent, partial: &mut PartialAnswer) -> Result<StreamStatus, ResponseError> {
        self.apply_whole_response(event.data.as_bytes(), partial)?;
        Ok(StreamStatus::More)
    }

    fn apply_whole_response(&self, body: &[u8], partial: &mut PartialAnswer) -> Result<(), ResponseError> {
        let chunk = serde_json::from_slice::<ExampleChunk>(body)
            .map_err(|error| ResponseError::Unreadable(format!("an event that is no chunk: {error}")))?;
        if !chunk.error.is_null() {
            return Err(ResponseError::Reported(ProviderErrorReport::from_json(&chunk.error)));
        }
        partial.has_begun = true;
        for (position, part) in chunk.parts.into_iter().enumerate() {
            partial.append_text(&part.text)?;
            if let Some(ExampleCall { name, arguments }) = part.call {
                let arguments = arguments.to_string();
                let fragment = ToolCallFragment { name, arguments, ..ToolCallFragment::default() };
                partial.append_call_fragment(position, fragment)?;
            }
        }
        if let Some((input_tokens, output_tokens)) = chunk.tokens {
            partial.usage = Some(Usage { input_tokens, output_tokens, cached_tokens: 0, estimated: false });
        }
        partial.finish_reason = match chunk.end.as_str() {
            "" => partial.finish_reason.take(),
            "STOP" => Some(FinishReason::Stop),
            "MAX_TOKENS" => Some(FinishReason::Length),
            _ => Some(FinishReason::Other(chunk.end)),
        };
        Ok(())
    }

    fn parse_model_list(&self, body: &[u8]) -> Option<Vec<String>> {
        let list: Value = serde_json::from_slice(body).ok()?;
        let name = |model: &Value| Some(model["name"].as_str()?.strip_prefix("models/")?.to_owned());
        Some(list.get("models")?.as_array()?.iter().filter_map(name).collect())
    }
}

/// Unknown fields are ignored: providers add some at any time.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ExampleChunk {
    parts: Vec<ExamplePart>,
    #[serde(deserialize_with = "null_as_default")]
    end: String,
    tokens: Option<(u64, u64)>,
    error: Value,
}

/// A part of an unknown kind has neither.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ExamplePart {
    text: String,
    call: Option<ExampleCall>,
}

#[derive(Deserialize)]
struct ExampleCall {
    name: String,
    arguments: Value,
}

/// A message with its calls, and the results of those behind it.
fn render_line(line: &PromptLine<'_>) -> Vec<Value> {
    let user_part = |part: &PromptPart<'_>| match part {
        PromptPart::Text(text) => json!({"text": text}),
        PromptPart::Image(image) => json!({"data": image.base64(), "type": image.media_type()}),
        PromptPart::Url(url) => json!({"url": url}),
    };
    let model_part = |block: &MessageBlock<PromptCall<'_>>| match block {
        MessageBlock::Text { text } => Some(json!({"text": text})),
        MessageBlock::Call(call) => Some(json!({"call": {"name": call.tool, "arguments": call.arguments}})),
        MessageBlock::Thinking(_) => None,
    };
    let result = |call: &PromptCall<'_>| json!({"role": "tool", "name": call.tool, "output": call.output});
    match line {
        PromptLine::User(parts) => {
            vec![json!({"role": "user", "parts": parts.iter().map(user_part).collect::<Vec<_>>()})]
        }
        PromptLine::Assistant(message) => {
            let parts: Vec<Value> = message.blocks.iter().filter_map(model_part).collect();
            let mut lines = vec![json!({"role": "model", "parts": parts})];
            lines.extend(message.calls().map(result));
            lines
        }
    }
}

fn example_config(base_url: String) -> ProviderConfig {
    let mut config = ProviderConfig::new(ProviderKind(&ExampleDialect));
    (config.base_url, config.api_key) = (Some(base_url), Some("secret-key".to_owned().into()));
    config
}

fn example_fixture(fake: &FakeModelServer) -> ModelCallFixture {
    let kind = ProviderKind(&ExampleDialect);
    let mut fixture = ModelCallFixture::of_kind(kind, fake.base_url(), |config| {
        *config = example_config(fake.base_url());
    });
    let draft = TurnDraft::new(fixture.run.clone(), "hi".into());
    let prompt = Prompt {
        model: "p/m/1",
        system: "Be brief.",
        turns: &[],
        draft: Some(&draft),
        run_context: None,
        time_zone: None,
        vision: Vision::TextOnly,
    };
    fixture.conversation = fixture.models.resolve("p/m/1").unwrap().encode_conversation(&prompt);
    fixture
}

fn text_event(text: &str) -> FakeServerStep {
    event_step(&json!({"parts": [{"text": text}]}).to_string())
}

#[tokio::test]
async fn the_model_may_be_part_of_the_url() {
    let call = json!({"parts": [{"call": {"name": "shell", "arguments": {"command": "ls"}}}]});
    let unknown = json!({"parts": [{"mood": "calm"}], "trace": 7});
    let end = json!({"end": "STOP", "tokens": [12, 3]});
    let script = vec![
        stream_head(),
        text_event("Hel"),
        text_event("lo"),
        event_step(&call.to_string()),
        event_step(&unknown.to_string()),
        event_step(&end.to_string()),
        FakeServerStep::Close,
    ];
    let fake = FakeModelServer::start(vec![script]).await;
    let fixture = example_fixture(&fake);
    let (answer, sink) = fixture.answer().await;

    let usage = Usage { input_tokens: 12, output_tokens: 3, cached_tokens: 0, estimated: false };
    assert_eq!((answer.message.text().as_str(), answer.finish_reason), ("Hello", FinishReason::Stop));
    let calls: Vec<_> = answer.message.calls().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
    assert_eq!(calls, [("shell", r#"{"command":"ls"}"#)]);
    assert_eq!((sink.text.as_str(), sink.usages), ("Hello", vec![usage]));
    assert!(fixture.is_idle());
    let (head, body) = fake.requests().remove(0);
    assert!(head.starts_with("POST /v1/models/m%2F1:stream?alt=sse HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("x-example-key: secret-key") && !head.contains("authorization"), "{head}");
    let contents = json!([{"role": "user", "parts": [{"text": "hi"}]}]);
    assert_eq!((&body["system"], &body["contents"]), (&json!("Be brief."), &contents));
}

#[tokio::test]
async fn a_refusal_is_retried_and_a_whole_response_is_read() {
    let busy = json!({"error": {"code": 503, "status": "UNAVAILABLE", "message": "busy, secret-key"}}).to_string();
    let whole = json!({"parts": [{"text": "ok"}], "end": "MAX_TOKENS"}).to_string();
    let fake = FakeModelServer::start(vec![
        plain_response("503 Service Unavailable", "", &busy),
        vec![stream_head(), event_step(&busy), FakeServerStep::Close],
        plain_response("200 OK", "content-type: application/json\r\n", &whole),
    ])
    .await;
    let (answer, sink) = example_fixture(&fake).answer().await;
    assert_eq!((answer.message.text().as_str(), answer.finish_reason), ("ok", FinishReason::Length));
    let reasons: Vec<&str> = sink.retries.iter().map(|(_, _, why)| why.as_str()).collect();
    assert_eq!(reasons, ["provider `p` refused (HTTP 503): busy, ***; try again later"; 2]);
}

#[tokio::test]
async fn a_stop_in_the_middle_closes_the_socket() {
    let fake = FakeModelServer::start(vec![vec![stream_head(), text_event("12345")]]).await;
    let fixture = example_fixture(&fake);
    let sink = stop_after_first_piece(&fake, &fixture).await;
    assert_eq!(
        sink.usages,
        [Usage { input_tokens: sink.inputs[0], output_tokens: 2, cached_tokens: 0, estimated: true }]
    );
}

#[tokio::test]
async fn the_doctor_reads_its_list_of_models() {
    let list = json!({"models": [{"name": "models/a"}, {"name": "models/b"}]}).to_string();
    let fake = FakeModelServer::start(vec![plain_response("200 OK", "", &list)]).await;
    let models = fetch_model_list("p", example_config(fake.base_url()), Duration::from_secs(10)).await;
    assert_eq!(models.unwrap(), ["a", "b"]);
    assert!(fake.requests()[0].0.starts_with("GET /v1/models HTTP/1.1\r\n"));
}
