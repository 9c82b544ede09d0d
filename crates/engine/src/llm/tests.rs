//! The wire layer against servers on loopback: answers, retries, broken streams, and stops.

mod answers;
mod anthropic;
mod failures;
mod stops;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quell_kernel::turn::Thinking;
use quell_protocol::{AgentId, ResourceKind, RunId, Usage};
use serde_json::json;
use tokio::sync::watch;

use super::*;
use crate::clock::Clock;
use crate::scope::{Probe, Row, Scope};

/// What a sink was told.
#[derive(Debug, Default)]
struct Recorder {
    text: String,
    thinking: String,
    retries: Vec<(u32, Duration, String)>,
    inputs: Vec<u64>,
    usages: Vec<Usage>,
    /// Tells a test how many pieces of text have come.
    pieces: watch::Sender<usize>,
}

impl ModelSink for Recorder {
    fn text(&mut self, delta: &str) {
        self.text.push_str(delta);
        self.pieces.send_modify(|count| *count += 1);
    }

    fn thinking(&mut self, delta: &str) {
        self.thinking.push_str(delta);
    }

    fn retrying(&mut self, attempt: u32, delay: Duration, why: &str) {
        self.retries.push((attempt, delay, why.to_owned()));
    }

    fn input_sent(&mut self, estimated_tokens: u64) {
        self.inputs.push(estimated_tokens);
    }

    fn usage(&mut self, usage: Usage) {
        self.usages.push(usage);
    }
}

/// One model, one run, one scope.
struct Bench {
    models: Models,
    scope: Scope,
    run: RunId,
    agent: AgentId,
    conversation: Conversation,
    thinking: Option<ThinkingMode>,
    tools: Vec<ToolSpec>,
}

impl Bench {
    /// A provider `p` at `base_url` whose retries come after milliseconds.
    fn new(base_url: String) -> Self {
        Self::with(base_url, |_| {})
    }

    fn with(base_url: String, change: impl FnOnce(&mut ProviderConfig)) -> Self {
        Self::of_kind(ProviderKind::Openai, base_url, change)
    }

    fn of_kind(kind: ProviderKind, base_url: String, change: impl FnOnce(&mut ProviderConfig)) -> Self {
        let mut config = ProviderConfig::new(kind);
        config.base_url = Some(base_url);
        change(&mut config);
        let models = Models::new(BTreeMap::from([("p".to_owned(), config)])).unwrap();
        {
            let mut current = models.current.write().unwrap();
            let served = Arc::get_mut(&mut current.served).unwrap();
            Arc::get_mut(served.providers.get_mut("p").unwrap()).unwrap().retries.base = Duration::from_millis(1);
        }
        Self {
            models,
            scope: Scope::new(Clock::start(), Probe::default()),
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

    async fn call(&self, sink: &mut Recorder) -> Result<ModelAnswer, ModelError> {
        let request = ModelRequest {
            run: &self.run,
            agent: &self.agent,
            conversation: &self.conversation,
            tools: &self.tools,
            temperature: Some(0.5),
            max_tokens: Some(100),
            thinking: self.thinking,
        };
        self.models.resolve("p/m/1").unwrap().call(&request, &self.scope, sink).await
    }

    /// Kind, label and end of each line of the ledger.
    fn ledger(&self) -> Vec<(ResourceKind, String, &'static str)> {
        self.scope.ledger().rows().into_iter().map(|Row { kind, label, how, .. }| (kind, label, how)).collect()
    }

    fn is_idle(&self) -> bool {
        let active = self.models.active();
        active.count() == 0 && !active.has_run(&self.run) && !active.has_agent(&self.agent)
    }
}

fn estimated(usage: Usage) -> bool {
    usage.estimated
}

#[test]
fn a_model_is_found_by_its_provider_and_may_have_slashes_in_its_name() {
    let bench = Bench::new("http://127.0.0.1:1/v1".to_owned());
    let model = bench.models.resolve("p/meta/llama-3").unwrap();
    assert_eq!((model.name(), model.id()), ("p/meta/llama-3", "meta/llama-3"));
    for name in ["x/y", "p", "p/", "", "/y"] {
        let unknown = bench.models.resolve(name).unwrap_err();
        assert_eq!(unknown.providers, ["p"]);
        assert!(unknown.to_string().contains("the providers are: p"), "{unknown}");
    }
}

#[test]
fn a_call_is_small_and_can_move_between_threads() {
    fn weigh<F: Future + Send>(future: &F) -> usize {
        size_of_val(future)
    }
    let bench = Bench::new("http://127.0.0.1:1/v1".to_owned());
    let mut sink = Recorder::default();
    let bytes = weigh(&bench.call(&mut sink));
    // A thousand of these stream at once, in 64 KB each with socket and buffers.
    assert!(bytes < 8 * 1024, "the future of a call takes {bytes} bytes");
}
