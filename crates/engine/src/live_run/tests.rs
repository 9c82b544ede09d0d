//! Tests of what a reader of a run's events gets when one event is large.

use std::time::Duration;

use quell_kernel::attachment::MessageFileKind;
use quell_kernel::expiry::ExpiryLimits;
use quell_kernel::turn::{AssistantMessage, CallResult, PartialPolicy, ToolCall};
use quell_protocol::api::OnBusy;
use quell_protocol::approval::{ApprovalRow, ApprovalState};
use quell_protocol::{AgentId, CallEnd, EventKind, Principal, RunEvent, RunId, SessionKey, Surface, ToolOutputStream};
use quell_scope::PointProbe;
use serde_json::json;

use super::*;
use crate::journal::Journal;

const TOOK: Duration = Duration::from_micros(12_345);

/// A run of the agent `main`, as it is after its acceptance.
pub(crate) fn live_run_with_id(clock: Clock, id: &str) -> Arc<LiveRun> {
    live_run_with_work(clock, id, RunWork::default())
}

fn live_run_with_work(clock: Clock, id: &str, work: RunWork) -> Arc<LiveRun> {
    let request = RunRequest {
        id: Some(RunId::parse(id).expect("a run id")),
        session: SessionKey::parse("s").expect("a session key"),
        agent: AgentId::parse("main").expect("an agent id"),
        principal: Principal::parse("ann").expect("a principal"),
        key: ApiKey::default(),
        admin: false,
        surface: Surface::Http,
        parent: None,
        text: "x".to_owned(),
        work,
        on_busy: OnBusy::Queue,
        timeout: None,
        fingerprint: String::new(),
        channel_origin: None,
        max_permissions: None,
    };
    let defaults = RunDefaults {
        expiry: ExpiryLimits::default(),
        run_timeout: Duration::ZERO,
        journal: Journal::default(),
        probe: PointProbe::default(),
    };
    Arc::new(LiveRun::new(request, PartialPolicy::Discard, &defaults, clock, Hub::default()))
}

fn test_live_run() -> Arc<LiveRun> {
    live_run_with_id(Clock::start(), "r1")
}

fn live_run_with_file() -> Arc<LiveRun> {
    let file = MessageFile { name: None, kind: MessageFileKind::Other, bytes: b"a".to_vec() };
    live_run_with_work(Clock::start(), "r1", RunWork::Answer { files: [file].into() })
}

#[test]
fn files_of_a_message_are_kept_until_they_are_taken_or_the_run_ends() {
    let files_of_work = |live_run: &LiveRun| match &live_run.work {
        RunWork::Answer { files } => files.len(),
        other => unreachable!("{other:?} does not answer a message"),
    };
    let taken = live_run_with_file();
    let files = taken.take_message_files();
    assert_eq!((files.len(), Arc::strong_count(&files), files_of_work(&taken)), (1, 1, 0));
    assert_eq!(taken.take_message_files().len(), 0);
    let stopped = live_run_with_file();
    stopped.announce_ending(&Verdict::Completed);
    assert_eq!(stopped.take_message_files().len(), 0);
}

fn begin(writer: &RunWriter, ids: &[String], arguments: &serde_json::Value) -> Vec<CallId> {
    let call = |id: &String| ToolCall::from_wire(id, "shell", arguments.clone());
    let message = AssistantMessage::new(Vec::new(), "", ids.iter().map(call).collect());
    let calls = writer.finish_message(message).expect("an open draft");
    calls.iter().for_each(|call| writer.begin_call(call).expect("an open stream"));
    calls.into_iter().map(|call| call.id).collect()
}

fn begin_one(writer: &RunWriter) -> CallId {
    begin(writer, &["c1".to_owned()], &json!({"command": "x"})).remove(0)
}

/// The output of `seq 1 4000`.
fn numbers() -> String {
    (1..=4000).map(|number| format!("{number}\n")).collect()
}

/// The result of `seq 1 4000; exit 3`.
fn long_result() -> CallResult {
    CallResult { code: Some(3), ..CallResult::new(CallEnd::Error, format!("{}[exit code 3]", numbers())) }
}

fn approval(call: &CallId, arguments: &serde_json::Value) -> ApprovalRow {
    let live_run = test_live_run();
    ApprovalRow {
        id: "a1".to_owned(),
        run_id: live_run.run.id.clone(),
        session_key: live_run.run.session.clone(),
        agent: live_run.run.agent.clone(),
        principal: live_run.run.principal.clone(),
        call_id: call.clone(),
        tool: "shell".to_owned(),
        arguments: arguments.clone(),
        escalation: None,
        question: None,
        answer_fields: None,
        requested_at: String::new(),
        expires_at: String::new(),
        own_model: false,
        quorum: 1,
        allowed_by: Vec::new(),
        state: ApprovalState::Pending,
    }
}

/// Continues reading after `act`, during which the reader did not read.
fn read_after(live_run: &Arc<LiveRun>, act: impl FnOnce(&RunWriter)) -> Vec<Arc<RunEvent>> {
    let mut reader = live_run.follow(live_run.last_seq());
    act(&live_run.writer());
    std::iter::from_fn(|| reader.try_next()).collect()
}

fn names(events: &[Arc<RunEvent>]) -> Vec<&str> {
    events.iter().map(|event| event.name()).collect()
}

#[tokio::test]
async fn the_end_of_a_call_with_a_long_result_is_an_event() {
    let live_run = test_live_run();
    let call = begin_one(&live_run.writer());
    let events = read_after(&live_run, |writer| {
        writer.append_output(&call, ToolOutputStream::Stdout, &numbers());
        writer.finish_call(&call, long_result(), TOOK).expect("an open draft");
        writer.begin_step(2).expect("an open stream");
    });
    assert_eq!(names(&events), ["tool.output", "tool.ended", "step.started"]);
    let EventKind::ToolEnded { end, code, output, ms, .. } = &events[1].kind else { panic!("{:?}", events[1]) };
    assert_eq!((*end, *code, *ms), (CallEnd::Error, Some(3), 12.345));
    assert!(output.starts_with("1\n2\n") && output.ends_with("\n4000\n[exit code 3]"), "{output}");
    let whole = long_result().output.len();
    let left_out = output.split_once("\n[... ").and_then(|(_, rest)| rest.split_once(" bytes left out ...]\n"));
    let left_out: usize = left_out.expect("a mark").0.parse().expect("a number");
    assert_eq!(output.len() - format!("\n[... {left_out} bytes left out ...]\n").len() + left_out, whole);
    let history =
        live_run.writer().with_draft(|draft| draft.results().next().and_then(|(_, _, result)| result.cloned()));
    assert_eq!(history.expect("a draft").expect("a result").output.len(), whole, "the turn has all of it");
}

#[tokio::test]
async fn no_event_is_so_large_that_a_reader_loses_its_neighbours() {
    let huge = "x".repeat(100_000);
    let live_run = test_live_run();
    let arguments = json!({"content": huge});
    let written = read_after(&live_run, |writer| {
        begin(writer, &["c1".to_owned()], &arguments);
        writer.append_text(&huge);
        writer.append_thinking(&huge);
    });
    assert_eq!(names(&written), ["tool.started", "text.delta", "thinking.delta"]);
    assert_eq!(written[1].kind, EventKind::TextDelta { text: huge.clone() }, "no word of the model is cut");
    assert!(matches!(&written[0].kind, EventKind::ToolStarted { arguments: told, .. } if *told == arguments));
    let asked = read_after(&live_run, |writer| {
        let call = begin(writer, &["c2".to_owned()], &json!({})).remove(0);
        writer.emit_approval_requested(&approval(&call, &arguments)).expect("an open stream");
        writer.append_output(&call, ToolOutputStream::Stderr, &huge);
    });
    assert_eq!(names(&asked), ["tool.started", "approval.requested", "tool.output"]);
    let held: Vec<_> =
        (0..300).map(|n| live_run.scope.hold(quell_protocol::ResourceKind::Timer, format!("{n}"))).collect();
    let ended = read_after(&live_run, |_| {
        live_run.announce_ending(&Verdict::Failed { code: "model".to_owned(), message: huge.clone() });
        live_run.seal();
        drop(held);
        live_run.announce_ended(Debts::default(), |_, _| {});
    });
    assert_eq!(names(&ended), ["run.ending", "tool.ended", "tool.ended", "run.ended"]);
    assert!(matches!(&ended[3].kind, EventKind::Ended { receipt, .. } if receipt.resources.len() == 300));
}

#[tokio::test]
async fn a_snapshot_says_how_calls_have_ended() {
    let live_run = test_live_run();
    let ids: Vec<String> = (0..40).map(|n| format!("c{n}")).collect();
    let calls = begin(&live_run.writer(), &ids, &json!({}));
    let mut reader = live_run.follow(1);
    for call in &calls[1..] {
        live_run.writer().finish_call(call, long_result(), TOOK).expect("an open draft");
    }
    let snapshot = reader.try_next().expect("an event");
    let EventKind::Snapshot { calls, .. } = &snapshot.kind else { panic!("{snapshot:?}") };
    assert_eq!((calls[0].end, calls[0].code, calls[0].ms, calls[0].output.as_ref()), (None, None, None, None));
    for call in &calls[1..] {
        assert_eq!((call.end, call.code, call.ms), (Some(CallEnd::Error), Some(3), Some(12.345)));
        let output = call.output.as_deref().unwrap_or_default();
        assert!(output.starts_with("1\n") && output.ends_with("\n[exit code 3]"), "{output}");
    }
    let outputs: usize = calls.iter().filter_map(|call| call.output.as_ref()).map(String::len).sum();
    assert!(outputs < 70 * 1024, "{outputs}");
    live_run.announce_ending(&Verdict::Completed);
    live_run.seal();
    let sealed = live_run.follow(1).try_next().expect("an event");
    let EventKind::Snapshot { calls, .. } = &sealed.kind else { panic!("{sealed:?}") };
    assert_eq!((calls[0].end, calls[1].code), (Some(CallEnd::Stopped), Some(3)));
    assert!(calls[0].ms.is_some(), "a call that was cut off had run for some time");
}

#[test]
fn a_reader_of_an_answer_loses_no_text_when_it_falls_behind() {
    let live_run = test_live_run();
    let writer = live_run.writer();
    let mut follower = live_run.follow(0);
    let mut written = String::new();
    for step in 1..=2 {
        writer.begin_step(step).expect("an open stream");
        let before = written.len();
        for piece in 0..200 {
            let text = format!("piece {piece} of step {step}. ");
            writer.append_text(&text);
            written.push_str(&text);
        }
        let own = written.split_off(before);
        written.push_str(&own);
        writer.finish_message(AssistantMessage::new(Vec::new(), own, Vec::new())).expect("an open draft");
    }
    let mut read = String::new();
    while let Some(event) = follower.try_next() {
        match &event.kind {
            EventKind::TextDelta { text } => read.push_str(text),
            EventKind::Snapshot { earlier_text, text, .. } => {
                read.push_str(&format!("{earlier_text}{text}")[read.len()..]);
            }
            _ => {}
        }
    }
    assert_eq!(read, written);
}

fn sub_run(parent: &Arc<LiveRun>, id: &str) -> Arc<LiveRun> {
    let child = live_run_with_id(Clock::start(), id);
    child.set_parent(parent);
    child
}

fn approval_of(live_run: &LiveRun, id: &str) -> ApprovalRow {
    let row = approval(&CallId::parse("c1").expect("a call id"), &json!({}));
    ApprovalRow { id: id.to_owned(), run_id: live_run.run.id.clone(), ..row }
}

/// The ids of the approvals in the snapshot that a reader behind `seq` gets.
fn snapshot_approvals(live_run: &Arc<LiveRun>, seq: u64) -> Vec<String> {
    let snapshot = live_run.follow(seq).try_next().expect("an event");
    let EventKind::Snapshot { approvals, .. } = &snapshot.kind else { panic!("{snapshot:?}") };
    approvals.iter().map(|row| row.id.clone()).collect()
}

#[test]
fn all_runs_above_are_told_of_an_approval() {
    let root = test_live_run();
    let child = sub_run(&root, "r2");
    let grandchild = sub_run(&child, "r3");
    assert_eq!(grandchild.lineage().iter().map(RunId::as_str).collect::<Vec<_>>(), ["r1", "r2", "r3"]);
    let row = approval_of(&grandchild, "a1");
    let by = quell_protocol::Requester { principal: row.principal.clone(), surface: Surface::Http };
    let writers: Vec<RunWriter> = grandchild.writer().of_ancestors().collect();
    assert_eq!(writers.len(), 2);
    for (writer, above) in writers.iter().zip([&child, &root]) {
        let told = read_after(above, |_| {
            writer.emit_sub_run_approval_requested(&row);
            writer.note_sub_run_approval_updated(&ApprovalRow { allowed_by: vec![by.clone()], ..row.clone() });
            writer.emit_sub_run_approval_resolved("another", &ApprovalState::TimedOut);
            writer.emit_sub_run_approval_resolved("a1", &ApprovalState::Cancelled);
            writer.emit_sub_run_approval_resolved("a1", &ApprovalState::Cancelled);
        });
        assert_eq!(names(&told), ["sub_run.approval_requested", "sub_run.approval_resolved"]);
        assert_eq!(told[0].kind, EventKind::SubRunApprovalRequested { approval: Box::new(row.clone()) });
        let EventKind::SubRunApprovalResolved { approval } = &told[1].kind else { panic!("{told:?}") };
        assert_eq!((&approval.state, approval.allowed_by.len()), (&ApprovalState::Cancelled, 1));
        let mut notices = told.into_iter().map(EngineNotice::Run);
        assert!(!notices.any(|notice| notice.is_for_other_nodes()), "an older node could not read them");
    }
    assert_eq!((root.last_seq(), child.last_seq(), grandchild.last_seq()), (2, 2, 0));
}

#[test]
fn a_run_that_ends_is_asked_nothing_and_told_the_rest() {
    let root = test_live_run();
    let child = sub_run(&root, "r2");
    let writer = root.writer();
    writer.emit_sub_run_approval_requested(&approval_of(&child, "a1"));
    let told = read_after(&root, |writer| {
        root.announce_ending(&Verdict::Completed);
        writer.emit_sub_run_approval_requested(&approval_of(&child, "a2"));
        writer.emit_sub_run_approval_resolved("a1", &ApprovalState::TimedOut);
        writer.emit_sub_run_approval_resolved("a2", &ApprovalState::TimedOut);
    });
    assert_eq!(names(&told), ["run.ending", "sub_run.approval_resolved"]);
    drop((root, writer));
    assert_eq!(child.writer().of_ancestors().count(), 0, "a sub-run does not keep those above in memory");
}

#[test]
fn a_snapshot_lists_the_approvals_that_wait() {
    let root = test_live_run();
    let child = sub_run(&root, "r2");
    let (own, writer) = (approval_of(&root, "a1"), root.writer());
    writer.emit_approval_requested(&own).expect("an open stream");
    for id in ["a2", "a3"] {
        writer.emit_sub_run_approval_requested(&approval_of(&child, id));
    }
    writer.emit_sub_run_approval_resolved("a2", &ApprovalState::TimedOut);
    let fill = || (1..=200).for_each(|step| writer.begin_step(step).expect("an open stream"));
    fill();
    writer.emit_sub_run_approval_requested(&approval_of(&child, "a4"));
    // The announcement of the last one follows the snapshot.
    assert_eq!(snapshot_approvals(&root, 0), ["a1", "a3"]);
    fill();
    assert_eq!(snapshot_approvals(&root, 0), ["a1", "a3", "a4"]);
    assert_eq!(root.pending_approvals().len(), 3);
    writer.emit_approval_resolved("a1", &ApprovalState::TimedOut);
    fill();
    assert_eq!(snapshot_approvals(&root, 0), ["a3", "a4"]);
    root.announce_ending(&Verdict::Completed);
    root.seal();
    assert!(snapshot_approvals(&root, 0).is_empty(), "the run waits for nobody any more");
}
