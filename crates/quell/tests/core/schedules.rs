//! Schedules: they fire once, also over restarts; hold and stop keep them from firing.

mod senders;
mod stops;
mod surfaces;

use quell_engine::engine::{Caller, StopResult, SubmitOutcome};
use quell_protocol::api::Grants;
use quell_protocol::schedule::{MissedPolicy, SchedulePatch, ScheduleRequest, ScheduleView};
use quell_scope::clock::{Clock, SkippedTime};
use quell_store::RunListFilter;

use crate::prelude::*;
use crate::test_engine::{endless_tokens, parse_principal};

/// An engine whose time the test lets pass.
struct ScheduleTest {
    test: TestEngine,
    time: &'static SkippedTime,
    data: TestDataDir,
}

fn admin() -> Caller {
    Caller { principal: parse_principal("admin"), ..root() }
}

fn every_hour(text: &str) -> ScheduleRequest {
    ScheduleRequest { every: Some("1h".into()), text: text.into(), ..ScheduleRequest::default() }
}

fn every_run() -> RunListFilter {
    RunListFilter { session: None, principal: None, visible_to: None, limit: 100, cursor: None }
}

impl ScheduleTest {
    async fn start() -> Self {
        let (data, time) = (TestDataDir::new(), &*Box::leak(Box::<SkippedTime>::default()));
        let test = Self::engine(data.path().to_path_buf(), time).await;
        Self { test, time, data }
    }

    async fn engine(dir: std::path::PathBuf, time: &'static SkippedTime) -> TestEngine {
        let test = TestEngine::start_in(TestDir::Borrowed(dir), ProcessLock::shared().await, |config| {
            config.clock = Clock::with_skipped_time(time);
            let main = config.agents.get_mut(&parse_agent_id("main")).unwrap();
            main.tools = vec!["*".to_owned()];
        });
        test.await
    }

    /// Starts the next daemon on the data of this one.
    async fn restart(self, skipped: Duration) -> Self {
        self.test.close().await;
        self.time.skip(skipped);
        let test = Self::engine(self.data.path().to_path_buf(), self.time).await;
        Self { test, ..self }
    }

    async fn create(&self, request: ScheduleRequest) -> ScheduleView {
        self.test.engine.create_schedule(&admin(), request).await.unwrap()
    }

    fn pass(&self, minutes: u64) {
        self.time.skip(Duration::from_secs(60 * minutes));
        self.test.engine.schedules().notify_changed();
    }

    async fn find(&self, id: &str) -> ScheduleView {
        self.test.engine.find_schedule(&admin(), id).await.unwrap().unwrap()
    }

    async fn wait(&self, id: &str, what: &str, wanted: impl Fn(&ScheduleView) -> bool) -> ScheduleView {
        let waiting = async {
            loop {
                let view = self.find(id).await;
                if wanted(&view) {
                    return view;
                }
                tokio::task::yield_now().await;
            }
        };
        let found = tokio::time::timeout(WAIT_TIMEOUT, waiting).await;
        match found {
            Ok(view) => view,
            Err(_) => panic!("{what} did not come: {:#?}", self.find(id).await),
        }
    }

    /// Waits until the next firing has become a run that has ended.
    async fn wait_fired(&self, id: &str, fired: u64) -> RunView {
        let view = self.wait(id, "the firing", |view| view.fired == fired && view.last_run.is_some()).await;
        let run = view.last_run.unwrap();
        self.wait_stored(&run).await;
        self.test.wait_ended(&run).await
    }

    async fn wait_stored(&self, run: &RunId) {
        let waiting = async {
            while self.test.engine.find_run(run).await.unwrap().is_none() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, waiting).await.expect("the firing was not accepted");
    }

    /// The run of the next firing.
    fn next_run(schedule: &ScheduleView) -> RunId {
        let next: jiff::Timestamp = schedule.next_at.as_ref().unwrap().parse().unwrap();
        parse_run_id(&format!("{}:{}", schedule.id, next.as_second()))
    }

    /// Waits until one of these firings is admitted, stored or not.
    async fn wait_admitted(&self, runs: &[RunId]) {
        let (engine, runs) = (self.test.engine.clone(), runs.to_vec());
        leaks::wait_until(WAIT_TIMEOUT, move || {
            let is_admitted = runs.iter().any(|run| engine.live_run(run).is_some());
            if is_admitted { Ok(()) } else { Err("no firing was admitted".to_owned()) }
        })
        .await;
    }

    /// The number of all runs.
    async fn count_runs(&self) -> usize {
        let views = self.test.engine.list_runs(every_run()).await;
        views.unwrap().items.len()
    }

    /// Starts an engine on a copy of the data: what a daemon that dies now would leave.
    async fn start_on_copy(&self) -> Self {
        let (data, time) = (copy_data_dir(self.data.path()), self.time);
        let test = Self::engine(data.path().to_path_buf(), time).await;
        Self { test, time, data }
    }

    fn stop_everything(&self) -> StopResult {
        self.test.engine.stop(&admin(), &StopScope::Everything, &stop_ask(StopLevel::Gentle))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_due_schedule_starts_a_run_in_its_own_session() {
    let scheduled = ScheduleTest::start().await;
    scheduled.test.answer_by_marker();
    let schedule = scheduled.create(every_hour("say hello")).await;
    assert_eq!((schedule.fired, schedule.session_key.as_str()), (0, format!("schedule:{}", schedule.id).as_str()));
    scheduled.pass(60);
    let first = scheduled.wait_fired(&schedule.id, 1).await;
    assert_eq!(first.verdict, Some(Verdict::Completed), "{first:#?}");
    assert_eq!((&first.session_key, &first.principal), (&schedule.session_key, &schedule.created_by));
    scheduled.pass(60);
    let second = scheduled.wait_fired(&schedule.id, 2).await;
    assert_ne!(first.run_id, second.run_id);
    assert_eq!(scheduled.find(&schedule.id).await.missed_count, 0);
    scheduled.test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_refuses_firings_and_they_are_counted() {
    let scheduled = ScheduleTest::start().await;
    scheduled.test.answer_by_marker();
    let skipped = scheduled.create(every_hour("skip what is missed")).await;
    let caught_up = ScheduleRequest { missed: Some(MissedPolicy::Once), ..every_hour("make up for it") };
    let caught_up = scheduled.create(caught_up).await;
    scheduled.test.engine.set_hold(&admin(), true, None).await.unwrap();
    scheduled.pass(60);
    let view = scheduled.wait(&skipped.id, "the missed firing", |view| view.missed_count == 1).await;
    assert_eq!((view.fired, view.problem.as_deref()), (0, Some("new runs are held")));
    let is_held = |view: &ScheduleView| view.problem.as_deref() == Some("new runs are held");
    scheduled.wait(&caught_up.id, "the held firing", is_held).await;
    scheduled.test.engine.set_hold(&admin(), false, None).await.unwrap();
    let run = scheduled.wait_fired(&caught_up.id, 1).await;
    assert_eq!(run.verdict, Some(Verdict::Completed));
    assert_eq!(scheduled.find(&skipped.id).await.fired, 0, "its policy skips what it misses");
    scheduled.test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_everything_with_hold_pauses_all_for_good() {
    let scheduled = ScheduleTest::start().await;
    let schedule = scheduled.create(every_hour("never")).await;
    assert_eq!(scheduled.stop_everything().schedules.ids(), [""; 0], "nothing is held, and no run has made it");
    scheduled.test.engine.hold_now();
    assert_eq!(scheduled.stop_everything().schedules.ids(), std::slice::from_ref(&schedule.id));
    assert_eq!(scheduled.stop_everything().schedules.ids(), [""; 0], "it is paused already");
    // In force before it is stored, and stored right after.
    assert!(scheduled.test.engine.schedules().find(&schedule.id).unwrap().view.paused.is_some());
    scheduled.test.engine.set_hold(&admin(), false, None).await.unwrap();
    scheduled.pass(600);
    let view = scheduled.wait(&schedule.id, "the pause", |view| view.paused.is_some()).await;
    assert_eq!((view.fired, view.next_at.as_deref()), (0, None));
    leaks::wait_until(WAIT_TIMEOUT, {
        let engine = scheduled.test.engine.clone();
        move || {
            if engine.schedules().has_unstored_pauses() { Err("the pause is not stored".to_owned()) } else { Ok(()) }
        }
    })
    .await;
    let scheduled = scheduled.restart(Duration::from_secs(36_000)).await;
    let view = scheduled.find(&schedule.id).await;
    assert_eq!(view.paused.map(|pause| pause.reason).as_deref(), Some("everything was stopped and is held"));
    let patch = SchedulePatch { paused: Some(false), ..SchedulePatch::default() };
    let resumed = scheduled.test.engine.patch_schedule(&admin(), &schedule.id, &patch).await.unwrap().unwrap();
    assert!(resumed.paused.is_none() && resumed.next_at.is_some());
    scheduled.test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_time_that_a_restart_missed_fires_once() {
    let scheduled = ScheduleTest::start().await;
    let at = scheduled.test.engine.schedules().now() + Duration::from_secs(120);
    let request = ScheduleRequest { at: Some(at.to_string()), text: "remind me".into(), ..ScheduleRequest::default() };
    let schedule = scheduled.create(request).await;
    let hourly = scheduled.create(every_hour("skip what is missed")).await;
    let scheduled = scheduled.restart(Duration::from_secs(4 * 3600 + 90)).await;
    scheduled.test.answer_by_marker();
    let run = scheduled.wait_fired(&schedule.id, 1).await;
    assert_eq!(run.verdict, Some(Verdict::Completed));
    scheduled.wait(&hourly.id, "the missed firings", |view| view.missed_count == 4).await;
    let scheduled = scheduled.restart(Duration::from_secs(60)).await;
    let view = scheduled.find(&schedule.id).await;
    assert_eq!((view.fired, view.next_at), (1, None), "it is over");
    scheduled.test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_firing_is_skipped_while_the_one_before_runs() {
    let scheduled = ScheduleTest::start().await;
    scheduled.test.model.script(endless_tokens());
    // More often than every hour, since a run of an hour has reached its time limit.
    let request = ScheduleRequest { every: Some("10m".into()), ..every_hour("take long") };
    let schedule = scheduled.create(request).await;
    scheduled.pass(10);
    let view = scheduled.wait(&schedule.id, "the firing", |view| view.fired == 1).await;
    let run = view.last_run.unwrap();
    scheduled.wait_stored(&run).await;
    scheduled.pass(10);
    let view = scheduled.wait(&schedule.id, "the skipped firing", |view| view.skipped_count == 1).await;
    assert_eq!((view.fired, view.last_run.as_ref()), (1, Some(&run)));
    let stopped = scheduled.test.engine.stop(&admin(), &run_stop_scope(&run), &stop_ask(StopLevel::Gentle));
    assert_eq!(stopped.aborted, std::slice::from_ref(&run), "a firing is a run like any other");
    scheduled.test.wait_ended(&run).await;
    scheduled.test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_a_run_pauses_the_schedules_that_it_made() {
    let scheduled = ScheduleTest::start().await;
    let arguments = json!({"text": "look again", "every": "2h"});
    scheduled.test.model.script(ScriptedResponse::tool_call("c1", "cron_add", &arguments)).script(endless_tokens());
    let by_hand = scheduled.create(every_hour("by hand")).await;
    let sent = scheduled.test.engine.submit(&admin(), submission("s", "look from time to time")).await.unwrap();
    let SubmitOutcome::Accepted(sent) = sent else { panic!("{sent:?}") };
    let run = sent.run_id;
    scheduled.test.wait_text(&run).await;
    let made: Vec<ScheduleView> = scheduled.test.engine.list_schedules(&admin()).await.unwrap();
    let made = made.into_iter().find(|view| view.created_by_run.as_ref() == Some(&run)).unwrap();
    assert_eq!(made.created_by_session, Some(parse_session_key("s")));
    let stopped = scheduled.test.engine.stop(&admin(), &run_stop_scope(&run), &stop_ask(StopLevel::Gentle));
    assert_eq!(stopped.schedules.ids(), std::slice::from_ref(&made.id));
    scheduled.test.wait_ended(&run).await;
    assert!(scheduled.find(&made.id).await.paused.is_some());
    assert!(scheduled.find(&by_hand.id).await.paused.is_none());
    scheduled.pass(240);
    scheduled.wait(&by_hand.id, "the other schedule", |view| view.fired + view.missed_count > 0).await;
    assert_eq!(scheduled.find(&made.id).await.fired, 0);
    scheduled.test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_of_an_agent_names_the_schedules_that_it_paused() {
    let scheduled = ScheduleTest::start().await;
    let arguments = json!({"text": "look again", "every": "2h"});
    scheduled.test.model.script(ScriptedResponse::tool_call("c1", "cron_add", &arguments)).script(endless_tokens());
    let sent = scheduled.test.engine.submit(&admin(), submission("s", "look from time to time")).await.unwrap();
    let SubmitOutcome::Accepted(sent) = sent else { panic!("{sent:?}") };
    scheduled.test.wait_text(&sent.run_id).await;
    let made = scheduled.test.engine.list_schedules(&admin()).await.unwrap();
    let (answer, _stop) =
        scheduled.test.engine.abort_agent_tree(&admin(), &parse_agent_id("main"), &stop_ask(StopLevel::Gentle));
    assert_eq!(answer.paused_schedules, [made[0].id.clone()]);
    scheduled.test.wait_ended(&sent.run_id).await;
    scheduled.test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_whose_creator_has_no_token_is_paused() {
    let scheduled = ScheduleTest::start().await;
    let schedule = scheduled.test.engine.create_schedule(&alice(), every_hour("hello")).await.unwrap();
    let stranger = Caller { grants: Grants::NONE, ..bob() };
    assert_eq!(scheduled.test.engine.find_schedule(&stranger, &schedule.id).await, Ok(None), "it is private");
    scheduled.pass(60);
    let view = scheduled.wait(&schedule.id, "the pause", |view| view.paused.is_some()).await;
    assert_eq!(view.fired, 0);
    scheduled.test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_at_the_moment_of_a_firing_ends_its_run() {
    let scheduled = ScheduleTest::start().await;
    scheduled.test.model.script(endless_tokens());
    let schedule = scheduled.create(every_hour("never")).await;
    let run = ScheduleTest::next_run(&schedule);
    let database = scheduled.test.connect_to_database();
    database.lock_writes();
    scheduled.pass(60);
    scheduled.wait_admitted(std::slice::from_ref(&run)).await;
    scheduled.test.engine.hold_now();
    let mut stopped = scheduled.stop_everything();
    assert_eq!((&stopped.aborted, stopped.schedules.ids()), (&vec![run.clone()], vec![schedule.id.clone()]));
    assert!(!stopped.is_carried_out(), "the pause is not stored");
    database.unlock_writes();
    stopped.wait_carried_out().await;
    assert!(stopped.is_carried_out());
    stopped.wait_settled().await;
    if let Some(view) = scheduled.test.engine.find_run(&run).await.unwrap() {
        assert!(matches!(view.verdict, Some(Verdict::Aborted { .. })), "{view:#?}");
    }
    scheduled.test.engine.set_hold(&admin(), false, None).await.unwrap();
    scheduled.pass(600);
    let view = scheduled.wait(&schedule.id, "the pause", |view| view.paused.is_some()).await;
    assert!(view.fired <= 1, "{view:#?}");
    assert_eq!(scheduled.test.model.request_count(), 0);
    scheduled.test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_is_answered_when_a_restart_keeps_its_pauses() {
    let scheduled = ScheduleTest::start().await;
    let schedule = scheduled.create(every_hour("never")).await;
    let database = scheduled.test.connect_to_database();
    database.lock_writes();
    scheduled.test.engine.hold_now();
    let mut stopped = scheduled.stop_everything();
    assert_eq!((stopped.schedules.ids(), stopped.is_carried_out()), (vec![schedule.id.clone()], false));
    database.unlock_writes();
    stopped.wait_carried_out().await;
    // Killed at the moment of the answer. The hold itself is stored by another call.
    let after = scheduled.start_on_copy().await;
    after.pass(600);
    let witness = after.create(every_hour("works")).await;
    after.test.answer_by_marker();
    after.pass(60);
    after.wait_fired(&witness.id, 1).await;
    let view = after.find(&schedule.id).await;
    assert_eq!((view.fired, view.paused.is_some()), (0, true), "{view:#?}");
    after.test.close().await;
    scheduled.test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_dies_before_it_stores_a_firing_makes_up_for_it() {
    let scheduled = ScheduleTest::start().await;
    scheduled.test.answer_by_marker();
    let once = ScheduleRequest { missed: Some(MissedPolicy::Once), ..every_hour("make up for it") };
    let once = scheduled.create(once).await;
    let skips = scheduled.create(every_hour("skip what is missed")).await;
    let database = scheduled.test.connect_to_database();
    database.lock_writes();
    scheduled.pass(60);
    // They fire one after the other, so one of the two is admitted and none is stored.
    scheduled.wait_admitted(&[ScheduleTest::next_run(&once), ScheduleTest::next_run(&skips)]).await;
    scheduled.time.skip(Duration::from_secs(120));
    let after = scheduled.start_on_copy().await;
    after.test.answer_by_marker();
    let run = after.wait_fired(&once.id, 1).await;
    assert_eq!((run.run_id, run.verdict), (ScheduleTest::next_run(&once), Some(Verdict::Completed)));
    let view = after.wait(&skips.id, "the missed firing", |view| view.missed_count == 1).await;
    assert_eq!((view.fired, after.count_runs().await), (0, 1));
    after.test.close().await;
    database.unlock_writes();
    scheduled.test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_dies_in_a_firing_does_not_repeat_it() {
    let scheduled = ScheduleTest::start().await;
    scheduled.test.model.script(endless_tokens());
    let once = ScheduleRequest { missed: Some(MissedPolicy::Once), ..every_hour("make up for it") };
    let schedule = scheduled.create(once).await;
    scheduled.pass(60);
    let run = ScheduleTest::next_run(&schedule);
    scheduled.wait_stored(&run).await;
    scheduled.test.wait_text(&run).await;
    let after = scheduled.start_on_copy().await;
    let interrupted = after.test.wait_ended(&run).await;
    assert_ne!(interrupted.verdict, Some(Verdict::Completed));
    let witness = after.create(every_hour("works")).await;
    after.test.answer_by_marker();
    after.pass(60);
    after.wait_fired(&witness.id, 1).await;
    after.wait_fired(&schedule.id, 2).await;
    assert_eq!(after.count_runs().await, 3, "each firing is one run");
    after.test.close().await;
    scheduled.test.stop(&run).wait_settled().await;
    scheduled.test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_a_session_pauses_the_schedules_that_it_made() {
    let scheduled = ScheduleTest::start().await;
    let arguments = json!({"text": "look again", "every": "2h"});
    scheduled.test.model.script(ScriptedResponse::tool_call("c1", "cron_add", &arguments));
    scheduled.test.answer_by_marker();
    let by_hand = ScheduleRequest { session_key: Some(parse_session_key("s")), ..every_hour("by hand") };
    let by_hand = scheduled.create(by_hand).await;
    let sent = scheduled.test.engine.submit(&admin(), submission("s", "look from time to time")).await.unwrap();
    let SubmitOutcome::Accepted(sent) = sent else { panic!("{sent:?}") };
    scheduled.test.wait_ended(&sent.run_id).await;
    let listed = scheduled.test.engine.list_schedules(&admin()).await.unwrap();
    let made = listed.into_iter().find(|view| view.created_by_run.as_ref() == Some(&sent.run_id)).unwrap();
    let scope = StopScope::whole_session(parse_session_key("s"));
    let stop = || scheduled.test.engine.stop(&admin(), &scope, &stop_ask(StopLevel::Gentle));
    let mut stopped = stop();
    stopped.wait_carried_out().await;
    assert_eq!(stopped.schedules.ids(), std::slice::from_ref(&made.id));
    assert_eq!(stop().schedules.ids(), [""; 0], "it is paused already");
    scheduled.pass(60);
    scheduled.wait_fired(&by_hand.id, 1).await;
    scheduled.pass(60);
    scheduled.wait_fired(&by_hand.id, 2).await;
    let view = scheduled.find(&made.id).await;
    assert_eq!((view.fired, view.paused.map(|pause| pause.reason)), (0, Some("the session s was stopped".to_owned())));
    scheduled.test.close().await;
}

/// The session makes a schedule, and the run of its firing another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_reaches_the_schedules_that_firings_have_made() {
    let scheduled = ScheduleTest::start().await;
    let add =
        |text: &str, every: &str| ScriptedResponse::tool_call("c1", "cron_add", &json!({"text": text, "every": every}));
    scheduled.test.model.script(add("make another one", "1h")).script(ScriptedResponse::text("made"));
    scheduled.test.model.script(add("the other one", "3h")).script(ScriptedResponse::text("made, too"));
    let sent = scheduled.test.engine.submit(&admin(), submission("s", "look from time to time")).await.unwrap();
    let SubmitOutcome::Accepted(sent) = sent else { panic!("{sent:?}") };
    scheduled.test.wait_ended(&sent.run_id).await;
    let listed = scheduled.test.engine.list_schedules(&admin()).await.unwrap();
    let first = listed.into_iter().next().unwrap();
    scheduled.pass(60);
    scheduled.wait_fired(&first.id, 1).await;
    let scope = StopScope::whole_session(parse_session_key("s"));
    let mut stopped = scheduled.test.engine.stop(&admin(), &scope, &stop_ask(StopLevel::Gentle));
    stopped.wait_carried_out().await;
    assert_eq!(stopped.schedules.ids().len(), 2);
    let listed = scheduled.test.engine.list_schedules(&admin()).await.unwrap();
    assert!(listed.len() == 2 && listed.iter().all(|view| view.paused.is_some()), "{listed:#?}");
    scheduled.test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_is_due_in_a_shutdown_fires_after_it() {
    let scheduled = ScheduleTest::start().await;
    scheduled.test.model.script(endless_tokens());
    let once = ScheduleRequest { missed: Some(MissedPolicy::Once), ..every_hour("make up for it") };
    let schedule = scheduled.create(once).await;
    let busy = scheduled.test.send(submission("s", "take long")).await;
    scheduled.test.wait_text(&busy).await;
    let (engine, time) = (scheduled.test.engine.clone(), scheduled.time);
    let closing = tokio::spawn(async move { engine.shut_down().await });
    let engine = scheduled.test.engine.clone();
    leaks::wait_until(WAIT_TIMEOUT, move || if engine.is_open() { Err("it is open".to_owned()) } else { Ok(()) }).await;
    time.skip(Duration::from_secs(3600));
    scheduled.test.engine.schedules().notify_changed();
    closing.await.unwrap();
    let scheduled = scheduled.restart(Duration::from_secs(120)).await;
    scheduled.test.answer_by_marker();
    let run = scheduled.wait_fired(&schedule.id, 1).await;
    assert_eq!(run.verdict, Some(Verdict::Completed));
    assert_eq!(scheduled.count_runs().await, 2);
    scheduled.test.close().await;
}
