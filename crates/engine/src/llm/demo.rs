//! The built-in demo model: a server of the OpenAI dialect on a loopback port of this process, so that a first run goes over
//! real sockets and the same wire layer as any other model. It always streams, for its only client always asks for that.

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

use super::answer::estimate;
use script::{Asked, Reply};

/// The pause before each word, about the pace of a hosted model.
const PAUSE: Duration = Duration::from_millis(30);

/// The longest conversation that is taken; far above what the history is trimmed to.
const MAX_REQUEST_BYTES: usize = 64 * 1024 * 1024;

/// What the demo model does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DemoScript {
    /// It answers every message, and says how to add a real model.
    Chat,
    /// The tour: it answers the first message with a sentence and a call of the tool `shell`, and the message after a stop
    /// with what it read in the history.
    Tour {
        /// The command of the call.
        command: String,
    },
}

/// A running demo model. When it is dropped it closes by itself; [`DemoModel::stop`] waits for that.
#[derive(Debug)]
pub struct DemoModel {
    base_url: String,
    closing: DropGuard,
    server: JoinHandle<io::Result<()>>,
}

struct Stage {
    script: DemoScript,
    closing: CancellationToken,
    answers: AtomicU64,
}

impl DemoModel {
    /// Starts the server on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// When no port can be bound.
    ///
    /// # Cancel safety
    /// Safe: nothing runs before it returns.
    pub async fn start(script: DemoScript) -> io::Result<Self> {
        // waits: for a local port, at the start of the daemon; no run waits here.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let base_url = format!("http://{}/v1", listener.local_addr()?);
        let closing = CancellationToken::new();
        let stage = Stage { script, closing: closing.clone(), answers: AtomicU64::new(0) };
        let router = Router::new()
            .route("/v1/chat/completions", post(answer))
            .layer(DefaultBodyLimit::max(MAX_REQUEST_BYTES))
            .with_state(Arc::new(stage));
        let serving = axum::serve(listener, router).with_graceful_shutdown(closing.clone().cancelled_owned());
        #[expect(
            clippy::disallowed_methods,
            reason = "the demo server belongs to the daemon and to no run; stop() waits for it and for its connections"
        )]
        let server = tokio::spawn(serving.into_future());
        Ok(Self { base_url, closing: closing.drop_guard(), server })
    }

    /// Where its API begins, for a provider's `base_url`.
    #[must_use]
    pub fn base_url(&self) -> String {
        self.base_url.clone()
    }

    /// Ends every answer and waits until each connection is closed.
    ///
    /// # Cancel safety
    /// Safe: it closes by itself from the first poll on; only the waiting is lost.
    pub async fn stop(self) {
        drop(self.closing);
        // waits: for the daemon at its end; no run waits here.
        if let Ok(Err(error)) = self.server.await {
            tracing::warn!(%error, "the demo model did not close cleanly");
        }
    }
}

async fn answer(
    State(stage): State<Arc<Stage>>,
    Json(asked): Json<Asked>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let number = stage.answers.fetch_add(1, Ordering::Relaxed) + 1;
    let chunks = chunks(number, &asked, &stage.script);
    let events = stream::iter(chunks).then(|(pause, data)| async move {
        // waits: on the side of the server, which the closing of the connection ends.
        sleep(pause).await;
        Ok(Event::default().data(data))
    });
    Sse::new(events.take_until(stage.closing.clone().cancelled_owned()))
}

/// The events of one answer, each with the pause before it.
fn chunks(number: u64, asked: &Asked, script: &DemoScript) -> Vec<(Duration, String)> {
    let Reply { text, command } = script::reply(script, asked);
    let chunk = |body: Value| {
        let mut chunk = json!({
            "id": format!("chatcmpl-demo-{number}"),
            "object": "chat.completion.chunk",
            "created": Timestamp::now().as_second(),
            "model": asked.model,
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
    chunks.extend(text.split_inclusive(' ').map(|word| (PAUSE, choice(json!({"content": word}), None))));
    let finish = if command.is_some() { "tool_calls" } else { "stop" };
    if let Some(command) = command {
        let arguments = json!({"command": command}).to_string();
        let function = json!({"name": script::SHELL, "arguments": arguments});
        let call = json!({"index": 0, "id": format!("call_demo_{number}"), "type": "function", "function": function});
        chunks.push((PAUSE, choice(json!({"tool_calls": [call]}), None)));
    }
    chunks.push((Duration::ZERO, choice(json!({}), Some(finish))));
    let usage = json!({"prompt_tokens": asked.tokens(), "completion_tokens": estimate(&text)});
    chunks.push((Duration::ZERO, chunk(json!({"choices": [], "usage": usage}))));
    chunks.push((Duration::ZERO, "[DONE]".to_owned()));
    chunks
}

#[cfg(test)]
mod tests;
