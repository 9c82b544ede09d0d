//! The network of commands whose agent has a list of servers: a proxy for each command, and what it refused.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddrV4, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};

use quell_kernel::network_access::{NetworkRefusal, NetworkRules};
use quell_net::filtering_proxy::{
    FilteringProxy, ProxyLimits, ProxySetup, RefusalObserver, SystemResolver, proxy_environment,
};
use quell_process::CommandNetwork;
use quell_scope::Scope;

/// The most refusals that a command is told; it may cause any number.
const MAX_REFUSALS: usize = 8;

/// The servers that one command may reach.
#[derive(Debug)]
pub struct ListedNetwork {
    rules: NetworkRules,
    resolver: SystemResolver,
    refusals: Arc<Mutex<BTreeSet<String>>>,
}

impl ListedNetwork {
    pub fn new(rules: NetworkRules, resolver: SystemResolver) -> Self {
        Self { rules, resolver, refusals: Arc::default() }
    }

    /// What was refused until now, each once, as text for the model.
    pub fn refusals(&self) -> Vec<String> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl CommandNetwork for ListedNetwork {
    fn environment(&self, proxy: SocketAddrV4) -> Vec<(&'static str, String)> {
        proxy_environment(proxy)
    }

    fn serve(&self, listener: TcpListener, scope: &Scope) -> io::Result<Box<dyn Send + Sync>> {
        listener.set_nonblocking(true)?;
        let setup = ProxySetup {
            rules: self.rules.clone(),
            resolver: Arc::new(self.resolver.clone()),
            observer: Box::new(RefusalLog(Arc::clone(&self.refusals))),
            limits: ProxyLimits::default(),
        };
        Ok(Box::new(FilteringProxy::start(tokio::net::TcpListener::from_std(listener)?, setup, scope)))
    }
}

/// Remembers the first refusals.
struct RefusalLog(Arc<Mutex<BTreeSet<String>>>);

impl RefusalObserver for RefusalLog {
    fn refused(&mut self, refusal: NetworkRefusal) {
        let mut refusals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if refusals.len() < MAX_REFUSALS {
            refusals.insert(refusal.to_string());
        }
    }
}
