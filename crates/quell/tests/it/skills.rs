//! The skills of agents (row D9): told in the system prompt, the same bytes through a whole session, read again by a new one and
//! after a reset.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use quell_engine::dispatch::Submission;
use quell_engine::llm::{ProviderConfig, ProviderKind};
use quell_engine::scope::Point;
use quell_kernel::Push;
use quell_protocol::page::SessionPatch;
use quell_protocol::{ResourceKind, Verdict};
use quell_testkit::Behaviour;
use quell_testkit::ScriptedModel;
use quell_testkit::daemon::Home;
use serde_json::json;

use crate::cli::{exe, run};
use crate::examples::blocks;
use crate::harness::{Claim, House, agent, alice, ask, flat, key, message, of_run, receipt};
use crate::sweep::chat::errand_for;

const PAGE: &str = include_str!("../../../../docs/skills.md");

async fn house() -> House {
    let house = House::with(Claim::shared().await, |config| {
        let base_url = config.providers["scripted"].base_url.clone();
        let provider = ProviderConfig { base_url, ..ProviderConfig::new(ProviderKind::Anthropic) };
        let provider = ProviderConfig { api_key: Some("sk-ant".to_owned().into()), ..provider };
        config.providers.insert("anthropic".to_owned(), provider);
        let main = config.agents.get_mut(&agent("main")).unwrap();
        (main.prompt, main.skills) = ("You are careful.".to_owned(), Some("skills".to_owned()));
    })
    .await;
    put(&house.workdir(), "pdf", "Reads PDF files.");
    house
}

fn put(workdir: &Path, name: &str, description: &str) {
    let folder = workdir.join("skills").join(name);
    fs::create_dir_all(&folder).unwrap();
    let text = format!("---\nname: {name}\ndescription: {description}\n---\n\nFirst look, then do.\n");
    fs::write(folder.join("SKILL.md"), text).unwrap();
}

/// The system prompt of the last request, in either dialect.
fn system(house: &House) -> String {
    let seen = house.model.seen();
    let body = &seen.last().unwrap().body;
    let openai = body["messages"][0]["content"].as_str().filter(|_| body["messages"][0]["role"] == "system");
    openai.or(body["system"][0]["text"].as_str()).unwrap_or_else(|| panic!("no system prompt: {body:#}")).to_owned()
}

/// The names of the skills that the last request told of.
fn told(house: &House) -> Vec<String> {
    let system = system(house);
    let lines = system.lines().filter_map(|line| line.strip_prefix("- "));
    lines.map(|line| line.split_once(':').unwrap().0.to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_session_is_told_of_the_skills_and_the_model_can_read_them() {
    let house = house().await;
    house.model.script(Behaviour::tool_call("c1", "read_file", &json!({"path": "skills/pdf/SKILL.md"})));
    house.model.script(Behaviour::text("I know how."));
    let view = house.ask("s", "read this PDF").await;
    let system = system(&house);
    assert!(system.starts_with("You are careful.\n\n# Skills\n\n"), "{system}");
    assert!(system.ends_with("\n\n- pdf: Reads PDF files. (skills/pdf/SKILL.md)"), "{system}");
    assert!(flat(&house.last_messages()).contains("First look, then do."), "the path leads to it");
    let rows = &receipt(&view).resources;
    let held = rows.iter().filter(|row| row.kind == ResourceKind::Task && row.label == "skills").count();
    assert_eq!(held, 1, "{rows:#?}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changes_is_seen_after_a_reset_and_by_new_sessions_alone() {
    let house = house().await;
    house.ask("s", "hello").await;
    let before = system(&house);
    put(&house.workdir(), "words", "Writes Word files.");
    put(&house.workdir(), "pdf", "Something else.");
    house.ask("s", "hello again").await;
    assert_eq!(system(&house), before, "byte for byte");
    house.ask("other", "hello").await;
    assert_eq!(told(&house), ["pdf", "words"], "a new session");
    fs::remove_dir_all(house.workdir().join("skills/pdf")).unwrap();
    house.ask("s", "and again").await;
    assert_eq!(system(&house), before, "byte for byte");
    assert!(house.engine.reset_session(&alice(), &key("s"), &ask(Push::Gentle)).await.unwrap());
    house.ask("s", "hello").await;
    assert_eq!(told(&house), ["words"], "after a reset");
    house.ask("other", "hello").await;
    assert_eq!(told(&house), ["pdf", "words"], "the reset was of another session");
    assert!(house.engine.delete_session(&alice(), &key("other"), &ask(Push::Gentle)).await.unwrap());
    house.ask("other", "hello").await;
    assert_eq!(told(&house), ["words"], "its successor");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_model_for_a_message_or_for_the_session_changes_nothing() {
    let house = house().await;
    house.ask("s", "hello").await;
    let before = system(&house);
    put(&house.workdir(), "words", "Writes Word files.");
    let routed = errand_for("m1", "hello", Some("anthropic/claude"));
    let run = house.send(Submission { errand: Some(routed), ..message("s", "hello") }).await;
    house.ended(&run).await;
    assert_eq!(house.model.seen().last().unwrap().body["model"], "claude");
    assert_eq!(system(&house), before, "a message with another model");
    let patch = SessionPatch { model: Some("anthropic/other".to_owned()), agent: None };
    house.engine.patch_session(&alice(), &key("s"), patch).await.unwrap();
    house.ask("s", "hello").await;
    assert_eq!(house.model.seen().last().unwrap().body["model"], "other");
    assert_eq!(system(&house), before, "a session with another model");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_configured_anew_reads_them_again() {
    let house = house().await;
    house.ask("s", "hello").await;
    put(&house.workdir(), "words", "Writes Word files.");
    let (providers, mut agents) = (&house.engine.config().providers, house.engine.config().agents.clone());
    house.engine.reload(providers, &agents).unwrap();
    house.ask("s", "hello").await;
    assert_eq!(told(&house), ["pdf"], "another section of the file has changed");
    agents.get_mut(&agent("main")).unwrap().prompt = "You are quick.".to_owned();
    house.engine.reload(providers, &agents).unwrap();
    house.ask("s", "hello").await;
    assert_eq!(told(&house), ["pdf", "words"]);
    agents.get_mut(&agent("main")).unwrap().skills = None;
    house.engine.reload(providers, &agents).unwrap();
    house.ask("s", "hello").await;
    assert_eq!(system(&house), "You are quick.");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_skills_and_those_that_lead_out_are_left_out_and_fail_nothing() {
    let house = house().await;
    let (workdir, outside) = (house.workdir(), tempfile::tempdir().unwrap());
    put(outside.path(), "stolen", "From outside.");
    symlink(outside.path().join("skills/stolen"), workdir.join("skills/stolen")).unwrap();
    put(&workdir, "broken", "Use it: always");
    put(&workdir, "Upper", "In capital letters.");
    let view = house.ask("s", "hello").await;
    assert_eq!((view.verdict, told(&house)), (Some(Verdict::Completed), vec!["pdf".to_owned()]));
    fs::remove_dir_all(workdir.join("skills")).unwrap();
    let view = house.ask("none", "hello").await;
    assert_eq!((view.verdict, system(&house).as_str()), (Some(Verdict::Completed), "You are careful."));
    house.close().await;
}

/// What was read by then could be a part of it, and would be told for the rest of the session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_stopped_run_had_read_is_not_kept() {
    let house = house().await;
    for number in 0..50 {
        put(&house.workdir(), &format!("s{number}"), "One of many.");
    }
    let (engine, run) = (house.engine.clone(), crate::harness::run_id("stopped"));
    let stopped = run.clone();
    // Its thread is at work then.
    house.trap.arm(Point::Skills, 2, move || drop(engine.stop(&alice(), &of_run(&stopped), &ask(Push::Gentle))));
    house.send(crate::harness::message_as(&run, "s", "hello")).await;
    house.trap.sprung().await;
    let view = house.ended(&run).await;
    assert!(matches!(view.verdict, Some(Verdict::Aborted { .. })), "{view:#?}");
    assert_eq!(house.model.request_count(), 0, "it had ended before");
    house.ask("s", "hello").await;
    assert_eq!(told(&house).len(), 51);
    house.close().await;
}

/// With the real binary: the example of the page is read, told as the page says, and found by the doctor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_of_the_page_works() {
    let _claim = Claim::shared().await;
    let model = ScriptedModel::start().await;
    let provider = format!("[providers.p]\nkind = \"openai\"\nbase_url = \"{}\"\n", model.base_url());
    let agent =
        blocks(PAGE, "toml")[0].replace("[agents.main]", "[agents.main]\nmodel = \"p/m\"\nprompt = \"Be brief.\"");
    let home = Home::new(&format!("{provider}{agent}[server]\nlisten = \"127.0.0.1:0\"\n"));
    let folder = home.work().join("main/skills");
    let place = folder.join("meeting-notes");
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("SKILL.md"), blocks(PAGE, "markdown")[0]).unwrap();
    let daemon = home.start(exe()).await;
    let ask = async |session: &str| {
        model.script(Behaviour::text("Yes."));
        let sent = daemon.http().post(&format!("/api/sessions/{session}/runs"), &json!({"text": "hello"})).await;
        let run = sent.expect_status(202)["runId"].as_str().unwrap().to_owned();
        assert_eq!(daemon.http().events(&run, 0).await.to_end().await.verdict(), "completed", "{}", daemon.output());
        let seen = model.seen();
        seen.last().unwrap().messages()[0]["content"].as_str().unwrap().to_owned()
    };
    let expected = format!("Be brief.\n\n{}", blocks(PAGE, "text")[0].trim_end());
    assert_eq!(ask("s").await, expected);
    fs::create_dir_all(folder.join("minutes")).unwrap();
    fs::copy(place.join("SKILL.md"), folder.join("minutes/SKILL.md")).unwrap();
    assert_eq!(ask("other").await, expected, "one in the wrong folder is left out");
    let warning = "has the name \"meeting-notes\" and stands in the folder \"minutes\"; they have to be the same";
    assert!(daemon.output().contains("a skill is left out") && daemon.output().contains("stands in the folder"));
    let doctor = run(home.command(exe()).args(["doctor", "--config"]).arg(home.config()));
    for line in ["✓ ok    skills          agent main: meeting-notes\n", warning] {
        assert!(doctor.out.contains(line) && PAGE.contains(line), "{line} is not in {doctor:?}");
    }
    let reset = daemon.http().post("/api/sessions/s/reset", &json!({})).await;
    fs::write(place.join("SKILL.md"), "---\nname: meeting-notes\ndescription: Another.\n---\n").unwrap();
    assert!(reset.status < 300 && ask("s").await.contains("- meeting-notes: Another. ("), "{reset:?}");
    assert!(daemon.stop().await.success(), "{}", daemon.output());
}
