//! Whatever is pressed and whatever comes, in any order: a stop only of what runs, no end without a word, nothing typed lost.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use proptest::prelude::*;
use quell_protocol::{EventKind, SessionKey};
use serde_json::json;

use super::super::effects::{Answer, Effect, Failure, FailureKind, Input, RunSeen};
use super::super::scene::{Scene, read};
use super::super::state::{Chat, Menu, Run, RunState};
use super::super::transcript::Body;
use super::super::turn::Block;
use super::{ended, stops};
use crate::fake::receipts;
use crate::link::{Sent, StopReply};

/// Something that may happen.
#[derive(Debug, Clone)]
enum Act {
    Key(KeyCode, KeyModifiers),
    /// A word that stands nowhere else is typed.
    Word,
    Paste(&'static str),
    Wait(u16),
    /// The oldest message on its way is answered.
    Taken(&'static str),
    Refused(FailureKind),
    StopText,
    /// The stop of the session is answered; everything that is queued was withdrawn.
    StopAnswered,
    StopFailed(FailureKind),
    /// The oldest stop of a single run is answered.
    RunStopped(Option<FailureKind>),
    Begins,
    Streams,
    Ends,
    Lost,
    Back,
    Approval,
}

fn act() -> impl Strategy<Value = Act> {
    use KeyCode::{Down, Enter, Esc, PageUp, Tab, Up};
    let plain = |code| Just(Act::Key(code, KeyModifiers::NONE));
    let control = |c| Just(Act::Key(KeyCode::Char(c), KeyModifiers::CONTROL));
    prop_oneof![
        4 => plain(Esc),
        6 => plain(Enter),
        1 => plain(Tab), 1 => plain(Up), 1 => plain(Down), 1 => plain(PageUp),
        2 => control('c'), 1 => control('o'), 1 => control('d'), 1 => control('j'),
        1 => prop_oneof![plain(KeyCode::Char('y')), plain(KeyCode::Char('s')), plain(KeyCode::Char('/'))],
        6 => Just(Act::Word),
        1 => prop_oneof![Just("/sessions"), Just("/stop"), Just("/queue steer"), Just("/help"), Just("/quit"), Just("/new")].prop_map(Act::Paste),
        2 => (0_u16..2_000).prop_map(Act::Wait),
        4 => prop_oneof![Just("running"), Just("queued"), Just("steered")].prop_map(Act::Taken),
        1 => prop_oneof![Just(FailureKind::Away), Just(FailureKind::Refused)].prop_map(Act::Refused),
        1 => Just(Act::StopText),
        2 => Just(Act::StopAnswered),
        1 => prop_oneof![Just(FailureKind::Away), Just(FailureKind::Refused)].prop_map(Act::StopFailed),
        2 => prop_oneof![Just(None), Just(Some(FailureKind::Away)), Just(Some(FailureKind::NotFound))].prop_map(Act::RunStopped),
        3 => Just(Act::Begins), 3 => Just(Act::Streams), 3 => Just(Act::Ends),
        1 => Just(Act::Lost), 1 => Just(Act::Back), 1 => Just(Act::Approval),
    ]
}

/// A scene, and what was typed and sent in it.
struct Play {
    scene: Scene,
    typed: u32,
    /// Words that were typed while the input took them.
    words: Vec<String>,
    sending: Vec<quell_protocol::RunId>,
    /// Sessions that were told to stop and whose answers are out.
    stopping: Vec<SessionKey>,
    /// Messages that waited in a session when it was left.
    waiting_there: Vec<(SessionKey, Vec<(quell_protocol::RunId, String)>)>,
    /// Runs that were told to stop and whose answers are out.
    stopping_runs: Vec<quell_protocol::RunId>,
}

impl Play {
    fn take(&mut self, act: Act) -> Vec<Effect> {
        let scene = &mut self.scene;
        let first = scene.chat.runs.first().map(|run| run.id.clone());
        let failure = |kind| Failure { text: "no".into(), kind };
        match act {
            // Ctrl-D in a text deletes, which is what it is for.
            Act::Key(KeyCode::Char('d'), _) if !scene.chat.composer.is_empty() => Vec::new(),
            Act::Key(code, modifiers) => {
                if matches!(code, KeyCode::Char(_)) && !scene.chat.composer.is_empty() {
                    scene.key(KeyCode::End);
                }
                scene.input(Input::Key(KeyEvent::new(code, modifiers)))
            }
            Act::Word => {
                // A word that is typed into another one would hide both from this test.
                if !scene.chat.composer.is_empty() && scene.chat.menu.is_none() {
                    scene.key(KeyCode::End);
                }
                self.typed += 1;
                let word = format!("w{}x", self.typed);
                if scene.chat.menu.is_none() && scene.chat.offered().is_empty() {
                    self.words.push(word.clone());
                }
                scene.input(Input::Paste(word))
            }
            Act::Paste(text) => {
                if scene.chat.menu.is_none() && scene.chat.composer.is_empty() { scene.input(Input::Paste(text.into())) } else { Vec::new() }
            }
            Act::Wait(ms) => {
                scene.after(ms.into());
                Vec::new()
            }
            Act::Taken(state) => self.answered(|id| Ok(Sent::Accepted(read(
                json!({"runId": if state == "steered" { "other" } else { id }, "sessionKey": "work", "state": state}),
            )))),
            Act::Refused(kind) => self.answered(|_| Err(failure(kind))),
            Act::StopText => self.answered(|_| Ok(Sent::Stopped(read(json!({"aborted": false, "runIds": []}))))),
            Act::StopAnswered if self.stopping.first().is_some_and(|of| of != scene.chat.session()) => self.stop_answered_elsewhere(),
            Act::StopAnswered if !self.stopping.is_empty() => {
                self.stopping.remove(0);
                let queued = scene.chat.runs.iter().filter(|run| run.state == RunState::Queued);
                let withdrawn: Vec<_> = queued.map(|run| json!({"runId": run.id.as_str(), "text": run.text})).collect();
                scene.stop_answered(read(json!({"aborted": true, "runIds": [], "withdrawn": withdrawn})))
            }
            Act::StopFailed(kind) if !self.stopping.is_empty() => {
                let session = self.stopping.remove(0);
                scene.input(Input::Answer(Answer::SessionStopped { session, result: Err(failure(kind)) }))
            }
            Act::RunStopped(kind) if !self.stopping_runs.is_empty() => self.run_stopped(kind.map(failure)),
            Act::Begins => {
                let agent = quell_protocol::AgentId::parse("main").unwrap();
                first.map(|id| scene.event(&id, EventKind::Started { agent })).unwrap_or_default()
            }
            Act::Streams => first.map(|id| scene.event(&id, EventKind::TextDelta { text: "t".into() })).unwrap_or_default(),
            Act::Ends => first.filter(|id| !self.sending.contains(id)).map(|id| ended(scene, &id)).unwrap_or_default(),
            Act::Lost => first.map(|id| scene.input(Input::Seen(id, RunSeen::Lost("x".into())))).unwrap_or_default(),
            Act::Back => scene.input(Input::Answer(Answer::Sessions(Ok(Vec::new())))),
            Act::Approval => {
                let row = json!([{"id": "a1", "runId": "u.1", "sessionKey": "work", "agent": "main", "principal": "admin",
                    "callId": "c1", "tool": "shell", "arguments": {}, "requestedAt": "", "expiresAt": "", "state": "pending"}]);
                scene.input(Input::Answer(Answer::Approvals(Ok(read(row)))))
            }
            Act::StopAnswered | Act::StopFailed(_) | Act::RunStopped(_) => Vec::new(),
        }
    }

    /// The answer to a stop of a session that was left since: it brings what waited there.
    fn stop_answered_elsewhere(&mut self) -> Vec<Effect> {
        let scene = &mut self.scene;
        let session = self.stopping.remove(0);
        let there = self.waiting_there.iter_mut().filter(|(of, _)| *of == session);
        let texts: Vec<_> = there.flat_map(|(_, waiting)| waiting.drain(..)).collect();
        let withdrawn: Vec<_> = texts.iter().map(|(run, text)| json!({"runId": run.as_str(), "text": text})).collect();
        let result = Ok(read(json!({"aborted": true, "runIds": [], "withdrawn": withdrawn})));
        let effects = scene.input(Input::Answer(Answer::SessionStopped { session, result }));
        let input = scene.chat.composer.text();
        assert!(texts.iter().all(|(_, text)| input.contains(text)), "{texts:?} did not come back: {input:?}");
        effects
    }

    fn run_stopped(&mut self, failure: Option<Failure>) -> Vec<Effect> {
        let run = self.stopping_runs.remove(0);
        let receipt = StopReply::Receipt(Box::new(receipts::stopped()));
        let result = failure.map_or(Ok(receipt), Err);
        self.scene.input(Input::Answer(Answer::RunStopped { run, result }))
    }

    /// True for the answer to something that was asked for a session that was left since.
    fn is_answer_elsewhere(&self, act: &Act) -> bool {
        let chat = &self.scene.chat;
        match act {
            Act::StopAnswered | Act::StopFailed(_) => self.stopping.first().is_some_and(|of| of != chat.session()),
            Act::Taken(_) | Act::Refused(_) | Act::StopText => {
                self.sending.first().is_some_and(|id| chat.left_behind.iter().any(|left| left.run == *id))
            }
            _ => false,
        }
    }

    fn answered(&mut self, result: impl FnOnce(&str) -> Result<Sent, Failure>) -> Vec<Effect> {
        if self.sending.is_empty() {
            return Vec::new();
        }
        let run = self.sending.remove(0);
        let result = result(run.as_str());
        self.scene.input(Input::Answer(Answer::Sent { run, result }))
    }

    /// Keeps account of what is on its way.
    fn note(&mut self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Send { run, .. } => self.sending.push(run.clone()),
                Effect::StopSession { session, .. } => self.stopping.push(session.clone()),
                Effect::StopRun { run, .. } => self.stopping_runs.push(run.clone()),
                _ => {}
            }
        }
    }
}

/// Everything that a person could still find: input, history, messages on their way, the page.
fn findable(chat: &mut Chat) -> String {
    let mut found = chat.composer.findable();
    for run in &chat.runs {
        found += &format!("\n{}", run.text);
    }
    for left in &chat.left_behind {
        found += &format!("\n{}", left.text);
    }
    for (_, text) in chat.stop.iter().flat_map(|stop| &stop.unreturned) {
        found += &format!("\n{text}");
    }
    for entry in (0..chat.transcript.len()).filter_map(|at| chat.transcript.get(at)) {
        match &entry.body {
            Body::Said(text) => found += &format!("\n{text}"),
            Body::Turn(turn) => {
                for block in &turn.blocks {
                    if let Block::Steered(text) = block {
                        found += &format!("\n{text}");
                    }
                }
            }
            Body::Remark(_) | Body::Emptied => {}
        }
    }
    found
}

fn is_esc(act: &Act) -> bool {
    matches!(act, Act::Key(KeyCode::Esc, _))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn the_core_keeps_its_promises(acts in proptest::collection::vec(act(), 1..60)) {
        let mut play = Play { scene: Scene::new(), typed: 0, words: Vec::new(), sending: Vec::new(), stopping: Vec::new(), waiting_there: Vec::new(), stopping_runs: Vec::new() };
        for act in acts {
            let chat = &play.scene.chat;
            let (active, open) = (chat.is_active(), chat.menu.is_some() || !chat.offered().is_empty());
            let (covered, wants) = (active && chat.is_stopping_all(), chat.is_leaving());
            let asked = matches!(chat.menu, Some(Menu::Leave));
            let session = chat.session().clone();
            let waits = |run: &&Run| run.state == RunState::Queued;
            let waiting: Vec<_> = chat.runs.iter().filter(waits).map(|run| (run.id.clone(), run.text.clone())).collect();
            let elsewhere = play.is_answer_elsewhere(&act);
            let (runs, stop) = (chat.runs.len(), chat.stop.is_some());
            let effects = play.take(act.clone());
            play.note(&effects);
            let stopped = stops(&effects);
            if is_esc(&act) {
                prop_assert!(stopped.is_empty() || (active && !open), "{:?} from Esc while active {} open {}", stopped, active, open);
                prop_assert!(!active || open || stopped.contains(&(!covered, covered)), "{:?}, covered {}", stopped, covered);
            }
            if effects.contains(&Effect::Leave) {
                let idle = !play.scene.chat.is_active();
                prop_assert!(idle && (asked || wants || !active), "left by {:?}", act);
            }
            if play.scene.chat.session() != &session {
                play.waiting_there.push((session, waiting));
            }
            let chat = &play.scene.chat;
            prop_assert!(!elsewhere || (chat.runs.len(), chat.stop.is_some()) == (runs, stop), "{:?} of another session", act);
            let out = play.stopping.len() + play.stopping_runs.len() + play.sending.len();
            prop_assert!(chat.stop.is_none() || chat.is_active() || out > 0, "a stop of nothing stands after {:?}", act);
            let found = findable(&mut play.scene.chat);
            for word in &play.words {
                prop_assert!(found.contains(word.as_str()), "{} is lost by {:?} in {:?}", word, act, found);
            }
        }
        play.scene.screen(40, 10);
    }
}
