// Puts the agents in tree order for display. Exports agentTreeRows and modelChain. Pure.

/**
 * Rows `{agent, depth, position, siblingCount, childCount, collapsed}`, parents before their children. Agents
 * with an unknown parent, and agents in a cycle, become roots, so that none is lost. Agents below an id in
 * `collapsed` are left out.
 */
export function agentTreeRows(agents, collapsed = new Set()) {
  const known = new Map(agents.map((agent) => [agent.id, agent]));
  const childrenOf = new Map();
  const roots = [];
  for (const agent of agents) {
    if (!known.has(agent.parent)) {
      roots.push(agent);
    } else {
      childrenOf.set(agent.parent, [...(childrenOf.get(agent.parent) ?? []), agent]);
    }
  }
  const rows = [];
  const visited = new Set();
  const visit = (siblings, depth, visible) => {
    const unvisited = siblings.filter((agent) => !visited.has(agent.id));
    for (const [index, agent] of unvisited.entries()) {
      visited.add(agent.id);
      const children = childrenOf.get(agent.id) ?? [];
      const isCollapsed = collapsed.has(agent.id);
      const row = {
        agent,
        depth,
        position: index + 1,
        siblingCount: unvisited.length,
        childCount: children.length,
        collapsed: isCollapsed,
      };
      if (visible) {
        rows.push(row);
      }
      visit(children, depth + 1, visible && !isCollapsed);
    }
  };
  visit(roots, 0, true);
  for (const agent of agents) {
    visit([agent], 0, true);
  }
  return rows;
}

/** The models of an agent, in the order in which they take over when a provider fails. */
export function modelChain(agent) {
  return agent.models?.length > 1 ? agent.models.join(" → ") : agent.model;
}
