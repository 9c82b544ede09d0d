//! Who is there, who is named to whom, and which configurations make no agent.

mod refit;

use std::path::PathBuf;

use super::*;
use crate::llm::{Models, ProviderConfig, ProviderKind};
use crate::tools::{ToolSettings, Toolbox};

fn id(text: &str) -> AgentId {
    AgentId::parse(text).expect("an agent id")
}

fn materials(work_dir: PathBuf) -> Materials {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let provider = ProviderConfig {
        base_url: Some("http://127.0.0.1:9/v1".to_owned()),
        ..ProviderConfig::new(ProviderKind::Openai)
    };
    Materials {
        models: Models::new(BTreeMap::from([("p".to_owned(), provider)])).expect("a provider"),
        toolbox: Arc::new(Toolbox::new(ToolSettings::default())),
        servers: BTreeSet::from(["files".to_owned()]),
        work_dir,
        home: Some(PathBuf::from("/nowhere")),
    }
}

fn config() -> AgentConfig {
    AgentConfig { model: "p/model".to_owned(), ..AgentConfig::default() }
}

fn society(agents: &[&str]) -> (Society, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let configured = agents.iter().map(|name| (id(name), config())).collect();
    (Society::new(materials(dir.path().to_owned()), &configured).expect("a society"), dir)
}

fn named(society: &Society) -> Vec<String> {
    let main = society.get(&id("main")).expect("main");
    society.delegation(&main).iter().map(|spec| spec.description.clone()).collect()
}

fn below(parent: &str) -> AgentConfig {
    AgentConfig { parent: Some(id(parent)), ..config() }
}

fn built(society: &Society, name: &str, config: AgentConfig) -> Arc<Agent> {
    society.materials().build(&id(name), config).expect("an agent")
}

fn claim(society: &Society, agent: &Agent) -> Result<(), Unwelcome> {
    society.claim(&agent.id, agent.config.parent.as_ref())
}

fn comes(society: &Society, name: &str, config: AgentConfig) {
    let agent = built(society, name, config);
    claim(society, &agent).expect("welcome");
    society.join(agent);
}

fn ids(names: &[&str]) -> BTreeSet<AgentId> {
    names.iter().map(|name| id(name)).collect()
}

/// A picture that came into a relative one was named in a way that only a daemon started in the same place understood.
#[test]
fn a_workdir_is_a_whole_path_however_it_is_named() {
    let (society, dir) = society(&["main"]);
    let here = std::env::current_dir().expect("a directory");
    let steps = here.components().count() - 1;
    let relative: PathBuf =
        std::iter::repeat_n("..", steps).collect::<PathBuf>().join(dir.path().strip_prefix("/").expect("below /"));
    let agent = built(&society, "writer", AgentConfig { workdir: Some(relative.join("desk")), ..config() });
    assert!(agent.workdir.is_absolute() && dir.path().join("desk").is_dir(), "{}", agent.workdir.display());
}

#[test]
fn an_agent_is_named_itself_and_those_below_it_and_no_other() {
    let (society, dir) = society(&["main", "scout"]);
    let before = society.delegation(&society.get(&id("main")).expect("main"));
    comes(&society, "writer", AgentConfig { role: Some("writes".to_owned()), ..below("main") });
    let writer = society.get(&id("writer")).expect("it came");
    assert_eq!(writer.workdir, dir.path().join("writer"));
    assert!(writer.workdir.is_dir());
    assert!(named(&society).iter().all(|text| text.ends_with("to are: main, writer (writes).")));
    let marked = society.mark(&id("writer")).expect("it may go");
    assert!(society.get(&id("writer")).is_some(), "its runs are being stopped");
    society.let_go(&marked);
    assert!(named(&society).iter().all(|text| text.ends_with("to are: main.")));
    assert!(before.iter().all(|spec| spec.description.ends_with("to are: main.")), "a run keeps what it began with");
    assert_eq!(society.roll().keys().map(AgentId::as_str).collect::<Vec<_>>(), ["main", "scout"]);
}

#[test]
fn an_id_is_claimed_once_and_free_again_when_the_claim_is_given_up() {
    let (society, _dir) = society(&["main"]);
    let writer = built(&society, "writer", config());
    assert_eq!(claim(&society, &writer), Ok(()));
    assert_eq!(claim(&society, &writer), Err(Unwelcome::Taken(id("writer"))), "somebody else makes it");
    assert!(society.get(&id("writer")).is_none(), "nobody sees it before it is kept");
    society.disclaim(&id("writer"));
    assert_eq!(claim(&society, &writer), Ok(()));
    society.join(Arc::clone(&writer));
    assert_eq!(claim(&society, &writer), Err(Unwelcome::Taken(id("writer"))));
    assert_eq!(claim(&society, &built(&society, "main", config())), Err(Unwelcome::Taken(id("main"))));
}

#[test]
fn a_parent_is_there_stays_and_is_somebody_else() {
    let (society, _dir) = society(&["main"]);
    let parent = |name: &str, bad| Err(Unwelcome::Parent(id(name), bad));
    let claim = |name: &str, config| claim(&society, &built(&society, name, config));
    assert_eq!(claim("a", below("gone")), parent("a", BadParent::Unknown(id("gone"))));
    assert_eq!(claim("a", below("a")), parent("a", BadParent::Circle(vec![id("a"), id("a")])));
    comes(&society, "a", below("main"));
    comes(&society, "b", below("a"));
    let marked = society.mark(&id("a")).expect("it may go");
    assert_eq!(marked, ids(&["a", "b"]));
    assert_eq!(claim("c", below("b")), parent("c", BadParent::Unknown(id("b"))), "its parent is going");
    assert_eq!(society.mark(&id("b")), Err(Stays::Moving(id("b"))));
    society.retain(&marked);
    assert_eq!(claim("c", below("b")), Ok(()));
    assert_eq!(society.mark(&id("a")), Err(Stays::Moving(id("c"))), "nobody loses a parent while it comes");
}

#[test]
fn what_the_configuration_names_stays() {
    let (society, _dir) = society(&["main"]);
    assert_eq!(society.mark(&id("main")), Err(Stays::Configured(id("main"))));
    assert_eq!(society.mark(&id("nobody")), Err(Stays::Unknown(id("nobody"))));
}

#[test]
fn what_cannot_come_back_is_kept_with_its_reason_and_all_below_it() {
    let (society, _dir) = society(&["main", "named"]);
    let kept = |name: &str, config| Kept { id: id(name), config };
    let gone = AgentConfig { model: "gone/model".to_owned(), ..config() };
    let absent = society.restore(vec![
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
    assert!(reasons["named"].contains("the configuration has one of that id"), "{reasons:?}");
    let there: Vec<String> = society.roll().keys().map(ToString::to_string).collect();
    assert_eq!(there, ["a-child", "main", "named", "z-parent"]);
    let again = built(&society, "y-broken", config());
    assert_eq!(claim(&society, &again), Err(Unwelcome::Lost(id("y-broken"))));
    let marked = society.mark(&id("y-broken")).expect("it may go");
    assert_eq!(marked, ids(&["y-broken", "b-low", "c-lower"]), "nothing is left behind that could never come");
    society.let_go(&marked);
    assert_eq!(claim(&society, &again), Ok(()));
}

#[test]
fn main_is_the_default_else_the_first_one() {
    assert_eq!(society(&["alpha", "main"]).0.default_agent(), id("main"));
    assert_eq!(society(&["beta", "alpha"]).0.default_agent(), id("alpha"));
    let dir = tempfile::tempdir().expect("a directory");
    let none = Society::new(materials(dir.path().to_owned()), &BTreeMap::new());
    assert!(matches!(none, Err(BadSociety::Empty)));
}

#[test]
fn a_configuration_that_makes_no_agent_is_refused_with_its_reason() {
    let (society, dir) = society(&["main"]);
    let file = dir.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let list = |name: &str| vec![name.to_owned()];
    let cases: [(AgentConfig, &str); 5] = [
        (AgentConfig { model: "gone/model".to_owned(), ..config() }, "the providers are: p"),
        (AgentConfig { tools: list("shel"), ..config() }, "shel"),
        (AgentConfig { mcp: Some(list("web")), ..config() }, "its MCP server \"web\" is not configured"),
        (
            AgentConfig { approvals: BTreeMap::from([("nothing".to_owned(), Default::default())]), ..config() },
            "approvals: ",
        ),
        (AgentConfig { workdir: Some(file.join("below")), ..config() }, "cannot be made"),
    ];
    for (config, reason) in cases {
        let bad = society.materials().build(&id("new"), config).expect_err(reason);
        assert!(bad.problem.contains(reason), "{bad}");
        assert_eq!(bad.agent, id("new"));
    }
}

#[test]
fn parents_of_configured_agents_form_a_tree() {
    let dir = tempfile::tempdir().expect("a directory");
    let refused = |agents: &[(&str, AgentConfig)]| {
        let configured = agents.iter().map(|(name, config)| (id(name), config.clone())).collect();
        Society::new(materials(dir.path().to_owned()), &configured).expect_err("no tree").to_string()
    };
    let orphan = refused(&[("main", below("gone"))]);
    assert_eq!(orphan, r#"agent "main": there is no agent "gone" to be its parent"#);
    let circle = refused(&[("main", below("other")), ("other", below("main"))]);
    assert_eq!(circle, r#"agent "main": its parents form a circle: main -> other -> main"#);
}
