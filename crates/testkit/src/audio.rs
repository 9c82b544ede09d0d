//! A provider's audio endpoints, as OpenAI's API reference describes them: `audio/transcriptions` and `audio/speech`.

use std::collections::VecDeque;
use std::future::pending;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::fake_server::http1::RawHttpRequest;
use crate::fake_server::{FakeHttpReply, FakePort, SharedState, serve_http};
use crate::networks::multipart::parse_parts;

/// How the next request is answered. Without a script, `I hear you.` is said and `sung` is the sound.
#[derive(Debug, Clone)]
pub enum ScriptedAudio {
    Transcript(String),
    Speech(Bytes),
    /// A status and a body.
    Refusal(u16, String),
    /// Nothing, until the client leaves.
    Silence,
}

/// A request, with what its form or its JSON says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AudioRequest {
    pub path: String,
    pub model: String,
    /// Transcription: the name, the media type and the content of the file.
    pub file_name: String,
    pub media_type: String,
    pub bytes: Bytes,
    /// Speech: the voice and the text.
    pub voice: String,
    pub input: String,
}

#[derive(Debug, Clone, Default)]
pub struct FakeAudioState {
    pub requests: Vec<AudioRequest>,
    /// Requests that are neither answered nor given up.
    pub waiting: usize,
    pub refusals: Vec<String>,
    script: VecDeque<ScriptedAudio>,
}

/// The server. Dropping it closes every connection.
#[derive(Debug)]
pub struct FakeAudioServer {
    port: FakePort,
    pub state: SharedState<FakeAudioState>,
}

impl FakeAudioServer {
    /// Starts it on a free port.
    pub async fn start() -> Self {
        let state = SharedState::<FakeAudioState>::default();
        let port = FakePort::start(&state, |stream, state| {
            serve_http(stream, move |incoming| answer_request(state.clone(), incoming))
        });
        Self { port, state }
    }

    /// The base URL, with `/v1`.
    pub fn base_url(&self) -> String {
        format!("{}/v1", self.port.url())
    }

    /// Adds the answer of one more request.
    pub fn script(&self, answer: ScriptedAudio) -> &Self {
        self.state.update(|state| state.script.push_back(answer));
        self
    }
}

async fn answer_request(state: SharedState<FakeAudioState>, incoming: RawHttpRequest) -> Option<FakeHttpReply> {
    let request = match parse_request(&incoming) {
        Ok(request) => request,
        Err(why) => {
            state.update(|state| state.refusals.push(why.clone()));
            return Some(FakeHttpReply::json(400, &json!({"error": {"message": why}})));
        }
    };
    let is_speech = request.path.ends_with("speech");
    let answer = state.update(|state| {
        state.requests.push(request);
        state.script.pop_front()
    });
    match answer {
        Some(ScriptedAudio::Transcript(text)) => Some(FakeHttpReply::json(200, &json!({"text": text}))),
        Some(ScriptedAudio::Speech(bytes)) => {
            Some(FakeHttpReply::new(200, bytes).with_header("content-type", "audio/ogg"))
        }
        Some(ScriptedAudio::Refusal(status, body)) => Some(FakeHttpReply::new(status, body)),
        Some(ScriptedAudio::Silence) => {
            let _waiting = state.count(|state| &mut state.waiting);
            pending().await
        }
        None if is_speech => Some(FakeHttpReply::new(200, "sung").with_header("content-type", "audio/ogg")),
        None => Some(FakeHttpReply::json(200, &json!({"text": "I hear you."}))),
    }
}

/// The request of a client that keeps the API's rules; otherwise what is wrong.
fn parse_request(incoming: &RawHttpRequest) -> Result<AudioRequest, String> {
    let path = incoming.path.clone();
    if incoming.method != "POST" {
        return Err(format!("{} {path}: no such route", incoming.method));
    }
    match path.as_str() {
        "/v1/audio/transcriptions" => {
            let parts = parse_parts(incoming.header("content-type").unwrap_or_default(), &incoming.body)?;
            let part = |name: &str| parts.iter().find(|part| part.name == name).ok_or(format!("there is no {name}"));
            let text = |name: &str| part(name).map(|part| String::from_utf8_lossy(&part.bytes).into_owned());
            if text("response_format")? != "json" {
                return Err("another response_format than json".to_owned());
            }
            let file = part("file")?;
            let file_name = file.file_name.clone().ok_or("the file has no name")?;
            let (media_type, bytes) = (file.media_type.clone(), file.bytes.clone());
            Ok(AudioRequest { path, model: text("model")?, file_name, media_type, bytes, ..AudioRequest::default() })
        }
        "/v1/audio/speech" => {
            let body: Value = serde_json::from_slice(&incoming.body).map_err(|error| error.to_string())?;
            let text = |name: &str| body[name].as_str().map(str::to_owned).ok_or(format!("there is no {name}"));
            if text("response_format")? != "opus" {
                return Err("another response_format than opus".to_owned());
            }
            let input = text("input")?;
            if input.chars().count() > 4096 {
                return Err("the input has more than 4096 characters".to_owned());
            }
            Ok(AudioRequest { path, model: text("model")?, voice: text("voice")?, input, ..AudioRequest::default() })
        }
        _ => Err(format!("{path}: no such route")),
    }
}
