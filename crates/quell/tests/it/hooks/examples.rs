//! The examples of docs/hooks.md, as they stand there: the command that refuses, the receiver in Python, and the command that
//! is asked about messages.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use quell_engine::hooks::{Happening, MessageAnswer};
use quell_testkit::daemon::{Daemon, Home};
use serde_json::{Value, json};

use super::messages::message;
use super::receiver::SECRET;
use crate::cli::exe;
use crate::examples::{Python, blocks, skips_python};
use crate::harness::Claim;

const PAGE: &str = include_str!("../../../../../docs/hooks.md");

async fn made(daemon: &Daemon, user: &str, chat: &str) -> (u16, Value) {
    let asked = json!({"userId": user, "chatId": chat, "provider": "demo", "model": "demo"});
    let answer = daemon.http().post("/api/sessions", &asked).await;
    (answer.status, answer.body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_that_refuses_does_what_the_page_says() {
    let _claim = Claim::shared().await;
    let home = Home::new("");
    let script = home.config().with_file_name("may-create");
    std::fs::write(&script, blocks(PAGE, "sh")[0]).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(home.config(), format!("[hooks]\non_create = {}\n", json!(script))).unwrap();
    let daemon = home.start(exe()).await;
    for chat in ["one", "two", "three"] {
        assert_eq!(made(&daemon, "u1", chat).await.0, 201, "{chat}");
    }
    let (status, refusal) = made(&daemon, "u1", "four").await;
    assert_eq!((status, &refusal["code"]), (403, &json!("session_refused")), "{refusal:#}");
    let detail = refusal["detail"].as_str().unwrap();
    assert!(detail.contains("you have three conversations already"), "{detail}");
    assert_eq!(made(&daemon, "u2", "four").await.0, 201, "another user");
    assert!(daemon.stop().await.success(), "{}", daemon.output());
}

/// It needs Python; `QUELL_SKIP_PYTHON=1` leaves it out, and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receiver_in_python_does_what_the_page_says() {
    if skips_python() {
        return;
    }
    let _claim = Claim::shared().await;
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let program = blocks(PAGE, "python")[0];
    assert!(program.contains("8099"));
    let mut receiver = Python::start(&program.replace("8099", &port.to_string()), |python| {
        python.env("QUELL_HOOK_SECRET", SECRET);
    });
    let url = format!("http://127.0.0.1:{port}/");
    let hooks = format!(
        "[hooks]\non_create = \"{url}\"\non_run_end = \"{url}\"\nsecret_env = \"QUELL_HOOK_SECRET\"\ntimeout_ms = 20000\n"
    );
    let daemon = Home::new(&hooks).env("QUELL_HOOK_SECRET", SECRET).start(exe()).await;
    let sent = daemon.http().post("/api/sessions/good/runs", &json!({"text": "hello"})).await.expect_status(202);
    for expected in ["on_create good", "on_run_end good"] {
        assert_eq!(receiver.line().await, expected, "{sent}");
    }
    let refused = daemon.http().post("/api/sessions/test-1/runs", &json!({"text": "hello"})).await.expect_status(202);
    let log = daemon.http().events(refused["runId"].as_str().unwrap(), 0).await.to_end().await;
    assert_eq!(log.verdict(), "failed");
    let client = quell_testkit::daemon::client();
    let forged = client.post(&url).header("quell-timestamp", "1").header("quell-signature", "v1=00").body("{}");
    assert_eq!(forged.send().await.unwrap().status(), 401);
    assert!(daemon.stop().await.success(), "{}", daemon.output());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_that_is_asked_about_messages_does_what_the_page_says() {
    if skips_python() {
        return;
    }
    let file = tempfile::tempdir().unwrap();
    let script = file.path().join("discreet");
    std::fs::write(&script, blocks(PAGE, "python")[1]).unwrap();
    let command = format!("python3 '{}'", script.display());
    let house = super::house(|hooks| {
        hooks.on_message_received = command.as_str().into();
        hooks.on_message_sending = command.as_str().into();
        hooks.timeout_ms = 20_000;
    })
    .await;
    let scope = super::scope();
    let card = "Card 4000 1234 5678 9010, or 4000123456789010.";
    let hidden = MessageAnswer::Content("Card [card], or [card].".to_owned());
    let cancelled = MessageAnswer::Cancel { reason: "a remark among people".to_owned() };
    for (text, received, sending) in [
        ("Call me at 12 34 56.", MessageAnswer::Unchanged, MessageAnswer::Unchanged),
        (card, hidden.clone(), hidden),
        ("// lunch?", cancelled, MessageAnswer::Unchanged),
    ] {
        let hooks = house.engine.hooks();
        assert_eq!(hooks.ask_message(Happening::of_received(message(text)), &scope).await, Ok(received), "{text}");
        let answer = Happening::of_sending(message("What did I pay?"), text.to_owned());
        assert_eq!(hooks.ask_message(answer, &scope).await, Ok(sending), "{text}");
    }
    house.close().await;
}
