//! Nodes of a cluster on one database: memberships, sessions, stops, letters.

use std::sync::Arc;
use std::time::Duration;

use quell_kernel::lease::{LeaseTiming, RenewOutcome};
use quell_protocol::NodeName;

use super::*;
use crate::conformance::channels::pending_reply;
use crate::conformance::{accept_run, accepted_row, no_spend, run_id, session_key};
use crate::{
    ClaimOutcome, ClusterSettings, ClusterStore, DutyClaim, DutyOutcome, NodeDuty, RenewalRequest, StoreError,
    StoredLetter, StoredRunState,
};

const LONG_LEASE: Duration = Duration::from_secs(60);
const SHORT_LEASE: Duration = Duration::from_millis(500);

fn node_settings(server: &TestPostgres, node: &str, lease: Duration) -> PostgresSettings {
    let cluster = ClusterSettings {
        node: NodeName::parse(node).unwrap(),
        timing: LeaseTiming::new(lease),
        version: "1.0".to_owned(),
    };
    PostgresSettings { cluster: Some(cluster), ..settings(server) }
}

fn join(server: &TestPostgres, node: &str, lease: Duration, home: &TempDir) -> Store {
    Store::new(PostgresStore::open(&node_settings(server, node, lease), home.path()).unwrap())
}

fn cluster(store: &Store) -> Arc<dyn ClusterStore> {
    store.cluster().unwrap()
}

async fn renew(store: &Store, carried_out: Vec<i64>) -> crate::RenewalAnswer {
    cluster(store).renew(RenewalRequest { report: "{}".to_owned(), carried_out, wake_others: false }).await.unwrap()
}

/// Fences a membership as soon as its lease has ended.
async fn fence(store: &Store, epoch: u64) {
    while !cluster(store).fence(epoch).await.unwrap() {
        tokio::task::yield_now().await;
    }
}

struct TwoNodes {
    server: TestPostgres,
    homes: [TempDir; 2],
    a: Store,
    b: Store,
}

/// `a` has a lease of this length.
fn two_nodes(lease: Duration) -> Option<TwoNodes> {
    let server = TestPostgres::start()?;
    let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let a = join(&server, "a", lease, &homes[0]);
    let b = join(&server, "b", LONG_LEASE, &homes[1]);
    Some(TwoNodes { server, homes, a, b })
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn nodes_write_side_by_side_each_into_its_own_sessions() {
    let Some(nodes) = two_nodes(LONG_LEASE) else { return };
    let (a, b) = (cluster(&nodes.a), cluster(&nodes.b));
    assert_ne!(a.membership().epoch, b.membership().epoch);
    assert_eq!(a.claim_session(session_key("s")).await, Ok(ClaimOutcome::Claimed));
    assert_eq!(a.claim_session(session_key("s")).await, Ok(ClaimOutcome::Claimed));
    assert_eq!(b.claim_session(session_key("s")).await, Ok(ClaimOutcome::OwnedBy(a.membership().clone())));
    assert_eq!(b.session_node(session_key("s")).await, Ok(Some(a.membership().clone())));
    accept_run(&nodes.a, "r", "s").await;
    assert_eq!(a.open_run_node(run_id("r")).await, Ok(Some(a.membership().clone())));
    let refused = nodes.b.runs().accept(accepted_row("r2", "s")).await;
    assert_eq!(refused, Err(StoreError::OtherNode(session_key("s"))));
    let unclaimed = nodes.b.runs().accept(accepted_row("r2", "free")).await;
    assert_eq!(unclaimed, Err(StoreError::OtherNode(session_key("free"))));
    assert_eq!(nodes.b.maintenance().probe().await, Ok(()), "the refusal ended nothing else");
    a.release_session(session_key("s")).await.unwrap();
    assert_eq!(b.session_node(session_key("s")).await, Ok(Some(a.membership().clone())), "one of its runs is open");
    nodes.a.runs().record_end(run_id("r"), "{}".to_owned(), no_spend()).await.unwrap();
    a.release_session(session_key("s")).await.unwrap();
    assert_eq!(b.claim_session(session_key("s")).await, Ok(ClaimOutcome::Claimed));
    accept_run(&nodes.b, "r2", "s").await;
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_lease_with_a_waiting_stop_is_renewed_after_the_stop() {
    let Some(nodes) = two_nodes(LONG_LEASE) else { return };
    assert_eq!(renew(&nodes.a, vec![]).await.outcome, RenewOutcome::Renewed);
    let epochs = vec![cluster(&nodes.a).membership().epoch, 4711];
    let mut wakeups = cluster(&nodes.a).wakeups();
    wakeups.mark_unchanged();
    let requested = cluster(&nodes.b).request_stop(epochs, "{\"stop\":1}".to_owned()).await.unwrap();
    assert_eq!(requested.len(), 1, "who is no member is not asked");
    assert!(requested[0].expires_in > Duration::from_secs(30));
    wakeups.changed().await.unwrap();
    let waiting = renew(&nodes.a, vec![]).await;
    assert_eq!((waiting.outcome, waiting.stops.len()), (RenewOutcome::StopFirst, 1));
    assert_eq!((waiting.stops[0].number, waiting.stops[0].stop.as_str()), (requested[0].number, "{\"stop\":1}"));
    assert_eq!(renew(&nodes.b, vec![]).await.outcome, RenewOutcome::Renewed, "it waits for the other node only");
    let done = renew(&nodes.a, vec![requested[0].number]).await;
    assert_eq!((done.outcome, done.stops.len(), done.nodes.len()), (RenewOutcome::Renewed, 0, 2));
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_node_whose_lease_has_ended_is_fenced_and_its_sessions_are_free_when_its_runs_are_sealed() {
    let Some(nodes) = two_nodes(SHORT_LEASE) else { return };
    let (a, b) = (cluster(&nodes.a), cluster(&nodes.b));
    a.claim_session(session_key("s")).await.unwrap();
    accept_run(&nodes.a, "r", "s").await;
    let epoch = a.membership().epoch;
    assert_eq!(a.fence(b.membership().epoch).await, Ok(false), "a lease that runs is left alone");
    fence(&nodes.b, epoch).await;
    assert_eq!(renew(&nodes.a, vec![]).await.outcome, RenewOutcome::Lost);
    let late = nodes.a.runs().record_start(run_id("r"), "{}".to_owned()).await;
    assert_eq!(late, Err(StoreError::Fenced));
    assert!(nodes.a.fenced().is_cancelled() && !nodes.b.fenced().is_cancelled());
    assert_eq!(b.claim_session(session_key("s")).await, Ok(ClaimOutcome::OwnedBy(a.membership().clone())));
    assert_eq!(b.begin_settling(epoch).await, Ok(true));
    let open = b.open_runs_of(epoch).await.unwrap();
    assert_eq!(open.iter().map(|run| run.id.clone()).collect::<Vec<_>>(), [run_id("r")]);
    let (session, run, view) = (session_key("s"), run_id("r"), "{}".to_owned());
    let sealed = crate::SealedRun { session, run, turn: None, view, spent: no_spend() };
    nodes.b.runs().seal(vec![sealed.clone()]).await.unwrap();
    nodes.b.runs().seal(vec![sealed]).await.unwrap();
    b.finish_settling(epoch).await.unwrap();
    assert_eq!(b.claim_session(session_key("s")).await, Ok(ClaimOutcome::Claimed));
    assert_eq!(nodes.b.runs().find(run_id("r")).await.unwrap().unwrap().state, StoredRunState::Ended);
    assert_eq!(b.list_nodes().await.unwrap().len(), 1);
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn one_node_settles_and_another_one_if_it_dies() {
    let Some(nodes) = two_nodes(SHORT_LEASE) else { return };
    let home = tempfile::tempdir().unwrap();
    let c = join(&nodes.server, "c", SHORT_LEASE, &home);
    let dead = cluster(&nodes.a).membership().epoch;
    while cluster(&c).fence(dead).await != Ok(true) {
        tokio::task::yield_now().await;
    }
    assert_eq!(cluster(&c).begin_settling(dead).await, Ok(true));
    assert_eq!(cluster(&nodes.b).begin_settling(dead).await, Ok(false), "another one does");
    fence(&nodes.b, cluster(&c).membership().epoch).await;
    assert_eq!(cluster(&nodes.b).begin_settling(dead).await, Ok(true));
    assert_eq!(cluster(&c).begin_settling(dead).await, Err(StoreError::Fenced));
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_restart_in_the_same_directory_waits_for_no_lease() {
    let Some(nodes) = two_nodes(LONG_LEASE) else { return };
    let TwoNodes { server, homes, a, b } = nodes;
    let epoch = cluster(&a).membership().epoch;
    a.close().await;
    let again = join(&server, "a", LONG_LEASE, &homes[0]);
    let fenced: Vec<_> = cluster(&b).list_nodes().await.unwrap();
    let fenced: Vec<_> = fenced.iter().map(|row| (row.membership.epoch, row.fenced)).collect();
    assert_eq!(
        fenced,
        [(epoch, true), (cluster(&again).membership().epoch, false), (cluster(&b).membership().epoch, false)]
    );
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn two_nodes_with_one_name_are_refused_and_a_node_that_left_gives_its_name_back() {
    let Some(nodes) = two_nodes(LONG_LEASE) else { return };
    let home = tempfile::tempdir().unwrap();
    let same_name = PostgresStore::open(&node_settings(&nodes.server, "a", SHORT_LEASE), home.path()).err().unwrap();
    assert!(same_name.to_string().contains("another daemon is in the cluster as the node a"), "{same_name}");
    cluster(&nodes.a).leave().await.unwrap();
    assert_eq!(nodes.a.maintenance().probe().await, Err(StoreError::Fenced), "who has left writes nothing");
    join(&nodes.server, "a", SHORT_LEASE, &home);
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_daemon_without_a_cluster_is_refused_while_nodes_live_and_fences_them_when_they_do_not() {
    let Some(nodes) = two_nodes(SHORT_LEASE) else { return };
    let home = tempfile::tempdir().unwrap();
    let refused = PostgresStore::open(&settings(&nodes.server), home.path()).err().unwrap();
    assert!(refused.to_string().contains("belongs to a cluster"), "{refused}");
    cluster(&nodes.b).leave().await.unwrap();
    fence(&nodes.a, cluster(&nodes.a).membership().epoch).await;
    let alone = PostgresStore::open(&settings(&nodes.server), home.path()).map(Store::new).unwrap();
    assert!(alone.cluster().is_none());
    accept_run(&alone, "r", "s").await;
    assert_eq!(nodes.a.maintenance().probe().await, Err(StoreError::Fenced));
    let joined = join(&nodes.server, "b", LONG_LEASE, &tempfile::tempdir().unwrap());
    assert_eq!(alone.maintenance().probe().await, Err(StoreError::Fenced));
    let left: Vec<_> = cluster(&joined).open_runs_without_node().await.unwrap();
    assert_eq!(left.iter().map(|run| run.id.clone()).collect::<Vec<_>>(), [run_id("r")]);
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_transaction_that_hangs_does_not_delay_the_end_of_its_node() {
    let Some(nodes) = two_nodes(SHORT_LEASE) else { return };
    let epoch = cluster(&nodes.a).membership().epoch;
    nodes.a.maintenance().probe().await.unwrap();
    // As a process that was stopped between its statements.
    #[expect(clippy::disallowed_methods, reason = "psql is a client that hangs, not a command of an agent")]
    let mut hanging = std::process::Command::new("psql")
        .args([&nodes.server.url(), "-v", "ON_ERROR_STOP=1", "-c"])
        .arg(format!(
            "BEGIN; SET application_name = 'quell node {epoch}'; SELECT pg_advisory_xact_lock_shared(1903519084, {epoch}); SELECT pg_sleep(60)"
        ))
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    fence(&nodes.b, epoch).await;
    hanging.kill().unwrap();
    hanging.wait().unwrap();
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn letters_reach_one_node_each() {
    let Some(nodes) = two_nodes(LONG_LEASE) else { return };
    let (a, b) = (cluster(&nodes.a), cluster(&nodes.b));
    let mut notifications = b.letter_notifications();
    notifications.mark_unchanged();
    let letter = |letter| StoredLetter { to: NodeName::parse("b").unwrap(), letter };
    a.send_letters(vec![letter(vec![1]), letter(vec![2, 0])]).await.unwrap();
    notifications.changed().await.unwrap();
    assert_eq!(a.take_letters().await, Ok(vec![]));
    assert_eq!(b.take_letters().await, Ok(vec![vec![1], vec![2, 0]]));
    assert_eq!(b.take_letters().await, Ok(vec![]));
}

async fn claim_duty(store: &Store, lease: Duration) -> DutyOutcome {
    let claim = DutyClaim { name: "channel/x".to_owned(), lease, renewed: None };
    cluster(store).claim_duty(claim).await.unwrap()
}

/// Claims a duty as soon as its lease has ended. Returns its epoch.
async fn wait_for_duty(store: &Store) -> u64 {
    loop {
        match claim_duty(store, LONG_LEASE).await {
            DutyOutcome::Held { epoch } => return epoch,
            DutyOutcome::HeldByOther { .. } => tokio::task::yield_now().await,
        }
    }
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_duty_has_a_shorter_lease_than_its_node() {
    let Some(nodes) = two_nodes(LONG_LEASE) else { return };
    let held = |epoch| DutyOutcome::Held { epoch };
    assert_eq!(claim_duty(&nodes.a, LONG_LEASE).await, held(1));
    let DutyOutcome::HeldByOther { expires_in } = claim_duty(&nodes.b, LONG_LEASE).await else { panic!("it is held") };
    assert!(expires_in > LONG_LEASE / 2 && expires_in <= LONG_LEASE, "{expires_in:?}");
    let renewal = DutyClaim { name: "channel/x".to_owned(), lease: SHORT_LEASE, renewed: Some(1) };
    assert_eq!(cluster(&nodes.a).claim_duty(renewal.clone()).await, Ok(held(1)));
    assert_eq!(wait_for_duty(&nodes.b).await, 2, "the node itself is alive");
    assert!(matches!(claim_duty(&nodes.a, LONG_LEASE).await, DutyOutcome::HeldByOther { .. }));
    let b = cluster(&nodes.b);
    let duty = NodeDuty { name: "channel/x".to_owned(), holder: b.membership().clone(), epoch: 2 };
    assert_eq!(cluster(&nodes.a).list_duties().await, Ok(vec![duty]));
    let mut wakeups = cluster(&nodes.a).wakeups();
    wakeups.mark_unchanged();
    cluster(&nodes.a).release_duty("channel/x".to_owned(), 1).await.unwrap();
    b.release_duty("channel/x".to_owned(), 1).await.unwrap();
    assert_eq!(b.list_duties().await.unwrap().len(), 1, "an older epoch releases nothing");
    b.release_duty("channel/x".to_owned(), 2).await.unwrap();
    wakeups.changed().await.unwrap();
    assert_eq!(b.list_duties().await, Ok(vec![]));
    assert_eq!(claim_duty(&nodes.a, Duration::ZERO).await, held(3));
    let late = DutyClaim { renewed: Some(3), ..renewal };
    assert_eq!(cluster(&nodes.a).claim_duty(late).await, Ok(held(4)), "it had ended in between");
    assert_eq!(claim_duty(&nodes.a, LONG_LEASE).await, held(5));
    cluster(&nodes.a).release_duty("channel/x".to_owned(), 4).await.unwrap();
    assert_eq!(b.list_duties().await.unwrap().len(), 1, "a late release ends no later lease");
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_fenced_node_has_no_duty_and_another_takes_it_before_its_runs_are_sealed() {
    let Some(nodes) = two_nodes(SHORT_LEASE) else { return };
    assert_eq!(claim_duty(&nodes.a, LONG_LEASE).await, DutyOutcome::Held { epoch: 1 });
    fence(&nodes.b, cluster(&nodes.a).membership().epoch).await;
    assert_eq!(cluster(&nodes.b).list_duties().await, Ok(vec![]));
    assert_eq!(claim_duty(&nodes.b, LONG_LEASE).await, DutyOutcome::Held { epoch: 2 });
    assert!(matches!(claim_duty(&nodes.a, LONG_LEASE).await, DutyOutcome::HeldByOther { .. }));
    let new = DutyClaim { name: "channel/y".to_owned(), lease: LONG_LEASE, renewed: None };
    assert_eq!(cluster(&nodes.a).claim_duty(new).await, Err(StoreError::Fenced));
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn what_a_node_left_in_chats_is_given_to_one_node_when_it_is_settled() {
    let Some(nodes) = two_nodes(LONG_LEASE) else { return };
    let home = tempfile::tempdir().unwrap();
    let c = join(&nodes.server, "c", SHORT_LEASE, &home);
    let own = pending_reply("of-a", "tg");
    nodes.a.channels().save_pending_reply(own).await.unwrap();
    c.channels().save_pending_reply(pending_reply("of-c", "tg")).await.unwrap();
    let take = async |store: &Store| {
        let taken = store.channels().take_stale_replies("tg".to_owned()).await.unwrap();
        taken.into_iter().map(|left| left.pending_reply.run).collect::<Vec<_>>()
    };
    let epoch = cluster(&c).membership().epoch;
    fence(&nodes.b, epoch).await;
    assert_eq!(take(&nodes.b).await, [], "its runs are not sealed yet");
    assert_eq!(cluster(&nodes.b).begin_settling(epoch).await, Ok(true));
    cluster(&nodes.b).finish_settling(epoch).await.unwrap();
    let (a, b) = tokio::join!(take(&nodes.a), take(&nodes.b));
    assert_eq!([a, b].concat(), [run_id("of-c")]);
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn changes_of_what_nodes_have_in_memory_are_counted() {
    let Some(nodes) = two_nodes(LONG_LEASE) else { return };
    let number = |answer: crate::RenewalAnswer| {
        answer.changes.iter().find(|change| change.topic == "hold").map(|change| change.number)
    };
    let before = number(renew(&nodes.b, vec![]).await).unwrap();
    let mut wakeups = cluster(&nodes.b).wakeups();
    wakeups.mark_unchanged();
    nodes.a.runs().set_hold(&quell_protocol::api::Hold { held: true, ..Default::default() }, None).await.unwrap();
    wakeups.changed().await.unwrap();
    assert!(number(renew(&nodes.b, vec![]).await).unwrap() > before);
}
