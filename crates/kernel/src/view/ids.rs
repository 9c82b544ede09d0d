//! Call ids of a whole view. Providers count calls per answer (`call_0`), so the same id stands in many turns; within one
//! request each may stand once.
//!
//! The first call keeps the provider's id, which some models expect to read again; every later one with the same id, or one
//! that the dialect does not take, gets an id derived from its run. That depends on earlier turns only.

use std::collections::HashSet;

use quell_protocol::RunId;

use crate::turn::derived_call_id;

pub(super) struct CallNames {
    legal: fn(&str) -> bool,
    taken: HashSet<String>,
}

impl CallNames {
    pub(super) fn new(legal: fn(&str) -> bool) -> Self {
        Self { legal, taken: HashSet::new() }
    }

    /// The id of call number `ordinal` of a run, which the provider named `own`.
    pub(super) fn name(&mut self, run: &RunId, ordinal: usize, own: &str) -> String {
        let mut id = own.to_owned();
        let mut salt = 0;
        while !(self.legal)(&id) || !self.taken.insert(id.clone()) {
            id = derived_call_id(run, ordinal, salt);
            salt += 1;
        }
        id
    }
}
