//! The events of a run as a client sees them, and what must be true of their order.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use reqwest::Response;
use serde_json::Value;

use crate::sse::{Decoder, Frame};

/// Longest wait for an event. It decides only how late a failing test fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// What may still come between `run.ending` and `run.ended`.
const AFTER_ENDING: &[&str] = &["tool.output", "tool.ended", "approval.resolved", "usage", "run.snapshot"];

/// One event.
#[derive(Debug, Clone)]
pub struct Event {
    /// The id of its frame.
    pub seq: u64,
    /// The type of its frame.
    pub kind: String,
    /// Its data.
    pub data: Value,
    /// When it was read.
    pub at: Instant,
}

/// The events of a run, as they come.
#[derive(Debug)]
pub struct EventStream {
    response: Response,
    decoder: Decoder,
    waiting: VecDeque<Event>,
    log: EventLog,
}

impl EventStream {
    pub(super) fn new(response: Response, after: u64) -> Self {
        let log = EventLog { after, events: Vec::new() };
        Self { response, decoder: Decoder::default(), waiting: VecDeque::new(), log }
    }

    /// The next event; `None` when the stream has ended.
    ///
    /// # Cancel safety
    /// Safe: no event is lost.
    ///
    /// # Panics
    /// When none comes in time, the stream breaks, or a frame is not as promised.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                self.log.events.push(event.clone());
                return Some(event);
            }
            match tokio::time::timeout(PATIENCE, self.response.chunk()).await {
                Ok(Ok(Some(bytes))) => self.waiting.extend(self.decoder.push(&bytes).into_iter().map(event)),
                Ok(Ok(None)) => return None,
                Ok(Err(error)) => panic!("the events broke off: {error:?}\n{:#?}", self.log.kinds()),
                Err(_) => panic!("no event for {PATIENCE:?} after {:#?}", self.log.kinds()),
            }
        }
    }

    /// Reads on until an event of this type comes.
    ///
    /// # Cancel safety
    /// Safe: no event is lost.
    ///
    /// # Panics
    /// When the stream ends before, and as [`Self::next`].
    pub async fn until(&mut self, kind: &str) -> Event {
        while let Some(event) = self.next().await {
            if event.kind == kind {
                return event;
            }
        }
        panic!("the events ended without {kind}: {:#?}", self.log.kinds())
    }

    /// Reads on to the end of the stream, and returns everything since it was opened.
    ///
    /// # Cancel safety
    /// What was read is lost.
    ///
    /// # Panics
    /// As [`Self::next`].
    pub async fn to_end(mut self) -> EventLog {
        while self.next().await.is_some() {}
        self.log
    }
}

fn event(frame: Frame) -> Event {
    let Ok(seq) = frame.id.parse() else { panic!("an event without a number as id: {frame:?}") };
    match serde_json::from_str(&frame.data) {
        Ok(data) => Event { seq, kind: frame.event, data, at: Instant::now() },
        Err(error) => panic!("an event without JSON ({error}): {frame:?}"),
    }
}

/// The events of a run, to its end.
#[derive(Debug, Clone)]
pub struct EventLog {
    /// The number behind which it was opened.
    pub after: u64,
    /// The events.
    pub events: Vec<Event>,
}

impl EventLog {
    /// The types, in order.
    #[must_use]
    pub fn kinds(&self) -> Vec<&str> {
        self.events.iter().map(|event| event.kind.as_str()).collect()
    }

    /// The events of one type.
    #[must_use]
    pub fn of(&self, kind: &str) -> Vec<&Event> {
        self.events.iter().filter(|event| event.kind == kind).collect()
    }

    /// The visible text that was streamed.
    #[must_use]
    pub fn text(&self) -> String {
        self.of("text.delta").iter().filter_map(|event| event.data.get("text")?.as_str()).collect()
    }

    /// The verdict of the end, such as `aborted`.
    ///
    /// # Panics
    /// When there is no end.
    #[must_use]
    pub fn verdict(&self) -> &str {
        let ended = self.events.last().and_then(|event| event.data.pointer("/verdict/kind")?.as_str());
        match ended {
            Some(verdict) => verdict,
            None => panic!("no verdict at the end of {:#?}", self.kinds()),
        }
    }

    /// The receipt of the end.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn receipt(&self) -> &Value {
        match self.events.last().and_then(|event| event.data.get("receipt")) {
            Some(receipt) => receipt,
            None => panic!("no receipt at the end of {:#?}", self.kinds()),
        }
    }

    /// Fails the test unless the log is as promised.
    ///
    /// # Panics
    /// When it is not, with every reason.
    pub fn assert_sound(&self) {
        let faults = self.faults();
        assert!(faults.is_empty(), "{faults:#?}\n{:#?}", self.events);
    }

    /// Everything that breaks a promise: numbers that rise, with holes only before a snapshot; exactly one end, last; at
    /// most one ending before it, and exactly one where the log can hold it; nothing of the stream after the ending; one
    /// verdict; each tool that started ends once.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = self.frame_faults();
        faults.extend(self.number_faults());
        faults.extend(self.ending_faults());
        faults.extend(self.tool_faults());
        faults
    }

    fn frame_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for event in &self.events {
            if event.data.get("type").and_then(Value::as_str) != Some(&event.kind) {
                faults.push(format!("event {}: its data is not of type {}", event.seq, event.kind));
            }
            if event.data.get("seq").and_then(Value::as_u64) != Some(event.seq) {
                faults.push(format!("event {}: its data has another number", event.seq));
            }
        }
        faults
    }

    fn number_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut before = self.after;
        for event in &self.events {
            if event.seq <= before {
                faults.push(format!("event {}: its number does not rise from {before}", event.seq));
            } else if event.seq > before + 1 && event.kind != "run.snapshot" {
                faults.push(format!("event {}: a hole behind {before} without a snapshot", event.seq));
            }
            before = event.seq;
        }
        faults
    }

    /// True when everything of the run is here: no hole, opened at the beginning.
    fn whole(&self) -> bool {
        self.after == 0 && self.of("run.snapshot").is_empty()
    }

    fn ending_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let (endings, ends) = (self.of("run.ending"), self.of("run.ended"));
        if ends.len() != 1 || self.events.last().is_none_or(|last| last.kind != "run.ended") {
            faults.push(format!("{} ends; exactly one is due, as the last event", ends.len()));
        }
        if endings.len() > 1 || (endings.is_empty() && self.whole()) {
            faults.push(format!("{} endings; exactly one is due", endings.len()));
        }
        if let ([ending], [end]) = (endings.as_slice(), ends.as_slice())
            && ending.data.get("verdict") != end.data.get("verdict")
        {
            faults.push("ending and end have different verdicts".to_owned());
        }
        let behind = self.events.iter().skip_while(|event| event.kind != "run.ending").skip(1);
        for event in behind {
            if !matches!(event.kind.as_str(), "run.ended" | "run.ending") && !AFTER_ENDING.contains(&&*event.kind) {
                faults.push(format!("event {}: {} after the ending", event.seq, event.kind));
            }
        }
        faults
    }

    fn tool_faults(&self) -> Vec<String> {
        let id = |event: &&Event| event.data.get("callId").and_then(Value::as_str).unwrap_or_default().to_owned();
        let started: Vec<String> = self.of("tool.started").iter().map(id).collect();
        let ended: Vec<String> = self.of("tool.ended").iter().map(id).collect();
        let count = |list: &[String], id: &str| list.iter().filter(|held| *held == id).count();
        let mut faults = Vec::new();
        for id in &started {
            if count(&ended, id) != count(&started, id) {
                faults.push(format!("call {id}: started {}, ended {}", count(&started, id), count(&ended, id)));
            }
        }
        faults
    }
}
