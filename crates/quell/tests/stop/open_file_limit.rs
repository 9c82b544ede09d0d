//! The daemon raises its open-file limit; its children get the original one.

use std::fs;

use crate::prelude::*;

/// A limit that no machine uses by default.
const TEST_LIMIT: &str = "777";

async fn wait_line(file: &Path) -> String {
    let path = file.to_owned();
    // The line is complete once it ends.
    let whole = move || match fs::read_to_string(&path) {
        Ok(text) if text.ends_with('\n') => Ok(()),
        found => Err(format!("{}: {found:?}", path.display())),
    };
    leaks::wait_until(WAIT_TIMEOUT, whole).await;
    fs::read_to_string(file).unwrap().trim().to_owned()
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn started_programs_get_the_open_file_limit_of_the_daemon(#[values("auto", "none")] isolate: &str) {
    let model = ScriptedModel::start().await;
    let home = DaemonHome::new("");
    let path_of = |name: &str| home.root_dir().join(name);
    let print_limit = |name: &str| format!("ulimit -Sn > {}", path_of(name).display());
    let (hook, server): (Value, Value) = (json!(print_limit("hook")), json!(format!("{}; cat", print_limit("server"))));
    let config = format!(
        "{}[hooks]\non_start = {hook}\n\
         [mcp.test]\ncommand = \"sh\"\nargs = [\"-c\", {server}]\nsandbox = \"off\"\n\
         [agents.main]\nmodel = \"scripted/m\"\nmcp = []\nisolate = \"{isolate}\"\nsandbox = \"off\"\n\
         [agents.other]\nmodel = \"scripted/m\"\nmcp = [\"test\"]\n",
        provider_toml(&model)
    );
    fs::write(home.config_file(), config).unwrap();
    let limited = format!("ulimit -Sn {TEST_LIMIT}; exec '{}' \"$@\"", quell_exe().display());
    let wrapper = write_shell_program(path_of("wrapper"), &limited);
    let daemon = home.start(&wrapper).await;
    let own = fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
    let own = own.lines().find(|line| line.starts_with("Max open files")).unwrap().to_owned();
    assert!(!own.contains(" 777 "), "the daemon did not raise its own limit, so this test proves nothing: {own}");

    assert_eq!(wait_line(&path_of("hook")).await, TEST_LIMIT);
    // Without mounts nothing can be created in the directory that leads to the data: the commands write into their workdir.
    let workdir = daemon.home().work_dir().join("main");
    model.script(ScriptedResponse::tool_call("c1", "shell", &json!({"command": "ulimit -Sn > shell"})));
    let background = json!({"command": "ulimit -Sn > background", "background": true});
    model.script(ScriptedResponse::tool_call("c2", "shell", &background));
    model.script(ScriptedResponse::text("Seen."));
    let sent = daemon.api().post_run("s", &json!({"text": "go"})).await;
    assert_eq!(sent.status, 202, "{sent:?}");
    assert_eq!(wait_line(&workdir.join("shell")).await, TEST_LIMIT);
    assert_eq!(wait_line(&workdir.join("background")).await, TEST_LIMIT);
    let sent = daemon.api().post_run("t", &json!({"text": "go", "agent": "other"})).await;
    assert_eq!(sent.status, 202, "{sent:?}");
    assert_eq!(wait_line(&path_of("server")).await, TEST_LIMIT);
    assert!(daemon.stop().await.success(), "{}", daemon.output());
}
