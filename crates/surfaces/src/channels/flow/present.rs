//! A run as its chat sees it while it works and when it is over: the sign on the message, the sign that somebody is writing, the
//! draft that grows, notices of tools, and what is said when there is no answer.
//!
//! One task for each run, which alone writes these: so a sign is taken off after it was put there, and a draft is never changed
//! after it was finished. It waits for the network only as long as the run is at work; what belongs to the end has its limits.

use std::sync::Arc;
use std::time::Duration;

use quell_engine::cell::{Cell, Follower, Progress};
use quell_protocol::event::EventKind;
use quell_protocol::{Receipt, RunId, Verdict};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::answer::Answer;
use super::send::{edit, send};
use super::{Channels, words};
use crate::channels::format::{Piece, first_piece, pieces};
use crate::channels::seam::{Drafts, NotSent};

/// One small thing at a network, such as a sign.
const SMALL: Duration = Duration::from_secs(10);
/// What is said at the end of a run.
const LAST_WORD: Duration = Duration::from_secs(60);

const SEEN: &str = "👀";
const DONE: &str = "✅";
const FAILED: &str = "⚠️";
const STOPPED: &str = "⏹";

/// What a draft shows before there is text.
const NOTHING_YET: &str = "...";

/// Presents a run from its acceptance to its end.
pub(super) async fn present(channels: Channels, answer: Arc<Answer>, run: RunId) {
    let Some(cell) = channels.engine().live(&run) else { return };
    // A message that another run has taken in is over when that one is.
    let own = run == answer.run;
    let presenter = Presenter { answer: &answer, cell: &cell };
    presenter.sign(SEEN).await;
    if own {
        let mut follower = cell.follow(0);
        presenter.at_work(&mut follower).await;
    }
    cell.reached(Progress::Ended).await;
    let (Some(verdict), Some(receipt)) = (cell.verdict(), cell.receipt()) else {
        // Another run has taken the message over, and presents itself.
        return presenter.unsign(SEEN).await;
    };
    if own {
        presenter.finish(&verdict, &receipt).await;
    }
    presenter.unsign(SEEN).await;
    presenter.sign(presenter.last_sign(&verdict)).await;
}

struct Presenter<'a> {
    answer: &'a Answer,
    cell: &'a Arc<Cell>,
}

/// What there is of the answer, and when the draft may be changed again.
#[derive(Debug)]
struct Growing {
    text: String,
    /// A new step has begun: what it says takes the place of what was said before.
    anew: bool,
    shown: String,
    next: Instant,
}

impl Presenter<'_> {
    /// While the run works. When this returns nobody is writing any more, and the draft is left alone.
    async fn at_work(&self, follower: &mut Follower) {
        let manners = self.answer.channel.manners;
        let mut growing = Growing { text: String::new(), anew: false, shown: String::new(), next: Instant::now() };
        let mut drafting = self.drafts().is_some() && self.answer.take_draft();
        let mut typing = interval(manners.typing_every);
        typing.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut writes = false;
        loop {
            let due = drafting && writes && growing.is_news();
            // Every arm only waits; what is done at the network comes after.
            let step = tokio::select! {
                biased;
                () = self.cell.reached(Progress::Ending) => Step::Over,
                () = self.answer.draft_wanted(), if drafting => Step::GiveDraft,
                event = follower.next() => match event {
                    Some(event) => Step::Event(event.kind.clone()),
                    None => Step::Over,
                },
                _ = typing.tick(), if writes => Step::Typing,
                () = sleep_until(growing.next), if due => Step::Draft,
            };
            match step {
                Step::Over => break,
                Step::GiveDraft => {
                    drafting = false;
                    self.answer.give_draft();
                }
                Step::Event(kind) => {
                    writes |= matches!(kind, EventKind::Started { .. });
                    self.take(kind, &mut growing);
                }
                Step::Typing => self.show_typing().await,
                Step::Draft => drafting = self.show_draft(&mut growing).await,
            }
        }
        if drafting {
            self.answer.give_draft();
        }
        if writes {
            self.hide_typing().await;
        }
    }

    fn take(&self, kind: EventKind, growing: &mut Growing) {
        match kind {
            EventKind::TextDelta { text } => growing.add(&text),
            EventKind::StepStarted { .. } => growing.anew = true,
            EventKind::Snapshot { text, .. } => growing.text = text,
            EventKind::ToolStarted { tool, arguments, .. } if self.answer.channel.config.show_tool_calls => {
                self.answer.channel.outlet.say(&self.answer.place, words::tool(&tool, &arguments));
            }
            _ => {}
        }
    }

    fn drafts(&self) -> Option<&dyn Drafts> {
        self.answer.channel.network.drafts().filter(|_| self.answer.channel.config.drafts)
    }

    /// Sends the draft, or changes it. False when there is to be none after all.
    async fn show_draft(&self, growing: &mut Growing) -> bool {
        let Some(drafts) = self.drafts() else { return false };
        let (channel, place) = (&self.answer.channel, &self.answer.place);
        let text = words::so_far(&growing.text, &self.answer.channels.0.tools);
        let shown = if text.trim().is_empty() { NOTHING_YET } else { &text };
        let piece = first_piece(shown, &channel.manners.form);
        growing.shown.clone_from(&growing.text);
        growing.next = Instant::now() + channel.manners.edit_every;
        let Some(message) = self.answer.draft() else {
            let key = format!("{}-draft", self.answer.run);
            // Not raced against the end: a draft that was sent has to be known, so that it can be finished.
            return match timeout(SMALL, channel.network.send(place, &piece, &key)).await {
                Ok(Ok(message)) => {
                    self.answer.draft_is(message);
                    true
                }
                Ok(Err(_)) | Err(_) => false,
            };
        };
        let changed = tokio::select! {
            biased;
            () = self.cell.reached(Progress::Ending) => return true,
            changed = timeout(SMALL, drafts.edit(place, &message, &piece)) => changed,
        };
        match changed {
            Ok(Ok(())) | Err(_) => true,
            // It will be shown with the next change.
            Ok(Err(NotSent::Undelivered { after, .. })) => {
                growing.shown.clear();
                growing.next += after.unwrap_or_default();
                true
            }
            Ok(Err(NotSent::Unknown { .. })) => true,
            Ok(Err(NotSent::Refused { .. })) => false,
        }
    }

    /// What is said when there is no answer, in the place of the draft if there is one.
    async fn finish(&self, verdict: &Verdict, receipt: &Receipt) {
        if self.answer.is_delivered() {
            return;
        }
        let draft = self.answer.draft();
        let withheld = self.answer.withheld_because().is_some();
        let last_word = match verdict {
            // Whatever became of the answer, it was said in the log and stands in the receipt.
            Verdict::Completed if !withheld => return,
            Verdict::Completed => None,
            Verdict::Failed { .. } | Verdict::Aborted { .. } => words::without_an_answer(verdict, receipt),
        };
        let said = async {
            match (draft, self.drafts()) {
                (Some(message), Some(drafts)) => {
                    let end = last_word.clone().unwrap_or_else(|| match withheld {
                        true => words::WITHHELD.to_owned(),
                        false => words::cut(verdict).to_owned(),
                    });
                    let partial = if withheld { String::new() } else { self.partial() };
                    let text = if partial.trim().is_empty() { end } else { format!("{partial}\n\n{end}") };
                    let piece = self.last_piece(&text);
                    if edit(drafts, &self.answer.place, &message, &piece).await.is_ok() {
                        return;
                    }
                    self.say(last_word).await;
                }
                _ => self.say(last_word).await,
            }
        };
        if timeout(LAST_WORD, said).await.is_err() {
            tracing::warn!(run = %self.answer.run, "the end of a run could not be told in its chat");
        }
    }

    async fn say(&self, last_word: Option<String>) {
        let Some(last_word) = last_word else { return };
        let (channel, place) = (&self.answer.channel, &self.answer.place);
        for (number, piece) in pieces(&last_word, &channel.manners.form).iter().enumerate() {
            let key = format!("{}-end-{number}", self.answer.run);
            if let Err(error) = send(channel, place, piece, &key).await {
                channel.count_undelivered();
                tracing::warn!(run = %self.answer.run, %error, "the end of a run was not told in its chat");
                return;
            }
        }
    }

    fn partial(&self) -> String {
        let text = self.cell.view().output.unwrap_or_default();
        words::so_far(&text, &self.answer.channels.0.tools)
    }

    fn last_piece(&self, text: &str) -> Piece {
        first_piece(text, &self.answer.channel.manners.form)
    }

    fn last_sign(&self, verdict: &Verdict) -> &'static str {
        match verdict {
            Verdict::Completed if self.answer.is_delivered() || self.answer.run != self.cell.run.id => DONE,
            Verdict::Completed | Verdict::Failed { .. } => FAILED,
            Verdict::Aborted { reason: quell_protocol::StopReason::Timeout, .. } => FAILED,
            Verdict::Aborted { .. } => STOPPED,
        }
    }

    async fn sign(&self, sign: &str) {
        let Some(reactions) = self.reactions() else { return };
        let done = timeout(SMALL, reactions.add(&self.answer.place, &self.answer.asked, sign)).await;
        if !matches!(done, Ok(Ok(()))) {
            tracing::debug!(run = %self.answer.run, sign, ?done, "a sign was not put on a message");
        }
    }

    async fn unsign(&self, sign: &str) {
        let Some(reactions) = self.reactions() else { return };
        let done = timeout(SMALL, reactions.remove(&self.answer.place, &self.answer.asked, sign)).await;
        if !matches!(done, Ok(Ok(()))) {
            tracing::debug!(run = %self.answer.run, sign, ?done, "a sign was not taken off a message");
        }
    }

    fn reactions(&self) -> Option<&dyn crate::channels::seam::Reactions> {
        self.answer.channel.network.reactions().filter(|_| self.answer.channel.config.ack_reactions)
    }

    async fn show_typing(&self) {
        let Some(typing) = self.answer.channel.network.typing() else { return };
        tokio::select! {
            biased;
            () = self.cell.reached(Progress::Ending) => {}
            shown = timeout(SMALL, typing.show(&self.answer.place)) => {
                if !matches!(shown, Ok(Ok(()))) {
                    tracing::debug!(run = %self.answer.run, ?shown, "nobody sees that somebody is writing");
                }
            }
        }
    }

    async fn hide_typing(&self) {
        let Some(typing) = self.answer.channel.network.typing() else { return };
        let hidden = timeout(SMALL, typing.hide(&self.answer.place)).await;
        if !matches!(hidden, Ok(Ok(()))) {
            tracing::debug!(run = %self.answer.run, ?hidden, "it may still look as if somebody were writing");
        }
    }
}

enum Step {
    Over,
    GiveDraft,
    Event(EventKind),
    Typing,
    Draft,
}

impl Growing {
    fn add(&mut self, text: &str) {
        if std::mem::take(&mut self.anew) {
            self.text.clear();
        }
        self.text.push_str(text);
    }

    /// True when the draft does not show what there is: at first not even that somebody works.
    fn is_news(&self) -> bool {
        self.shown.is_empty() || self.shown != self.text
    }
}
