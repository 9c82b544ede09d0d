//! Turn speech into text and text into speech, at the audio endpoints of OpenAI, which many servers have.
//!
//! One attempt without retries: a voice message that cannot be heard is reported to the person, who can type. The ledger
//! holds the request, and a stop closes its connection.

use std::time::Duration;

use quell_net::{Multipart, root_cause};
use quell_protocol::ResourceKind;
use quell_scope::{Point, Release, Scope};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use reqwest::{RequestBuilder, Url};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::ModelHandle;
use super::dialect::url_below;
use super::error::ModelError;

/// The maximum size of a transcript's response. An hour of speech has about 60 KiB of text.
const MAX_TRANSCRIPT_BYTES: usize = 1 << 20;
/// The maximum size of a spoken text. Opus needs about 0.3 MiB for each minute.
const MAX_SPEECH_BYTES: usize = 16 << 20;
/// The maximum size of an error body that is read; the reason is at its start.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// The maximum length of a spoken text in characters (OpenAI API: create speech, `input`).
pub const MAX_SPEECH_CHARS: usize = 4096;
/// The media type of [`ModelHandle::speak`]: Opus in Ogg, which chat networks show as a voice message.
pub const SPEECH_MEDIA_TYPE: &str = "audio/ogg";

/// A recording of speech.
#[derive(Debug, Clone, Copy)]
pub struct Recording<'a> {
    /// Its extension tells the server the format.
    pub file_name: &'a str,
    pub media_type: Option<&'a str>,
    pub bytes: &'a [u8],
}

#[derive(Deserialize)]
struct Transcript {
    text: String,
}

#[derive(Serialize)]
struct SpeechRequest<'a> {
    model: &'a str,
    voice: &'a str,
    input: &'a str,
    response_format: &'static str,
}

/// One exchange with an audio endpoint.
struct AudioExchange {
    url: Url,
    request: RequestBuilder,
    max_bytes: usize,
}

impl ModelHandle {
    /// True when the provider of this model can have audio endpoints.
    #[must_use]
    pub fn supports_audio(&self) -> bool {
        self.provider.dialect.has_audio()
    }

    /// Transcribes a recording, within the provider's `header_timeout_s`. The text may be empty.
    ///
    /// # Errors
    /// [`ModelError`]; once the scope is cancelled, always [`ModelError::Cancelled`].
    ///
    /// # Cancel safety
    /// Safe to drop: the connection is closed.
    pub async fn transcribe(&self, recording: Recording<'_>, scope: &Scope) -> Result<String, ModelError> {
        let url = url_below(&self.provider.base_url, &["audio", "transcriptions"]);
        let mut form = Multipart::new();
        form.add_field("model", self.model_id());
        form.add_field("response_format", "json");
        form.add_file("file", recording.file_name, recording.media_type.unwrap_or_default(), recording.bytes);
        let (content_type, body) = form.finish();
        let mut headers = self.provider.headers.clone();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.remove(CONTENT_TYPE);
        let request =
            self.provider.client.post(url.clone()).headers(headers).header(CONTENT_TYPE, content_type).body(body);
        let exchange = AudioExchange { url, request, max_bytes: MAX_TRANSCRIPT_BYTES };
        let body = self.exchange_audio(exchange, Point::Transcription, scope).await?;
        let transcript: Transcript = serde_json::from_slice(&body)
            .map_err(|error| self.provider.unreadable_failure(format!("no transcript: {error}")).error)?;
        Ok(transcript.text.trim().to_owned())
    }

    /// Speaks at most [`MAX_SPEECH_CHARS`] characters, within the provider's `header_timeout_s`. The result has the
    /// [`SPEECH_MEDIA_TYPE`].
    ///
    /// # Errors
    /// As [`ModelHandle::transcribe`].
    ///
    /// # Cancel safety
    /// Safe to drop: the connection is closed.
    pub async fn speak(&self, voice: &str, text: &str, scope: &Scope) -> Result<Vec<u8>, ModelError> {
        let url = url_below(&self.provider.base_url, &["audio", "speech"]);
        let body = SpeechRequest { model: self.model_id(), voice, input: text, response_format: "opus" };
        let mut headers = self.provider.headers.clone();
        headers.insert(ACCEPT, HeaderValue::from_static(SPEECH_MEDIA_TYPE));
        let request = self.provider.client.post(url.clone()).headers(headers).json(&body);
        let exchange = AudioExchange { url, request, max_bytes: MAX_SPEECH_BYTES };
        let speech = self.exchange_audio(exchange, Point::Speech, scope).await?;
        match speech.is_empty() {
            true => Err(self.provider.unreadable_failure("speech without a sound").error),
            false => Ok(speech),
        }
    }

    /// Sends a request and reads its whole response, raced against the scope. The ledger holds it until then.
    async fn exchange_audio(
        &self,
        exchange: AudioExchange,
        point: Point,
        scope: &Scope,
    ) -> Result<Vec<u8>, ModelError> {
        let held = scope.hold(ResourceKind::ModelRequest, self.name().to_owned());
        let limit: Duration = self.provider.header_timeout;
        // waits: raced here, as one exchange.
        let outcome = scope.race(point, timeout(limit, self.send_audio(exchange))).await?;
        let outcome = outcome.unwrap_or_else(|_| Err(self.provider.header_timeout_failure().error));
        held.release(if outcome.is_ok() { Release::Finished } else { Release::Failed });
        outcome
    }

    async fn send_audio(&self, exchange: AudioExchange) -> Result<Vec<u8>, ModelError> {
        let AudioExchange { url, request, max_bytes } = exchange;
        // waits: raced in `exchange_audio`.
        let sent = request.send().await;
        let mut response = sent.map_err(|error| self.provider.send_failure(&url, &error).error)?;
        let status = response.status();
        let max_bytes = if status.is_success() { max_bytes } else { MAX_ERROR_BYTES };
        let mut body = Vec::new();
        loop {
            // waits: for the next bytes, raced in `exchange_audio`.
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() <= max_bytes => body.extend_from_slice(&chunk),
                Ok(None) => break,
                // The beginning of a refusal says enough, also if the rest is missing.
                Ok(Some(_)) | Err(_) if !status.is_success() => break,
                Ok(Some(_)) => {
                    let problem = format!("a response of more than {max_bytes} bytes");
                    return Err(self.provider.unreadable_failure(problem).error);
                }
                Err(error) => return Err(self.provider.truncated_failure(root_cause(&error)).error),
            }
        }
        if !status.is_success() {
            let report = self.provider.dialect.parse_error(&String::from_utf8_lossy(&body));
            return Err(self.provider.refusal_failure(status.as_u16(), &report, None).error);
        }
        Ok(body)
    }
}
