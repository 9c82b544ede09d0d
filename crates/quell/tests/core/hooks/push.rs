//! Push notifications: what a client of a run hears, whose targets they are, and that no run waits for a receiver.

use quell_engine::engine::Caller;
use quell_engine::push::{PushAuthentication, PushError, PushTarget, PushTranslator};
use quell_kernel::approval::ApprovalPolicy;
use quell_protocol::RunEvent;
use quell_protocol::api::Grants;
use quell_protocol::approval::{ApprovalRow, Decision};
use quell_test_support::hook_receiver::ReceivedHookRequest;

use super::*;
use crate::test_engine::shell_call;

const PUSH_SECRET: &str = "a secret of at least thirty-two bytes";

/// Says the name of each event.
struct EventNames;

impl PushTranslator for EventNames {
    fn notification(&self, run: &RunView, event: &RunEvent, _: &[ApprovalRow]) -> Option<Value> {
        let verdict = match &event.kind {
            EventKind::Ended { verdict, .. } => Some(verdict.as_str()),
            _ => None,
        };
        Some(json!({"run": run.run_id, "event": event.name(), "verdict": verdict}))
    }

    fn media_type(&self) -> &'static str {
        "application/json"
    }

    fn token_header(&self) -> &'static str {
        "x-test-token"
    }
}

fn configure(config: &mut EngineConfig) {
    config.hooks.secret = Some(PUSH_SECRET.to_owned().into());
    config.tools.fetch.allow_private = true;
    let main = config.agents.get_mut(&parse_agent_id("main")).unwrap();
    main.approvals.insert("shell".to_owned(), ApprovalPolicy::Ask);
}

/// Commands of its agent wait for an approval.
async fn start_push_engine() -> TestEngine {
    let test = TestEngine::start_with(ProcessLock::shared().await, configure).await;
    test.engine.serve_push(Arc::new(EventNames));
    test.answer_by_marker();
    test
}

fn target(id: &str, url: String) -> PushTarget {
    let authentication = PushAuthentication { scheme: "Bearer".into(), credentials: Some("hush".into()) };
    PushTarget { id: id.into(), url, token: Some("mark".into()), authentication: Some(authentication) }
}

/// A person who may do nothing to what others own.
fn stranger() -> Caller {
    Caller { grants: Grants::NONE, ..bob() }
}

/// Starts a run that waits for an approval; returns the run, and the id of the approval.
async fn start_waiting_run(test: &TestEngine) -> (RunId, String) {
    test.script_marker("go", [shell_call("true"), ScriptedResponse::text("Done.")]);
    let run = test.send(submission("s", "go marker:go")).await;
    let row = poll_until("an approval", async || test.engine.pending_approvals().into_iter().next()).await;
    (run, row.id)
}

/// What the notifications say, in order: the names of the events, the last one with the verdict.
fn told(requests: &[ReceivedHookRequest], run: &RunId) -> Vec<String> {
    let told = requests.iter().map(|request| {
        let body: Value = serde_json::from_str(&request.text).unwrap();
        assert_eq!(body["run"], run.as_str());
        assert_eq!((request.header("x-test-token"), request.header("authorization")), ("mark", "Bearer hush"));
        let verdict = body["verdict"].as_str().map(|verdict| format!(" {verdict}")).unwrap_or_default();
        format!("{}{verdict}", body["event"].as_str().unwrap())
    });
    told.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_hears_of_the_state_of_its_run_and_of_each_change() {
    let (test, receiver) = (start_push_engine().await, HookReceiver::start().await);
    let (run, approval) = start_waiting_run(&test).await;
    test.engine.put_push_target(&alice(), &run, target("1", receiver.url("a?b"))).await.unwrap();
    assert_eq!(told(&receiver.wait_received(1).await, &run), ["approval.requested"]);
    test.engine.answer_approval(&root(), &approval, Decision::Allow.into()).unwrap();
    let expected = ["approval.requested", "approval.resolved", "run.ended completed"];
    assert_eq!(told(&receiver.wait_received(3).await, &run), expected);
    // A client that is late hears of the end, too.
    let late = HookReceiver::start().await;
    test.wait_ended(&run).await;
    test.engine.put_push_target(&alice(), &run, target("late", late.url(""))).await.unwrap();
    assert_eq!(told(&late.wait_received(1).await, &run), ["run.ended completed"]);
    test.close().await;
    assert_eq!((receiver.wait_received(3).await.len(), late.wait_received(1).await.len()), (3, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn push_targets_are_those_of_one_client_for_a_run_that_it_may_read() {
    let (test, receiver) = (start_push_engine().await, HookReceiver::start().await);
    let (run, _) = start_waiting_run(&test).await;
    let engine = &test.engine;
    let refused = engine.put_push_target(&stranger(), &run, target("1", receiver.url(""))).await.unwrap_err();
    assert!(matches!(refused, PushError::RunNotFound(_)), "{refused}");
    for id in 1..=10 {
        engine.put_push_target(&alice(), &run, target(&id.to_string(), receiver.url(""))).await.unwrap();
    }
    let refused = engine.put_push_target(&alice(), &run, target("11", receiver.url(""))).await.unwrap_err();
    assert!(matches!(refused, PushError::TooManyTargets), "{refused}");
    assert_eq!(engine.push_targets(&alice(), &run).await.unwrap().len(), 10);
    // Bob may read the run, and sees no secrets of others.
    assert_eq!(engine.push_targets(&bob(), &run).await.unwrap(), []);
    let of_alice = engine.push_target(&bob(), &run, "1").await.unwrap_err();
    assert!(matches!(of_alice, PushError::TargetNotFound(_)), "{of_alice}");
    assert_eq!(engine.push_target(&alice(), &run, "1").await.unwrap(), target("1", receiver.url("")));
    for id in 1..=10 {
        assert!(engine.delete_push_target(&bob(), &run, &id.to_string()).await.is_err());
        engine.delete_push_target(&alice(), &run, &id.to_string()).await.unwrap();
    }
    receiver.wait_received(10).await;
    test.stop_and_wait(&run).await;
    test.close().await;
    let told = told(&receiver.wait_received(10).await, &run);
    assert!(told.iter().all(|event| event == "approval.requested"), "deleted targets hear of no end: {told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_may_read_a_run_no_more_hears_nothing_more() {
    let (test, receiver) = (start_push_engine().await, HookReceiver::start().await);
    let (run, approval) = start_waiting_run(&test).await;
    test.engine.share_session(&alice(), &parse_session_key("s"), true).await.unwrap();
    test.engine.put_push_target(&stranger(), &run, target("1", receiver.url(""))).await.unwrap();
    assert_eq!(told(&receiver.wait_received(1).await, &run), ["approval.requested"]);
    test.engine.share_session(&alice(), &parse_session_key("s"), false).await.unwrap();
    test.engine.answer_approval(&root(), &approval, Decision::Allow.into()).unwrap();
    test.wait_ended(&run).await;
    test.close().await;
    assert_eq!(receiver.wait_received(1).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_a_stop_nor_a_shutdown_waits_for_a_receiver_that_hangs() {
    let (test, receiver) = (start_push_engine().await, HookReceiver::start().await);
    receiver.queue_replies(vec![HookReceiverReply::Hang; 10]);
    let (run, _) = start_waiting_run(&test).await;
    test.engine.put_push_target(&alice(), &run, target("1", receiver.url(""))).await.unwrap();
    receiver.wait_received(1).await;
    let begun = Instant::now();
    let view = test.stop_and_wait(&run).await;
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    assert!(receipt_of(&view).resources.iter().all(|row| row.kind != ResourceKind::HttpRequest), "{view:#?}");
    test.close().await;
    assert!(begun.elapsed() < SOON_LIMIT, "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_daemon_tells_of_the_ends_that_nobody_has_heard_of() {
    let data_dir = TestDataDir::new();
    let [away, dead] = [HookReceiver::start().await, HookReceiver::start().await];
    away.queue_replies(vec![HookReceiverReply::Status(503, ""); 3]);
    dead.queue_replies(vec![HookReceiverReply::Status(503, ""); 3]);
    let test = TestEngine::start_on(&data_dir, configure).await;
    test.engine.serve_push(Arc::new(EventNames));
    test.answer_by_marker();
    let ended = test.run_message("s", "one").await.run_id;
    test.engine.put_push_target(&alice(), &ended, target("1", away.url(""))).await.unwrap();
    let lost = test.run_message("s", "two").await.run_id;
    test.engine.put_push_target(&alice(), &lost, target("1", dead.url(""))).await.unwrap();
    away.wait_received(1).await;
    dead.wait_received(1).await;
    test.close().await;
    // The state that a daemon leaves when it dies during the run.
    OtherProgram::connect(data_dir.path()).undo_end(&lost);
    let (before_ended, before_lost) = (away.wait_received(1).await.len(), dead.wait_received(1).await.len());
    let test = TestEngine::start_on(&data_dir, configure).await;
    assert_eq!(away.wait_received(1).await.len(), before_ended, "nothing is sent before clients are served");
    test.engine.serve_push(Arc::new(EventNames));
    let requests = poll_until("the end is accepted", async || {
        let requests = away.wait_received(before_ended + 1).await;
        (requests.len() > 3).then_some(requests)
    });
    assert_eq!(told(&requests.await, &ended).last().unwrap(), "run.ended completed");
    assert_eq!(told(&dead.wait_received(before_lost + 1).await, &lost).last().unwrap(), "run.ended aborted");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_receiver_is_refused_unless_the_operator_allows_it() {
    let receiver = HookReceiver::start().await;
    let test = TestEngine::start_with(ProcessLock::shared().await, |config| {
        configure(config);
        config.tools.fetch.allow_private = false;
    })
    .await;
    test.engine.serve_push(Arc::new(EventNames));
    test.answer_by_marker();
    let run = test.run_message("s", "hello").await.run_id;
    for caller in [alice(), root()] {
        let refused = test.engine.put_push_target(&caller, &run, target("1", receiver.url(""))).await.unwrap_err();
        assert!(matches!(&refused, PushError::InvalidTarget(_)), "{refused}");
        assert!(refused.to_string().contains("127.0.0.1"), "{refused}");
    }
    test.close().await;
    assert!(receiver.wait_received(0).await.is_empty());
}
