//! A test that counts the resources of its own process and must therefore be the only one in it.

use std::time::Duration;

use quell_testkit::leaks::{ResourceBaseline, TaskBaseline};
use quell_testkit::model::{ScriptedModel, ScriptedResponse, ScriptedStream};
use serde_json::json;

#[tokio::test]
async fn a_dropped_server_leaves_no_thread_descriptor_or_task() {
    let client = quell_testkit::daemon::http_client();
    let (before, tasks) = (ResourceBaseline::capture(std::process::id()), TaskBaseline::capture());
    let model = ScriptedModel::start().await;
    model
        .script(ScriptedResponse::SilentBeforeHeaders)
        .script(ScriptedStream::new().text("There are").wait_for_gate("never"));
    let url = format!("{}/chat/completions", model.base_url());
    let body = json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "hi"}]});
    for index in 0..2 {
        let asking = async { client.post(&url).json(&body).send().await?.text().await };
        tokio::select! {
            text = asking => panic!("it was not silent: {text:?}"),
            () = model.request_at(index).wait_paused() => {}
        }
    }
    drop(model);
    before.assert_restored(Duration::from_secs(10)).await;
    tasks.assert_restored(Duration::from_secs(10)).await;
}
