//! The limit of open files: the daemon raises its own, and what it starts has the one that the daemon was started with.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use quell_testkit::daemon::Home;
use quell_testkit::model::Behaviour;
use quell_testkit::{ScriptedModel, leaks};
use rstest::rstest;
use serde_json::{Value, json};

use crate::cli::exe;
use crate::harness::PATIENCE;

/// A limit that no machine has by itself.
const OWN: &str = "777";

async fn tells(file: &Path) -> String {
    let told = file.to_owned();
    // A line is there when it ends.
    let whole = move || match fs::read_to_string(&told) {
        Ok(text) if text.ends_with('\n') => Ok(()),
        found => Err(format!("{}: {found:?}", told.display())),
    };
    leaks::settled(PATIENCE, whole).await;
    fs::read_to_string(file).unwrap().trim().to_owned()
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_started_has_the_limit_that_the_daemon_was_started_with(#[values("auto", "none")] isolate: &str) {
    let model = ScriptedModel::start().await;
    let home = Home::new("");
    let place = |name: &str| home.folder().join(name);
    let told = |name: &str| format!("ulimit -Sn > {}", place(name).display());
    let (hook, server): (Value, Value) = (json!(told("hook")), json!(format!("{}; cat", told("server"))));
    let config = format!(
        "[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\n[hooks]\non_start = {hook}\n\
         [mcp.test]\ncommand = \"sh\"\nargs = [\"-c\", {server}]\n\
         [agents.main]\nmodel = \"scripted/m\"\nmcp = []\nisolate = \"{isolate}\"\n\
         [agents.other]\nmodel = \"scripted/m\"\nmcp = [\"test\"]\n",
        model.base_url()
    );
    fs::write(home.config(), config).unwrap();
    let wrapper = place("wrapper");
    fs::write(&wrapper, format!("#!/bin/sh\nulimit -Sn {OWN}; exec '{}' \"$@\"\n", exe().display())).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    let daemon = home.start(&wrapper).await;
    let own = fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
    let own = own.lines().find(|line| line.starts_with("Max open files")).unwrap().to_owned();
    assert!(!own.contains(" 777 "), "the daemon did not raise its own, so this test shows nothing: {own}");

    assert_eq!(tells(&place("hook")).await, OWN);
    model.script(Behaviour::tool_call("c1", "shell", &json!({"command": told("shell")})));
    let behind = json!({"command": told("background"), "background": true});
    model.script(Behaviour::tool_call("c2", "shell", &behind));
    model.script(Behaviour::text("Seen."));
    let sent = daemon.http().post("/api/sessions/s/runs", &json!({"text": "go"})).await;
    assert_eq!(sent.status, 202, "{sent:?}");
    assert_eq!(tells(&place("shell")).await, OWN);
    assert_eq!(tells(&place("background")).await, OWN);
    let sent = daemon.http().post("/api/sessions/t/runs", &json!({"text": "go", "agent": "other"})).await;
    assert_eq!(sent.status, 202, "{sent:?}");
    assert_eq!(tells(&place("server")).await, OWN);
    assert!(daemon.stop().await.success(), "{}", daemon.output());
}
