//! The wire: connections, paths with tokens, long polls, and what goes wrong as the test wants it.

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

use super::methods::{Refusal, Request, act, bad, known, too_many};
use super::state::{Call, State};
use super::{Fault, TOKEN, form};
use crate::model::server::listen;
use crate::model::wire_http::{Incoming, plain, read_request};

/// What a test can ask of the port.
#[derive(Debug, Clone, Copy)]
pub(super) enum Order {
    /// Close it and every connection.
    Stop,
    /// Open it again.
    Start,
    /// Close every connection.
    HangUp,
}

type Stage = watch::Sender<State>;

/// Accepts connections until the inbox closes.
pub(super) async fn run(listener: TcpListener, stage: Stage, mut inbox: mpsc::Receiver<(Order, oneshot::Sender<()>)>) {
    let address = listener.local_addr().unwrap_or_else(|error| panic!("no address: {error}"));
    let (mut listener, mut connections) = (Some(listener), JoinSet::new());
    loop {
        let next = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        // An accept that is dropped leaves the connection in the backlog; an order or a join result is taken or not.
        tokio::select! {
            order = inbox.recv() => {
                let Some((order, done)) = order else { return };
                match order {
                    Order::Stop => {
                        listener = None;
                        connections.shutdown().await;
                    }
                    Order::HangUp => connections.shutdown().await,
                    Order::Start => match listen(address) {
                        Ok(opened) => listener = Some(opened),
                        Err(error) => panic!("the port is taken: {error}"),
                    },
                }
                let _ = done.send(());
            }
            accepted = next => if let Ok((stream, _)) = accepted {
                connections.spawn(serve(stream, stage.clone()));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Counts something for as long as it is there, also when its task is dropped.
struct Counted {
    stage: Stage,
    count: fn(&mut State) -> &mut usize,
}

impl Counted {
    fn new(stage: &Stage, count: fn(&mut State) -> &mut usize) -> Self {
        stage.send_modify(|state| *count(state) += 1);
        Self { stage: stage.clone(), count }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.stage.send_modify(|state| *(self.count)(state) -= 1);
    }
}

async fn serve(mut stream: TcpStream, stage: Stage) {
    let _connected = Counted::new(&stage, |state| &mut state.connections);
    if let Err(error) = exchange(&mut stream, &stage).await
        && error.kind() == io::ErrorKind::InvalidData
    {
        stage.send_modify(|state| state.oddities.push(error.to_string()));
    }
}

async fn exchange(stream: &mut TcpStream, stage: &Stage) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = BytesMut::new();
    while let Some(incoming) = read_request(stream, &mut buffer).await? {
        let (mut reader, mut writer) = stream.split();
        // The reader only watches, and what it read is in the buffer; an answer nobody reads any more may be dropped.
        let answer = tokio::select! {
            biased;
            () = client_leaves(&mut reader, &mut buffer) => return Ok(()),
            answer = answer(stage, incoming) => answer,
        };
        match answer {
            Some(bytes) => writer.write_all(&bytes).await?,
            None => return Ok(()),
        }
    }
    Ok(())
}

/// Returns when the client has closed its side. Bytes that come meanwhile belong to its next request.
async fn client_leaves(reader: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut) {
    while let Ok(1..) = reader.read_buf(buffer).await {}
}

/// The bytes of an answer; `None` when the connection is closed instead.
async fn answer(stage: &Stage, incoming: Incoming) -> Option<Vec<u8>> {
    let path = incoming.path.clone();
    if let Some(file) = path.strip_prefix("/file/bot") {
        return Some(download(stage, file));
    }
    let Some((token, method)) = path.strip_prefix("/bot").and_then(|rest| rest.split_once('/')) else {
        return Some(refused(&Refusal { code: 404, description: "Not Found".into(), parameters: None }));
    };
    if token != TOKEN {
        // What does not look like a token is answered 404, a wrong one 401.
        let (code, description) = if token.contains(':') { (401, "Unauthorized") } else { (404, "Not Found") };
        return Some(refused(&Refusal { code, description: description.into(), parameters: None }));
    }
    let request = match read(method, &incoming) {
        Ok(request) => request,
        Err(refusal) => return Some(refused(&refusal)),
    };
    let (index, fault) = arrive(stage, &request);
    let acts = matches!(fault, None | Some(Fault::LoseAnswer | Fault::ActThenPage(_)));
    let result = if !acts {
        Err(bad("as the test wants"))
    } else if request.method == "getUpdates" {
        get_updates(stage, &request.body).await
    } else {
        let mut result = Ok(Value::Null);
        stage.send_modify(|state| result = act(state, &request));
        result
    };
    let (code, bytes) = match fault {
        None => match result {
            Ok(result) => (200, plain(200, &[], &json!({"ok": true, "result": result}).to_string())),
            Err(refusal) => (refusal.code, refused(&refusal)),
        },
        Some(Fault::Refuse(code, description)) => {
            (code, refused(&Refusal { code, description: description.into(), parameters: None }))
        }
        Some(Fault::TooMany(seconds)) => (429, refused(&too_many(seconds))),
        Some(Fault::Page(code) | Fault::ActThenPage(code)) => (code, page(code, &path)),
        Some(Fault::Silent) => return std::future::pending().await,
        Some(Fault::Drop | Fault::LoseAnswer) => return None,
    };
    stage.send_modify(|state| state.calls[index].answered = Some(code));
    Some(bytes)
}

fn arrive(stage: &Stage, request: &Request) -> (usize, Option<Fault>) {
    let (mut index, mut fault) = (0, None);
    stage.send_modify(|state| {
        index = state.calls.len();
        let (method, body) = (request.method.clone(), request.body.clone());
        state.calls.push(Call { method, body, at: Instant::now(), answered: None });
        fault = state.faults.get_mut(&request.method).and_then(VecDeque::pop_front);
    });
    (index, fault)
}

fn read(method: &str, incoming: &Incoming) -> Result<Request, Refusal> {
    let content_type = incoming.headers.iter().find(|(name, _)| name == "content-type");
    let content_type = content_type.map_or("", |(_, value)| value.as_str());
    let (body, file) = match (incoming.method.as_str(), content_type) {
        ("GET", _) => (Value::Null, None),
        ("POST", "application/json") => {
            let body = serde_json::from_slice(&incoming.body);
            (body.map_err(|_| bad("can't parse JSON object"))?, None)
        }
        ("POST", form) if form.starts_with("multipart/form-data") => {
            let form = form::read(form, &incoming.body).map_err(bad)?;
            (form.fields, form.file)
        }
        ("POST", "") if incoming.body.is_empty() => (Value::Null, None),
        _ => return Err(bad(format!("{} with {content_type:?} is not understood", incoming.method))),
    };
    Ok(Request { method: method.to_owned(), body, file })
}

/// Bot API: getUpdates. Of two calls that wait, the older is ended.
async fn get_updates(stage: &Stage, body: &Value) -> Result<Value, Refusal> {
    known(body, &["offset", "limit", "timeout", "allowed_updates"])?;
    let limit = match body.get("limit") {
        None => 100,
        Some(limit) => {
            let limit = limit.as_u64().filter(|limit| (1..=100).contains(limit));
            usize::try_from(limit.ok_or_else(|| bad("limit must be between 1 and 100"))?).unwrap_or(100)
        }
    };
    let offset = body["offset"].as_i64().unwrap_or(0);
    let mine = begin(stage, body, offset)?;
    let mut states = stage.subscribe();
    let due = |state: &State| state.newest_poll != mine || state.updates.iter().any(|(id, _)| *id >= offset);
    let time = Duration::from_secs(body["timeout"].as_u64().unwrap_or(0));
    let waiting = (!time.is_zero()).then(|| Counted::new(stage, |state| &mut state.polls));
    // A time-out is no error: nothing came.
    let _ = timeout(time, states.wait_for(due)).await;
    drop(waiting);
    let state = states.borrow();
    if state.newest_poll != mine {
        let why = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running";
        return Err(Refusal { code: 409, description: why.into(), parameters: None });
    }
    let told = state.updates.iter().filter(|(id, _)| *id >= offset).take(limit);
    Ok(told.map(|(_, update)| update.clone()).collect())
}

/// Confirms what the call confirms, and makes it the newest.
fn begin(stage: &Stage, body: &Value, offset: i64) -> Result<u64, Refusal> {
    let wanted = match body.get("allowed_updates") {
        None => None,
        Some(list) => {
            let names = serde_json::from_value::<Vec<String>>(list.clone());
            Some(names.map_err(|_| bad("can't parse allowed updates JSON array"))?)
        }
    };
    let mut begun = Err(());
    stage.send_modify(|state| {
        if state.webhook.is_empty() {
            state.confirm(offset);
            state.wanted = wanted.unwrap_or_else(|| state.wanted.clone());
            state.newest_poll += 1;
            begun = Ok(state.newest_poll);
        }
    });
    let why =
        "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first";
    begun.map_err(|()| Refusal { code: 409, description: why.into(), parameters: None })
}

fn download(stage: &Stage, path: &str) -> Vec<u8> {
    let state = stage.borrow();
    let wanted = path.strip_prefix(TOKEN).and_then(|rest| rest.strip_prefix('/'));
    let found = wanted.and_then(|wanted| state.files.values().find(|(path, _)| path == wanted));
    let Some((_, bytes)) = found else {
        return refused(&Refusal { code: 404, description: "Not Found".into(), parameters: None });
    };
    let length = bytes.len();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: {length}\r\n\r\n");
    [head.as_bytes(), bytes].concat()
}

fn refused(refusal: &Refusal) -> Vec<u8> {
    let mut body = json!({"ok": false, "error_code": refusal.code, "description": refusal.description});
    if let Some(parameters) = &refusal.parameters {
        body["parameters"] = parameters.clone();
    }
    plain(refusal.code, &[], &body.to_string())
}

fn page(code: u16, path: &str) -> Vec<u8> {
    let kind = [("content-type".to_owned(), "text/html".to_owned())];
    // Real pages have a head as well. This one is so long that whoever cuts the page off at 300 characters cuts the token.
    let head = format!("<head><style>{}</style></head>", " ".repeat(190));
    plain(code, &kind, &format!("<html>{head}<h1>{code}</h1><p>The requested URL {path} failed.</p></html>"))
}
