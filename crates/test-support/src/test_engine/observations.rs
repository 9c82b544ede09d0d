//! What tests look for in runs: failures, ends of calls, and the request after a stop; a stop at a point; and engines
//! on the data of others.

use quell_engine::EngineConfig;
use quell_engine::agent::AgentConfig;
use quell_kernel::StopLevel;
use quell_protocol::api::RunView;
use quell_protocol::{CallEnd, EventKind, RunId, Verdict};
use quell_scope::Point;
use quell_testkit::ScriptedResponse;
use quell_testkit::history_check::corpus::ModelDialect;
use serde_json::Value;

use super::{
    NoticeRecorder, ProcessLock, TestDataDir, TestDir, TestEngine, alice, messages_as_text, parse_agent_id,
    run_stop_scope, stop_ask,
};

impl TestEngine {
    /// Starts beside other tests with a changed agent `main`.
    pub async fn start_with_main(change: impl FnOnce(&mut AgentConfig)) -> Self {
        let change = |config: &mut EngineConfig| change(config.agents.get_mut(&parse_agent_id("main")).unwrap());
        Self::start_with(ProcessLock::shared().await, change).await
    }

    /// Starts beside other tests in this directory, which is kept and may hold the data of an earlier engine.
    pub async fn start_on(dir: &TestDataDir, change: impl FnOnce(&mut EngineConfig)) -> Self {
        Self::start_in(TestDir::Borrowed(dir.path().to_owned()), ProcessLock::shared().await, change).await
    }

    /// Stops a run gently, as Alice, when it passes this point for the `nth` time from now, counted from 1.
    pub fn stop_at(&self, point: Point, nth: u32, run: &RunId) {
        let (engine, run) = (self.engine.clone(), run.clone());
        self.point_hook.arm(point, nth, move || {
            let stop = engine.stop(&alice(), &run_stop_scope(&run), &stop_ask(StopLevel::Gentle));
            assert_eq!(stop.aborted, [run]);
        });
    }

    /// Sends the next message of session `s`, which must be answered; returns the messages of its request as text.
    pub async fn next_request_text(&self) -> String {
        self.model.script(ScriptedResponse::text("fine"));
        let view = self.run_message("s", "and now?").await;
        assert_eq!(view.verdict, Some(Verdict::Completed), "{view:#?}");
        self.model.assert_histories_valid();
        messages_as_text(&self.last_messages())
    }
}

impl NoticeRecorder {
    /// The end and the output of each call of a run so far, in order.
    pub fn call_ends(&mut self, run: &RunId) -> Vec<(CallEnd, String)> {
        let ended = |kind: &EventKind| match kind {
            EventKind::ToolEnded { end, output, .. } => Some((*end, output.clone())),
            _ => None,
        };
        self.run_events(run).iter().filter_map(|event| ended(&event.kind)).collect()
    }
}

/// Code and message of a failed run; any other verdict fails the test.
pub fn failure_of(view: &RunView) -> (&str, &str) {
    match &view.verdict {
        Some(Verdict::Failed { code, message }) => (code, message),
        other => panic!("not failed: {other:?}"),
    }
}

/// Removes the prompt cache marks, which move on with each request.
pub fn without_cache_marks(messages: &[Value]) -> Vec<Value> {
    let mut messages = messages.to_vec();
    let blocks = messages.iter_mut().filter_map(|message| message["content"].as_array_mut()).flatten();
    for block in blocks.filter_map(Value::as_object_mut) {
        block.remove("cache_control");
    }
    messages
}

/// What only reasoning of this dialect looks like in a request.
pub fn reasoning_mark(dialect: ModelDialect) -> &'static str {
    match dialect {
        ModelDialect::OpenAi => "reasoning_content",
        ModelDialect::OpenAiResponses => "encrypted_content",
        ModelDialect::Anthropic => "\"type\":\"thinking\"",
        ModelDialect::Gemini => "thoughtSignature",
    }
}
