//! Entries of the transcript, oldest first: user messages, turns, remarks.

use std::collections::{HashMap, VecDeque};

use quell_protocol::RunId;
use quell_protocol::api::HistoryMessage;

use crate::turn::{ChatSubRun, ChatTurn, TurnBlock, completeness_of};

/// Identifies an entry; also gives its index relative to the first entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct EntryId(pub(crate) u64);

#[derive(Debug)]
pub(crate) struct TranscriptEntry {
    pub(crate) id: EntryId,
    /// Increases with each change; cached rows are valid for one version.
    pub(crate) version: u64,
    pub(crate) body: EntryBody,
}

#[derive(Debug)]
pub(crate) enum EntryBody {
    UserMessage(String),
    Turn(Box<ChatTurn>),
    /// A remark of this program.
    Remark(Remark),
    /// The history was cleared here.
    HistoryReset,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Remark {
    pub(crate) level: NoticeLevel,
    pub(crate) text: String,
}

/// Decides the style of a remark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoticeLevel {
    Info,
    Failure,
}

#[derive(Debug)]
pub(crate) struct ChatTranscript {
    entries: VecDeque<TranscriptEntry>,
    turn_entries: HashMap<RunId, EntryId>,
    /// Sub-runs in other sessions, each with the run of this transcript below which it was started.
    sub_run_parents: HashMap<RunId, RunId>,
    /// Ids decrease at the front and increase at the back, so that an id gives the index of its entry.
    front_id: u64,
    back_id: u64,
}

impl Default for ChatTranscript {
    fn default() -> Self {
        let middle = u64::MAX / 2;
        Self {
            entries: VecDeque::new(),
            turn_entries: HashMap::new(),
            sub_run_parents: HashMap::new(),
            front_id: middle,
            back_id: middle,
        }
    }
}

impl ChatTranscript {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn get(&self, index: usize) -> Option<&TranscriptEntry> {
        self.entries.get(index)
    }

    /// Index of an entry, counted from the oldest.
    pub(crate) fn index_of(&self, id: EntryId) -> Option<usize> {
        let first = self.entries.front()?.id;
        let place = usize::try_from(id.0.checked_sub(first.0)?).ok()?;
        (place < self.entries.len()).then_some(place)
    }

    pub(crate) fn has_run(&self, run: &RunId) -> bool {
        self.turn_entries.contains_key(run)
    }

    pub(crate) fn push_entry(&mut self, body: EntryBody) -> EntryId {
        let id = EntryId(self.back_id);
        self.back_id += 1;
        self.entries.push_back(TranscriptEntry { id, version: 0, body });
        id
    }

    pub(crate) fn push_remark(&mut self, tone: NoticeLevel, text: impl Into<String>) {
        self.push_entry(EntryBody::Remark(Remark { level: tone, text: text.into() }));
    }

    /// Adds the message of a run and an empty turn.
    pub(crate) fn begin_turn(&mut self, run: &RunId, text: &str) {
        if self.has_run(run) {
            return;
        }
        if !text.is_empty() {
            self.push_entry(EntryBody::UserMessage(text.to_owned()));
        }
        let id = self.push_entry(EntryBody::Turn(Box::default()));
        self.turn_entries.insert(run.clone(), id);
    }

    /// The turn of a run; counts as a change of its entry.
    pub(crate) fn turn_mut(&mut self, run: &RunId) -> Option<&mut ChatTurn> {
        let place = self.index_of(*self.turn_entries.get(run)?)?;
        let entry = self.entries.get_mut(place)?;
        entry.version += 1;
        if let EntryBody::Turn(turn) = &mut entry.body { Some(turn) } else { None }
    }

    /// The newest ended run whose tools changed files.
    pub(crate) fn newest_run_with_diffs(&self) -> Option<RunId> {
        self.entries.iter().rev().find_map(|entry| match &entry.body {
            EntryBody::Turn(turn) if turn.end.is_some() && turn.has_diffs() => {
                self.turn_entries.iter().find(|(_, id)| **id == entry.id).map(|(run, _)| run.clone())
            }
            _ => None,
        })
    }

    pub(crate) fn turn(&self, run: &RunId) -> Option<&ChatTurn> {
        let entry = self.entries.get(self.index_of(*self.turn_entries.get(run)?)?)?;
        if let EntryBody::Turn(turn) = &entry.body { Some(turn) } else { None }
    }

    /// True if the transcript has the end of this run.
    pub(crate) fn has_ended(&self, run: &RunId) -> bool {
        self.turn(run).is_some_and(|turn| turn.end.is_some())
    }

    /// Updates from stored messages whether the model sees texts that were cut off.
    pub(crate) fn apply_stored_messages(&mut self, messages: &[HistoryMessage]) {
        for message in messages.iter().filter(|message| message.role == "assistant") {
            if let Some(turn) = message.run_id.as_ref().and_then(|run| self.turn_mut(run)) {
                turn.resolve_cut(completeness_of(message));
            }
        }
    }

    /// Adds or updates a sub-run below `top`.
    pub(crate) fn upsert_sub_run(&mut self, top: &RunId, below: ChatSubRun) {
        if self.turn(top).is_none_or(|turn| turn.sub_runs.contains(&below)) {
            return;
        }
        self.sub_run_parents.insert(below.run.clone(), top.clone());
        if let Some(turn) = self.turn_mut(top) {
            turn.upsert_sub_run(below);
        }
    }

    pub(crate) fn update_sub_run(&mut self, run: &RunId, change: impl FnOnce(&mut ChatSubRun)) {
        let Some(top) = self.sub_run_parents.get(run).cloned() else { return };
        let turn = self.turn_mut(&top);
        if let Some(below) = turn.and_then(|turn| turn.sub_runs.iter_mut().find(|below| below.run == *run)) {
            change(below);
        }
    }

    /// Sub-runs whose end is not known.
    pub(crate) fn open_sub_runs(&self) -> impl Iterator<Item = &RunId> {
        let tops: std::collections::BTreeSet<&RunId> = self.sub_run_parents.values().collect();
        let below = tops.into_iter().filter_map(|top| self.turn(top)).flat_map(|turn| &turn.sub_runs);
        below.filter(|below| !below.has_ended()).map(|below| &below.run)
    }

    pub(crate) fn is_sub_run(&self, run: &RunId) -> bool {
        self.sub_run_parents.contains_key(run)
    }

    /// Adds an older page of the history at the front, without entries that are there already. Returns the runs whose
    /// turns were stopped or failed.
    pub(crate) fn prepend_history(&mut self, messages: &[HistoryMessage]) -> Vec<RunId> {
        let mut older: Vec<OlderEntry> = Vec::new();
        for message in messages {
            self.add_stored_message(message, &mut older);
        }
        let mut unsuccessful = Vec::new();
        for OlderEntry { run, body } in older.into_iter().rev() {
            self.front_id -= 1;
            let id = EntryId(self.front_id);
            if let (Some(run), EntryBody::Turn(turn)) = (run, &body) {
                if turn.end.as_ref().is_some_and(|end| end.verdict != quell_protocol::Verdict::Completed) {
                    unsuccessful.push(run.clone());
                }
                self.turn_entries.insert(run, id);
            }
            self.entries.push_front(TranscriptEntry { id, version: 0, body });
        }
        unsuccessful
    }

    fn add_stored_message(&mut self, message: &HistoryMessage, older: &mut Vec<OlderEntry>) {
        let run = message.run_id.as_ref();
        if let Some(turn) = run.and_then(|run| self.turn_mut(run)) {
            // The events have brought everything else.
            if message.role == "assistant" {
                turn.resolve_cut(completeness_of(message));
            }
            return;
        }
        match message.role.as_str() {
            "reset" => older.push(OlderEntry { run: None, body: EntryBody::HistoryReset }),
            "user" => {
                let begun = older.last_mut().filter(|last| run.is_some() && last.run.as_ref() == run);
                let handed_over = || TurnBlock::Steered(message.text.clone());
                match begun.map(|last| &mut last.body) {
                    // The first message started the run; later ones were steered into it.
                    Some(EntryBody::Turn(turn)) => turn.blocks.push(handed_over()),
                    Some(_) => {
                        let mut turn = Box::<ChatTurn>::default();
                        turn.blocks.push(handed_over());
                        older.push(OlderEntry { run: run.cloned(), body: EntryBody::Turn(turn) });
                    }
                    None => {
                        older.push(OlderEntry { run: run.cloned(), body: EntryBody::UserMessage(message.text.clone()) })
                    }
                }
            }
            _ => {
                let begun = older
                    .last()
                    .is_some_and(|last| last.run.as_ref() == run && matches!(last.body, EntryBody::Turn(_)));
                if !begun {
                    older.push(OlderEntry { run: run.cloned(), body: EntryBody::Turn(Box::default()) });
                }
            }
        }
        if let Some(OlderEntry { body: EntryBody::Turn(turn), .. }) = older.last_mut() {
            turn.apply_stored_message(message);
        }
    }
}

/// An entry of an older page without an id.
struct OlderEntry {
    run: Option<RunId>,
    body: EntryBody,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::turn::TextCompleteness;

    fn messages(value: serde_json::Value) -> Vec<HistoryMessage> {
        serde_json::from_value(value).unwrap()
    }

    fn outline(transcript: &ChatTranscript) -> Vec<String> {
        (0..transcript.len())
            .filter_map(|at| transcript.get(at))
            .map(|entry| match &entry.body {
                EntryBody::UserMessage(text) => format!("said {text}"),
                EntryBody::Turn(turn) => format!("turn of {} blocks", turn.blocks.len()),
                EntryBody::Remark(remark) => remark.text.clone(),
                EntryBody::HistoryReset => "emptied".into(),
            })
            .collect()
    }

    #[test]
    fn older_pages_go_before_and_nothing_stands_twice() {
        let mut transcript = ChatTranscript::default();
        let run = RunId::parse("r3").unwrap();
        transcript.begin_turn(&run, "third");
        let at = "2026-03-01T12:00:00Z";
        let page = messages(json!([
            {"runId": "r2", "role": "user", "text": "second", "at": at},
            {"runId": "r2", "role": "assistant", "text": "I look.", "at": at,
             "calls": [{"id": "c1", "tool": "shell", "arguments": {"command": "ls"}}]},
            {"runId": "r2", "role": "tool", "text": "a b", "callId": "c1", "at": at},
            {"runId": "r2", "role": "note", "text": "stopped", "at": at, "verdict": {"kind": "aborted", "reason": "user"}},
            {"runId": "r3", "role": "user", "text": "third", "at": at},
        ]));
        assert_eq!(transcript.prepend_history(&page), [RunId::parse("r2").unwrap()]);
        let oldest = messages(json!([{"role": "reset", "text": "", "at": at}]));
        assert!(transcript.prepend_history(&oldest).is_empty());
        assert_eq!(
            outline(&transcript),
            ["emptied", "said second", "turn of 2 blocks", "said third", "turn of 0 blocks"]
        );
        let turn = transcript.turn(&RunId::parse("r2").unwrap()).unwrap();
        assert!(matches!(&turn.blocks[1], TurnBlock::Call(call) if call.output == "a b" && call.label == "ls"));
        assert!(matches!(turn.end.as_ref().unwrap().verdict, quell_protocol::Verdict::Aborted { .. }));
    }

    #[test]
    fn a_message_that_was_handed_over_stands_in_its_turn() {
        let at = "2026-03-01T12:00:00Z";
        let mut transcript = ChatTranscript::default();
        transcript.prepend_history(&messages(json!([
            {"runId": "r1", "role": "user", "text": "first", "at": at},
            {"runId": "r1", "role": "assistant", "text": "half a sentence.", "at": at},
            {"runId": "r1", "role": "user", "text": "be brief", "at": at},
            {"runId": "r1", "role": "assistant", "text": "Yes.", "at": at},
            {"runId": "r2", "role": "user", "text": "second", "at": at},
            {"runId": "r2", "role": "user", "text": "and this", "at": at},
        ])));
        assert_eq!(outline(&transcript), ["said first", "turn of 3 blocks", "said second", "turn of 1 blocks"]);
    }

    #[test]
    fn whether_the_model_sees_a_cut_text_is_learnt_from_the_history() {
        let mut transcript = ChatTranscript::default();
        let run = RunId::parse("r1").unwrap();
        transcript.begin_turn(&run, "hello");
        transcript
            .turn_mut(&run)
            .unwrap()
            .blocks
            .push(TurnBlock::Text { text: "half".into(), partial: TextCompleteness::Cut });
        let at = "2026-03-01T12:00:00Z";
        transcript.prepend_history(&messages(
            json!([{"runId": "r1", "role": "assistant", "text": "half", "partial": true, "at": at}]),
        ));
        assert!(matches!(
            transcript.turn(&run).unwrap().blocks[0],
            TurnBlock::Text { partial: TextCompleteness::CutUnseen, .. }
        ));
        assert_eq!(transcript.len(), 2);
        transcript
            .turn_mut(&run)
            .unwrap()
            .blocks
            .push(TurnBlock::Text { text: "more".into(), partial: TextCompleteness::Cut });
        let kept = json!([{"runId": "r1", "role": "assistant", "text": "more", "kept": true, "at": at}]);
        transcript.apply_stored_messages(&messages(kept));
        assert!(matches!(
            transcript.turn(&run).unwrap().blocks[1],
            TurnBlock::Text { partial: TextCompleteness::CutKept, .. }
        ));
    }
}
