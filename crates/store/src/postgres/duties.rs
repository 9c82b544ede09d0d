//! Leases of duties: work that one node does for all. Only the clock of the database is compared with them.

use std::time::Duration;

use quell_kernel::lease::Epoch;
use tokio_postgres::Row;

use super::cluster::{membership_from_row, to_epoch, to_number};
use super::columns::{Text, get, text};
use super::connection::PgConnection;
use crate::StoreError;
use crate::cluster::{DutyClaim, DutyOutcome, NodeDuty};

/// How often a claim is repeated when another node changes the same row at that moment.
const MAX_TRIES: usize = 3;

/// Takes or renews a duty for the membership `own`.
///
/// # Errors
/// [`StoreError::Fenced`] if the membership has ended.
pub(super) fn claim_duty(db: &PgConnection, own: i64, claim: &DutyClaim) -> Result<DutyOutcome, StoreError> {
    let (name, lease) = (claim.name.as_str(), claim.lease);
    let renewed = claim.renewed.map_or(0, to_number);
    for _ in 0..MAX_TRIES {
        if let Some(expires_in) = query_other_lease(db, own, name)? {
            return Ok(DutyOutcome::HeldByOther { expires_in });
        }
        // A membership that has ended holds nothing. The conditions are those of `query_other_lease`, checked again.
        let sql = "INSERT INTO node_duties AS duty (name, epoch, holder, expires_at)
                   SELECT $1, 1, nodes.epoch, clock_timestamp() + make_interval(secs => $3) FROM nodes
                   WHERE epoch = $2 AND NOT fenced AND nodes.expires_at > clock_timestamp()
                   ON CONFLICT (name) DO UPDATE SET
                       epoch = CASE WHEN duty.holder = excluded.holder AND duty.epoch = $4 AND duty.expires_at > clock_timestamp()
                           THEN duty.epoch ELSE duty.epoch + 1 END,
                       holder = excluded.holder,
                       expires_at = excluded.expires_at
                   WHERE duty.holder = excluded.holder OR duty.expires_at <= clock_timestamp()
                       OR duty.holder NOT IN (SELECT epoch FROM nodes WHERE NOT fenced)
                   RETURNING epoch";
        if let Some(row) = db.query_optional(sql, &[&Text(name), &own, &lease.as_secs_f64(), &renewed])? {
            return Ok(DutyOutcome::Held { epoch: to_epoch(get(&row, 0)?) });
        }
        let sql = "SELECT 1 FROM nodes WHERE epoch = $1 AND NOT fenced AND expires_at > clock_timestamp()";
        if !db.exists(sql, &[&own])? {
            return Err(StoreError::Fenced);
        }
    }
    Ok(DutyOutcome::HeldByOther { expires_in: lease })
}

/// How long another node has a duty.
fn query_other_lease(db: &PgConnection, own: i64, name: &str) -> Result<Option<Duration>, StoreError> {
    let sql = "SELECT extract(epoch FROM duty.expires_at - clock_timestamp())::float8
               FROM node_duties AS duty JOIN nodes ON nodes.epoch = holder AND NOT fenced
               WHERE duty.name = $1 AND holder <> $2 AND duty.expires_at > clock_timestamp()";
    let Some(row) = db.query_optional(sql, &[&Text(name), &own])? else { return Ok(None) };
    let seconds: f64 = get(&row, 0)?;
    Ok(Some(Duration::from_secs_f64(seconds.max(0.0))))
}

pub(super) fn release_duty(db: &PgConnection, own: i64, name: &str, epoch: Epoch) -> Result<(), StoreError> {
    let sql = "UPDATE node_duties SET expires_at = clock_timestamp() WHERE name = $1 AND holder = $2 AND epoch = $3";
    if db.execute(sql, &[&Text(name), &own, &to_number(epoch)])? > 0 {
        db.run("NOTIFY quell, '*'")?;
    }
    Ok(())
}

pub(super) fn list_duties(db: &PgConnection) -> Result<Vec<NodeDuty>, StoreError> {
    let sql = "SELECT nodes.epoch, nodes.name, duty.name, duty.epoch
               FROM node_duties AS duty JOIN nodes ON nodes.epoch = holder AND NOT fenced
               WHERE duty.expires_at > clock_timestamp() ORDER BY duty.name";
    let duty = |row: &Row| {
        Ok(NodeDuty { holder: membership_from_row(row)?, name: text(row, 2)?, epoch: to_epoch(get(row, 3)?) })
    };
    db.query(sql, &[])?.iter().map(duty).collect()
}
