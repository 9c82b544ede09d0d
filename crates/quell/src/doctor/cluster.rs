//! Check how this daemon takes part in a cluster: its secret, the clock of the database, and the other nodes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use quell_bus::KeyFingerprints;
use quell_engine::engine::NodeReport;
use quell_protocol::NodeName;
use quell_store::NodeRow;

use super::ConfiguredInput;
use super::finding::DoctorFinding;
use crate::config::ClusterSection;

/// A difference of the clocks that people have to know of.
const NOTABLE_SKEW_MS: u64 = 2000;
/// Mode bits of the file with the secret: the group may read it, as with secrets that Kubernetes mounts.
const FORBIDDEN_MODE: u32 = 0o027;

pub(super) fn cluster(input: &ConfiguredInput<'_>) -> Vec<DoctorFinding> {
    let Some(section) = &input.loaded.config.cluster else {
        return vec![DoctorFinding::ok("this daemon is not a node of one: it has its database for itself")];
    };
    let mut findings = vec![check_secret(section)];
    // Without a connection the check of the database says why.
    if let (Some(node), Ok(found)) = (&section.node, input.inspection())
        && let Some(server) = &found.server
    {
        let keys = section.node_settings().ok().and_then(|settings| settings.secret);
        let keys = keys.as_ref().map(KeyFingerprints::of).unwrap_or_default();
        let own = OwnNode { node, lease_ms: section.lease_ms, keys, runs: found.holder.is_some() };
        findings.push(check_clock(server.clock_skew_ms));
        findings.extend(check_nodes(&own, &server.nodes));
    }
    findings
}

fn check_secret(section: &ClusterSection) -> DoctorFinding {
    if let Err((key, problem)) = section.node_settings() {
        return DoctorFinding::fail(
            format!("{key}: {problem}"),
            "write a key into it, the same for all nodes: openssl rand -hex 32",
        );
    }
    let Some(file) = &section.secret_file else { return DoctorFinding::ok("secret_command prints the secret") };
    check_secret_file(file)
}

pub(super) fn check_secret_file(file: &Path) -> DoctorFinding {
    let place = file.display();
    match fs::metadata(file) {
        Ok(found) if found.permissions().mode() & FORBIDDEN_MODE != 0 => DoctorFinding::fail(
            format!(
                "{place} can be read by other users (mode {:03o}); whoever has it can pass for a node",
                found.permissions().mode() & 0o777
            ),
            format!("chmod 600 {place}, and put a new key in its first line if others may have read it"),
        ),
        Ok(_) => DoctorFinding::ok(format!("{place} holds the secret and is private")),
        Err(error) => DoctorFinding::fail(format!("{place} cannot be looked at: {error}"), "mend its rights"),
    }
}

pub(super) fn check_clock(skew_ms: i64) -> DoctorFinding {
    let size = skew_ms.unsigned_abs();
    let direction = if skew_ms > 0 { "ahead of" } else { "behind" };
    if size <= NOTABLE_SKEW_MS {
        return DoctorFinding::ok("the clock of the database agrees with this one");
    }
    DoctorFinding::warn(
        format!(
            "the clock of the database is {:.1} s {direction} this one; leases do not depend on it, but times in lists do",
            std::time::Duration::from_millis(size).as_secs_f64()
        ),
        "run NTP (chrony, systemd-timesyncd) on both machines",
    )
}

/// This node, as its configuration has it.
pub(super) struct OwnNode<'a> {
    pub(super) node: &'a NodeName,
    pub(super) lease_ms: u64,
    pub(super) keys: KeyFingerprints,
    /// A daemon runs on this data directory.
    pub(super) runs: bool,
}

pub(super) fn check_nodes(own: &OwnNode<'_>, nodes: &[NodeRow]) -> Vec<DoctorFinding> {
    let at_work = |row: &&NodeRow| !row.fenced && !row.expires_in.is_zero();
    let (same_name, others): (Vec<&NodeRow>, Vec<&NodeRow>) =
        nodes.iter().filter(at_work).partition(|row| row.membership.node == *own.node);
    let mut findings = vec![check_name(own, &same_name)];
    findings.push(match others.is_empty() {
        true => DoctorFinding::ok("no other node is at work"),
        false => {
            let names = others.iter().map(|row| format!("{} ({})", row.membership.node, row.version));
            DoctorFinding::ok(format!("other nodes: {}", names.collect::<Vec<_>>().join(", ")))
        }
    });
    findings.extend(others.iter().filter_map(|row| check_version(row)));
    findings.extend(others.iter().filter_map(|row| check_lease(own, row)));
    findings.extend(others.iter().filter_map(|row| check_keys(own, row)));
    findings
}

fn check_name(own: &OwnNode<'_>, same_name: &[&NodeRow]) -> DoctorFinding {
    let node = own.node;
    match (same_name.first(), own.runs) {
        (Some(_), true) => DoctorFinding::ok(format!("the node {node} is at work")),
        (None, false) => DoctorFinding::ok(format!("the name {node} is free for this daemon")),
        (Some(row), false) => DoctorFinding::warn(
            format!("the node {node} is at work, and no daemon runs on this data directory"),
            format!(
                "give this daemon another `node` in [cluster]; if its own has just ended, the name is free in {:.0} s",
                row.expires_in.as_secs_f64().ceil()
            ),
        ),
        (None, true) => DoctorFinding::warn(
            format!("a daemon runs on this data directory, and the node {node} is not in the cluster"),
            "look at its log: it has lost its lease, or was started before [cluster] was written; restart it",
        ),
    }
}

/// Neighbouring versions work together, so that nodes can be upgraded one after the other.
fn check_version(row: &NodeRow) -> Option<DoctorFinding> {
    let own = env!("CARGO_PKG_VERSION");
    (!are_neighbours(own, &row.version)).then(|| {
        DoctorFinding::warn(
            format!("the node {} has version {}, this is {own}", row.membership.node, row.version),
            "upgrade the nodes one minor version at a time: only neighbouring versions understand each other",
        )
    })
}

pub(super) fn are_neighbours(version: &str, other: &str) -> bool {
    let parse = |version: &str| {
        let mut parts = version.split('.').map(str::parse::<u64>);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    };
    match (parse(version), parse(other)) {
        (Some((major, minor)), Some((other_major, other_minor))) => {
            major == other_major && minor.abs_diff(other_minor) <= 1
        }
        _ => version == other,
    }
}

fn check_keys(own: &OwnNode<'_>, row: &NodeRow) -> Option<DoctorFinding> {
    (!own.keys.agree_with(&NodeReport::of(row).keys)).then(|| {
        DoctorFinding::fail(
            format!("the node {} has another secret, so the two do not hear each other", row.membership.node),
            "write the same secret on all nodes, and restart them",
        )
    })
}

fn check_lease(own: &OwnNode<'_>, row: &NodeRow) -> Option<DoctorFinding> {
    let theirs = NodeReport::of(row).lease_ms;
    (theirs != 0 && theirs != own.lease_ms).then(|| {
        DoctorFinding::warn(
            format!("lease_ms is {theirs} on the node {}, and {} here", row.membership.node, own.lease_ms),
            "write the same lease_ms into [cluster] of all nodes, and restart them",
        )
    })
}
