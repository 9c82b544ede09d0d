//! Row B10: what must be true of the abort of an agent's model calls, as properties over random scenarios. A [`World`] does
//! what a scenario says to a real engine and keeps the book of what must be true; each property looks at one thing after
//! every act. (That the page shows its button by this status belongs to the page.)

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use quell_kernel::Push;
use quell_kernel::registry::AgentPhase;
use quell_protocol::api::{AgentAbortAnswer, ComputeStatus};
use quell_protocol::{ResourceKind, RunId};
use quell_testkit::Behaviour;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

use crate::doors;
use crate::harness::{House, PATIENCE, agent, alice, ask, flat, message};

/// One thing that happens; the number is the session. What the session is too busy for does not happen.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// A run begins and waits for the model.
    Wait(u8),
    /// A run begins and is at work in a tool.
    Work(u8),
    /// A run is answered.
    Answer(u8),
    /// A run fails.
    Fail(u8),
    /// The agent's model calls are aborted.
    Abort,
}

fn act() -> impl Strategy<Value = Act> {
    let session = 0..3_u8;
    prop_oneof![
        4 => session.clone().prop_map(Act::Wait),
        1 => session.clone().prop_map(Act::Work),
        2 => session.clone().prop_map(Act::Answer),
        1 => session.prop_map(Act::Fail),
        3 => Just(Act::Abort),
    ]
}

/// A real engine, and what must be true of it.
struct World {
    house: House,
    waiting: BTreeMap<u8, RunId>,
    working: BTreeMap<u8, RunId>,
    /// What was said, in order: session and text.
    said: Vec<(u8, String)>,
}

/// An abort as its caller saw it.
struct Aborted {
    answer: AgentAbortAnswer,
    waited: BTreeMap<u8, RunId>,
}

impl World {
    async fn open() -> Self {
        let house = House::shared().await;
        Self { house, waiting: BTreeMap::new(), working: BTreeMap::new(), said: Vec::new() }
    }

    async fn act(&mut self, act: Act) -> Option<Aborted> {
        match act {
            Act::Abort => return Some(self.abort().await),
            Act::Wait(session) | Act::Work(session) | Act::Answer(session) | Act::Fail(session)
                if self.waiting.contains_key(&session) || self.working.contains_key(&session) => {}
            Act::Wait(session) => {
                let arrived = self.house.model.seen().len();
                let run = self.begin(session, Behaviour::SilentBeforeHeaders).await;
                self.house.model.request(arrived).arrived().await;
                self.waiting.insert(session, run);
            }
            Act::Work(session) => {
                let call = Behaviour::tool_call("c1", "shell", &json!({"command": "sleep 600"}));
                let run = self.begin(session, call).await;
                self.house.holds(&run, ResourceKind::Process).await;
                self.working.insert(session, run);
            }
            Act::Answer(session) => self.answered(session).await,
            Act::Fail(session) => {
                let run = self.begin(session, Behaviour::status(400)).await;
                let verdict = self.house.ended(&run).await.verdict;
                assert_eq!(verdict.as_ref().map(|verdict| verdict.word()), Some("failed"));
            }
        }
        None
    }

    async fn begin(&mut self, session: u8, behaviour: Behaviour) -> RunId {
        let text = self.say(session, "question");
        self.house.model.script(behaviour);
        self.house.send(message(&session.to_string(), &text)).await
    }

    async fn answered(&mut self, session: u8) {
        let question = self.say(session, "question");
        let answer = self.say(session, "answer");
        self.house.model.script(Behaviour::text(answer.clone()));
        let view = self.house.ask(&session.to_string(), &question).await;
        assert_eq!(view.output, Some(answer));
    }

    fn say(&mut self, session: u8, kind: &str) -> String {
        let text = format!("{kind}-{}.", self.said.len());
        self.said.push((session, text.clone()));
        text
    }

    fn ask_for_abort(&self) -> (AgentAbortAnswer, quell_engine::dispatch::Stop) {
        self.house.engine.abort_agent(&alice(), &agent("main"), AgentPhase::WaitingLlm, &ask(Push::Gentle))
    }

    async fn abort(&mut self) -> Aborted {
        let (answer, stop) = self.ask_for_abort();
        for ticket in &stop.tickets {
            tokio::time::timeout(PATIENCE, ticket.settled()).await.expect("the abort does not settle");
        }
        Aborted { answer, waited: std::mem::take(&mut self.waiting) }
    }

    /// Ends what is still going on, and closes.
    async fn close(mut self) {
        self.abort().await;
        for run in self.working.values() {
            self.house.stop(run);
            self.house.ended(run).await;
        }
        self.house.close().await;
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn cases(number: u32) -> TestRunner {
    TestRunner::new(Config { cases: number, failure_persistence: None, ..Config::default() })
}

/// Lets random scenarios happen, and looks after every act.
fn always(look: impl AsyncFn(&mut World, Option<Aborted>)) {
    let runtime = runtime();
    let ran = cases(16).run(&vec(act(), 1..9), |scenario| {
        runtime.block_on(async {
            let mut world = World::open().await;
            for act in scenario {
                let aborted = world.act(act).await;
                look(&mut world, aborted).await;
            }
            world.close().await;
        });
        Ok(())
    });
    ran.unwrap();
}

#[test]
fn b10_the_agent_waits_for_the_model_if_and_only_if_a_call_of_it_does() {
    always(async |world, _| {
        let expected = match (world.waiting.is_empty(), world.working.is_empty()) {
            (false, _) => ComputeStatus::WaitingLlm,
            (true, false) => ComputeStatus::Processing,
            (true, true) => ComputeStatus::Idle,
        };
        assert_eq!(world.house.status(), expected);
    });
}

#[test]
fn b10_a_call_has_its_entry_from_before_it_leaves_until_its_success_failure_or_abort() {
    always(async |world, _| {
        assert_eq!(world.house.engine.model_requests(), world.waiting.len());
    });
}

#[test]
fn b10_after_an_abort_nothing_waits_and_the_next_message_works() {
    always(async |world, aborted| {
        let Some(aborted) = aborted else { return };
        let status = world.house.status();
        assert!(matches!(status, ComputeStatus::Idle | ComputeStatus::Processing), "{status:?} after an abort");
        for session in aborted.waited.into_keys() {
            world.answered(session).await;
        }
    });
}

#[test]
fn b10_an_abort_takes_what_waits_and_its_repeat_changes_nothing() {
    always(async |world, aborted| {
        let Some(Aborted { answer, waited }) = aborted else { return };
        let (mut took, mut waited) = (answer.run_ids.clone(), waited.into_values().collect::<Vec<_>>());
        took.sort();
        waited.sort();
        assert_eq!((answer.ok, answer.aborted, took), (true, !waited.is_empty(), waited));
        let before = world.house.engine.active_runs().len();
        let (repeat, stop) = world.ask_for_abort();
        assert_eq!((repeat.ok, repeat.aborted, repeat.run_ids), (true, false, Vec::new()));
        assert_eq!(repeat.reason.as_deref(), Some("not_waiting_llm"));
        assert!(stop.tickets.is_empty());
        assert_eq!(world.house.engine.active_runs().len(), before);
    });
}

/// The scripted model answers 400 to a request whose history is not valid, and closing asserts that it never had to.
#[test]
fn b10_every_later_request_has_the_whole_valid_history() {
    always(async |world, _| {
        let free = (0..3).find(|session| !world.waiting.contains_key(session) && !world.working.contains_key(session));
        let Some(session) = free else { return };
        world.answered(session).await;
        let request = flat(&world.house.last_messages());
        // The last thing said is the answer to this request.
        let said = world.said.iter().rev().skip(1).filter(|(of, _)| *of == session);
        for (_, text) in said {
            assert!(request.contains(text.as_str()), "{text} is missing in {request}");
        }
    });
}

#[test]
fn b10_an_unknown_agent_is_not_found() {
    let runtime = runtime();
    let house = runtime.block_on(doors::House::open());
    let ids = "[A-Za-z][A-Za-z0-9 ._:/-]{0,40}".prop_filter("configured", |id| id != "main");
    let ran = cases(64).run(&ids, |id| {
        let path = format!("/api/agent/{}/abort", doors::escape(&id));
        let answer = runtime.block_on(house.http.post(&path, &json!({})));
        prop_assert_eq!((answer.status, answer.body["error"].as_str()), (404, Some("agent_not_found")), "{:?}", id);
        Ok(())
    });
    ran.unwrap();
}
