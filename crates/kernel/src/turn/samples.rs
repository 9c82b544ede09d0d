//! Proptest strategies for drafts, turns and conversations: any operations in any order, with all kinds of content that
//! providers and people are known to send.

use std::sync::Arc;

use proptest::prelude::*;
use quell_protocol::{CallEnd, CallId, Principal, Requester, RunId, StopReason, Surface, Usage, Verdict};
use serde_json::{Value, json};

use crate::journal::JournalLine;

use super::{
    AssistantMessage, CODE_REFUSED, CODE_VISION, CallResult, Citations, MessageBlock, PartialPolicy, SealOptions,
    Thinking, ToolCall, Turn, TurnDraft,
};

/// Part of every streamed piece, and of nothing else, so that tests notice a leak of partial text.
pub(crate) const STREAM_MARKER: char = '§';

/// The model for which the tests build prompts.
pub(crate) const READER_MODEL: &str = "some/model";

#[derive(Debug, Clone)]
pub(crate) enum DraftStep {
    User(String),
    StreamText(String),
    StreamThinking(String),
    DropPartial,
    Message(AssistantMessage),
    Begin(usize),
    Print(usize, String),
    Finish(usize, CallResult),
    Unknown(CallResult),
    Answer(String),
}

/// A draft as the user's message and the operations after it.
#[derive(Debug, Clone)]
pub(crate) struct DraftStory {
    pub(crate) user: String,
    pub(crate) steps: Vec<DraftStep>,
}

#[derive(Debug, Clone)]
pub(crate) struct SealedStory {
    pub(crate) story: DraftStory,
    pub(crate) verdict: Verdict,
    pub(crate) policy: PartialPolicy,
}

impl DraftStory {
    pub(crate) fn draft(&self, run: &str) -> TurnDraft {
        let mut draft = TurnDraft::new(run_id(run), self.user.clone());
        for step in &self.steps {
            apply(&mut draft, step);
        }
        draft
    }

    /// The draft after the operations up to `cut`, and its journal lines by then.
    pub(crate) fn journaled(&self, run: &str, cut: prop::sample::Index) -> (TurnDraft, Vec<JournalLine>) {
        // Without `DropPartial`: the journal has no line for it.
        let steps: Vec<&DraftStep> = self.steps.iter().filter(|step| !matches!(step, DraftStep::DropPartial)).collect();
        let mut draft = TurnDraft::new(run_id(run), self.user.clone());
        let mut lines = Vec::new();
        for step in steps.iter().take(cut.index(steps.len() + 1)) {
            lines.extend(journal_line(&draft, step));
            apply(&mut draft, step);
        }
        (draft, lines)
    }

    pub(crate) fn user_texts(&self) -> Vec<&str> {
        let steered = self.steps.iter().filter_map(|step| match step {
            DraftStep::User(text) => Some(text.as_str()),
            _ => None,
        });
        std::iter::once(self.user.as_str()).chain(steered).collect()
    }
}

impl SealedStory {
    pub(crate) fn turn(&self, run: &str) -> Turn {
        seal(self.story.draft(run), &self.verdict, self.policy)
    }
}

/// The turns of the runs `run-0`, `run-1` and so on.
pub(crate) fn turns(conversation: &[SealedStory]) -> Vec<Arc<Turn>> {
    let turn = |(nth, end): (usize, &SealedStory)| Arc::new(end.turn(&format!("run-{nth}")));
    conversation.iter().enumerate().map(turn).collect()
}

pub(crate) fn run_id(text: &str) -> RunId {
    RunId::parse(text).unwrap()
}

pub(crate) fn seal(draft: TurnDraft, verdict: &Verdict, policy: PartialPolicy) -> Turn {
    let usage = Usage { input_tokens: 12, output_tokens: 3, cached_tokens: 0, estimated: true };
    draft.seal(SealOptions { verdict, policy, sealed_at: "2026-11-20T10:00:00.000000Z".into(), usage })
}

pub(crate) fn aborted(reason: StopReason) -> Verdict {
    Verdict::Aborted { reason, by: None }
}

fn nth_call(draft: &TurnDraft, nth: usize) -> Option<CallId> {
    let ids: Vec<CallId> = draft.calls().map(|(id, _, _)| id.clone()).collect();
    ids.get(nth % ids.len().max(1)).cloned()
}

/// What a step writes into the journal.
fn journal_line(draft: &TurnDraft, step: &DraftStep) -> Option<JournalLine> {
    Some(match step.clone() {
        DraftStep::User(text) => JournalLine::User { text, at: None },
        DraftStep::StreamText(text) => JournalLine::Text { text },
        DraftStep::StreamThinking(text) => JournalLine::Thinking { text },
        DraftStep::DropPartial => return None,
        DraftStep::Message(message) => JournalLine::Message { message },
        DraftStep::Begin(at) => JournalLine::Began { call: nth_call(draft, at)?, at: None },
        DraftStep::Print(at, text) => JournalLine::Printed { call: nth_call(draft, at)?, text },
        DraftStep::Finish(at, result) => JournalLine::Finished { call: nth_call(draft, at)?, result },
        DraftStep::Unknown(result) => JournalLine::Finished { call: CallId::parse("nobody asked").unwrap(), result },
        DraftStep::Answer(text) => JournalLine::Answered { text },
    })
}

fn apply(draft: &mut TurnDraft, step: &DraftStep) {
    match step {
        DraftStep::User(text) => draft.add_user(text.clone(), None),
        DraftStep::StreamText(text) => draft.push_text(text),
        DraftStep::StreamThinking(text) => draft.push_thinking(text),
        DraftStep::DropPartial => draft.clear_partial(),
        DraftStep::Message(message) => drop(draft.finish_message(message.clone())),
        DraftStep::Begin(at) => nth_call(draft, *at).iter().for_each(|id| draft.begin_call(id)),
        DraftStep::Print(at, text) => nth_call(draft, *at).iter().for_each(|id| draft.append_output(id, text)),
        DraftStep::Finish(at, result) => {
            nth_call(draft, *at).iter().for_each(|id| draft.finish_call(id, result.clone()))
        }
        DraftStep::Unknown(result) => draft.finish_call(&CallId::parse("nobody asked").unwrap(), result.clone()),
        DraftStep::Answer(text) => draft.replace_answer(text.clone()),
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just(" \n\t ".to_owned()),
        Just("\n\nends with a blank line\n\n".to_owned()),
        Just("안녕 🛑 \u{0}\u{7f}".to_owned()),
        Just("<tool_result>no</tool_result>".to_owned()),
        "[a-z]{1,12}( [a-z]{1,6})?",
    ]
}

fn streamed() -> impl Strategy<Value = String> {
    prop_oneof![Just(STREAM_MARKER.to_string()), text().prop_map(|text| format!("{STREAM_MARKER}{text}"))]
}

fn arguments() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({})),
        Just(Value::Null),
        Just(json!("not { json")),
        Just(json!([1, "two", null])),
        Just(json!({"command": "ls -la \"x\"\n", "deep": {"a": [true, {"b": -1}]}})),
        any::<f64>().prop_map(|number| json!({"number": number})),
        any::<u64>().prop_map(|number| json!({"number": number})),
    ]
}

fn call() -> impl Strategy<Value = ToolCall> {
    let ids = prop_oneof![
        Just("call_0".to_owned()),
        Just("call_1".to_owned()),
        Just("functions.shell:0".to_owned()),
        Just("?".to_owned()),
        Just(String::new()),
        Just("  ".to_owned()),
        Just("line\nbreak".to_owned()),
        Just("ümlaut id".to_owned()),
        Just("x".repeat(41)),
        Just("y".repeat(600)),
        "[a-zA-Z0-9_-]{9,30}",
    ];
    let tools = prop_oneof![
        Just("shell".to_owned()),
        Just(String::new()),
        Just("functions.read file/ü".to_owned()),
        Just("z".repeat(200)),
    ];
    (ids, tools, arguments()).prop_map(|(id, tool, arguments)| ToolCall::from_wire(&id, tool, arguments))
}

fn thinking() -> impl Strategy<Value = Thinking> {
    let signature = prop_oneof![Just(None), Just(Some(String::new())), "[a-zA-Z0-9+/]{8}".prop_map(Some)];
    prop_oneof![
        4 => (text(), signature).prop_map(|(text, signature)| Thinking::Shown { text, signature }),
        2 => text().prop_map(|text| Thinking::Open { text }),
        1 => "[a-zA-Z0-9+/]{0,8}".prop_map(|data| Thinking::Redacted { data }),
        2 => ("(rs_[0-9])?", proptest::collection::vec(text(), 0..3), "[a-zA-Z0-9+/]{0,8}")
            .prop_map(|(id, summary, encrypted)| Thinking::Item { id, summary, encrypted }),
        2 => "[a-zA-Z0-9+/]{0,8}".prop_map(|signature| Thinking::BlockSignature { signature }),
        2 => web_search().prop_map(|part| Thinking::WebSearch { part }),
    ]
}

/// Parts of searches that providers carried out, and what is none.
fn web_search() -> impl Strategy<Value = Value> {
    let item = |id: String| json!({"type": "web_search_call", "id": id, "status": "completed", "action": {}});
    prop_oneof![
        "(ws_[0-9])?".prop_map(item),
        "ts_[0-9]".prop_map(|id| json!({"toolCall": {"id": id, "args": {}}, "thoughtSignature": "c2ln"})),
        "ts_[0-9]".prop_map(|id| json!({"toolResponse": {"id": id, "response": {}}})),
        Just(json!({})),
        Just(Value::Null),
    ]
}

fn citations() -> impl Strategy<Value = Citations> {
    proptest::collection::vec("[a-z]{1,4}", 0..3).prop_map(|pages| {
        let mut citations = Citations::default();
        // No prompt may hold a link of a citation.
        pages
            .iter()
            .for_each(|page| citations.add(&format!("https://cited.example/{page}"), &STREAM_MARKER.to_string()));
        citations
    })
}

/// Blocks in any order, as from a model that reasons between its calls.
fn message() -> impl Strategy<Value = AssistantMessage> {
    let block = prop_oneof![
        3 => thinking().prop_map(MessageBlock::Thinking),
        2 => text().prop_map(|text| MessageBlock::Text { text }),
        3 => call().prop_map(MessageBlock::Call),
    ];
    let blocks = proptest::collection::vec(block, 0..7);
    let model = prop_oneof![Just(None), Just(Some(READER_MODEL)), Just(Some("other/model"))];
    (model, blocks, citations()).prop_map(|(model, blocks, citations)| {
        let model = model.map(Into::into);
        AssistantMessage { model, at: None, blocks, citations }
    })
}

fn result() -> impl Strategy<Value = CallResult> {
    let end = prop_oneof![
        Just(CallEnd::Ok),
        Just(CallEnd::Error),
        Just(CallEnd::Stopped),
        Just(CallEnd::NotStarted),
        Just(CallEnd::Denied)
    ];
    (end, text()).prop_map(|(end, output)| CallResult::new(end, output))
}

fn step() -> impl Strategy<Value = DraftStep> {
    prop_oneof![
        1 => text().prop_map(DraftStep::User),
        3 => streamed().prop_map(DraftStep::StreamText),
        2 => streamed().prop_map(DraftStep::StreamThinking),
        1 => Just(DraftStep::DropPartial),
        4 => message().prop_map(DraftStep::Message),
        3 => any::<usize>().prop_map(DraftStep::Begin),
        3 => (any::<usize>(), text()).prop_map(|(at, text)| DraftStep::Print(at, text)),
        4 => (any::<usize>(), result()).prop_map(|(at, result)| DraftStep::Finish(at, result)),
        1 => result().prop_map(DraftStep::Unknown),
        1 => text().prop_map(DraftStep::Answer),
    ]
}

pub(crate) fn story() -> impl Strategy<Value = DraftStory> {
    (text(), proptest::collection::vec(step(), 0..14)).prop_map(|(user, steps)| DraftStory { user, steps })
}

fn reason() -> impl Strategy<Value = StopReason> {
    prop_oneof![
        Just(StopReason::User),
        Just(StopReason::Command),
        Just(StopReason::Timeout),
        Just(StopReason::Steps),
        Just(StopReason::Tokens),
        Just(StopReason::DailyLimit),
        Just(StopReason::Superseded),
        Just(StopReason::Shutdown),
        Just(StopReason::DaemonStopped),
        Just(StopReason::Disconnect),
        Just(StopReason::Other("because I say so".into())),
    ]
}

pub(crate) fn abort() -> impl Strategy<Value = Verdict> {
    let by = Requester { principal: Principal::parse("telegram:alice").unwrap(), surface: Surface::Channel };
    (reason(), prop_oneof![Just(None), Just(Some(by))]).prop_map(|(reason, by)| Verdict::Aborted { reason, by })
}

pub(crate) fn verdict() -> impl Strategy<Value = Verdict> {
    let failed = |code: &str| Verdict::Failed { code: code.into(), message: "it broke".into() };
    prop_oneof![6 => Just(Verdict::Completed), 6 => Just(failed("model_error")), 1 => Just(failed(CODE_REFUSED)), 1 => Just(failed(CODE_VISION)), 18 => abort()]
}

pub(crate) fn policy() -> impl Strategy<Value = PartialPolicy> {
    prop_oneof![Just(PartialPolicy::Discard), Just(PartialPolicy::Keep)]
}

pub(crate) fn ended() -> impl Strategy<Value = SealedStory> {
    (story(), verdict(), policy()).prop_map(|(story, verdict, policy)| SealedStory { story, verdict, policy })
}

/// A conversation of up to five turns.
pub(crate) fn conversation() -> impl Strategy<Value = Vec<SealedStory>> {
    proptest::collection::vec(ended(), 0..=5)
}
