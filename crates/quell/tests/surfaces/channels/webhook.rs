//! The Python example of docs/channels/webhook.md, run as it stands there.

use std::net::TcpListener;

use quell_test_support::doc_examples::{PythonProgram, code_blocks, skips_python};
use quell_testkit::daemon::http_client;
use quell_testkit::model::{ScriptedResponse, ScriptedStream};
use quell_testkit::networks::webhook::{FakeWebhookReceiver, TOKEN};
use serde_json::{Value, json};

use super::ChannelDaemonFixture;
use crate::test_engine::ProcessLock;

const DOC_PAGE: &str = include_str!("../../../../../docs/channels/webhook.md");

fn doc_example() -> (String, String, u16) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (program, channel) = (code_blocks(DOC_PAGE, "python")[0], code_blocks(DOC_PAGE, "toml")[1]);
    assert!(program.contains("8098") && channel.contains("8098"), "{channel}");
    let here = |text: &str| text.replace("8098", &port.to_string());
    (here(program), here(channel), port)
}

fn start_python_shop(program: &str, secret: &str, fixture: &ChannelDaemonFixture) -> PythonProgram {
    let url = fixture.daemon.url().to_owned();
    PythonProgram::start(program, |python| {
        python.env("SHOP_SECRET", secret).env("QUELL_URL", url);
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: Python"]
async fn the_shop_in_python_writes_and_is_answered() {
    if skips_python() {
        return;
    }
    let (program, channel, _) = doc_example();
    let fixture =
        ChannelDaemonFixture::start_with_tokens(ProcessLock::shared().await, &channel, &[("SHOP_SECRET", TOKEN)]).await;
    let mut shop = start_python_shop(&program, TOKEN, &fixture);
    fixture.model.script(ScriptedStream::new().text("It **left**").wait_for_gate("rest").text(" today."));
    shop.write_line("Where is it?").await;
    // A growing draft.
    assert!(shop.next_line().await.starts_with("m1 to order-17: "));
    fixture.model.open_gate("rest");
    while shop.next_line().await != "m1 is now: It **left** today." {}
    fixture.model.script(ScriptedResponse::text("At noon."));
    shop.write_line("When?").await;
    let whole = ["m2 to order-17: At noon.", "m2 is now: At noon."];
    while !whole.contains(&shop.next_line().await.as_str()) {}
    // A program with another secret is refused, with the reason.
    let (stranger, ..) = doc_example();
    let mut stranger = start_python_shop(&stranger, "another secret of sixteen", &fixture);
    stranger.write_line("hello").await;
    let refused = stranger.next_line().await;
    assert!(refused.starts_with("refused: 401 ") && refused.contains("bad_signature"), "{refused}");
    assert!(fixture.daemon.stop().await.success(), "{}", fixture.daemon.output());
}

/// Posts an event as Quell does, with any body and headers.
async fn post_event(url: &str, body: &str, headers: [(&'static str, String); 3]) -> (u16, Value) {
    let request =
        headers.into_iter().fold(http_client().post(url), |request, (name, value)| request.header(name, value));
    let answer = request.body(body.to_owned()).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: Python"]
async fn the_shop_in_python_takes_each_event_once_and_only_from_quell() {
    if skips_python() {
        return;
    }
    let (program, channel, port) = doc_example();
    let fixture =
        ChannelDaemonFixture::start_with_tokens(ProcessLock::shared().await, &channel, &[("SHOP_SECRET", TOKEN)]).await;
    let mut shop = start_python_shop(&program, TOKEN, &fixture);
    // Its first answer shows that it listens.
    shop.write_line("/stop").await;
    assert_eq!(shop.next_line().await, "m1 to order-17: Nothing of yours is running here.");
    let (url, now) = (format!("http://127.0.0.1:{port}/"), jiff::Timestamp::now().as_second());
    let event = json!({"channel": "shop", "id": "e-1", "type": "message", "target": "o", "text": "hi", "plain": "hi"});
    let (event, forged) = (event.to_string(), event.to_string().replace("hi", "ho"));
    for _ in 0..2 {
        let answer = post_event(&url, &event, FakeWebhookReceiver::signed_headers(&event, now)).await;
        assert_eq!(answer, (200, json!({"id": "m2"})));
    }
    for headers in
        [FakeWebhookReceiver::signed_headers(&event, now), FakeWebhookReceiver::signed_headers(&forged, now - 301)]
    {
        let (status, body) = post_event(&url, &forged, headers).await;
        assert_eq!((status, &body["reason"]), (401, &json!("the signature is wrong or too old")), "{body}");
    }
    let edit = |revision: i64, text: &str| {
        json!({"channel": "shop", "id": text, "type": "edit", "message": "m2", "revision": revision, "text": text})
            .to_string()
    };
    for edit in [edit(2, "second"), edit(1, "first"), edit(3, "third")] {
        assert_eq!(post_event(&url, &edit, FakeWebhookReceiver::signed_headers(&edit, now)).await.0, 200);
    }
    let printed = [shop.next_line().await, shop.next_line().await, shop.next_line().await];
    assert_eq!(printed, ["m2 to o: hi", "m2 is now: second", "m2 is now: third"]);
    assert!(fixture.daemon.stop().await.success(), "{}", fixture.daemon.output());
}
