//! Rules for every dialect of the table, and what the tests of each dialect share.

mod answer_options;

use std::collections::BTreeSet;
use std::time::Duration;

use quell_protocol::{AgentId, RunId, Usage};
use reqwest::header::HeaderValue;
use rstest::rstest;

use super::*;
use crate::{ModelAnswer, ModelSink};

/// The text and thinking that a dialect passed on, in order.
#[derive(Default)]
pub(crate) struct DeltaSink(pub(crate) Vec<String>);

impl ModelSink for DeltaSink {
    fn on_text_delta(&mut self, delta: &str) {
        self.0.push(format!("text {delta}"));
    }
    fn on_thinking_delta(&mut self, delta: &str) {
        self.0.push(format!("thinking {delta}"));
    }
    fn on_web_search(&mut self, query: &str) {
        self.0.push(format!("search {query}"));
    }
    fn on_retry(&mut self, _: u32, _: Duration, _: &str) {}
    fn on_usage(&mut self, _: Usage) {}
}

/// An answer that a test feeds with events.
#[derive(Default)]
pub(crate) struct FedAnswer {
    pub(crate) partial: PartialAnswer,
    pub(crate) sink: DeltaSink,
}

impl FedAnswer {
    /// An answer with these events, all of which are valid.
    pub(crate) fn from_events(dialect: &dyn Dialect, events: &[Value]) -> Self {
        let mut fed = Self::default();
        for (index, event) in events.iter().enumerate() {
            let status = fed.apply(dialect, "", &event.to_string());
            let is_last = index + 1 == events.len();
            assert!(status == Ok(StreamStatus::More) || is_last && status == Ok(StreamStatus::Done), "{event}");
        }
        fed
    }

    pub(crate) fn apply(
        &mut self,
        dialect: &dyn Dialect,
        name: &str,
        data: &str,
    ) -> Result<StreamStatus, ResponseError> {
        let event = SseEvent { name: name.to_owned(), data: data.to_owned() };
        let applied = dialect.apply_event(&event, &mut self.partial);
        self.partial.send_deltas(&mut self.sink);
        applied
    }

    pub(crate) fn apply_whole(&mut self, dialect: &dyn Dialect, body: &str) -> Result<(), ResponseError> {
        let applied = dialect.apply_whole_response(body.as_bytes(), &mut self.partial);
        self.partial.send_deltas(&mut self.sink);
        applied
    }

    /// The answer at its end, with the links below it.
    pub(crate) fn into_answer_with_links(mut self) -> (ModelAnswer, Vec<String>) {
        self.partial.append_citation_links();
        self.partial.send_deltas(&mut self.sink);
        (self.partial.into_answer(), self.sink.0)
    }

    pub(crate) fn into_answer(self) -> ModelAnswer {
        self.partial.into_answer()
    }
}

/// A request without a prompt, for a model whose name has a slash.
fn encode_empty_request(dialect: &dyn Dialect, base_url: &str) -> EncodedRequest {
    let (run, agent) = (RunId::parse("r").unwrap(), AgentId::parse("main").unwrap());
    let request = ModelCallRequest {
        run: &run,
        agent: &agent,
        conversation: &Conversation::default(),
        tools: &[],
        answer: &AnswerOptions::default(),
        thinking: None,
        web_search: false,
    };
    dialect.encode_request(&Url::parse(base_url).unwrap(), "meta/m", &request).unwrap()
}

#[test]
fn names_of_kinds_and_variables_are_unique() {
    let mut names = BTreeSet::new();
    for dialect in DIALECTS {
        assert!(names.insert(dialect.kind()), "{dialect:?}");
        let environment = dialect.environment().into_iter();
        for name in environment.flat_map(|environment| [environment.key_variable, environment.base_url_variable]) {
            assert!(names.insert(name), "{name}");
        }
    }
}

#[test]
fn every_dialect_can_make_its_requests() {
    for dialect in DIALECTS {
        if let Ok(base_url) = dialect.default_base_url() {
            assert!(Url::parse(base_url).is_ok(), "{dialect:?}");
        } else {
            assert!(dialect.environment().is_none(), "{dialect:?}: a key alone would make an incomplete provider");
        }
        for (name, value) in dialect.fixed_headers() {
            let _ = (HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let (_, value) = dialect.key_header("secret");
        assert!(value.contains("secret"), "{dialect:?}");
        for base_url in ["http://h/v1", "http://h/v1/"] {
            let EncodedRequest { url, body } = encode_empty_request(*dialect, base_url);
            assert!(url.as_str().starts_with("http://h/v1/"), "{url}");
            assert!(serde_json::from_str::<Value>(&body).unwrap().is_object(), "{body}");
        }
    }
}

#[test]
fn every_dialect_refuses_what_it_cannot_read() {
    for dialect in DIALECTS {
        let mut fed = FedAnswer::default();
        for data in ["hello", "{\"ty"] {
            let result = fed.apply(*dialect, "", data);
            assert!(matches!(result, Err(ResponseError::Unreadable(_))), "{dialect:?} {data} {result:?}");
        }
        let whole = fed.apply_whole(*dialect, "hello");
        assert!(matches!(whole, Err(ResponseError::Unreadable(_))), "{dialect:?} {whole:?}");
        assert_eq!(dialect.parse_model_list(b"hello"), None, "{dialect:?}");
        assert_eq!((fed.partial.is_empty(), fed.sink.0.len()), (true, 0), "{dialect:?}");
    }
}

#[rstest]
#[case("http://h/v1", "http://h/v1/chat/completions")]
#[case("http://h/v1/", "http://h/v1/chat/completions")]
#[case("http://h", "http://h/chat/completions")]
#[case("http://h/d/gpt?api-version=1", "http://h/d/gpt/chat/completions?api-version=1")]
fn the_request_goes_below_the_base_url(#[case] base_url: &str, #[case] url: &str) {
    assert_eq!(encode_empty_request(&ChatCompletions::OPENAI, base_url).url.as_str(), url);
}

#[rstest]
#[case(&ChatCompletions::OPENAI, "http://h/v1/chat/completions", "http://h/v1/models")]
#[case(&ChatCompletions::DEMO, "http://h/v1/chat/completions", "http://h/v1/models")]
#[case(&OpenAiResponses, "http://h/v1/responses", "http://h/v1/models")]
#[case(&AnthropicMessages, "http://h/v1/messages", "http://h/v1/models?limit=1000")]
#[case(
    &GeminiContent,
    "http://h/v1/models/meta%2Fm:streamGenerateContent?alt=sse",
    "http://h/v1/models?pageSize=1000"
)]
fn each_dialect_has_its_own_paths(#[case] dialect: &dyn Dialect, #[case] request: &str, #[case] list: &str) {
    assert_eq!(encode_empty_request(dialect, "http://h/v1").url.as_str(), request);
    assert_eq!(dialect.model_list_url(&Url::parse("http://h/v1").unwrap()).as_str(), list);
}

#[test]
fn a_slash_in_a_segment_is_escaped() {
    let base_url = Url::parse("http://h/v1?key=k").unwrap();
    assert_eq!(url_below(&base_url, &["models", "meta/m:call"]).as_str(), "http://h/v1/models/meta%2Fm:call?key=k");
}
