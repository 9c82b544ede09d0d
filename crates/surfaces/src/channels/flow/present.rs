//! A run as its chat sees it while it works and when it is over: the sign on the message, the sign that somebody is writing, the
//! draft that grows, notices of tools, and its end. What would stay if the daemon were killed is written down ([`super::leaves`]).
//!
//! One task for each run, which alone writes these: so a sign is taken off after it was put there, and a draft is never changed
//! after it was finished. It waits for the network only as long as the run is at work; what belongs to the end has its limits.

use std::sync::Arc;
use std::time::Duration;

use quell_engine::cell::{Cell, Follower, Progress};
use quell_engine::store::Trace;
use quell_protocol::event::EventKind;
use quell_protocol::{RunId, Verdict};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::answer::Answer;
use super::ended::Told;
use super::signs::{DONE, SEEN, Signs, sign_of};
use super::{Channels, words};
use crate::channels::format::{Piece, first_piece};
use crate::channels::seam::{Drafts, MessageId, NotSent};

/// One small thing at a network, such as a sign.
const SMALL: Duration = Duration::from_secs(10);

/// What a draft shows before there is text.
const NOTHING_YET: &str = "...";

/// Presents the run of a message from its acceptance to its end. `into` is that run, or the active one that may take the message
/// in.
pub(super) async fn present(channels: Channels, answer: Arc<Answer>, into: RunId) {
    let engine = channels.engine();
    let _telling = engine.telling();
    let Some(cell) = engine.live(&answer.run) else {
        // It is over and forgotten already.
        let view = engine.run(&answer.run).await.ok().flatten();
        if let Some((verdict, receipt)) = view.and_then(|view| view.verdict.zip(view.receipt)) {
            let ended = answer.ended(String::new());
            ended.finish(&verdict, words::without_an_answer(&verdict, &receipt)).await;
            ended.sign(ended.last_sign(&verdict)).await;
        }
        return;
    };
    let presenter = Presenter { answer: &answer, cell: &cell };
    presenter.leave_trace().await;
    presenter.sign_seen().await;
    presenter.at_work(&mut cell.follow(0)).await;
    cell.reached(Progress::Ended).await;
    let partial = match engine.asks_about_answers() {
        true => String::new(),
        false => words::so_far(&cell.view().output.unwrap_or_default(), &channels.0.tools),
    };
    let ended = answer.ended(partial);
    let sign = match cell.verdict().zip(cell.receipt()) {
        Some((verdict, receipt)) => {
            let told = ended.finish(&verdict, words::without_an_answer(&verdict, &receipt)).await;
            if told == Told::Yes && verdict != Verdict::Completed {
                presenter.note_told().await;
            }
            ended.last_sign(&verdict)
        }
        // Another run has taken the message in: it is done when that one is.
        None => match engine.live(&into) {
            Some(other) => {
                other.reached(Progress::Ended).await;
                Some(other.verdict().map_or(DONE, |verdict| sign_of(&verdict)))
            }
            None => Some(DONE),
        },
    };
    presenter.signs().take_off(SEEN).await;
    ended.sign(sign).await;
    presenter.wipe_trace().await;
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
    /// It was sent, and nobody knows whether it is there.
    unconfirmed: bool,
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
                sent.map(|sent| {
                    sent.map(|message| {
                        self.trace_draft(&message);
                        self.answer.draft_is(message);
                    })
                })
            }
        };
        match done {
            // What was sent before under the same key is what stands there.
            Ok(Ok(())) if std::mem::take(&mut growing.unconfirmed) => growing.looked_at = None,
            Ok(Ok(())) => growing.shown = Some(piece),
            // It is shown with the next change.
            Ok(Err(NotSent::Undelivered { after, .. })) => {
                growing.looked_at = None;
                growing.next += after.unwrap_or_default();
            }
            // Sending it again with its key tells which message it is.
            Ok(Err(NotSent::Unknown { repeatable: true, .. })) if self.answer.draft().is_none() => {
                (growing.unconfirmed, growing.looked_at) = (true, None);
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
        self.signs().put(SEEN, SMALL).await;
    }

    fn signs(&self) -> Signs<'_> {
        let Answer { channel, place, asked, run, .. } = self.answer;
        Signs { channel, place, asked, run }
    }

    /// Writes down what is about to be shown, and that somebody waits for an answer. A run that ends is not held up by that.
    async fn leave_trace(&self) {
        let Answer { channels, channel, place, asked, run, .. } = self.answer;
        let trace = Trace {
            run: run.clone(),
            channel: channel.name.clone(),
            target: place.target.clone(),
            thread: place.thread.clone(),
            asked: asked.0.clone(),
            draft: None,
        };
        tokio::select! {
            biased;
            // Polled first: it is written when this has been polled once, whichever arm is quicker.
            kept = channels.engine().keep_trace(trace) => if let Err(error) = kept {
                tracing::warn!(%run, %error, "what a chat shows of a run could not be written down");
            },
            () = self.cell.reached(Progress::Ending) => {}
        }
    }

    /// The draft's name is written down by a task of its own: nobody waits for that.
    fn trace_draft(&self, message: &MessageId) {
        let (engine, run, draft) = (self.answer.channels.engine().clone(), self.answer.run.clone(), message.0.clone());
        self.answer.channels.scope().spawn(async move {
            if let Err(error) = engine.keep_draft(&run, Some(draft)).await {
                tracing::warn!(%run, %error, "which message is a draft could not be written down");
            }
        });
    }

    /// A shutdown may cut off what comes after the last word.
    async fn note_told(&self) {
        let run = &self.answer.run;
        if let Err(error) = self.answer.channels.engine().keep_told(run).await {
            tracing::debug!(%run, %error, "the end of a run may be told again after a restart");
        }
    }

    async fn wipe_trace(&self) {
        let run = &self.answer.run;
        if let Err(error) = self.answer.channels.engine().forget_trace(run).await {
            tracing::debug!(%run, %error, "the end of a run will be told again after a restart");
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

enum Step {
    Over,
    Carrying,
    Event(EventKind),
    Typing,
    Draft,
}

impl Growing {
    fn new() -> Self {
        Self {
            text: String::new(),
            anew: false,
            looked_at: None,
            shown: None,
            unconfirmed: false,
            next: Instant::now(),
        }
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
