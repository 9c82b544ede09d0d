//! Permissions of a run, and their restriction by those of its parent.
//!
//! A sub-run may do no more than the run that starts it. This module knows tools and servers by name only.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use quell_protocol::sandbox::{ResourceLimits, SandboxMode};

use crate::approval::ApprovalPolicy;
use crate::network_access::NetworkAccess;

/// Matches every tool that is not named.
const WILDCARD: &str = "*";

/// Isolation of a run's commands from the machine, in order of strictness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isolation {
    None,
    /// Isolate where the operating system supports it.
    Preferred,
    /// Isolate, or refuse to run commands.
    Required,
}

/// What the commands and file tools of a run may reach besides its workdir.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRights {
    pub mode: SandboxMode,
    /// Directories to read and write.
    pub writable: Vec<PathBuf>,
    /// Places to read that are hidden otherwise.
    pub readable: Vec<PathBuf>,
    /// Further hidden places.
    pub hidden: Vec<PathBuf>,
    /// User and group id of the commands; those of the daemon if `None`.
    pub user: Option<u32>,
    /// The servers that commands and `fetch_url` may reach.
    pub network: NetworkAccess,
    /// Whether commands may create namespaces.
    pub nested_namespaces: bool,
    /// What each command may use.
    pub limits: ResourceLimits,
    /// Whether commands are refused where a layer of the sandbox is missing.
    pub is_required: bool,
    /// Whether calls may ask a person to run outside of the sandbox.
    pub may_escalate: bool,
}

impl SandboxRights {
    /// The rights of a mode without exceptions.
    #[must_use]
    pub fn new(mode: SandboxMode) -> Self {
        let (writable, readable, hidden) = (Vec::new(), Vec::new(), Vec::new());
        let (network, limits) = (NetworkAccess::On, ResourceLimits::default());
        let (nested_namespaces, is_required, may_escalate) = (false, false, true);
        let user = None;
        Self { mode, writable, readable, hidden, user, network, nested_namespaces, limits, is_required, may_escalate }
    }

    /// Whether there is a sandbox whose calls may ask to run outside.
    #[must_use]
    pub fn may_leave(&self) -> bool {
        let is_closed = self.mode != SandboxMode::Off || self.network != NetworkAccess::On;
        is_closed && self.may_escalate
    }

    /// Restricts these rights by those of the parent run. The workdir is not part of them: a sub-run keeps its own.
    #[must_use]
    pub fn restricted_by(&self, ceiling: &Self) -> Self {
        let may_write = |path: &Path| ceiling.writable.iter().any(|place| path.starts_with(place));
        let may_read = |path: &Path| may_write(path) || ceiling.readable.iter().any(|place| path.starts_with(place));
        let kept = |paths: &[PathBuf], may_use: &dyn Fn(&Path) -> bool| -> Vec<PathBuf> {
            paths.iter().filter(|path| ceiling.mode == SandboxMode::Off || may_use(path)).cloned().collect()
        };
        let hidden = self.hidden.iter().chain(ceiling.hidden.iter().filter(|path| !self.hidden.contains(path)));
        Self {
            mode: self.mode.min(ceiling.mode),
            writable: kept(&self.writable, &may_write),
            readable: kept(&self.readable, &may_read),
            hidden: hidden.cloned().collect(),
            // The daemon's user, root, may do more than any other.
            user: self.user.or(ceiling.user),
            network: self.network.restricted_by(&ceiling.network),
            nested_namespaces: self.nested_namespaces && ceiling.nested_namespaces,
            limits: self.limits.restricted_by(ceiling.limits),
            is_required: self.is_required || ceiling.is_required,
            may_escalate: self.may_escalate && ceiling.may_escalate,
        }
    }
}

/// The tools that a run may call, their approval policies, and the isolation of its commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPermissions {
    /// Tool names; `*` means all tools, those of MCP servers too.
    pub tools: Vec<String>,
    /// MCP servers; all of them when `None`.
    pub servers: Option<Vec<String>>,
    /// Policy per tool name; `*` for all other tools.
    pub approvals: BTreeMap<String, ApprovalPolicy>,
    /// Number of different principals that must allow a call.
    pub approval_quorum: u32,
    pub isolation: Isolation,
    pub sandbox: SandboxRights,
    /// Whether the provider of its model may search the web for it.
    pub web_search: bool,
    /// True when the session set the model or an MCP endpoint itself. Only an admin may then approve calls.
    pub own_model: bool,
}

impl RunPermissions {
    /// True when the tools of an MCP server may be called.
    #[must_use]
    pub fn allows_server(&self, server: &str) -> bool {
        self.servers.as_ref().is_none_or(|names| names.iter().any(|name| name == server))
    }

    /// Restricts these permissions by those of the parent run: what both allow, and the stricter of two policies.
    #[must_use]
    pub fn restricted_by(&self, ceiling: &Self) -> Self {
        let servers = match (&self.servers, &ceiling.servers) {
            (Some(own), Some(_)) => Some(own.iter().filter(|name| ceiling.allows_server(name)).cloned().collect()),
            (Some(names), None) | (None, Some(names)) => Some(names.clone()),
            (None, None) => None,
        };
        Self {
            tools: intersect_tools(&self.tools, &ceiling.tools),
            servers,
            approvals: merge_strictest(&self.approvals, &ceiling.approvals),
            approval_quorum: self.approval_quorum.max(ceiling.approval_quorum),
            isolation: self.isolation.max(ceiling.isolation),
            sandbox: self.sandbox.restricted_by(&ceiling.sandbox),
            web_search: self.web_search && ceiling.web_search,
            own_model: self.own_model || ceiling.own_model,
        }
    }
}

/// The policy for a tool in a table that may contain `*`.
pub fn approval_policy_for(approvals: &BTreeMap<String, ApprovalPolicy>, tool: &str) -> ApprovalPolicy {
    approvals.get(tool).or_else(|| approvals.get(WILDCARD)).copied().unwrap_or_default()
}

/// True when a list of tools names this one, or all.
pub fn contains_tool(tools: &[String], tool: &str) -> bool {
    tools.iter().any(|name| name == WILDCARD || name == tool)
}

fn intersect_tools(own: &[String], ceiling: &[String]) -> Vec<String> {
    let is_all = |tools: &[String]| tools.iter().any(|name| name == WILDCARD);
    if is_all(own) {
        return ceiling.to_vec();
    }
    own.iter().filter(|tool| contains_tool(ceiling, tool)).cloned().collect()
}

/// For every tool, named in a table or not, the stricter of the two policies.
fn merge_strictest(
    own: &BTreeMap<String, ApprovalPolicy>,
    ceiling: &BTreeMap<String, ApprovalPolicy>,
) -> BTreeMap<String, ApprovalPolicy> {
    let stricter =
        |tool: &String| (tool.clone(), approval_policy_for(own, tool).max(approval_policy_for(ceiling, tool)));
    own.keys().chain(ceiling.keys()).map(stricter).collect()
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::option;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::network_access::NetworkRules;

    const TOOLS: [&str; 5] = ["shell", "read_file", "spawn_agent", "files__read", "unheard_of"];
    const SERVERS: [&str; 3] = ["files", "search", "mail"];

    fn name(of: &'static [&'static str]) -> impl Strategy<Value = String> {
        select(of).prop_map(str::to_owned)
    }

    const PLACES: [&str; 4] = ["/srv", "/srv/a", "/srv/a/b", "/opt"];

    const SERVERS_OF_LISTS: [(&str, u16); 3] = [("a.example", 443), ("b.example", 443), ("b.example", 80)];

    fn network() -> impl Strategy<Value = NetworkAccess> {
        const ENTRIES: [&str; 4] = ["a.example:443", "b.example:443", "*.example:443", "b.example:*"];
        let list = vec(select(ENTRIES.as_slice()), 1..4)
            .prop_map(|entries| NetworkAccess::List(NetworkRules::parse(&entries).expect("entries")));
        prop_oneof![Just(NetworkAccess::On), Just(NetworkAccess::Off), list]
    }

    fn may_reach(rights: &SandboxRights, (host, port): (&str, u16)) -> bool {
        match &rights.network {
            NetworkAccess::On => true,
            NetworkAccess::Off => false,
            NetworkAccess::List(rules) => rules.check_target(host, port).is_ok(),
        }
    }

    fn sandbox_rights() -> impl Strategy<Value = SandboxRights> {
        let places = || vec(select(PLACES.as_slice()).prop_map(PathBuf::from), 0..3);
        let mode = select(SandboxMode::ALL.as_slice());
        let limits = (option::of(1_u32..9), option::of(1_u64..9))
            .prop_map(|(processes, memory_bytes)| ResourceLimits { processes, memory_bytes });
        let flags = (any::<bool>(), any::<bool>(), any::<bool>(), option::of(1_u32..4));
        (mode, places(), places(), places(), network(), limits, flags).prop_map(
            |(
                mode,
                writable,
                readable,
                hidden,
                network,
                limits,
                (nested_namespaces, is_required, may_escalate, user),
            )| {
                SandboxRights {
                    mode,
                    writable,
                    readable,
                    hidden,
                    user,
                    network,
                    nested_namespaces,
                    limits,
                    is_required,
                    may_escalate,
                }
            },
        )
    }

    fn may_write(rights: &SandboxRights, path: &str) -> bool {
        rights.mode == SandboxMode::Off || rights.writable.iter().any(|place| Path::new(path).starts_with(place))
    }

    fn rights() -> impl Strategy<Value = RunPermissions> {
        const NAMES: &[&str] = &["*", "shell", "read_file", "spawn_agent", "files__read"];
        let policy = select(vec![ApprovalPolicy::Auto, ApprovalPolicy::Ask, ApprovalPolicy::Deny]);
        let approvals = btree_map(name(NAMES), policy, 0..4);
        let isolation = select(vec![Isolation::None, Isolation::Preferred, Isolation::Required]);
        let (tools, servers) = (vec(name(NAMES), 0..4), option::of(vec(name(&SERVERS), 0..3)));
        (tools, servers, approvals, 1_u32..4, isolation, sandbox_rights(), any::<bool>(), any::<bool>()).prop_map(
            |(tools, servers, approvals, approval_quorum, isolation, sandbox, web_search, own_model)| RunPermissions {
                tools,
                servers,
                approvals,
                approval_quorum,
                isolation,
                sandbox,
                web_search,
                own_model,
            },
        )
    }

    /// Permissions of the last run of a chain, in which each run starts the next one.
    fn restrict_chain(chain: &[RunPermissions]) -> RunPermissions {
        let (first, rest) = chain.split_first().expect("a chain");
        rest.iter().fold(first.clone(), |ceiling, own| own.restricted_by(&ceiling))
    }

    proptest! {
        #[test]
        fn a_chain_allows_what_each_of_its_links_allows(chain in vec(rights(), 1..5)) {
            let last = restrict_chain(&chain);
            for tool in TOOLS {
                let is_allowed_by_all = chain.iter().all(|link| contains_tool(&link.tools, tool));
                prop_assert_eq!(contains_tool(&last.tools, tool), is_allowed_by_all, "{}", tool);
                let strictest = chain.iter().map(|link| approval_policy_for(&link.approvals, tool)).max();
                prop_assert_eq!(Some(approval_policy_for(&last.approvals, tool)), strictest, "{}", tool);
            }
            prop_assert_eq!(last.web_search, chain.iter().all(|link| link.web_search));
            prop_assert_eq!(last.own_model, chain.iter().any(|link| link.own_model));
            prop_assert_eq!(Some(last.approval_quorum), chain.iter().map(|link| link.approval_quorum).max());
            prop_assert_eq!(Some(last.isolation), chain.iter().map(|link| link.isolation).max());
            prop_assert_eq!(Some(last.sandbox.mode), chain.iter().map(|link| link.sandbox.mode).min());
            for place in PLACES {
                if may_write(&last.sandbox, place) {
                    prop_assert!(chain.iter().all(|link| may_write(&link.sandbox, place)), "{}", place);
                }
                let is_hidden = |link: &RunPermissions| link.sandbox.hidden.contains(&PathBuf::from(place));
                prop_assert_eq!(is_hidden(&last), chain.iter().any(is_hidden), "{}", place);
            }
            for server in SERVERS_OF_LISTS {
                if may_reach(&last.sandbox, server) {
                    prop_assert!(chain.iter().all(|link| may_reach(&link.sandbox, server)), "{:?}", server);
                }
            }
            prop_assert_eq!(last.sandbox.user.is_some(), chain.iter().any(|link| link.sandbox.user.is_some()));
            prop_assert_eq!(last.sandbox.nested_namespaces, chain.iter().all(|link| link.sandbox.nested_namespaces));
            let least = |limit: fn(&ResourceLimits) -> Option<u64>| chain.iter().filter_map(|link| limit(&link.sandbox.limits)).min();
            prop_assert_eq!(last.sandbox.limits.memory_bytes, least(|limits| limits.memory_bytes));
            prop_assert_eq!(last.sandbox.limits.processes.map(u64::from), least(|limits| limits.processes.map(u64::from)));
            prop_assert_eq!(last.sandbox.is_required, chain.iter().any(|link| link.sandbox.is_required));
            prop_assert_eq!(last.sandbox.may_escalate, chain.iter().all(|link| link.sandbox.may_escalate));
            for server in SERVERS {
                prop_assert_eq!(last.allows_server(server), chain.iter().all(|link| link.allows_server(server)), "{}", server);
            }
        }
    }

    #[test]
    fn a_denied_shell_stays_denied_below_an_agent_with_all_tools() {
        let (tools, isolation) = (vec!["*".to_owned()], Isolation::None);
        let (approvals, sandbox) = (BTreeMap::new(), SandboxRights::new(SandboxMode::Off));
        let all = RunPermissions {
            tools,
            servers: None,
            approvals,
            approval_quorum: 1,
            isolation,
            sandbox,
            web_search: true,
            own_model: false,
        };
        let denied = BTreeMap::from([("shell".to_owned(), ApprovalPolicy::Deny)]);
        let reader = RunPermissions { approvals: denied, ..all.clone() };
        assert_eq!(approval_policy_for(&all.restricted_by(&reader).approvals, "shell"), ApprovalPolicy::Deny);
        let without = RunPermissions { tools: vec!["read_file".to_owned()], ..all.clone() };
        assert_eq!(all.restricted_by(&without).tools, ["read_file"]);
    }
}
