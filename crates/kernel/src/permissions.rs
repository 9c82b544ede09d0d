//! Permissions of a run, and their restriction by those of its parent.
//!
//! A sub-run may do no more than the run that starts it. This module knows tools and servers by name only.

use std::collections::BTreeMap;

use crate::approval::ApprovalPolicy;

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

    const TOOLS: [&str; 5] = ["shell", "read_file", "spawn_agent", "files__read", "unheard_of"];
    const SERVERS: [&str; 3] = ["files", "search", "mail"];

    fn name(of: &'static [&'static str]) -> impl Strategy<Value = String> {
        select(of).prop_map(str::to_owned)
    }

    fn rights() -> impl Strategy<Value = RunPermissions> {
        const NAMES: &[&str] = &["*", "shell", "read_file", "spawn_agent", "files__read"];
        let policy = select(vec![ApprovalPolicy::Auto, ApprovalPolicy::Ask, ApprovalPolicy::Deny]);
        let approvals = btree_map(name(NAMES), policy, 0..4);
        let isolation = select(vec![Isolation::None, Isolation::Preferred, Isolation::Required]);
        let (tools, servers) = (vec(name(NAMES), 0..4), option::of(vec(name(&SERVERS), 0..3)));
        (tools, servers, approvals, 1_u32..4, isolation, any::<bool>()).prop_map(
            |(tools, servers, approvals, approval_quorum, isolation, own_model)| RunPermissions {
                tools,
                servers,
                approvals,
                approval_quorum,
                isolation,
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
            prop_assert_eq!(last.own_model, chain.iter().any(|link| link.own_model));
            prop_assert_eq!(Some(last.approval_quorum), chain.iter().map(|link| link.approval_quorum).max());
            prop_assert_eq!(Some(last.isolation), chain.iter().map(|link| link.isolation).max());
            for server in SERVERS {
                prop_assert_eq!(last.allows_server(server), chain.iter().all(|link| link.allows_server(server)), "{}", server);
            }
        }
    }

    #[test]
    fn a_denied_shell_stays_denied_below_an_agent_with_all_tools() {
        let (tools, isolation) = (vec!["*".to_owned()], Isolation::None);
        let approvals = BTreeMap::new();
        let all = RunPermissions { tools, servers: None, approvals, approval_quorum: 1, isolation, own_model: false };
        let denied = BTreeMap::from([("shell".to_owned(), ApprovalPolicy::Deny)]);
        let reader = RunPermissions { approvals: denied, ..all.clone() };
        assert_eq!(approval_policy_for(&all.restricted_by(&reader).approvals, "shell"), ApprovalPolicy::Deny);
        let without = RunPermissions { tools: vec!["read_file".to_owned()], ..all.clone() };
        assert_eq!(all.restricted_by(&without).tools, ["read_file"]);
    }
}
