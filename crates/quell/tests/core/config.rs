//! Where the configuration comes from, and the output of `quell config` and `quell doctor`.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::prelude::*;

#[test]
fn without_file_and_environment_the_demo_model_is_in_force() {
    let home = DaemonHome::new("");
    fs::remove_file(home.config_file()).unwrap();
    let shown = run_cli(&home, &["config", "check"]);
    assert_eq!(shown.code, 0, "{shown:?}");
    assert!(shown.out.contains("no configuration file") && shown.out.contains("main (demo/demo)"), "{shown:?}");
}

/// The configuration of a node whose secret comes from this shell command.
fn secret_command_home(script: &str) -> DaemonHome {
    DaemonHome::new(&format!(
        "[store]\nurl = \"postgres://quell@127.0.0.1:1/quell\"\n\
         [cluster]\nnode = \"a\"\nsecret_command = [\"sh\", \"-c\", '{script}']\n"
    ))
}

#[test]
fn a_program_gives_the_secret_of_a_cluster() {
    let secret = "k".repeat(40);
    let checked = run_cli(&secret_command_home(&format!("echo {secret}; echo said >&2")), &["config", "check"]);
    assert_eq!(checked.code, 0, "{checked:?}");
    let shown = run_cli(&secret_command_home(&format!("echo {secret} | tr k x")), &["config", "show"]);
    assert!(!shown.out.contains("xxxx"), "{shown:?}");
}

#[rstest]
#[case::fails("echo no such key >&2; exit 3", "ended with exit code 3; it printed: no such key")]
#[case::prints_nothing("true", "it printed nothing to standard output")]
#[case::too_short("echo short", "at least 32")]
fn a_program_that_gives_no_secret_is_named(#[case] script: &str, #[case] says: &str) {
    let refused = run_cli(&secret_command_home(script), &["config", "check"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("secret_command") && refused.err.contains(says), "{refused:?}");
}

#[rstest]
#[case::openai(
    &[("OPENAI_API_KEY", "sk-very-secret"), ("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")],
    &["base_url = \"http://127.0.0.1:9/v1\"", "OPENAI_API_KEY"]
)]
#[case::ollama(
    &[("OLLAMA_HOST", "127.0.0.1:11434"), ("QUELL_MODEL", "qwen3")],
    &["http://127.0.0.1:11434/v1", "ollama/qwen3"]
)]
#[case::anthropic(
    &[("ANTHROPIC_API_KEY", "sk-very-secret"), ("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")],
    &["kind = \"anthropic\"", "base_url = \"http://127.0.0.1:9/v1\"", "model = \"anthropic/claude-"]
)]
#[case::anthropic_with_its_version(
    &[("ANTHROPIC_API_KEY", "sk-very-secret"), ("ANTHROPIC_BASE_URL", "http://127.0.0.1:9/v1/")],
    &["base_url = \"http://127.0.0.1:9/v1\""]
)]
fn the_environment_alone_is_enough_for_a_provider(#[case] environment: &[(&str, &str)], #[case] lines: &[&str]) {
    let home = environment.iter().fold(DaemonHome::new(""), |home, (name, value)| home.with_env(name, value));
    fs::remove_file(home.config_file()).unwrap();
    let shown = run_cli(&home, &["config", "show"]);
    assert_eq!(shown.code, 0, "{shown:?}");
    for line in lines {
        assert!(shown.out.contains(line), "{line} is missing in {shown:?}");
    }
    assert!(!shown.out.contains("very-secret") && !shown.err.contains("very-secret"), "{shown:?}");
}

#[test]
fn a_named_file_wins_over_the_environment_over_the_directory_over_xdg() {
    let home = DaemonHome::new("[limits]\nmax_steps = 1\n");
    let place = |name: &str, steps: u32| {
        let path = home.config_file().with_file_name(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("[limits]\nmax_steps = {steps}\n")).unwrap();
        path
    };
    let (named, variable) = (place("named.toml", 4), place("variable.toml", 3));
    let xdg = place("xdg/quell/quell.toml", 2);
    let xdg = xdg.parent().and_then(Path::parent).unwrap();
    let steps = |variable: Option<&Path>, flag: Option<&Path>| {
        let mut command = home.command(quell_exe());
        command.args(["config", "show"]).env("XDG_CONFIG_HOME", xdg).env_remove("QUELL_CONFIG");
        if let Some(variable) = variable {
            command.env("QUELL_CONFIG", variable);
        }
        if let Some(flag) = flag {
            command.arg("--config").arg(flag);
        }
        let shown = run_to_exit(&mut command);
        let line = shown.out.lines().find_map(|line| line.strip_prefix("max_steps = ")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{shown:?}"))
    };
    assert_eq!(steps(Some(&variable), Some(&named)), "4");
    assert_eq!(steps(Some(&variable), None), "3");
    assert_eq!(steps(None, None), "2", "`./quell.toml` must be read only when it is named");
    assert_eq!(steps(None, Some(Path::new("./quell.toml"))), "1");
}

#[test]
fn a_named_file_that_is_not_there_is_an_error_and_not_a_default() {
    let home = DaemonHome::new("");
    let shown = run_to_exit(home.command(quell_exe()).args(["config", "check"]).env("QUELL_CONFIG", "absent.toml"));
    assert_eq!(shown.code, 1);
    assert!(shown.err.contains("absent.toml"), "{shown:?}");
}

#[test]
fn a_mistake_ends_every_verb_that_reads_the_file_with_its_place() {
    let home = DaemonHome::new("[server]\nlistn = \"127.0.0.1:0\"\n");
    for args in [&["config", "check"][..], &["config", "show"], &["serve"]] {
        let shown = run_cli(&home, args);
        assert_eq!(shown.code, 1, "{args:?} {shown:?}");
        assert!(shown.err.contains("quell.toml:2:1:") && shown.err.contains("did you mean `listen`?"), "{shown:?}");
        assert!(!shown.err.contains("panicked"), "{shown:?}");
    }
}

#[test]
fn a_channel_that_cannot_be_made_is_an_error_before_anything_is_started() {
    let home = DaemonHome::new("[channels.tg]\nkind = \"telegram\"\ntoken_env = \"TG\"\n");
    for args in [&["config", "check"][..], &["serve"]] {
        let shown = run_cli(&home, args);
        assert_eq!(shown.code, 1, "{args:?} {shown:?}");
        assert!(shown.err.contains("quell.toml:3:13: channels.tg.token_env: names TG, "), "{shown:?}");
        assert!(shown.err.contains("export TG=... where Quell is started"), "{shown:?}");
    }
    assert!(!home.data_dir().join("quell.db").exists(), "the daemon started");
    let doctor = run_cli(&home, &["doctor"]);
    assert!(doctor.out.contains("✗ fail  channels        [channels.tg] token_env: names TG, "), "{doctor:?}");
    let shown = run_cli(&home, &["config", "show"]);
    assert!(shown.code == 0 && shown.out.contains("[channels.tg]"), "{shown:?}");
    let home = home.with_env("TG", "1234567:AATokenOfNobody_0123456789abcdef");
    assert_eq!(run_cli(&home, &["config", "check"]).code, 0);
}

#[rstest]
#[case::the_data("workdir = \"FOLDER/data/work\"", "where Quell keeps its keys")]
#[case::the_configuration("workdir = \"FOLDER\"", "where Quell keeps its keys")]
#[case::a_key_file(
    "workdir = \"FOLDER/work\"\n[providers.p]\nkind = \"openai\"\napi_key_file = \"FOLDER/work/key\"",
    "work/key, a file of keys"
)]
#[case::a_secret("workdir = \"FOLDER/work\"\n[hooks]\nsecret_file = \"FOLDER/work/key\"", "work/key, a file of keys")]
#[case::a_token_of_a_channel(
    "workdir = \"FOLDER/work\"\n[channels.c]\nkind = \"telegram\"\ntoken_file = \"FOLDER/work/key\"",
    "work/key, a file of keys"
)]
#[case::the_token(
    "workdir = \"FOLDER/work\"\n[server]\ntoken_file = \"FOLDER/work/token\"",
    "work/token, a file of keys"
)]
fn the_check_refuses_the_workdirs_that_a_start_refuses(#[case] text: &str, #[case] says: &str) {
    let home = DaemonHome::new("");
    fs::create_dir(home.root_dir().join("work")).unwrap();
    fs::write(home.root_dir().join("work/key"), "1234567:AATokenOfNobody_0123456789abcdef\n").unwrap();
    let text = text.replace("FOLDER", &home.root_dir().display().to_string());
    fs::write(home.config_file(), format!("[agents.main]\nmodel = \"demo/demo\"\n{text}\n")).unwrap();
    let error_of = |args: &[&str]| {
        let shown = run_cli(&home, args);
        assert_eq!(shown.code, 1, "{args:?} {shown:?}");
        assert!(shown.err.contains("quell.toml:3:11: agents.main.workdir: ") && shown.err.contains(says), "{shown:?}");
        shown.err
    };
    assert_eq!(error_of(&["config", "check"]), error_of(&["serve", "--listen", "127.0.0.1:0"]));
}

#[test]
fn the_schema_is_json() {
    let shown = run_cli(&DaemonHome::new(""), &["config", "schema"]);
    let schema: Value = serde_json::from_str(&shown.out).unwrap();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert!(schema["properties"]["providers"].is_object(), "{schema:#}");
}

fn parse_findings(shown: &QuellCliOutput) -> Value {
    serde_json::from_str(&shown.out).unwrap_or_else(|error| panic!("{error}: {shown:?}"))
}

fn finding_states<'a>(findings: &'a Value, check: &str) -> Vec<&'a str> {
    let rows = findings["findings"].as_array().unwrap().iter().filter(|row| row["check"] == check);
    rows.filter_map(|row| row["state"].as_str()).collect()
}

#[test]
fn the_doctor_is_content_with_a_fresh_start_and_makes_nothing() {
    let home = DaemonHome::new("[server]\nlisten = \"127.0.0.1:0\"\n");
    fs::set_permissions(home.data_dir(), fs::Permissions::from_mode(0o700)).unwrap();
    let shown = run_cli(&home, &["doctor", "--json"]);
    assert_eq!(shown.code, 0, "{shown:?}");
    let found = parse_findings(&shown);
    assert_eq!(
        (finding_states(&found, "processes"), finding_states(&found, "providers")),
        (vec!["ok"], vec!["warn"]),
        "{found:#}"
    );
    assert_eq!(fs::read_dir(home.data_dir()).unwrap().count(), 0, "the doctor left something behind");
    let lines = run_cli(&home, &["doctor"]);
    assert!(lines.out.contains("! warn  providers") && !lines.out.contains('\x1b'), "{lines:?}");
}

#[tokio::test]
async fn the_doctor_knows_the_daemon_its_pid_and_its_hold() {
    let daemon = TestDaemon::start(quell_exe(), "").await;
    let held = daemon.api().put("/api/hold", &json!({"reason": "upgrade"})).await.expect_status(200);
    assert_eq!(held["held"], true);
    let shown = run_cli(daemon.home(), &["doctor", "--json"]);
    let found = parse_findings(&shown);
    assert_eq!(
        (finding_states(&found, "daemon"), finding_states(&found, "hold")),
        (vec!["ok"], vec!["warn"]),
        "{found:#}"
    );
    assert!(shown.out.contains(&format!("pid {}", daemon.pid())), "{shown:?}");
    assert!(!shown.out.contains(daemon.token()), "the doctor shows the token");
}

#[test]
fn the_doctor_tries_isolation_for_an_agent_that_asks() {
    let home = DaemonHome::new("[agents.main]\nisolate = \"pid\"\n");
    let found = parse_findings(&run_cli(&home, &["doctor", "--json"]));
    // Isolation may not be permitted on this machine; the doctor must have tried it.
    let row = found["findings"].as_array().unwrap().iter().find(|row| row["check"] == "isolation").unwrap();
    assert!(row["says"].as_str().unwrap().contains("PID namespace"), "{row:#}");
}

#[test]
fn the_doctor_tries_each_mcp_server() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("server.sh");
    fs::write(&script, quell_testkit::mcp::SERVER_SCRIPT).unwrap();
    let script = script.display();
    let home = DaemonHome::new(&format!(
        "[mcp.good]\ncommand = \"sh\"\nargs = [\"{script}\"]\n\n[mcp.bad]\ncommand = \"sh\"\nargs = [\"-c\", \"echo no key >&2; exit 3\"]\n\n\
         [mcp.mute]\ncommand = \"sh\"\nargs = [\"{script}\"]\nenv = {{ MCP_MUTE = \"1\" }}\nstart_timeout_s = 1\n\n\
         [mcp.away]\nurl = \"http://127.0.0.1:1/mcp\"\n"
    ));
    let shown = run_cli(&home, &["doctor"]);
    assert_eq!(shown.code, 1, "{shown:?}");
    let lists = format!("good starts and lists {} tools", quell_testkit::mcp::tool_count());
    for part in [
        lists.as_str(),
        "bad: it ended before it was ready (exit code 3); it printed: no key",
        "mute: it was not ready within 1 s",
        "away: it cannot be reached: Connection refused",
        "[mcp.away]: start the server, or check `url`",
    ] {
        assert!(shown.out.contains(part), "{part:?} is not in {}", shown.out);
    }
}
