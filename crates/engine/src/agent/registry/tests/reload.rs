//! Tests of a reload: which agents are added, kept, and marked as no longer configured.

use super::*;

/// Agents, each with its parent or without one.
fn agents(parents: &[(&str, Option<&str>)]) -> BTreeMap<AgentId, AgentConfig> {
    parents.iter().map(|(name, parent)| (id(name), parent.map_or_else(config, below))).collect()
}

fn models(registry: &AgentRegistry, provider: &str, port: u16) -> Models {
    let provider_config = ProviderConfig {
        base_url: Some(format!("http://127.0.0.1:{port}/v1")),
        ..ProviderConfig::new(ProviderKind::OPENAI)
    };
    registry
        .factory()
        .models
        .with_providers(BTreeMap::from([(provider.to_owned(), provider_config)]))
        .expect("a provider")
}

/// As `Engine::reload` does it, without runs.
fn reload(registry: &AgentRegistry, parents: &[(&str, Option<&str>)]) -> AgentReloadChanges {
    let plan = registry.plan_reload(models(registry, "p", 10), &agents(parents)).expect("a plan");
    let changes = registry.apply_reload(&plan).expect("a fitting plan");
    changes.added.iter().for_each(|agent| registry.add_reserved(Arc::clone(agent)));
    registry.set_default_agent(&plan);
    changes
}

fn all(registry: &AgentRegistry) -> Vec<String> {
    registry.snapshot().keys().map(ToString::to_string).collect()
}

#[test]
fn a_reload_adds_new_agents_marks_removed_ones_rebuilds_others() {
    let (registry, _dir) = test_registry(&["alpha", "beta"]);
    comes(&registry, "made", below("alpha"));
    let (before, generation) = (registry.snapshot(), registry.factory().models.generation());
    let changes = reload(&registry, &[("alpha", None), ("main", None)]);
    assert_eq!(all(&registry), ["alpha", "beta", "made", "main"]);
    assert_eq!(changes.added.iter().map(|agent| agent.id.clone()).collect::<BTreeSet<_>>(), ids(&["main"]));
    assert_eq!((changes.unconfigured, registry.unconfigured()), (ids(&["beta"]), ids(&["beta"])));
    assert_eq!(registry.default_agent(), id("main"));
    assert_ne!(registry.factory().models.generation(), generation);
    let is_same = |name: &str| Arc::ptr_eq(&before[&id(name)], &registry.get(&id(name)).expect("it is there"));
    assert_eq!([is_same("alpha"), is_same("made"), is_same("beta")], [false, false, true]);
    assert!(named(&registry).iter().any(|tool| tool.contains("main")), "the new one is named to all");
}

#[test]
fn one_that_is_to_go_can_be_marked_now_and_stays_when_it_is_configured_again() {
    let (registry, _dir) = test_registry(&["main", "scout"]);
    assert_eq!(registry.mark_for_removal(&id("scout")), Err(RemoveAgentError::Configured(id("scout"))));
    reload(&registry, &[("main", None)]);
    let going = registry.mark_for_removal(&id("scout")).expect("it is configured no more");
    registry.cancel_removal(&going);
    reload(&registry, &[("main", None), ("scout", None)]);
    assert_eq!(registry.unconfigured(), ids(&[]));
    reload(&registry, &[("main", None)]);
    let going = registry.mark_for_removal(&id("scout")).expect("it is configured no more");
    registry.remove_marked(&going);
    assert_eq!((all(&registry), registry.unconfigured()), (vec!["main".to_owned()], ids(&[])));
    assert_eq!(reload(&registry, &[("main", None), ("scout", None)]).added.len(), 1);
}

#[test]
fn one_that_was_made_gives_way_to_the_configuration() {
    let (registry, _dir) = test_registry(&["main"]);
    comes(&registry, "scout", AgentConfig { role: Some("made".to_owned()), ..config() });
    let changes = reload(&registry, &[("main", None), ("scout", None)]);
    assert_eq!((changes.shadowed, changes.added.len()), (ids(&["scout"]), 0));
    assert_eq!(registry.get(&id("scout")).expect("it is there").config.role, None);
    assert_eq!(reload(&registry, &[("main", None), ("scout", None)]).shadowed, ids(&[]));
}

#[test]
fn nothing_changes_while_an_agent_comes_or_goes() {
    let (registry, _dir) = test_registry(&["main"]);
    let plan = |parents: &[(&str, Option<&str>)]| {
        registry.plan_reload(models(&registry, "p", 10), &agents(parents)).expect("a plan")
    };
    let fits = plan(&[("main", None), ("scout", None)]);
    let coming = built(&registry, "coming", config());
    claim(&registry, &coming).expect("welcome");
    assert_eq!(registry.apply_reload(&fits).map(drop), Err(StaleReloadPlan));
    registry.add_reserved(coming);
    assert_eq!(registry.apply_reload(&fits).map(drop), Err(StaleReloadPlan), "it was made for others");
    let going = registry.mark_for_removal(&id("coming")).expect("it may go");
    assert_eq!(registry.apply_reload(&plan(&[("main", None)])).map(drop), Err(StaleReloadPlan));
    registry.remove_marked(&going);
    assert_eq!((all(&registry), registry.factory().models.generation()), (vec!["main".to_owned()], 0));
    registry.apply_reload(&plan(&[("main", None)])).expect("a fitting plan");
}

#[test]
fn an_id_is_taken_from_the_step_on_in_which_the_configuration_has_it() {
    let (registry, _dir) = test_registry(&["main"]);
    let plan =
        registry.plan_reload(models(&registry, "p", 10), &agents(&[("main", None), ("scout", None)])).expect("a plan");
    let changes = registry.apply_reload(&plan).expect("a fitting plan");
    assert_eq!(registry.reserve(&id("scout"), None), Err(AddAgentError::IdTaken(id("scout"))));
    changes.added.iter().for_each(|agent| registry.add_reserved(Arc::clone(agent)));
    assert_eq!(registry.reserve(&id("scout"), None), Err(AddAgentError::IdTaken(id("scout"))));
}

#[test]
fn a_configuration_that_leaves_an_agent_without_its_provider_is_refused() {
    let (registry, _dir) = test_registry(&["main"]);
    comes(&registry, "made", config());
    let of_q = AgentConfig { model: "q/model".into(), ..config() };
    let plan = registry.plan_reload(models(&registry, "q", 10), &BTreeMap::from([(id("main"), of_q)]));
    let Err(AgentRegistryError::InvalidAgent(bad)) = plan else { panic!("{plan:?}") };
    assert_eq!((bad.agent, bad.problem.contains("no provider serves the model `p/model`")), (id("made"), true));
    assert_eq!(registry.factory().models.generation(), 0);
    assert!(matches!(
        registry.plan_reload(models(&registry, "p", 10), &BTreeMap::new()),
        Err(AgentRegistryError::NoAgents)
    ));
}

#[test]
fn a_tree_that_grows_too_deep_for_what_was_made_is_refused() {
    let (registry, _dir) = test_registry(&["main"]);
    comes(&registry, "made", below("main"));
    let names: Vec<String> = (0..31).map(|n| format!("a{n:02}")).collect();
    let mut deep: BTreeMap<AgentId, AgentConfig> = BTreeMap::from([(id(&names[0]), config())]);
    deep.extend(names.windows(2).map(|pair| (id(&pair[1]), below(&pair[0]))));
    deep.insert(id("main"), below(&names[30]));
    let plan = registry.plan_reload(models(&registry, "p", 10), &deep);
    let Err(AgentRegistryError::InvalidAgent(bad)) = plan else { panic!("{plan:?}") };
    assert_eq!((bad.agent, bad.problem.contains("32 deep")), (id("made"), true));
}
