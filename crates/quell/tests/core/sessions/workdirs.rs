//! A session with a workdir of its own: who may set it, and what may take its place.

use quell_engine::engine::{Caller, OpenSessionError, OpenSessionOutcome, SubmitOutcome};
use quell_protocol::web_ui::SessionPatch;

use crate::prelude::*;

/// The admin, verified as a person: over the Unix socket, or signed in from there.
fn root_in_person() -> Caller {
    Caller { verified_person: true, ..root() }
}

async fn set_workdir(test: &TestEngine, caller: &Caller, workdir: &Path) -> Result<(), OpenSessionError> {
    let patch = SessionPatch { workdir: Some(workdir.to_str().unwrap().to_owned()), ..SessionPatch::default() };
    test.engine.patch_session(caller, &parse_session_key("s"), patch).await.map(|outcome| {
        assert_ne!(outcome, OpenSessionOutcome::Unchanged);
    })
}

fn assert_refused(set: Result<(), OpenSessionError>, part: &str) {
    let problem = set.unwrap_err().to_string();
    assert!(problem.contains(part), "{part} is missing: {problem}");
}

async fn shell_output(test: &TestEngine, command: &str) -> String {
    test.model.script(shell_call(command)).script(ScriptedResponse::text("done"));
    test.run_message("s", "run it").await;
    messages_as_text(&test.last_messages())
}

#[tokio::test]
async fn a_person_may_set_it_anywhere_and_a_token_only_below() {
    let test = TestEngine::start_shared().await;
    let project = tempfile::TempDir::new().unwrap();
    let below = test.workdir().join("below");
    std::fs::create_dir_all(&below).unwrap();
    for caller in [alice(), root(), Caller { verified_person: true, ..alice() }] {
        assert_refused(set_workdir(&test, &caller, project.path()).await, "does not lie below");
    }
    set_workdir(&test, &alice(), &below).await.unwrap();
    assert!(shell_output(&test, "pwd -P").await.contains("/below"));
    let dots = below.join("../../other");
    std::fs::create_dir_all(test.workdir().join("../other")).unwrap();
    assert_refused(set_workdir(&test, &alice(), &dots).await, "does not lie below");
    test.close().await;
}

#[tokio::test]
async fn commands_and_file_tools_work_in_it_and_are_held_there() {
    let test = TestEngine::start_shared().await;
    let project = tempfile::TempDir::new_in("/var/tmp").unwrap();
    let place = project.path().canonicalize().unwrap();
    set_workdir(&test, &root_in_person(), &place).await.unwrap();
    let write = json!({"path": "a.txt", "content": "here"});
    test.model.script(ScriptedResponse::tool_call("c1", "write_file", &write)).script(ScriptedResponse::text("done"));
    let outcome = test.engine.submit(&root_in_person(), submission("s", "write it")).await.unwrap();
    let SubmitOutcome::Accepted(answer) = outcome else { panic!("{outcome:?}") };
    test.wait_ended(&answer.run_id).await;
    assert_eq!(std::fs::read_to_string(place.join("a.txt")).unwrap(), "here");
    let row = test.engine.find_session(&parse_session_key("s")).await.unwrap().unwrap();
    assert_eq!(row.workdir.as_deref(), place.to_str());
    test.close().await;
}

#[tokio::test]
async fn what_is_no_directory_or_is_protected_is_refused() {
    let test = TestEngine::start_shared().await;
    let file = test.workdir().join("file");
    std::fs::create_dir_all(test.workdir()).unwrap();
    std::fs::write(&file, "").unwrap();
    let person = root_in_person();
    assert_refused(set_workdir(&test, &person, Path::new("here")).await, "absolute");
    assert_refused(set_workdir(&test, &person, Path::new("/no/such/place")).await, "/no/such/place");
    assert_refused(set_workdir(&test, &person, &file).await, "no directory");
    let data = test.engine.config().data_dir.clone();
    assert_refused(set_workdir(&test, &person, &data).await, "keys");
    assert_refused(set_workdir(&test, &person, Path::new("/")).await, "holds");
    test.close().await;
}

/// An agent that may write the directory above could lead the sandbox of another session elsewhere.
#[tokio::test]
async fn a_link_in_its_place_fails_the_next_run() {
    let test = TestEngine::start_shared().await;
    let below = test.workdir().join("below");
    std::fs::create_dir_all(&below).unwrap();
    set_workdir(&test, &alice(), &below).await.unwrap();
    let elsewhere = tempfile::TempDir::new().unwrap();
    std::fs::remove_dir(&below).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), &below).unwrap();
    let view = test.run_message("s", "run it").await;
    let Some(Verdict::Failed { code, message }) = view.verdict else { panic!("{view:#?}") };
    assert_eq!(code, "agent_configuration_error");
    assert!(message.contains("leads to"), "{message}");
    test.close().await;
}

#[tokio::test]
async fn another_agent_needs_the_workdir_below_its_own() {
    let test = TestEngine::start_with(crate::test_engine::ProcessLock::shared().await, |config| {
        let other = config.agents[&parse_agent_id("main")].clone();
        config.agents.insert(parse_agent_id("other"), other);
    })
    .await;
    let below = test.workdir().join("below");
    std::fs::create_dir_all(&below).unwrap();
    set_workdir(&test, &alice(), &below).await.unwrap();
    let patch = SessionPatch { agent: Some(parse_agent_id("other")), ..SessionPatch::default() };
    let changed = test.engine.patch_session(&alice(), &parse_session_key("s"), patch).await;
    assert_refused(changed.map(|_| ()), "does not lie below");
    test.close().await;
}
