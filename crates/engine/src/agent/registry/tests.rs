//! Tests of the agent registry: which agents exist, which can be delegated to, and which configurations are refused.

mod reload;

use std::path::PathBuf;

use quell_llm::{Models, ProviderConfig, ProviderKind};
use quell_process::Isolate;
use quell_tools::{ProtectedPaths, ToolSettings, Toolbox};

use super::*;
use crate::agent::SandboxSite;

fn id(text: &str) -> AgentId {
    AgentId::parse(text).expect("an agent id")
}

fn test_factory(work_dir: PathBuf) -> AgentFactory {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let provider = ProviderConfig {
        base_url: Some("http://127.0.0.1:9/v1".to_owned()),
        ..ProviderConfig::new(ProviderKind::OPENAI)
    };
    AgentFactory {
        models: Models::new(BTreeMap::from([("p".to_owned(), provider)])).expect("a provider"),
        toolbox: Arc::new(Toolbox::new(ToolSettings::default())),
        mcp_servers: BTreeSet::from(["files".to_owned()]),
        sandbox_site: Arc::new(SandboxSite::new(
            work_dir.clone(),
            work_dir.join("tmp"),
            Some(PathBuf::from("/nowhere")),
            &ProtectedPaths::default(),
        )),
    }
}

fn config() -> AgentConfig {
    AgentConfig { model: "p/model".into(), ..AgentConfig::default() }
}

fn test_registry(agents: &[&str]) -> (AgentRegistry, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let configured = agents.iter().map(|name| (id(name), config())).collect();
    (AgentRegistry::new(test_factory(dir.path().to_owned()), &configured).expect("a society"), dir)
}

fn named(registry: &AgentRegistry) -> Vec<String> {
    let main = registry.get(&id("main")).expect("main");
    registry.delegation_tools(&main).iter().map(|spec| spec.description.clone()).collect()
}

fn below(parent: &str) -> AgentConfig {
    AgentConfig { parent: Some(id(parent)), ..config() }
}

fn built(registry: &AgentRegistry, name: &str, config: AgentConfig) -> Arc<Agent> {
    registry.factory().build(&id(name), config).expect("an agent")
}

fn claim(registry: &AgentRegistry, agent: &Agent) -> Result<(), AddAgentError> {
    registry.reserve(&agent.id, agent.config.parent.as_ref())
}

fn comes(registry: &AgentRegistry, name: &str, config: AgentConfig) {
    let agent = built(registry, name, config);
    claim(registry, &agent).expect("welcome");
    registry.add_reserved(agent);
}

fn ids(names: &[&str]) -> BTreeSet<AgentId> {
    names.iter().map(|name| id(name)).collect()
}

#[test]
fn a_user_for_commands_must_be_possible() {
    let (registry, dir) = test_registry(&["main"]);
    let workdir = dir.path().join("taken");
    std::fs::create_dir(&workdir).expect("a directory");
    std::fs::write(workdir.join("file"), "").expect("a file");
    let problem_with = |config: AgentConfig| {
        registry
            .factory()
            .build(&id("other"), AgentConfig { workdir: Some(workdir.clone()), ..config })
            .unwrap_err()
            .problem
    };
    let run_as = |user| AgentConfig { run_as: Some(user), ..config() };
    for user in [0, u32::MAX] {
        let problem = problem_with(run_as(user));
        assert!(problem.contains("is not the id of an ordinary user"), "{problem}");
    }
    let problem = problem_with(AgentConfig { isolate: Isolate::None, ..run_as(20_001) });
    assert!(problem.starts_with("run_as contradicts isolate"), "{problem}");
    // The directory has files of another user, and an ordinary user cannot become another one.
    let problem = problem_with(run_as(20_001));
    assert!(["cannot enter", "chown -R", "not as root"].iter().any(|part| problem.contains(part)), "{problem}");
}

/// With a relative workdir, images were stored under names that only a daemon started in the same directory could find.
#[test]
fn a_workdir_is_a_whole_path_however_it_is_named() {
    let (registry, dir) = test_registry(&["main"]);
    let here = std::env::current_dir().expect("a directory");
    let steps = here.components().count() - 1;
    let relative: PathBuf =
        std::iter::repeat_n("..", steps).collect::<PathBuf>().join(dir.path().strip_prefix("/").expect("below /"));
    let agent = built(&registry, "writer", AgentConfig { workdir: Some(relative.join("desk")), ..config() });
    assert!(agent.workdir.is_absolute() && dir.path().join("desk").is_dir(), "{}", agent.workdir.display());
}

#[test]
fn an_agent_is_named_itself_and_those_below_it_and_no_other() {
    let (registry, dir) = test_registry(&["main", "scout"]);
    let before = registry.delegation_tools(&registry.get(&id("main")).expect("main"));
    comes(&registry, "writer", AgentConfig { role: Some("writes".to_owned()), ..below("main") });
    let writer = registry.get(&id("writer")).expect("it came");
    assert_eq!(writer.workdir, dir.path().join("writer"));
    assert!(writer.workdir.is_dir());
    assert!(named(&registry).iter().all(|text| text.ends_with("to are: main, writer (writes).")));
    let marked = registry.mark_for_removal(&id("writer")).expect("it may go");
    assert!(registry.get(&id("writer")).is_some(), "its runs are being stopped");
    registry.remove_marked(&marked);
    assert!(named(&registry).iter().all(|text| text.ends_with("to are: main.")));
    assert!(before.iter().all(|spec| spec.description.ends_with("to are: main.")), "a run keeps what it began with");
    assert_eq!(registry.snapshot().keys().map(AgentId::as_str).collect::<Vec<_>>(), ["main", "scout"]);
}

#[test]
fn an_id_is_claimed_once_and_free_again_when_the_claim_is_given_up() {
    let (registry, _dir) = test_registry(&["main"]);
    let writer = built(&registry, "writer", config());
    assert_eq!(claim(&registry, &writer), Ok(()));
    assert_eq!(claim(&registry, &writer), Err(AddAgentError::IdTaken(id("writer"))), "somebody else makes it");
    assert!(registry.get(&id("writer")).is_none(), "nobody sees it before it is kept");
    registry.release_reservation(&id("writer"));
    assert_eq!(claim(&registry, &writer), Ok(()));
    registry.add_reserved(Arc::clone(&writer));
    assert_eq!(claim(&registry, &writer), Err(AddAgentError::IdTaken(id("writer"))));
    assert_eq!(claim(&registry, &built(&registry, "main", config())), Err(AddAgentError::IdTaken(id("main"))));
}

#[test]
fn a_parent_is_there_stays_and_is_somebody_else() {
    let (registry, _dir) = test_registry(&["main"]);
    let parent = |name: &str, bad| Err(AddAgentError::InvalidParent(id(name), bad));
    let claim = |name: &str, config| claim(&registry, &built(&registry, name, config));
    assert_eq!(claim("a", below("gone")), parent("a", AgentTreeError::Unknown(id("gone"))));
    assert_eq!(claim("a", below("a")), parent("a", AgentTreeError::Circle(vec![id("a"), id("a")])));
    comes(&registry, "a", below("main"));
    comes(&registry, "b", below("a"));
    let marked = registry.mark_for_removal(&id("a")).expect("it may go");
    assert_eq!(marked, ids(&["a", "b"]));
    assert_eq!(claim("c", below("b")), parent("c", AgentTreeError::Unknown(id("b"))), "its parent is going");
    assert_eq!(registry.mark_for_removal(&id("b")), Err(RemoveAgentError::ChangeInProgress(id("b"))));
    registry.cancel_removal(&marked);
    assert_eq!(claim("c", below("b")), Ok(()));
    assert_eq!(
        registry.mark_for_removal(&id("a")),
        Err(RemoveAgentError::ChangeInProgress(id("c"))),
        "nobody loses a parent while it comes"
    );
}

#[test]
fn a_tree_of_agents_has_a_bottom() {
    let (registry, _dir) = test_registry(&["main"]);
    let mut parent = "main".to_owned();
    for number in 1..32 {
        let name = format!("below-{number}");
        comes(&registry, &name, below(&parent));
        parent = name;
    }
    let deeper = built(&registry, "deeper", below(&parent));
    assert_eq!(claim(&registry, &deeper), Err(AddAgentError::InvalidParent(id("deeper"), AgentTreeError::TooDeep)));
}

#[test]
fn configured_agents_cannot_be_removed() {
    let (registry, _dir) = test_registry(&["main"]);
    assert_eq!(registry.mark_for_removal(&id("main")), Err(RemoveAgentError::Configured(id("main"))));
    assert_eq!(registry.mark_for_removal(&id("nobody")), Err(RemoveAgentError::Unknown(id("nobody"))));
}

#[test]
fn unrestorable_agents_keep_their_reason_and_their_children() {
    let (registry, _dir) = test_registry(&["main", "named"]);
    let kept = |name: &str, config| RestorableAgent { id: id(name), config };
    let gone = AgentConfig { model: "gone/model".into(), ..config() };
    let absent = registry.restore_agents(vec![
        kept("a-child", Ok(below("z-parent"))),
        kept("b-low", Ok(below("y-broken"))),
        kept("c-lower", Ok(below("b-low"))),
        kept("named", Ok(config())),
        kept("torn", Err("its configuration cannot be read".to_owned())),
        kept("x", Ok(below("w"))),
        kept("w", Ok(below("x"))),
        kept("y-broken", Ok(gone)),
        kept("z-parent", Ok(below("main"))),
    ]);
    let reasons: BTreeMap<&str, &str> = absent.iter().map(|bad| (bad.agent.as_str(), bad.problem.as_str())).collect();
    let names: Vec<&str> = reasons.keys().copied().collect();
    assert_eq!(names, ["b-low", "c-lower", "named", "torn", "w", "x", "y-broken"]);
    assert!(reasons["y-broken"].contains("no provider serves"), "{reasons:?}");
    assert!(reasons["b-low"].contains("there is no agent \"y-broken\""), "{reasons:?}");
    assert!(reasons["named"].contains("an agent of the configuration has the same id"), "{reasons:?}");
    let there: Vec<String> = registry.snapshot().keys().map(ToString::to_string).collect();
    assert_eq!(there, ["a-child", "main", "named", "z-parent"]);
    let again = built(&registry, "y-broken", config());
    assert_eq!(claim(&registry, &again), Err(AddAgentError::Unbuildable(id("y-broken"))));
    let marked = registry.mark_for_removal(&id("y-broken")).expect("it may go");
    assert_eq!(marked, ids(&["y-broken", "b-low", "c-lower"]), "nothing is left behind that could never come");
    registry.remove_marked(&marked);
    assert_eq!(claim(&registry, &again), Ok(()));
}

#[test]
fn main_is_the_default_else_the_first_one() {
    assert_eq!(test_registry(&["alpha", "main"]).0.default_agent(), id("main"));
    assert_eq!(test_registry(&["beta", "alpha"]).0.default_agent(), id("alpha"));
    let dir = tempfile::tempdir().expect("a directory");
    let none = AgentRegistry::new(test_factory(dir.path().to_owned()), &BTreeMap::new());
    assert!(matches!(none, Err(AgentRegistryError::NoAgents)));
}

#[test]
fn a_configuration_that_makes_no_agent_is_refused_with_its_reason() {
    let (registry, dir) = test_registry(&["main"]);
    let file = dir.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let list = |name: &str| vec![name.to_owned()];
    let cases: [(AgentConfig, &str); 5] = [
        (AgentConfig { model: "gone/model".into(), ..config() }, "the providers are: p"),
        (AgentConfig { tools: list("shel"), ..config() }, "shel"),
        (AgentConfig { mcp: Some(list("web")), ..config() }, "its MCP server \"web\" is not configured"),
        (
            AgentConfig { approvals: BTreeMap::from([("nothing".to_owned(), Default::default())]), ..config() },
            "approvals: ",
        ),
        (AgentConfig { workdir: Some(file.join("below")), ..config() }, "cannot be made"),
    ];
    for (config, reason) in cases {
        let bad = registry.factory().build(&id("new"), config).expect_err(reason);
        assert!(bad.problem.contains(reason), "{bad}");
        assert_eq!(bad.agent, id("new"));
    }
}

#[test]
fn parents_of_configured_agents_form_a_tree() {
    let dir = tempfile::tempdir().expect("a directory");
    let refused = |agents: &[(&str, AgentConfig)]| {
        let configured = agents.iter().map(|(name, config)| (id(name), config.clone())).collect();
        AgentRegistry::new(test_factory(dir.path().to_owned()), &configured).expect_err("no tree").to_string()
    };
    let orphan = refused(&[("main", below("gone"))]);
    assert_eq!(orphan, r#"agent "main": there is no agent "gone" to be its parent"#);
    let circle = refused(&[("main", below("other")), ("other", below("main"))]);
    assert_eq!(circle, r#"agent "main": its parents form a circle: main -> other -> main"#);
}
