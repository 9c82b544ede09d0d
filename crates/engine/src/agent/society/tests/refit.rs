//! Another configuration in the place of the one that is there: who comes, who stays, who is to go.

use super::*;

/// Agents, each with its parent or without one.
fn agents(said: &[(&str, Option<&str>)]) -> BTreeMap<AgentId, AgentConfig> {
    said.iter().map(|(name, parent)| (id(name), parent.map_or_else(config, below))).collect()
}

fn models(society: &Society, provider: &str, port: u16) -> Models {
    let provider_config = ProviderConfig {
        base_url: Some(format!("http://127.0.0.1:{port}/v1")),
        ..ProviderConfig::new(ProviderKind::Openai)
    };
    society.materials().models.of_others(BTreeMap::from([(provider.to_owned(), provider_config)])).expect("a provider")
}

/// As `Engine::reload` does it, without runs.
fn reload(society: &Society, said: &[(&str, Option<&str>)]) -> Changes {
    let plan = society.plan(models(society, "p", 10), &agents(said)).expect("a plan");
    let changes = society.refit(&plan).expect("a fitting plan");
    changes.newcomers.iter().for_each(|agent| society.join(Arc::clone(agent)));
    society.lead(&plan);
    changes
}

fn all(society: &Society) -> Vec<String> {
    society.roll().keys().map(ToString::to_string).collect()
}

#[test]
fn who_is_new_comes_who_is_gone_is_to_go_and_the_others_are_built_anew() {
    let (society, _dir) = society(&["alpha", "beta"]);
    comes(&society, "made", below("alpha"));
    let (before, generation) = (society.roll(), society.materials().models.generation());
    let changes = reload(&society, &[("alpha", None), ("main", None)]);
    assert_eq!(all(&society), ["alpha", "beta", "made", "main"]);
    assert_eq!(changes.newcomers.iter().map(|agent| agent.id.clone()).collect::<BTreeSet<_>>(), ids(&["main"]));
    assert_eq!((changes.vanished, society.vanished()), (ids(&["beta"]), ids(&["beta"])));
    assert_eq!(society.default_agent(), id("main"));
    assert_ne!(society.materials().models.generation(), generation);
    let is_same = |name: &str| Arc::ptr_eq(&before[&id(name)], &society.get(&id(name)).expect("it is there"));
    assert_eq!([is_same("alpha"), is_same("made"), is_same("beta")], [false, false, true]);
    assert!(named(&society).iter().any(|tool| tool.contains("main")), "the new one is named to all");
}

#[test]
fn one_that_is_to_go_can_be_marked_now_and_stays_when_it_is_configured_again() {
    let (society, _dir) = society(&["main", "scout"]);
    assert_eq!(society.mark(&id("scout")), Err(Stays::Configured(id("scout"))));
    reload(&society, &[("main", None)]);
    let going = society.mark(&id("scout")).expect("it is configured no more");
    society.retain(&going);
    reload(&society, &[("main", None), ("scout", None)]);
    assert_eq!(society.vanished(), ids(&[]));
    reload(&society, &[("main", None)]);
    let going = society.mark(&id("scout")).expect("it is configured no more");
    society.let_go(&going);
    assert_eq!((all(&society), society.vanished()), (vec!["main".to_owned()], ids(&[])));
    assert_eq!(reload(&society, &[("main", None), ("scout", None)]).newcomers.len(), 1);
}

#[test]
fn one_that_was_made_gives_way_to_the_configuration() {
    let (society, _dir) = society(&["main"]);
    comes(&society, "scout", AgentConfig { role: Some("made".to_owned()), ..config() });
    let changes = reload(&society, &[("main", None), ("scout", None)]);
    assert_eq!((changes.shadowed, changes.newcomers.len()), (ids(&["scout"]), 0));
    assert_eq!(society.get(&id("scout")).expect("it is there").config.role, None);
    assert_eq!(reload(&society, &[("main", None), ("scout", None)]).shadowed, ids(&[]));
}

#[test]
fn nothing_changes_while_an_agent_comes_or_goes() {
    let (society, _dir) = society(&["main"]);
    let plan = |said: &[(&str, Option<&str>)]| society.plan(models(&society, "p", 10), &agents(said)).expect("a plan");
    let fits = plan(&[("main", None), ("scout", None)]);
    let coming = built(&society, "coming", config());
    claim(&society, &coming).expect("welcome");
    assert_eq!(society.refit(&fits).map(drop), Err(Stale));
    society.join(coming);
    assert_eq!(society.refit(&fits).map(drop), Err(Stale), "it was made for others");
    let going = society.mark(&id("coming")).expect("it may go");
    assert_eq!(society.refit(&plan(&[("main", None)])).map(drop), Err(Stale));
    society.let_go(&going);
    assert_eq!((all(&society), society.materials().models.generation()), (vec!["main".to_owned()], 0));
    society.refit(&plan(&[("main", None)])).expect("a fitting plan");
}

#[test]
fn an_id_is_taken_from_the_step_on_in_which_the_configuration_has_it() {
    let (society, _dir) = society(&["main"]);
    let plan = society.plan(models(&society, "p", 10), &agents(&[("main", None), ("scout", None)])).expect("a plan");
    let changes = society.refit(&plan).expect("a fitting plan");
    assert_eq!(society.claim(&id("scout"), None), Err(Unwelcome::Taken(id("scout"))));
    changes.newcomers.iter().for_each(|agent| society.join(Arc::clone(agent)));
    assert_eq!(society.claim(&id("scout"), None), Err(Unwelcome::Taken(id("scout"))));
}

#[test]
fn a_configuration_that_leaves_an_agent_without_its_provider_is_refused() {
    let (society, _dir) = society(&["main"]);
    comes(&society, "made", config());
    let of_q = AgentConfig { model: "q/model".to_owned(), ..config() };
    let plan = society.plan(models(&society, "q", 10), &BTreeMap::from([(id("main"), of_q)]));
    let Err(BadSociety::Agent(bad)) = plan else { panic!("{plan:?}") };
    assert_eq!((bad.agent, bad.problem.contains("no provider serves the model `p/model`")), (id("made"), true));
    assert_eq!(society.materials().models.generation(), 0);
    assert!(matches!(society.plan(models(&society, "p", 10), &BTreeMap::new()), Err(BadSociety::Empty)));
}

#[test]
fn a_tree_that_grows_too_deep_for_what_was_made_is_refused() {
    let (society, _dir) = society(&["main"]);
    comes(&society, "made", below("main"));
    let names: Vec<String> = (0..31).map(|n| format!("a{n:02}")).collect();
    let mut deep: BTreeMap<AgentId, AgentConfig> = BTreeMap::from([(id(&names[0]), config())]);
    deep.extend(names.windows(2).map(|pair| (id(&pair[1]), below(&pair[0]))));
    deep.insert(id("main"), below(&names[30]));
    let plan = society.plan(models(&society, "p", 10), &deep);
    let Err(BadSociety::Agent(bad)) = plan else { panic!("{plan:?}") };
    assert_eq!((bad.agent, bad.problem.contains("32 deep")), (id("made"), true));
}
