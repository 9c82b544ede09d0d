//! A run as its chat sees it while it works and when it is over: the sign on the message, the sign that somebody is writing, the
//! draft that grows, notices of tools, and what is said when there is no answer.
//!
//! One task for each run, which alone writes these: so a sign is taken off after it was put there, and a draft is never changed
//! after it was finished. It waits for the network only as long as the run is at work; what belongs to the end has its limits.

use std::sync::Arc;
use std::time::Duration;

use quell_engine::cell::{Cell, Follower, Progress};
use quell_engine::channel::Undelivered;
use quell_protocol::event::EventKind;
use quell_protocol::{Receipt, RunId, StopReason, Verdict};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::answer::Answer;
use super::send::{Patience, edit, repeated, send};
use super::{Channels, words};
use crate::channels::format::{Piece, first_piece, pieces};
use crate::channels::seam::{Drafts, NotSent, Reactions};

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

/// Presents the run of a message from its acceptance to its end. `into` is that run, or the active one that may take the message
/// in.
pub(super) async fn present(channels: Channels, answer: Arc<Answer>, into: RunId) {
    let engine = channels.engine();
    let Some(cell) = engine.live(&answer.run) else {
        // It is over and forgotten already.
        let view = engine.run(&answer.run).await.ok().flatten();
        if let Some((verdict, receipt)) = view.and_then(|view| view.verdict.zip(view.receipt)) {
            let ended = Ended { answer: &answer, partial: String::new() };
            ended.finish(&verdict, &receipt).await;
            ended.sign(ended.last_sign(&verdict)).await;
        }
        return;
    };
    let presenter = Presenter { answer: &answer, cell: &cell };
    presenter.sign_seen().await;
    presenter.at_work(&mut cell.follow(0)).await;
    cell.reached(Progress::Ended).await;
    let partial = match engine.asks_about_answers() {
        true => String::new(),
        false => words::so_far(&cell.view().output.unwrap_or_default(), &channels.0.tools),
    };
    let ended = Ended { answer: &answer, partial };
    let sign = match cell.verdict().zip(cell.receipt()) {
        Some((verdict, receipt)) => {
            ended.finish(&verdict, &receipt).await;
            ended.last_sign(&verdict)
        }
        // Another run has taken the message in: it is done when that one is.
        None => match engine.live(&into) {
            Some(other) => {
                other.reached(Progress::Ended).await;
                other.verdict().map_or(Some(DONE), |verdict| sign_of(&verdict))
            }
            None => Some(DONE),
        },
    };
    presenter.unsign(SEEN).await;
    ended.sign(sign).await;
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
    /// The text that was looked at last.
    looked_at: Option<String>,
    /// What the draft shows.
    shown: Option<Piece>,
    next: Instant,
}

/// What becomes of the draft.
enum Drafting {
    GoesOn,
    IsOver,
}

impl Presenter<'_> {
    /// While the run works. When this returns nobody is writing any more, and the draft is left alone.
    async fn at_work(&self, follower: &mut Follower) {
        let manners = self.answer.channel.manners;
        let mut growing = Growing::new();
        let mut hold = self.drafts().and_then(|_| self.answer.take_draft());
        let mut typing = interval(manners.typing_every);
        typing.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut writes, mut carrying) = (false, false);
        loop {
            let drafts = hold.is_some() && writes;
            // Nobody sees what is written before the draft may be changed again: until then no word is looked at by itself.
            let rests = drafts && !self.answer.channel.config.show_tool_calls && Instant::now() < growing.next;
            let due = rests || (drafts && growing.is_news());
            // Every arm only waits; what is done at the network comes after. What comes seldom is looked at first.
            let step = tokio::select! {
                biased;
                () = self.cell.reached(Progress::Ending) => Step::Over,
                () = self.answer.carrying(), if !carrying => Step::Carrying,
                _ = typing.tick(), if writes => Step::Typing,
                () = sleep_until(growing.next), if due => Step::Draft,
                event = follower.next(), if !rests => match event {
                    Some(event) => Step::Event(event.kind.clone()),
                    None => Step::Over,
                },
            };
            match step {
                Step::Over => break,
                // What is shown from now on is the answer, which ends the sign that somebody is writing.
                Step::Carrying => {
                    (carrying, hold) = (true, None);
                    if std::mem::take(&mut writes) {
                        self.hide_typing().await;
                    }
                }
                Step::Event(kind) => {
                    writes |= matches!(kind, EventKind::Started { .. });
                    self.take(kind, &mut growing);
                }
                Step::Typing => self.show_typing().await,
                Step::Draft => {
                    while let Some(event) = follower.take() {
                        self.take(event.kind.clone(), &mut growing);
                    }
                    if !growing.is_news() {
                        continue;
                    }
                    let first = self.answer.draft().is_none();
                    if let Drafting::IsOver = self.show_draft(&mut growing).await {
                        hold = None;
                    }
                    if first {
                        // A message takes the sign away that somebody is writing.
                        typing.reset_immediately();
                    }
                }
            }
        }
        if writes {
            self.hide_typing().await;
        }
    }

    fn take(&self, kind: EventKind, growing: &mut Growing) {
        match kind {
            EventKind::TextDelta { text } => growing.add(&text),
            EventKind::StepStarted { .. } => growing.anew = true,
            EventKind::Snapshot { text, .. } => (growing.text, growing.anew) = (text, false),
            EventKind::ToolStarted { tool, arguments, .. } if self.answer.channel.config.show_tool_calls => {
                self.answer.channel.outlet.say_of_tool(&self.answer.place, words::tool(&tool, &arguments));
            }
            _ => {}
        }
    }

    fn drafts(&self) -> Option<&dyn Drafts> {
        self.answer.channel.network.drafts().filter(|_| self.answer.channel.config.drafts)
    }

    /// Sends the draft, or changes it where it shows something else.
    ///
    /// Not raced against the end: a draft that was sent has to be known so that it can be finished, and a change that was given up
    /// half-way could come after the last one. The stop itself does not wait for this.
    async fn show_draft(&self, growing: &mut Growing) -> Drafting {
        let Some(drafts) = self.drafts() else { return Drafting::IsOver };
        let (channel, place) = (&self.answer.channel, &self.answer.place);
        // What a hook may yet change or keep back is not shown before it was asked.
        let text = match self.answer.channels.engine().asks_about_answers() {
            true => String::new(),
            false => words::so_far(&growing.text, &self.answer.channels.0.tools),
        };
        let form = &channel.manners.form;
        let piece = Some(first_piece(&text, form)).filter(|piece| !piece.plain.trim().is_empty());
        // Marks alone, such as the beginning of what will be bold, show nothing.
        let piece = piece.unwrap_or_else(|| first_piece(NOTHING_YET, form));
        growing.looked_at = Some(growing.text.clone());
        if growing.shown.as_ref() == Some(&piece) {
            return Drafting::GoesOn;
        }
        growing.next = Instant::now() + channel.manners.edit_every;
        let done = match self.answer.draft() {
            Some(message) => timeout(SMALL, drafts.edit(place, &message, &piece)).await,
            None => {
                let key = format!("{}-draft", self.answer.run);
                let sent = timeout(SMALL, channel.network.send(place, &piece, &key)).await;
                sent.map(|sent| sent.map(|message| self.answer.draft_is(message)))
            }
        };
        match done {
            Ok(Ok(())) => growing.shown = Some(piece),
            // It is shown with the next change.
            Ok(Err(NotSent::Undelivered { after, .. })) => {
                growing.looked_at = None;
                growing.next += after.unwrap_or_default();
            }
            // A message of which nobody knows whether it is there can be no draft.
            Ok(Err(NotSent::Unknown { .. })) | Err(_) if self.answer.draft().is_none() => return Drafting::IsOver,
            Ok(Err(NotSent::Unknown { .. })) | Err(_) => growing.looked_at = None,
            Ok(Err(NotSent::Refused { .. })) => return Drafting::IsOver,
        }
        Drafting::GoesOn
    }

    /// Not for long: the draft comes after it.
    async fn sign_seen(&self) {
        put(self.answer, SEEN, SMALL).await;
    }

    async fn unsign(&self, sign: &str) {
        let Some(reactions) = reactions(self.answer) else { return };
        let answer = self.answer;
        let removing = repeated(|| reactions.remove(&answer.place, &answer.asked, sign), Patience::Long);
        let done = timeout(LAST_WORD, removing).await;
        if !matches!(done, Ok(Ok(()))) {
            tracing::debug!(run = %answer.run, sign, ?done, "a sign was not taken off a message");
        }
    }

    async fn show_typing(&self) {
        let Some(typing) = self.answer.channel.network.typing() else { return };
        // Not raced against the end: what was given up half-way could come after it was hidden again.
        let shown = tokio::select! {
            biased;
            () = self.answer.carrying() => return,
            shown = timeout(SMALL, typing.show(&self.answer.place)) => shown,
        };
        if !matches!(shown, Ok(Ok(()))) {
            tracing::debug!(run = %self.answer.run, ?shown, "nobody sees that somebody is writing");
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

/// A run that is over.
struct Ended<'a> {
    answer: &'a Answer,
    /// What it had said of an answer that was not finished.
    partial: String,
}

impl Ended<'_> {
    /// What is said when there is no answer, in the place of the draft if there is one.
    async fn finish(&self, verdict: &Verdict, receipt: &Receipt) {
        let withheld = self.answer.withheld_because().is_some();
        let last_word = match (verdict, self.answer.carried()) {
            (Verdict::Completed, Some(Ok(()))) => return,
            // Its beginning stands there already, perhaps where the draft was.
            (Verdict::Completed, Some(Err(Undelivered::Partly { .. } | Undelivered::Unknown(_)))) => {
                return self.tell(self.say(words::UNCERTAIN)).await;
            }
            (Verdict::Completed, _) if withheld => None,
            (Verdict::Completed, _) => Some(words::UNDELIVERED.to_owned()),
            (Verdict::Failed { .. } | Verdict::Aborted { .. }, _) => words::without_an_answer(verdict, receipt),
        };
        let said = async {
            let channel = self.answer.channel_now();
            // Where the answer has begun, the draft is its first piece.
            let drafts = channel.network.drafts().filter(|_| channel.config.drafts && !self.answer.is_begun());
            if let (Some(message), Some(drafts)) = (self.answer.draft(), drafts) {
                let end = match (&last_word, withheld) {
                    (Some(last_word), _) => last_word.as_str(),
                    (None, true) => words::WITHHELD,
                    (None, false) => words::cut(verdict),
                };
                let partial = if withheld { "" } else { self.partial.trim() };
                let text = if partial.is_empty() { end.to_owned() } else { format!("{partial}\n\n{end}") };
                // Of what is too long the end is shown, and that is what matters here.
                let piece = first_piece(&text, &channel.manners.form);
                if edit(drafts, &self.answer.place, &message, (&piece, Patience::Long)).await.is_ok() {
                    return;
                }
            }
            if let Some(last_word) = &last_word {
                self.say(last_word).await;
            }
        };
        self.tell(said).await;
    }

    async fn tell(&self, telling: impl Future<Output = ()>) {
        if timeout(LAST_WORD, telling).await.is_err() {
            tracing::warn!(run = %self.answer.run, "the end of a run could not be told in its chat");
        }
    }

    async fn say(&self, last_word: &str) {
        let (channel, place) = (self.answer.channel_now(), &self.answer.place);
        for (number, piece) in pieces(last_word, &channel.manners.form).iter().enumerate() {
            let key = format!("{}-end-{number}", self.answer.run);
            if let Err(error) = send(&channel, place, (piece, &key), Patience::Long).await {
                channel.count_undelivered();
                tracing::warn!(run = %self.answer.run, %error, "the end of a run was not told in its chat");
                return;
            }
        }
    }

    /// The sign that stays; none on a message that was kept back.
    fn last_sign(&self, verdict: &Verdict) -> Option<&'static str> {
        match verdict {
            Verdict::Completed if self.answer.carried() == Some(&Ok(())) => Some(DONE),
            _ if self.answer.withheld_because().is_some() => None,
            Verdict::Completed => Some(FAILED),
            Verdict::Failed { .. } | Verdict::Aborted { .. } => sign_of(verdict),
        }
    }

    async fn sign(&self, sign: Option<&str>) {
        if let Some(sign) = sign {
            put(self.answer, sign, LAST_WORD).await;
        }
    }
}

fn sign_of(verdict: &Verdict) -> Option<&'static str> {
    Some(match verdict {
        Verdict::Completed => DONE,
        Verdict::Failed { .. } | Verdict::Aborted { reason: StopReason::Timeout, .. } => FAILED,
        Verdict::Aborted { .. } => STOPPED,
    })
}

async fn put(answer: &Answer, sign: &str, limit: Duration) {
    let Some(reactions) = reactions(answer) else { return };
    let done = timeout(limit, repeated(|| reactions.add(&answer.place, &answer.asked, sign), Patience::Long)).await;
    if !matches!(done, Ok(Ok(()))) {
        tracing::debug!(run = %answer.run, sign, ?done, "a sign was not put on a message");
    }
}

fn reactions(answer: &Answer) -> Option<&dyn Reactions> {
    answer.channel.network.reactions().filter(|_| answer.channel.config.ack_reactions)
}

enum Step {
    Over,
    Carrying,
    Event(EventKind),
    Typing,
    Draft,
}

impl Growing {
    fn new() -> Self {
        Self { text: String::new(), anew: false, looked_at: None, shown: None, next: Instant::now() }
    }

    fn add(&mut self, text: &str) {
        if std::mem::take(&mut self.anew) {
            self.text.clear();
        }
        self.text.push_str(text);
    }

    /// True when the draft may show something else than what there is; at first not even that somebody works.
    fn is_news(&self) -> bool {
        self.looked_at.as_ref() != Some(&self.text)
    }
}
