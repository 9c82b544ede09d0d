//! The courier of one run: it fetches what came with the message, makes the answer fit to be shown, and carries it into the
//! chat, in the place of the draft if there is one. The run holds it while it works, and a stop of the run drops it.
//!
//! Two write into the chat for a run: its presenter, who keeps the draft, and this one, who carries the answer. The draft is
//! handed over between them (`Draft`): from then on the presenter leaves it alone until the run is over.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_engine::channel::{Courier, Spot, Undelivered};
use quell_engine::scope::Point;
use quell_engine::tools::attachment::{folder_of, read_attachment, write_attachment};
use quell_kernel::channel::sanitise::Narration;
use quell_protocol::{Attachment, AttachmentKind, ChannelMessage, RunId};
use tokio::sync::watch;

use super::channel::Channel;
use super::ended::Ended;
use super::send::{Patience, edit, send, undelivered, wait_after};
use super::{Channels, Extra, words};
use crate::channels::format::{media, pieces, sources};
use crate::channels::seam::{MessageId, NotSent, Place};

/// Bytes of a file that is fetched or sent.
const LARGEST_FILE: u64 = 20 * 1024 * 1024;
/// Files of one message that are fetched, and of one answer that are sent.
const MOST_FILES: usize = 10;

/// The courier of one run.
pub(super) struct Answer {
    pub(super) channels: Channels,
    pub(super) channel: Arc<Channel>,
    pub(super) place: Place,
    /// The message that is answered.
    pub(super) asked: MessageId,
    pub(super) run: RunId,
    message: ChannelMessage,
    narration: Narration,
    draft: watch::Sender<Draft>,
    withheld: OnceLock<String>,
    carried: OnceLock<Result<(), Undelivered>>,
    /// Pieces of the answer that are shown.
    shown: AtomicUsize,
}

/// Who writes the draft.
#[derive(Debug, Clone, Default)]
struct Draft {
    hand: Hand,
    /// The answer is on its way: the run writes no more.
    carrying: bool,
    /// The message that is the draft, once it was sent.
    message: Option<MessageId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Hand {
    /// Nobody yet.
    #[default]
    Free,
    /// The presenter.
    Presenter,
    /// The courier.
    Courier,
}

impl Answer {
    pub(super) fn new(
        channels: &Channels,
        extra: &Extra,
        run: RunId,
        message: ChannelMessage,
        narration: Narration,
    ) -> Self {
        Self {
            channels: channels.clone(),
            channel: Arc::clone(&extra.channel),
            place: extra.place.clone(),
            asked: extra.message.clone(),
            run,
            message,
            narration,
            draft: watch::Sender::default(),
            withheld: OnceLock::new(),
            carried: OnceLock::new(),
            shown: AtomicUsize::new(0),
        }
    }

    /// The presenter takes the draft, unless the courier was quicker. Dropped, it is given to the courier, and the presenter
    /// leaves it alone.
    pub(super) fn take_draft(&self) -> Option<DraftHold<'_>> {
        let taken = self.draft.send_if_modified(|draft| {
            let free = draft.hand == Hand::Free;
            if free {
                draft.hand = Hand::Presenter;
            }
            free
        });
        taken.then_some(DraftHold(self))
    }

    /// The draft was sent as this message.
    pub(super) fn draft_is(&self, message: MessageId) {
        self.draft.send_modify(|draft| draft.message = Some(message));
    }

    /// Waits until the answer is on its way, and the courier wants the draft.
    pub(super) async fn carrying(&self) {
        // The sender lives in self.
        let _ = self.draft.subscribe().wait_for(|draft| draft.carrying).await;
    }

    /// The message that is the draft.
    pub(super) fn draft(&self) -> Option<MessageId> {
        self.draft.borrow().message.clone()
    }

    /// The end of the run, of whose answer so much was said.
    pub(super) fn ended(&self, partial: String) -> Ended {
        // Where the answer has begun, the draft is its first piece.
        let begun = self.shown.load(Ordering::Acquire) > 0;
        Ended {
            channel: self.channel_now(),
            place: self.place.clone(),
            asked: self.asked.clone(),
            run: self.run.clone(),
            draft: self.draft().filter(|_| !begun),
            partial,
            withheld: self.withheld.get().is_some(),
            carried: self.carried.get().cloned(),
        }
    }

    /// The channel as it is now: its section of the configuration may have been changed since the message came.
    fn channel_now(&self) -> Arc<Channel> {
        self.channels.channel(&self.channel.name).unwrap_or_else(|| Arc::clone(&self.channel))
    }

    async fn take_over(&self) -> Option<MessageId> {
        let mut changes = self.draft.subscribe();
        self.draft.send_modify(|draft| {
            draft.carrying = true;
            if draft.hand == Hand::Free {
                draft.hand = Hand::Courier;
            }
        });
        // The sender lives in self; the presenter gives it away before it ends.
        let given = changes.wait_for(|draft| draft.hand == Hand::Courier).await;
        given.ok().and_then(|draft| draft.message.clone())
    }

    async fn carry(&self, answer: &str, spot: Spot<'_>) -> Result<(), Undelivered> {
        let draft = self.take_over().await;
        let channel = self.channel_now();
        let (text, files) = media(answer, |source| spot.sendable.iter().any(|file| file == source));
        // What is a file alone has a word in the place of the draft.
        let text = if text.trim().is_empty() && draft.is_some() { words::FILES.to_owned() } else { text };
        let pieces = pieces(&text, &channel.manners.form);
        let of = pieces.len() + files.len();
        let mut sent = 0;
        if draft.is_some() && pieces.len() > 1 {
            // From here on it is the beginning of an answer: a later daemon leaves it as it is.
            self.is_no_draft().await;
        }
        if let (Some(message), Some(first)) = (&draft, pieces.first())
            && let Some(drafts) = channel.network.drafts()
        {
            match edit(drafts, &self.place, message, (first, Patience::Long)).await {
                Ok(()) => {
                    sent = 1;
                    self.shown.fetch_add(1, Ordering::AcqRel);
                }
                // The draft is gone: the answer comes as a message of its own.
                Err(NotSent::Refused { why }) => tracing::debug!(run = %self.run, why, "a draft could not be changed"),
                Err(error) => return Err(undelivered(error, 0, of)),
            }
        }
        for (number, piece) in pieces.iter().enumerate().skip(sent) {
            let key = format!("{}-{number}", self.run);
            send(&channel, &self.place, (piece, &key), Patience::Long)
                .await
                .map_err(|error| undelivered(error, sent, of))?;
            sent += 1;
            self.shown.fetch_add(1, Ordering::AcqRel);
        }
        let (mut not_sent, more) = (Vec::new(), files.len().saturating_sub(MOST_FILES));
        for file in files.into_iter().take(MOST_FILES) {
            let source = file.source.clone();
            match self.send_file((&channel, file), spot).await {
                Ok(()) => sent += 1,
                // What is wrong with one file is said, and is nothing that keeps the others back.
                Err(NotSent::Refused { why }) => not_sent.push(words::file_not_sent(&source, &why)),
                Err(error) => return Err(undelivered(error, sent, of)),
            }
        }
        if more > 0 {
            not_sent.push(format!("⚠️ {more} more files were not sent: {MOST_FILES} are the most"));
        }
        if !not_sent.is_empty() {
            tracing::warn!(run = %self.run, ?not_sent, "files of an answer are not sent");
            self.say_of_files(&channel, &not_sent).await.map_err(|error| undelivered(error, sent, of))?;
        }
        Ok(())
    }

    async fn is_no_draft(&self) {
        if let Err(error) = self.channels.engine().keep_draft(&self.run, None).await {
            tracing::warn!(run = %self.run, %error, "that a draft is an answer now could not be written down");
        }
    }

    async fn say_of_files(&self, channel: &Channel, lines: &[String]) -> Result<(), NotSent> {
        for (number, piece) in pieces(&lines.join("\n"), &channel.manners.form).iter().enumerate() {
            let key = format!("{}-files-{number}", self.run);
            send(channel, &self.place, (piece, &key), Patience::Long).await?;
        }
        Ok(())
    }

    async fn send_file(&self, (channel, file): (&Channel, Attachment), spot: Spot<'_>) -> Result<(), NotSent> {
        let refused = |why: String| NotSent::Refused { why };
        let Some(files) = channel.network.files() else {
            return Err(refused(format!("{} takes no files", channel.name)));
        };
        let mut tried = 0;
        loop {
            let sent = {
                // Closed never. Given back before a pause, and the file with it: others are not kept waiting by a network's wish.
                let _one_of_few = channel.sending.acquire().await;
                let (path, folder, session) = (file.source.clone(), spot.workdir.to_owned(), spot.session.clone());
                let read = move |stop: &AtomicBool| read_attachment(&folder, &session, &path, LARGEST_FILE, stop);
                let read = spot.scope.blocking(Point::Blocking, "a file of an answer", read).await;
                let bytes = read.map_err(|_| refused("the request was stopped".to_owned()))?.map_err(refused)?;
                files.send(&self.place, &file, bytes).await
            };
            let Err(error) = sent else { return Ok(()) };
            tried += 1;
            wait_after(error, tried).await?;
        }
    }

    async fn fetch_one(&self, spot: Spot<'_>, number: usize, file: &Attachment) -> Result<String, String> {
        let Some(files) = self.channel.network.files() else {
            return Err("this network hands out no files".to_owned());
        };
        if file.bytes.is_some_and(|bytes| bytes > LARGEST_FILE) {
            return Err(format!("it is larger than {} MiB", LARGEST_FILE / 1024 / 1024));
        }
        // Closed never.
        let _one_of_few = self.channel.fetching.acquire().await;
        let bytes = files.fetch(file, LARGEST_FILE).await.map_err(|error| error.to_string())?;
        let path = format!("{}/{}/{number}-{}", folder_of(spot.session), folder_name(&self.run), file_name(file));
        let workdir = spot.workdir.to_owned();
        let write = move |stop: &AtomicBool| write_attachment(&workdir, &path, &bytes, stop);
        let written = spot.scope.blocking(Point::Blocking, "a file of a message", write).await;
        Ok(written.map_err(|_| "the request was stopped".to_owned())??.display().to_string())
    }
}

/// The draft in the presenter's hand.
pub(super) struct DraftHold<'a>(&'a Answer);

impl Drop for DraftHold<'_> {
    fn drop(&mut self) {
        self.0.draft.send_modify(|draft| draft.hand = Hand::Courier);
    }
}

impl Courier for Answer {
    fn fetch<'a>(&'a self, spot: Spot<'a>) -> BoxFuture<'a, Vec<String>> {
        async move {
            let mut lines = Vec::new();
            for (number, file) in self.message.attachments.iter().enumerate().take(MOST_FILES) {
                let word = word(file.kind);
                lines.push(match self.fetch_one(spot, number, file).await {
                    Ok(path) => format!("[{word}:{path}]"),
                    Err(why) => format!("[{} could not be fetched: {why}]", word.to_lowercase()),
                });
            }
            let more = self.message.attachments.len().saturating_sub(MOST_FILES);
            if more > 0 {
                lines.push(format!("[{more} more files were not fetched: {MOST_FILES} are the most]"));
            }
            lines
        }
        .boxed()
    }

    fn edit(&self, answer: &str) -> String {
        words::cleaned(answer, &self.channels.0.tools, self.narration)
    }

    fn files_of(&self, answer: &str) -> Vec<String> {
        sources(answer)
    }

    fn deliver<'a>(&'a self, answer: &'a str, spot: Spot<'a>) -> BoxFuture<'a, Result<(), Undelivered>> {
        async move {
            let carried = self.carry(answer, spot).await;
            match &carried {
                Ok(()) => self.channel.count_answered(),
                Err(_) => self.channel.count_undelivered(),
            }
            // A run carries one answer.
            let _ = self.carried.set(carried.clone());
            carried
        }
        .boxed()
    }

    fn withheld(&self, reason: &str) {
        // The first reason stands.
        let _ = self.withheld.set(reason.to_owned());
    }
}

fn word(kind: AttachmentKind) -> &'static str {
    match kind {
        AttachmentKind::Image => "IMAGE",
        AttachmentKind::Audio => "AUDIO",
        AttachmentKind::Video => "VIDEO",
        AttachmentKind::File => "FILE",
    }
}

/// A name that stays in its folder and on one line.
fn file_name(file: &Attachment) -> String {
    const LONGEST: usize = 80;
    let legal = |c: char| if c.is_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' };
    let name: String = file.name.as_deref().unwrap_or("file").chars().map(legal).collect();
    let name = name.trim_matches('.');
    let over = name.chars().count().saturating_sub(LONGEST);
    // The end says what it is.
    name.chars().skip(over).collect()
}

/// A run's id as the name of a folder.
fn folder_name(run: &RunId) -> String {
    run.as_str().chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Answer({})", self.run)
    }
}
