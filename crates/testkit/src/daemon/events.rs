//! The events of a run as a client sees them, and rules for their order.

use std::collections::VecDeque;
use std::time::Instant;

use reqwest::Response;
use serde_json::Value;

use crate::WAIT_TIMEOUT;
use crate::or_fail::OrFail as _;
use crate::sse::{TestSseDecoder, TestSseFrame};

/// Events that may come between `run.ending` and `run.ended`.
const ALLOWED_AFTER_ENDING: &[&str] = &["tool.output", "tool.ended", "approval.resolved", "usage", "run.snapshot"];

#[derive(Debug, Clone)]
pub struct ReceivedEvent {
    pub seq: u64,
    /// The event name of its frame.
    pub kind: String,
    pub data: Value,
    pub at: Instant,
}

#[derive(Debug)]
pub struct TestRunEventStream {
    response: Response,
    decoder: TestSseDecoder,
    pending: VecDeque<ReceivedEvent>,
    log: TestRunEventLog,
}

impl TestRunEventStream {
    pub(super) fn new(response: Response, after: u64) -> Self {
        let log = TestRunEventLog { after, events: Vec::new() };
        Self { response, decoder: TestSseDecoder::default(), pending: VecDeque::new(), log }
    }

    /// The next event; `None` when the stream has ended.
    ///
    /// # Panics
    /// When no event comes in time, the stream breaks, or a frame is invalid.
    pub async fn next(&mut self) -> Option<ReceivedEvent> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                self.log.events.push(event.clone());
                return Some(event);
            }
            match tokio::time::timeout(WAIT_TIMEOUT, self.response.chunk()).await {
                Ok(Ok(Some(bytes))) => self.pending.extend(self.decoder.push(&bytes).into_iter().map(parse_event)),
                Ok(Ok(None)) => return None,
                Ok(Err(error)) => panic!("the events broke off: {error:?}\n{:#?}", self.log.kinds()),
                Err(_) => panic!("no event for {WAIT_TIMEOUT:?} after {:#?}", self.log.kinds()),
            }
        }
    }

    /// Reads until an event of this type.
    pub async fn wait_for(&mut self, kind: &str) -> ReceivedEvent {
        while let Some(event) = self.next().await {
            if event.kind == kind {
                return event;
            }
        }
        panic!("the events ended without {kind}: {:#?}", self.log.kinds())
    }

    /// Reads to the end; returns all events since the stream was opened.
    ///
    /// # Cancel safety
    /// Not safe: events read so far are lost.
    pub async fn read_to_end(mut self) -> TestRunEventLog {
        while self.next().await.is_some() {}
        self.log
    }
}

fn parse_event(frame: TestSseFrame) -> ReceivedEvent {
    let seq = frame.id.parse().or_fail(format_args!("an event without a number as id: {frame:?}"));
    let data = serde_json::from_str(&frame.data).or_fail(format_args!("an event without JSON: {frame:?}"));
    ReceivedEvent { seq, kind: frame.event, data, at: Instant::now() }
}

#[derive(Debug, Clone)]
pub struct TestRunEventLog {
    /// The `seq` after which the stream was opened.
    pub after: u64,
    pub events: Vec<ReceivedEvent>,
}

impl TestRunEventLog {
    pub fn kinds(&self) -> Vec<&str> {
        self.events.iter().map(|event| event.kind.as_str()).collect()
    }

    pub fn of_kind(&self, kind: &str) -> Vec<&ReceivedEvent> {
        self.events.iter().filter(|event| event.kind == kind).collect()
    }

    pub fn text(&self) -> String {
        self.of_kind("text.delta").iter().filter_map(|event| event.data.get("text")?.as_str()).collect()
    }

    /// The verdict of the end, such as `aborted`.
    pub fn verdict(&self) -> &str {
        let ended = self.events.last().and_then(|event| event.data.pointer("/verdict/kind")?.as_str());
        ended.or_fail(format_args!("no verdict at the end of {:#?}", self.events))
    }

    pub fn receipt(&self) -> &Value {
        let receipt = self.events.last().and_then(|event| event.data.get("receipt"));
        receipt.or_fail(format_args!("no receipt at the end of {:#?}", self.events))
    }

    /// Fails the test if the log breaks a rule.
    pub fn assert_valid(&self) {
        let faults = self.violations();
        assert!(faults.is_empty(), "{faults:#?}\n{:#?}", self.events);
    }

    /// All broken rules. `seq` rises, with gaps only before a snapshot. There is exactly one end, and it is last. There
    /// is at most one ending before it, and exactly one in a complete log. No stream data follows the ending. There is
    /// one verdict. Each started tool ends once.
    pub fn violations(&self) -> Vec<String> {
        let mut faults = Vec::new();
        self.check_frames(&mut faults);
        self.check_sequence(&mut faults);
        self.check_ending(&mut faults);
        self.check_tool_calls(&mut faults);
        faults
    }

    fn check_frames(&self, faults: &mut Vec<String>) {
        for event in &self.events {
            if event.data.get("type").and_then(Value::as_str) != Some(&event.kind) {
                faults.push(format!("event {}: its data is not of type {}", event.seq, event.kind));
            }
            if event.data.get("seq").and_then(Value::as_u64) != Some(event.seq) {
                faults.push(format!("event {}: its data has another number", event.seq));
            }
        }
    }

    fn check_sequence(&self, faults: &mut Vec<String>) {
        let mut before = self.after;
        for event in &self.events {
            if event.seq <= before {
                faults.push(format!("event {}: its number does not rise from {before}", event.seq));
            } else if event.seq > before + 1 && event.kind != "run.snapshot" {
                faults.push(format!("event {}: a hole behind {before} without a snapshot", event.seq));
            }
            before = event.seq;
        }
    }

    /// True when the log has every event: no gap, opened at the beginning.
    fn is_complete(&self) -> bool {
        self.after == 0 && self.of_kind("run.snapshot").is_empty()
    }

    fn check_ending(&self, faults: &mut Vec<String>) {
        let (endings, ends) = (self.of_kind("run.ending"), self.of_kind("run.ended"));
        if ends.len() != 1 || self.events.last().is_none_or(|last| last.kind != "run.ended") {
            faults.push(format!("{} ends; exactly one is due, as the last event", ends.len()));
        }
        if endings.len() > 1 || (endings.is_empty() && self.is_complete()) {
            faults.push(format!("{} endings; exactly one is due", endings.len()));
        }
        if let ([ending], [end]) = (endings.as_slice(), ends.as_slice())
            && ending.data.get("verdict") != end.data.get("verdict")
        {
            faults.push("ending and end have different verdicts".to_owned());
        }
        let behind = self.events.iter().skip_while(|event| event.kind != "run.ending").skip(1);
        let is_allowed =
            |kind: &str| matches!(kind, "run.ended" | "run.ending") || ALLOWED_AFTER_ENDING.contains(&kind);
        for event in behind.filter(|event| !is_allowed(&event.kind)) {
            faults.push(format!("event {}: {} after the ending", event.seq, event.kind));
        }
    }

    fn check_tool_calls(&self, faults: &mut Vec<String>) {
        let ids = |kind: &str| -> Vec<&str> {
            self.of_kind(kind).iter().map(|event| event.data["callId"].as_str().unwrap_or_default()).collect()
        };
        let (waiting, started, ended) = (ids("tool.waiting"), ids("tool.started"), ids("tool.ended"));
        let count = |list: &[&str], id: &str| list.iter().filter(|held| **held == id).count();
        for id in &started {
            let (begun, over) = (count(&started, id), count(&ended, id));
            if begun != over {
                faults.push(format!("call {id}: started {begun}, ended {over}"));
            }
        }
        for id in &waiting {
            let (announced, over) = (count(&waiting, id), count(&ended, id));
            if announced != over {
                faults.push(format!("call {id}: announced as waiting {announced} times, ended {over}"));
            }
        }
    }
}
