//! What a run may do, and the rule that a run which it starts may do no more.
//!
//! It knows names of tools and servers and nothing else of them.

use std::collections::BTreeMap;

use crate::approval::ApprovalPolicy;

/// Stands for every tool that is not named.
const ALL: &str = "*";

/// How far the commands of a run are set apart from the machine; the later is the stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isolation {
    /// Not at all.
    None,
    /// Where the kernel can.
    Preferred,
    /// In any case, or they do not run.
    Required,
}

/// The tools of a run, which of them wait for a person, and how its commands are set apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// Tool names; `*` is all of them, those of MCP servers too.
    pub tools: Vec<String>,
    /// MCP servers; all of them when absent.
    pub servers: Option<Vec<String>>,
    /// Per tool, or `*` for all others.
    pub approvals: BTreeMap<String, ApprovalPolicy>,
    /// Of its commands.
    pub isolation: Isolation,
    /// True when its model or an MCP endpoint is one that a session brought along, so that only an admin allows its calls.
    pub own_model: bool,
}

impl Rights {
    /// True when a tool may be called at all.
    #[must_use]
    pub fn allows(&self, tool: &str) -> bool {
        lists(&self.tools, tool)
    }

    /// True when the tools of an MCP server may be called.
    #[must_use]
    pub fn reaches(&self, server: &str) -> bool {
        self.servers.as_ref().is_none_or(|names| names.iter().any(|name| name == server))
    }

    /// Whether calls of a tool wait for a person.
    #[must_use]
    pub fn policy(&self, tool: &str) -> ApprovalPolicy {
        policy_of(&self.approvals, tool)
    }

    /// These rights below those of the run that starts this one: what both have, and of two policies the stricter one.
    #[must_use]
    pub fn within(&self, ceiling: &Self) -> Self {
        let servers = match (&self.servers, &ceiling.servers) {
            (Some(own), Some(_)) => Some(own.iter().filter(|name| ceiling.reaches(name)).cloned().collect()),
            (Some(names), None) | (None, Some(names)) => Some(names.clone()),
            (None, None) => None,
        };
        Self {
            tools: both(&self.tools, &ceiling.tools),
            servers,
            approvals: strictest(&self.approvals, &ceiling.approvals),
            isolation: self.isolation.max(ceiling.isolation),
            own_model: self.own_model || ceiling.own_model,
        }
    }
}

/// The policy for a tool in a table that may hold `*`.
#[must_use]
pub fn policy_of(approvals: &BTreeMap<String, ApprovalPolicy>, tool: &str) -> ApprovalPolicy {
    approvals.get(tool).or_else(|| approvals.get(ALL)).copied().unwrap_or_default()
}

/// True when a list of tools names this one, or all.
#[must_use]
pub fn lists(tools: &[String], tool: &str) -> bool {
    tools.iter().any(|name| name == ALL || name == tool)
}

fn both(own: &[String], ceiling: &[String]) -> Vec<String> {
    let is_all = |tools: &[String]| tools.iter().any(|name| name == ALL);
    if is_all(own) {
        return ceiling.to_vec();
    }
    own.iter().filter(|tool| lists(ceiling, tool)).cloned().collect()
}

/// For every tool, named in one of the tables or in none, the stricter of the two policies.
fn strictest(
    own: &BTreeMap<String, ApprovalPolicy>,
    ceiling: &BTreeMap<String, ApprovalPolicy>,
) -> BTreeMap<String, ApprovalPolicy> {
    let stricter = |tool: &String| (tool.clone(), policy_of(own, tool).max(policy_of(ceiling, tool)));
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

    fn rights() -> impl Strategy<Value = Rights> {
        const NAMES: &[&str] = &["*", "shell", "read_file", "spawn_agent", "files__read"];
        let policy = select(vec![ApprovalPolicy::Auto, ApprovalPolicy::Ask, ApprovalPolicy::Deny]);
        let approvals = btree_map(name(NAMES), policy, 0..4);
        let isolation = select(vec![Isolation::None, Isolation::Preferred, Isolation::Required]);
        let (tools, servers) = (vec(name(NAMES), 0..4), option::of(vec(name(&SERVERS), 0..3)));
        (tools, servers, approvals, isolation, any::<bool>()).prop_map(
            |(tools, servers, approvals, isolation, own_model)| Rights {
                tools,
                servers,
                approvals,
                isolation,
                own_model,
            },
        )
    }

    /// What the last run of a chain may do, when each runs within the one before it.
    fn last_of(chain: &[Rights]) -> Rights {
        let (first, rest) = chain.split_first().expect("a chain");
        rest.iter().fold(first.clone(), |ceiling, own| own.within(&ceiling))
    }

    proptest! {
        #[test]
        fn a_chain_allows_what_each_of_its_links_allows(chain in vec(rights(), 1..5)) {
            let last = last_of(&chain);
            for tool in TOOLS {
                prop_assert_eq!(last.allows(tool), chain.iter().all(|link| link.allows(tool)), "{}", tool);
                let strictest = chain.iter().map(|link| link.policy(tool)).max();
                prop_assert_eq!(Some(last.policy(tool)), strictest, "{}", tool);
            }
            prop_assert_eq!(last.own_model, chain.iter().any(|link| link.own_model));
            prop_assert_eq!(Some(last.isolation), chain.iter().map(|link| link.isolation).max());
            for server in SERVERS {
                prop_assert_eq!(last.reaches(server), chain.iter().all(|link| link.reaches(server)), "{}", server);
            }
        }
    }

    #[test]
    fn a_denied_shell_stays_denied_below_an_agent_with_all_tools() {
        let (tools, isolation) = (vec!["*".to_owned()], Isolation::None);
        let all = Rights { tools, servers: None, approvals: BTreeMap::new(), isolation, own_model: false };
        let denied = BTreeMap::from([("shell".to_owned(), ApprovalPolicy::Deny)]);
        let reader = Rights { approvals: denied, ..all.clone() };
        assert_eq!(all.within(&reader).policy("shell"), ApprovalPolicy::Deny);
        let without = Rights { tools: vec!["read_file".to_owned()], ..all.clone() };
        assert!(!all.within(&without).allows("shell") && all.within(&without).allows("read_file"));
    }
}
