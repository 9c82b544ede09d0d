//! The core's one step: an input changes the state and says what to do outside. No IO happens here, and no clock is read.

use std::time::Duration;

use quell_protocol::{EventKind, RunEvent, RunId, Verdict};

use super::clock::Moment;
use super::effects::{Effect, Failure, FailureKind, Input, Page, Question, RunSeen};
use super::state::{Chat, Chosen, Connection, Leaving, Menu, Notice, PickList, Picker, Run, RunState};
use super::transcript::Tone;

/// How long a notice stands.
const NOTICE: Duration = Duration::from_secs(6);
/// How long it is asked whether the receipt of a run that is over was amended.
const UNSETTLED: Duration = Duration::from_secs(600);

impl Chat {
    /// Takes an input that came at `now`.
    pub(crate) fn update(&mut self, input: Input, now: Moment) -> Vec<Effect> {
        self.now = now;
        let mut effects = match input {
            Input::Key(key) => self.key(key),
            Input::Paste(text) => self.paste(&text),
            Input::Tick => self.tick(),
            Input::TopSeen => self.older(),
            Input::Seen(run, seen) => self.seen(&run, seen),
            Input::Answer(answer) => self.answer(answer),
        };
        self.settle_choice();
        self.note_shown();
        effects.extend(self.conclude_stop());
        effects
    }

    fn paste(&mut self, text: &str) -> Vec<Effect> {
        match &mut self.menu {
            Some(Menu::Picker(picker)) => {
                picker.filter.push_str(text.lines().next().unwrap_or_default());
                picker.chosen = Chosen::First;
            }
            Some(Menu::Help | Menu::Leave) => {
                self.menu = None;
                self.composer.insert(text);
            }
            None => self.composer.insert(text),
        }
        Vec::new()
    }

    /// Asks what is due.
    fn tick(&mut self) -> Vec<Effect> {
        let now = self.now;
        if self.notice.as_ref().is_some_and(|notice| now >= notice.until) {
            self.notice = None;
        }
        let mut questions = Vec::new();
        if self.polls.session.is_due(now) {
            questions.push(Question::Session(self.session.clone()));
        }
        if self.polls.approvals.is_due(now) {
            questions.push(Question::Approvals);
        }
        if self.polls.hold.is_due(now) {
            questions.push(Question::Hold);
        }
        let listed = matches!(&self.menu, Some(Menu::Picker(Picker { list: PickList::Runs(_), .. })));
        let below = self.transcript.open_below().next().is_some();
        if (self.is_active() || listed || below) && self.polls.active.is_due(now) {
            questions.push(Question::Active);
        }
        self.unsettled.retain(|(run, until)| now < *until && self.transcript.has_ended(run));
        if !self.unsettled.is_empty() && self.polls.unsettled.is_due(now) {
            questions.extend(self.unsettled.iter().map(|(run, _)| Question::Run(run.clone())));
        }
        if !std::mem::replace(&mut self.polls.agents, true) {
            questions.push(Question::Agents);
        }
        if let Some(stop) = &self.stop
            && self.polls.held.is_due(now)
        {
            questions.extend(stop.runs.keys().cloned().map(Question::Run));
        }
        if self.facts.exists && !self.pages.begun {
            self.pages.begun = true;
            self.pages.asked = true;
            questions.push(Question::History { session: self.session.clone(), page: Page::Newest });
        }
        questions.into_iter().map(Effect::Ask).collect()
    }

    /// The top of the page is seen: what was said before it is asked for.
    fn older(&mut self) -> Vec<Effect> {
        match self.pages.next.clone() {
            Some(cursor) if !self.pages.asked => {
                self.pages.asked = true;
                let (session, page) = (self.session.clone(), Page::Before(cursor));
                vec![Effect::Ask(Question::History { session, page })]
            }
            _ => Vec::new(),
        }
    }

    fn seen(&mut self, run: &RunId, seen: RunSeen) -> Vec<Effect> {
        if self.run_mut(run).is_none() {
            return Vec::new();
        }
        match seen {
            RunSeen::Event(event) => self.event(run, &event),
            RunSeen::Lost(cause) => {
                self.away(cause);
                Vec::new()
            }
            RunSeen::Back => self.back(),
            RunSeen::Gone(failure) => {
                self.transcript.remark(Tone::Failure, self.texts.fill("term.run.gone", &[("why", &failure.text)]));
                self.transcript.turn_mut(run).into_iter().for_each(super::turn::Turn::lose);
                self.forget(run);
                Vec::new()
            }
        }
    }

    fn event(&mut self, id: &RunId, event: &RunEvent) -> Vec<Effect> {
        let at = Moment::read(&event.at).unwrap_or(self.now);
        let Some(run) = self.run_mut(id).filter(|run| event.seq > run.seq) else { return Vec::new() };
        run.seq = event.seq;
        let waiting = matches!(run.state, RunState::Sending | RunState::Queued);
        match &event.kind {
            EventKind::Queued { .. } => {
                run.state = RunState::Queued;
                return Vec::new();
            }
            // A message that is withdrawn from the queue leaves nothing on the page.
            EventKind::Ending { .. } if waiting => return Vec::new(),
            EventKind::Ended { verdict: Verdict::Aborted { .. }, .. } if waiting => return self.withdrawn(id),
            EventKind::Ending { .. } => run.state = RunState::Ending,
            EventKind::Ended { .. } => {}
            _ if waiting => {
                run.state = RunState::Running;
                run.since = at;
            }
            _ => {}
        }
        let text = run.text.clone();
        self.transcript.begin(id, &text);
        if let Some(turn) = self.transcript.turn_mut(id) {
            turn.take(&event.kind, at);
        }
        self.follow_up(id, event)
    }

    /// What an event asks for beyond the page.
    fn follow_up(&mut self, id: &RunId, event: &RunEvent) -> Vec<Effect> {
        match &event.kind {
            EventKind::ApprovalRequested { .. } => vec![Effect::Ask(Question::Approvals)],
            EventKind::ApprovalResolved { id, .. } => {
                self.approvals.retain(|asked| asked.row.id != *id);
                Vec::new()
            }
            EventKind::Ended { .. } => {
                self.forget(id);
                self.facts.exists = true;
                // What became of its sub-runs is asked at once.
                self.polls.active.hurry();
                let end = self.transcript.turn(id).and_then(|turn| turn.end.as_ref());
                if end.is_some_and(|end| end.unsettled) {
                    self.unsettled.push((id.clone(), self.now.plus(UNSETTLED)));
                }
                let wonders = self.transcript.turn(id).is_some_and(super::turn::Turn::wonders);
                let question = Question::History { session: self.session.clone(), page: Page::LastTurn };
                wonders.then_some(Effect::Ask(question)).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    /// A queued message was withdrawn: by a stop of this chat, whose answer brings its text, or by somebody else.
    fn withdrawn(&mut self, id: &RunId) -> Vec<Effect> {
        let Some(at) = self.runs.iter().position(|run| run.id == *id) else { return Vec::new() };
        let run = self.runs.remove(at);
        let covered = self.stop.as_mut().is_some_and(|stop| stop.runs.remove(id).is_some());
        match &mut self.stop {
            Some(stop) if covered && stop.awaits_texts() => stop.unreturned.push((run.id, run.text)),
            _ if run.own => {
                self.give_back([(run.id, run.text)]);
                self.say(Tone::Quiet, self.texts.say("term.notice.withdrawn"));
            }
            _ => {}
        }
        Vec::new()
    }

    /// A run is over, or nothing more can be learnt about it.
    pub(super) fn forget(&mut self, id: &RunId) {
        self.runs.retain(|run| run.id != *id);
        self.approvals.retain(|asked| asked.row.run_id != *id);
        if let Some(stop) = &mut self.stop {
            stop.runs.remove(id);
        }
    }

    /// Ends the stop when nothing is left of it, and leaves when that was wanted.
    fn conclude_stop(&mut self) -> Vec<Effect> {
        if let Some(over) = self.stop.take_if(|stop| stop.is_over()) {
            self.give_back(over.unreturned);
        }
        if self.leaving == Leaving::WhenStopped && self.stop.is_none() && !self.is_active() {
            self.leaving = Leaving::No;
            return vec![Effect::Leave];
        }
        Vec::new()
    }

    /// Begins to follow a run of the session.
    pub(super) fn adopt(&mut self, run: Run) -> Effect {
        let effect = Effect::Follow { run: run.id.clone(), after: run.seq };
        self.runs.push(run);
        effect
    }

    pub(super) fn say(&mut self, tone: Tone, text: impl Into<String>) {
        self.notice = Some(Notice { tone, text: text.into(), until: self.now.plus(NOTICE) });
    }

    /// Nobody answers.
    pub(super) fn away(&mut self, cause: String) {
        if !matches!(self.connection, Connection::Lost { .. }) {
            self.connection = Connection::Lost { since: self.now, cause };
        }
    }

    /// The daemon answers. What was left undone while it did not is done now.
    pub(super) fn back(&mut self) -> Vec<Effect> {
        let before = std::mem::replace(&mut self.connection, Connection::Live);
        if !matches!(before, Connection::Lost { .. }) {
            return Vec::new();
        }
        self.say(Tone::Quiet, self.texts.say("term.notice.back"));
        self.polls.agents = false;
        self.polls.session.hurry();
        let mut effects: Vec<Effect> =
            self.doubts.iter().map(|(run, _)| Effect::Ask(Question::Run(run.clone()))).collect();
        if let Some(stop) = &mut self.stop
            && stop.problem.take().is_some()
        {
            // Only the runs that were meant: others may have begun since.
            let force = stop.force;
            let again: Vec<Effect> = stop.runs.keys().cloned().map(|run| Effect::StopRun { run, force }).collect();
            self.note_asked(&again);
            effects.extend(again);
        }
        effects
    }

    /// Notes what a failure says about the daemon.
    pub(super) fn failed(&mut self, failure: &Failure) {
        if failure.kind == FailureKind::Away {
            self.away(failure.text.clone());
        }
    }
}
