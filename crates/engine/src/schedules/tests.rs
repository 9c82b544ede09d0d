//! What a node knows of schedules: no older revision comes back, and no firing outlives its task.

use quell_kernel::StopRequester;
use quell_kernel::registry::StopScope;
use tempfile::TempDir;

use super::*;

async fn schedule() -> (TempDir, Schedules, ScheduleView) {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path(), "quell.db").unwrap();
    let schedules = Schedules::new(store, Clock::start(), ScheduleSettings::default());
    let request = ScheduleRequest { every: Some("1h".into()), text: "hello".into(), ..ScheduleRequest::default() };
    let run = (RunId::parse("maker").unwrap(), SessionKey::parse("s").unwrap());
    let principal = Principal::parse("ann").unwrap();
    let creator =
        ScheduleCreator { principal, scope: AccessLevel::Write, surface: Surface::Http, run: Some(run), chat: None };
    let new = schedules.begin_creation(creator, request).unwrap();
    let view = schedules.store_new(new).await.unwrap();
    (home, schedules, view)
}

fn stop_of_session() -> ScheduleStop {
    ScheduleStop {
        scope: StopScope::whole_session(SessionKey::parse("s").unwrap()),
        requester: StopRequester { principal: Principal::parse("ann").unwrap(), admin: false },
        runs: BTreeSet::new(),
        is_held: false,
        origin: ScheduleStopOrigin::ThisNode,
    }
}

#[tokio::test]
async fn an_older_revision_does_not_replace_a_newer_one() {
    let (_home, schedules, view) = schedule().await;
    let (mut record, revision) = schedules.read(&view.id).await.unwrap().unwrap();
    let older = record.clone();
    record.view.text = "newer".to_owned();
    assert!(schedules.replace(&record, revision).await.unwrap());
    schedules.note_stored(&older, revision);
    assert_eq!(schedules.find(&view.id).unwrap().view.text, "newer");
    schedules.delete(&view.id).await.unwrap();
    schedules.note_stored(&record, revision + 1);
    assert_eq!(schedules.find(&view.id), None, "it is deleted");
}

#[tokio::test]
async fn a_firing_that_is_given_up_is_forgotten() {
    let (_home, schedules, view) = schedule().await;
    let run = RunId::parse("firing").unwrap();
    // As a task that is dropped when the node loses the duty.
    drop(schedules.begin_firing(&view.id, &run).unwrap());
    let stopped = schedules.pause_for_stop(&stop_of_session());
    assert_eq!((stopped.ids, stopped.firing), (vec![view.id.clone()], Vec::new()));
    assert!(schedules.begin_firing(&view.id, &run).is_none(), "it is paused");
}

#[tokio::test]
async fn a_resumption_counts_against_an_earlier_stop() {
    let (_home, schedules, view) = schedule().await;
    let stopped = schedules.pause_for_stop(&stop_of_session());
    assert_eq!(stopped.ids, [view.id.as_str()]);
    // Another node has stored the same stop, and somebody has resumed the schedule there.
    let (mut record, revision) = schedules.read(&view.id).await.unwrap().unwrap();
    record.resumed_in = revision + 2;
    for revision in [revision, revision + 1] {
        let stored = to_stored(&record, revision + 1).unwrap();
        assert!(schedules.0.store.schedules().replace(stored).await.unwrap());
    }
    assert!(schedules.find(&view.id).unwrap().view.paused.is_some(), "this node does not know yet");
    schedules.store_stop(&BTreeSet::from([view.id.clone()])).await.unwrap();
    assert!(!schedules.has_unstored_pauses());
    let (stored, _) = schedules.read(&view.id).await.unwrap().unwrap();
    assert!(stored.view.paused.is_none() && schedules.find(&view.id).unwrap().view.paused.is_none());
}
