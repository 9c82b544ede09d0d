//! The operations of a node: sessions, stops, letters, and the end of other memberships.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quell_kernel::lease::Epoch;
use quell_protocol::{NodeName, RunId, SessionKey};
use tokio::sync::{mpsc, watch};
use tokio_postgres::Row;

use super::boot::{self, BootNumber, EPOCH_LOCK};
use super::columns::{Text, get, parse_id, to_unsigned};
use super::connection::PgConnection;
use super::listener::{Listener, letter_notification};
use super::runs::{RUN_COLUMNS, run_from_row};
use super::settings::Connector;
use super::{PostgresStore, QUEUE_CAPACITY, duties, membership};
use crate::cluster::{
    ClaimOutcome, ClusterSettings, ClusterStore, DutyClaim, DutyOutcome, Membership, NodeDuty, NodeRow, RenewalAnswer,
    RenewalRequest, RequestedStop, SessionLocation, StoredLetter,
};
use crate::reader_threads::{self, ReadOperation};
use crate::worker_threads::{WorkerThreads, send_work};
use crate::{RunRow, StoreError, StoreFuture};

/// A statement about the lease may take this part of it.
const LEASE_PER_ANSWER: u32 = 5;

/// What a store has besides, when its daemon is a node of a cluster.
pub(super) struct PgNode {
    membership: Membership,
    settings: ClusterSettings,
    /// Renews the lease.
    lease_thread: WorkerThreads<ReadOperation<PgConnection>>,
    listener: Listener,
}

impl PgNode {
    pub(super) fn start(
        connector: &Arc<Connector>,
        settings: &ClusterSettings,
        membership: Membership,
    ) -> Result<Self, StoreError> {
        let (to_lease, renewals) = mpsc::channel(QUEUE_CAPACITY);
        let renewals = Arc::new(std::sync::Mutex::new(renewals));
        let answer_timeout = settings.timing.lease() / LEASE_PER_ANSWER;
        let renew = {
            let connector = Arc::clone(connector);
            move || {
                reader_threads::run(PgConnection::with_answer_timeout(connector, answer_timeout), &renewals);
            }
        };
        let listener = Listener::start(Arc::clone(connector), settings.node.clone())?;
        let lease_thread = WorkerThreads::start("quell-store-l", to_lease, vec![renew])?;
        Ok(Self { membership, settings: settings.clone(), lease_thread, listener })
    }

    pub(super) async fn close(&self) {
        self.lease_thread.close().await;
        self.listener.close();
    }
}

/// Joins the cluster. The data directory must be locked.
pub(super) fn join(db: &PgConnection, settings: &ClusterSettings, data_dir: &Path) -> Result<Membership, StoreError> {
    membership::join(db, settings, &membership::identify_directory(data_dir)?)
}

impl BootNumber {
    pub(super) fn membership(self, settings: &ClusterSettings) -> Membership {
        Membership { node: settings.node.clone(), epoch: self.epoch() }
    }
}

pub(super) fn to_epoch(number: i64) -> Epoch {
    to_unsigned(number)
}

pub(super) fn to_number(epoch: Epoch) -> i64 {
    i64::try_from(epoch).unwrap_or(i64::MAX)
}

/// Checks in a write of a node that a session is its own. Without a cluster, all sessions are.
pub(super) fn require_own_session(db: &PgConnection, session: &SessionKey) -> Result<(), StoreError> {
    let writer = db.writer()?;
    let sql = "SELECT 1 FROM session_nodes WHERE session = $1 AND epoch = $2";
    if !writer.is_member() || db.exists(sql, &[&session.as_str(), &writer.number()])? {
        return Ok(());
    }
    Err(StoreError::OtherNode(session.clone()))
}

/// The operations of a node on its store.
pub(super) struct ClusterMember {
    pub(super) store: PostgresStore,
    pub(super) node: Arc<PgNode>,
}

impl ClusterStore for ClusterMember {
    fn membership(&self) -> &Membership {
        &self.node.membership
    }

    fn wakeups(&self) -> watch::Receiver<u64> {
        self.node.listener.wakeups()
    }

    fn renew(&self, request: RenewalRequest) -> StoreFuture<'_, RenewalAnswer> {
        let (own, lease) = (self.node.membership.clone(), self.node.settings.timing.lease());
        let renewal =
            move |db: &mut PgConnection| db.read(&mut |db: &PgConnection| membership::renew(db, &own, lease, &request));
        send_work(&self.node.lease_thread, reader_threads::queued_read(renewal))
    }

    fn list_nodes(&self) -> StoreFuture<'_, Vec<NodeRow>> {
        self.store.read(membership::list_nodes)
    }

    fn claim_session(&self, session: SessionKey) -> StoreFuture<'_, ClaimOutcome> {
        self.store.write(move |db| {
            let own = db.writer()?.number();
            let sql = "INSERT INTO session_nodes (session, epoch) VALUES ($1, $2) ON CONFLICT (session) DO NOTHING";
            if db.execute(sql, &[&session.as_str(), &own])? > 0 {
                let sql = "INSERT INTO session_homes (session, node) SELECT $1, name FROM nodes WHERE epoch = $2
                           ON CONFLICT (session) DO UPDATE SET node = excluded.node";
                db.execute(sql, &[&session.as_str(), &own])?;
                return Ok(ClaimOutcome::Claimed);
            }
            Ok(match query_session_node(db, &session)? {
                Some(owner) if owner.epoch != to_epoch(own) => ClaimOutcome::OwnedBy(owner),
                _ => ClaimOutcome::Claimed,
            })
        })
    }

    fn release_session(&self, session: SessionKey) -> StoreFuture<'_, ()> {
        self.store.write_relaxed(move |db| {
            let sql = "DELETE FROM session_nodes WHERE session = $1 AND epoch = $2 AND NOT EXISTS
                           (SELECT 1 FROM runs WHERE runs.session = $1 AND state IN ('accepted', 'started'))";
            db.execute(sql, &[&session.as_str(), &db.writer()?.number()]).map(drop)
        })
    }

    fn session_node(&self, session: SessionKey) -> StoreFuture<'_, Option<Membership>> {
        self.store.read(move |db| query_session_node(db, &session))
    }

    fn locate_session(&self, session: SessionKey) -> StoreFuture<'_, SessionLocation> {
        self.store.read(move |db| {
            let sql = "SELECT node FROM session_homes WHERE session = $1";
            let home = db.query_optional(sql, &[&session.as_str()])?;
            let last_node = home.as_ref().map(|row| parse_id(row, 0, NodeName::parse)).transpose()?;
            Ok(SessionLocation { owner: query_session_node(db, &session)?, last_node })
        })
    }

    fn run_node(&self, run: RunId) -> StoreFuture<'_, Option<Membership>> {
        self.store.read(move |db| {
            let sql =
                "SELECT nodes.epoch, nodes.name FROM runs JOIN session_nodes USING (session) JOIN nodes USING (epoch)
                       WHERE runs.id = $1";
            db.query_optional(sql, &[&run.as_str()])?.as_ref().map(membership_from_row).transpose()
        })
    }

    fn response_node(&self, id: String) -> StoreFuture<'_, Option<Membership>> {
        self.store.read(move |db| {
            let sql = "SELECT nodes.epoch, nodes.name FROM responses JOIN nodes ON nodes.epoch = responses.boot
                       WHERE responses.id = $1 AND NOT responses.ended";
            db.query_optional(sql, &[&id])?.as_ref().map(membership_from_row).transpose()
        })
    }

    fn own_sessions(&self) -> StoreFuture<'_, Vec<SessionKey>> {
        let epoch = to_number(self.node.membership.epoch);
        self.store.read(move |db| {
            let rows = db.query("SELECT session FROM session_nodes WHERE epoch = $1", &[&epoch])?;
            rows.iter().map(|row| parse_id(row, 0, SessionKey::parse)).collect()
        })
    }

    fn open_run_node(&self, run: RunId) -> StoreFuture<'_, Option<Membership>> {
        self.store.read(move |db| {
            let sql =
                "SELECT nodes.epoch, nodes.name FROM runs JOIN session_nodes USING (session) JOIN nodes USING (epoch)
                       WHERE runs.id = $1 AND state IN ('accepted', 'started')";
            db.query_optional(sql, &[&run.as_str()])?.as_ref().map(membership_from_row).transpose()
        })
    }

    fn request_stop(&self, epochs: Vec<Epoch>, stop: String) -> StoreFuture<'_, Vec<RequestedStop>> {
        self.store.write(move |db| {
            let epochs: Vec<i64> = epochs.iter().copied().map(to_number).collect();
            let sql = "WITH stored AS (
                           INSERT INTO node_stops (epoch, stop) SELECT epoch, $2 FROM nodes WHERE epoch = ANY ($1)
                           RETURNING epoch, number)
                       SELECT nodes.epoch, name, number, extract(epoch FROM expires_at - clock_timestamp())::float8,
                           pg_notify('quell', name)::text
                       FROM stored JOIN nodes USING (epoch) ORDER BY name";
            let requested = |row: &Row| {
                let seconds: f64 = get(row, 3)?;
                Ok(RequestedStop {
                    membership: membership_from_row(row)?,
                    number: get(row, 2)?,
                    expires_in: Duration::from_secs_f64(seconds.max(0.0)),
                })
            };
            db.query(sql, &[&epochs, &Text(&stop)])?.iter().map(requested).collect()
        })
    }

    fn fence(&self, epoch: Epoch) -> StoreFuture<'_, bool> {
        // Not on the connection that writes, which may wait for a transaction of the node that is to be fenced.
        let fence =
            move |db: &mut PgConnection| db.read(&mut |db: &PgConnection| fence_in_transaction(db, to_number(epoch)));
        send_work(&self.node.lease_thread, reader_threads::queued_read(fence))
    }

    fn begin_settling(&self, epoch: Epoch) -> StoreFuture<'_, bool> {
        self.store.write(move |db| {
            let sql = "UPDATE nodes SET settler = $2 WHERE epoch = $1 AND fenced
                           AND coalesce(settler, $2) NOT IN (SELECT epoch FROM nodes WHERE NOT fenced AND epoch <> $2)";
            Ok(db.execute(sql, &[&to_number(epoch), &db.writer()?.number()])? > 0)
        })
    }

    fn open_runs_of(&self, epoch: Epoch) -> StoreFuture<'_, Vec<RunRow>> {
        self.store.read(move |db| {
            let sql = format!(
                "{RUN_COLUMNS} WHERE state IN ('accepted', 'started')
                     AND session IN (SELECT session FROM session_nodes WHERE epoch = $1) ORDER BY seq"
            );
            db.query(&sql, &[&to_number(epoch)])?.iter().map(run_from_row).collect()
        })
    }

    fn open_runs_without_node(&self) -> StoreFuture<'_, Vec<RunRow>> {
        self.store.read(|db| {
            let sql = format!(
                "{RUN_COLUMNS} WHERE state IN ('accepted', 'started')
                     AND session NOT IN (SELECT session FROM session_nodes) ORDER BY seq"
            );
            db.query(&sql, &[])?.iter().map(run_from_row).collect()
        })
    }

    fn finish_settling(&self, epoch: Epoch) -> StoreFuture<'_, ()> {
        self.store.write(move |db| {
            db.execute("DELETE FROM nodes WHERE epoch = $1 AND fenced", &[&to_number(epoch)])?;
            // Letters that nobody has taken are for memberships that have ended.
            db.run("DELETE FROM node_letters WHERE sent_at < clock_timestamp() - interval '1 hour'")?;
            // The sessions that were waited for are free.
            db.run("NOTIFY quell, '*'")
        })
    }

    fn leave(&self) -> StoreFuture<'_, ()> {
        self.store.write(|db| {
            let own = db.writer()?.number();
            let open = "SELECT 1 FROM session_nodes JOIN runs USING (session)
                        WHERE session_nodes.epoch = $1 AND state IN ('accepted', 'started')";
            if db.exists(open, &[&own])? {
                let sql = "UPDATE nodes SET fenced = true, expires_at = clock_timestamp() WHERE epoch = $1";
                db.execute(sql, &[&own])?;
            } else {
                db.execute("DELETE FROM nodes WHERE epoch = $1", &[&own])?;
            }
            db.run("NOTIFY quell, '*'")
        })
    }

    fn claim_duty(&self, claim: DutyClaim) -> StoreFuture<'_, DutyOutcome> {
        let own = to_number(self.node.membership.epoch);
        let claim = move |db: &mut PgConnection| db.read(&mut |db: &PgConnection| duties::claim_duty(db, own, &claim));
        send_work(&self.node.lease_thread, reader_threads::queued_read(claim))
    }

    fn release_duty(&self, name: String, epoch: Epoch) -> StoreFuture<'_, ()> {
        let own = to_number(self.node.membership.epoch);
        let release =
            move |db: &mut PgConnection| db.read(&mut |db: &PgConnection| duties::release_duty(db, own, &name, epoch));
        send_work(&self.node.lease_thread, reader_threads::queued_read(release))
    }

    fn list_duties(&self) -> StoreFuture<'_, Vec<NodeDuty>> {
        self.store.read(duties::list_duties)
    }

    fn send_letters(&self, letters: Vec<StoredLetter>) -> StoreFuture<'_, ()> {
        self.store.write_relaxed(move |db| {
            for StoredLetter { to, letter } in &letters {
                db.execute("INSERT INTO node_letters (node, letter) VALUES ($1, $2)", &[&to.as_str(), letter])?;
            }
            let receivers: BTreeSet<&str> = letters.iter().map(|letter| letter.to.as_str()).collect();
            for receiver in receivers {
                db.query("SELECT pg_notify('quell', $1)::text", &[&letter_notification(receiver)])?;
            }
            Ok(())
        })
    }

    fn letter_notifications(&self) -> watch::Receiver<u64> {
        self.node.listener.letter_notifications()
    }

    fn take_letters(&self) -> StoreFuture<'_, Vec<Vec<u8>>> {
        let node = self.node.membership.node.clone();
        self.store.write_relaxed(move |db| {
            let sql = "WITH taken AS (DELETE FROM node_letters WHERE node = $1 RETURNING number, letter)
                       SELECT letter FROM taken ORDER BY number";
            db.query(sql, &[&node.as_str()])?.iter().map(|row| get(row, 0)).collect()
        })
    }
}

fn query_session_node(db: &PgConnection, session: &SessionKey) -> Result<Option<Membership>, StoreError> {
    let sql = "SELECT nodes.epoch, nodes.name FROM session_nodes JOIN nodes USING (epoch) WHERE session = $1";
    db.query_optional(sql, &[&session.as_str()])?.as_ref().map(membership_from_row).transpose()
}

pub(super) fn membership_from_row(row: &Row) -> Result<Membership, StoreError> {
    Ok(Membership { epoch: to_epoch(get(row, 0)?), node: parse_id(row, 1, NodeName::parse)? })
}

fn fence_in_transaction(db: &PgConnection, epoch: i64) -> Result<bool, StoreError> {
    db.run("BEGIN ISOLATION LEVEL READ COMMITTED")?;
    let fenced = fence_expired(db, epoch);
    db.run(if fenced.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
    fenced
}

/// A transaction of a node that hangs must not delay its end, so its connection is ended first.
fn fence_expired(db: &PgConnection, epoch: i64) -> Result<bool, StoreError> {
    let sql = "SELECT fenced, expires_at <= clock_timestamp() FROM nodes WHERE epoch = $1";
    let Some(row) = db.query_optional(sql, &[&epoch])? else { return Ok(false) };
    let (fenced, expired): (bool, bool) = (get(&row, 0)?, get(&row, 1)?);
    if fenced || !expired {
        return Ok(fenced);
    }
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND application_name = $1 AND pid <> pg_backend_pid()";
    db.query(sql, &[&boot::connection_name(epoch)])?;
    // Not waited for: the same connection renews the lease of this node. The caller tries again.
    let lock = db.query_row(&format!("SELECT pg_try_advisory_xact_lock({EPOCH_LOCK}, {epoch})"), &[])?;
    if !get::<bool>(&lock, 0)? {
        return Ok(false);
    }
    // It may have been renewed meanwhile.
    let sql = "UPDATE nodes SET fenced = true WHERE epoch = $1 AND expires_at <= clock_timestamp()";
    Ok(db.execute(sql, &[&epoch])? > 0)
}
