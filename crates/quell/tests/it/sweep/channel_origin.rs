//! A message that comes from a chat network with a file, and is answered there.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_engine::channel_origin::{ChannelOrigin, ChannelRunOptions, DeliveryContext, DeliveryError, ReplyDelivery};
use quell_protocol::{Attachment, AttachmentKind, ChannelMessage};

/// Fetches files and delivers answers without waiting.
struct InstantDelivery;

impl ReplyDelivery for InstantDelivery {
    fn fetch_attachments<'a>(&'a self, _context: DeliveryContext<'a>) -> BoxFuture<'a, Vec<String>> {
        async { vec!["[FILE:short.txt]".to_owned()] }.boxed()
    }

    fn format_answer(&self, answer: &str) -> String {
        answer.to_owned()
    }

    fn find_files(&self, _answer: &str) -> Vec<String> {
        Vec::new()
    }

    fn deliver_answer<'a>(
        &'a self,
        _answer: &'a str,
        _context: DeliveryContext<'a>,
    ) -> BoxFuture<'a, Result<(), DeliveryError>> {
        async { Ok(()) }.boxed()
    }

    fn on_withheld(&self, _reason: &str) {}
}

pub(crate) fn channel_origin(id: &str, text: &str) -> ChannelOrigin {
    channel_origin_with_model(id, text, None)
}

pub(crate) fn channel_origin_with_model(id: &str, text: &str, model: Option<&str>) -> ChannelOrigin {
    let file =
        Attachment { kind: AttachmentKind::File, source: "1".to_owned(), name: None, media_type: None, bytes: None };
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
        attachments: vec![file],
    };
    let options = ChannelRunOptions {
        max_history_chars: 400_000,
        routed_model: model.map(str::to_owned),
        ..ChannelRunOptions::default()
    };
    ChannelOrigin::new(message, options, Arc::new(InstantDelivery))
}
