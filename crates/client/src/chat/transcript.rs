//! What stands on the page above the input, oldest first: what people said, what runs did, and remarks of this program.

use std::collections::{HashMap, VecDeque};

use quell_protocol::RunId;
use quell_protocol::api::HistoryMessage;

use super::turn::{Below, Block, Turn, partial_of};

/// Names an entry for as long as it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct EntryId(pub(super) u64);

/// One thing on the page.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: EntryId,
    /// Rises with each change, so that pictures of it can be kept until then.
    pub(super) version: u64,
    pub(super) body: Body,
}

/// What kind of thing it is.
#[derive(Debug)]
pub(super) enum Body {
    /// What a person said.
    Said(String),
    /// What a run did.
    Turn(Box<Turn>),
    /// What this program remarks.
    Remark(Remark),
    /// The history was emptied here.
    Emptied,
}

/// A remark: what it is about decides its colour.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Remark {
    pub(super) tone: Tone,
    pub(super) text: String,
}

/// The meaning of a remark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Quiet,
    Failure,
}

/// The page.
#[derive(Debug)]
pub(super) struct Transcript {
    entries: VecDeque<Entry>,
    turns: HashMap<RunId, EntryId>,
    /// Runs of other sessions, and the run of this page that they were started below of.
    parents: HashMap<RunId, RunId>,
    /// Ids fall to the front and rise to the back, so that an id says where its entry stands.
    front: u64,
    back: u64,
}

impl Default for Transcript {
    fn default() -> Self {
        let middle = u64::MAX / 2;
        Self { entries: VecDeque::new(), turns: HashMap::new(), parents: HashMap::new(), front: middle, back: middle }
    }
}

impl Transcript {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, place: usize) -> Option<&Entry> {
        self.entries.get(place)
    }

    /// Where an entry stands, counted from the oldest.
    pub(super) fn place_of(&self, id: EntryId) -> Option<usize> {
        let first = self.entries.front()?.id;
        let place = usize::try_from(id.0.checked_sub(first.0)?).ok()?;
        (place < self.entries.len()).then_some(place)
    }

    pub(super) fn knows(&self, run: &RunId) -> bool {
        self.turns.contains_key(run)
    }

    pub(super) fn push(&mut self, body: Body) -> EntryId {
        let id = EntryId(self.back);
        self.back += 1;
        self.entries.push_back(Entry { id, version: 0, body });
        id
    }

    pub(super) fn remark(&mut self, tone: Tone, text: impl Into<String>) {
        self.push(Body::Remark(Remark { tone, text: text.into() }));
    }

    /// What a run begins with: the message, and an empty turn below it.
    pub(super) fn begin(&mut self, run: &RunId, text: &str) {
        if self.knows(run) {
            return;
        }
        if !text.is_empty() {
            self.push(Body::Said(text.to_owned()));
        }
        let id = self.push(Body::Turn(Box::default()));
        self.turns.insert(run.clone(), id);
    }

    /// The turn of a run, to be changed.
    pub(super) fn turn_mut(&mut self, run: &RunId) -> Option<&mut Turn> {
        let place = self.place_of(*self.turns.get(run)?)?;
        let entry = self.entries.get_mut(place)?;
        entry.version += 1;
        match &mut entry.body {
            Body::Turn(turn) => Some(turn),
            Body::Said(_) | Body::Remark(_) | Body::Emptied => None,
        }
    }

    /// The turn of a run.
    pub(super) fn turn(&self, run: &RunId) -> Option<&Turn> {
        match &self.entries.get(self.place_of(*self.turns.get(run)?)?)?.body {
            Body::Turn(turn) => Some(turn),
            Body::Said(_) | Body::Remark(_) | Body::Emptied => None,
        }
    }

    /// True for a run whose end is on the page.
    pub(super) fn has_ended(&self, run: &RunId) -> bool {
        self.turn(run).is_some_and(|turn| turn.end.is_some())
    }

    /// Learns from stored messages whether the model sees what was cut off.
    pub(super) fn learn(&mut self, messages: &[HistoryMessage]) {
        for message in messages.iter().filter(|message| message.role == "assistant") {
            if let Some(turn) = message.run_id.as_ref().and_then(|run| self.turn_mut(run)) {
                turn.learn(partial_of(message));
            }
        }
    }

    /// Notes a run that was started below `top`, or what it does now.
    pub(super) fn put_below(&mut self, top: &RunId, below: Below) {
        if self.turn(top).is_none_or(|turn| turn.below.contains(&below)) {
            return;
        }
        self.parents.insert(below.run.clone(), top.clone());
        if let Some(turn) = self.turn_mut(top) {
            turn.put_below(below);
        }
    }

    /// Changes what is known of a run below another one.
    pub(super) fn below_mut(&mut self, run: &RunId, change: impl FnOnce(&mut Below)) {
        let Some(top) = self.parents.get(run).cloned() else { return };
        let turn = self.turn_mut(&top);
        if let Some(below) = turn.and_then(|turn| turn.below.iter_mut().find(|below| below.run == *run)) {
            change(below);
        }
    }

    /// Runs below any run of the page whose end is not known.
    pub(super) fn open_below(&self) -> impl Iterator<Item = &RunId> {
        let tops: std::collections::BTreeSet<&RunId> = self.parents.values().collect();
        let below = tops.into_iter().filter_map(|top| self.turn(top)).flat_map(|turn| &turn.below);
        below.filter(|below| !below.is_over()).map(|below| &below.run)
    }

    pub(super) fn is_below(&self, run: &RunId) -> bool {
        self.parents.contains_key(run)
    }

    /// Puts an older page of the history before everything; what is on the page already is not put there again. Gives back
    /// the runs of turns that were stopped or failed.
    pub(super) fn prepend(&mut self, messages: &[HistoryMessage]) -> Vec<RunId> {
        let mut older: Vec<Older> = Vec::new();
        for message in messages {
            self.recall(message, &mut older);
        }
        let mut troubled = Vec::new();
        for Older { run, body } in older.into_iter().rev() {
            self.front -= 1;
            let id = EntryId(self.front);
            if let (Some(run), Body::Turn(turn)) = (run, &body) {
                if turn.end.as_ref().is_some_and(|end| end.verdict != quell_protocol::Verdict::Completed) {
                    troubled.push(run.clone());
                }
                self.turns.insert(run, id);
            }
            self.entries.push_front(Entry { id, version: 0, body });
        }
        troubled
    }

    fn recall(&mut self, message: &HistoryMessage, older: &mut Vec<Older>) {
        let run = message.run_id.as_ref();
        if let Some(turn) = run.and_then(|run| self.turn_mut(run)) {
            // Only what the events could not tell is news.
            if message.role == "assistant" {
                turn.learn(partial_of(message));
            }
            return;
        }
        match message.role.as_str() {
            "reset" => older.push(Older { run: None, body: Body::Emptied }),
            "user" => {
                let begun = older.last_mut().filter(|last| run.is_some() && last.run.as_ref() == run);
                let handed_over = || Block::Steered(message.text.clone());
                match begun.map(|last| &mut last.body) {
                    // The first message began the run; later ones were handed to it while it ran.
                    Some(Body::Turn(turn)) => turn.blocks.push(handed_over()),
                    Some(_) => {
                        let mut turn = Box::<Turn>::default();
                        turn.blocks.push(handed_over());
                        older.push(Older { run: run.cloned(), body: Body::Turn(turn) });
                    }
                    None => older.push(Older { run: run.cloned(), body: Body::Said(message.text.clone()) }),
                }
            }
            _ => {
                let begun =
                    older.last().is_some_and(|last| last.run.as_ref() == run && matches!(last.body, Body::Turn(_)));
                if !begun {
                    older.push(Older { run: run.cloned(), body: Body::Turn(Box::default()) });
                }
            }
        }
        if let Some(Older { body: Body::Turn(turn), .. }) = older.last_mut() {
            turn.recall(message);
        }
    }
}

/// An entry of an older page before it has its place.
struct Older {
    run: Option<RunId>,
    body: Body,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::chat::turn::Partial;

    fn messages(value: serde_json::Value) -> Vec<HistoryMessage> {
        serde_json::from_value(value).unwrap()
    }

    fn outline(transcript: &Transcript) -> Vec<String> {
        (0..transcript.len())
            .filter_map(|at| transcript.get(at))
            .map(|entry| match &entry.body {
                Body::Said(text) => format!("said {text}"),
                Body::Turn(turn) => format!("turn of {} blocks", turn.blocks.len()),
                Body::Remark(remark) => remark.text.clone(),
                Body::Emptied => "emptied".into(),
            })
            .collect()
    }

    #[test]
    fn older_pages_go_before_and_nothing_stands_twice() {
        let mut transcript = Transcript::default();
        let run = RunId::parse("r3").unwrap();
        transcript.begin(&run, "third");
        let at = "2026-03-01T12:00:00Z";
        let page = messages(json!([
            {"runId": "r2", "role": "user", "text": "second", "at": at},
            {"runId": "r2", "role": "assistant", "text": "I look.", "at": at,
             "calls": [{"id": "c1", "tool": "shell", "arguments": {"command": "ls"}}]},
            {"runId": "r2", "role": "tool", "text": "a b", "callId": "c1", "at": at},
            {"runId": "r2", "role": "note", "text": "stopped", "at": at, "verdict": {"kind": "aborted", "reason": "user"}},
            {"runId": "r3", "role": "user", "text": "third", "at": at},
        ]));
        assert_eq!(transcript.prepend(&page), [RunId::parse("r2").unwrap()]);
        let oldest = messages(json!([{"role": "reset", "text": "", "at": at}]));
        assert!(transcript.prepend(&oldest).is_empty());
        assert_eq!(
            outline(&transcript),
            ["emptied", "said second", "turn of 2 blocks", "said third", "turn of 0 blocks"]
        );
        let turn = transcript.turn(&RunId::parse("r2").unwrap()).unwrap();
        assert!(matches!(&turn.blocks[1], Block::Call(call) if call.output == "a b" && call.label == "ls"));
        assert!(matches!(turn.end.as_ref().unwrap().verdict, quell_protocol::Verdict::Aborted { .. }));
    }

    #[test]
    fn a_message_that_was_handed_over_stands_in_its_turn() {
        let at = "2026-03-01T12:00:00Z";
        let mut transcript = Transcript::default();
        transcript.prepend(&messages(json!([
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
        let mut transcript = Transcript::default();
        let run = RunId::parse("r1").unwrap();
        transcript.begin(&run, "hello");
        transcript.turn_mut(&run).unwrap().blocks.push(Block::Text { text: "half".into(), partial: Partial::Cut });
        let at = "2026-03-01T12:00:00Z";
        transcript.prepend(&messages(
            json!([{"runId": "r1", "role": "assistant", "text": "half", "partial": true, "at": at}]),
        ));
        assert!(matches!(transcript.turn(&run).unwrap().blocks[0], Block::Text { partial: Partial::Unseen, .. }));
        assert_eq!(transcript.len(), 2);
        transcript.turn_mut(&run).unwrap().blocks.push(Block::Text { text: "more".into(), partial: Partial::Cut });
        let kept = json!([{"runId": "r1", "role": "assistant", "text": "more", "kept": true, "at": at}]);
        transcript.learn(&messages(kept));
        assert!(matches!(transcript.turn(&run).unwrap().blocks[1], Block::Text { partial: Partial::Kept, .. }));
    }
}
