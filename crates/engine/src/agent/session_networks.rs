//! The network namespaces of sessions whose agent has no network, or that of a list.
//!
//! The commands of a session share one as long as one of them runs, so that a server in the background is reached by
//! the next command. Two agents never share one: their lists may differ.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use quell_process::SharedNetwork;
use quell_protocol::{AgentId, SessionKey};

#[derive(Debug, Default)]
pub(super) struct SessionNetworks(Mutex<HashMap<NetworkOwner, Weak<SharedNetwork>>>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct NetworkOwner {
    session: SessionKey,
    agent: AgentId,
}

impl SessionNetworks {
    /// The network that the commands of this agent in this session share with those that run now.
    pub(super) fn network_of(&self, agent: &AgentId, session: &SessionKey) -> Arc<SharedNetwork> {
        let mut networks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = NetworkOwner { session: session.clone(), agent: agent.clone() };
        if let Some(network) = networks.get(&owner).and_then(Weak::upgrade) {
            return network;
        }
        networks.retain(|_, network| network.strong_count() > 0);
        let network = Arc::new(SharedNetwork::default());
        networks.insert(owner, Arc::downgrade(&network));
        network
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_lasts_as_long_as_one_of_its_commands() {
        let networks = SessionNetworks::default();
        let network_of =
            |agent, session| networks.network_of(&AgentId::parse(agent).unwrap(), &SessionKey::parse(session).unwrap());
        let first = network_of("main", "s");
        assert!(Arc::ptr_eq(&first, &network_of("main", "s")));
        assert!(!Arc::ptr_eq(&first, &network_of("other", "s")));
        assert!(!Arc::ptr_eq(&first, &network_of("main", "t")));
        let gone = Arc::downgrade(&first);
        drop(first);
        assert!(gone.upgrade().is_none());
        let _other = network_of("main", "u");
        assert_eq!(networks.0.lock().unwrap().len(), 1, "what has ended is forgotten");
    }
}
