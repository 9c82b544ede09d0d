//! Property tests of the abort of an agent's model calls over random scenarios (row B10 of
//! docs/design/requirements.md).
//!
//! An [`AbortScenario`] applies random actions to a real engine and tracks the expected state. Each property checks one
//! thing after every action. That the page shows its button by this status is tested in `page`.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use quell_kernel::registry::AgentRunFilter;
use quell_protocol::api::{AgentAbortAnswer, ComputeStatus};
use tokio::runtime::{Builder, Runtime};

use crate::prelude::*;
use crate::test_server;

/// One action; the number is the session. Actions on a session that is already busy are skipped.
#[derive(Debug, Clone, Copy)]
enum AbortAction {
    /// Starts a run that waits for the model.
    Wait(u8),
    /// Starts a run that is busy in a tool.
    Work(u8),
    /// A run that the model answers.
    Answer(u8),
    Fail(u8),
    Abort,
}

fn any_action() -> impl Strategy<Value = AbortAction> {
    let session = 0..3_u8;
    prop_oneof![
        4 => session.clone().prop_map(AbortAction::Wait),
        1 => session.clone().prop_map(AbortAction::Work),
        2 => session.clone().prop_map(AbortAction::Answer),
        1 => session.prop_map(AbortAction::Fail),
        3 => Just(AbortAction::Abort),
    ]
}

/// A real engine and its expected state.
struct AbortScenario {
    test_engine: TestEngine,
    waiting: BTreeMap<u8, RunId>,
    working: BTreeMap<u8, RunId>,
    /// Messages and answers in order: session and text.
    texts: Vec<(u8, String)>,
}

struct ObservedAbort {
    answer: AgentAbortAnswer,
    waiting_before: BTreeMap<u8, RunId>,
}

impl AbortScenario {
    async fn start() -> Self {
        let test_engine = TestEngine::start_shared().await;
        Self { test_engine, waiting: BTreeMap::new(), working: BTreeMap::new(), texts: Vec::new() }
    }

    async fn perform(&mut self, action: AbortAction) -> Option<ObservedAbort> {
        match action {
            AbortAction::Abort => return Some(self.abort().await),
            AbortAction::Wait(session)
            | AbortAction::Work(session)
            | AbortAction::Answer(session)
            | AbortAction::Fail(session)
                if self.waiting.contains_key(&session) || self.working.contains_key(&session) => {}
            AbortAction::Wait(session) => {
                let arrived = self.test_engine.model.recorded_requests().len();
                let run = self.start_run(session, ScriptedResponse::SilentBeforeHeaders).await;
                self.test_engine.model.request_at(arrived).wait_arrived().await;
                self.waiting.insert(session, run);
            }
            AbortAction::Work(session) => {
                let call = ScriptedResponse::tool_call("c1", "shell", &json!({"command": "sleep 600"}));
                let run = self.start_run(session, call).await;
                self.test_engine.wait_resource_held(&run, ResourceKind::Process).await;
                self.working.insert(session, run);
            }
            AbortAction::Answer(session) => self.run_answered(session).await,
            AbortAction::Fail(session) => {
                let run = self.start_run(session, ScriptedResponse::status(400)).await;
                let verdict = self.test_engine.wait_ended(&run).await.verdict;
                assert_eq!(verdict.as_ref().map(|verdict| verdict.as_str()), Some("failed"));
            }
        }
        None
    }

    async fn start_run(&mut self, session: u8, behaviour: ScriptedResponse) -> RunId {
        let text = self.next_text(session, "question");
        self.test_engine.model.script(behaviour);
        self.test_engine.send(submission(&session.to_string(), &text)).await
    }

    async fn run_answered(&mut self, session: u8) {
        let question = self.next_text(session, "question");
        let answer = self.next_text(session, "answer");
        self.test_engine.model.script(ScriptedResponse::text(answer.clone()));
        let view = self.test_engine.run_message(&session.to_string(), &question).await;
        assert_eq!(view.output, Some(answer));
    }

    fn next_text(&mut self, session: u8, kind: &str) -> String {
        let text = format!("{kind}-{}.", self.texts.len());
        self.texts.push((session, text.clone()));
        text
    }

    fn request_abort(&self) -> (AgentAbortAnswer, quell_engine::engine::StopResult) {
        self.test_engine.engine.abort_agent(
            &alice(),
            &parse_agent_id("main"),
            AgentRunFilter::WaitingLlm,
            &stop_ask(StopLevel::Gentle),
        )
    }

    async fn abort(&mut self) -> ObservedAbort {
        let (answer, stop) = self.request_abort();
        tokio::time::timeout(WAIT_TIMEOUT, stop.wait_settled()).await.expect("the abort does not settle");
        ObservedAbort { answer, waiting_before: std::mem::take(&mut self.waiting) }
    }

    /// Stops the remaining runs and closes the engine.
    async fn close(mut self) {
        self.abort().await;
        for run in self.working.values() {
            self.test_engine.stop(run);
            self.test_engine.wait_ended(run).await;
        }
        self.test_engine.close().await;
    }
}

fn new_runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn new_test_runner(number: u32) -> TestRunner {
    TestRunner::new(Config { cases: number, failure_persistence: None, ..Config::default() })
}

/// Applies random scenarios and calls `check` after every action.
fn check_after_each_action(check: impl AsyncFn(&mut AbortScenario, Option<ObservedAbort>)) {
    let runtime = new_runtime();
    let ran = new_test_runner(16).run(&vec(any_action(), 1..9), |actions| {
        runtime.block_on(async {
            let mut scenario = AbortScenario::start().await;
            for action in actions {
                let aborted = scenario.perform(action).await;
                check(&mut scenario, aborted).await;
            }
            scenario.close().await;
        });
        Ok(())
    });
    ran.unwrap();
}

#[test]
fn b10_the_agent_waits_for_the_model_if_and_only_if_a_call_of_it_does() {
    check_after_each_action(async |scenario, _| {
        let expected = match (scenario.waiting.is_empty(), scenario.working.is_empty()) {
            (false, _) => ComputeStatus::WaitingLlm,
            (true, false) => ComputeStatus::Processing,
            (true, true) => ComputeStatus::Idle,
        };
        assert_eq!(scenario.test_engine.agent_status(), expected);
    });
}

#[test]
fn b10_a_call_has_its_entry_from_before_it_leaves_until_its_success_failure_or_abort() {
    check_after_each_action(async |scenario, _| {
        assert_eq!(scenario.test_engine.engine.count_model_requests(), scenario.waiting.len());
    });
}

#[test]
fn b10_after_an_abort_nothing_waits_and_the_next_message_works() {
    check_after_each_action(async |scenario, aborted| {
        let Some(aborted) = aborted else { return };
        let status = scenario.test_engine.agent_status();
        assert!(matches!(status, ComputeStatus::Idle | ComputeStatus::Processing), "{status:?} after an abort");
        for session in aborted.waiting_before.into_keys() {
            scenario.run_answered(session).await;
        }
    });
}

#[test]
fn b10_an_abort_takes_what_waits_and_its_repeat_changes_nothing() {
    check_after_each_action(async |scenario, aborted| {
        let Some(ObservedAbort { answer, waiting_before: waited }) = aborted else { return };
        let (mut took, mut waited) = (answer.run_ids.clone(), waited.into_values().collect::<Vec<_>>());
        took.sort();
        waited.sort();
        assert_eq!((answer.ok, answer.aborted, took), (true, !waited.is_empty(), waited));
        let before = scenario.test_engine.engine.active_runs().len();
        let (repeat, stop) = scenario.request_abort();
        assert_eq!((repeat.ok, repeat.aborted, repeat.run_ids), (true, false, Vec::new()));
        assert_eq!(repeat.reason.as_deref(), Some("not_waiting_llm"));
        assert!(stop.tickets.is_empty());
        assert_eq!(scenario.test_engine.engine.active_runs().len(), before);
    });
}

/// The scripted model answers 400 to an invalid history, and `close` asserts that it never did.
#[test]
fn b10_every_later_request_has_the_whole_valid_history() {
    check_after_each_action(async |scenario, _| {
        let free =
            (0..3).find(|session| !scenario.waiting.contains_key(session) && !scenario.working.contains_key(session));
        let Some(session) = free else { return };
        scenario.run_answered(session).await;
        let request = messages_as_text(&scenario.test_engine.last_messages());
        // The last text is the answer to this request.
        let texts = scenario.texts.iter().rev().skip(1).filter(|(of, _)| *of == session);
        for (_, text) in texts {
            assert!(request.contains(text.as_str()), "{text} is missing in {request}");
        }
    });
}

#[test]
fn b10_an_unknown_agent_is_not_found() {
    let runtime = new_runtime();
    let server = runtime.block_on(test_server::TestServer::start());
    let ids = "[A-Za-z][A-Za-z0-9 ._:/-]{0,40}".prop_filter("configured", |id| id != "main");
    let ran = new_test_runner(64).run(&ids, |id| {
        let path = format!("/api/agent/{}/abort", test_server::percent_encode(&id));
        let answer = runtime.block_on(server.http.post(&path, &json!({})));
        prop_assert_eq!((answer.status, answer.body["error"].as_str()), (404, Some("agent_not_found")), "{:?}", id);
        Ok(())
    });
    ran.unwrap();
}
