//! One connection: reads requests, answers each as scripted, and watches whether the client disconnects.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::recorded_request::{RecordedRequest, ResponseOutcome};
use super::request_checks;
use super::respond::ScriptedResponseWriter;
use super::scripted_response::ScriptedResponse;
use super::shared_state::ModelServerState;
use crate::fake_server::http1::{RawHttpRequest, read_request};
use crate::fake_server::{FakeHttpReply, wait_client_disconnect};
use crate::history_check::corpus::ModelDialect;

/// Serves a connection until the client ends it.
pub(super) async fn serve_connection(mut stream: TcpStream, stage: Arc<ModelServerState>) {
    let _connected = stage.count_connection();
    if let Err(error) = serve_requests(&mut stream, &stage).await {
        // A client that disconnects between requests may reset the connection instead of closing it.
        if error.kind() == io::ErrorKind::InvalidData {
            stage.report_unexpected(error.to_string());
        }
    }
}

async fn serve_requests(stream: &mut TcpStream, stage: &ModelServerState) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    while let Some(incoming) = read_request(stream, &mut buffer).await? {
        match route_request(&incoming) {
            RoutedModelRequest::Completion(dialect, body) => {
                let request = stage.record_request(incoming, dialect, body);
                if !send_response(stream, &mut buffer, &request, stage).await {
                    return Ok(());
                }
            }
            RoutedModelRequest::ModelList => {
                // The second list is Gemini's form.
                let list = json!({"object": "list", "data": [{"id": "scripted", "object": "model"}],
                    "models": [{"name": "models/scripted"}]});
                stream.write_all(&FakeHttpReply::json(200, &list).into_bytes()).await?;
            }
            RoutedModelRequest::Unsupported(code, why) => {
                stage.report_unexpected(format!("{} {}: {why}", incoming.method, incoming.path));
                stream.write_all(&FakeHttpReply::json(code, &error_body(&why, None)).into_bytes()).await?;
            }
        }
    }
    Ok(())
}

enum RoutedModelRequest {
    Completion(ModelDialect, Value),
    ModelList,
    Unsupported(u16, String),
}

fn route_request(incoming: &RawHttpRequest) -> RoutedModelRequest {
    match (incoming.method.as_str(), incoming.path.split('?').next().unwrap_or_default()) {
        ("POST", "/v1/chat/completions") => route_completion(incoming, ModelDialect::OpenAi),
        ("POST", "/v1/responses") => route_completion(incoming, ModelDialect::OpenAiResponses),
        ("POST", "/v1/messages") => route_completion(incoming, ModelDialect::Anthropic),
        ("POST", path) if is_gemini_stream(path) => route_completion(incoming, ModelDialect::Gemini),
        ("GET", "/v1/models" | "/v1beta/models") => RoutedModelRequest::ModelList,
        _ => RoutedModelRequest::Unsupported(404, "no such route".into()),
    }
}

/// `/v1beta/models/NAME:streamGenerateContent`, or the same below `/v1`.
fn is_gemini_stream(path: &str) -> bool {
    let model = path.strip_prefix("/v1beta/models/").or_else(|| path.strip_prefix("/v1/models/"));
    model.and_then(|model| model.strip_suffix(":streamGenerateContent")).is_some_and(|model| !model.is_empty())
}

fn route_completion(incoming: &RawHttpRequest, dialect: ModelDialect) -> RoutedModelRequest {
    if let Some(missing) = request_checks::missing_header(dialect, incoming) {
        return RoutedModelRequest::Unsupported(401, missing.into());
    }
    match serde_json::from_slice::<Value>(&incoming.body) {
        // In this dialect the path asks for the stream, and the query for its form.
        Ok(body) if dialect == ModelDialect::Gemini && incoming.path.contains("alt=sse") => {
            RoutedModelRequest::Completion(dialect, body)
        }
        Ok(body) if dialect != ModelDialect::Gemini && body.get("stream") == Some(&json!(true)) => {
            RoutedModelRequest::Completion(dialect, body)
        }
        Ok(_) => RoutedModelRequest::Unsupported(400, "this server only streams: set \"stream\": true".into()),
        Err(error) => RoutedModelRequest::Unsupported(400, format!("the body is not JSON: {error}")),
    }
}

/// Sends the response; false when the client has left.
async fn send_response(
    stream: &mut TcpStream,
    buffer: &mut BytesMut,
    request: &RecordedRequest,
    stage: &ModelServerState,
) -> bool {
    let response = history_error_response(request).unwrap_or_else(|| stage.next_response(request));
    let (mut reader, writer) = stream.split();
    let mut writer = ScriptedResponseWriter::new(writer, request, stage);
    // Cancel safe: the reader leaves what it read in the buffer, and the writer is dropped only after the client has
    // gone.
    let sent = tokio::select! {
        biased;
        () = wait_client_disconnect(&mut reader, buffer) => None,
        sent = writer.send(&response) => sent.ok(),
    };
    request.update_progress(|progress| {
        if sent.is_none() {
            progress.paused = false;
            progress.client_left = Some(Instant::now());
        }
        progress.outcome = Some(sent.clone().unwrap_or(ResponseOutcome::ClientLeft));
    });
    sent.is_some()
}

/// Refuses a request with a broken history as a real provider does.
fn history_error_response(request: &RecordedRequest) -> Option<ScriptedResponse> {
    let first = request.violations.first()?;
    let all: Vec<String> = request.violations.iter().map(ToString::to_string).collect();
    let body = error_body(&all.join("; "), Some((&first.place, first.rule.as_str())));
    Some(ScriptedResponse::Status { code: 400, headers: Vec::new(), body: body.to_string() })
}

fn error_body(message: &str, place: Option<(&str, &str)>) -> Value {
    let (param, code) = place.map_or((Value::Null, Value::Null), |(param, code)| (json!(param), json!(code)));
    json!({"type": "error", "error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}})
}
