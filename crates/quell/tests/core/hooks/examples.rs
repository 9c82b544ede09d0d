//! The examples of docs/hooks.md, run as they stand there.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use quell_test_support::doc_examples::{PythonProgram, code_blocks, skips_python};

use super::messages::channel_message;
use super::*;

const DOC_PAGE: &str = include_str!("../../../../../docs/hooks.md");

async fn create_session(daemon: &TestDaemon, user: &str, chat: &str) -> (u16, Value) {
    let asked = json!({"userId": user, "chatId": chat, "provider": "demo", "model": "demo"});
    let answer = daemon.api().post("/api/sessions", &asked).await;
    (answer.status, answer.body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_that_refuses_does_what_the_page_says() {
    let _process_lock = ProcessLock::shared().await;
    let home = DaemonHome::new("");
    let script = home.config_file().with_file_name("may-create");
    std::fs::write(&script, code_blocks(DOC_PAGE, "sh")[0]).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(home.config_file(), format!("[hooks]\non_create = {}\n", json!(script))).unwrap();
    let daemon = home.start(quell_exe()).await;
    for chat in ["one", "two", "three"] {
        assert_eq!(create_session(&daemon, "u1", chat).await.0, 201, "{chat}");
    }
    let (status, refusal) = create_session(&daemon, "u1", "four").await;
    assert_eq!((status, &refusal["code"]), (403, &json!("session_refused")), "{refusal:#}");
    let detail = refusal["detail"].as_str().unwrap();
    assert!(detail.contains("you have three conversations already"), "{detail}");
    assert_eq!(create_session(&daemon, "u2", "four").await.0, 201, "another user");
    assert!(daemon.stop().await.success(), "{}", daemon.output());
}

/// Needs Python; `QUELL_SKIP_PYTHON=1` skips it, with a message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: Python"]
async fn the_receiver_in_python_does_what_the_page_says() {
    if skips_python() {
        return;
    }
    let _process_lock = ProcessLock::shared().await;
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let program = code_blocks(DOC_PAGE, "python")[0];
    assert!(program.contains("8099"));
    let mut receiver = PythonProgram::start(&program.replace("8099", &port.to_string()), |python| {
        python.env("QUELL_HOOK_SECRET", SECRET);
    });
    let url = format!("http://127.0.0.1:{port}/");
    let hooks = format!(
        "[hooks]\non_create = \"{url}\"\non_run_end = \"{url}\"\nsecret_env = \"QUELL_HOOK_SECRET\"\ntimeout_ms = 20000\n"
    );
    let daemon = DaemonHome::new(&hooks).with_env("QUELL_HOOK_SECRET", SECRET).start(quell_exe()).await;
    let sent = daemon.api().post_run("good", &json!({"text": "hello"})).await.expect_status(202);
    for expected in ["on_create good", "on_run_end good"] {
        assert_eq!(receiver.next_line().await, expected, "{sent}");
    }
    let refused = daemon.api().send_message("test-1", "hello").await;
    let log = daemon.api().run_events(&refused, 0).await.read_to_end().await;
    assert_eq!(log.verdict(), "failed");
    let client = quell_testkit::daemon::http_client();
    let forged = client.post(&url).header("quell-timestamp", "1").header("quell-signature", "v1=00").body("{}");
    assert_eq!(forged.send().await.unwrap().status(), 401);
    assert!(daemon.stop().await.success(), "{}", daemon.output());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: Python"]
async fn the_command_that_is_asked_about_messages_does_what_the_page_says() {
    if skips_python() {
        return;
    }
    let file = tempfile::tempdir().unwrap();
    let script = file.path().join("discreet");
    std::fs::write(&script, code_blocks(DOC_PAGE, "python")[1]).unwrap();
    let command = format!("python3 '{}'", script.display());
    let test = start_engine(|hooks| {
        hooks.on_message_received = command.as_str().into();
        hooks.on_message_sending = command.as_str().into();
        hooks.timeout_ms = 20_000;
    })
    .await;
    let scope = new_scope();
    let card = "Card 4000 1234 5678 9010, or 4000123456789010.";
    let hidden = MessageAnswer::Content("Card [card], or [card].".to_owned());
    let cancelled = MessageAnswer::Cancel { reason: "a remark among people".to_owned() };
    for (text, received, sending) in [
        ("Call me at 12 34 56.", MessageAnswer::Unchanged, MessageAnswer::Unchanged),
        (card, hidden.clone(), hidden),
        ("// lunch?", cancelled, MessageAnswer::Unchanged),
    ] {
        let message = HookTrigger::for_received_message(channel_message(text));
        let answer = HookTrigger::for_outgoing_message(channel_message("What did I pay?"), text.to_owned());
        for (trigger, expected) in [(message, received), (answer, sending)] {
            assert_eq!(test.engine.hooks().filter_message(trigger, &scope).await, Ok(expected), "{text}");
        }
    }
    test.close().await;
}
