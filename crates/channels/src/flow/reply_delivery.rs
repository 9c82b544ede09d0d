//! Fetch the attachments of a message and deliver the reply of one run into its chat.
//!
//! The reply replaces the draft if there is one. The run holds the [`ChatReply`] while it works; a stop of the run
//! drops its futures.
//!
//! Two tasks write into the chat for one run: the progress view owns the draft at first, and the delivery sends the
//! reply. The progress view hands the draft over (`DraftState`), and then does not touch it until the run has ended.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_engine::channel_origin::{DeliveryContext, DeliveryError, ReplyDelivery};
use quell_kernel::channel::chat_language::ChatLanguage;
use quell_kernel::channel::sanitise::NarrationPolicy;
use quell_kernel::channel::session_keys::conversation_key;
use quell_protocol::{Attachment, ChannelMessage, RunId};
use quell_scope::Point;
use quell_tools::attachment::{message_file_path, read_attachment, write_attachment};
use tokio::sync::watch;

use super::channel::ActiveChannel;
use super::finished_reply::FinishedReply;
use super::reply_target::ReplyTarget;
use super::send_retry::{RetrySafety, SendPersistence, delivery_error, edit_message, retry, send_piece, send_text};
use super::{Channels, ChatOrigin, texts};
use crate::format::{attachment_sources, extract_attachments, marker_word, split_message};
use crate::network::{MessageId, SendError};

/// Maximum size of a file that is fetched or sent, in bytes.
pub(super) const MAX_FILE_BYTES: u64 = 20 * 1024 * 1024;
/// Maximum number of files that are fetched for one message, and that are sent with one reply.
const MAX_FILES: usize = 10;

/// The reply of one run to one chat message.
pub(super) struct ChatReply {
    pub(super) channels: Channels,
    pub(super) target: ReplyTarget,
    pub(super) message: ChannelMessage,
    narration: NarrationPolicy,
    draft_state: watch::Sender<DraftState>,
    withheld_reason: OnceLock<String>,
    delivery_result: OnceLock<Result<(), DeliveryError>>,
    /// Number of pieces of the reply that the chat shows.
    shown_pieces: AtomicUsize,
}

/// Ownership of the draft, and its message.
#[derive(Debug, Clone, Default)]
struct DraftState {
    owner: DraftOwner,
    /// The reply is being delivered: the progress view must release the draft.
    is_delivering: bool,
    /// The message that shows the draft, once it has been sent.
    draft_message: Option<MessageId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum DraftOwner {
    #[default]
    Free,
    Progress,
    /// The delivery of the reply.
    Delivery,
}

impl ChatReply {
    pub(super) fn new(
        channels: &Channels,
        extra: &ChatOrigin,
        run_id: RunId,
        message: ChannelMessage,
        narration: NarrationPolicy,
    ) -> Self {
        Self {
            channels: channels.clone(),
            target: ReplyTarget {
                channel: Arc::clone(&extra.channel),
                address: extra.address.clone(),
                request_message: extra.message_id.clone(),
                run_id,
            },
            message,
            narration,
            draft_state: watch::Sender::default(),
            withheld_reason: OnceLock::new(),
            delivery_result: OnceLock::new(),
            shown_pieces: AtomicUsize::new(0),
        }
    }

    /// Acquires the draft for the progress view, unless the delivery has it. Dropping the guard hands the draft to the
    /// delivery.
    pub(super) fn acquire_draft(&self) -> Option<DraftGuard<'_>> {
        let acquired = self.draft_state.send_if_modified(|draft| {
            let free = draft.owner == DraftOwner::Free;
            if free {
                draft.owner = DraftOwner::Progress;
            }
            free
        });
        acquired.then_some(DraftGuard(self))
    }

    pub(super) fn set_draft_message(&self, message: MessageId) {
        self.draft_state.send_modify(|draft| draft.draft_message = Some(message));
    }

    /// Waits until the delivery of the reply has begun and needs the draft.
    pub(super) async fn wait_for_delivery(&self) {
        // Cannot fail: the sender lives in self.
        let _ = self.draft_state.subscribe().wait_for(|draft| draft.is_delivering).await;
    }

    pub(super) fn draft_message(&self) -> Option<MessageId> {
        self.draft_state.borrow().draft_message.clone()
    }

    /// Collects the state of the reply for the outcome message. `partial_text` is the unfinished reply.
    pub(super) fn finish(&self, partial_text: String) -> FinishedReply {
        // Once a piece of the reply is shown, the draft is its first piece.
        let has_begun = self.shown_pieces.load(Ordering::Acquire) > 0;
        FinishedReply {
            target: ReplyTarget { channel: self.current_channel(), ..self.target.clone() },
            language: self.language(),
            draft_message: self.draft_message().filter(|_| !has_begun),
            partial_text,
            withheld: self.withheld_reason.get().is_some(),
            delivery_result: self.delivery_result.get().cloned(),
        }
    }

    fn language(&self) -> ChatLanguage {
        self.channels.conversation_language(&self.target.channel, &conversation_key(&self.message))
    }

    fn current_channel(&self) -> Arc<ActiveChannel> {
        self.channels.current_channel(&self.target.channel)
    }

    async fn take_over_draft(&self) -> Option<MessageId> {
        let mut changes = self.draft_state.subscribe();
        self.draft_state.send_modify(|draft| {
            draft.is_delivering = true;
            if draft.owner == DraftOwner::Free {
                draft.owner = DraftOwner::Delivery;
            }
        });
        // The sender lives in self; the progress view releases the draft before it ends.
        let handed_over = changes.wait_for(|draft| draft.owner == DraftOwner::Delivery).await;
        handed_over.ok().and_then(|draft| draft.draft_message.clone())
    }

    async fn deliver_reply(&self, answer: &str, context: DeliveryContext<'_>) -> Result<(), DeliveryError> {
        let draft = self.take_over_draft().await;
        let (channel, language) = (self.current_channel(), self.language());
        let (text, files) =
            extract_attachments(answer, |source| context.sendable_files.iter().any(|file| file == source));
        // A reply with files only still needs a text to replace the draft.
        let needs_text = text.trim().is_empty() && draft.is_some();
        let text = if needs_text { texts::FILES_BELOW.text(language).to_owned() } else { text };
        let pieces = split_message(&text, &channel.limits.message_format);
        let total = pieces.len() + files.len();
        let mut sent = 0;
        if draft.is_some() && pieces.len() > 1 {
            // From here on the draft is the first piece of a reply: a later daemon must not overwrite it.
            self.clear_saved_draft().await;
        }
        if let (Some(message), Some(first)) = (&draft, pieces.first())
            && let Some(drafts) = channel.network.features().drafts
        {
            match edit_message(drafts, &self.target.address, message, first).await {
                Ok(()) => {
                    sent = 1;
                    self.shown_pieces.fetch_add(1, Ordering::AcqRel);
                }
                // The draft cannot be edited, for example because it was deleted: send the reply as a new message.
                Err(SendError::Refused { why }) => {
                    tracing::debug!(run = %self.target.run_id, why, "a draft could not be edited")
                }
                Err(error) => return Err(delivery_error(error, 0, total)),
            }
        }
        for (number, piece) in pieces.iter().enumerate().skip(sent) {
            let key = format!("{}-{number}", self.target.run_id);
            send_piece(&*channel.network, &self.target.address, piece, &key, SendPersistence::UntilCancelled)
                .await
                .map_err(|error| delivery_error(error, sent, total))?;
            sent += 1;
            self.shown_pieces.fetch_add(1, Ordering::AcqRel);
        }
        let (mut not_sent, skipped_files) = (Vec::new(), files.len().saturating_sub(MAX_FILES));
        for file in files.into_iter().take(MAX_FILES) {
            let source = file.source.clone();
            match self.send_file(&channel, file, context).await {
                Ok(()) => sent += 1,
                // Report a refused file, and go on with the others.
                Err(SendError::Refused { why }) => not_sent.push(texts::file_error_text(&source, &why, language)),
                Err(error) => return Err(delivery_error(error, sent, total)),
            }
        }
        if skipped_files > 0 {
            not_sent.push(texts::files_skipped_text(skipped_files, MAX_FILES, language));
        }
        if !not_sent.is_empty() {
            tracing::warn!(run = %self.target.run_id, ?not_sent, "files of a reply were not sent");
            let (lines, key) = (not_sent.join("\n"), format!("{}-files", self.target.run_id));
            send_text(&channel, &self.target.address, &lines, &key, SendPersistence::UntilCancelled)
                .await
                .map_err(|error| delivery_error(error, sent, total))?;
        }
        self.deliver_voice(&channel, &text, context).await;
        Ok(())
    }

    async fn clear_saved_draft(&self) {
        let channel_store = self.channels.engine().channel_store();
        if let Err(error) = channel_store.save_pending_reply_draft(self.target.run_id.clone(), None).await {
            tracing::warn!(run = %self.target.run_id, %error, "cannot record that a draft has become a reply");
        }
    }

    async fn send_file(
        &self,
        channel: &ActiveChannel,
        file: Attachment,
        context: DeliveryContext<'_>,
    ) -> Result<(), SendError> {
        let refused = |why: String| SendError::Refused { why };
        let send = || async {
            // The semaphore is never closed. The permit and the file are dropped before a pause, so that a network's
            // rate limit does not block other files.
            let _permit = channel.send_permits.acquire().await;
            let (path, folder, session) = (file.source.clone(), context.workdir.to_owned(), context.session.clone());
            let read = move |stop: &AtomicBool| read_attachment(&folder, &session, &path, MAX_FILE_BYTES, stop);
            let read = context.scope.blocking(Point::Blocking, "a file of an answer", read).await;
            let bytes = read.map_err(|_| refused("the request was stopped".to_owned()))?.map_err(refused)?;
            self.upload(channel, &file, bytes).await
        };
        retry(send, RetrySafety::OnlyWithKey, SendPersistence::UntilCancelled).await
    }

    pub(super) async fn upload(
        &self,
        channel: &ActiveChannel,
        file: &Attachment,
        bytes: Vec<u8>,
    ) -> Result<(), SendError> {
        let Some(files) = channel.network.features().files else {
            return Err(SendError::Refused { why: format!("{} takes no files", channel.name) });
        };
        files.send(&self.target.address, file, bytes).await.map(drop)
    }

    async fn fetch_attachment(
        &self,
        context: DeliveryContext<'_>,
        number: usize,
        file: &Attachment,
    ) -> Result<FetchedFile, String> {
        let Some(files) = self.target.channel.network.features().files else {
            return Err("this network hands out no files".to_owned());
        };
        if file.bytes.is_some_and(|bytes| bytes > MAX_FILE_BYTES) {
            return Err(format!("it is larger than {} MiB", MAX_FILE_BYTES / 1024 / 1024));
        }
        let path = message_file_path(context.session, &self.target.run_id, number, file.name.as_deref());
        let written = {
            // The semaphore is never closed.
            let _permit = self.target.channel.fetch_permits.acquire().await;
            let bytes = files.fetch(file, MAX_FILE_BYTES).await.map_err(|error| error.to_string())?;
            let (workdir, path) = (context.workdir.to_owned(), path.clone());
            let write = move |stop: &AtomicBool| write_attachment(&workdir, &path, &bytes, stop);
            context.scope.blocking(Point::Blocking, "a file of a message", write).await
        };
        let written = written.map_err(|_| "the request was stopped".to_owned())??;
        let words = self.transcribe(file, &path, context).await;
        let path = written.display().to_string();
        Ok(FetchedFile { path, words })
    }
}

/// A received file in the agent's workdir.
struct FetchedFile {
    path: String,
    /// The line that [`ChatReply::transcribe`] made of it.
    words: Option<String>,
}

/// Ownership of the draft by the progress view; dropping it hands the draft to the delivery.
pub(super) struct DraftGuard<'a>(&'a ChatReply);

impl Drop for DraftGuard<'_> {
    fn drop(&mut self) {
        self.0.draft_state.send_modify(|draft| draft.owner = DraftOwner::Delivery);
    }
}

impl ReplyDelivery for ChatReply {
    fn fetch_attachments<'a>(&'a self, context: DeliveryContext<'a>) -> BoxFuture<'a, Vec<String>> {
        async move {
            let mut lines = Vec::new();
            for (number, file) in self.message.attachments.iter().enumerate().take(MAX_FILES) {
                let label = marker_word(file.kind);
                match self.fetch_attachment(context, number, file).await {
                    Ok(FetchedFile { path, words }) => {
                        lines.extend([format!("[{label}:{path}]")].into_iter().chain(words))
                    }
                    Err(why) => lines.push(format!("[{} could not be fetched: {why}]", label.to_lowercase())),
                }
            }
            let more = self.message.attachments.len().saturating_sub(MAX_FILES);
            if more > 0 {
                lines.push(format!("[{more} more files were not fetched: {MAX_FILES} are the most]"));
            }
            lines
        }
        .boxed()
    }

    fn format_answer(&self, answer: &str) -> String {
        texts::sanitise_answer(answer, &self.channels.0.tool_names, self.narration, self.language())
    }

    fn find_files(&self, answer: &str) -> Vec<String> {
        attachment_sources(answer)
    }

    fn deliver_answer<'a>(
        &'a self,
        answer: &'a str,
        context: DeliveryContext<'a>,
    ) -> BoxFuture<'a, Result<(), DeliveryError>> {
        async move {
            let delivered = self.deliver_reply(answer, context).await;
            match &delivered {
                Ok(()) => self.target.channel.count_answered(),
                Err(_) => self.target.channel.count_undelivered(),
            }
            // Set once: a run delivers one reply.
            let _ = self.delivery_result.set(delivered.clone());
            delivered
        }
        .boxed()
    }

    fn on_withheld(&self, reason: &str) {
        // Keeps the first reason.
        let _ = self.withheld_reason.set(reason.to_owned());
    }
}

impl std::fmt::Debug for ChatReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChatReply({})", self.target.run_id)
    }
}
