//! What a person sets off: messages, stops, commands, answers to approvals, leaving.

use quell_protocol::api::{OnBusy, SendRequest};
use quell_protocol::approval::Decision;
use quell_protocol::{RunId, SessionKey};

use super::commands::{self, Command, Line};
use super::effects::{Effect, Question, Scroll};
use super::state::{Chat, Details, Facts, Leaving, Menu, Pages, PickList, Run, RunState, Stop, StopAsked};
use super::transcript::{Tone, Transcript};

/// What the daemon takes for a stop on every door.
pub(super) const STOP_TEXT: &str = "/stop";

impl Chat {
    /// Enter: what stands in the input is a command or a message.
    pub(super) fn submit(&mut self) -> Vec<Effect> {
        let text = self.composer.text().to_owned();
        if text.trim().is_empty() {
            return Vec::new();
        }
        match commands::read(&text) {
            Line::Text => {
                self.composer.take();
                self.send(text)
            }
            Line::Unknown(word) => {
                let word = word.to_owned();
                self.say(Tone::Failure, self.texts.fill("term.command.unknown", &[("command", &word)]));
                Vec::new()
            }
            Line::Command(command, argument) => {
                let argument = argument.to_owned();
                self.composer.take();
                self.command(command, &argument)
            }
        }
    }

    fn send(&mut self, text: String) -> Vec<Effect> {
        let Some(id) = self.names.run() else { return Vec::new() };
        let request = SendRequest {
            text: text.clone(),
            agent: self.agent.clone(),
            idempotency_key: Some(id.clone()),
            on_busy: Some(self.policy),
            timeout_ms: None,
            literal: false,
        };
        let (state, since, own) = (RunState::Sending, self.now, true);
        self.runs.push(Run { id: id.clone(), text, state, since, seq: 0, followed: false, own });
        self.polls.session.hurry();
        let (session, request) = (self.session.clone(), Box::new(request));
        vec![Effect::Send { run: id, session, request }, Effect::Scroll(Scroll::Bottom)]
    }

    fn command(&mut self, command: Command, argument: &str) -> Vec<Effect> {
        match command {
            Command::Stop => {
                // A stop text covers more than Esc: also what earlier runs left in the background.
                self.cover_all();
                let effects = self.send(STOP_TEXT.into());
                self.note_asked(&effects);
                effects
            }
            Command::New => self.new_session(),
            Command::Model if argument.is_empty() => self.pick(PickList::Models),
            Command::Model => self.set_model(argument.to_owned()),
            Command::Agents => self.pick(PickList::Agents),
            Command::Sessions => self.pick(PickList::Sessions(None)),
            Command::Runs => self.pick(PickList::Runs(None)),
            Command::Approve => self.decide_meant(Decision::Allow),
            Command::Deny => self.decide_meant(Decision::Deny),
            Command::Hold => self.hold_command(argument),
            Command::Queue => self.queue_command(argument),
            Command::Help => {
                self.menu = Some(Menu::Help);
                Vec::new()
            }
            Command::Quit => self.quit(),
        }
    }

    pub(super) fn set_model(&mut self, model: String) -> Vec<Effect> {
        vec![Effect::SetModel { session: self.session.clone(), model }]
    }

    fn new_session(&mut self) -> Vec<Effect> {
        match self.names.session() {
            Ok(key) => self.open(key),
            Err(bad) => {
                self.say(Tone::Failure, bad.to_string());
                Vec::new()
            }
        }
    }

    /// Turns to another session. What runs in the old one goes on there; what stands in the input stays.
    pub(super) fn open(&mut self, session: SessionKey) -> Vec<Effect> {
        if session == self.session {
            return Vec::new();
        }
        let going_on = self.runs.len();
        let old = std::mem::replace(&mut self.session, session);
        self.transcript = Transcript::default();
        self.leave_behind(&old);
        self.looking.clear();
        self.approvals.clear();
        // Whoever goes on elsewhere does not wait for an end to leave.
        self.leaving = Leaving::No;
        self.facts = Facts::default();
        self.pages = Pages::default();
        self.polls.session.hurry();
        self.polls.approvals.hurry();
        if going_on > 0 {
            let text = self.texts.count("term.notice.goes_on.one", "term.notice.goes_on.many", going_on);
            self.say(Tone::Quiet, format!("{text}: {old}"));
        }
        vec![Effect::FollowNone, Effect::Scroll(Scroll::Bottom), Effect::Ask(Question::Session(self.session.clone()))]
    }

    fn hold_command(&mut self, argument: &str) -> Vec<Effect> {
        match argument {
            "on" => vec![Effect::SetHold(true)],
            "off" => vec![Effect::SetHold(false)],
            "" => {
                let key = if self.hold.held { "term.notice.hold_is_on" } else { "term.notice.hold_is_off" };
                self.say(Tone::Quiet, self.texts.say(key));
                Vec::new()
            }
            _ => self.misused("/hold", argument),
        }
    }

    fn queue_command(&mut self, argument: &str) -> Vec<Effect> {
        self.policy = match argument {
            "queue" => OnBusy::Queue,
            "steer" => OnBusy::Steer,
            "interrupt" => OnBusy::Interrupt,
            "" => return self.next_policy(),
            _ => return self.misused("/queue", argument),
        };
        self.say(Tone::Quiet, self.policy_words());
        Vec::new()
    }

    /// A command that makes no sense comes back to be mended.
    fn misused(&mut self, name: &str, argument: &str) -> Vec<Effect> {
        self.composer.put_back(&[format!("{name} {argument}")]);
        self.say(Tone::Failure, self.texts.fill("term.command.misused", &[("command", name)]));
        Vec::new()
    }

    pub(super) fn next_policy(&mut self) -> Vec<Effect> {
        self.policy = match self.policy {
            OnBusy::Queue => OnBusy::Steer,
            OnBusy::Steer => OnBusy::Interrupt,
            OnBusy::Interrupt | OnBusy::Reject => OnBusy::Queue,
        };
        self.say(Tone::Quiet, self.policy_words());
        Vec::new()
    }

    /// What a message does while a run is active.
    pub(super) fn policy_words(&self) -> &'static str {
        self.texts.say(match self.policy {
            OnBusy::Queue => "term.policy.queue",
            OnBusy::Steer => "term.policy.steer",
            OnBusy::Interrupt | OnBusy::Reject => "term.policy.interrupt",
        })
    }

    /// Stops what runs in the session: gently, or with force what is being stopped already. Nothing when nothing runs.
    pub(super) fn press_stop(&mut self) -> Vec<Effect> {
        if !self.is_active() {
            return Vec::new();
        }
        let effects = if self.is_stopping_all() { self.force() } else { self.stop_gently() };
        self.note_asked(&effects);
        effects
    }

    fn stop_gently(&mut self) -> Vec<Effect> {
        self.cover_all();
        let force = false;
        let sending = self.runs.iter().filter(|run| run.state == RunState::Sending).map(|run| run.id.clone());
        // A message on its way is not yet of the session; its run is stopped by its id, which the daemon keeps until it comes.
        let mut effects: Vec<Effect> = sending.map(|run| Effect::StopRun { run, force }).collect();
        effects.push(Effect::StopSession { session: self.session.clone(), force });
        effects
    }

    /// Forces the runs that were asked gently, each by its id: another one may have begun in the session that nobody here has
    /// seen, and it was never asked.
    fn force(&mut self) -> Vec<Effect> {
        let Some(stop) = &mut self.stop else { return Vec::new() };
        stop.force = true;
        stop.runs.keys().cloned().map(|run| Effect::StopRun { run, force: true }).collect()
    }

    /// True while a stop is on its way that covers everything that runs.
    pub(super) fn is_stopping_all(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| self.runs.iter().all(|run| stop.runs.contains_key(&run.id)))
    }

    fn cover_all(&mut self) {
        let all: Vec<RunId> = self.runs.iter().map(|run| run.id.clone()).collect();
        if !all.is_empty() {
            self.cover(&all);
        }
    }

    /// Notes what goes out for the stop: it is not over before all of that is answered.
    pub(super) fn note_asked(&mut self, effects: &[Effect]) {
        let asked = effects.iter().filter_map(|effect| match effect {
            Effect::StopSession { .. } => Some(StopAsked::Session),
            Effect::StopRun { run, .. } => Some(StopAsked::Run(run.clone())),
            Effect::Send { run, .. } => Some(StopAsked::Text(run.clone())),
            _ => None,
        });
        if let Some(stop) = &mut self.stop {
            stop.out.extend(asked);
        }
    }

    /// An answer came. True when it belongs to the stop of this session.
    pub(super) fn note_answered(&mut self, asked: &StopAsked) -> bool {
        let Some(stop) = &mut self.stop else { return false };
        let at = stop.out.iter().position(|out| out == asked);
        at.map(|at| stop.out.swap_remove(at)).is_some()
    }

    /// Counts runs of the session as being stopped; what is none of them is not this session's to count.
    pub(super) fn cover(&mut self, runs: &[RunId]) {
        let now = self.now;
        let live: Vec<RunId> = self.runs.iter().map(|run| run.id.clone()).filter(|run| runs.contains(run)).collect();
        if live.is_empty() {
            return;
        }
        let stop = self.stop.get_or_insert_with(|| Stop::new(now));
        for run in live {
            stop.runs.entry(run).or_default();
        }
        self.polls.held.hurry();
    }

    /// Answers the approval that was on the screen when the command was begun. It may have been answered elsewhere meanwhile:
    /// then another one is the first, and nobody has read that.
    fn decide_meant(&mut self, decision: Decision) -> Vec<Effect> {
        let Some(asked) = self.approval() else { return self.decide(decision) };
        if self.meant.as_ref() == Some(&asked.row.id) {
            return self.decide(decision);
        }
        let tool = crate::words::one_line(&asked.row.tool, 60);
        self.say(Tone::Failure, self.texts.fill("term.notice.other_approval", &[("tool", &tool)]));
        Vec::new()
    }

    /// Answers the approval that waits longest.
    pub(super) fn decide(&mut self, decision: Decision) -> Vec<Effect> {
        let Some(asked) = self.approvals.iter_mut().find(|asked| !asked.answered) else {
            self.say(Tone::Quiet, self.texts.say("term.notice.no_approval"));
            return Vec::new();
        };
        asked.answered = true;
        vec![Effect::AnswerApproval { id: asked.row.id.clone(), decision }]
    }

    /// Ctrl-C: clears the input, then stops, then asks whether to leave.
    pub(super) fn interrupt(&mut self) -> Vec<Effect> {
        match self.menu {
            Some(Menu::Leave) if self.is_active() => return Vec::new(),
            Some(Menu::Leave) => return vec![Effect::Leave],
            Some(Menu::Help | Menu::Picker(_)) => {
                self.menu = None;
                return Vec::new();
            }
            None => {}
        }
        if !self.composer.is_empty() {
            self.composer.clear();
            return Vec::new();
        }
        if self.is_active() && !self.is_stopping_all() {
            return self.press_stop();
        }
        self.menu = Some(Menu::Leave);
        Vec::new()
    }

    /// `/quit`: leaves, and asks first while something runs.
    pub(super) fn quit(&mut self) -> Vec<Effect> {
        if !self.is_active() {
            return vec![Effect::Leave];
        }
        self.menu = Some(Menu::Leave);
        Vec::new()
    }

    /// Stops everything and leaves when it is over.
    pub(super) fn stop_and_leave(&mut self) -> Vec<Effect> {
        self.menu = None;
        self.leaving = Leaving::WhenStopped;
        if self.is_stopping_all() { Vec::new() } else { self.press_stop() }
    }

    pub(super) fn toggle_details(&mut self) {
        self.details = match self.details {
            Details::Folded => Details::Open,
            Details::Open => Details::Folded,
        };
    }
}
