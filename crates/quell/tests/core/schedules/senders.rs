//! The rights of those who made a schedule are checked at each firing.

use std::fs;

use quell_testkit::networks::telegram::{FakeTelegram, TOKEN, TelegramTestUser};

use crate::prelude::*;

const ANN: TelegramTestUser = TelegramTestUser { id: 77, name: "ann" };
const CHAT: i64 = 77;

/// A daemon in a chat network, where schedules may fire each second.
struct SenderTest {
    daemon: TestDaemon,
    telegram: FakeTelegram,
    model: ScriptedModel,
    _lock: ProcessLock,
}

fn config(telegram: &FakeTelegram, model: &ScriptedModel, allow: &str) -> String {
    let channel = format!(
        "[channels.telegram]\nkind = \"telegram\"\napi_base = \"{}\"\ntoken_env = \"TOKEN\"\nallow = [\"{allow}\"]\n",
        telegram.base_url()
    );
    config_toml(model, &format!("{channel}[schedules]\nmin_interval_s = 1\n"))
}

impl SenderTest {
    async fn start() -> Self {
        let lock = ProcessLock::shared().await;
        let (telegram, model) = (FakeTelegram::start().await, ScriptedModel::start().await);
        let home = DaemonHome::new(&config(&telegram, &model, "77"));
        let daemon = home.with_env("TOKEN", TOKEN).start(quell_exe()).await;
        Self { daemon, telegram, model, _lock: lock }
    }

    /// The first schedule as the admin sees it, once it is as wanted.
    async fn wait_schedule(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        poll_until(what, async || {
            let listed = self.daemon.api().get("/api/schedules").await.expect_status(200);
            listed["items"].get(0).filter(|item| wanted(item)).cloned()
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_ends_with_the_place_of_its_sender_in_the_chat() {
    let test = SenderTest::start().await;
    test.model.respond_by_prompt(|_, request| {
        let last = request.messages().last().unwrap();
        if last["role"] == "user" && last.to_string().contains("look every second") {
            ScriptedResponse::tool_call("c1", "cron_add", &json!({"text": "look again", "every": "1s"}))
        } else {
            ScriptedResponse::text("Done.")
        }
    });
    test.telegram.post_message(CHAT, ANN, "look every second");
    test.wait_schedule("a firing", |item| item["fired"].as_u64() > Some(0)).await;
    fs::write(test.daemon.home().config_file(), config(&test.telegram, &test.model, "88")).unwrap();
    let schedule = test.wait_schedule("the pause", |item| item["paused"].is_object()).await;
    let reason = schedule["paused"]["reason"].as_str().unwrap();
    assert_eq!(reason, "telegram:77 is not allowed in the channel \"telegram\" any more", "{schedule:#}");
    assert_eq!((&schedule["createdBy"], &schedule["nextAt"]), (&json!("telegram:77"), &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_sent_while_their_creator_is_an_admin() {
    let test = SenderTest::start().await;
    test.model.respond_by_prompt(|_, request| {
        let is_firing = request.messages().last().unwrap().to_string().contains("what is new?");
        ScriptedResponse::text(if is_firing { "All is quiet." } else { "Hello." })
    });
    // A bot writes only to people who have written to it.
    test.telegram.post_message(CHAT, ANN, "hello");
    test.telegram.wait_for("the first answer", |it| it.bot_texts(CHAT).contains(&"Hello.")).await;
    let admin = test.daemon.api();
    let made = admin.post("/api/tokens", &json!({"name": "ops", "scope": "admin"})).await.expect_status(201);
    let ops = admin.with_token(made["token"].as_str().unwrap());
    let delivery = json!({"channel": "telegram", "to": "77"});
    let body = json!({"every": "1s", "text": "what is new?", "missed": "once", "delivery": delivery});
    ops.post("/api/schedules", &body).await.expect_status(201);
    test.telegram.wait_for("the answer", |it| it.bot_texts(CHAT).contains(&"All is quiet.")).await;
    // Nothing fires between the end of the old token and the new one.
    admin.put("/api/hold", &json!({"reason": "new token"})).await.expect_status(200);
    admin.delete("/api/tokens/ops").await.expect_status(204);
    admin.post("/api/tokens", &json!({"name": "ops", "scope": "write"})).await.expect_status(201);
    admin.delete("/api/hold").await.expect_status(200);
    let schedule = test.wait_schedule("the pause", |item| item["paused"].is_object()).await;
    let reason = schedule["paused"]["reason"].as_str().unwrap();
    assert_eq!(reason, "its creator is no admin any more, so its answers may not be sent into the chat");
}
