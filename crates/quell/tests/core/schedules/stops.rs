//! Pauses of stops: many at once, when the database does not answer, and when somebody resumes a schedule meanwhile.

use quell_engine::engine::build_stop_answer;
use quell_engine::schedules::{ScheduleChangeError, ScheduleSettings};

use super::*;

const MANY: usize = 300;

fn resume() -> SchedulePatch {
    SchedulePatch { paused: Some(false), ..SchedulePatch::default() }
}

impl ScheduleTest {
    async fn wait_pauses_stored(&self) {
        let engine = self.test.engine.clone();
        leaks::wait_until(WAIT_TIMEOUT, move || {
            if engine.schedules().has_unstored_pauses() { Err("a pause is not stored".to_owned()) } else { Ok(()) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_pauses_very_many_schedules_and_lists_them() {
    let (data, time) = (TestDataDir::new(), &*Box::leak(Box::<SkippedTime>::default()));
    let test =
        TestEngine::start_in(TestDir::Borrowed(data.path().to_path_buf()), ProcessLock::shared().await, |config| {
            config.clock = Clock::with_skipped_time(time);
            config.schedules = ScheduleSettings { max_per_principal: MANY, ..ScheduleSettings::default() };
        });
    let scheduled = ScheduleTest { test: test.await, time, data };
    let mut made = Vec::new();
    for _ in 0..MANY {
        made.push(scheduled.create(every_hour("never")).await.id);
    }
    made.sort();
    scheduled.test.engine.hold_now();
    let stopped = scheduled.stop_everything();
    assert_eq!(stopped.schedules.ids(), made);
    scheduled.wait_pauses_stored().await;
    let listed = scheduled.test.engine.list_schedules(&admin()).await.unwrap();
    let paused = listed.iter().filter(|view| view.paused.is_some() && view.next_at.is_none()).count();
    assert_eq!((listed.len(), paused), (MANY, MANY));
    scheduled.test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_says_that_its_pauses_are_not_stored() {
    let scheduled = ScheduleTest::start().await;
    let schedule = scheduled.create(every_hour("never")).await;
    let database = scheduled.test.connect_to_database();
    database.lock_writes();
    scheduled.test.engine.hold_now();
    let mut stopped = scheduled.stop_everything();
    stopped.wait_carried_out().await;
    let answer = build_stop_answer(&stopped);
    assert_eq!((answer.paused_schedules.clone(), answer.unstored_pauses), (vec![schedule.id.clone()], true));
    assert!(answer.unstored_pauses_text().unwrap().contains("are stored as soon as it does"));
    scheduled.pass(60);
    let view = scheduled.find(&schedule.id).await;
    assert_eq!((view.fired, view.paused.is_some()), (0, true), "it is in force");
    database.unlock_writes();
    scheduled.wait_pauses_stored().await;
    stopped.wait_settled_everywhere().await;
    let schedules = stopped.schedules.clone();
    let stored = move || if schedules.is_stored() { Ok(()) } else { Err("it is not stored".to_owned()) };
    leaks::wait_until(WAIT_TIMEOUT, stored).await;
    let answer = build_stop_answer(&stopped);
    assert!(!answer.unstored_pauses && answer.unstored_pauses_text().is_none());
    scheduled.test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumption_after_a_stop_is_not_undone() {
    let scheduled = ScheduleTest::start().await;
    let schedule = scheduled.create(every_hour("goes on")).await;
    let database = scheduled.test.connect_to_database();
    for _ in 0..10 {
        database.lock_writes();
        scheduled.test.engine.hold_now();
        let stopped = scheduled.stop_everything();
        assert_eq!(stopped.schedules.ids(), std::slice::from_ref(&schedule.id));
        let (engine, id) = (scheduled.test.engine.clone(), schedule.id.clone());
        let resumed = tokio::spawn(async move { engine.patch_schedule(&admin(), &id, &resume()).await });
        database.unlock_writes();
        let resumed = resumed.await.unwrap().unwrap().unwrap();
        assert!(resumed.paused.is_none(), "{resumed:#?}");
        scheduled.wait_pauses_stored().await;
        let view = scheduled.find(&schedule.id).await;
        assert!(view.paused.is_none() && view.next_at.is_some(), "the stop came first: {view:#?}");
    }
    // A stop after it counts again.
    assert_eq!(scheduled.stop_everything().schedules.ids(), std::slice::from_ref(&schedule.id));
    scheduled.wait_pauses_stored().await;
    assert!(scheduled.find(&schedule.id).await.paused.is_some());
    scheduled.test.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_admins_resume_schedules_while_new_runs_are_held() {
    let scheduled = ScheduleTest::start().await;
    let schedule = scheduled.test.engine.create_schedule(&alice(), every_hour("hello")).await.unwrap();
    scheduled.test.engine.set_hold(&admin(), true, None).await.unwrap();
    let mut stopped = scheduled.stop_everything();
    stopped.wait_carried_out().await;
    assert_eq!(stopped.schedules.ids(), std::slice::from_ref(&schedule.id));
    let refused = scheduled.test.engine.patch_schedule(&alice(), &schedule.id, &resume()).await;
    assert!(matches!(refused, Err(ScheduleChangeError::Held)), "{refused:?}");
    assert!(scheduled.find(&schedule.id).await.paused.is_some());
    scheduled.test.engine.set_hold(&admin(), false, None).await.unwrap();
    let resumed = scheduled.test.engine.patch_schedule(&alice(), &schedule.id, &resume()).await.unwrap().unwrap();
    assert!(resumed.paused.is_none() && resumed.next_at.is_some());
    scheduled.test.close().await;
}
