//! The fake refuses what the real Telegram refuses.

use std::time::Duration;

use reqwest::{Client, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use super::{BOT_ID, FakeTelegram, FakeTelegramFault, FakeTelegramFile, TOKEN, TelegramTestUser, html};

const ANN: TelegramTestUser = TelegramTestUser { id: 7, name: "ann" };
const GROUP: i64 = -1_001_234;

fn http_client() -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder().build().unwrap()
}

async fn call_api(fake: &FakeTelegram, method: &str, body: Value) -> (StatusCode, Value) {
    let url = format!("{}/bot{TOKEN}/{method}", fake.base_url());
    let answer = http_client().post(url).json(&body).send().await.unwrap();
    (answer.status(), answer.json().await.unwrap())
}

async fn expect_refused(fake: &FakeTelegram, method: &str, body: Value) -> String {
    let (status, answer) = call_api(fake, method, body).await;
    assert!(status.is_client_error() && answer["ok"] == false, "{method}: {status} {answer}");
    answer["description"].as_str().unwrap().to_owned()
}

#[rstest]
#[case("a &lt;b&gt; &amp;&quot; &#65;&#x42; &nbsp; & b", "a <b> &\" AB &nbsp; & b")]
#[case("<b>a<i>b</i></b> <CODE>c</code>", "ab c")]
#[case("<a href=\"https://x.y/?a=1&amp;b=2\">x</a>", "x")]
#[case("<pre><code class=\"language-rust\">fn</code></pre>", "fn")]
#[case("<blockquote expandable>q</blockquote><tg-spoiler>s</tg-spoiler>", "qs")]
fn html_that_telegram_takes(#[case] source: &str, #[case] text: &str) {
    assert_eq!(html::parse_html(source).unwrap().0, text);
}

#[rstest]
#[case("a < b", "Unclosed start tag at byte offset 2")]
#[case("<p>a</p>", "Unsupported start tag \"p\" at byte offset 0")]
#[case("ä<b>x", "Can't find end tag corresponding to start tag \"b\"")]
#[case("<b><i>x</b></i>", "Unmatched end tag at byte offset 7, expected \"</i>\", found \"</b>\"")]
#[case("x</b>", "Unexpected end tag at byte offset 1")]
#[case("<span>x</span>", "Tag \"span\" must have class \"tg-spoiler\" at byte offset 0")]
fn html_that_it_refuses(#[case] source: &str, #[case] why: &str) {
    assert_eq!(html::parse_html(source).unwrap_err(), why);
}

#[test]
fn entities_count_in_utf16() {
    let (_, entities) = html::parse_html("😀<b>😀</b>").unwrap();
    assert_eq!((entities[0].offset, entities[0].length), (2, 2));
}

#[tokio::test]
async fn an_update_comes_until_it_is_confirmed() {
    let fake = FakeTelegram::start().await;
    fake.post_message(7, ANN, "one");
    fake.post_message(7, ANN, "two");
    for _ in 0..2 {
        let (_, answer) = call_api(&fake, "getUpdates", json!({"limit": 1})).await;
        assert_eq!(answer["result"].as_array().unwrap().len(), 1);
        assert_eq!(answer["result"][0]["message"]["text"], "one");
    }
    let (_, answer) = call_api(&fake, "getUpdates", json!({"offset": 2})).await;
    assert_eq!(answer["result"][0]["message"]["text"], "two");
    assert_eq!(fake.state().confirmed_update, 1);
    let (_, answer) = call_api(&fake, "getUpdates", json!({})).await;
    assert_eq!(answer["result"][0]["update_id"], 2, "what was confirmed came again");
    assert_eq!(
        expect_refused(&fake, "getUpdates", json!({"limit": 101})).await,
        "Bad Request: limit must be between 1 and 100"
    );
}

#[tokio::test]
async fn a_poll_waits_for_a_message_and_is_ended_by_another_poll() {
    let fake = FakeTelegram::start().await;
    let other = async {
        fake.wait_for("a poll", |state| state.waiting_polls == 1).await;
        call_api(&fake, "getUpdates", json!({"timeout": 0})).await
    };
    let ((status, answer), _) = tokio::join!(call_api(&fake, "getUpdates", json!({"timeout": 50})), other);
    assert_eq!((status, answer["error_code"].as_u64()), (StatusCode::CONFLICT, Some(409)));
    let write = async {
        fake.wait_for("a poll", |state| state.waiting_polls == 1).await;
        fake.post_message(7, ANN, "hello");
    };
    let ((_, answer), ()) = tokio::join!(call_api(&fake, "getUpdates", json!({"timeout": 50})), write);
    assert_eq!(answer["result"][0]["message"]["text"], "hello");
}

#[tokio::test]
async fn messages_are_shown_changed_and_deleted() {
    let fake = FakeTelegram::start().await;
    let no_chat = expect_refused(&fake, "sendMessage", json!({"chat_id": 7, "text": "x"})).await;
    assert_eq!(no_chat, "Bad Request: chat not found");
    fake.post_message(7, ANN, "hello");
    let (_, sent) =
        call_api(&fake, "sendMessage", json!({"chat_id": 7, "text": "<b>hi</b>", "parse_mode": "HTML"})).await;
    let id = sent["result"]["message_id"].as_i64().unwrap();
    let edit = |text: &str| json!({"chat_id": 7, "message_id": id, "text": text, "parse_mode": "HTML"});
    assert!(expect_refused(&fake, "editMessageText", edit("<b>hi</b>")).await.contains("message is not modified"));
    assert_eq!(call_api(&fake, "editMessageText", edit("hi")).await.0, StatusCode::OK);
    let shown = fake.messages(7).pop().unwrap();
    assert_eq!((shown.from, shown.text.as_str(), shown.edits), (BOT_ID, "hi", 1));
    fake.limit_edits(Duration::from_secs(60));
    let (status, answer) = call_api(&fake, "editMessageText", edit("ho")).await;
    assert_eq!((status.as_u16(), answer["parameters"]["retry_after"].as_u64()), (429, Some(60)));
    call_api(&fake, "deleteMessage", json!({"chat_id": 7, "message_id": id})).await;
    assert_eq!(expect_refused(&fake, "editMessageText", edit("hu")).await, "Bad Request: message to edit not found");
    assert_eq!(fake.messages(7).len(), 1);
}

#[rstest]
#[case("x".repeat(4097), "Bad Request: message is too long")]
#[case("😀".repeat(2049), "Bad Request: message is too long")]
#[case(" \n".into(), "Bad Request: message text is empty")]
#[tokio::test]
async fn a_text_that_does_not_fit_is_refused(#[case] text: String, #[case] why: &str) {
    let fake = FakeTelegram::start().await;
    fake.post_message(7, ANN, "hello");
    assert_eq!(expect_refused(&fake, "sendMessage", json!({"chat_id": 7, "text": text})).await, why);
}

#[tokio::test]
async fn reactions_are_those_that_bots_may_use() {
    let fake = FakeTelegram::start().await;
    let id = fake.post_message(GROUP, ANN, "hello");
    let react =
        |emoji: &str| json!({"chat_id": GROUP, "message_id": id, "reaction": [{"type": "emoji", "emoji": emoji}]});
    for sign in ["✅", "⚠️", "⏹", "❤️"] {
        assert_eq!(expect_refused(&fake, "setMessageReaction", react(sign)).await, "Bad Request: REACTION_INVALID");
    }
    for sign in ["👀", "👍", "❤"] {
        assert_eq!(call_api(&fake, "setMessageReaction", react(sign)).await.0, StatusCode::OK);
        assert_eq!(fake.messages(GROUP)[0].reactions, [sign]);
    }
    call_api(&fake, "setMessageReaction", json!({"chat_id": GROUP, "message_id": id})).await;
    assert!(fake.messages(GROUP)[0].reactions.is_empty());
}

#[tokio::test]
async fn topics_blocks_and_migrations() {
    let fake = FakeTelegram::start().await;
    let topic = fake.open_topic(GROUP);
    fake.post_in_topic(GROUP, topic, ANN, "hello");
    let send = |thread: i64| json!({"chat_id": GROUP, "text": "x", "message_thread_id": thread});
    assert_eq!(expect_refused(&fake, "sendMessage", send(99)).await, "Bad Request: message thread not found");
    assert_eq!(call_api(&fake, "sendMessage", send(topic)).await.1["result"]["message_thread_id"], topic);
    fake.post_message(7, ANN, "hello");
    fake.block_bot(7);
    let blocked = expect_refused(&fake, "sendMessage", json!({"chat_id": 7, "text": "x"})).await;
    assert_eq!(blocked, "Forbidden: bot was blocked by the user");
    fake.post_message(-5, ANN, "hello");
    fake.migrate_group(-5, -1_005);
    let (_, answer) = call_api(&fake, "sendMessage", json!({"chat_id": -5, "text": "x"})).await;
    assert_eq!(answer["parameters"]["migrate_to_chat_id"], -1_005);
}

#[tokio::test]
async fn files_come_and_go() {
    let fake = FakeTelegram::start().await;
    fake.post_file(7, ANN, &FakeTelegramFile::new("document", "a b.txt", "text/plain", &b"abc"[..]), "see");
    let (_, updates) = call_api(&fake, "getUpdates", json!({})).await;
    let document = &updates["result"][0]["message"]["document"];
    let (_, file) = call_api(&fake, "getFile", json!({"file_id": document["file_id"]})).await;
    let path = file["result"]["file_path"].as_str().unwrap();
    let url = format!("{}/file/bot{TOKEN}/{path}", fake.base_url());
    assert_eq!(http_client().get(url).send().await.unwrap().bytes().await.unwrap(), "abc");
    let form = "--zz\r\nContent-Disposition: form-data; name=\"chat_id\"\r\n\r\n7\r\n--zz\r\n\
        Content-Disposition: form-data; name=\"document\"; filename=\"n.txt\"\r\nContent-Type: text/plain\r\n\r\nx\r\ny\r\n--zz--\r\n";
    let request = http_client().post(format!("{}/bot{TOKEN}/sendDocument", fake.base_url()));
    let sent = request.header("content-type", "multipart/form-data; boundary=zz").body(form).send().await.unwrap();
    assert_eq!(sent.status(), StatusCode::OK);
    let shown = fake.messages(7).pop().unwrap();
    assert_eq!(shown.file, Some(FakeTelegramFile::new("document", "n.txt", "text/plain", &b"x\r\ny"[..])));
}

#[tokio::test]
async fn a_wrong_token_and_an_unknown_parameter_are_refused() {
    let fake = FakeTelegram::start().await;
    let url = |path: String| format!("{}{path}", fake.base_url());
    let get = |path: String| async { http_client().get(url(path)).send().await.unwrap().status().as_u16() };
    assert_eq!(get("/bot1:wrong/getMe".into()).await, 401);
    assert_eq!(get("/botwrong/getMe".into()).await, 404);
    assert_eq!(get(format!("/bot{TOKEN}/getYou")).await, 404);
    assert_eq!(get(format!("/bot{TOKEN}/getMe")).await, 200);
    assert_eq!(expect_refused(&fake, "getMe", json!({"x": 1})).await, "Bad Request: unknown parameter x");
}

#[tokio::test]
async fn injected_faults_happen() {
    let fake = FakeTelegram::start().await;
    fake.post_message(7, ANN, "hello");
    let body = json!({"chat_id": 7, "text": "x"});
    fake.inject_fault("sendMessage", FakeTelegramFault::RateLimited(3))
        .inject_fault("sendMessage", FakeTelegramFault::LoseAnswer)
        .inject_fault("sendMessage", FakeTelegramFault::Drop);
    let (status, answer) = call_api(&fake, "sendMessage", body.clone()).await;
    assert_eq!((status.as_u16(), answer["parameters"]["retry_after"].as_u64()), (429, Some(3)));
    for shown in [1, 1] {
        let request = http_client().post(format!("{}/bot{TOKEN}/sendMessage", fake.base_url())).json(&body);
        assert!(request.send().await.is_err());
        assert_eq!(fake.state().bot_texts(7).len(), shown);
    }
    fake.stop().await;
    let request = http_client().get(format!("{}/bot{TOKEN}/getMe", fake.base_url()));
    assert!(request.send().await.unwrap_err().is_connect());
    fake.start_again().await;
    assert_eq!(call_api(&fake, "getMe", json!({})).await.0, StatusCode::OK);
}
