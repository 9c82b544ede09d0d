//! The end of a run, told in its chat: what is said when there is no answer, what becomes of the draft, and the sign that stays.

use std::sync::Arc;
use std::time::Duration;

use quell_engine::channel::Undelivered;
use quell_protocol::{RunId, Verdict};
use tokio::time::timeout;

use super::channel::Channel;
use super::send::{Patience, edit, send};
use super::signs::{AT_THE_END, DONE, FAILED, Signs, sign_of};
use super::words;
use crate::channels::format::{first_piece, pieces};
use crate::channels::seam::{MessageId, NotSent, Place};

/// What is said at the end of a run.
const LAST_WORD: Duration = Duration::from_secs(60);

/// A run that is over.
pub(super) struct Ended {
    /// As it is now: its section of the configuration may have been changed since the message came.
    pub(super) channel: Arc<Channel>,
    pub(super) place: Place,
    /// The message that was answered.
    pub(super) asked: MessageId,
    pub(super) run: RunId,
    /// The draft; none where the answer has begun, since that is its first piece then.
    pub(super) draft: Option<MessageId>,
    /// What it had said of an answer that was not finished.
    pub(super) partial: String,
    /// A hook kept the message or its answer back.
    pub(super) withheld: bool,
    /// What became of the answer, if there was one.
    pub(super) carried: Option<Result<(), Undelivered>>,
}

/// Whether the end of a run is known where it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// It is, or never will be.
    Yes,
    /// The network could not show it, and may yet.
    NotYet,
}

impl Ended {
    /// What is said when there is no answer, in the place of the draft if there is one: `instead` where the run had none.
    pub(super) async fn finish(&self, verdict: &Verdict, instead: Option<String>) -> Told {
        let last_word = match (verdict, &self.carried) {
            (Verdict::Completed, Some(Ok(()))) => return Told::Yes,
            // Its beginning stands there already, perhaps where the draft was.
            (Verdict::Completed, Some(Err(Undelivered::Partly { .. } | Undelivered::Unknown(_)))) => {
                return self.within_limit(self.say(words::UNCERTAIN)).await;
            }
            (Verdict::Completed, _) if self.withheld => None,
            (Verdict::Completed, _) => Some(words::UNDELIVERED.to_owned()),
            (Verdict::Failed { .. } | Verdict::Aborted { .. }, _) => instead,
        };
        let telling = async {
            match (self.end_draft(verdict, last_word.as_deref()).await, &last_word) {
                (Ok(()), _) => Told::Yes,
                (Err(_), Some(last_word)) => self.say(last_word).await,
                (Err(told), None) => told,
            }
        };
        self.within_limit(telling).await
    }

    /// Fails with what is to become of a draft that was not ended, if there is one at all.
    async fn end_draft(&self, verdict: &Verdict, last_word: Option<&str>) -> Result<(), Told> {
        let (Some(message), Some(drafts)) = (&self.draft, self.channel.network.drafts()) else {
            return Err(Told::Yes);
        };
        let end = match (last_word, self.withheld) {
            (Some(last_word), _) => last_word,
            (None, true) => words::WITHHELD,
            (None, false) => words::cut(verdict),
        };
        let partial = if self.withheld { "" } else { self.partial.trim() };
        let text = if partial.is_empty() { end.to_owned() } else { format!("{partial}\n\n{end}") };
        // Of what is too long the end is shown, and that is what matters here.
        let piece = first_piece(&text, &self.channel.manners.form);
        edit(drafts, &self.place, message, (&piece, Patience::Long)).await.map_err(|error| {
            tracing::debug!(run = %self.run, %error, "a draft could not be ended");
            match error {
                NotSent::Refused { .. } => Told::Yes,
                NotSent::Undelivered { .. } | NotSent::Unknown { .. } => Told::NotYet,
            }
        })
    }

    async fn within_limit(&self, telling: impl Future<Output = Told>) -> Told {
        timeout(LAST_WORD, telling).await.unwrap_or_else(|_elapsed| {
            tracing::warn!(run = %self.run, "the end of a run could not be told in its chat");
            Told::NotYet
        })
    }

    async fn say(&self, last_word: &str) -> Told {
        for (number, piece) in pieces(last_word, &self.channel.manners.form).iter().enumerate() {
            let key = format!("{}-end-{number}", self.run);
            if let Err(error) = send(&self.channel, &self.place, (piece, &key), Patience::Long).await {
                self.channel.count_undelivered();
                tracing::warn!(run = %self.run, %error, "the end of a run was not told in its chat");
                return match error {
                    NotSent::Undelivered { .. } => Told::NotYet,
                    // It may be there already, and is not said twice.
                    NotSent::Refused { .. } | NotSent::Unknown { .. } => Told::Yes,
                };
            }
        }
        Told::Yes
    }

    /// The sign that stays; none on a message that was kept back.
    pub(super) fn last_sign(&self, verdict: &Verdict) -> Option<&'static str> {
        match verdict {
            Verdict::Completed if self.carried == Some(Ok(())) => Some(DONE),
            _ if self.withheld => None,
            Verdict::Completed => Some(FAILED),
            Verdict::Failed { .. } | Verdict::Aborted { .. } => Some(sign_of(verdict)),
        }
    }

    pub(super) async fn sign(&self, sign: Option<&str>) {
        if let Some(sign) = sign {
            self.signs().put(sign, AT_THE_END).await;
        }
    }

    pub(super) fn signs(&self) -> Signs<'_> {
        Signs { channel: &self.channel, place: &self.place, asked: &self.asked, run: &self.run }
    }
}
