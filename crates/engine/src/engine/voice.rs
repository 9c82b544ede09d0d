//! Transcribe voice messages and speak answers of chats, for runs.

use quell_llm::{ModelError, ModelHandle, Recording, UnknownModel};
use quell_protocol::Attachment;
use quell_scope::Scope;

use super::Engine;

/// Why a voice message has no text, or an answer no voice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VoiceError {
    #[error(transparent)]
    UnknownModel(#[from] UnknownModel),
    #[error(
        "the provider of `{0}` has no audio endpoints; name a model of a provider of the kind \"openai\" or \"openai-responses\""
    )]
    NoAudio(String),
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl Engine {
    /// Transcribes a voice message with the model `provider/model`. The ledger of `scope` holds the request, and a stop
    /// closes its connection.
    ///
    /// # Errors
    /// [`VoiceError`]: the model cannot transcribe, or did not.
    ///
    /// # Cancel safety
    /// Safe to drop: the connection is closed.
    pub async fn transcribe(
        &self,
        model: &str,
        attachment: &Attachment,
        bytes: &[u8],
        scope: &Scope,
    ) -> Result<String, VoiceError> {
        let model = self.audio_model(model)?;
        let file_name = attachment.name.as_deref().unwrap_or("voice.ogg");
        let recording = Recording { file_name, media_type: attachment.media_type.as_deref(), bytes };
        // waits: raced in `ModelHandle::transcribe`.
        Ok(model.transcribe(recording, scope).await?)
    }

    /// Speaks a text of at most [`quell_llm::MAX_SPEECH_CHARS`] characters with the model `provider/model`, in the voice
    /// that the provider calls `speaker`. The result has the [`quell_llm::SPEECH_MEDIA_TYPE`].
    ///
    /// # Errors
    /// [`VoiceError`]: the model cannot speak, or did not.
    ///
    /// # Cancel safety
    /// Safe to drop: the connection is closed.
    pub async fn speak(&self, model: &str, speaker: &str, text: &str, scope: &Scope) -> Result<Vec<u8>, VoiceError> {
        // waits: raced in `ModelHandle::speak`.
        Ok(self.audio_model(model)?.speak(speaker, text, scope).await?)
    }

    fn audio_model(&self, name: &str) -> Result<ModelHandle, VoiceError> {
        let model = self.inner().models.resolve(name)?;
        if model.supports_audio() { Ok(model) } else { Err(VoiceError::NoAudio(name.to_owned())) }
    }
}
