//! Calls that wait for a person: asked on every surface, answered once, settled by a stop and by silence.

use quell_engine::agent::AgentConfig;
use quell_engine::dispatch::AnswerError;
use quell_kernel::approval::{ApprovalPolicy, MayNot};
use quell_protocol::api::Grants;
use quell_protocol::approval::{ApprovalRow, ApprovalState, Decision};
use quell_protocol::{CallEnd, EventKind, ResourceKind, RunId};
use quell_testkit::commands::{self, Marker};
use quell_testkit::{Behaviour, leaks};
use serde_json::json;

use crate::harness::{Claim, House, PATIENCE, Watcher, agent, alice, flat, message, receipt, root};

async fn house(change: impl FnOnce(&mut AgentConfig, &mut u64)) -> House {
    let house = House::with(Claim::shared().await, |config| {
        let main = config.agents.get_mut(&agent("main")).unwrap();
        main.approvals.insert("shell".to_owned(), ApprovalPolicy::Ask);
        change(main, &mut config.limits.approval_timeout_s);
    })
    .await;
    house.answer_by_marker();
    house
}

fn shell(mark: &Marker) -> Behaviour {
    Behaviour::tool_call("c1", "shell", &json!({"command": format!("echo ran; : {}", mark.as_str())}))
}

async fn asked(house: &House) -> ApprovalRow {
    let engine = house.engine.clone();
    leaks::settled(PATIENCE, move || if engine.approvals().is_empty() { Err("nobody asks".into()) } else { Ok(()) })
        .await;
    house.engine.approvals().remove(0)
}

fn call_of(watcher: &mut Watcher, run: &RunId) -> (CallEnd, String) {
    let ended = watcher.events(run).iter().find_map(|event| match &event.kind {
        EventKind::ToolEnded { end, output, .. } => Some((*end, output.clone())),
        _ => None,
    });
    ended.unwrap()
}

fn decisions(watcher: &mut Watcher, run: &RunId) -> Vec<String> {
    let decision = |kind: &EventKind| match kind {
        EventKind::ApprovalResolved { decision, .. } => Some(decision.clone()),
        _ => None,
    };
    watcher.events(run).iter().filter_map(|event| decision(&event.kind)).collect()
}

#[tokio::test]
async fn an_allowed_call_runs_and_a_second_answer_is_refused() {
    let house = house(|_, _| {}).await;
    let mut watcher = Watcher::of(&house.engine);
    house.script("go", [shell(&Marker::new()), Behaviour::text("Done.")]);
    let run = house.send(message("s", "go marker:go")).await;
    let row = asked(&house).await;
    assert_eq!((&row.run_id, row.tool.as_str(), &row.state), (&run, "shell", &ApprovalState::Pending));
    let principal = crate::harness::principal("bob");
    let bob = quell_engine::dispatch::Caller { principal, grants: Grants::NONE, ..alice() };
    for decision in [Decision::Allow, Decision::Deny] {
        let foreign = house.engine.answer_approval(&bob, &row.id, decision);
        assert_eq!(foreign, Err(AnswerError::NotYours(row.id.clone(), MayNot::Decide)));
    }
    let writer = quell_engine::dispatch::Caller { grants: Grants::NONE, ..alice() };
    let own = house.engine.answer_approval(&writer, &row.id, Decision::Allow);
    assert_eq!(own, Err(AnswerError::NotYours(row.id.clone(), MayNot::Decide)), "what asked never approves");
    let unknown = house.engine.answer_approval(&alice(), "nonsense", Decision::Allow);
    assert_eq!(unknown, Err(AnswerError::Unknown("nonsense".to_owned())));
    house.engine.answer_approval(&root(), &row.id, Decision::Allow).unwrap();
    let again = house.engine.answer_approval(&alice(), &row.id, Decision::Deny).unwrap_err();
    assert!(matches!(again, AnswerError::Settled(row) if row.state.word() == "allow"));
    let view = house.ended(&run).await;
    assert_eq!(view.output.as_deref(), Some("Done."));
    let (end, output) = call_of(&mut watcher, &run);
    assert!(end == CallEnd::Ok && output.starts_with("ran"), "{output}");
    assert_eq!(decisions(&mut watcher, &run), ["allow"]);
    let held = receipt(&view).resources.iter().find(|row| row.kind == ResourceKind::Approval).unwrap();
    assert_eq!(held.how, "finished");
    house.close().await;
}

#[tokio::test]
async fn a_denied_call_does_not_run_and_the_model_is_told() {
    let house = house(|_, _| {}).await;
    let mut watcher = Watcher::of(&house.engine);
    let mark = Marker::new();
    house.script("go", [Behaviour::tool_call("c1", "shell", &json!({"command": commands::setsid_child(&mark)}))]);
    let run = house.send(message("s", "go marker:go")).await;
    let row = asked(&house).await;
    house.engine.answer_approval(&alice(), &row.id, Decision::Deny).unwrap();
    house.ended(&run).await;
    assert_eq!(call_of(&mut watcher, &run).0, CallEnd::Denied);
    assert!(flat(&house.last_messages()).contains("Denied by a person"));
    let processes = house.engine.run(&run).await.unwrap().unwrap();
    assert!(receipt(&processes).resources.iter().all(|row| row.kind != ResourceKind::Process));
    house.close().await;
}

#[tokio::test]
async fn silence_is_a_denial_that_is_recorded_as_a_time_out() {
    let house = house(|_, timeout| *timeout = 0).await;
    let mut watcher = Watcher::of(&house.engine);
    house.script("go", [shell(&Marker::new())]);
    let view = house.ask("s", "go marker:go").await;
    assert_eq!(decisions(&mut watcher, &view.run_id), ["timeout"]);
    assert_eq!(call_of(&mut watcher, &view.run_id).0, CallEnd::Denied);
    assert!(flat(&house.last_messages()).contains("Nobody allowed the call in time"));
    house.close().await;
}

#[tokio::test]
async fn a_stop_settles_what_waits_before_it_returns() {
    let house = house(|_, _| {}).await;
    let mut watcher = Watcher::of(&house.engine);
    house.script("go", [shell(&Marker::new())]);
    let run = house.send(message("s", "go marker:go")).await;
    let row = asked(&house).await;
    let _stop = house.stop(&run);
    assert!(house.engine.approvals().is_empty(), "in the same synchronous call");
    let late = house.engine.answer_approval(&alice(), &row.id, Decision::Allow).unwrap_err();
    assert!(matches!(late, AnswerError::Settled(row) if row.state == ApprovalState::Cancelled));
    house.ended(&run).await;
    assert_eq!(decisions(&mut watcher, &run), ["cancelled"]);
    house.close().await;
}

#[tokio::test]
async fn a_tool_that_the_configuration_denies_never_runs_and_asks_nobody() {
    let house = house(|main, _| {
        main.approvals.insert("*".to_owned(), ApprovalPolicy::Deny);
        main.approvals.insert("read_file".to_owned(), ApprovalPolicy::Auto);
    })
    .await;
    let mut watcher = Watcher::of(&house.engine);
    let list = Behaviour::tool_call("c1", "list_files", &json!({}));
    let read = Behaviour::tool_call("c2", "read_file", &json!({"path": "none.txt"}));
    house.script("go", [list, read]);
    let view = house.ask("s", "go marker:go").await;
    assert_eq!(call_of(&mut watcher, &view.run_id).0, CallEnd::Denied);
    assert!(decisions(&mut watcher, &view.run_id).is_empty());
    let seen = flat(&house.last_messages());
    assert!(seen.contains("The configuration denies this tool") && seen.contains("none.txt"), "{seen}");
    house.close().await;
}
