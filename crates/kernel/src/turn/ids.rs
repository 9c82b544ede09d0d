//! Ids that Quell makes up itself: for calls whose provider gave none or one twice, and for results that sealing writes.
//! Each is a hash of the run's id and the call's place in it, so that it is the same at every rendering and after every
//! restart, and differs between any two runs.

use std::fmt::Write as _;

use quell_protocol::{CallId, RunId};
use sha2::{Digest, Sha256};

/// Stands for an id that the provider left out, until the call enters a draft.
const UNNAMED: &str = "?";
/// Bytes of the hash that are kept: 96 bits, which as digits stay below the shortest limit of a provider (40).
const KEPT: usize = 12;

/// The id of a call as the provider gave it, or the mark for none.
pub(super) fn wire_id(text: &str) -> CallId {
    let mut candidate = text;
    loop {
        // The second try always ends it: the mark obeys the rule of ids.
        match CallId::parse(candidate) {
            Ok(id) => return id,
            Err(_) => candidate = UNNAMED,
        }
    }
}

/// False for an id that has to be replaced.
pub(super) fn usable(id: &CallId) -> bool {
    id.as_str() != UNNAMED && !id.as_str().trim().is_empty()
}

/// An id for call number `ordinal` of a run. `salt` tells tries apart where a provider happens to use the same text.
pub(crate) fn derived_call_id(run: &RunId, ordinal: usize, salt: u32) -> String {
    hashed("call_", &[run.as_str().as_bytes(), &place(ordinal), &salt.to_be_bytes()])
}

/// The id of the result that sealing wrote for call number `ordinal` of a run.
pub(super) fn synthetic_id(run: &RunId, ordinal: usize, call: &CallId) -> String {
    hashed("result_", &[run.as_str().as_bytes(), &place(ordinal), call.as_str().as_bytes()])
}

fn place(ordinal: usize) -> [u8; 8] {
    u64::try_from(ordinal).unwrap_or(u64::MAX).to_be_bytes()
}

/// Each part is preceded by its length, so that no two lists of parts are the same bytes.
fn hashed(prefix: &str, parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in std::iter::once(&prefix.as_bytes()).chain(parts) {
        hash.update(place(part.len()));
        hash.update(part);
    }
    let mut id = String::from(prefix);
    for byte in hash.finalize().iter().take(KEPT) {
        // Writing to a String cannot fail.
        let _ = write!(id, "{byte:02x}");
    }
    id
}
