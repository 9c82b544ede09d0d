//! Builds a [`ClientConversation`] from the messages of a request, whichever wire format they came in.
//!
//! A parser passes the messages in order, as texts, assistant messages and results. The builder pairs results with
//! calls and splits the history into turns. It returns what is wrong as a [`ConversationProblem`], which the parser
//! words as the API of its format does.

use std::sync::Arc;

use quell_protocol::{CallEnd, RunId, Usage, Verdict};
use serde_json::Value;

use super::ClientConversation;
use crate::image::{Image, ImageSource, ImageUnavailable, MarkedText, image_sources, split_markers};
use crate::prompt::MAX_REQUEST_IMAGES;
use crate::turn::{
    ADDED_MESSAGE_REQUEST, CallResult, MessageBlock, ModelMessage, PartialPolicy, SealOptions, ToolCall, Turn,
    TurnDraft, TurnItem,
};

/// Time at which the turns of a client's history are sealed: fixed, because the client names none.
const SEALED_AT: &str = "1970-01-01T00:00:00Z";

/// A part of a message of the user, or of the result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClientPart {
    Text(String),
    /// The `data:` or `https:` URL of an image.
    Image(String),
}

/// A call as the client sent it back.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ClientCall {
    pub id: String,
    pub tool: String,
    pub arguments: Value,
}

/// Why messages form no conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ConversationProblem {
    /// A text of the system or developer comes after a message of the user or the model.
    LateInstructions,
    /// The result belongs to no call before it.
    UnknownCall,
    /// The call has a result already.
    AlreadyAnswered,
    /// The assistant message has two calls with the same id.
    RepeatedCallId,
    /// The calls with these ids have no result.
    Unanswered(Vec<String>),
    /// There are more images than one request takes.
    TooManyImages,
}

/// The messages of a request so far.
#[derive(Debug)]
pub(super) struct ConversationBuilder {
    model: String,
    partial: PartialPolicy,
    instructions: Vec<String>,
    exchanges: Vec<Exchange>,
}

/// A message of the user and what followed it.
#[derive(Debug, Default)]
struct Exchange {
    /// `None` if the history begins with the model.
    user: Option<String>,
    messages: Vec<ModelMessage<PendingCall>>,
    /// How it ended, if it did not complete. Nothing follows in it then.
    end: Option<ExchangeEnd>,
}

#[derive(Debug)]
struct ExchangeEnd {
    verdict: Verdict,
    /// The text that was cut off while it streamed.
    cut_text: String,
}

#[derive(Debug)]
struct PendingCall {
    call: ClientCall,
    result: Option<CallResult>,
}

impl ConversationBuilder {
    /// `model` is the model of the request: messages of the model are attributed to it, so that it gets its own
    /// reasoning back.
    pub(super) fn new(model: &str) -> Self {
        let (partial, instructions, exchanges) = (PartialPolicy::default(), Vec::new(), Vec::new());
        Self { model: model.to_owned(), partial, instructions, exchanges }
    }

    /// Sets what the model sees of texts that were cut off.
    pub(super) fn with_partial_policy(self, partial: PartialPolicy) -> Self {
        Self { partial, ..self }
    }

    /// Adds a text of the system or the developer.
    pub(super) fn push_instructions(&mut self, text: &str) -> Result<(), ConversationProblem> {
        if !self.exchanges.is_empty() {
            return Err(ConversationProblem::LateInstructions);
        }
        self.instructions.extend(Some(text.to_owned()).filter(|text| !text.is_empty()));
        Ok(())
    }

    /// Adds a message of the user. Several in a row become one.
    pub(super) fn push_user(&mut self, parts: &[ClientPart]) {
        let text = join_parts(parts);
        match self.exchanges.last_mut() {
            Some(Exchange { user: Some(before), messages, end: None }) if messages.is_empty() => {
                if !before.is_empty() && !text.is_empty() {
                    before.push_str("\n\n");
                }
                before.push_str(&text);
            }
            Some(_) | None => self.exchanges.push(Exchange { user: Some(text), ..Exchange::default() }),
        }
    }

    /// Adds a message of the model. One without text and calls is left out, because no provider accepts it.
    pub(super) fn push_assistant(&mut self, blocks: Vec<MessageBlock<ClientCall>>) -> Result<(), ConversationProblem> {
        let message = self.attributed(blocks);
        let mut ids: Vec<&str> = message.calls().map(|pending| pending.call.id.as_str()).collect();
        ids.sort_unstable();
        if ids.is_sorted_by(|before, next| before < next) {
            self.last_exchange().messages.push(message);
            Ok(())
        } else {
            Err(ConversationProblem::RepeatedCallId)
        }
    }

    /// Appends a block to the message of the model that comes last, or begins one. A result before it ends a message.
    pub(super) fn extend_assistant(&mut self, block: MessageBlock<ClientCall>) -> Result<(), ConversationProblem> {
        let is_open = |message: &&mut ModelMessage<PendingCall>| message.calls().all(|call| call.result.is_none());
        let last = self.exchanges.last_mut().filter(|exchange| exchange.end.is_none());
        let last = last.and_then(|exchange| exchange.messages.last_mut());
        let Some(message) = last.filter(is_open) else { return self.push_assistant(vec![block]) };
        if let MessageBlock::Call(call) = &block
            && message.calls().any(|before| before.call.id == call.id)
        {
            return Err(ConversationProblem::RepeatedCallId);
        }
        message.blocks.push(pending_block(block));
        Ok(())
    }

    /// Ends the last exchange, which did not complete. `cut_text` was cut off while it streamed.
    pub(super) fn end_exchange(&mut self, verdict: Verdict, cut_text: String) {
        self.last_exchange().end = Some(ExchangeEnd { verdict, cut_text });
    }

    /// Sets the result of the newest open call with this id.
    pub(super) fn push_result(&mut self, call_id: &str, result: CallResult) -> Result<(), ConversationProblem> {
        let messages = self.exchanges.iter_mut().rev().flat_map(|exchange| exchange.messages.iter_mut().rev());
        let mut is_known = false;
        for call in messages.flat_map(ModelMessage::calls_mut).filter(|pending| pending.call.id == call_id) {
            if call.result.is_none() {
                call.result = Some(result);
                return Ok(());
            }
            is_known = true;
        }
        Err(if is_known { ConversationProblem::AlreadyAnswered } else { ConversationProblem::UnknownCall })
    }

    /// Checks that no call waits for its result.
    pub(super) fn check_answered(&self) -> Result<(), ConversationProblem> {
        let messages = self.exchanges.iter().flat_map(|exchange| &exchange.messages);
        let open = messages.flat_map(ModelMessage::calls).filter(|pending| pending.result.is_none());
        let ids: Vec<String> = open.map(|pending| pending.call.id.clone()).collect();
        if ids.is_empty() { Ok(()) } else { Err(ConversationProblem::Unanswered(ids)) }
    }

    pub(super) fn finish(self) -> Result<ClientConversation, ConversationProblem> {
        self.check_answered()?;
        if self.exchanges.iter().map(Exchange::image_count).sum::<usize>() > MAX_REQUEST_IMAGES {
            return Err(ConversationProblem::TooManyImages);
        }
        let mut drafts: Vec<(TurnDraft, Option<ExchangeEnd>)> =
            (0..).zip(self.exchanges).map(|(at, exchange)| exchange.draft(at)).collect();
        let mut conversation =
            ClientConversation { instructions: self.instructions.join("\n\n"), ..Default::default() };
        let last = drafts.pop_if(|(_, end)| end.is_none());
        for item in last.into_iter().flat_map(|(last, _)| last.items_for_model()) {
            match item {
                TurnItem::User { text, .. } => conversation.text = text,
                TurnItem::Assistant(message) => conversation.continuation.push(message),
            }
        }
        conversation.turns = drafts.into_iter().map(|(draft, end)| sealed(draft, end, self.partial)).collect();
        Ok(conversation)
    }

    fn attributed(&self, blocks: Vec<MessageBlock<ClientCall>>) -> ModelMessage<PendingCall> {
        let blocks = blocks.into_iter().map(pending_block).collect();
        ModelMessage { model: Some(self.model.clone()), blocks, ..ModelMessage::default() }
    }

    fn last_exchange(&mut self) -> &mut Exchange {
        if self.exchanges.last().is_none_or(|last| last.end.is_some()) {
            self.exchanges.push(Exchange::default());
        }
        let Some(last) = self.exchanges.last_mut() else { unreachable!("it was added if there was none") };
        last
    }
}

impl Exchange {
    fn image_count(&self) -> usize {
        let results = self.messages.iter().flat_map(ModelMessage::calls).filter_map(|pending| pending.result.as_ref());
        let of_results: usize = results.map(|result| result.pictures.len()).sum();
        self.user.as_deref().map_or(0, |text| image_sources(text).count()) + of_results
    }

    fn draft(self, at: usize) -> (TurnDraft, Option<ExchangeEnd>) {
        // The ids that renderers derive from it must be the same in each request of this conversation.
        let Ok(run_id) = RunId::parse(format!("client-turn-{at}")) else {
            unreachable!("it has legal characters only")
        };
        let mut draft = TurnDraft::new(run_id, self.user.unwrap_or_else(|| ADDED_MESSAGE_REQUEST.to_owned()));
        for message in self.messages {
            let results: Vec<Option<CallResult>> = message.calls().map(|pending| pending.result.clone()).collect();
            let calls =
                draft
                    .finish_message(message.map_calls(|PendingCall { call, .. }| {
                        ToolCall::from_wire(&call.id, call.tool, call.arguments)
                    }));
            for (call, result) in calls.iter().zip(results) {
                if let Some(result) = result {
                    draft.finish_call(&call.id, result);
                }
            }
        }
        (draft, self.end)
    }
}

fn pending_block(block: MessageBlock<ClientCall>) -> MessageBlock<PendingCall> {
    match block {
        MessageBlock::Thinking(thinking) => MessageBlock::Thinking(thinking),
        MessageBlock::Text { text } => MessageBlock::Text { text },
        MessageBlock::Call(call) => MessageBlock::Call(PendingCall { call, result: None }),
    }
}

fn sealed(mut draft: TurnDraft, end: Option<ExchangeEnd>, policy: PartialPolicy) -> Arc<Turn> {
    let verdict = match end {
        Some(ExchangeEnd { verdict, cut_text }) => {
            draft.push_text(&cut_text);
            verdict
        }
        None => Verdict::Completed,
    };
    Arc::new(draft.seal(SealOptions {
        verdict: &verdict,
        policy,
        sealed_at: SEALED_AT.to_owned(),
        usage: Usage::default(),
    }))
}

/// The text of a message, in paragraphs, with a marker for each image.
pub(super) fn join_parts(parts: &[ClientPart]) -> String {
    let part = |part: &ClientPart| match part {
        ClientPart::Text(text) => without_markers(text),
        ClientPart::Image(source) => format!("[IMAGE:{source}]"),
    };
    parts.iter().map(part).collect::<Vec<_>>().join("\n\n")
}

/// A text in which nothing is an image marker: the text of a client names no files for the daemon to read.
pub(super) fn without_markers(text: &str) -> String {
    let is_marker = |piece: &MarkedText<'_>| matches!(piece, MarkedText::Image(_));
    if split_markers(text).iter().any(is_marker) { text.replace("[IMAGE:", "[ IMAGE:") } else { text.to_owned() }
}

/// The result of a call, from its parts.
pub(super) fn call_result(end: CallEnd, parts: Vec<ClientPart>) -> CallResult {
    let (mut texts, mut pictures) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            ClientPart::Text(text) => texts.push(text),
            ClientPart::Image(source) => pictures.push(source),
        }
    }
    CallResult { pictures, ..CallResult::new(end, texts.join("\n\n")) }
}

/// Checks the URL of an image. Models get `https:` URLs and images in `data:` URLs, and nothing else.
pub(super) fn image_part(url: &str) -> Result<ClientPart, &'static str> {
    match ImageSource::parse(url) {
        ImageSource::Data(url) => match Image::from_data_url(url) {
            Ok(_) if url.contains(['[', ']', '\n', '\r']) => Err("the data: URL has illegal characters"),
            Ok(_) => Ok(ClientPart::Image(url.to_owned())),
            Err(ImageUnavailable::TooLarge) => Err("the image is larger than 5 MB"),
            Err(_) => Err("the data: URL is no image in base64; PNG, JPEG, GIF and WebP are possible"),
        },
        ImageSource::Url(url) if !url.contains(['[', ']']) => Ok(ClientPart::Image(url.to_owned())),
        ImageSource::Url(_) => Err("the URL has brackets; encode them as %5B and %5D"),
        ImageSource::File(_) | ImageSource::Unknown => Err("an image is a data: URL or an https: URL"),
    }
}

#[cfg(test)]
mod tests;
