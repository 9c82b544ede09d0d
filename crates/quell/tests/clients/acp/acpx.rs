//! acpx, unmodified: a client of the protocol for the command line.

use std::process::Stdio;

use quell_test_support::npm_packages;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;

use super::client::packages_and_node;
use super::*;

/// Longest time of one command, which starts a Node. It decides only how late a failing test fails.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(180);

async fn acpx(fixture: &AcpFixture, args: &[&str]) -> Command {
    let (folder, node) = packages_and_node().await;
    let mut command = npm_packages::program_command(node.to_str().unwrap());
    command.arg(folder.join("node_modules/acpx/dist/cli.js")).args(["--cwd", fixture.project()]);
    command.args(["--agent", &format!("{} acp", quell_exe().display())]).args(args);
    let home = fixture.daemon.home().command(quell_exe());
    let variables = home.get_envs().filter_map(|(name, value)| Some((name, value?)));
    command.envs(variables).env("HOME", fixture.project()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acpx_prompts_and_sees_edits_and_the_answer() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let write = ScriptedResponse::tool_call("c1", "write_file", &json!({"path": "a.txt", "content": "two\n"}));
    fixture.model.script(write).script(ScriptedResponse::text("Written."));
    let done = acpx(&fixture, &["--approve-all", "exec", "write it"]).await.output();
    let done = tokio::time::timeout(CLIENT_TIMEOUT, done).await.unwrap().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{out}\n{err}");
    for part in ["Write a.txt", "Written.", "end_turn"] {
        assert!(out.contains(part), "{part} is missing: {out}\n{err}");
    }
    assert_eq!(std::fs::read_to_string(fixture.project.path().join("a.txt")).unwrap(), "two\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_in_acpx_stops_the_run() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mark = ProcessMarker::new();
    fixture.model.script(shell_call(commands::setsid_child(&mark)));
    let running = acpx(&fixture, &["--approve-all", "exec", "run it"]).await.spawn().unwrap();
    mark.wait_for_count(2).await;
    let pid = Pid::from_raw(i32::try_from(running.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let done = tokio::time::timeout(CLIENT_TIMEOUT, running.wait_with_output()).await;
    let done = done.expect("acpx did not end").unwrap();
    mark.wait_gone(WAIT_TIMEOUT).await;
    let out = String::from_utf8_lossy(&done.stdout);
    assert!(out.contains("cancelled"), "{out}");
    let runs = fixture.daemon.api().get("/api/runs").await.expect_status(200);
    let run = fixture.ended_run(runs["items"][0]["sessionKey"].as_str().unwrap()).await;
    assert_fields(&run, &json!({"verdict": {"kind": "aborted", "reason": "user"}, "receipt": {"leftovers": []}}));
    fixture.model.wait_for_connections(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acpx_denies_a_call_that_asks() {
    let Some(fixture) = AcpFixture::start("approvals = { shell = \"ask\" }\n").await else { return };
    let mark = ProcessMarker::new();
    fixture.model.script(shell_call(commands::setsid_child(&mark))).script(ScriptedResponse::text("as you like"));
    let done = acpx(&fixture, &["--deny-all", "exec", "run it"]).await.output();
    let done = tokio::time::timeout(CLIENT_TIMEOUT, done).await.unwrap().unwrap();
    let out = String::from_utf8_lossy(&done.stdout);
    assert!(out.contains("as you like"), "{out}{}", String::from_utf8_lossy(&done.stderr));
    assert!(mark.marked_processes().is_empty());
}
