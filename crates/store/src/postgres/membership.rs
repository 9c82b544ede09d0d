//! Joining a cluster, renewing and fencing memberships.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use quell_kernel::lease::RenewOutcome;
use quell_protocol::NodeName;
use tokio_postgres::Row;

use super::boot::{BOOT_LOCK, EPOCH_LOCK};
use super::cluster::to_epoch;
use super::columns::{Text, get, parse_id, text, to_unsigned};
use super::connection::PgConnection;
use crate::StoreError;
use crate::cluster::{ChangeCount, ClusterSettings, Membership, NodeRow, RenewalAnswer, RenewalRequest, WaitingStop};
use crate::lock::lock_file_path;

/// Between two looks whether the lease of an earlier daemon with the same name has ended.
const NAME_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Sessions are counted for people only, so the number is that of the statistics of one statement.
const NODE_COLUMNS: &str = "SELECT epoch, name, version, \
    to_char(joined_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), \
    extract(epoch FROM clock_timestamp() - renewed_at)::float8, \
    extract(epoch FROM expires_at - clock_timestamp())::float8, fenced, report, \
    (SELECT count(*) FROM session_nodes WHERE session_nodes.epoch = nodes.epoch) FROM nodes ORDER BY name, epoch";

/// Identifies a locked data directory on a running host: nobody else can hold its lock, so an earlier membership with the
/// same identity is dead.
pub(super) fn identify_directory(data_dir: &Path) -> Result<String, StoreError> {
    let lock_file = lock_file_path(data_dir);
    let metadata = fs::metadata(&lock_file).map_err(|error| StoreError::from_io(&lock_file, &error))?;
    let boot_id = Path::new("/proc/sys/kernel/random/boot_id");
    let host = fs::read_to_string(boot_id).map_err(|error| StoreError::from_io(boot_id, &error))?;
    Ok(format!("{}:{}:{}", host.trim(), metadata.dev(), metadata.ino()))
}

/// Joins the cluster as a new membership. Waits while another daemon with the same name has a lease, for one lease at
/// most: it may be the one that this one replaces.
///
/// # Errors
/// [`StoreError::Settings`] when the name stays in use.
pub(super) fn join(db: &PgConnection, settings: &ClusterSettings, directory: &str) -> Result<Membership, StoreError> {
    let begin = Instant::now();
    loop {
        db.run("BEGIN ISOLATION LEVEL READ COMMITTED")?;
        let joined = try_join(db, settings, directory);
        db.run(if matches!(joined, Ok(Some(_))) { "COMMIT" } else { "ROLLBACK" })?;
        if let Some(membership) = joined? {
            return Ok(membership);
        }
        if begin.elapsed() > settings.timing.lease() + Duration::from_secs(1) {
            return Err(StoreError::Settings(format!(
                "another daemon is in the cluster as the node {}; give each one a `node` of its own in [cluster]",
                settings.node
            )));
        }
        thread::sleep(NAME_CHECK_INTERVAL);
    }
}

/// `None` while another daemon with this name has a lease.
fn try_join(db: &PgConnection, settings: &ClusterSettings, directory: &str) -> Result<Option<Membership>, StoreError> {
    let has_members: bool = get(&db.query_row("SELECT cluster FROM boot", &[])?, 0)?;
    if !has_members {
        // The daemon before may have had the database for itself: its writes end here.
        db.run(&format!("SELECT pg_advisory_xact_lock({BOOT_LOCK})"))?;
    }
    let row = db.query_row("UPDATE boot SET number = number + 1, cluster = true RETURNING number", &[])?;
    let number: i64 = get(&row, 0)?;
    let (node, lease) = (settings.node.as_str(), settings.timing.lease().as_secs_f64());
    let sql =
        "SELECT 1 FROM nodes WHERE name = $1 AND directory <> $2 AND NOT fenced AND expires_at > clock_timestamp()";
    if db.exists(sql, &[&node, &directory])? {
        return Ok(None);
    }
    for row in db.query("SELECT epoch FROM nodes WHERE directory = $1 AND NOT fenced", &[&directory])? {
        fence_row(db, get(&row, 0)?)?;
    }
    let sql = "INSERT INTO nodes (epoch, name, directory, version, expires_at)
               VALUES ($1, $2, $3, $4, clock_timestamp() + make_interval(secs => $5))";
    db.execute(sql, &[&number, &node, &directory, &settings.version, &lease])?;
    db.run("DELETE FROM writer_batches WHERE writer NOT IN (SELECT epoch FROM nodes)")?;
    Ok(Some(Membership { node: settings.node.clone(), epoch: to_epoch(number) }))
}

/// Waits until the transactions of a membership have ended, and refuses all later ones.
pub(super) fn fence_row(db: &PgConnection, epoch: i64) -> Result<(), StoreError> {
    db.run(&format!("SELECT pg_advisory_xact_lock({EPOCH_LOCK}, {epoch})"))?;
    db.execute("UPDATE nodes SET fenced = true WHERE epoch = $1", &[&epoch]).map(drop)
}

/// Renews a lease and reads the state of the cluster. Not in one transaction: a stop that is stored between the two finds
/// the renewed lease.
pub(super) fn renew(
    db: &PgConnection,
    own: &Membership,
    lease: Duration,
    request: &RenewalRequest,
) -> Result<RenewalAnswer, StoreError> {
    let epoch = super::cluster::to_number(own.epoch);
    if !request.carried_out.is_empty() {
        db.execute("DELETE FROM node_stops WHERE epoch = $1 AND number = ANY ($2)", &[&epoch, &request.carried_out])?;
    }
    let sql = "UPDATE nodes SET renewed_at = clock_timestamp(), report = $3,
                   expires_at = greatest(expires_at, clock_timestamp() + make_interval(secs => $2))
               WHERE epoch = $1 AND NOT fenced AND expires_at > clock_timestamp()
                   AND NOT EXISTS (SELECT 1 FROM node_stops WHERE node_stops.epoch = $1)";
    let renewed = db.execute(sql, &[&epoch, &lease.as_secs_f64(), &Text(&request.report)])? > 0;
    if renewed && request.wake_others {
        db.query("SELECT pg_notify('quell', '*')", &[])?;
    }
    let sql = "SELECT number, stop FROM node_stops WHERE epoch = $1 ORDER BY number";
    let stop = |row: &Row| Ok(WaitingStop { number: get(row, 0)?, stop: text(row, 1)? });
    let stops: Vec<WaitingStop> = db.query(sql, &[&epoch])?.iter().map(stop).collect::<Result<_, StoreError>>()?;
    let nodes = list_nodes(db)?;
    let is_member =
        nodes.iter().any(|row| row.membership.epoch == own.epoch && !row.fenced && !row.expires_in.is_zero());
    let outcome = match (renewed, is_member) {
        (true, _) => RenewOutcome::Renewed,
        (false, true) => RenewOutcome::StopFirst,
        (false, false) => RenewOutcome::Lost,
    };
    let change = |row: &Row| Ok(ChangeCount { topic: get(row, 0)?, number: get(row, 1)? });
    let changes = db.query("SELECT topic, number FROM changes ORDER BY topic", &[])?;
    let changes = changes.iter().map(change).collect::<Result<_, StoreError>>()?;
    Ok(RenewalAnswer { outcome, stops, nodes, changes, database_clock_ms: read_clock(db)? })
}

/// The clock of the database, in milliseconds since 1970.
pub(super) fn read_clock(db: &PgConnection) -> Result<i64, StoreError> {
    get(&db.query_row("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint", &[])?, 0)
}

pub(super) fn list_nodes(db: &PgConnection) -> Result<Vec<NodeRow>, StoreError> {
    db.query(NODE_COLUMNS, &[])?.iter().map(node_from_row).collect()
}

fn node_from_row(row: &Row) -> Result<NodeRow, StoreError> {
    let seconds = |at| get(row, at).map(|seconds: f64| Duration::from_secs_f64(seconds.max(0.0)));
    Ok(NodeRow {
        membership: Membership { epoch: to_epoch(get(row, 0)?), node: parse_id(row, 1, NodeName::parse)? },
        version: get(row, 2)?,
        joined_at: get(row, 3)?,
        silent_for: seconds(4)?,
        expires_in: seconds(5)?,
        fenced: get(row, 6)?,
        report: text(row, 7)?,
        sessions: to_unsigned(get(row, 8)?),
    })
}
