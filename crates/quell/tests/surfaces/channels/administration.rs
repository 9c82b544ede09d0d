//! Operate channels from outside: list, test and send; wrong tokens; the endpoint of the webhook channel.

use quell_testkit::daemon::{TestApiResponse, poll_until};
use quell_testkit::model::ScriptedResponse;
use quell_testkit::networks::telegram::{BOT_NAME, FakeTelegram, TOKEN, TelegramTestUser};
use quell_testkit::networks::webhook::{self, FakeWebhookReceiver};
use reqwest::Method;
use serde_json::{Value, json};

use super::ChannelDaemonFixture;
use crate::test_daemon::run_cli;
use crate::test_engine::ProcessLock;
use crate::test_server::assert_fields;

const ANN: TelegramTestUser = TelegramTestUser { id: 77, name: "ann" };
/// A private chat has the id of its user.
const CHAT: i64 = 77;

fn telegram_config(telegram: &FakeTelegram) -> String {
    format!(
        "[channels.tg]\nkind = \"telegram\"\napi_base = \"{}\"\ntoken_env = \"TOKEN\"\nallow = [\"77\"]\n",
        telegram.base_url()
    )
}

impl ChannelDaemonFixture {
    async fn wait_channel_state(&self, state: &str) -> Value {
        poll_until("the state of the channel", async || {
            let rows = self.daemon.api().get("/api/channels").await.expect_status(200);
            Some(rows["items"][0].clone()).filter(|row| row["state"] == state)
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_is_listed_tested_and_written_to() {
    let process_lock = ProcessLock::shared().await;
    let telegram = FakeTelegram::start().await;
    let fixture = ChannelDaemonFixture::start(process_lock, &telegram_config(&telegram), TOKEN).await;
    fixture.wait_channel_state("connected").await;
    let home = fixture.daemon.home();
    telegram.post_message(CHAT, ANN, "정지");
    telegram.wait_for("an answer", |it| it.bot_texts(CHAT) == ["Nothing of yours is running here."]).await;

    let listed = run_cli(home, &["channels"]);
    assert_eq!(listed.code, 0, "{listed:?}");
    let row = listed.out.lines().nth(1).unwrap();
    assert!(row.starts_with("tg    telegram  ● connected") && row.contains(BOT_NAME), "{listed:?}");
    let tested = run_cli(home, &["channels", "test"]);
    assert!(tested.code == 0 && tested.out.starts_with("✓ tg: ") && tested.out.contains(BOT_NAME), "{tested:?}");

    let sent = run_cli(home, &["channels", "send", "tg:77", "the **backup** is done"]);
    assert_eq!((sent.code, sent.out.as_str()), (0, "delivered\n"), "{sent:?}");
    assert_eq!(telegram.state().bot_texts(CHAT)[1..], ["the backup is done"]);
    let nowhere = run_cli(home, &["channels", "send", "matrix:!room:example.org", "hello"]);
    assert_eq!((nowhere.code, nowhere.out.as_str()), (3, ""), "{nowhere:?}");
    assert!(nowhere.err.contains("there is no channel \"matrix\"; there are: tg"), "{nowhere:?}");
    telegram.block_bot(CHAT);
    let closed = run_cli(home, &["channels", "send", "tg:77", "anybody there?", "--json"]);
    let result: Value = serde_json::from_str(&closed.out).unwrap();
    assert_eq!(closed.code, 1, "{result:#}");
    assert_fields(&result, &json!({"delivery": "undelivered", "sent": 0}));

    let audit = fixture.daemon.api().get("/api/audit").await.expect_status(200);
    let entry = audit["items"].as_array().unwrap().iter().find(|row| row["action"] == "send_to_channel").unwrap();
    assert_fields(entry, &json!({"target": "channel tg", "detail": "to: 77"}));
    assert!(!audit.to_string().contains("backup"), "the audit log has message text");
    let metrics = fixture.daemon.api().get("/metrics").await.expect_status(200);
    let metrics = metrics.as_str().unwrap();
    for shown in ["connected{channel=\"tg\"} 1", "undelivered_total{channel=\"tg\"} 0"] {
        assert!(metrics.contains(&format!("quell_channel_{shown}")), "{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn channel_routes_need_write_to_test_and_admin_to_send() {
    let process_lock = ProcessLock::shared().await;
    let telegram = FakeTelegram::start().await;
    let fixture = ChannelDaemonFixture::start(process_lock, &telegram_config(&telegram), TOKEN).await;
    let http = fixture.daemon.api();
    let test = "/api/channels/tg/test";
    let body = json!({"to": "tg:77", "text": "x"});
    for (scope, may_test) in [("read", false), ("write", true)] {
        let made = http.post("/api/tokens", &json!({"name": scope, "scope": scope})).await.expect_status(201);
        let client = http.with_token(made["token"].as_str().unwrap());
        let _ = client.get("/api/channels").await.expect_status(200);
        assert_eq!(client.post(test, &json!({})).await.status, if may_test { 200 } else { 403 });
        assert_eq!(client.post("/api/channels/send", &body).await.status, 403);
    }
    assert_eq!(http.post("/api/channels/other/test", &json!({})).await.problem_code(), Some("channel_not_found"));
    for bad in
        [json!({"to": "tg", "text": "x"}), json!({"to": "tg:", "text": "x"}), json!({"to": "tg:77", "text": " "})]
    {
        assert_eq!(http.post("/api/channels/send", &bad).await.problem_code(), Some("invalid_request"), "{bad}");
    }
    assert!(telegram.calls("sendMessage").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_is_said_everywhere_and_shown_nowhere() {
    let process_lock = ProcessLock::shared().await;
    let telegram = FakeTelegram::start().await;
    let wrong = "7654321:AAAnotherTokenOfNobody_9876543210zy";
    let fixture = ChannelDaemonFixture::start(process_lock, &telegram_config(&telegram), wrong).await;
    let row = fixture.wait_channel_state("refused").await;
    assert!(!row["detail"].as_str().unwrap().is_empty(), "{row:#}");
    let home = fixture.daemon.home();
    let listed = run_cli(home, &["channels", "list"]);
    assert!(listed.out.contains("▲ refused") && listed.err.starts_with("tg: "), "{listed:?}");
    let tested = run_cli(home, &["channels", "test", "tg"]);
    assert!(tested.code == 1 && tested.out.starts_with("▲ tg: "), "{tested:?}");
    let examined = run_cli(home, &["doctor"]);
    assert_eq!(examined.code, 1, "{examined:?}");
    let mut lines = examined.out.lines().skip_while(|line| !line.starts_with("✗ fail  channels        tg: "));
    assert!(lines.nth(1).is_some_and(|remedy| remedy.contains("docs/channels/telegram.md")), "{}", examined.out);
    let log = std::fs::read_to_string(home.log_file()).unwrap();
    let secret = wrong.split_once(':').unwrap().1;
    for shown in [&listed.out, &listed.err, &tested.out, &examined.out, &log, &row.to_string()] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

pub(super) struct WebhookDaemonFixture {
    pub(super) receiver: FakeWebhookReceiver,
    pub(super) base: ChannelDaemonFixture,
}

impl WebhookDaemonFixture {
    async fn start() -> Self {
        Self::start_with("").await
    }

    /// With more lines in the channel's configuration.
    pub(super) async fn start_with(more: &str) -> Self {
        let process_lock = ProcessLock::shared().await;
        let receiver = FakeWebhookReceiver::start().await;
        let channel = format!(
            "[channels.shop]\nkind = \"webhook\"\ntoken_env = \"TOKEN\"\nreply_url = \"{}\"\nallow = [\"*\"]\ndrafts = false\n{more}\n",
            receiver.reply_url()
        );
        let fixture = ChannelDaemonFixture::start(process_lock, &channel, webhook::TOKEN).await;
        Self { receiver, base: fixture }
    }

    /// Posts a body, signed with a timestamp that is `away` seconds from now.
    pub(super) async fn post(&self, body: &str, away: i64) -> TestApiResponse {
        self.post_signed(body, FakeWebhookReceiver::signed_headers(body, jiff::Timestamp::now().as_second() + away))
            .await
    }

    async fn post_signed(&self, body: &str, headers: [(&'static str, String); 3]) -> TestApiResponse {
        let http = self.base.daemon.api().with_token("");
        let mut request = http.request(Method::POST, "/api/channels/shop/messages").body(body.to_owned());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        http.send(request).await
    }
}

fn message_body(id: &str, text: &str) -> String {
    json!({"id": id, "sender": "c4", "target": "o17", "text": text}).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_posted_message_is_answered_once_however_often_it_is_posted() {
    let fixture = WebhookDaemonFixture::start().await;
    fixture.base.model.script(ScriptedResponse::text("It left today."));
    for _ in 0..3 {
        let answer = fixture.post(&message_body("m1", "Where is it?"), 0).await;
        assert_eq!((answer.status, &answer.body), (202, &json!({"id": "m1"})));
    }
    fixture.receiver.wait_for("the answer", |it| it.texts("o17") == ["It left today."]).await;
    // A repeated message would have reached the model before this one.
    fixture.base.model.script(ScriptedResponse::text("You are welcome."));
    let _ = fixture.post(&message_body("m2", "Thanks."), 0).await.expect_status(202);
    fixture.receiver.wait_for("the next", |it| it.texts("o17") == ["It left today.", "You are welcome."]).await;
    assert_eq!(fixture.base.model.request_count(), 2);
    // The answer counts once the network has confirmed it.
    poll_until("two answers are counted", async || {
        (fixture.base.wait_channel_state("connected").await["answered"] == 2).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_that_is_posted_has_acted_when_it_is_answered() {
    let fixture = WebhookDaemonFixture::start().await;
    fixture.base.model.script(ScriptedResponse::silent_mid_stream("Once upon"));
    let _ = fixture.post(&message_body("m1", "tell me a story"), 0).await.expect_status(202);
    fixture.base.model.request_at(0).wait_streaming().await;
    let _ = fixture.post(&message_body("m2", "/stop"), 0).await.expect_status(202);
    fixture.base.model.request_at(0).wait_client_left().await;
    let has_receipt =
        |it: &webhook::FakeReceiverState| it.texts("o17").iter().any(|text| text.starts_with("⏹ stopped in"));
    fixture.receiver.wait_for("the receipt", has_receipt).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unsigned_stale_and_malformed_posts_are_refused() {
    let fixture = WebhookDaemonFixture::start().await;
    let body = message_body("m1", "hello");
    let now = jiff::Timestamp::now().as_second();
    let [kind, at, (name, signature)] = FakeWebhookReceiver::signed_headers(&body, now);
    let forged =
        fixture.post_signed(&body.replace("hello", "hullo"), [kind.clone(), at.clone(), (name, signature)]).await;
    assert_eq!((forged.status, forged.problem_code()), (401, Some("bad_signature")));
    let unsigned = fixture.post_signed(&body, [kind, at, ("x-nothing", String::new())]).await;
    assert_eq!((unsigned.status, unsigned.problem_code()), (401, Some("bad_signature")));
    for away in [-400, 400] {
        let stale = fixture.post(&body, away).await;
        assert_eq!((stale.status, stale.problem_code()), (401, Some("stale_timestamp")));
    }
    let odd = fixture.post("{\"id\": \"m1\"}", 0).await;
    assert_eq!((odd.status, odd.problem_code()), (400, Some("invalid_request")));
    let large = fixture.post(&message_body("m1", &"x".repeat(300 * 1024)), 0).await;
    assert_eq!((large.status, large.problem_code()), (413, Some("body_too_large")));
    let http = fixture.base.daemon.api();
    // A token of the daemon does not replace the signature.
    let by_token = http.post("/api/channels/shop/messages", &json!({"id": "m1"})).await;
    assert_eq!(by_token.problem_code(), Some("bad_signature"));
    let nobody = http.with_token("").post("/api/channels/other/messages", &json!({})).await;
    assert_eq!((nobody.status, nobody.problem_code()), (404, Some("channel_not_found")));
    assert_eq!(fixture.base.wait_channel_state("connected").await["heard"], 0);
    assert_eq!(fixture.base.model.request_count(), 0);
}
