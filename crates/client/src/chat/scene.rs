//! A chat under the hands of a test: keys, events and answers go in, effects are kept, and the screen can be read.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use quell_protocol::api::{SendAnswer, StopAnswer};
use quell_protocol::{AgentId, EventKind, RunEvent, RunId, SessionKey};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::clock::Moment;
use super::effects::{Answer, Effect, Input, RunSeen};
use super::look::Look;
use super::painter::Painter;
use super::state::{Chat, Names};
use super::texts::Texts;
use crate::link::Sent;
use crate::term::{Color, Glyphs, Language};

/// Noon of the first of March 2026, when every scene plays.
pub(super) const NOON: Moment = Moment(1_772_366_400_000);

pub(super) struct Scene {
    pub(super) chat: Chat,
    pub(super) painter: Painter,
    pub(super) now: Moment,
    seq: u64,
}

pub(super) fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub(super) fn run(id: &str) -> RunId {
    RunId::parse(id).unwrap()
}

impl Scene {
    /// A connected chat in session `work`, with agents `main` and below it `scout`.
    pub(super) fn new() -> Self {
        Self::speaking(Language::English)
    }

    pub(super) fn speaking(language: Language) -> Self {
        let names = Names { unique: "u".into(), session: "cli:2026-03-01-abcd".into(), sessions: 0, runs: 0 };
        let session = SessionKey::parse("work").unwrap();
        let chat = Chat::new(Texts(language), names, session, None);
        let mut scene = Self { chat, painter: Painter::default(), now: NOON, seq: 0 };
        scene.input(Input::Tick);
        scene.input(Input::Answer(Answer::Agents(Ok(read(json!([
            {"id": "main", "model": "openai/gpt-5", "children": ["scout"], "computeStatus": "idle", "activeRuns": [],
             "default": true},
            {"id": "scout", "model": "openai/gpt-5-mini", "parent": "main", "children": [], "computeStatus": "waiting_llm",
             "activeRuns": ["r9"], "default": false},
        ]))))));
        scene
    }

    pub(super) fn input(&mut self, input: Input) -> Vec<Effect> {
        self.chat.update(input, self.now)
    }

    /// Lets time pass.
    pub(super) fn after(&mut self, ms: u64) -> &mut Self {
        self.now = Moment(self.now.0 + ms);
        self.input(Input::Tick);
        self
    }

    pub(super) fn key(&mut self, code: KeyCode) -> Vec<Effect> {
        self.input(Input::Key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    pub(super) fn control(&mut self, c: char) -> Vec<Effect> {
        self.input(Input::Key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL)))
    }

    pub(super) fn esc(&mut self) -> Vec<Effect> {
        self.key(KeyCode::Esc)
    }

    pub(super) fn type_in(&mut self, text: &str) {
        for c in text.chars() {
            self.key(KeyCode::Char(c));
        }
    }

    /// Types a line and sends it; gives what that set off.
    pub(super) fn say(&mut self, text: &str) -> Vec<Effect> {
        self.type_in(text);
        self.key(KeyCode::Enter)
    }

    /// Sends a message that the daemon takes as this run, in this state.
    pub(super) fn sent(&mut self, text: &str, state: &str) -> RunId {
        let effects = self.say(text);
        let id = sent_run(&effects).unwrap_or_else(|| panic!("nothing was sent: {effects:?}"));
        let answer = SendAnswer {
            run_id: id.clone(),
            session_key: self.chat.session().clone(),
            state: state.into(),
            message_id: None,
        };
        self.input(Input::Answer(Answer::Sent { run: id.clone(), result: Ok(Sent::Accepted(answer)) }));
        id
    }

    /// Sends a message whose run begins at once and waits for the model.
    pub(super) fn running(&mut self, text: &str) -> RunId {
        let id = self.sent(text, "running");
        self.event(&id, EventKind::Started { agent: AgentId::parse("main").unwrap() });
        self.event(&id, EventKind::StepStarted { step: 1 });
        id
    }

    pub(super) fn event(&mut self, id: &RunId, kind: EventKind) -> Vec<Effect> {
        self.seq += 1;
        let at = jiff::Timestamp::from_millisecond(self.now.0.try_into().unwrap()).unwrap().to_string();
        let session_key = self.chat.session().clone();
        let event = RunEvent { run_id: id.clone(), session_key, seq: self.seq, at, kind };
        self.input(Input::Seen(id.clone(), RunSeen::Event(Box::new(event))))
    }

    pub(super) fn text(&mut self, id: &RunId, text: &str) {
        self.event(id, EventKind::TextDelta { text: text.into() });
    }

    pub(super) fn tool(&mut self, id: &RunId, call: &str, tool: &str, arguments: Value) {
        let kind = json!({"type": "tool.started", "callId": call, "tool": tool, "arguments": arguments});
        self.event(id, read(kind));
    }

    pub(super) fn tool_over(&mut self, id: &RunId, call: &str, end: &str, output: &str) {
        let kind = json!({"type": "tool.ended", "callId": call, "end": end, "output": output, "ms": 2100.0});
        self.event(id, read(kind));
    }

    /// The daemon answers the stop of the session.
    pub(super) fn stop_answered(&mut self, answer: StopAnswer) -> Vec<Effect> {
        let session = self.chat.session().clone();
        self.input(Input::Answer(Answer::SessionStopped { session, result: Ok(answer) }))
    }

    /// What the screen shows, without colour.
    pub(super) fn screen(&mut self, columns: u16, rows: u16) -> String {
        self.screen_in(columns, rows, Look { color: Color::Never, glyphs: Glyphs::Unicode })
    }

    pub(super) fn screen_in(&mut self, columns: u16, rows: u16, look: Look) -> String {
        let buffer = self.picture(columns, rows, look);
        let mut lines: Vec<String> = (0..rows)
            .map(|y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned())
            .collect();
        lines = lines.into_iter().map(|line| without_padding(&line)).collect();
        squeeze(&lines)
    }

    pub(super) fn picture(&mut self, columns: u16, rows: u16, look: Look) -> Buffer {
        let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
        self.painter.paint(&self.chat, &mut buffer);
        look.fit(&mut buffer);
        buffer
    }
}

/// The run that an effect sends.
pub(super) fn sent_run(effects: &[Effect]) -> Option<RunId> {
    effects.iter().find_map(|effect| match effect {
        Effect::Send { run, .. } => Some(run.clone()),
        _ => None,
    })
}

/// The cell behind a wide character holds a space of the buffer that no terminal shows.
fn without_padding(line: &str) -> String {
    let mut out = String::new();
    let mut skip = false;
    for c in line.chars() {
        if std::mem::take(&mut skip) && c == ' ' {
            continue;
        }
        skip = unicode_width::UnicodeWidthChar::width(c) == Some(2);
        out.push(c);
    }
    out
}

/// Many empty rows are counted, so that a snapshot of a large window stays readable.
fn squeeze(lines: &[String]) -> String {
    let mut shown = String::new();
    let mut at = 0;
    while at < lines.len() {
        let empty = lines[at..].iter().take_while(|line| line.is_empty()).count();
        if empty > 3 {
            shown.push_str(&format!("~ {empty} empty rows\n"));
            at += empty;
        } else {
            shown.push_str(&lines[at]);
            shown.push('\n');
            at += 1;
        }
    }
    shown
}
