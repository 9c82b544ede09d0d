//! Schedules over HTTP, on the command line, and into a chat.

use quell_testkit::networks::telegram::{FakeTelegram, TOKEN, TelegramTestUser};

use crate::prelude::*;

const ANN: TelegramTestUser = TelegramTestUser { id: 77, name: "ann" };
/// A private chat has the id of its user.
const CHAT: i64 = 77;
const SHORT_INTERVALS: &str = "[schedules]\nmin_interval_s = 1\n";

#[tokio::test(flavor = "multi_thread")]
async fn people_manage_their_own_schedules_over_http() {
    let (_model, daemon) = start_daemon("").await;
    let admin = daemon.api();
    let made = admin.post("/api/tokens", &json!({"name": "ann", "scope": "write"})).await.expect_status(201);
    let ann = admin.with_token(made["token"].as_str().unwrap());
    let body = json!({"cron": "0 9 * * mon-fri", "timezone": "Europe/Berlin", "text": "what is new?"});
    let schedule = ann.post("/api/schedules", &body).await.expect_status(201);
    let path = format!("/api/schedules/{}", schedule["id"].as_str().unwrap());
    assert_fields(&schedule, &json!({"timezone": "Europe/Berlin", "missed": "skip", "createdBy": "ann", "fired": 0}));
    let of_admin = admin.post("/api/schedules", &json!({"every": "2h", "text": "mine"})).await.expect_status(201);
    let listed = ann.get("/api/schedules").await.expect_status(200);
    assert_eq!(listed["items"], json!([schedule]));
    assert_eq!(admin.get("/api/schedules").await.expect_status(200)["items"].as_array().unwrap().len(), 2);
    let of_admin = format!("/api/schedules/{}", of_admin["id"].as_str().unwrap());
    assert_problem(&ann.get(&of_admin).await, 404, "not_found");
    assert_problem(&ann.delete(&of_admin).await, 404, "not_found");
    let paused = ann.patch(&path, &json!({"paused": true})).await.expect_status(200);
    assert_eq!((&paused["paused"]["by"], &paused["nextAt"]), (&json!("ann"), &Value::Null));
    let resumed = ann.patch(&path, &json!({"paused": false, "missed": "once"})).await.expect_status(200);
    assert_eq!((&resumed["nextAt"], &resumed["missed"]), (&schedule["nextAt"], &json!("once")));
    ann.delete(&path).await.expect_status(204);
    assert_problem(&ann.get(&path).await, 404, "not_found");
    let audit = admin.get("/api/audit").await.expect_status(200);
    let actions: Vec<&str> =
        audit["items"].as_array().unwrap().iter().filter_map(|entry| entry["action"].as_str()).collect();
    for action in ["create_schedule", "pause_schedule", "resume_schedule", "delete_schedule"] {
        assert!(actions.contains(&action), "{action}: {actions:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_schedule_is_refused_with_the_reason() {
    let (_model, daemon) = start_daemon("").await;
    for (body, reason) in [
        (json!({"every": "10s", "text": "x"}), "60 s are the least"),
        (json!({"cron": "0 25 * * *", "text": "x"}), "the cron expression"),
        (json!({"every": "1h", "cron": "0 9 * * *", "text": "x"}), "give one of"),
        (json!({"at": "2001-01-01T00:00:00Z", "text": "x"}), "in the past"),
        (json!({"every": "1h", "timezone": "Mars/Base", "text": "x"}), "there is no time zone"),
        (json!({"every": "1h", "text": " "}), "the text is empty"),
        (json!({"every": "1h", "text": "x", "delivery": {"channel": "irc", "to": "#team"}}), "there is no channel"),
    ] {
        let refused = daemon.api().post("/api/schedules", &body).await;
        assert_problem(&refused, 400, "invalid_request");
        assert!(refused.body["detail"].as_str().unwrap().contains(reason), "{:#}", refused.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_adds_pauses_and_removes_schedules() {
    let (_model, daemon) = start_daemon("").await;
    let quell = |args: &[&str]| {
        let ended = run_cli(daemon.home(), args);
        assert_eq!(ended.code, 0, "{args:?}: {}{}", ended.out, ended.err);
        ended.out
    };
    quell(&["schedules", "add", "--every", "15m", "--session", "watch", "is the site up?"]);
    let listed: Value = serde_json::from_str(&quell(&["schedules", "--json"])).unwrap();
    let id = listed[0]["id"].as_str().unwrap().to_owned();
    assert_fields(&listed[0], &json!({"every": "15m", "sessionKey": "watch", "text": "is the site up?"}));
    quell(&["schedules", "pause", &id]);
    let shown = quell(&["schedules", "show", &id]);
    assert!(shown.contains("paused"), "{shown}");
    quell(&["schedules", "resume", &id]);
    let stopped = quell(&["stop", "--all", "--hold"]);
    assert!(stopped.contains(&format!("paused the schedule {id}")), "{stopped}");
    quell(&["schedules", "remove", &id]);
    let listed: Value = serde_json::from_str(&quell(&["schedules", "--json"])).unwrap();
    assert_eq!(listed, json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_a_run_prints_the_schedules_that_it_paused() {
    let (model, daemon) = start_daemon("").await;
    let arguments = json!({"text": "look again", "every": "2h"});
    model.script(ScriptedResponse::tool_call("c1", "cron_add", &arguments));
    model.script(ScriptedResponse::silent_mid_stream("Made."));
    let run = daemon.api().send_message("s", "look from time to time").await;
    daemon.api().run_events(&run, 0).await.wait_for("text.delta").await;
    let made = daemon.api().get("/api/schedules").await.expect_status(200);
    let stopped = run_cli(daemon.home(), &["stop", &run]);
    let line = format!("paused the schedule {}", made["items"][0]["id"].as_str().unwrap());
    assert!(stopped.out.contains(&line), "{}{}", stopped.out, stopped.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_of_a_firing_is_sent_into_a_chat() {
    let _lock = ProcessLock::shared().await;
    let telegram = FakeTelegram::start().await;
    let model = ScriptedModel::start().await;
    let channel = format!(
        "[channels.telegram]\nkind = \"telegram\"\napi_base = \"{}\"\ntoken_env = \"TOKEN\"\nallow = [\"77\"]\n",
        telegram.base_url()
    );
    let home = DaemonHome::new(&config_toml(&model, &format!("{channel}{SHORT_INTERVALS}")));
    let daemon = home.with_env("TOKEN", TOKEN).start(quell_exe()).await;
    let made = daemon.api().post("/api/tokens", &json!({"name": "ann", "scope": "write"})).await.expect_status(201);
    let ann = daemon.api().with_token(made["token"].as_str().unwrap());
    model.script(ScriptedResponse::text("Hello."));
    telegram.post_message(CHAT, ANN, "hello");
    telegram.wait_for("the first answer", |it| it.bot_texts(CHAT).contains(&"Hello.")).await;
    let delivery = json!({"channel": "telegram", "to": "77"});
    let body = json!({"every": "1s", "text": "what is new?", "delivery": delivery});
    assert_problem(&ann.post("/api/schedules", &body).await, 400, "invalid_request");
    model.script(ScriptedResponse::text("All is quiet."));
    let schedule = daemon.api().post("/api/schedules", &body).await.expect_status(201);
    telegram.wait_for("the answer", |it| it.bot_texts(CHAT).contains(&"All is quiet.")).await;
    let path = format!("/api/schedules/{}", schedule["id"].as_str().unwrap());
    let paused = daemon.api().patch(&path, &json!({"paused": true})).await.expect_status(200);
    let run = daemon.api().run_view(paused["lastRun"].as_str().unwrap()).await;
    assert_eq!(run["sessionKey"], schedule["sessionKey"]);
    assert_eq!(run["surface"], "http", "{run:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn people_see_and_change_their_schedules_in_a_chat() {
    let _lock = ProcessLock::shared().await;
    let telegram = FakeTelegram::start().await;
    let model = ScriptedModel::start().await;
    let channel = format!(
        "[channels.telegram]\nkind = \"telegram\"\napi_base = \"{}\"\ntoken_env = \"TOKEN\"\noperators = [\"77\"]\n",
        telegram.base_url()
    );
    let home = DaemonHome::new(&config_toml(&model, &channel));
    let daemon = home.with_env("TOKEN", TOKEN).start(quell_exe()).await;
    daemon.api().post("/api/schedules", &json!({"every": "1h", "text": "of the admin"})).await.expect_status(201);
    let says = async |text: &str, answer: &str| {
        telegram.post_message(CHAT, ANN, text);
        telegram.wait_for(answer, |it| it.bot_texts(CHAT).iter().any(|shown| shown.contains(answer))).await;
    };
    // An operator sees nobody else's schedules where others read along.
    says("/schedules", "You have no schedules.").await;
    let arguments = json!({"text": "look again", "every": "2h", "delivery": {"channel": "telegram", "to": "77"}});
    model
        .script(ScriptedResponse::tool_call("c1", "cron_add", &arguments))
        .script(ScriptedResponse::text("It is made."));
    says("look every two hours", "It is made.").await;
    let listed = daemon.api().get("/api/schedules").await.expect_status(200);
    let made = listed["items"].as_array().unwrap().iter().find(|item| item["createdBy"] == "telegram:77").unwrap();
    let id = made["id"].as_str().unwrap();
    says("/schedules", &format!("{id}: 2h (UTC), next at ")).await;
    says(&format!("/schedules pause {id}"), &format!("The schedule {id} is paused.")).await;
    says("/schedules", &format!("{id}: 2h (UTC), paused: look again")).await;
    says(&format!("/schedules resume {id}"), &format!("The schedule {id} fires again, next at ")).await;
    says("/stop", &format!("⏸ Paused what was scheduled: {id}.")).await;
    says(&format!("/schedules remove {id}"), &format!("The schedule {id} is deleted.")).await;
    says(&format!("/schedules remove {id}"), &format!("You have no schedule {id}")).await;
    assert_eq!(daemon.api().get("/api/schedules").await.expect_status(200)["items"].as_array().unwrap().len(), 1);
}
