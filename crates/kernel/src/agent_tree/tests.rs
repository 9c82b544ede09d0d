//! Tests of valid and broken trees.

use proptest::prelude::*;

use super::*;

fn id(text: &str) -> AgentId {
    AgentId::parse(text).expect("an agent id")
}

/// Parses `child<parent`, or a name alone.
fn parse(agents: &[&str]) -> Vec<(AgentId, Option<AgentId>)> {
    let one = |text: &&str| match text.split_once('<') {
        Some((child, parent)) => (id(child), Some(id(parent))),
        None => (id(text), None),
    };
    agents.iter().map(one).collect()
}

fn tree(agents: &[(AgentId, Option<AgentId>)]) -> AgentTree<'_> {
    AgentTree::new(agents.iter().map(|(id, parent)| (id, parent.as_ref())))
}

fn names(ids: &[&AgentId]) -> Vec<String> {
    ids.iter().map(ToString::to_string).collect()
}

#[test]
fn a_subtree_is_an_agent_with_all_below_it() {
    let agents = parse(&["a", "b<a", "c<b", "d<a", "e"]);
    let tree = tree(&agents);
    assert_eq!(names(&tree.subtree(&id("a"))), ["a", "b", "d", "c"]);
    assert_eq!(names(&tree.subtree(&id("b"))), ["b", "c"]);
    assert_eq!(names(&tree.subtree(&id("e"))), ["e"]);
    assert!(tree.subtree(&id("nobody")).is_empty());
    assert_eq!(names(tree.children(&id("a"))), ["b", "d"]);
    assert_eq!(names(&tree.roots().collect::<Vec<_>>()), ["a", "e"]);
    assert!(agents.iter().all(|(id, _)| tree.check_ancestors(id).is_ok()));
}

#[test]
fn parents_that_make_no_tree_are_named() {
    let agents = parse(&["self<self", "a<b", "b<c", "c<a", "low<a", "orphan<gone", "below<orphan"]);
    let tree = tree(&agents);
    let circle = |line: &[&str]| Err(AgentTreeError::Circle(line.iter().map(|name| id(name)).collect()));
    assert_eq!(tree.check_ancestors(&id("self")), circle(&["self", "self"]));
    assert_eq!(tree.check_ancestors(&id("a")), circle(&["a", "b", "c", "a"]));
    // `low` is below a circle and not part of it.
    assert_eq!(tree.check_ancestors(&id("low")), circle(&["a", "b", "c", "a"]));
    assert_eq!(tree.check_ancestors(&id("orphan")), Err(AgentTreeError::Unknown(id("gone"))));
    assert_eq!(tree.check_ancestors(&id("below")), Err(AgentTreeError::Unknown(id("gone"))));
    assert_eq!(names(&tree.subtree(&id("b"))), ["b", "a", "c", "low"], "it ends");
    assert_eq!(names(&tree.roots().collect::<Vec<_>>()), ["orphan"]);
    assert_eq!(
        tree.check_ancestors(&id("a")).unwrap_err().to_string(),
        "its parents form a circle: a -> b -> c -> a",
        "people see where"
    );
}

#[test]
fn a_tree_has_a_bottom() {
    let name = |number: usize| format!("agent{number}");
    let line: Vec<String> = (1..=MAX_DEPTH).map(|number| format!("{}<{}", name(number), name(number - 1))).collect();
    let agents = parse(&[vec!["agent0"], line.iter().map(String::as_str).collect()].concat());
    let tree = tree(&agents);
    assert_eq!(tree.check_ancestors(&id(&name(MAX_DEPTH - 1))), Ok(()));
    assert_eq!(tree.check_ancestors(&id(&name(MAX_DEPTH))), Err(AgentTreeError::TooDeep));
}

proptest! {
    /// In a valid tree the subtrees of the roots hold every agent once. In any other tree the functions still
    /// terminate.
    #[test]
    fn the_roots_cover_a_sound_tree(parents in proptest::collection::vec(proptest::option::of(0usize..12), 1..12)) {
        let name = |number: usize| id(&format!("agent{number}"));
        let agents: Vec<_> = parents.iter().enumerate().map(|(own, parent)| (name(own), parent.map(name))).collect();
        let tree = tree(&agents);
        let covered: Vec<&AgentId> = tree.roots().flat_map(|root| tree.subtree(root)).collect();
        let distinct: std::collections::BTreeSet<_> = covered.iter().collect();
        prop_assert_eq!(distinct.len(), covered.len());
        let in_circles = agents.iter().filter(|(id, _)| matches!(tree.check_ancestors(id), Err(AgentTreeError::Circle(_)))).count();
        prop_assert_eq!(covered.len() + in_circles, agents.len());
    }
}

#[test]
fn work_is_given_to_itself_and_below_unless_others_are_named() {
    let agents = parse(&["a", "b<a", "c<b", "e"]);
    let tree = tree(&agents);
    assert_eq!(names(&tree.delegates(&id("a"), None)), ["a", "b", "c"]);
    assert_eq!(names(&tree.delegates(&id("c"), None)), ["c"], "nobody above it");
    let named = [id("e"), id("a"), id("gone")];
    assert_eq!(names(&tree.delegates(&id("c"), Some(&named))), ["a", "e"]);
    assert!(tree.delegates(&id("a"), Some(&[])).is_empty() && tree.delegates(&id("gone"), None).is_empty());
}
