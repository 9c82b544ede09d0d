//! Random drafts for the property tests of turns and of views: any operations in any order, with everything that providers
//! and people are known to send.

use proptest::prelude::*;
use quell_protocol::{By, CallEnd, CallId, Principal, RunId, StopReason, Surface, Usage, Verdict};
use serde_json::{Value, json};

use crate::journal::Line;

use super::{
    AssistantMessage, Block, CallResult, PartialPolicy, REFUSED, Sealing, Thinking, ToolCall, Turn, TurnDraft, VISION,
};

/// Stands in every piece that streams and nowhere else, so that a leak of cut text is seen.
pub(crate) const STREAMED: char = '§';

/// The model for which views are made.
pub(crate) const READER: &str = "some/model";

/// One thing that happens to a draft.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    User(String),
    StreamText(String),
    StreamThinking(String),
    DropPartial,
    Message(AssistantMessage),
    Begin(usize),
    Print(usize, String),
    Finish(usize, CallResult),
    Unknown(CallResult),
}

/// A draft, as what the user said and what happened then.
#[derive(Debug, Clone)]
pub(crate) struct Story {
    pub(crate) user: String,
    pub(crate) steps: Vec<Step>,
}

/// A story with its end.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub(crate) story: Story,
    pub(crate) verdict: Verdict,
    pub(crate) policy: PartialPolicy,
}

impl Story {
    pub(crate) fn draft(&self, run: &str) -> TurnDraft {
        let mut draft = TurnDraft::new(run_id(run), self.user.clone());
        for step in &self.steps {
            apply(&mut draft, step);
        }
        draft
    }

    /// The draft after what happened until `cut`, and the lines that its journal has by then.
    pub(crate) fn journaled(&self, run: &str, cut: prop::sample::Index) -> (TurnDraft, Vec<Line>) {
        // A run that goes on never forgets what has streamed.
        let steps: Vec<&Step> = self.steps.iter().filter(|step| !matches!(step, Step::DropPartial)).collect();
        let mut draft = TurnDraft::new(run_id(run), self.user.clone());
        let mut lines = Vec::new();
        for step in steps.iter().take(cut.index(steps.len() + 1)) {
            lines.extend(line(&draft, step));
            apply(&mut draft, step);
        }
        (draft, lines)
    }

    /// Everything that people said, in order.
    pub(crate) fn said(&self) -> Vec<&str> {
        let steered = self.steps.iter().filter_map(|step| match step {
            Step::User(text) => Some(text.as_str()),
            _ => None,
        });
        std::iter::once(self.user.as_str()).chain(steered).collect()
    }
}

impl Ended {
    pub(crate) fn turn(&self, run: &str) -> Turn {
        seal(self.story.draft(run), &self.verdict, self.policy)
    }
}

pub(crate) fn run_id(text: &str) -> RunId {
    RunId::parse(text).unwrap()
}

pub(crate) fn seal(draft: TurnDraft, verdict: &Verdict, policy: PartialPolicy) -> Turn {
    let usage = Usage { input_tokens: 12, output_tokens: 3, estimated: true };
    draft.seal(Sealing { verdict, policy, sealed_at: "2026-11-20T10:00:00.000000Z".into(), usage })
}

pub(crate) fn aborted(reason: StopReason) -> Verdict {
    Verdict::Aborted { reason, by: None }
}

fn nth(draft: &TurnDraft, nth: usize) -> Option<CallId> {
    let ids: Vec<CallId> = draft.calls().map(|(id, _, _)| id.clone()).collect();
    ids.get(nth % ids.len().max(1)).cloned()
}

/// What a step writes into the journal.
fn line(draft: &TurnDraft, step: &Step) -> Option<Line> {
    Some(match step.clone() {
        Step::User(text) => Line::User { text, at: None },
        Step::StreamText(text) => Line::Text { text },
        Step::StreamThinking(text) => Line::Thinking { text },
        Step::DropPartial => return None,
        Step::Message(message) => Line::Message { message },
        Step::Begin(at) => Line::Began { call: nth(draft, at)?, at: None },
        Step::Print(at, text) => Line::Printed { call: nth(draft, at)?, text },
        Step::Finish(at, result) => Line::Finished { call: nth(draft, at)?, result },
        Step::Unknown(result) => Line::Finished { call: CallId::parse("nobody asked").unwrap(), result },
    })
}

fn apply(draft: &mut TurnDraft, step: &Step) {
    match step {
        Step::User(text) => draft.add_user(text.clone(), None),
        Step::StreamText(text) => draft.push_text(text),
        Step::StreamThinking(text) => draft.push_thinking(text),
        Step::DropPartial => draft.drop_partial(),
        Step::Message(message) => drop(draft.finish_message(message.clone())),
        Step::Begin(at) => nth(draft, *at).iter().for_each(|id| draft.begin_call(id)),
        Step::Print(at, text) => nth(draft, *at).iter().for_each(|id| draft.append_output(id, text)),
        Step::Finish(at, result) => nth(draft, *at).iter().for_each(|id| draft.finish_call(id, result.clone())),
        Step::Unknown(result) => draft.finish_call(&CallId::parse("nobody asked").unwrap(), result.clone()),
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
    prop_oneof![Just(STREAMED.to_string()), text().prop_map(|text| format!("{STREAMED}{text}"))]
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
    ]
}

/// Blocks in any order, as a model speaks that thinks between its calls.
fn message() -> impl Strategy<Value = AssistantMessage> {
    let block = prop_oneof![
        3 => thinking().prop_map(Block::Thinking),
        2 => text().prop_map(|text| Block::Text { text }),
        3 => call().prop_map(Block::Call),
    ];
    let blocks = proptest::collection::vec(block, 0..7);
    let model = prop_oneof![Just(None), Just(Some(READER)), Just(Some("other/model"))];
    (model, blocks).prop_map(|(model, blocks)| AssistantMessage { model: model.map(Into::into), at: None, blocks })
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

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => text().prop_map(Step::User),
        3 => streamed().prop_map(Step::StreamText),
        2 => streamed().prop_map(Step::StreamThinking),
        1 => Just(Step::DropPartial),
        4 => message().prop_map(Step::Message),
        3 => any::<usize>().prop_map(Step::Begin),
        3 => (any::<usize>(), text()).prop_map(|(at, text)| Step::Print(at, text)),
        4 => (any::<usize>(), result()).prop_map(|(at, result)| Step::Finish(at, result)),
        1 => result().prop_map(Step::Unknown),
    ]
}

pub(crate) fn story() -> impl Strategy<Value = Story> {
    (text(), proptest::collection::vec(step(), 0..14)).prop_map(|(user, steps)| Story { user, steps })
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
    let by = By { principal: Principal::parse("telegram:alice").unwrap(), surface: Surface::Channel };
    (reason(), prop_oneof![Just(None), Just(Some(by))]).prop_map(|(reason, by)| Verdict::Aborted { reason, by })
}

pub(crate) fn verdict() -> impl Strategy<Value = Verdict> {
    let failed = |code: &str| Verdict::Failed { code: code.into(), message: "it broke".into() };
    prop_oneof![6 => Just(Verdict::Completed), 6 => Just(failed("model_error")), 1 => Just(failed(REFUSED)), 1 => Just(failed(VISION)), 18 => abort()]
}

pub(crate) fn policy() -> impl Strategy<Value = PartialPolicy> {
    prop_oneof![Just(PartialPolicy::Discard), Just(PartialPolicy::Keep)]
}

pub(crate) fn ended() -> impl Strategy<Value = Ended> {
    (story(), verdict(), policy()).prop_map(|(story, verdict, policy)| Ended { story, verdict, policy })
}

/// A conversation of up to five turns.
pub(crate) fn conversation() -> impl Strategy<Value = Vec<Ended>> {
    proptest::collection::vec(ended(), 0..=5)
}
