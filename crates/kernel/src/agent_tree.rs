//! Tree of agents: parents, subtrees, delegates and invalid parents.
//!
//! The module knows only the ids of agents, so that configuration, engine and surfaces apply the same rules.

use std::collections::BTreeMap;

use quell_protocol::AgentId;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AgentTreeError {
    #[error("there is no agent {0:?} to be its parent")]
    Unknown(AgentId),
    /// The agent would be deeper in the tree than [`MAX_DEPTH`].
    #[error("the tree of agents may be at most {MAX_DEPTH} deep, and this agent would be deeper")]
    TooDeep,
    /// The line of parents returns to an agent in it. Holds the line from this agent to its repetition.
    #[error("its parents form a circle: {}", .0.iter().map(AgentId::as_str).collect::<Vec<_>>().join(" -> "))]
    Circle(Vec<AgentId>),
}

/// Maximum depth of the tree. Programs that draw and read trees as nested data have limits of their own.
pub const MAX_DEPTH: usize = 32;

#[derive(Debug, Clone, Default)]
pub struct AgentTree<'a> {
    parents: BTreeMap<&'a AgentId, Option<&'a AgentId>>,
    children: BTreeMap<&'a AgentId, Vec<&'a AgentId>>,
}

impl<'a> AgentTree<'a> {
    /// Makes a tree of pairs of agent and parent. The order of the pairs does not matter.
    pub fn new(agents: impl IntoIterator<Item = (&'a AgentId, Option<&'a AgentId>)>) -> Self {
        let parents: BTreeMap<_, _> = agents.into_iter().collect();
        let mut children: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (id, parent) in &parents {
            if let Some(parent) = parent {
                children.entry(*parent).or_default().push(*id);
            }
        }
        Self { parents, children }
    }

    /// Checks the line of parents above an agent: each must exist, they must not form a circle, and there must not be
    /// too many.
    pub fn check_ancestors(&self, id: &'a AgentId) -> Result<(), AgentTreeError> {
        let mut line = vec![id];
        while let Some(Some(parent)) = line.last().and_then(|last| self.parents.get(*last)) {
            if !self.parents.contains_key(parent) {
                return Err(AgentTreeError::Unknown((*parent).clone()));
            }
            let repeated = line.iter().position(|seen| seen == parent);
            line.push(parent);
            if let Some(start) = repeated {
                return Err(AgentTreeError::Circle(line[start..].iter().map(|id| (*id).clone()).collect()));
            }
        }
        if line.len() > MAX_DEPTH { Err(AgentTreeError::TooDeep) } else { Ok(()) }
    }

    /// The agents directly below `id`, ordered by id.
    pub fn children(&self, id: &AgentId) -> &[&'a AgentId] {
        self.children.get(id).map_or(&[], Vec::as_slice)
    }

    /// Agents without a parent. A parent that does not exist counts as none.
    pub fn roots(&self) -> impl Iterator<Item = &'a AgentId> + '_ {
        let is_missing = |parent: Option<&AgentId>| parent.is_none_or(|parent| !self.parents.contains_key(parent));
        self.parents.iter().filter(move |(_, parent)| is_missing(**parent)).map(|(id, _)| *id)
    }

    /// An agent and all agents below it, parents before children; empty if there is no such agent. Terminates and
    /// returns each agent once even if the parents form a circle.
    pub fn subtree(&self, root: &AgentId) -> Vec<&'a AgentId> {
        let mut found: Vec<&AgentId> = self.parents.get_key_value(root).map(|(id, _)| *id).into_iter().collect();
        let mut next = 0;
        while let Some(id) = found.get(next) {
            let new: Vec<_> = self.children(id).iter().filter(|child| !found.contains(child)).copied().collect();
            found.extend(new);
            next += 1;
        }
        found
    }

    /// The existing agents to which `of` may delegate work, ordered by id: the configured ones (`named`), else itself
    /// and all agents below it.
    pub fn delegates(&self, of: &AgentId, named: Option<&[AgentId]>) -> Vec<&'a AgentId> {
        let mut found = match named {
            Some(named) => self.parents.keys().filter(|id| named.contains(id)).copied().collect(),
            None => self.subtree(of),
        };
        found.sort_unstable();
        found
    }
}

#[cfg(test)]
mod tests;
