//! The built-in demo model: an OpenAI-compatible HTTP server on a loopback port of this process.
//!
//! A first run thus uses real sockets and the same client code as any other model. The server always streams, because
//! its only client always asks for that.

mod script;

use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::response::Sse;
use axum::response::sse::Event;
use axum::routing::post;
use axum::{Json, Router};
use futures_util::{Stream, StreamExt, stream};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::partial_answer::estimate_tokens;
use script::{DemoReply, DemoRequest};

/// The pause before each word, about the pace of a hosted model.
const WORD_DELAY: Duration = Duration::from_millis(30);

/// The maximum size of a request; far more than the size to which the history is trimmed.
const MAX_REQUEST_BYTES: usize = 64 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DemoScript {
    /// Answers every message, and says how to add a real model.
    Chat,
    /// The tour: answers the first message with a sentence and a call of the tool `shell`, and the message after a stop
    /// by quoting the history.
    Tour {
        /// The shell command of the call.
        command: String,
    },
}

/// A running demo model. Dropping it closes the server; [`DemoModel::stop`] also waits for that.
#[derive(Debug)]
pub struct DemoModel {
    base_url: String,
    shutdown: DropGuard,
    server: JoinHandle<io::Result<()>>,
}

struct DemoServerState {
    script: DemoScript,
    shutdown: CancellationToken,
    answer_count: AtomicU64,
}

impl DemoModel {
    /// Starts the server on a free port of 127.0.0.1.
    ///
    /// # Cancel safety
    /// Safe: nothing runs before it returns.
    pub async fn start(script: DemoScript) -> io::Result<Self> {
        // waits: for a local port, at the start of the daemon; no run waits here.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let base_url = format!("http://{}/v1", listener.local_addr()?);
        let shutdown = CancellationToken::new();
        let state = DemoServerState { script, shutdown: shutdown.clone(), answer_count: AtomicU64::new(0) };
        let router = Router::new()
            .route("/v1/chat/completions", post(handle_chat_completion))
            .layer(DefaultBodyLimit::max(MAX_REQUEST_BYTES))
            .with_state(Arc::new(state));
        let serving = axum::serve(listener, router).with_graceful_shutdown(shutdown.clone().cancelled_owned());
        #[expect(
            clippy::disallowed_methods,
            reason = "the demo server belongs to the daemon and not to a run; stop() waits for it and its connections"
        )]
        let server = tokio::spawn(serving.into_future());
        Ok(Self { base_url, shutdown: shutdown.drop_guard(), server })
    }

    /// The `base_url` for the provider's configuration.
    #[must_use]
    pub fn base_url(&self) -> String {
        self.base_url.clone()
    }

    /// Ends every answer and waits until each connection is closed.
    ///
    /// # Cancel safety
    /// Safe: the server closes by itself after the first poll; only the waiting is lost.
    pub async fn stop(self) {
        drop(self.shutdown);
        // waits: for the server, at the end of the daemon; no run waits here.
        if let Ok(Err(error)) = self.server.await {
            tracing::warn!(%error, "the demo model did not close cleanly");
        }
    }
}

async fn handle_chat_completion(
    State(state): State<Arc<DemoServerState>>,
    Json(request): Json<DemoRequest>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let number = state.answer_count.fetch_add(1, Ordering::Relaxed) + 1;
    let chunks = answer_chunks(number, &request, &state.script);
    let events = stream::iter(chunks).then(|(pause, data)| async move {
        // waits: on the server's side; closing the connection ends it.
        sleep(pause).await;
        Ok(Event::default().data(data))
    });
    Sse::new(events.take_until(state.shutdown.clone().cancelled_owned()))
}

/// The events of one answer, each with the pause before it.
fn answer_chunks(number: u64, request: &DemoRequest, script: &DemoScript) -> Vec<(Duration, String)> {
    let DemoReply { text, command } = script::build_reply(script, request);
    let chunk = |body: Value| {
        let mut chunk = json!({
            "id": format!("chatcmpl-demo-{number}"),
            "object": "chat.completion.chunk",
            "created": Timestamp::now().as_second(),
            "model": request.model,
        });
        if let (Value::Object(chunk), Value::Object(body)) = (&mut chunk, body) {
            chunk.extend(body);
        }
        chunk.to_string()
    };
    let choice = |delta: Value, finish: Option<&str>| {
        chunk(json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}))
    };
    let mut chunks = vec![(Duration::ZERO, choice(json!({"role": "assistant", "content": ""}), None))];
    chunks.extend(text.split_inclusive(' ').map(|word| (WORD_DELAY, choice(json!({"content": word}), None))));
    let finish = if command.is_some() { "tool_calls" } else { "stop" };
    if let Some(command) = command {
        let arguments = json!({"command": command}).to_string();
        let function = json!({"name": script::SHELL_TOOL, "arguments": arguments});
        let call = json!({"index": 0, "id": format!("call_demo_{number}"), "type": "function", "function": function});
        chunks.push((WORD_DELAY, choice(json!({"tool_calls": [call]}), None)));
    }
    chunks.push((Duration::ZERO, choice(json!({}), Some(finish))));
    let usage = json!({"prompt_tokens": request.estimate_tokens(), "completion_tokens": estimate_tokens(&text)});
    chunks.push((Duration::ZERO, chunk(json!({"choices": [], "usage": usage}))));
    chunks.push((Duration::ZERO, "[DONE]".to_owned()));
    chunks
}

#[cfg(test)]
mod tests;
