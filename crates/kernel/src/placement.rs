//! Which node of a cluster takes a session.

/// A node that could take a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLoad<N> {
    pub node: N,
    pub active_runs: usize,
    /// Runs that it takes at a time.
    pub max_in_flight: usize,
    /// It takes no new sessions.
    pub is_draining: bool,
}

impl<N> NodeLoad<N> {
    fn has_room(&self) -> bool {
        !self.is_draining && self.active_runs < self.max_in_flight
    }

    /// Whether it is less busy than another node, compared as fractions without division.
    fn is_less_busy(&self, other: &Self) -> bool {
        self.active_runs.saturating_mul(other.max_in_flight) < other.active_runs.saturating_mul(self.max_in_flight)
    }
}

/// Chooses the node for a session that belongs to none. A session goes back to the node that had it last, because its
/// workdir is there; else the node that was asked takes it; else, if that has no room, the least busy one.
#[must_use]
pub fn choose_node<'a, N: PartialEq>(
    asked: &'a NodeLoad<N>,
    others: &'a [NodeLoad<N>],
    last_node: Option<&N>,
) -> &'a NodeLoad<N> {
    let all = || std::iter::once(asked).chain(others);
    let last = last_node.and_then(|last| all().find(|load| load.node == *last && !load.is_draining));
    if let Some(last) = last {
        return last;
    }
    if asked.has_room() {
        return asked;
    }
    let free = others.iter().filter(|load| load.has_room());
    let least_busy = free.reduce(|best, load| if load.is_less_busy(best) { load } else { best });
    least_busy.or_else(|| all().find(|load| !load.is_draining)).unwrap_or(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(node: &'static str, active_runs: usize) -> NodeLoad<&'static str> {
        NodeLoad { node, active_runs, max_in_flight: 4, is_draining: false }
    }

    #[test]
    fn a_session_goes_to_its_last_node_then_here_then_to_the_least_busy() {
        let others = [load("b", 3), load("c", 1)];
        assert_eq!(choose_node(&load("a", 0), &others, Some(&"b")).node, "b");
        assert_eq!(choose_node(&load("a", 0), &others, Some(&"gone")).node, "a");
        assert_eq!(choose_node(&load("a", 0), &others, None).node, "a");
        assert_eq!(choose_node(&load("a", 4), &others, None).node, "c");
        assert_eq!(choose_node(&load("a", 4), &[load("b", 4)], None).node, "a", "it waits where it came");
    }

    #[test]
    fn a_node_that_drains_takes_nothing() {
        let draining = |node| NodeLoad { is_draining: true, ..load(node, 0) };
        assert_eq!(choose_node(&draining("a"), &[load("b", 4)], Some(&"a")).node, "b");
        assert_eq!(choose_node(&load("a", 4), &[draining("b")], Some(&"b")).node, "a");
        assert_eq!(choose_node(&draining("a"), &[draining("b")], None).node, "a");
    }
}
