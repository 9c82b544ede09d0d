//! Derives call ids and ids of synthetic results.
//!
//! A call gets a derived id if its provider gave none, or gave one twice. Each id is a hash of the run id and the
//! number of the call, so that it is the same in every request and after every restart, and differs between any two
//! runs.

use std::fmt::Write as _;

use quell_protocol::{CallId, RunId};
use sha2::{Digest, Sha256};

/// Placeholder for a missing id, until the call enters a draft.
const MISSING_ID: &str = "?";
/// Bytes of the hash that are used: 96 bits. In hex the id stays below the shortest limit of a provider (40
/// characters).
const HASH_BYTES: usize = 12;

/// The id of a call as the provider gave it, or [`MISSING_ID`] if it is invalid.
pub(super) fn parse_wire_id(text: &str) -> CallId {
    let mut candidate = text;
    loop {
        // The second pass always succeeds: `MISSING_ID` is a valid id.
        match CallId::parse(candidate) {
            Ok(id) => return id,
            Err(_) => candidate = MISSING_ID,
        }
    }
}

/// False for an id that has to be replaced.
pub(super) fn is_usable(id: &CallId) -> bool {
    id.as_str() != MISSING_ID && !id.as_str().trim().is_empty()
}

/// An id for call number `ordinal` of a run. `salt` is raised if the provider happens to use the same id.
pub(crate) fn derived_call_id(run: &RunId, ordinal: usize, salt: u32) -> String {
    hash_id("call_", &[run.as_str().as_bytes(), &ordinal_bytes(ordinal), &salt.to_be_bytes()])
}

/// The id of the synthetic result for call number `ordinal` of a run.
pub(super) fn synthetic_id(run: &RunId, ordinal: usize, call: &CallId) -> String {
    hash_id("result_", &[run.as_str().as_bytes(), &ordinal_bytes(ordinal), call.as_str().as_bytes()])
}

fn ordinal_bytes(ordinal: usize) -> [u8; 8] {
    u64::try_from(ordinal).unwrap_or(u64::MAX).to_be_bytes()
}

/// Hashes each part with its length before it, so that no two lists of parts give the same bytes.
fn hash_id(prefix: &str, parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in std::iter::once(&prefix.as_bytes()).chain(parts) {
        hash.update(ordinal_bytes(part.len()));
        hash.update(part);
    }
    let mut id = String::from(prefix);
    for byte in hash.finalize().iter().take(HASH_BYTES) {
        // Writing to a String cannot fail.
        let _ = write!(id, "{byte:02x}");
    }
    id
}
