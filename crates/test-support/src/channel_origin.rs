//! A message that comes from a chat network with a file, and is answered there.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_engine::Engine;
use quell_engine::channel_origin::{ChannelOrigin, ChannelRunOptions, DeliveryContext, DeliveryError, ReplyDelivery};
use quell_protocol::{Attachment, AttachmentKind, ChannelMessage};

/// The model of the audio endpoints, where the engine has one.
pub const VOICE_MODEL: &str = "voice/model";

/// Fetches files and delivers answers without waiting, unless an engine transcribes and speaks them.
struct InstantDelivery {
    voice: Option<Engine>,
}

impl ReplyDelivery for InstantDelivery {
    fn fetch_attachments<'a>(&'a self, context: DeliveryContext<'a>) -> BoxFuture<'a, Vec<String>> {
        async move {
            let mut lines = vec!["[FILE:short.txt]".to_owned()];
            if let Some(engine) = &self.voice {
                lines.extend(engine.transcribe(VOICE_MODEL, &attachment(), b"hum", context.scope).await);
            }
            lines
        }
        .boxed()
    }

    fn format_answer(&self, answer: &str) -> String {
        answer.to_owned()
    }

    fn find_files(&self, _answer: &str) -> Vec<String> {
        Vec::new()
    }

    fn deliver_answer<'a>(
        &'a self,
        answer: &'a str,
        context: DeliveryContext<'a>,
    ) -> BoxFuture<'a, Result<(), DeliveryError>> {
        async move {
            if let Some(engine) = &self.voice {
                let spoken = engine.speak(VOICE_MODEL, "alloy", answer, context.scope).await;
                return spoken.map(drop).map_err(|error| DeliveryError::NotDelivered(error.to_string()));
            }
            Ok(())
        }
        .boxed()
    }

    fn on_withheld(&self, _reason: &str) {}
}

pub fn channel_origin(id: &str, text: &str) -> ChannelOrigin {
    channel_origin_with_model(id, text, None)
}

/// As [`channel_origin`], with a file that is transcribed and an answer that is spoken.
pub fn channel_origin_with_voice(id: &str, text: &str, engine: &Engine) -> ChannelOrigin {
    build_origin(id, text, None, InstantDelivery { voice: Some(engine.clone()) })
}

pub fn channel_origin_with_model(id: &str, text: &str, model: Option<&str>) -> ChannelOrigin {
    build_origin(id, text, model, InstantDelivery { voice: None })
}

fn attachment() -> Attachment {
    Attachment { kind: AttachmentKind::Audio, source: "1".to_owned(), name: None, media_type: None, bytes: None }
}

fn build_origin(id: &str, text: &str, model: Option<&str>, delivery: InstantDelivery) -> ChannelOrigin {
    let message = ChannelMessage {
        channel: "paper".to_owned(),
        id: id.to_owned(),
        sender: "alice".to_owned(),
        sender_name: None,
        reply_target: id.to_owned(),
        content: text.to_owned(),
        thread: None,
        scope_id: None,
        group: false,
        attachments: vec![attachment()],
    };
    let options = ChannelRunOptions {
        max_history_chars: 400_000,
        routed_model: model.map(str::to_owned),
        ..ChannelRunOptions::default()
    };
    ChannelOrigin::new(message, options, Arc::new(delivery))
}
