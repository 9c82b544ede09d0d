//! HTTP server of the fake: connections, paths with tokens, long polls, and injected faults.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::methods::{
    FakeBotApiError, FakeBotApiRequest, bad_request, check_known_parameters, run_method, too_many_requests,
};
use super::state::{FakeTelegramState, TelegramCall};
use super::{FakeTelegramFault, TOKEN, multipart};
use crate::model::http1::{RawHttpRequest, plain_response, read_request};
use crate::model::server::bind_listener;

/// Command of a test for the port.
#[derive(Debug, Clone, Copy)]
pub(super) enum TelegramServerCommand {
    /// Close it and every connection.
    Stop,
    Start,
    /// Close every connection.
    DropConnections,
}

type SharedTelegramState = watch::Sender<FakeTelegramState>;

/// Accepts connections until the inbox closes.
pub(super) async fn accept_loop(
    listener: TcpListener,
    stage: SharedTelegramState,
    mut inbox: mpsc::Receiver<(TelegramServerCommand, oneshot::Sender<()>)>,
) {
    let address = listener.local_addr().unwrap_or_else(|error| panic!("no address: {error}"));
    let (mut listener, mut connections) = (Some(listener), JoinSet::new());
    loop {
        let next = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        // Cancel safe: a dropped accept leaves the connection in the backlog; commands and join results are received
        // whole or not at all.
        tokio::select! {
            order = inbox.recv() => {
                let Some((order, done)) = order else { return };
                match order {
                    TelegramServerCommand::Stop => {
                        listener = None;
                        connections.shutdown().await;
                    }
                    TelegramServerCommand::DropConnections => connections.shutdown().await,
                    TelegramServerCommand::Start => match bind_listener(address) {
                        Ok(opened) => listener = Some(opened),
                        Err(error) => panic!("the port is taken: {error}"),
                    },
                }
                let _ = done.send(());
            }
            accepted = next => if let Ok((stream, _)) = accepted {
                connections.spawn(serve_connection(stream, stage.clone()));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Increments a counter while it lives, also when its task is dropped.
struct StateCountGuard {
    state: SharedTelegramState,
    count: fn(&mut FakeTelegramState) -> &mut usize,
}

impl StateCountGuard {
    fn new(stage: &SharedTelegramState, count: fn(&mut FakeTelegramState) -> &mut usize) -> Self {
        stage.send_modify(|state| *count(state) += 1);
        Self { state: stage.clone(), count }
    }
}

impl Drop for StateCountGuard {
    fn drop(&mut self) {
        self.state.send_modify(|state| *(self.count)(state) -= 1);
    }
}

async fn serve_connection(mut stream: TcpStream, stage: SharedTelegramState) {
    let _connected = StateCountGuard::new(&stage, |state| &mut state.connections);
    if let Err(error) = serve_requests(&mut stream, &stage).await
        && error.kind() == io::ErrorKind::InvalidData
    {
        stage.send_modify(|state| state.malformed_requests.push(error.to_string()));
    }
}

async fn serve_requests(stream: &mut TcpStream, stage: &SharedTelegramState) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = BytesMut::new();
    while let Some(incoming) = read_request(stream, &mut buffer).await? {
        let (mut reader, mut writer) = stream.split();
        // Cancel safe: the reader leaves what it read in the buffer, and the answer is dropped only after the client
        // has gone.
        let answer = tokio::select! {
            biased;
            () = wait_client_disconnect(&mut reader, &mut buffer) => return Ok(()),
            answer = answer_request(stage, incoming) => answer,
        };
        match answer {
            Some(bytes) => writer.write_all(&bytes).await?,
            None => return Ok(()),
        }
    }
    Ok(())
}

/// Returns when the client has closed its side. Bytes that arrive meanwhile belong to its next request.
async fn wait_client_disconnect(reader: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut) {
    while let Ok(1..) = reader.read_buf(buffer).await {}
}

/// The bytes of an answer; `None` when the connection is closed instead.
async fn answer_request(stage: &SharedTelegramState, incoming: RawHttpRequest) -> Option<Vec<u8>> {
    let path = incoming.path.clone();
    if let Some(file) = path.strip_prefix("/file/bot") {
        return Some(serve_download(stage, file));
    }
    let Some((token, method)) = path.strip_prefix("/bot").and_then(|rest| rest.split_once('/')) else {
        return Some(error_response(&FakeBotApiError { code: 404, description: "Not Found".into(), parameters: None }));
    };
    if token != TOKEN {
        // A malformed token is answered with 404, a wrong one with 401.
        let (code, description) = if token.contains(':') { (401, "Unauthorized") } else { (404, "Not Found") };
        return Some(error_response(&FakeBotApiError { code, description: description.into(), parameters: None }));
    }
    let request = match parse_request(method, &incoming) {
        Ok(request) => request,
        Err(refusal) => return Some(error_response(&refusal)),
    };
    let (index, fault) = record_call(stage, &request);
    let acts = matches!(fault, None | Some(FakeTelegramFault::LoseAnswer | FakeTelegramFault::ActThenHtmlPage(_)));
    let result = if !acts {
        Err(bad_request("as the test wants"))
    } else if request.method == "getUpdates" {
        get_updates(stage, &request.body).await
    } else {
        let mut result = Ok(Value::Null);
        stage.send_modify(|state| result = run_method(state, &request));
        result
    };
    let (code, bytes) = match fault {
        None => match result {
            Ok(result) => (200, plain_response(200, &[], &json!({"ok": true, "result": result}).to_string())),
            Err(refusal) => (refusal.code, error_response(&refusal)),
        },
        Some(FakeTelegramFault::Refuse(code, description)) => {
            (code, error_response(&FakeBotApiError { code, description: description.into(), parameters: None }))
        }
        Some(FakeTelegramFault::RateLimited(seconds)) => (429, error_response(&too_many_requests(seconds))),
        Some(FakeTelegramFault::HtmlPage(code) | FakeTelegramFault::ActThenHtmlPage(code)) => {
            (code, html_response(code, &path))
        }
        Some(FakeTelegramFault::Silent) => return std::future::pending().await,
        Some(FakeTelegramFault::Drop | FakeTelegramFault::LoseAnswer) => return None,
    };
    stage.send_modify(|state| state.calls[index].answered = Some(code));
    Some(bytes)
}

fn record_call(stage: &SharedTelegramState, request: &FakeBotApiRequest) -> (usize, Option<FakeTelegramFault>) {
    let (mut index, mut fault) = (0, None);
    stage.send_modify(|state| {
        index = state.calls.len();
        let (method, body) = (request.method.clone(), request.body.clone());
        state.calls.push(TelegramCall { method, body, at: Instant::now(), answered: None });
        fault = state.faults.get_mut(&request.method).and_then(VecDeque::pop_front);
    });
    (index, fault)
}

fn parse_request(method: &str, incoming: &RawHttpRequest) -> Result<FakeBotApiRequest, FakeBotApiError> {
    let content_type = incoming.header("content-type").unwrap_or_default();
    let (body, file) = match (incoming.method.as_str(), content_type) {
        ("GET", _) => (Value::Null, None),
        ("POST", "application/json") => {
            let body = serde_json::from_slice(&incoming.body);
            (body.map_err(|_| bad_request("can't parse JSON object"))?, None)
        }
        ("POST", form) if form.starts_with("multipart/form-data") => {
            let form = multipart::parse_form(form, &incoming.body).map_err(bad_request)?;
            (form.fields, form.file)
        }
        ("POST", "") if incoming.body.is_empty() => (Value::Null, None),
        _ => return Err(bad_request(format!("{} with {content_type:?} is not understood", incoming.method))),
    };
    Ok(FakeBotApiRequest { method: method.to_owned(), body, file })
}

/// Bot API: getUpdates. Of two waiting calls, the older is ended.
async fn get_updates(stage: &SharedTelegramState, body: &Value) -> Result<Value, FakeBotApiError> {
    check_known_parameters(body, &["offset", "limit", "timeout", "allowed_updates"])?;
    let limit = match body.get("limit") {
        None => 100,
        Some(limit) => {
            let limit = limit.as_u64().filter(|limit| (1..=100).contains(limit));
            usize::try_from(limit.ok_or_else(|| bad_request("limit must be between 1 and 100"))?).unwrap_or(100)
        }
    };
    let offset = body["offset"].as_i64().unwrap_or(0);
    let mine = begin_poll(stage, body, offset)?;
    let mut states = stage.subscribe();
    let due =
        |state: &FakeTelegramState| state.newest_poll != mine || state.updates.iter().any(|(id, _)| *id >= offset);
    let time = Duration::from_secs(body["timeout"].as_u64().unwrap_or(0));
    let waiting = (!time.is_zero()).then(|| StateCountGuard::new(stage, |state| &mut state.waiting_polls));
    // A timeout is no error: no update arrived.
    let _ = timeout(time, states.wait_for(due)).await;
    drop(waiting);
    let state = states.borrow();
    if state.newest_poll != mine {
        let why = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running";
        return Err(FakeBotApiError { code: 409, description: why.into(), parameters: None });
    }
    let told = state.updates.iter().filter(|(id, _)| *id >= offset).take(limit);
    Ok(told.map(|(_, update)| update.clone()).collect())
}

/// Confirms updates up to the offset, and makes this the newest poll.
fn begin_poll(stage: &SharedTelegramState, body: &Value, offset: i64) -> Result<u64, FakeBotApiError> {
    let wanted = match body.get("allowed_updates") {
        None => None,
        Some(list) => {
            let names = serde_json::from_value::<Vec<String>>(list.clone());
            Some(names.map_err(|_| bad_request("can't parse allowed updates JSON array"))?)
        }
    };
    let mut begun = Err(());
    stage.send_modify(|state| {
        if state.webhook.is_empty() {
            state.confirm_updates(offset);
            state.allowed_updates = wanted.unwrap_or_else(|| state.allowed_updates.clone());
            state.newest_poll += 1;
            begun = Ok(state.newest_poll);
        }
    });
    let why =
        "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first";
    begun.map_err(|()| FakeBotApiError { code: 409, description: why.into(), parameters: None })
}

fn serve_download(stage: &SharedTelegramState, path: &str) -> Vec<u8> {
    let state = stage.borrow();
    let wanted = path.strip_prefix(TOKEN).and_then(|rest| rest.strip_prefix('/'));
    let found = wanted.and_then(|wanted| state.files.values().find(|(path, _)| path == wanted));
    let Some((_, bytes)) = found else {
        return error_response(&FakeBotApiError { code: 404, description: "Not Found".into(), parameters: None });
    };
    let length = bytes.len();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: {length}\r\n\r\n");
    [head.as_bytes(), bytes].concat()
}

fn error_response(refusal: &FakeBotApiError) -> Vec<u8> {
    let mut body = json!({"ok": false, "error_code": refusal.code, "description": refusal.description});
    if let Some(parameters) = &refusal.parameters {
        body["parameters"] = parameters.clone();
    }
    plain_response(refusal.code, &[], &body.to_string())
}

fn html_response(code: u16, path: &str) -> Vec<u8> {
    let kind = [("content-type".to_owned(), "text/html".to_owned())];
    // Real pages have a head too. This one is so long that a page cut at 300 characters contains a cut token.
    let head = format!("<head><style>{}</style></head>", " ".repeat(190));
    plain_response(code, &kind, &format!("<html>{head}<h1>{code}</h1><p>The requested URL {path} failed.</p></html>"))
}
