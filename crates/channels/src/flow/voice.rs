//! The voice rule of a channel: the words of a voice message, and the voice of an answer.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use quell_engine::channel_origin::DeliveryContext;
use quell_engine::engine::{MAX_SPEECH_CHARS, SPEECH_MEDIA_TYPE};
use quell_protocol::{Attachment, AttachmentKind};
use quell_scope::Point;
use quell_tools::attachment::read_attachment;
use tokio::time::timeout;

use super::channel::ActiveChannel;
use super::reply_delivery::{ChatReply, MAX_FILE_BYTES};
use super::send_retry::{RetrySafety, SendPersistence, retry};
use crate::config::SpokenAnswers;
use crate::format::{LengthUnit, Markup, MessageFormat, split_message};

/// The lines that are spoken, without markup.
const SPOKEN_LINE: MessageFormat =
    MessageFormat { markup: Markup::Plain, max_length: 512, length_unit: LengthUnit::Chars };

/// A spoken answer.
struct VoiceMessage {
    attachment: Attachment,
    bytes: Vec<u8>,
}

impl ChatReply {
    /// Transcribes a received file at `path` in the agent's workdir, if it is sound and the channel's rule asks for it.
    /// Returns a line for the model: the words, or why they are not known.
    pub(super) async fn transcribe(
        &self,
        file: &Attachment,
        path: &str,
        context: DeliveryContext<'_>,
    ) -> Option<String> {
        let channel = &self.target.channel;
        let model = channel.config.voice.as_ref()?.transcription_model.as_ref()?;
        if file.kind != AttachmentKind::Audio {
            return None;
        }
        // The semaphore is never closed.
        let _permit = channel.transcription_permits.acquire().await;
        let bytes = match read_sound(path, context).await? {
            Ok(bytes) => bytes,
            Err(why) => return Some(format!("[the audio could not be transcribed: {why}]")),
        };
        Some(match self.channels.engine().transcribe(model, file, &bytes, context.scope).await {
            Ok(words) if words.is_empty() => "[nobody speaks in this audio]".to_owned(),
            Ok(words) => words,
            Err(error) => {
                tracing::warn!(channel = channel.name, %error, "a voice message was not transcribed");
                format!("[the audio could not be transcribed: {error}]")
            }
        })
    }

    /// Speaks an answer that the chat shows, and sends its sound, if the channel's rule asks for it. The run goes on until
    /// then, for `speech_timeout_s` at most; its ledger holds the request, and a stop closes it. An answer that cannot
    /// be spoken is only written.
    pub(super) async fn deliver_voice(&self, channel: &ActiveChannel, answer: &str, context: DeliveryContext<'_>) {
        let Some(voice) = &self.target.channel.config.voice else { return };
        let speaking = async {
            let Some(VoiceMessage { attachment, bytes }) = self.speak(answer, context).await else { return };
            let send = || async {
                // As in `send_file`.
                let _permit = channel.send_permits.acquire().await;
                self.upload(channel, &attachment, bytes.clone()).await
            };
            let sent = retry(send, RetrySafety::OnlyWithKey, SendPersistence::UntilCancelled).await;
            if let Err(error) = sent {
                tracing::warn!(run = %self.target.run_id, %error, "a spoken answer was not sent");
            }
        };
        if timeout(Duration::from_secs(voice.speech_timeout_s), speaking).await.is_err() {
            tracing::warn!(run = %self.target.run_id, "an answer was not spoken in time");
        }
    }

    async fn speak(&self, answer: &str, context: DeliveryContext<'_>) -> Option<VoiceMessage> {
        let channel = &self.target.channel;
        let voice = channel.config.voice.as_ref()?;
        let model = voice.speech_model.as_ref()?;
        let is_asked = match voice.spoken_answers {
            SpokenAnswers::Always => true,
            SpokenAnswers::ToVoice => self.message.attachments.iter().any(|file| file.kind == AttachmentKind::Audio),
        };
        let text = if is_asked { spoken_text(answer) } else { return None };
        if text.is_empty() {
            return None;
        }
        match self.channels.engine().speak(model, &voice.speaker, &text, context.scope).await {
            Ok(speech) => {
                let attachment = Attachment {
                    kind: AttachmentKind::Audio,
                    source: "the spoken answer".to_owned(),
                    name: Some("answer.ogg".to_owned()),
                    media_type: Some(SPEECH_MEDIA_TYPE.to_owned()),
                    bytes: u64::try_from(speech.len()).ok(),
                };
                Some(VoiceMessage { attachment, bytes: speech })
            }
            Err(error) => {
                tracing::warn!(channel = channel.name, %error, "an answer was not spoken");
                None
            }
        }
    }
}

/// Reads a received file. `None` after a stop.
async fn read_sound(path: &str, context: DeliveryContext<'_>) -> Option<Result<Vec<u8>, String>> {
    let (path, folder, session) = (path.to_owned(), context.workdir.to_owned(), context.session.clone());
    let read = move |stop: &AtomicBool| read_attachment(&folder, &session, &path, MAX_FILE_BYTES, stop);
    context.scope.blocking(Point::Blocking, "a voice message", read).await.ok()
}

/// As many whole lines of an answer as can be spoken, without markup. The rest of a longer answer is only written.
fn spoken_text(answer: &str) -> String {
    let mut text = String::new();
    for line in split_message(answer, &SPOKEN_LINE) {
        if text.chars().count() + line.plain.chars().count() >= MAX_SPEECH_CHARS {
            break;
        }
        text.push_str(&line.plain);
        text.push('\n');
    }
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_spoken_without_its_markup() {
        assert_eq!(spoken_text("# Soup\n\n**Boil** the `water`.\n"), "Soup\nBoil the water.");
        assert_eq!(spoken_text(" \n"), "");
    }

    #[test]
    fn a_long_answer_is_spoken_to_the_end_of_a_line() {
        let long = "one more word ".repeat(1000);
        let text = spoken_text(&long);
        let length = text.chars().count();
        assert!(length < MAX_SPEECH_CHARS && length > MAX_SPEECH_CHARS - 2 * SPOKEN_LINE.max_length, "{length}");
        let spoken = text.replace('\n', " ");
        assert!(long.starts_with(&format!("{spoken} ")), "it ends within a word: {text}");
    }
}
