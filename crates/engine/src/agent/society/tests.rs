//! Who is there, who is named to whom, and which configurations make no agent.

use super::*;
use crate::llm::{ProviderConfig, ProviderKind};
use crate::tools::ToolSettings;

fn id(text: &str) -> AgentId {
    AgentId::parse(text).expect("an agent id")
}

fn materials(data_dir: PathBuf) -> Materials {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let provider = ProviderConfig {
        base_url: Some("http://127.0.0.1:9/v1".to_owned()),
        ..ProviderConfig::new(ProviderKind::Openai)
    };
    Materials {
        models: Models::new(BTreeMap::from([("p".to_owned(), provider)])).expect("a provider"),
        toolbox: Arc::new(Toolbox::new(ToolSettings::default())),
        servers: BTreeSet::from(["files".to_owned()]),
        data_dir,
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
    society.delegation().iter().map(|spec| spec.description.clone()).collect()
}

#[test]
fn every_agent_that_exists_is_named_to_all_and_no_other() {
    let (society, dir) = society(&["main", "scout"]);
    let before = society.delegation();
    let writer = AgentConfig { role: Some("writes".to_owned()), ..config() };
    let writer = society.materials().build(&id("writer"), writer).expect("an agent");
    assert_eq!(writer.workdir, dir.path().join("work/writer"));
    assert!(writer.workdir.is_dir());
    assert!(society.create(Arc::clone(&writer)));
    assert!(!society.create(writer), "one of that id is there");
    assert!(named(&society).iter().all(|text| text.ends_with("The agents are: main, scout, writer (writes).")));
    society.remove(&BTreeSet::from([id("scout")]));
    assert!(named(&society).iter().all(|text| text.ends_with("The agents are: main, writer (writes).")));
    assert!(before.iter().all(|spec| spec.description.ends_with("main, scout.")), "a run keeps what it began with");
    assert!(society.get(&id("scout")).is_none() && society.get(&id("writer")).is_some());
    assert_eq!(society.roll().keys().map(AgentId::as_str).collect::<Vec<_>>(), ["main", "writer"]);
}

#[test]
fn main_is_the_default_else_the_first_one() {
    assert_eq!(society(&["alpha", "main"]).0.default_agent(), &id("main"));
    assert_eq!(society(&["beta", "alpha"]).0.default_agent(), &id("alpha"));
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
    let below = |parent: &str| AgentConfig { parent: Some(id(parent)), ..config() };
    let refused = |agents: &[(&str, AgentConfig)]| {
        let configured = agents.iter().map(|(name, config)| (id(name), config.clone())).collect();
        Society::new(materials(dir.path().to_owned()), &configured).expect_err("no tree").to_string()
    };
    let orphan = refused(&[("main", below("gone"))]);
    assert_eq!(orphan, r#"agent "main": there is no agent "gone" to be its parent"#);
    let circle = refused(&[("main", below("other")), ("other", below("main"))]);
    assert_eq!(circle, r#"agent "main": its parents form a circle: main -> other -> main"#);
}
