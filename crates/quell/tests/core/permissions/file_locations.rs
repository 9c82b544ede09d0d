//! Where the files of Quell and of agents may lie, and what a reload may not change.

use std::fs;
use std::process::{Command, Stdio};

use super::*;

/// The error text of a start that must be refused. A daemon that starts all the same is killed, and the test fails.
async fn expect_start_refused(command: Command) -> String {
    let mut command = tokio::process::Command::from(command);
    let ended = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(WAIT_TIMEOUT / 3, ended).await.expect("the daemon started").unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn serve_command(home: &DaemonHome, config: &Path) -> Command {
    let mut command = home.command(quell_exe());
    command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(config);
    command
}

#[tokio::test]
async fn a_workdir_that_holds_the_configuration_or_data_is_refused() {
    let home = DaemonHome::new("");
    let folder = home.config_file().parent().unwrap().to_owned();
    std::os::unix::fs::symlink(home.data_dir(), folder.join("linked")).unwrap();
    for (workdir, says) in [
        (folder.clone(), "choose a directory that does not"),
        (home.data_dir(), "keeps its keys and its database"),
        (home.data_dir().join("work/main"), "keeps its keys and its database"),
        (folder.join("linked/new"), "keeps its keys and its database"),
    ] {
        fs::write(home.config_file(), format!("[agents.main]\nworkdir = {workdir:?}\n")).unwrap();
        let error = expect_start_refused(serve_command(&home, &home.config_file())).await;
        assert!(error.contains("agents.main.workdir") && error.contains(says), "{}: {error}", workdir.display());
    }
    // Only the configuration, with the data elsewhere.
    let inner = folder.join("inner");
    fs::create_dir(&inner).unwrap();
    let file = inner.join("quell.toml");
    fs::write(&file, format!("[agents.main]\nworkdir = {inner:?}\n")).unwrap();
    let error = expect_start_refused(serve_command(&home, &file)).await;
    assert!(error.contains("one with which an agent could change what it may do"), "{error}");
}

/// A `quell.toml` that an agent wrote into its workdir must not be read at the next start, or its `on_start` hook would
/// run.
#[tokio::test(flavor = "multi_thread")]
async fn a_planted_quell_toml_is_not_read_and_is_named() {
    let _process_lock = ProcessLock::shared().await;
    let home = DaemonHome::new("");
    let proof = home.data_dir().with_file_name("proof");
    fs::write(home.config_file(), format!("[hooks]\non_start = \"touch {}\"\n", proof.display())).unwrap();
    let shown = run_to_exit(home.command(quell_exe()).args(["config", "show"]).env_remove("QUELL_CONFIG"));
    assert!(shown.code == 0 && !shown.out.contains("on_start = \"touch"), "{shown:?}");
    let daemon = home.clone().with_env("QUELL_CONFIG", "").start_without_config_flag(quell_exe()).await;
    assert!(daemon.output().contains("is not read, because nobody named it"), "{}", daemon.output());
    assert!(daemon.stop().await.success());
    assert!(!proof.exists(), "a planted hook ran");
}

/// The model tries to write a configuration and to read the token with unconfined file tools, by path and by hard link.
#[tokio::test(flavor = "multi_thread")]
async fn file_tools_leave_the_configuration_and_data_alone() {
    let (_process_lock, model) = (ProcessLock::shared().await, ScriptedModel::start().await);
    let config =
        format!("{}[tools]\nunconfined = true\n[agents.main]\nmodel = \"scripted/m\"\n", provider_toml(&model));
    let daemon = TestDaemon::start(quell_exe(), &config).await;
    let home = daemon.home();
    let linked = home.work_dir().join("main/linked");
    fs::hard_link(home.data_dir().join("token"), &linked).unwrap();
    let (file, token) = (home.config_file().display().to_string(), home.data_dir().join("token").display().to_string());
    let calls = [
        ("write_file", json!({"path": file, "content": "[hooks]\non_start = \"true\"\n"})),
        ("edit_file", json!({"path": file, "old": "max_retries = 0", "new": "max_retries = 1"})),
        ("read_file", json!({"path": file})),
        ("read_file", json!({"path": token})),
        ("read_file", json!({"path": "linked"})),
        ("write_file", json!({"path": home.data_dir().join("new").display().to_string(), "content": "x"})),
        ("list_files", json!({"path": home.data_dir().display().to_string()})),
        ("search_files", json!({"pattern": ".", "path": home.data_dir().parent().unwrap().display().to_string()})),
    ];
    for (tool, arguments) in &calls {
        model.script(ScriptedResponse::tool_call("c1", *tool, arguments)).script(ScriptedResponse::text("Done."));
        let run = send_message(&daemon, "main", "go").await;
        daemon.api().wait_ended(&run).await;
        let result = model.recorded_requests().last().unwrap().messages().last().unwrap().to_string();
        let is_refused = result.contains("Quell's own configuration or data");
        assert!(is_refused || *tool == "search_files", "{tool} {arguments}: {result}");
        assert!(!result.contains(daemon.token()), "{tool}: {result}");
    }
    assert_eq!(fs::read_to_string(home.config_file()).unwrap(), config, "the configuration is as it was");
    assert!(!home.data_dir().join("new").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_never_sends_a_key_to_another_address() {
    let process_lock = ProcessLock::shared().await;
    let (old, new) = (ScriptedModel::start().await, ScriptedModel::start().await);
    old.respond_by_prompt(|_, _| ScriptedResponse::text("from the old one"));
    let text = |model: &ScriptedModel, more: &str| {
        config_toml(model, "").replace("max_retries", &format!("{more}max_retries"))
    };
    let key = "api_key_env = \"RIGHTS_KEY\"\n";
    let home = DaemonHome::new(&text(&old, key)).with_env("RIGHTS_KEY", "sk-secret");
    let daemon = home.start(quell_exe()).await;
    let more = format!("[providers.more]\nkind = \"openai\"\nbase_url = \"{}\"\n{key}", new.base_url());
    let moved = text(&new, key);
    for moved in [moved.clone(), moved.replace("scripted", "renamed"), text(&old, key) + more.as_str()] {
        let refusals = || daemon.output().matches("the configuration file is not taken").count();
        let before = refusals();
        fs::write(home.config_file(), &moved).unwrap();
        poll_until("the refusal of the configuration", async || {
            assert!(!daemon.output().contains("configuration reloaded"), "{}", daemon.output());
            (refusals() > before).then_some(())
        })
        .await;
        let run = send_message(&daemon, "main", "hello").await;
        assert_eq!(daemon.api().wait_ended(&run).await["output"], "from the old one");
    }
    assert!(daemon.output().contains("start the daemon again"), "{}", daemon.output());
    assert_eq!(new.request_count(), 0);
    // A person starts the daemon, so the new address gets the key.
    assert!(daemon.stop().await.success());
    fs::write(home.config_file(), text(&new, key)).unwrap();
    new.respond_by_prompt(|_, _| ScriptedResponse::text("from the new one"));
    let daemon = home.start(quell_exe()).await;
    let run = send_message(&daemon, "main", "hello").await;
    assert_eq!(daemon.api().wait_ended(&run).await["output"], "from the new one");
    drop(process_lock);
}

#[tokio::test(flavor = "multi_thread")]
async fn default_workdirs_are_beside_the_data_and_a_tilde_is_home() {
    let (_process_lock, model) = (ProcessLock::shared().await, ScriptedModel::start().await);
    let agents = "[agents.main]\nmodel = \"scripted/m\"\n[agents.own]\nmodel = \"scripted/m\"\nworkdir = \"~/own\"\n";
    let home = DaemonHome::new(&(provider_toml(&model) + agents));
    let folder = home.data_dir().parent().unwrap().to_owned();
    fs::create_dir_all(home.data_dir().join("work/main")).unwrap();
    fs::write(home.data_dir().join("work/main/notes"), "kept").unwrap();
    let daemon = home.clone().with_env("HOME", &folder.display().to_string()).start(quell_exe()).await;
    assert!(home.work_dir().join("main").is_dir() && folder.join("own").is_dir());
    assert!(!folder.join("~").exists());
    let output = daemon.output();
    assert!(output.contains("files of an agent are in the data directory"), "{output}");
    assert!(output.contains("data/work/main"), "{output}");
    assert_eq!(fs::read_to_string(home.data_dir().join("work/main/notes")).unwrap(), "kept");
    // The same check applies to agents that are created at run time.
    let body = json!({"id": "late", "model": "scripted/m", "workdir": home.data_dir().join("x").display().to_string()});
    let refused = daemon.api().post("/api/agents", &body).await;
    assert_eq!(refused.status, 400, "{:#}", refused.body);
    assert!(!home.data_dir().join("x").exists());
    let body = json!({"id": "late", "model": "scripted/m", "workdir": "~/late"});
    let _ = daemon.api().post("/api/agents", &body).await.expect_status(201);
    assert!(folder.join("late").is_dir());
    let elsewhere = folder.join("elsewhere");
    assert!(daemon.stop().await.success());
    let _daemon = home.clone().with_env("QUELL_WORK", &elsewhere.display().to_string()).start(quell_exe()).await;
    assert!(elsewhere.join("main").is_dir());
}
