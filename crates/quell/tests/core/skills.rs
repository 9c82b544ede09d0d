//! The skills of agents in the system prompt (row D9 of docs/design/requirements.md): the same bytes through a whole
//! session, read again by a new session and after a reset.

use std::fs;
use std::os::unix::fs::symlink;

use quell_protocol::web_ui::SessionPatch;
use quell_test_support::channel_origin::channel_origin_with_model;
use quell_test_support::doc_examples::code_blocks;

use crate::prelude::*;

const DOC_PAGE: &str = include_str!("../../../../docs/skills.md");

async fn start_engine() -> TestEngine {
    let test = TestEngine::start_with(ProcessLock::shared().await, |config| {
        add_anthropic_provider(config);
        let main = config.agents.get_mut(&parse_agent_id("main")).unwrap();
        (main.prompt, main.skills) = ("You are careful.".to_owned(), Some("skills".to_owned()));
    })
    .await;
    write_skill(&test.workdir(), "pdf", "Reads PDF files.");
    test
}

fn write_skill(workdir: &Path, name: &str, description: &str) {
    let folder = workdir.join("skills").join(name);
    fs::create_dir_all(&folder).unwrap();
    let text = format!("---\nname: {name}\ndescription: {description}\n---\n\nFirst look, then do.\n");
    fs::write(folder.join("SKILL.md"), text).unwrap();
}

/// The system prompt of the last request, in either dialect.
fn system_prompt(test: &TestEngine) -> String {
    let seen = test.model.recorded_requests();
    let body = &seen.last().unwrap().body;
    let openai = body["messages"][0]["content"].as_str().filter(|_| body["messages"][0]["role"] == "system");
    openai.or(body["system"][0]["text"].as_str()).unwrap_or_else(|| panic!("no system prompt: {body:#}")).to_owned()
}

/// The names of the skills in the last request.
fn told_skills(test: &TestEngine) -> Vec<String> {
    let system = system_prompt(test);
    let lines = system.lines().filter_map(|line| line.strip_prefix("- "));
    lines.map(|line| line.split_once(':').unwrap().0.to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_session_is_told_of_the_skills_and_the_model_can_read_them() {
    let test = start_engine().await;
    test.model.script(ScriptedResponse::tool_call("c1", "read_file", &json!({"path": "skills/pdf/SKILL.md"})));
    test.model.script(ScriptedResponse::text("I know how."));
    let view = test.run_message("s", "read this PDF").await;
    let system = system_prompt(&test);
    assert!(system.starts_with("You are careful.\n\n# Skills\n\n"), "{system}");
    assert!(system.ends_with("\n\n- pdf: Reads PDF files. (skills/pdf/SKILL.md)"), "{system}");
    assert!(messages_as_text(&test.last_messages()).contains("First look, then do."), "the path leads to it");
    let rows = &receipt_of(&view).resources;
    let held = rows.iter().filter(|row| row.kind == ResourceKind::Task && row.label == "skills").count();
    assert_eq!(held, 1, "{rows:#?}");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_skills_are_seen_after_a_reset_and_by_new_sessions() {
    let test = start_engine().await;
    test.run_message("s", "hello").await;
    let before = system_prompt(&test);
    write_skill(&test.workdir(), "words", "Writes Word files.");
    write_skill(&test.workdir(), "pdf", "Something else.");
    test.run_message("s", "hello again").await;
    assert_eq!(system_prompt(&test), before, "byte for byte");
    test.run_message("other", "hello").await;
    assert_eq!(told_skills(&test), ["pdf", "words"], "a new session");
    fs::remove_dir_all(test.workdir().join("skills/pdf")).unwrap();
    test.run_message("s", "and again").await;
    assert_eq!(system_prompt(&test), before, "byte for byte");
    assert!(test.engine.reset_session(&alice(), &parse_session_key("s"), &stop_ask(StopLevel::Gentle)).await.unwrap());
    test.run_message("s", "hello").await;
    assert_eq!(told_skills(&test), ["words"], "after a reset");
    test.run_message("other", "hello").await;
    assert_eq!(told_skills(&test), ["pdf", "words"], "the reset was of another session");
    assert!(
        test.engine.delete_session(&alice(), &parse_session_key("other"), &stop_ask(StopLevel::Gentle)).await.unwrap()
    );
    test.run_message("other", "hello").await;
    assert_eq!(told_skills(&test), ["words"], "its successor");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_model_for_a_message_or_for_the_session_changes_nothing() {
    let test = start_engine().await;
    test.run_message("s", "hello").await;
    let before = system_prompt(&test);
    write_skill(&test.workdir(), "words", "Writes Word files.");
    let routed = channel_origin_with_model("m1", "hello", Some("anthropic/claude"));
    let run = test.send(Submission { channel_origin: Some(routed), ..submission("s", "hello") }).await;
    test.wait_ended(&run).await;
    assert_eq!(test.model.recorded_requests().last().unwrap().body["model"], "claude");
    assert_eq!(system_prompt(&test), before, "a message with another model");
    let patch = SessionPatch { model: Some("anthropic/other".to_owned()), ..SessionPatch::default() };
    test.engine.patch_session(&alice(), &parse_session_key("s"), patch).await.unwrap();
    test.run_message("s", "hello").await;
    assert_eq!(test.model.recorded_requests().last().unwrap().body["model"], "other");
    assert_eq!(system_prompt(&test), before, "a session with another model");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_configured_anew_reads_them_again() {
    let test = start_engine().await;
    test.run_message("s", "hello").await;
    write_skill(&test.workdir(), "words", "Writes Word files.");
    let (providers, mut agents) = (&test.engine.config().providers, test.engine.config().agents.clone());
    test.engine.reload(providers, &agents).unwrap();
    test.run_message("s", "hello").await;
    assert_eq!(told_skills(&test), ["pdf"], "another section of the file has changed");
    agents.get_mut(&parse_agent_id("main")).unwrap().prompt = "You are quick.".to_owned();
    test.engine.reload(providers, &agents).unwrap();
    test.run_message("s", "hello").await;
    assert_eq!(told_skills(&test), ["pdf", "words"]);
    agents.get_mut(&parse_agent_id("main")).unwrap().skills = None;
    test.engine.reload(providers, &agents).unwrap();
    test.run_message("s", "hello").await;
    assert_eq!(system_prompt(&test), "You are quick.");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_skills_and_those_that_lead_out_are_left_out_and_fail_nothing() {
    let test = start_engine().await;
    let (workdir, outside) = (test.workdir(), tempfile::tempdir().unwrap());
    write_skill(outside.path(), "stolen", "From outside.");
    symlink(outside.path().join("skills/stolen"), workdir.join("skills/stolen")).unwrap();
    write_skill(&workdir, "broken", "Use it: always");
    write_skill(&workdir, "Upper", "In capital letters.");
    let view = test.run_message("s", "hello").await;
    assert_eq!((view.verdict, told_skills(&test)), (Some(Verdict::Completed), vec!["pdf".to_owned()]));
    fs::remove_dir_all(workdir.join("skills")).unwrap();
    let view = test.run_message("none", "hello").await;
    assert_eq!((view.verdict, system_prompt(&test).as_str()), (Some(Verdict::Completed), "You are careful."));
    test.close().await;
}

/// A stop while skills are read must not keep an incomplete list for the rest of the session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skills_that_a_stopped_run_read_are_not_cached() {
    let test = start_engine().await;
    for number in 0..50 {
        write_skill(&test.workdir(), &format!("s{number}"), "One of many.");
    }
    // These are looked at first, so that the stop comes in the middle.
    for number in 0..900 {
        fs::write(test.workdir().join(format!("skills/no-skill-{number}")), "").unwrap();
    }
    let run = parse_run_id("stopped");
    // The thread that reads the skills is at work then.
    test.stop_at(Point::Skills, 2, &run);
    test.send(submission_as(&run, "s", "hello")).await;
    test.point_hook.wait_fired().await;
    let view = test.wait_ended(&run).await;
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    let reading: Vec<_> = receipt_of(&view).resources.iter().filter(|row| row.label == "skills").collect();
    assert!(matches!(reading[..], [row] if row.how == "cancelled"), "the reading was not interrupted: {reading:#?}");
    assert_eq!(test.model.request_count(), 0, "the run ended before its first request");
    test.run_message("s", "hello").await;
    assert_eq!(told_skills(&test).len(), 51);
    test.close().await;
}

/// The example of docs/skills.md with the real binary: read, shown as the page says, and found by `quell doctor`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_of_the_page_works() {
    let _process_lock = ProcessLock::shared().await;
    let model = ScriptedModel::start().await;
    let provider = format!("[providers.p]\nkind = \"openai\"\nbase_url = \"{}\"\n", model.base_url());
    let agent = code_blocks(DOC_PAGE, "toml")[0]
        .replace("[agents.main]", "[agents.main]\nmodel = \"p/m\"\nprompt = \"Be brief.\"");
    let home = DaemonHome::new(&format!("{provider}{agent}[server]\nlisten = \"127.0.0.1:0\"\n"));
    let folder = home.work_dir().join("main/skills");
    let skill_dir = folder.join("meeting-notes");
    fs::create_dir_all(&skill_dir).unwrap();
    fs::write(skill_dir.join("SKILL.md"), code_blocks(DOC_PAGE, "markdown")[0]).unwrap();
    let daemon = home.start(quell_exe()).await;
    let ask = async |session: &str| {
        model.script(ScriptedResponse::text("Yes."));
        let sent = daemon.api().post_run(session, &json!({"text": "hello"})).await;
        let run = sent.expect_status(202)["runId"].as_str().unwrap().to_owned();
        assert_eq!(
            daemon.api().run_events(&run, 0).await.read_to_end().await.verdict(),
            "completed",
            "{}",
            daemon.output()
        );
        let seen = model.recorded_requests();
        seen.last().unwrap().messages()[0]["content"].as_str().unwrap().to_owned()
    };
    let expected = format!("Be brief.\n\n{}", code_blocks(DOC_PAGE, "text")[0].trim_end());
    assert_eq!(ask("s").await, expected);
    fs::create_dir_all(folder.join("minutes")).unwrap();
    fs::copy(skill_dir.join("SKILL.md"), folder.join("minutes/SKILL.md")).unwrap();
    assert_eq!(ask("other").await, expected, "a skill in the wrong folder is skipped");
    let warning = "has the name \"meeting-notes\" but is in the folder \"minutes\"; they must be the same";
    assert!(daemon.output().contains("a skill is left out") && daemon.output().contains("but is in the folder"));
    let doctor = run_to_exit(home.command(quell_exe()).args(["doctor", "--config"]).arg(home.config_file()));
    for line in ["✓ ok    skills          agent main: meeting-notes\n", warning] {
        assert!(doctor.out.contains(line) && DOC_PAGE.contains(line), "{line} is not in {doctor:?}");
    }
    let reset = daemon.api().post("/api/sessions/s/reset", &json!({})).await;
    fs::write(skill_dir.join("SKILL.md"), "---\nname: meeting-notes\ndescription: Another.\n---\n").unwrap();
    assert!(reset.status < 300 && ask("s").await.contains("- meeting-notes: Another. ("), "{reset:?}");
    assert!(daemon.stop().await.success(), "{}", daemon.output());
}
