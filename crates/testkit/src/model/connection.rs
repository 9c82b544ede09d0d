//! One connection: reads requests, answers each as scripted, and watches all the while whether the client is still there.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::behaviour::{Behaviour, Transfer};
use super::perform::{After, perform};
use super::record::{Finish, Recorded};
use super::rules;
use super::stage::Stage;
use super::wire::Wire;
use super::wire_http::{Incoming, plain, read_request};
use crate::history::corpus::Dialect;

/// Serves a connection until either side ends it.
pub(super) async fn serve(mut stream: TcpStream, stage: Arc<Stage>) {
    let _connected = stage.connected();
    if let Err(error) = exchange(&mut stream, &stage).await {
        // A client that leaves between requests may reset instead of closing.
        if error.kind() == io::ErrorKind::InvalidData {
            stage.oddity(error.to_string());
        }
    }
}

async fn exchange(stream: &mut TcpStream, stage: &Arc<Stage>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = BytesMut::new();
    while let Some(incoming) = read_request(stream, &mut buffer).await? {
        let after = match route(&incoming) {
            Route::Answers(dialect, body) => {
                let request = stage.arrive(incoming, dialect, body);
                answer(stream, &mut buffer, &request, stage).await
            }
            Route::Models => {
                let list = json!({"object": "list", "data": [{"id": "scripted", "object": "model"}]});
                stream.write_all(&plain(200, &[], &list.to_string())).await?;
                After::KeepAlive
            }
            Route::Foreign(code, why) => {
                stage.oddity(format!("{} {}: {why}", incoming.method, incoming.path));
                stream.write_all(&plain(code, &[], &error_body(&why, None).to_string())).await?;
                After::KeepAlive
            }
        };
        match after {
            After::KeepAlive => {}
            After::Close => return Ok(()),
            After::Reset => return stream.set_zero_linger(),
        }
    }
    Ok(())
}

enum Route {
    Answers(Dialect, Value),
    Models,
    Foreign(u16, String),
}

fn route(incoming: &Incoming) -> Route {
    match (incoming.method.as_str(), incoming.path.split('?').next().unwrap_or_default()) {
        ("POST", "/v1/chat/completions") => answers(incoming, Dialect::OpenAi),
        ("POST", "/v1/messages") => answers(incoming, Dialect::Anthropic),
        ("GET", "/v1/models") => Route::Models,
        _ => Route::Foreign(404, "no such route".into()),
    }
}

fn answers(incoming: &Incoming, dialect: Dialect) -> Route {
    if let Some(missing) = rules::missing_header(dialect, &incoming.headers) {
        return Route::Foreign(401, missing.into());
    }
    match serde_json::from_slice::<Value>(&incoming.body) {
        Ok(body) if body.get("stream") == Some(&json!(true)) => Route::Answers(dialect, body),
        Ok(_) => Route::Foreign(400, "this server only streams: set \"stream\": true".into()),
        Err(error) => Route::Foreign(400, format!("the body is not JSON: {error}")),
    }
}

async fn answer(stream: &mut TcpStream, buffer: &mut BytesMut, request: &Recorded, stage: &Stage) -> After {
    let refused = refusal(request);
    let behaviour = refused.clone().unwrap_or_else(|| stage.next_behaviour(request));
    let (mut reader, writer) = stream.split();
    let mut wire = Wire { writer, request, transfer: Transfer::Chunked, piece: None };
    // The reader only watches, and what it read is in the buffer; the writer may be dropped because nobody is left to read.
    let done = tokio::select! {
        biased;
        () = client_leaves(&mut reader, buffer) => None,
        done = perform(&behaviour, stage, &mut wire) => done.ok(),
    };
    let Some((finish, after)) = done else {
        request.note(|p| {
            p.resting = false;
            p.client_left = Some(Instant::now());
            p.finish = Some(Finish::ClientLeft);
        });
        return After::Close;
    };
    request.note(|p| p.finish = Some(if refused.is_some() { Finish::Refused } else { finish }));
    after
}

/// Returns when the client has closed or reset its side. Bytes that come meanwhile belong to its next request.
async fn client_leaves(reader: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut) {
    while let Ok(1..) = reader.read_buf(buffer).await {}
}

/// Refuses a request with a broken history as a real provider does.
fn refusal(request: &Recorded) -> Option<Behaviour> {
    let first = request.violations.first()?;
    let all: Vec<String> = request.violations.iter().map(ToString::to_string).collect();
    let body = error_body(&all.join("; "), Some((&first.place, first.rule.as_str())));
    Some(Behaviour::Status { code: 400, headers: Vec::new(), body: body.to_string() })
}

fn error_body(message: &str, place: Option<(&str, &str)>) -> Value {
    let (param, code) = place.map_or((Value::Null, Value::Null), |(param, code)| (json!(param), json!(code)));
    json!({"type": "error", "error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}})
}
