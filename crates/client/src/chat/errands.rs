//! The core's effects carried out: each call is a future of its own, and its answer comes back as an input. So the keyboard
//! never waits for the network, and a call that hangs keeps no other from being made.

use std::collections::HashMap;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use quell_protocol::RunId;
use quell_protocol::api::{StopRunRequest, StopSessionRequest};
use quell_protocol::page::SessionPatch;

use super::effects::{Answer, Effect, Failure, Input, Page, Question, RunSeen};
use crate::link::{AnswerWhen, Followed, Following, Link, LinkError, RunFilter};

/// Turns in a page of history: more than a screen has.
const PAGE: u32 = 30;

/// A run that is followed, by which follow, and what came of it; nothing at its end.
type Stepped = (RunId, u64, Following, Option<RunSeen>);

/// Everything that is on its way.
pub(super) struct Errands {
    link: Link,
    calls: FuturesUnordered<BoxFuture<'static, Answer>>,
    follows: FuturesUnordered<BoxFuture<'static, Stepped>>,
    /// The follow in force of each run; what comes of an older one is dropped.
    current: HashMap<RunId, u64>,
    follow: u64,
    /// Messages and stops without an answer.
    owed: usize,
}

impl Errands {
    pub(super) fn new(link: Link) -> Self {
        let (calls, follows) = (FuturesUnordered::new(), FuturesUnordered::new());
        Self { link, calls, follows, current: HashMap::new(), follow: 0, owed: 0 }
    }

    /// Sets an effect going; those of the screen are the loop's own.
    pub(super) fn start(&mut self, effect: Effect) {
        let link = self.link.clone();
        let is_owed = matches!(effect, Effect::Send { .. } | Effect::StopSession { .. } | Effect::StopRun { .. });
        self.owed += usize::from(is_owed);
        let call = match effect {
            Effect::Send { run, session, request } => async move {
                let result = link.send(&session, &request).await.map_err(Failure::from);
                Answer::Sent { run, result }
            }
            .boxed(),
            Effect::StopSession { session, force } => async move {
                let request = StopSessionRequest { force, keep_background: true, ..StopSessionRequest::default() };
                let result = link.stop_session(&session, &request, AnswerWhen::Asked).await.map_err(Failure::from);
                Answer::SessionStopped { session, result }
            }
            .boxed(),
            Effect::StopRun { run, force } => async move {
                let request = StopRunRequest { force, ..StopRunRequest::default() };
                let result = link.stop_run(&run, &request).await.map_err(Failure::from);
                Answer::RunStopped { run, result }
            }
            .boxed(),
            Effect::AnswerApproval { id, decision } => async move {
                let result = link.answer_approval(&id, decision).await.map_err(Failure::from);
                Answer::Answered { id, result }
            }
            .boxed(),
            Effect::SetHold(held) => async move {
                let result = if held { link.set_hold(None).await } else { link.lift_hold().await };
                Answer::Hold { result: result.map_err(Failure::from), asked: true }
            }
            .boxed(),
            Effect::SetModel { session, model } => async move {
                let patch = SessionPatch { model: Some(model.clone()), agent: None };
                let result = link.patch_session(&session, &patch).await.map_err(Failure::from);
                Answer::ModelSet { model, result }
            }
            .boxed(),
            Effect::Ask(question) => ask(link, question),
            Effect::Follow { run, after } => return self.follow(run, after),
            Effect::FollowNone => return self.follow_none(),
            Effect::Scroll(_) | Effect::Redraw | Effect::Leave => return,
        };
        self.calls.push(call);
    }

    fn follow(&mut self, run: RunId, after: u64) {
        self.follow += 1;
        self.current.insert(run.clone(), self.follow);
        let following = self.link.follow(&run, after);
        self.follows.push(step(run, self.follow, following));
    }

    fn follow_none(&mut self) {
        self.current.clear();
        self.follows.clear();
    }

    /// True while a message or a stop is out: to drop it now may mean that it never arrives.
    pub(super) fn owes(&self) -> bool {
        self.owed > 0
    }

    /// The next thing that came of anything; for ever while nothing is on its way.
    ///
    /// # Cancel safety
    /// Everything goes on with the next wait; nothing that came is lost.
    pub(super) async fn next(&mut self) -> Input {
        loop {
            tokio::select! {
                // Both keep their futures: dropping a wait loses nothing.
                Some(answer) = self.calls.next() => {
                    let was_owed = matches!(
                        answer,
                        Answer::Sent { .. } | Answer::SessionStopped { .. } | Answer::RunStopped { .. }
                    );
                    self.owed -= usize::from(was_owed);
                    return Input::Answer(answer);
                }
                Some(stepped) = self.follows.next() => {
                    if let Some(input) = self.stepped(stepped) {
                        return input;
                    }
                }
                else => std::future::pending::<()>().await,
            }
        }
    }

    fn stepped(&mut self, (run, follow, following, seen): Stepped) -> Option<Input> {
        if self.current.get(&run) != Some(&follow) {
            return None;
        }
        let Some(seen) = seen else {
            self.current.remove(&run);
            return None;
        };
        self.follows.push(step(run.clone(), follow, following));
        Some(Input::Seen(run, seen))
    }
}

/// Waits for the next event of a run.
fn step(run: RunId, follow: u64, mut following: Following) -> BoxFuture<'static, Stepped> {
    async move {
        let seen = following.next().await.map(|seen| match seen {
            Ok(Followed::Event(event)) => RunSeen::Event(event),
            Ok(Followed::Lost { cause, .. }) => RunSeen::Lost(cause),
            Ok(Followed::Back) => RunSeen::Back,
            Err(error) => RunSeen::Gone(error.into()),
        });
        (run, follow, following, seen)
    }
    .boxed()
}

fn ask(link: Link, question: Question) -> BoxFuture<'static, Answer> {
    async move {
        let failed = |error: LinkError| Failure::from(error);
        match question {
            Question::Session(key) => {
                let result = link.session(&key).await.map_err(failed);
                Answer::Session { key, result }
            }
            Question::Run(run) => {
                let result = link.run(&run).await.map_err(failed);
                Answer::Run { run, result }
            }
            Question::Active => Answer::Active(link.runs(RunFilter::Active).await.map_err(failed)),
            Question::Approvals => Answer::Approvals(link.approvals().await.map_err(failed)),
            Question::Hold => Answer::Hold { result: link.hold().await.map_err(failed), asked: false },
            Question::Agents => Answer::Agents(link.agents().await.map_err(failed)),
            Question::Sessions => Answer::Sessions(link.sessions().await.map_err(failed)),
            Question::History { session, page } => {
                let (turns, cursor) = match &page {
                    Page::Newest => (PAGE, None),
                    Page::Before(cursor) => (PAGE, Some(cursor.as_str())),
                    Page::LastTurn => (1, None),
                };
                let result = link.history_page(&session, turns, cursor).await.map_err(failed);
                Answer::History { session, which: page, result }
            }
        }
    }
    .boxed()
}

#[cfg(test)]
mod tests;
