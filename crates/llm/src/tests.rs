//! Model calls against servers on loopback: answers, retries, broken streams, and stops.

mod added_dialect;
mod answers;
mod anthropic;
mod failures;
mod stops;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quell_kernel::turn::Thinking;
use quell_protocol::{AgentId, ResourceKind, RunId, Usage};
use quell_scope::clock::Clock;
use quell_scope::{PointProbe, Release, Scope};
use serde_json::json;
use tokio::sync::watch;

use super::fake_server::{FakeModelServer, FakeServerStep};
use super::*;

/// Records everything that a sink receives.
#[derive(Debug, Default)]
struct RecordingSink {
    text: String,
    thinking: String,
    retries: Vec<(u32, Duration, String)>,
    inputs: Vec<u64>,
    usages: Vec<Usage>,
    /// The number of text pieces so far, for tests to wait on.
    pieces: watch::Sender<usize>,
}

impl ModelSink for RecordingSink {
    fn on_text_delta(&mut self, delta: &str) {
        self.text.push_str(delta);
        self.pieces.send_modify(|count| *count += 1);
    }

    fn on_thinking_delta(&mut self, delta: &str) {
        self.thinking.push_str(delta);
    }

    fn on_retry(&mut self, attempt: u32, delay: Duration, why: &str) {
        self.retries.push((attempt, delay, why.to_owned()));
    }

    fn on_request_sent(&mut self, estimated_tokens: u64) {
        self.inputs.push(estimated_tokens);
    }

    fn on_usage(&mut self, usage: Usage) {
        self.usages.push(usage);
    }
}

/// One model, one run, one scope.
pub(crate) struct ModelCallFixture {
    models: Models,
    pub(crate) scope: Scope,
    run: RunId,
    agent: AgentId,
    pub(crate) conversation: Conversation,
    thinking: Option<ThinkingMode>,
    pub(crate) tools: Vec<ToolSpec>,
}

impl ModelCallFixture {
    /// A provider `p` at `base_url`, with retries after a millisecond.
    fn new(base_url: String) -> Self {
        Self::with(base_url, |_| {})
    }

    /// A server that plays these scripts, and its provider.
    async fn start(scripts: Vec<Vec<FakeServerStep>>) -> (FakeModelServer, Self) {
        let fake = FakeModelServer::start(scripts).await;
        let fixture = Self::new(fake.base_url());
        (fake, fixture)
    }

    fn with(base_url: String, change: impl FnOnce(&mut ProviderConfig)) -> Self {
        Self::of_kind(ProviderKind::OPENAI, base_url, change)
    }

    pub(crate) fn of_kind(kind: ProviderKind, base_url: String, change: impl FnOnce(&mut ProviderConfig)) -> Self {
        let mut config = ProviderConfig::new(kind);
        config.base_url = Some(base_url);
        change(&mut config);
        let models = Models::new(BTreeMap::from([("p".to_owned(), config)])).unwrap();
        {
            let mut current = models.current_providers.write().unwrap();
            let provider_set = Arc::get_mut(&mut current.provider_set).unwrap();
            Arc::get_mut(provider_set.providers.get_mut("p").unwrap()).unwrap().retry_policy.base =
                Duration::from_millis(1);
        }
        Self {
            models,
            scope: Scope::new(Clock::start(), PointProbe::default()),
            run: RunId::parse("r1").unwrap(),
            agent: AgentId::parse("main").unwrap(),
            conversation: Conversation {
                system: String::new(),
                messages: vec![json!({"role": "user", "content": "hi"})],
                ..Conversation::default()
            },
            thinking: None,
            tools: Vec::new(),
        }
    }

    pub(crate) async fn call(&self, sink: &mut dyn ModelSink) -> Result<ModelAnswer, ModelError> {
        let request = ModelCallRequest {
            run: &self.run,
            agent: &self.agent,
            conversation: &self.conversation,
            tools: &self.tools,
            answer: &AnswerOptions { temperature: Some(0.5), max_tokens: Some(100), ..AnswerOptions::default() },
            thinking: self.thinking,
            web_search: false,
        };
        self.models.resolve("p/m/1").unwrap().call(&request, &self.scope, sink).await
    }

    /// The answer of a call that succeeds.
    async fn answer(&self) -> (ModelAnswer, RecordingSink) {
        let mut sink = RecordingSink::default();
        (self.call(&mut sink).await.unwrap(), sink)
    }

    /// The error of a call that fails.
    async fn failure(&self) -> (ModelError, RecordingSink) {
        let mut sink = RecordingSink::default();
        (self.call(&mut sink).await.unwrap_err(), sink)
    }

    /// Kind, label and release of each row of the ledger; all are released.
    fn ledger(&self) -> Vec<(ResourceKind, String, Release)> {
        let rows = self.scope.ledger().rows().into_iter();
        rows.map(|row| (row.kind, row.label.clone(), row.release().unwrap())).collect()
    }

    fn is_idle(&self) -> bool {
        self.models.active_requests().count() == 0
    }
}

pub(crate) fn shell_tool() -> ToolSpec {
    ToolSpec {
        name: "shell".to_owned(),
        description: "Runs a command.".to_owned(),
        parameters: json!({"type": "object"}).into(),
    }
}

fn is_estimated(usage: Usage) -> bool {
    usage.estimated
}

#[test]
fn a_model_is_found_by_its_provider_and_may_have_slashes_in_its_name() {
    let fixture = ModelCallFixture::new("http://127.0.0.1:1/v1".to_owned());
    let model = fixture.models.resolve("p/meta/llama-3").unwrap();
    assert_eq!((model.name(), model.model_id()), ("p/meta/llama-3", "meta/llama-3"));
    for name in ["x/y", "p", "p/", "", "/y"] {
        let unknown = fixture.models.resolve(name).unwrap_err();
        assert_eq!(unknown.providers, ["p"]);
        assert!(unknown.to_string().contains("the providers are: p"), "{unknown}");
    }
}

#[test]
fn a_call_is_small_and_can_move_between_threads() {
    fn weigh<F: Future + Send>(future: &F) -> usize {
        size_of_val(future)
    }
    let fixture = ModelCallFixture::new("http://127.0.0.1:1/v1".to_owned());
    let mut sink = RecordingSink::default();
    let bytes = weigh(&fixture.call(&mut sink));
    // The limit for a thousand concurrent streams: 64 KB each with socket and buffers.
    assert!(bytes < 8 * 1024, "the future of a call takes {bytes} bytes");
}
