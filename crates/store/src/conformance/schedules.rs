//! Schedules: their limits, and that a change of an old revision is refused.

use quell_protocol::api::Hold;

use super::*;
use crate::{CreateScheduleOutcome, ScheduleQuota, StoredSchedule};

const ROOM: ScheduleQuota = ScheduleQuota { per_owner: 10, total: 10 };

fn schedule(id: &str, owner: &str) -> StoredSchedule {
    let owner = Principal::parse(owner).unwrap();
    StoredSchedule { id: id.into(), owner, revision: 1, definition: format!("definition of {id}") }
}

async fn create(store: &Store, id: &str, owner: &str, quota: ScheduleQuota) -> CreateScheduleOutcome {
    store.schedules().create(schedule(id, owner), quota).await.unwrap()
}

pub(crate) async fn schedules_survive_a_restart_ordered_by_id<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    for id in ["b", "a", "c"] {
        assert_eq!(create(&store, id, "ann", ROOM).await, CreateScheduleOutcome::Created);
    }
    assert!(store.schedules().create(schedule("a", "bob"), ROOM).await.is_err());
    assert_eq!(store.schedules().delete("b".into()).await, Ok(true));
    assert_eq!(store.schedules().delete("b".into()).await, Ok(false));
    store.close().await;
    assert_eq!(home.open().schedules().list().await, Ok(vec![schedule("a", "ann"), schedule("c", "ann")]));
}

pub(crate) async fn a_schedule_is_changed_by_one_of_two<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    create(&store, "a", "ann", ROOM).await;
    let change =
        |definition: &str| StoredSchedule { revision: 2, definition: definition.into(), ..schedule("a", "ann") };
    let (schedules, change) = (store.schedules(), &change);
    let (one, other) = tokio::join!(schedules.replace(change("one")), schedules.replace(change("other")));
    assert!(one.unwrap() != other.unwrap(), "a change of an old revision must be refused");
    let stored = store.schedules().list().await.unwrap();
    assert_eq!((stored.len(), stored[0].revision), (1, 2));
    assert_eq!(schedules.replace(StoredSchedule { revision: 3, ..schedule("a", "ann") }).await, Ok(true));
    assert_eq!(schedules.replace(StoredSchedule { revision: 2, ..schedule("gone", "ann") }).await, Ok(false));
}

pub(crate) async fn many_schedules_change_at_once_each_by_its_revision<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    for id in ["a", "b", "c"] {
        create(&store, id, "ann", ROOM).await;
    }
    let change = |id: &str, revision, definition: &str| StoredSchedule {
        revision,
        definition: definition.into(),
        ..schedule(id, "ann")
    };
    let schedules = store.schedules();
    assert_eq!(schedules.replace(change("b", 2, "faster")).await, Ok(true));
    let changes =
        vec![change("c", 2, "new\0"), change("b", 2, "late"), change("gone", 2, "new"), change("a", 2, "new")];
    let mut replaced = schedules.replace_many(changes).await.unwrap();
    replaced.sort();
    assert_eq!(replaced, ["a", "c"], "the other two were changed by somebody else");
    assert_eq!(schedules.replace_many(Vec::new()).await, Ok(Vec::new()));
    store.close().await;
    let expected = vec![change("a", 2, "new"), change("b", 2, "faster"), change("c", 2, "new\0")];
    assert_eq!(home.open().schedules().list().await, Ok(expected));
}

pub(crate) async fn a_schedule_is_found_by_its_id<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    create(&store, "a", "ann", ROOM).await;
    create(&store, "b", "bob", ROOM).await;
    assert_eq!(store.schedules().find("b".into()).await, Ok(Some(schedule("b", "bob"))));
    assert_eq!(store.schedules().find("c".into()).await, Ok(None));
}

pub(crate) async fn nobody_has_more_schedules_than_the_quota<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    let quota = ScheduleQuota { per_owner: 2, total: 3 };
    let create = async |id: &str, owner: &str| create(&store, id, owner, quota).await;
    assert_eq!(create("1", "ann").await, CreateScheduleOutcome::Created);
    assert_eq!(create("2", "ann").await, CreateScheduleOutcome::Created);
    assert_eq!(create("3", "ann").await, CreateScheduleOutcome::OwnerHasTooMany);
    assert_eq!(create("3", "bob").await, CreateScheduleOutcome::Created);
    assert_eq!(create("4", "bob").await, CreateScheduleOutcome::TooMany);
    assert_eq!(store.schedules().list().await.unwrap().len(), 3);
}

pub(crate) async fn a_firing_stores_its_run_and_schedule_at_once<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    create(&store, "a", "ann", ROOM).await;
    let next = |revision| StoredSchedule { revision, definition: format!("after {revision}"), ..schedule("a", "ann") };
    let schedules = store.schedules();
    let (one, other) = tokio::join!(
        schedules.fire(next(2), accepted_row("r1", "s")),
        schedules.fire(next(2), accepted_row("r2", "s"))
    );
    assert_eq!([one.unwrap(), other.unwrap()], [AcceptRunOutcome::New, AcceptRunOutcome::NotDue]);
    let gone = StoredSchedule { id: "gone".into(), ..next(2) };
    assert_eq!(schedules.fire(gone, accepted_row("r3", "s")).await, Ok(AcceptRunOutcome::NotDue));
    let repeat = schedules.fire(next(3), accepted_row("r1", "s")).await.unwrap();
    assert!(matches!(repeat, AcceptRunOutcome::Existing(row) if row.id == run_id("r1")));
    store.close().await;
    let store = home.open();
    assert_eq!(store.schedules().list().await, Ok(vec![next(3)]));
    assert_eq!(find_run(&store, "r1").await.state, StoredRunState::Accepted);
    for refused in ["r2", "r3"] {
        assert_eq!(store.runs().find(run_id(refused)).await, Ok(None));
    }
}

pub(crate) async fn nothing_fires_while_new_runs_are_held<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    create(&store, "a", "ann", ROOM).await;
    let next = || StoredSchedule { revision: 2, ..schedule("a", "ann") };
    store.runs().set_hold(&Hold { held: true, ..Hold::default() }, None).await.unwrap();
    let held = store.schedules().fire(next(), accepted_row("r1", "s")).await;
    assert_eq!(held, Ok(AcceptRunOutcome::NotDue));
    assert_eq!(store.schedules().list().await, Ok(vec![schedule("a", "ann")]));
    assert_eq!(store.runs().find(run_id("r1")).await, Ok(None));
    store.runs().set_hold(&Hold::default(), None).await.unwrap();
    assert_eq!(store.schedules().fire(next(), accepted_row("r1", "s")).await, Ok(AcceptRunOutcome::New));
}
