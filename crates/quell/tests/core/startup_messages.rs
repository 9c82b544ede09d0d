//! What `quell serve` prints at startup: one error when the port is taken, a warning when a key is missing.

use std::net::TcpListener;

use crate::prelude::*;

#[test]
fn a_port_that_is_taken_is_told_before_anything_else() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let home = DaemonHome::new("[agents.main]\nmodel = \"demo/demo\"\n[providers.demo]\nkind = \"demo\"\n");
    let output = home.command(quell_exe()).args(["serve", "--listen", &address]).output().unwrap();
    assert!(!output.status.success());
    let output = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    assert!(lines[0].contains(&format!("cannot listen on {address}")), "{output}");
    assert!(lines[0].contains("--listen 127.0.0.1:0"), "no way out in {output}");
    assert!(lines.len() <= 3, "{} lines: {output}", lines.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_named_and_not_set_is_told_at_the_start() {
    let model = ScriptedModel::start().await;
    let config = format!(
        "[providers.paid]\nkind = \"openai\"\nbase_url = \"{}\"\napi_key_env = \"QUELL_TEST_NO_SUCH_KEY\"\n\
         [agents.main]\nmodel = \"paid/m\"\n",
        model.base_url()
    );
    let daemon = DaemonHome::new(&config).start(quell_exe()).await;
    let output = daemon.output();
    let line = output.lines().find(|line| line.contains("QUELL_TEST_NO_SUCH_KEY"));
    let line = line.unwrap_or_else(|| panic!("{output}"));
    for part in ["provider paid", "export QUELL_TEST_NO_SUCH_KEY=...", "remove api_key_env"] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
}
