//! The tree that agents form: who stands above whom, what belongs to a subtree, and which parents make no tree.
//!
//! It knows ids and nothing else of agents, so that configuration, engine and doors all ask the same rules.

use std::collections::BTreeMap;

use quell_protocol::AgentId;

/// What is wrong with the parent of an agent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadParent {
    /// There is no such agent.
    #[error("there is no agent {0:?} to be its parent")]
    Unknown(AgentId),
    /// The tree is as deep as it may be.
    #[error("agents may stand {DEEPEST} deep below each other, and it would stand deeper")]
    TooDeep,
    /// Who follows the parents comes back to where they began.
    #[error("its parents form a circle: {}", .0.iter().map(AgentId::as_str).collect::<Vec<_>>().join(" -> "))]
    Circle(Vec<AgentId>),
}

/// How many agents may stand above each other. Trees are drawn and read nested, by programs that have a limit of their own.
pub const DEEPEST: usize = 32;

/// All agents with their parents.
#[derive(Debug, Clone, Default)]
pub struct Tree<'a> {
    parents: BTreeMap<&'a AgentId, Option<&'a AgentId>>,
    children: BTreeMap<&'a AgentId, Vec<&'a AgentId>>,
}

impl<'a> Tree<'a> {
    /// The tree of these agents, each with its parent. Parents need not come before their children.
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

    /// Checks the line of parents above an agent.
    ///
    /// # Errors
    /// [`BadParent`]: the first of them that does not exist, the circle that they form, or that they are too many.
    pub fn check(&self, id: &'a AgentId) -> Result<(), BadParent> {
        let mut line = vec![id];
        while let Some(Some(parent)) = line.last().and_then(|last| self.parents.get(*last)) {
            if !self.parents.contains_key(parent) {
                return Err(BadParent::Unknown((*parent).clone()));
            }
            let begins = line.iter().position(|seen| seen == parent);
            line.push(parent);
            if let Some(begins) = begins {
                return Err(BadParent::Circle(line[begins..].iter().map(|id| (*id).clone()).collect()));
            }
        }
        if line.len() > DEEPEST { Err(BadParent::TooDeep) } else { Ok(()) }
    }

    /// The agents right below one, in the order of their ids.
    #[must_use]
    pub fn children(&self, id: &AgentId) -> &[&'a AgentId] {
        self.children.get(id).map_or(&[], Vec::as_slice)
    }

    /// Those that nobody stands above. A parent that does not exist is nobody.
    pub fn roots(&self) -> impl Iterator<Item = &'a AgentId> + '_ {
        let nobody = |parent: Option<&AgentId>| parent.is_none_or(|parent| !self.parents.contains_key(parent));
        self.parents.iter().filter(move |(_, parent)| nobody(**parent)).map(|(id, _)| *id)
    }

    /// An agent and all below it, parents before children; nothing when there is no such agent. Ends in any case, each
    /// agent once, whatever the parents form.
    #[must_use]
    pub fn below(&self, root: &AgentId) -> Vec<&'a AgentId> {
        let mut found: Vec<&AgentId> = self.parents.get_key_value(root).map(|(id, _)| *id).into_iter().collect();
        let mut next = 0;
        while let Some(id) = found.get(next) {
            let new: Vec<_> = self.children(id).iter().filter(|child| !found.contains(child)).copied().collect();
            found.extend(new);
            next += 1;
        }
        found
    }

    /// The agents that one may give work to, in the order of their ids: those that its configuration names, else itself and all
    /// below it. Only such as exist.
    #[must_use]
    pub fn delegates(&self, of: &AgentId, named: Option<&[AgentId]>) -> Vec<&'a AgentId> {
        let mut found = match named {
            Some(named) => self.parents.keys().filter(|id| named.contains(id)).copied().collect(),
            None => self.below(of),
        };
        found.sort_unstable();
        found
    }
}

#[cfg(test)]
mod tests;
