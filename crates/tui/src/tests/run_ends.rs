//! After the end of a run no row shows activity or a running clock, whatever happened before.

use proptest::prelude::*;
use quell_client::test_support::daemon::run_view;
use quell_client::test_support::receipts;
use quell_protocol::{Amendment, AmendmentKind, EventKind, Receipt, RunId, Verdict};
use ratatui_core::text::Line;
use serde_json::{Value, json};

use crate::effects::{ChatInput, ChatRunUpdate, DaemonFailure, DaemonFailureKind};
use crate::harness::{ChatHarness, from_json};
use crate::markdown;
use crate::state::DetailsMode;
use crate::unix_millis::UnixMillis;
use crate::view::entry::{self, RenderOptions};

/// Glyphs of active and of waiting rows.
const LIVE: [char; 2] = ['●', '◔'];

/// An event of a run, with call and approval ids that may be known or not.
fn event() -> impl Strategy<Value = Value> {
    let call = || prop_oneof![Just("c1"), Just("c2"), Just("c3")];
    let end = prop_oneof![Just("ok"), Just("error"), Just("stopped"), Just("not_started"), Just("denied")];
    prop_oneof![
        2 => (1_u32..4).prop_map(|step| json!({"type": "step.started", "step": step})),
        2 => Just(json!({"type": "text.delta", "text": "some text"})),
        2 => Just(json!({"type": "thinking.delta", "text": "a thought"})),
        4 => call().prop_map(|id| json!({"type": "tool.started", "callId": id, "tool": "shell", "arguments": {}})),
        1 => call().prop_map(|id| json!({"type": "tool.output", "callId": id, "stream": "stdout", "text": "out"})),
        2 => (call(), end).prop_map(
            |(id, end)| json!({"type": "tool.ended", "callId": id, "end": end, "output": "out", "ms": 2.0})
        ),
        3 => call().prop_map(|id| {
            json!({"type": "approval.requested", "id": format!("a-{id}"), "callId": id, "tool": "shell", "arguments": {},
                   "expiresAt": ""})
        }),
        1 => call().prop_map(
            |id| json!({"type": "approval.resolved", "id": format!("a-{id}"), "decision": "allow"})
        ),
        1 => call().prop_map(|id| {
            json!({"type": "run.snapshot", "text": "some text and more", "thinking": "a thought",
                   "calls": [{"callId": id, "tool": "shell"}]})
        }),
        1 => Just(json!({"type": "run.ending", "verdict": {"kind": "aborted", "reason": "user"}})),
    ]
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        Just(Verdict::Completed),
        Just(receipts::aborted_by_user()),
        Just(Verdict::Failed { code: "internal".into(), message: "broken".into() }),
    ]
}

/// Lists a working sub-run of `parent` among the active runs.
fn working_below(scene: &mut ChatHarness, parent: &RunId) {
    let change =
        json!({"agent": "scout", "parent": parent.as_str(), "sessionKey": "sub", "startedAt": "2026-03-01T12:00:00Z"});
    scene.receive_active_runs(json!([run_view("r9", change)]));
}

/// The rows of the transcript at this time.
fn page(scene: &ChatHarness, now: UnixMillis) -> Vec<String> {
    let options = RenderOptions { width: 60, now, details: DetailsMode::Open, texts: scene.chat.texts };
    let mut prose = |_: usize, text: &str, width: usize| markdown::render(text, width);
    let entries = (0..scene.chat.transcript.len()).filter_map(|at| scene.chat.transcript.get(at));
    entries
        .flat_map(|entry| entry::entry_rows(entry, options, &mut prose))
        .map(|line: Line<'_>| line.to_string())
        .collect()
}

fn assert_nothing_live(scene: &ChatHarness) -> Result<(), TestCaseError> {
    let shown = page(scene, scene.now);
    let live = shown.iter().find(|line| line.contains(LIVE));
    prop_assert!(live.is_none(), "a line is live after the end: {live:?} in {shown:#?}");
    prop_assert_eq!(&shown, &page(scene, UnixMillis(scene.now.0 + 3_600_000)), "a line counts the time after the end");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn no_line_of_a_run_is_live_after_its_end(
        events in prop::collection::vec(event(), 0..20),
        subs in any::<(bool, bool)>(),
        verdict in verdict(),
    ) {
        let (mut scene, id) = ChatHarness::running("work");
        if subs.0 {
            working_below(&mut scene, &id);
        }
        for event in events {
            scene.receive_event(&id, from_json(event));
            scene.advance_time(700);
        }
        let receipt = Box::new(receipts::stopped_receipt());
        scene.receive_event(&id, EventKind::Ended { verdict, receipt, steps: 1, text: None });
        assert_nothing_live(&scene)?;
        if subs.1 {
            // This list was requested before the end.
            working_below(&mut scene, &id);
            assert_nothing_live(&scene)?;
        }
    }

    #[test]
    fn no_line_of_a_run_is_live_when_nothing_can_be_learnt_of_it(events in prop::collection::vec(event(), 0..20)) {
        let (mut scene, id) = ChatHarness::running("work");
        for event in events {
            scene.receive_event(&id, from_json(event));
        }
        let gone = DaemonFailure { text: "no such run".into(), kind: DaemonFailureKind::NotFound };
        scene.receive_update(id, ChatRunUpdate::FollowFailed(gone));
        assert_nothing_live(&scene)?;
    }
}

#[test]
fn a_sub_run_that_goes_on_is_asked_about_until_its_end() {
    let (mut scene, id) = ChatHarness::running("work");
    working_below(&mut scene, &id);
    scene.receive_end(&id, receipts::completed_receipt());
    let told = |scene: &ChatHarness| page(scene, scene.now).join("\n");
    assert!(told(&scene).contains("goes on in the background"), "{}", told(&scene));
    let asked = scene.chat.update(ChatInput::Tick, UnixMillis(scene.now.0 + 60_000));
    assert!(asked.iter().any(|effect| format!("{effect:?}").contains("Active")), "{asked:?}");
    scene.receive_active_runs(json!([]));
    let receipt = receipts::stopped_receipt();
    let over = json!({"state": "ended", "sessionKey": "sub", "verdict": receipt.verdict, "receipt": receipt});
    scene.receive_run("r9", over);
    assert!(told(&scene).contains("└ scout  stopped in"), "{}", told(&scene));
    let asked = scene.chat.update(ChatInput::Tick, UnixMillis(scene.now.0 + 120_000));
    assert!(!asked.iter().any(|effect| format!("{effect:?}").contains("Active")), "{asked:?}");
}

#[test]
fn amendments_after_the_end_are_shown_when_they_come() {
    let (mut scene, id) = ChatHarness::running("work");
    let mut receipt = receipts::stopped_receipt();
    receipt.resources[0].how = "unconfirmed".into();
    scene.receive_end(&id, receipt.clone());
    let asks = |scene: &mut ChatHarness, ms| {
        scene.now = UnixMillis(scene.now.0 + ms);
        let asked = scene.chat.update(ChatInput::Tick, scene.now);
        asked.iter().any(|effect| format!("{effect:?}").contains(&format!("Run({id:?})")))
    };
    let answer = |scene: &mut ChatHarness, receipt: &Receipt| {
        scene.receive_run(id.as_str(), json!({"state": "ended", "verdict": receipt.verdict, "receipt": receipt}));
    };
    assert!(asks(&mut scene, 100), "it is asked at once");
    answer(&mut scene, &receipt);
    assert!(!asks(&mut scene, 500) && asks(&mut scene, 1000), "and once in a second");
    receipt.amendments.push(Amendment {
        at: receipts::instant_after_stop(3012.0),
        resource: receipt.resources[0].id,
        kind: AmendmentKind::LateResult,
        text: "the MCP server files finished the call".into(),
        leftovers: Vec::new(),
    });
    answer(&mut scene, &receipt);
    let shown = page(&scene, scene.now).join("\n");
    assert!(shown.contains("the MCP server files") && shown.contains("later"), "{shown}");
    assert!(!asks(&mut scene, 5000), "nothing more can come");
}

#[test]
fn nodes_that_could_not_be_asked_for_a_stop_are_named() {
    let (mut scene, _) = ChatHarness::running("work");
    scene.press_esc();
    scene.receive_stop_answer(json!({"aborted": false, "runIds": [], "withdrawn": [], "unreached": [
        {"node": "b", "stored": true, "leaseEndsInMs": 3900, "leaseEndsBy": "2026-01-02T03:04:05Z"}]}));
    let screen = scene.screen_text(100, 24);
    assert!(screen.contains("Not every node answers (b). What runs there ends within 4 s."), "{screen}");
}
