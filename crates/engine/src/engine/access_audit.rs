//! Audit entries about access: requests that were refused, and uses of a token from a new address. Their number is
//! limited, so that a caller cannot fill the audit log with them.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use quell_kernel::Moment;
use quell_kernel::rate_limit::{RateLimit, RequestRate};
use quell_protocol::audit::Action;
use quell_protocol::{Principal, Surface};
use quell_store::{AuditEntry, Store, StoreError};

use super::{AuditAction, Caller, Engine};
use crate::access::{DAEMON_PRINCIPAL, RequestOrigin};

/// Entries of one principal in a minute. Further refusals are counted, and the next entry says how many there were.
const ENTRIES_PER_MINUTE: RateLimit = RateLimit::PerMinute(60);
/// Addresses that are remembered of one principal. When there are more, all are forgotten, so that they are recorded
/// again.
const MAX_ADDRESSES: usize = 1024;
/// Bytes of a request line that an entry shows.
const MAX_REQUEST_BYTES: usize = 300;

#[derive(Debug, Default)]
pub(super) struct AccessAudit(Mutex<HashMap<Principal, PrincipalAudit>>);

#[derive(Debug, Default)]
struct PrincipalAudit {
    addresses: HashSet<String>,
    rate: RequestRate,
    /// Refusals since the last entry that got none.
    unrecorded: u64,
}

/// What is to be done about a refusal.
#[derive(Debug, PartialEq, Eq)]
enum RefusalEntry {
    /// `unrecorded`: refusals before it that got no entry.
    Record {
        unrecorded: u64,
    },
    Count,
}

impl AccessAudit {
    /// Reads the addresses that the audit log names.
    pub(super) async fn load(store: &Store) -> Result<Self, StoreError> {
        let audit = Self::default();
        for (principal, origin) in store.audit().list_origins(Action::NewAddress).await? {
            audit.lock().entry(principal).or_default().addresses.insert(RequestOrigin::network_of(&origin));
        }
        Ok(audit)
    }

    /// True if the use of a token from here is to be recorded, which is so once.
    fn is_new_address(&self, principal: &Principal, network: &str, now: Moment) -> bool {
        let mut principals = self.lock();
        let entry = match principals.get_mut(principal) {
            Some(entry) => entry,
            None => principals.entry(principal.clone()).or_default(),
        };
        if entry.addresses.contains(network) || entry.rate.count_request(ENTRIES_PER_MINUTE, now).is_err() {
            return false;
        }
        if entry.addresses.len() >= MAX_ADDRESSES {
            entry.addresses.clear();
        }
        entry.addresses.insert(network.to_owned())
    }

    fn count_refusal(&self, principal: &Principal, now: Moment) -> RefusalEntry {
        let mut principals = self.lock();
        let entry = principals.entry(principal.clone()).or_default();
        if entry.rate.count_request(ENTRIES_PER_MINUTE, now).is_ok() {
            return RefusalEntry::Record { unrecorded: std::mem::take(&mut entry.unrecorded) };
        }
        entry.unrecorded += 1;
        RefusalEntry::Count
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Principal, PrincipalAudit>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Records that a request of a known principal was refused for want of rights. `request` names it, such as
    /// `POST /api/stop`; `reason` is the text that the caller got.
    pub fn audit_refusal(&self, caller: &Caller, request: &str, reason: &str) {
        let now = self.inner().clock.now();
        let RefusalEntry::Record { unrecorded } = self.inner().access_audit.count_refusal(&caller.principal, now)
        else {
            return;
        };
        let missing =
            if unrecorded > 0 { format!("; {unrecorded} before it were not recorded") } else { String::new() };
        let request = &request[..request.floor_char_boundary(MAX_REQUEST_BYTES)];
        let action = AuditAction::on_target(Action::Refused, "request", request);
        self.audit(caller, action.with_detail(format!("{reason}{missing}")));
    }

    /// Records the use of a token, if it is the first one from this address. IPv6 addresses of one /64 network count as
    /// one address.
    pub fn audit_token_use(&self, caller: &Caller) {
        let Some(network) = caller.origin.network() else { return };
        let now = self.inner().clock.now();
        if self.inner().access_audit.is_new_address(&caller.principal, &network, now) {
            let action = AuditAction::on_target(Action::NewAddress, "token", caller.principal.as_str());
            self.audit(caller, action.with_detail(format!("first use from {network}")));
        }
    }

    /// Records that the daemon applied a changed configuration. `detail` must not hold values of settings.
    pub fn audit_config_change(&self, path: &str, detail: String) {
        let Ok(principal) = Principal::parse(DAEMON_PRINCIPAL) else { return };
        let at = self.inner().clock.rfc3339(self.inner().clock.now());
        let (action, target) = (Action::ReloadConfig, Some(format!("configuration {path}")));
        let surface = Surface::Daemon;
        let entry = AuditEntry { at, principal, surface, from: None, action, target, detail: Some(detail) };
        self.inner().audit_queue.push(entry);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(s: u64) -> Moment {
        Moment(Duration::from_secs(s))
    }

    #[test]
    fn refusals_beyond_the_limit_are_counted_in_the_next_entry() {
        let audit = AccessAudit::default();
        let (ann, bob) = (Principal::parse("ann").unwrap(), Principal::parse("bob").unwrap());
        let entries: Vec<_> = (0..100).map(|_| audit.count_refusal(&ann, at(0))).collect();
        assert!(entries[..60].iter().all(|entry| *entry == RefusalEntry::Record { unrecorded: 0 }));
        assert!(entries[60..].iter().all(|entry| *entry == RefusalEntry::Count));
        assert_eq!(audit.count_refusal(&bob, at(0)), RefusalEntry::Record { unrecorded: 0 });
        assert_eq!(audit.count_refusal(&ann, at(1)), RefusalEntry::Record { unrecorded: 40 });
    }

    #[test]
    fn an_address_is_new_once_and_none_is_lost_to_the_limit() {
        let audit = AccessAudit::default();
        let ann = Principal::parse("ann").unwrap();
        assert!(audit.is_new_address(&ann, "192.0.2.1", at(0)) && !audit.is_new_address(&ann, "192.0.2.1", at(0)));
        let recorded = (0..100).filter(|n| audit.is_new_address(&ann, &format!("a{n}"), at(0))).count();
        assert_eq!(recorded, 59);
        assert!(audit.is_new_address(&ann, "a99", at(60)), "it is recorded when there is room again");
    }
}
