//! Where Quell's own files and those of agents may lie, and what a changed configuration may not do.

use std::fs;
use std::process::{Command, Stdio};

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::{Daemon, Home};
use quell_testkit::model::Behaviour;
use serde_json::json;
use tokio::time::Instant;

use super::{over, provider, send};
use crate::cli::exe;
use crate::harness::{Claim, PATIENCE};

/// What a start says that is refused. One that is not refused is ended, and fails the test.
fn refusal(command: &mut Command) -> String {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = std::time::Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > PATIENCE / 3 {
            child.kill().unwrap();
            panic!("it was started all the same: {:?}", child.wait_with_output().unwrap());
        }
        // A process that ends has no event that a child of a test could wait for with a limit.
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn serve(home: &Home) -> Command {
    let mut command = home.command(exe());
    command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(home.config());
    command
}

#[test]
fn a_workdir_that_holds_the_configuration_or_data_is_refused() {
    let home = Home::new("");
    let folder = home.config().parent().unwrap().to_owned();
    std::os::unix::fs::symlink(home.data(), folder.join("linked")).unwrap();
    for (workdir, says) in [
        (folder.clone(), "choose a directory that does not"),
        (home.data(), "keeps its keys and its database"),
        (home.data().join("work/main"), "keeps its keys and its database"),
        (folder.join("linked/new"), "keeps its keys and its database"),
    ] {
        fs::write(home.config(), format!("[agents.main]\nworkdir = {:?}\n", workdir.display().to_string())).unwrap();
        let said = refusal(&mut serve(&home));
        assert!(said.contains("agents.main.workdir") && said.contains(says), "{}: {said}", workdir.display());
    }
    // The configuration alone, beside the data.
    let inner = folder.join("inner");
    fs::create_dir(&inner).unwrap();
    let file = inner.join("quell.toml");
    fs::write(&file, format!("[agents.main]\nworkdir = {:?}\n", inner.display().to_string())).unwrap();
    let mut command = home.command(exe());
    let said = refusal(command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(&file));
    assert!(said.contains("one with which an agent could change what it may do"), "{said}");
}

/// An agent wrote it, and its `on_start` ran at the next start.
#[tokio::test(flavor = "multi_thread")]
async fn a_planted_quell_toml_is_not_read_and_is_named() {
    let _claim = Claim::shared().await;
    let home = Home::new("");
    let proof = home.data().with_file_name("proof");
    fs::write(home.config(), format!("[hooks]\non_start = \"touch {}\"\n", proof.display())).unwrap();
    let shown = crate::cli::run(home.command(exe()).args(["config", "show"]).env_remove("QUELL_CONFIG"));
    assert!(shown.code == 0 && !shown.out.contains("on_start = \"touch"), "{shown:?}");
    let daemon = home.clone().env("QUELL_CONFIG", "").start_without_a_name(exe()).await;
    assert!(daemon.output().contains("is not read, because nobody named it"), "{}", daemon.output());
    assert!(daemon.stop().await.success());
    assert!(!proof.exists(), "a planted hook ran");
}

/// The model writes a configuration of its own and reads the key: with free file tools, by a path and by a hard link.
#[tokio::test(flavor = "multi_thread")]
async fn file_tools_leave_the_configuration_and_data_alone() {
    let (_claim, model) = (Claim::shared().await, ScriptedModel::start().await);
    let config = format!("{}[tools]\nunconfined = true\n[agents.main]\nmodel = \"scripted/m\"\n", provider(&model));
    let daemon = Daemon::start(exe(), &config).await;
    let home = daemon.home();
    let linked = home.work().join("main/linked");
    fs::hard_link(home.data().join("token"), &linked).unwrap();
    let (file, token) = (home.config().display().to_string(), home.data().join("token").display().to_string());
    let calls = [
        ("write_file", json!({"path": file, "content": "[hooks]\non_start = \"true\"\n"})),
        ("edit_file", json!({"path": file, "old": "max_retries = 0", "new": "max_retries = 1"})),
        ("read_file", json!({"path": file})),
        ("read_file", json!({"path": token})),
        ("read_file", json!({"path": "linked"})),
        ("write_file", json!({"path": home.data().join("new").display().to_string(), "content": "x"})),
        ("list_files", json!({"path": home.data().display().to_string()})),
        ("search_files", json!({"pattern": ".", "path": home.data().parent().unwrap().display().to_string()})),
    ];
    for (tool, arguments) in &calls {
        model.script(Behaviour::tool_call("c1", *tool, arguments)).script(Behaviour::text("Done."));
        let run = send(&daemon, "main", "go").await;
        over(&daemon, &run).await;
        let told = model.seen().last().unwrap().body["messages"].as_array().unwrap().last().unwrap().to_string();
        let is_refused = told.contains("Quell's own configuration or data");
        assert!(is_refused || *tool == "search_files", "{tool} {arguments}: {told}");
        assert!(!told.contains(daemon.token()), "{tool}: {told}");
    }
    assert_eq!(fs::read_to_string(home.config()).unwrap(), config, "the configuration is as it was");
    assert!(!home.data().join("new").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_never_sends_a_key_to_another_address() {
    let claim = Claim::shared().await;
    let (old, new) = (ScriptedModel::start().await, ScriptedModel::start().await);
    old.by_prompt(|_, _| Behaviour::text("from the old one"));
    let text = |model: &ScriptedModel, more: &str| {
        provider(model).replace("max_retries", &format!("{more}max_retries"))
            + "[agents.main]\nmodel = \"scripted/m\"\n"
    };
    let key = "api_key_env = \"RIGHTS_KEY\"\n";
    let home = Home::new(&text(&old, key)).env("RIGHTS_KEY", "sk-secret");
    let daemon = home.start(exe()).await;
    for moved in [
        text(&new, key),
        text(&new, key).replace("scripted", "renamed"),
        format!(
            "{}{}",
            text(&old, key),
            format_args!("[providers.more]\nkind = \"openai\"\nbase_url = \"{}\"\n{key}", new.base_url())
        ),
    ] {
        let told = daemon.output().matches("the configuration file is not taken").count();
        fs::write(home.config(), &moved).unwrap();
        let begun = Instant::now();
        while daemon.output().matches("the configuration file is not taken").count() == told {
            assert!(
                begun.elapsed() < PATIENCE && !daemon.output().contains("configuration reloaded"),
                "{}",
                daemon.output()
            );
            daemon.http().get("/readyz").await;
        }
        let run = send(&daemon, "main", "hello").await;
        assert_eq!(over(&daemon, &run).await["output"], "from the old one");
    }
    assert!(daemon.output().contains("start the daemon again"), "{}", daemon.output());
    assert_eq!(new.request_count(), 0);
    // A start is a person's.
    assert!(daemon.stop().await.success());
    fs::write(home.config(), text(&new, key)).unwrap();
    new.by_prompt(|_, _| Behaviour::text("from the new one"));
    let daemon = home.start(exe()).await;
    let run = send(&daemon, "main", "hello").await;
    assert_eq!(over(&daemon, &run).await["output"], "from the new one");
    drop(claim);
}

#[tokio::test(flavor = "multi_thread")]
async fn default_workdirs_are_beside_the_data_and_a_tilde_is_home() {
    let (_claim, model) = (Claim::shared().await, ScriptedModel::start().await);
    let agents = "[agents.main]\nmodel = \"scripted/m\"\n[agents.own]\nmodel = \"scripted/m\"\nworkdir = \"~/own\"\n";
    let home = Home::new(&(provider(&model) + agents));
    let folder = home.data().parent().unwrap().to_owned();
    fs::create_dir_all(home.data().join("work/main")).unwrap();
    fs::write(home.data().join("work/main/notes"), "kept").unwrap();
    let daemon = home.clone().env("HOME", &folder.display().to_string()).start(exe()).await;
    assert!(home.work().join("main").is_dir() && folder.join("own").is_dir());
    assert!(!folder.join("~").exists());
    let said = daemon.output();
    assert!(said.contains("files of an agent are in the data directory") && said.contains("data/work/main"), "{said}");
    assert_eq!(fs::read_to_string(home.data().join("work/main/notes")).unwrap(), "kept");
    // Made at run time, an agent keeps the same border.
    let body = json!({"id": "late", "model": "scripted/m", "workdir": home.data().join("x").display().to_string()});
    let refused = daemon.http().post("/api/agents", &body).await;
    assert_eq!(refused.status, 400, "{:#}", refused.body);
    assert!(!home.data().join("x").exists());
    let body = json!({"id": "late", "model": "scripted/m", "workdir": "~/late"});
    let _ = daemon.http().post("/api/agents", &body).await.expect_status(201);
    assert!(folder.join("late").is_dir());
    let elsewhere = folder.join("elsewhere");
    assert!(daemon.stop().await.success());
    let _daemon = home.clone().env("QUELL_WORK", &elsewhere.display().to_string()).start(exe()).await;
    assert!(elsewhere.join("main").is_dir());
}
