// The agents as the trees that they form, in the order in which they are shown. Pure. It knows agents and no
// element.

/**
 * `[{agent, depth, place, siblings, children, closed}]`, parents before their children. A child whose parent
 * is not known stands at the top, and so does every one of a circle, so that none is lost. What is below an
 * id in `closed` is left out.
 */
export function treeOf(agents, closed = new Set()) {
  const known = new Map(agents.map((agent) => [agent.id, agent]));
  const below = new Map();
  const tops = [];
  for (const agent of agents) {
    if (!known.has(agent.parent)) {
      tops.push(agent);
    } else {
      below.set(agent.parent, [...(below.get(agent.parent) ?? []), agent]);
    }
  }
  const rows = [];
  const seen = new Set();
  const add = (siblings, depth, shown) => {
    const fresh = siblings.filter((agent) => !seen.has(agent.id));
    for (const [place, agent] of fresh.entries()) {
      seen.add(agent.id);
      const children = below.get(agent.id) ?? [];
      const isClosed = closed.has(agent.id);
      const row = {
        agent,
        depth,
        place: place + 1,
        siblings: fresh.length,
        children: children.length,
        closed: isClosed,
      };
      if (shown) {
        rows.push(row);
      }
      add(children, depth + 1, shown && !isClosed);
    }
  };
  add(tops, 0, true);
  for (const agent of agents) {
    add([agent], 0, true);
  }
  return rows;
}
