//! What a background response says after its daemon was killed or restarted.

use super::*;

fn question() -> Value {
    json!({"model": "agent/main", "input": "work", "background": true})
}

async fn start_daemon_with_response(
    store: StoreKind,
) -> Option<(DaemonHome, TestDaemon, ScriptedModel, TestDatabase, Value)> {
    let database = store.start_database()?;
    let model = ScriptedModel::start().await;
    let agent = "[agents.main]\nmodel = \"scripted/m\"\nisolate = \"none\"\nsandbox = \"off\"\n";
    let home = DaemonHome::new(&format!("{}{}{agent}", database.config_toml(), provider_toml(&model)));
    let daemon = home.start(quell_exe()).await;
    model.script(ScriptedResponse::silent_mid_stream("begun"));
    let response = daemon.api().post("/v1/responses", &question()).await.expect_status(200);
    model.request_at(0).wait_paused().await;
    wait_for_text(&daemon.api()).await;
    Some((home, daemon, model, database, response))
}

#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_whose_daemon_was_killed_has_failed(#[case] store: StoreKind) {
    let Some((home, daemon, _model, _database, response)) = start_daemon_with_response(store).await else { return };
    daemon.kill9().await;
    let daemon = home.start(quell_exe()).await;
    let shown = daemon.api().get(&path(&response)).await.expect_status(200);
    assert_fields(&shown, &json!({"status": "failed", "error": {"code": "server_error"}}));
    let cancelled = daemon.api().post(&format!("{}/cancel", path(&response)), &json!({})).await.expect_status(200);
    assert_eq!(cancelled, shown, "an end never changes");
    let stream = daemon.api().request(Method::GET, &format!("{}?stream=true&starting_after=4", path(&response)));
    let events = parse_events(&stream.send().await.unwrap().text().await.unwrap());
    assert_eq!(events.len(), 1, "{events:#?}");
    assert_eq!((&events[0]["type"], &events[0]["sequence_number"]), (&json!("response.failed"), &json!(5)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_says_that_its_daemon_was_shut_down() {
    let Some((home, daemon, _model, _database, response)) = start_daemon_with_response(StoreKind::Sqlite).await else {
        return;
    };
    daemon.stop().await;
    let daemon = home.start(quell_exe()).await;
    let shown = daemon.api().get(&path(&response)).await.expect_status(200);
    assert_fields(&shown, &json!({"status": "failed", "error": {"message": "the run was stopped: shutdown"}}));
    assert_eq!(text_of(&shown), "begun");
}

#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_keeps_the_request_of_a_killed_daemon(#[case] store: StoreKind) {
    let Some((home, daemon, model, _database, _response)) = start_daemon_with_response(store).await else { return };
    let conversation = daemon.api().post("/v1/conversations", &json!({})).await.expect_status(200);
    let place = json!({"conversation": conversation["id"]});
    model.script(ScriptedResponse::silent_mid_stream("begun")).script(ScriptedResponse::text("next"));
    let request = with(with(question(), &place), &json!({"input": "remember this"}));
    let lost = daemon.api().post("/v1/responses", &request).await.expect_status(200);
    model.request_at(1).wait_paused().await;
    daemon.kill9().await;
    let daemon = home.start(quell_exe()).await;
    let next = with(json!({"model": "agent/main", "input": "and now?"}), &place);
    let next = daemon.api().post("/v1/responses", &next).await.expect_status(200);
    assert_eq!(text_of(&next), "next");
    let seen = messages_as_text(model.recorded_requests().last().unwrap().messages());
    assert!(seen.contains("remember this") && seen.contains("because the service went down"), "{seen}");
    let shown = daemon.api().get(&path(&lost)).await.expect_status(200);
    assert_fields(&shown, &json!({"status": "failed", "error": {"code": "server_error"}}));
}
