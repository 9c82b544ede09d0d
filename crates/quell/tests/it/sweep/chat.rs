//! A message that comes from a chat network, with a file, and whose answer goes back there.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_engine::channel::{Courier, Errand, Orders, Spot, Undelivered};
use quell_protocol::{Attachment, AttachmentKind, ChannelMessage};

/// Fetches and carries at once; where the run stands is what the case is about.
struct Quick;

impl Courier for Quick {
    fn fetch<'a>(&'a self, _spot: Spot<'a>) -> BoxFuture<'a, Vec<String>> {
        async { vec!["[FILE:short.txt]".to_owned()] }.boxed()
    }

    fn edit(&self, answer: &str) -> String {
        answer.to_owned()
    }

    fn files_of(&self, _answer: &str) -> Vec<String> {
        Vec::new()
    }

    fn deliver<'a>(&'a self, _answer: &'a str, _spot: Spot<'a>) -> BoxFuture<'a, Result<(), Undelivered>> {
        async { Ok(()) }.boxed()
    }

    fn withheld(&self, _reason: &str) {}
}

/// The errand of a message with this text.
pub(crate) fn errand(id: &str, text: &str) -> Errand {
    errand_for(id, text, None)
}

/// The errand of a message that this model is to answer.
pub(crate) fn errand_for(id: &str, text: &str, model: Option<&str>) -> Errand {
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
    let orders = Orders { history_chars: 400_000, model: model.map(str::to_owned), ..Orders::default() };
    Errand::new(message, orders, Arc::new(Quick))
}
