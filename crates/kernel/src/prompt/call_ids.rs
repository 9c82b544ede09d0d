//! Makes call ids unique within one request.
//!
//! Providers count calls per answer (`call_0`), so the same id occurs in many turns. Within one request each id may
//! occur once. The first call keeps the provider's id, which some models expect to read again. A later call with the
//! same id, or with an id that the dialect refuses, gets an id derived from its run. So an id depends on earlier turns
//! only.

use std::collections::HashSet;

use quell_protocol::RunId;

use crate::turn::derived_call_id;

pub(super) struct CallIdAllocator {
    is_legal: fn(&str) -> bool,
    taken: HashSet<String>,
}

impl CallIdAllocator {
    pub(super) fn new(is_legal: fn(&str) -> bool) -> Self {
        Self { is_legal, taken: HashSet::new() }
    }

    /// The id for call number `ordinal` of a run. `own` is the provider's id.
    pub(super) fn allocate(&mut self, run: &RunId, ordinal: usize, own: &str) -> String {
        let mut id = own.to_owned();
        let mut salt = 0;
        while !(self.is_legal)(&id) || !self.taken.insert(id.clone()) {
            id = derived_call_id(run, ordinal, salt);
            salt += 1;
        }
        id
    }
}
