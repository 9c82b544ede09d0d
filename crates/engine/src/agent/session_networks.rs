//! The network namespaces of sessions whose agent has no network, or that of a list.
//!
//! The commands of a session share one as long as one of them runs, so that a server in the background is reached by
//! the next command. Commands with other rights never share one: what runs there could use their proxies.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use quell_kernel::network_access::NetworkAccess;
use quell_process::SessionNetwork;
use quell_protocol::{AgentId, SessionKey};

#[derive(Debug, Default)]
pub(super) struct SessionNetworks(Mutex<HashMap<NetworkOwner, Weak<SessionNetwork>>>);

/// Commands that share a network.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct NetworkOwner {
    pub(super) session: SessionKey,
    pub(super) agent: AgentId,
    pub(super) access: NetworkAccess,
    pub(super) user: Option<u32>,
}

impl SessionNetworks {
    /// The network of those of these commands that run now; a new one if none does.
    pub(super) fn find_or_create(&self, owner: NetworkOwner) -> Arc<SessionNetwork> {
        let mut networks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(network) = networks.get(&owner).and_then(Weak::upgrade) {
            return network;
        }
        networks.retain(|_, network| network.strong_count() > 0);
        let network = Arc::new(SessionNetwork::default());
        networks.insert(owner, Arc::downgrade(&network));
        network
    }
}

#[cfg(test)]
mod tests {
    use quell_kernel::network_access::NetworkRules;

    use super::*;

    #[test]
    fn a_network_lasts_as_long_as_one_of_its_commands() {
        let networks = SessionNetworks::default();
        let owner = |agent, session, access, user| NetworkOwner {
            session: SessionKey::parse(session).unwrap(),
            agent: AgentId::parse(agent).unwrap(),
            access,
            user,
        };
        let usual = owner("main", "s", NetworkAccess::Off, None);
        let first = networks.find_or_create(usual.clone());
        assert!(Arc::ptr_eq(&first, &networks.find_or_create(usual)));
        let list = NetworkAccess::List(NetworkRules::parse(&["a.example:443"]).unwrap());
        for other in [
            owner("other", "s", NetworkAccess::Off, None),
            owner("main", "t", NetworkAccess::Off, None),
            owner("main", "s", list, None),
            owner("main", "s", NetworkAccess::Off, Some(20_001)),
        ] {
            assert!(!Arc::ptr_eq(&first, &networks.find_or_create(other.clone())), "{other:?}");
        }
        let gone = Arc::downgrade(&first);
        drop(first);
        assert!(gone.upgrade().is_none());
        let _other = networks.find_or_create(owner("main", "u", NetworkAccess::Off, None));
        assert_eq!(networks.0.lock().unwrap().len(), 1, "what has ended is forgotten");
    }
}
