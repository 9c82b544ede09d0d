//! Owners of all sessions in memory, so that every transport can check them without a wait.
//!
//! A session that is being created is claimed first: nobody else gets in between the check and the row in the
//! database. The claim ends when the row is stored, or when nothing was stored.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_kernel::visibility::{SessionOwnership, Sharing};
use quell_protocol::{Principal, SessionKey};
use quell_store::{Store, StoreError, StoredOwnership};
use tokio::sync::watch;

/// Clones share one table.
#[derive(Clone, Default)]
pub struct SessionOwners(Arc<SharedOwners>);

#[derive(Default)]
struct SharedOwners {
    table: Mutex<OwnerTable>,
    /// Changes whenever a session is made private again.
    withdrawals: watch::Sender<()>,
}

/// Maximum number of deleted sessions whose owners are kept, so that they hear of the deletion.
const MAX_REMOVED: usize = 1024;

#[derive(Default)]
struct OwnerTable {
    sessions: HashMap<SessionKey, OwnerEntry>,
    removed: VecDeque<(SessionKey, SessionOwnership)>,
}

struct OwnerEntry {
    ownership: SessionOwnership,
    /// The session is in the database.
    is_stored: bool,
    /// Callers that may be creating it.
    claims: usize,
}

/// A session that its holder uses or creates. Dropped without [`SessionClaim::confirm`], it leaves the table as it was.
#[must_use = "dropping it gives the session up"]
pub struct SessionClaim {
    owners: SessionOwners,
    key: SessionKey,
    /// The session as it was when it was claimed; `None` if the claim is for a new one.
    found: Option<SessionOwnership>,
}

fn sharing_of(shared: bool) -> Sharing {
    if shared { Sharing::Shared } else { Sharing::Private }
}

impl SessionOwners {
    /// Reads the owners of all sessions.
    ///
    /// # Cancel safety
    /// Safe: it only reads, and the table is filled in one step.
    pub async fn load(&self, store: &Store) -> Result<(), StoreError> {
        let rows = store.sessions().list_ownership().await?;
        let entry = |row: StoredOwnership| {
            let ownership = SessionOwnership { owner: row.owner, sharing: sharing_of(row.shared) };
            (row.key, OwnerEntry { ownership, is_stored: true, claims: 0 })
        };
        self.lock().sessions.extend(rows.into_iter().map(entry));
        Ok(())
    }

    /// Reads the owners of all sessions again, because another node has changed some. Those that nobody has stored yet stay.
    ///
    /// # Cancel safety
    /// Safe: it only reads, and the table is changed in one step.
    pub async fn reload(&self, store: &Store) -> Result<(), StoreError> {
        let rows = store.sessions().list_ownership().await?;
        let mut table = self.lock();
        table.sessions.retain(|_, entry| !entry.is_stored || entry.claims > 0);
        for row in rows {
            let ownership = SessionOwnership { owner: row.owner, sharing: sharing_of(row.shared) };
            match table.sessions.entry(row.key) {
                Entry::Occupied(mut entry) => {
                    entry.get_mut().ownership = ownership;
                    entry.get_mut().is_stored = true;
                }
                Entry::Vacant(vacant) => drop(vacant.insert(OwnerEntry { ownership, is_stored: true, claims: 0 })),
            }
        }
        drop(table);
        self.0.withdrawals.send_replace(());
        Ok(())
    }

    /// Reads the owner of a session again, which another node may have created, shared or deleted.
    ///
    /// # Cancel safety
    /// Safe: it only reads, and the table is changed in one step.
    pub async fn refresh(&self, store: &Store, key: &SessionKey) -> Result<(), StoreError> {
        let stored = store.sessions().find(key.clone()).await?;
        let mut table = self.lock();
        match (stored, table.sessions.entry(key.clone())) {
            (Some(session), entry) => {
                let ownership = SessionOwnership { owner: session.owner, sharing: sharing_of(session.shared) };
                let entry = entry.or_insert(OwnerEntry { ownership: ownership.clone(), is_stored: true, claims: 0 });
                (entry.ownership, entry.is_stored) = (ownership, true);
            }
            (None, Entry::Occupied(entry)) if entry.get().is_stored && entry.get().claims == 0 => drop(entry.remove()),
            // Somebody creates it here.
            (None, Entry::Occupied(_) | Entry::Vacant(_)) => {}
        }
        Ok(())
    }

    /// Reads the owner of a session that another node may have created.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn learn(&self, store: &Store, key: &SessionKey) -> Result<(), StoreError> {
        if self.lock().sessions.contains_key(key) {
            return Ok(());
        }
        if let Some(session) = store.sessions().find(key.clone()).await? {
            let ownership = SessionOwnership { owner: session.owner, sharing: sharing_of(session.shared) };
            let entry = OwnerEntry { ownership, is_stored: true, claims: 0 };
            self.lock().sessions.entry(key.clone()).or_insert(entry);
        }
        Ok(())
    }

    /// To whom a session belongs; `None` if there is none and nobody creates it.
    pub fn find(&self, key: &SessionKey) -> Option<SessionOwnership> {
        self.lock().sessions.get(key).map(|entry| entry.ownership.clone())
    }

    /// As [`SessionOwners::find`], also for a session that was deleted a short time ago.
    pub fn find_or_removed(&self, key: &SessionKey) -> Option<SessionOwnership> {
        let table = self.lock();
        let removed = || table.removed.iter().rev().find(|(other, _)| other == key).map(|(_, ownership)| ownership);
        table.sessions.get(key).map(|entry| &entry.ownership).or_else(removed).cloned()
    }

    /// Claims a session for a use that creates it if it does not exist, with this principal as its owner.
    pub fn claim(&self, key: &SessionKey, principal: &Principal) -> SessionClaim {
        let mut table = self.lock();
        let found = match table.sessions.entry(key.clone()) {
            Entry::Occupied(mut entry) => {
                let entry = entry.get_mut();
                entry.claims += 1;
                Some(entry.ownership.clone())
            }
            Entry::Vacant(vacant) => {
                let ownership = SessionOwnership { owner: Some(principal.clone()), sharing: Sharing::Private };
                vacant.insert(OwnerEntry { ownership, is_stored: false, claims: 1 });
                None
            }
        };
        drop(table);
        SessionClaim { owners: self.clone(), key: key.clone(), found }
    }

    pub fn set_shared(&self, key: &SessionKey, shared: bool) {
        if let Some(entry) = self.lock().sessions.get_mut(key) {
            entry.ownership.sharing = sharing_of(shared);
        }
        if !shared {
            self.0.withdrawals.send_replace(());
        }
    }

    /// Changes whenever a session is made private again. Open streams then check their rights.
    pub fn subscribe_withdrawals(&self) -> watch::Receiver<()> {
        self.0.withdrawals.subscribe()
    }

    /// Removes a session that was deleted. One that is being created anew stays.
    pub fn remove(&self, key: &SessionKey) {
        let mut table = self.lock();
        let Entry::Occupied(mut entry) = table.sessions.entry(key.clone()) else { return };
        let ownership = entry.get().ownership.clone();
        entry.get_mut().is_stored = false;
        if entry.get().claims == 0 {
            entry.remove();
        }
        if table.removed.len() == MAX_REMOVED {
            table.removed.pop_front();
        }
        table.removed.push_back((key.clone(), ownership));
    }

    fn lock(&self) -> MutexGuard<'_, OwnerTable> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionClaim {
    /// The session as it was found; `None` if it is new.
    pub fn found(&self) -> Option<&SessionOwnership> {
        self.found.as_ref()
    }

    /// Takes over what the database holds, after the session was stored or used. The database decides who owns a
    /// session that several callers create at once.
    ///
    /// # Cancel safety
    /// If dropped, the session stays with the one who claimed it, until the next start.
    pub async fn confirm(self, store: &Store) {
        let is_known = self.owners.lock().sessions.get(&self.key).is_some_and(|entry| entry.is_stored);
        if is_known {
            return;
        }
        // Marked first: a claim that ends meanwhile must not remove it.
        if let Some(entry) = self.owners.lock().sessions.get_mut(&self.key) {
            entry.is_stored = true;
        }
        // waits: for the database, in a task of the engine.
        match store.sessions().find(self.key.clone()).await {
            Ok(Some(session)) => {
                if let Some(entry) = self.owners.lock().sessions.get_mut(&self.key) {
                    entry.ownership = SessionOwnership { owner: session.owner, sharing: sharing_of(session.shared) };
                }
            }
            // Deleted again.
            Ok(None) => self.owners.remove(&self.key),
            Err(error) => tracing::warn!(session = %self.key, %error, "the owner of a new session is not confirmed"),
        }
    }
}

impl Drop for SessionClaim {
    fn drop(&mut self) {
        let mut table = self.owners.lock();
        if let Entry::Occupied(mut entry) = table.sessions.entry(self.key.clone()) {
            entry.get_mut().claims -= 1;
            if !entry.get().is_stored && entry.get().claims == 0 {
                entry.remove();
            }
        }
    }
}

impl std::fmt::Debug for SessionOwners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SessionOwners({} sessions)", self.lock().sessions.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SessionKey {
        SessionKey::parse("s").unwrap()
    }

    fn owner_of(owners: &SessionOwners) -> Option<String> {
        owners.find(&key())?.owner.map(|owner| owner.to_string())
    }

    #[test]
    fn a_claim_without_a_row_leaves_nothing() {
        let owners = SessionOwners::default();
        let (ann, bob) = (Principal::parse("ann").unwrap(), Principal::parse("bob").unwrap());
        let first = owners.claim(&key(), &ann);
        assert!(first.found().is_none());
        let second = owners.claim(&key(), &bob);
        assert_eq!(second.found().and_then(|found| found.owner.as_ref()), Some(&ann), "the first one creates it");
        drop(first);
        assert_eq!(owner_of(&owners).as_deref(), Some("ann"), "another claim still holds it");
        drop(second);
        assert_eq!(owner_of(&owners), None);
    }

    #[tokio::test]
    async fn the_database_decides_who_owns_a_new_session() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path(), "quell.db").unwrap();
        let owners = SessionOwners::default();
        let ann = Principal::parse("ann").unwrap();
        let setup = |by: &str| quell_store::SessionSetup {
            key: key(),
            agent: quell_protocol::AgentId::parse("main").unwrap(),
            at: "2026-11-20T10:00:00.000000Z".into(),
            config: "{}".into(),
            secrets: None,
            private_endpoints: quell_store::PrivateEndpoints::default(),
            requested_by: Principal::parse(by).unwrap(),
            access: quell_store::SessionSetupAccess::Anyone,
        };
        let claim = owners.claim(&key(), &ann);
        store.sessions().set_up(setup("bob")).await.unwrap();
        claim.confirm(&store).await;
        assert_eq!(owner_of(&owners).as_deref(), Some("bob"));
        owners.set_shared(&key(), true);
        assert_eq!(owners.find(&key()).map(|found| found.sharing), Some(Sharing::Shared));
        owners.remove(&key());
        assert_eq!(owner_of(&owners), None);
        owners.load(&store).await.unwrap();
        assert_eq!(owner_of(&owners).as_deref(), Some("bob"), "as stored, and private");
        assert_eq!(owners.find(&key()).map(|found| found.sharing), Some(Sharing::Private));
    }
}
