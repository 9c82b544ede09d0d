//! Test harness: send keys, events and responses to a chat and read its screen.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use quell_client::daemon_client::SendReply;
use quell_client::term::{ColorMode, Glyphs, Language};
use quell_client::test_support::daemon::run_view;
use quell_client::test_support::receipts;
use quell_protocol::{AgentId, EventKind, Receipt, RunEvent, RunId, SessionKey};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::effects::{ChatEffect, ChatInput, ChatRunUpdate, DaemonFailure, DaemonResponse, HistorySlice};
use crate::renderer::ChatRenderer;
use crate::state::{ChatIdGenerator, ChatState};
use crate::texts::Texts;
use crate::theme::TerminalCapabilities;
use crate::unix_millis::UnixMillis;

/// 2026-03-01T12:00:00Z, the start time of every test.
pub(crate) const NOON: UnixMillis = UnixMillis(1_772_366_400_000);

pub(crate) struct ChatHarness {
    pub(crate) chat: ChatState,
    pub(crate) renderer: ChatRenderer,
    pub(crate) now: UnixMillis,
    seq: u64,
}

pub(crate) fn from_json<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn run_id(id: &str) -> RunId {
    RunId::parse(id).unwrap()
}

impl ChatHarness {
    /// A connected chat in session `work`, with agent `main` and its child `scout`.
    pub(crate) fn new() -> Self {
        Self::with_language(Language::English)
    }

    pub(crate) fn with_language(language: Language) -> Self {
        let names = ChatIdGenerator {
            run_prefix: "u".into(),
            session_prefix: "cli:2026-03-01-abcd".into(),
            session_count: 0,
            run_count: 0,
        };
        let session = SessionKey::parse("work").unwrap();
        let chat = ChatState::new(Texts(language), names, session, None);
        let mut harness = Self { chat, renderer: ChatRenderer::default(), now: NOON, seq: 0 };
        harness.send_input(ChatInput::Tick);
        harness.respond(DaemonResponse::Agents(Ok(from_json(json!([
            {"id": "main", "model": "openai/gpt-5", "children": ["scout"], "computeStatus": "idle", "activeRuns": [],
             "default": true},
            {"id": "scout", "model": "openai/gpt-5-mini", "parent": "main", "children": [], "computeStatus": "waiting_llm",
             "activeRuns": ["r9"], "default": false},
        ])))));
        harness
    }

    pub(crate) fn send_input(&mut self, input: ChatInput) -> Vec<ChatEffect> {
        self.chat.update(input, self.now)
    }

    pub(crate) fn respond(&mut self, response: DaemonResponse) -> Vec<ChatEffect> {
        self.send_input(ChatInput::Response(response))
    }

    pub(crate) fn receive_update(&mut self, run: RunId, update: ChatRunUpdate) -> Vec<ChatEffect> {
        self.send_input(ChatInput::RunUpdate(run, update))
    }

    pub(crate) fn advance_time(&mut self, ms: u64) -> &mut Self {
        self.now = UnixMillis(self.now.0 + ms);
        self.send_input(ChatInput::Tick);
        self
    }

    pub(crate) fn press_key(&mut self, code: KeyCode) -> Vec<ChatEffect> {
        self.send_input(ChatInput::Key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    pub(crate) fn press_control(&mut self, c: char) -> Vec<ChatEffect> {
        self.send_input(ChatInput::Key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL)))
    }

    pub(crate) fn press_esc(&mut self) -> Vec<ChatEffect> {
        self.press_key(KeyCode::Esc)
    }

    pub(crate) fn type_text(&mut self, text: &str) {
        for c in text.chars() {
            self.press_key(KeyCode::Char(c));
        }
    }

    /// Types a line and sends it; returns the effects.
    pub(crate) fn submit_text(&mut self, text: &str) -> Vec<ChatEffect> {
        self.type_text(text);
        self.press_key(KeyCode::Enter)
    }

    /// Sends a message; the daemon accepts it as this run, in this state.
    pub(crate) fn submit_accepted(&mut self, text: &str, state: &str) -> RunId {
        let effects = self.submit_text(text);
        let id = sent_run_id(&effects).unwrap_or_else(|| panic!("nothing was sent: {effects:?}"));
        let answer = json!({"runId": id.as_str(), "sessionKey": self.chat.session().as_str(), "state": state});
        self.respond(DaemonResponse::Sent { run: id.clone(), result: Ok(SendReply::Accepted(from_json(answer))) });
        id
    }

    /// Sends a message whose run starts at once and waits for the model.
    pub(crate) fn submit_running(&mut self, text: &str) -> RunId {
        let id = self.submit_accepted(text, "running");
        self.receive_event(&id, EventKind::Started { agent: AgentId::parse("main").unwrap() });
        self.receive_event(&id, EventKind::StepStarted { step: 1 });
        id
    }

    /// A chat with this message, whose run waits for the model.
    pub(crate) fn running(text: &str) -> (Self, RunId) {
        let mut harness = Self::new();
        let id = harness.submit_running(text);
        (harness, id)
    }

    pub(crate) fn receive_event(&mut self, id: &RunId, kind: EventKind) -> Vec<ChatEffect> {
        self.seq += 1;
        let at = jiff::Timestamp::from_millisecond(self.now.0.try_into().unwrap()).unwrap().to_string();
        let session_key = self.chat.session().clone();
        let event = RunEvent { run_id: id.clone(), session_key, seq: self.seq, at, kind };
        self.receive_update(id.clone(), ChatRunUpdate::Event(Box::new(event)))
    }

    pub(crate) fn receive_text(&mut self, id: &RunId, text: &str) {
        self.receive_event(id, EventKind::TextDelta { text: text.into() });
    }

    pub(crate) fn receive_tool_started(&mut self, id: &RunId, call: &str, tool: &str, arguments: Value) {
        let kind = json!({"type": "tool.started", "callId": call, "tool": tool, "arguments": arguments});
        self.receive_event(id, from_json(kind));
    }

    pub(crate) fn receive_tool_ended(&mut self, id: &RunId, call: &str, end: &str, output: &str) {
        let kind = json!({"type": "tool.ended", "callId": call, "end": end, "output": output, "ms": 2100.0});
        self.receive_event(id, from_json(kind));
    }

    /// The end of a run after one step.
    pub(crate) fn receive_end(&mut self, id: &RunId, receipt: Receipt) -> Vec<ChatEffect> {
        let (verdict, receipt) = (receipt.verdict.clone(), Box::new(receipt));
        self.receive_event(id, EventKind::Ended { verdict, receipt, steps: 1, text: None })
    }

    pub(crate) fn receive_stopped(&mut self, id: &RunId) -> Vec<ChatEffect> {
        self.receive_end(id, receipts::stopped_receipt())
    }

    pub(crate) fn receive_stop_answer(&mut self, answer: Value) -> Vec<ChatEffect> {
        let session = self.chat.session().clone();
        self.respond(DaemonResponse::SessionStopped { session, result: Ok(from_json(answer)) })
    }

    pub(crate) fn receive_stop_failure(&mut self, failure: DaemonFailure) -> Vec<ChatEffect> {
        let session = self.chat.session().clone();
        self.respond(DaemonResponse::SessionStopped { session, result: Err(failure) })
    }

    /// The failure to send the message of this run.
    pub(crate) fn receive_unsent(&mut self, run: RunId, failure: DaemonFailure) -> Vec<ChatEffect> {
        self.respond(DaemonResponse::Sent { run, result: Err(failure) })
    }

    /// The view of a run, with the fields that the test changes.
    pub(crate) fn receive_run(&mut self, run: &str, change: Value) -> Vec<ChatEffect> {
        self.respond(DaemonResponse::Run { run: run_id(run), result: Ok(from_json(run_view(run, change))) })
    }

    pub(crate) fn receive_active_runs(&mut self, rows: Value) -> Vec<ChatEffect> {
        self.respond(DaemonResponse::ActiveRuns(Ok(from_json(rows))))
    }

    pub(crate) fn receive_approvals(&mut self, rows: Value) -> Vec<ChatEffect> {
        self.respond(DaemonResponse::Approvals(Ok(from_json(rows))))
    }

    pub(crate) fn receive_history(&mut self, page: HistorySlice, answer: Value) -> Vec<ChatEffect> {
        let session = self.chat.session().clone();
        self.respond(DaemonResponse::History { session, page, result: Ok(from_json(answer)) })
    }

    /// The screen without colour.
    pub(crate) fn screen_text(&mut self, columns: u16, rows: u16) -> String {
        self.screen_text_with(columns, rows, TerminalCapabilities { color: ColorMode::Never, glyphs: Glyphs::Unicode })
    }

    pub(crate) fn screen_text_with(&mut self, columns: u16, rows: u16, look: TerminalCapabilities) -> String {
        let buffer = self.render_buffer(columns, rows, look);
        let line = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        let lines: Vec<String> = (0..rows).map(|y| strip_wide_padding(line(y).trim_end())).collect();
        collapse_empty_rows(&lines)
    }

    pub(crate) fn render_buffer(&mut self, columns: u16, rows: u16, look: TerminalCapabilities) -> Buffer {
        let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
        self.renderer.render_frame(&self.chat, &mut buffer);
        look.degrade_buffer(&mut buffer);
        buffer
    }
}

pub(crate) fn sent_run_id(effects: &[ChatEffect]) -> Option<RunId> {
    effects.iter().find_map(|effect| match effect {
        ChatEffect::SendMessage { run, .. } => Some(run.clone()),
        _ => None,
    })
}

/// The cell after a wide character holds a space in the buffer that no terminal shows.
fn strip_wide_padding(line: &str) -> String {
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

/// Replaces runs of empty rows by their number, so that a snapshot of a large window stays readable.
fn collapse_empty_rows(lines: &[String]) -> String {
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
