//! Properties under random keys and responses: stops cover only active runs, the chat never exits unasked, typed text
//! is never lost.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use proptest::prelude::*;
use quell_client::daemon_client::{SendReply, StopReply};
use quell_client::test_support::receipts;
use quell_protocol::{EventKind, SessionKey};
use serde_json::json;

use super::stop_effects;
use crate::effects::{ChatEffect, ChatInput, ChatRunUpdate, DaemonFailure, DaemonFailureKind, DaemonResponse};
use crate::harness::{ChatHarness, from_json};
use crate::state::{ChatRun, ChatRunState, ChatState, Menu};
use crate::transcript::EntryBody;
use crate::turn::TurnBlock;

#[derive(Debug, Clone)]
enum TestAction {
    Key(KeyCode, KeyModifiers),
    /// Paste a word that occurs nowhere else.
    Word,
    Paste(&'static str),
    Wait(u16),
    /// Accept the oldest unanswered message in this state.
    Taken(&'static str),
    Refused(DaemonFailureKind),
    StopText,
    /// Answer the stop of the session; every queued message was withdrawn.
    StopAnswered,
    StopFailed(DaemonFailureKind),
    /// Answer the oldest stop of a single run.
    RunStopped(Option<DaemonFailureKind>),
    Begins,
    Streams,
    Ends,
    Lost,
    Back,
    Approval,
}

fn any_action() -> impl Strategy<Value = TestAction> {
    use KeyCode::{Down, Enter, Esc, PageUp, Tab, Up};
    let plain = |code| Just(TestAction::Key(code, KeyModifiers::NONE));
    let control = |c| Just(TestAction::Key(KeyCode::Char(c), KeyModifiers::CONTROL));
    prop_oneof![
        4 => plain(Esc),
        6 => plain(Enter),
        1 => plain(Tab), 1 => plain(Up), 1 => plain(Down), 1 => plain(PageUp),
        2 => control('c'), 1 => control('o'), 1 => control('d'), 1 => control('j'),
        1 => prop_oneof![plain(KeyCode::Char('y')), plain(KeyCode::Char('s')), plain(KeyCode::Char('/'))],
        6 => Just(TestAction::Word),
        1 => prop_oneof![Just("/sessions"), Just("/stop"), Just("/queue steer"), Just("/help"), Just("/quit"), Just("/new")].prop_map(TestAction::Paste),
        2 => (0_u16..2_000).prop_map(TestAction::Wait),
        4 => prop_oneof![Just("running"), Just("queued"), Just("steered")].prop_map(TestAction::Taken),
        1 => prop_oneof![Just(DaemonFailureKind::Unreachable), Just(DaemonFailureKind::Refused)].prop_map(TestAction::Refused),
        1 => Just(TestAction::StopText),
        2 => Just(TestAction::StopAnswered),
        1 => prop_oneof![Just(DaemonFailureKind::Unreachable), Just(DaemonFailureKind::Refused)].prop_map(TestAction::StopFailed),
        2 => prop_oneof![Just(None), Just(Some(DaemonFailureKind::Unreachable)), Just(Some(DaemonFailureKind::NotFound))].prop_map(TestAction::RunStopped),
        3 => Just(TestAction::Begins), 3 => Just(TestAction::Streams), 3 => Just(TestAction::Ends),
        1 => Just(TestAction::Lost), 1 => Just(TestAction::Back), 1 => Just(TestAction::Approval),
    ]
}

/// A harness, and what was typed and sent in it.
struct TestPlay {
    scene: ChatHarness,
    word_count: u32,
    /// Words typed while the input accepted them.
    words: Vec<String>,
    sending: Vec<quell_protocol::RunId>,
    /// Sessions with an unanswered stop.
    stopping: Vec<SessionKey>,
    /// Queued messages of a session when the user left it.
    queued_elsewhere: Vec<(SessionKey, Vec<(quell_protocol::RunId, String)>)>,
    /// Runs with an unanswered stop.
    stopping_runs: Vec<quell_protocol::RunId>,
}

impl TestPlay {
    fn apply_action(&mut self, act: TestAction) -> Vec<ChatEffect> {
        let scene = &mut self.scene;
        let first = scene.chat.runs.first().map(|run| run.id.clone());
        let failure = |kind| DaemonFailure { text: "no".into(), kind };
        match act {
            // Ctrl-D in a text deletes a character, as intended.
            TestAction::Key(KeyCode::Char('d'), _) if !scene.chat.composer.is_empty() => Vec::new(),
            TestAction::Key(code, modifiers) => {
                if matches!(code, KeyCode::Char(_)) && !scene.chat.composer.is_empty() {
                    scene.press_key(KeyCode::End);
                }
                scene.send_input(ChatInput::Key(KeyEvent::new(code, modifiers)))
            }
            TestAction::Word => {
                // A word inserted into another one would hide both from this test.
                if !scene.chat.composer.is_empty() && scene.chat.menu.is_none() {
                    scene.press_key(KeyCode::End);
                }
                self.word_count += 1;
                let word = format!("w{}x", self.word_count);
                if scene.chat.menu.is_none() && scene.chat.offered_commands().is_empty() {
                    self.words.push(word.clone());
                }
                scene.send_input(ChatInput::Paste(word))
            }
            TestAction::Paste(text) => {
                if scene.chat.menu.is_none() && scene.chat.composer.is_empty() { scene.send_input(ChatInput::Paste(text.into())) } else { Vec::new() }
            }
            TestAction::Wait(ms) => {
                scene.advance_time(ms.into());
                Vec::new()
            }
            TestAction::Taken(state) => self.answer_next_send(|id| Ok(SendReply::Accepted(from_json(
                json!({"runId": if state == "steered" { "other" } else { id }, "sessionKey": "work", "state": state}),
            )))),
            TestAction::Refused(kind) => self.answer_next_send(|_| Err(failure(kind))),
            TestAction::StopText => self.answer_next_send(|_| Ok(SendReply::Stopped(from_json(json!({"aborted": false, "runIds": []}))))),
            TestAction::StopAnswered if self.stopping.first().is_some_and(|of| of != scene.chat.session()) => self.stop_answered_elsewhere(),
            TestAction::StopAnswered if !self.stopping.is_empty() => {
                self.stopping.remove(0);
                let queued = scene.chat.runs.iter().filter(|run| run.state == ChatRunState::Queued);
                let withdrawn: Vec<_> = queued.map(|run| json!({"runId": run.id.as_str(), "text": run.text})).collect();
                scene.receive_stop_answer(json!({"aborted": true, "runIds": [], "withdrawn": withdrawn}))
            }
            TestAction::StopFailed(kind) if !self.stopping.is_empty() => {
                let session = self.stopping.remove(0);
                scene.respond(DaemonResponse::SessionStopped { session, result: Err(failure(kind)) })
            }
            TestAction::RunStopped(kind) if !self.stopping_runs.is_empty() => self.run_stopped(kind.map(failure)),
            TestAction::Begins => {
                let agent = quell_protocol::AgentId::parse("main").unwrap();
                first.map(|id| scene.receive_event(&id, EventKind::Started { agent })).unwrap_or_default()
            }
            TestAction::Streams => first.map(|id| scene.receive_event(&id, EventKind::TextDelta { text: "t".into() })).unwrap_or_default(),
            TestAction::Ends => first.filter(|id| !self.sending.contains(id)).map(|id| scene.receive_stopped(&id)).unwrap_or_default(),
            TestAction::Lost => first.map(|id| scene.receive_update(id, ChatRunUpdate::Disconnected("x".into()))).unwrap_or_default(),
            TestAction::Back => scene.respond(DaemonResponse::Sessions(Ok(Vec::new()))),
            TestAction::Approval => {
                let row = json!([{"id": "a1", "runId": "u.1", "sessionKey": "work", "agent": "main", "principal": "admin",
                    "callId": "c1", "tool": "shell", "arguments": {}, "requestedAt": "", "expiresAt": "", "state": "pending"}]);
                scene.receive_approvals(row)
            }
            TestAction::StopAnswered | TestAction::StopFailed(_) | TestAction::RunStopped(_) => Vec::new(),
        }
    }

    /// Answers a stop of a session that the user has left; it returns the queued texts.
    fn stop_answered_elsewhere(&mut self) -> Vec<ChatEffect> {
        let scene = &mut self.scene;
        let session = self.stopping.remove(0);
        let there = self.queued_elsewhere.iter_mut().filter(|(of, _)| *of == session);
        let texts: Vec<_> = there.flat_map(|(_, waiting)| waiting.drain(..)).collect();
        let withdrawn: Vec<_> = texts.iter().map(|(run, text)| json!({"runId": run.as_str(), "text": text})).collect();
        let result = Ok(from_json(json!({"aborted": true, "runIds": [], "withdrawn": withdrawn})));
        let effects = scene.respond(DaemonResponse::SessionStopped { session, result });
        let input = scene.chat.composer.text();
        assert!(texts.iter().all(|(_, text)| input.contains(text)), "{texts:?} did not come back: {input:?}");
        effects
    }

    fn run_stopped(&mut self, failure: Option<DaemonFailure>) -> Vec<ChatEffect> {
        let run = self.stopping_runs.remove(0);
        let receipt = StopReply::Receipt(Box::new(receipts::stopped_receipt()));
        let result = failure.map_or(Ok(receipt), Err);
        self.scene.respond(DaemonResponse::RunStopped { run, result })
    }

    /// True for an answer to a request of a session that the user has left.
    fn is_answer_elsewhere(&self, act: &TestAction) -> bool {
        let chat = &self.scene.chat;
        match act {
            TestAction::StopAnswered | TestAction::StopFailed(_) => {
                self.stopping.first().is_some_and(|of| of != chat.session())
            }
            TestAction::Taken(_) | TestAction::Refused(_) | TestAction::StopText => {
                self.sending.first().is_some_and(|id| chat.detached_sends.iter().any(|left| left.run == *id))
            }
            _ => false,
        }
    }

    fn answer_next_send(&mut self, result: impl FnOnce(&str) -> Result<SendReply, DaemonFailure>) -> Vec<ChatEffect> {
        if self.sending.is_empty() {
            return Vec::new();
        }
        let run = self.sending.remove(0);
        let result = result(run.as_str());
        self.scene.respond(DaemonResponse::Sent { run, result })
    }

    fn track_effects(&mut self, effects: &[ChatEffect]) {
        for effect in effects {
            match effect {
                ChatEffect::SendMessage { run, .. } => self.sending.push(run.clone()),
                ChatEffect::StopSession { session, .. } => self.stopping.push(session.clone()),
                ChatEffect::StopRun { run, .. } => self.stopping_runs.push(run.clone()),
                _ => {}
            }
        }
    }
}

/// All text that the user can still find: input, history, unanswered messages, transcript.
fn recoverable_text(chat: &mut ChatState) -> String {
    let mut found = chat.composer.all_recoverable_text();
    for run in &chat.runs {
        found += &format!("\n{}", run.text);
    }
    for left in &chat.detached_sends {
        found += &format!("\n{}", left.text);
    }
    for (_, text) in chat.stop.iter().flat_map(|stop| &stop.withdrawn_texts) {
        found += &format!("\n{text}");
    }
    for entry in (0..chat.transcript.len()).filter_map(|at| chat.transcript.get(at)) {
        match &entry.body {
            EntryBody::UserMessage(text) => found += &format!("\n{text}"),
            EntryBody::Turn(turn) => {
                for block in &turn.blocks {
                    if let TurnBlock::Steered(text) = block {
                        found += &format!("\n{text}");
                    }
                }
            }
            EntryBody::Remark(_) | EntryBody::HistoryReset => {}
        }
    }
    found
}

fn is_esc(act: &TestAction) -> bool {
    matches!(act, TestAction::Key(KeyCode::Esc, _))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn the_core_keeps_its_promises(acts in proptest::collection::vec(any_action(), 1..60)) {
        let mut play = TestPlay { scene: ChatHarness::new(), word_count: 0, words: Vec::new(), sending: Vec::new(), stopping: Vec::new(), queued_elsewhere: Vec::new(), stopping_runs: Vec::new() };
        for act in acts {
            let chat = &play.scene.chat;
            let (active, open) = (chat.is_active(), chat.menu.is_some() || !chat.offered_commands().is_empty());
            let (covered, wants) = (active && chat.stop_covers_all_runs(), chat.is_leaving());
            let asked = matches!(chat.menu, Some(Menu::ConfirmLeave));
            let session = chat.session().clone();
            let waits = |run: &&ChatRun| run.state == ChatRunState::Queued;
            let waiting: Vec<_> = chat.runs.iter().filter(waits).map(|run| (run.id.clone(), run.text.clone())).collect();
            let elsewhere = play.is_answer_elsewhere(&act);
            let (runs, stop) = (chat.runs.len(), chat.stop.is_some());
            let effects = play.apply_action(act.clone());
            play.track_effects(&effects);
            let stopped = stop_effects(&effects);
            if is_esc(&act) {
                prop_assert!(stopped.is_empty() || (active && !open), "{:?} from Esc while active {} open {}", stopped, active, open);
                prop_assert!(!active || open || stopped.contains(&(!covered, covered)), "{:?}, covered {}", stopped, covered);
            }
            if effects.contains(&ChatEffect::Exit) {
                let idle = !play.scene.chat.is_active();
                prop_assert!(idle && (asked || wants || !active), "left by {:?}", act);
            }
            if play.scene.chat.session() != &session {
                play.queued_elsewhere.push((session, waiting));
            }
            let chat = &play.scene.chat;
            prop_assert!(!elsewhere || (chat.runs.len(), chat.stop.is_some()) == (runs, stop), "{:?} of another session", act);
            let out = play.stopping.len() + play.stopping_runs.len() + play.sending.len();
            prop_assert!(chat.stop.is_none() || chat.is_active() || out > 0, "a stop of nothing stands after {:?}", act);
            let found = recoverable_text(&mut play.scene.chat);
            for word in &play.words {
                prop_assert!(found.contains(word.as_str()), "{} is lost by {:?} in {:?}", word, act, found);
            }
        }
        play.scene.screen_text(40, 10);
    }
}
