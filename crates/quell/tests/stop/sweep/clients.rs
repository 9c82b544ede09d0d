//! Runs that clients of standard APIs start, and stop by their own means, at every point that such a run reaches.
//!
//! The server has a runtime of its own: the point holds the task of the run until the stop of the client has arrived.

mod api_server;
mod editor;
mod http_calls;

use std::thread;

use quell_protocol::{SessionKey, Surface};

use super::*;
use api_server::ApiServer;

/// The points that a plain model call reaches, without pictures.
const MODEL_CALL_POINTS: [Point; 5] =
    [Point::BeforeStep, Point::ContextBuilt, Point::ModelSend, Point::ModelStream, Point::AfterModel];
/// The points that only messages from chat networks reach: those have files, and their answers are delivered.
const CHAT_NETWORK_POINTS: [Point; 4] = [Point::Attachments, Point::Transcription, Point::Speech, Point::Delivery];
/// The session that lists the model calls of the test's token.
const MODEL_CALLS_SESSION: &str = "model-calls:alice";

/// An API, and how its clients stop what they have started.
struct ClientApi {
    surface: Surface,
    /// Why a run ends that its client stops.
    reason: StopReason,
    /// Prepares a call, which is not sent yet.
    prepare: fn(&Arc<ApiServer>, &CallContent) -> Arc<dyn StoppableCall>,
    /// Whether a client may get this as the answer to a stopped call; `None` if it has closed the connection.
    is_stopped_answer: Option<fn(&str) -> bool>,
}

/// What a client asks for.
struct CallContent {
    target: ClientTarget,
    agent: &'static str,
    /// The session of the run, where a client can choose one.
    session: String,
    text: String,
    /// The workdir of all agents.
    workdir: PathBuf,
}

/// A call of a client that starts a run. Its methods block.
trait StoppableCall: Send + Sync {
    /// The session of the run.
    fn session(&self) -> &str;

    fn begin(&self);

    /// Stops the run by the client's own means. Does not wait for its end.
    fn stop(&self);

    /// Reads what the client gets, to the end of it.
    fn read_answer(&self) -> String;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientTarget {
    /// The agent of the case, in the session of the case.
    Agent,
    /// A model without an agent.
    Model,
}

// One line for each API and each thing that it can start.
#[rstest]
#[case::chat_completions(http_calls::CHAT_COMPLETIONS, ClientTarget::Agent)]
#[ignore = "full: more ways to stop"]
#[case::chat_completions_of_a_model(http_calls::CHAT_COMPLETIONS, ClientTarget::Model)]
#[ignore = "full: more ways to stop"]
#[case::responses(http_calls::RESPONSES, ClientTarget::Agent)]
#[ignore = "full: more ways to stop"]
#[case::responses_of_a_model(http_calls::RESPONSES, ClientTarget::Model)]
#[ignore = "full: more ways to stop"]
#[case::background_responses(http_calls::BACKGROUND_RESPONSES, ClientTarget::Agent)]
#[ignore = "full: more ways to stop"]
#[case::background_responses_of_a_model(http_calls::BACKGROUND_RESPONSES, ClientTarget::Model)]
#[ignore = "full: more ways to stop"]
#[case::messages(http_calls::MESSAGES, ClientTarget::Agent)]
#[case::messages_of_a_model(http_calls::MESSAGES, ClientTarget::Model)]
#[ignore = "full: more ways to stop"]
#[case::mcp_calls_that_are_closed(http_calls::CLOSED_MCP_CALLS, ClientTarget::Agent)]
#[ignore = "full: more ways to stop"]
#[case::mcp_calls_that_are_cancelled(http_calls::CANCELLED_MCP_CALLS, ClientTarget::Agent)]
#[ignore = "full: more ways to stop"]
#[case::a2a_tasks(http_calls::A2A_TASKS, ClientTarget::Agent)]
#[case::acp(editor::ACP, ClientTarget::Agent)]
#[ignore = "full: more ways to stop"]
#[case::acp_version_2(editor::ACP_VERSION_2, ClientTarget::Agent)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stops_at_any_moment_ends_its_run(#[case] api: ClientApi, #[case] target: ClientTarget) {
    let Some(database) = StoreKind::Sqlite.start_database() else { return };
    let sweep = SweepEngine::start(database).await;
    let server = ApiServer::start(&sweep.test_engine.engine).await;
    let mut stopped_at = BTreeSet::new();
    for case in cases::all_cases() {
        if let StopMoment::AtPoint(point, nth) = case.moment
            && is_reached(target, &case, point, nth)
        {
            ClientCase { api: &api, target, sweep: &sweep, server: &server, case: &case, point, nth }.run().await;
            stopped_at.insert(point);
        }
    }
    let expected: BTreeSet<Point> = match target {
        ClientTarget::Agent => {
            cases::swept_points().copied().filter(|point| !CHAT_NETWORK_POINTS.contains(point)).collect()
        }
        ClientTarget::Model => MODEL_CALL_POINTS.into(),
    };
    assert_eq!(stopped_at, expected);
    drop(server);
    sweep.test_engine.close().await;
}

/// Whether a run that a client starts comes to this point of a case.
fn is_reached(target: ClientTarget, case: &SweepCase, point: Point, nth: u32) -> bool {
    match target {
        ClientTarget::Agent => {
            let is_message = matches!((case.work)(), RunWork::Answer { files } if files.is_empty());
            is_message && !case.is_from_channel && matches!(case.expected, ExpectedOutcome::AbortedByThisStop)
        }
        ClientTarget::Model => case.agent == "main" && nth == 1 && MODEL_CALL_POINTS.contains(&point),
    }
}

/// Prints the name of a case that fails.
struct NameOnPanic<'a>(&'a str);

impl Drop for NameOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the case is: {}", self.0);
        }
    }
}

struct ClientCase<'a> {
    api: &'a ClientApi,
    target: ClientTarget,
    sweep: &'a SweepEngine,
    server: &'a Arc<ApiServer>,
    case: &'a SweepCase,
    point: Point,
    nth: u32,
}

impl ClientCase<'_> {
    async fn run(&self) {
        let _name = NameOnPanic(&self.case.name);
        let how = format!("{:?}.{:?}.{:?}", self.api.surface, self.api.reason, self.target);
        let (baseline, tasks) = (ResourceBaseline::capture(std::process::id()), TaskBaseline::capture());
        let new = CaseRun::new(self.sweep, self.case, &how);
        let call = (self.api.prepare)(self.server, &self.content(&new, new.text.clone()));
        let asked = CaseRun { session: call.session().to_owned(), ..new };
        let mut watcher = NoticeRecorder::subscribe(&self.sweep.test_engine.engine);
        (self.case.prepare)(&asked).await;
        let run = self.stop_at_point(&call).await;
        let stopped = CaseRun { run, ..asked };
        watcher.wait_ended(&stopped.run).await;
        checks::check_event_order(self.case, &watcher.run_events(&stopped.run));
        self.check_run(&stopped).await;
        self.check_next_call(&stopped).await;
        if let Some(is_stopped_answer) = self.api.is_stopped_answer {
            let answer = call.read_answer();
            assert!(is_stopped_answer(&answer), "{}: the client got {answer}", self.case.name);
        }
        drop((watcher, call));
        let _back = baseline.assert_restored(checks::BLOCKING_POOL_ALLOWANCE, WAIT_TIMEOUT).await;
        let _back = tasks.assert_restored(WAIT_TIMEOUT).await;
    }

    fn content(&self, case_run: &CaseRun<'_>, text: String) -> CallContent {
        let session = match self.target {
            ClientTarget::Agent => case_run.session.clone(),
            ClientTarget::Model => MODEL_CALLS_SESSION.to_owned(),
        };
        let agent = self.case.agent;
        CallContent { target: self.target, agent, session, text, workdir: self.sweep.test_engine.workdir() }
    }

    /// Begins the call and stops it at the point. Returns the id of its run.
    async fn stop_at_point(&self, call: &Arc<dyn StoppableCall>) -> RunId {
        let slot = Arc::new(Mutex::new(None));
        let (engine, server) = (self.sweep.test_engine.engine.clone(), Arc::clone(self.server));
        let (stopping, found) = (Arc::clone(call), Arc::clone(&slot));
        let point_hook = &self.sweep.test_engine.point_hook;
        point_hook.arm(self.point, self.nth, move || {
            let session = parse_session_key(stopping.session());
            let live_run = active_run(&engine, &session);
            stopping.stop();
            server.wait_ending(&live_run);
            *found.lock().unwrap() = Some(live_run.id().clone());
        });
        call.begin();
        let _point = point_hook.wait_fired().await;
        let run = slot.lock().unwrap().take();
        run.expect("the id of the run")
    }

    async fn check_run(&self, stopped: &CaseRun<'_>) {
        let (name, test_engine) = (&self.case.name, &self.sweep.test_engine);
        let view = test_engine.wait_ended(&stopped.run).await;
        let by = Requester { principal: alice().principal, surface: self.api.surface };
        let expected = Verdict::Aborted { reason: self.api.reason.clone(), by: Some(by) };
        assert_eq!(view.verdict, Some(expected), "{name}");
        checks::check_released(self.case, receipt_of(&view));
        checks::check_nothing_left(stopped).await;
    }

    /// The next message of the session, or the next call of the model, is answered.
    async fn check_next_call(&self, stopped: &CaseRun<'_>) {
        let name = &self.case.name;
        match self.target {
            ClientTarget::Agent => {
                let seen = checks::send_next_message(stopped, self.case).await;
                let note = match self.api.reason {
                    StopReason::Disconnect => "was stopped on purpose because the client went away",
                    _ => "was stopped on purpose by the user",
                };
                assert!(seen.contains(note) && seen.contains(&stopped.text), "{name}: {seen}");
            }
            ClientTarget::Model => {
                let text = format!("and now? marker:next-{}", stopped.run);
                let next = (self.api.prepare)(self.server, &self.content(stopped, text));
                next.begin();
                let answer = next.read_answer();
                assert!(answer.starts_with("HTTP/1.1 200"), "{name}: {answer}");
                self.sweep.test_engine.model.assert_histories_valid();
            }
        }
    }
}

fn active_run(engine: &Engine, session: &SessionKey) -> Arc<quell_engine::live_run::LiveRun> {
    let runs = engine.active_run_ids_of_session(session);
    runs.first().and_then(|id| engine.live_run(id)).expect("an active run in the session")
}
