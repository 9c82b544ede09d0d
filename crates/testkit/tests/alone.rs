//! A test that counts what its own process holds, and so must be the only one in it.

use std::time::Duration;

use quell_testkit::leaks::{Baseline, Tasks};
use quell_testkit::model::{Behaviour, ScriptedModel, Stream};
use serde_json::json;

#[tokio::test]
async fn a_dropped_server_leaves_no_thread_descriptor_or_task() {
    let client = quell_testkit::daemon::client();
    let (before, tasks) = (Baseline::of(std::process::id()), Tasks::now());
    let model = ScriptedModel::start().await;
    model.script(Behaviour::SilentBeforeHeaders).script(Stream::new().text("There are").wait_for("never"));
    let url = format!("{}/chat/completions", model.base_url());
    let body = json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "hi"}]});
    for index in 0..2 {
        let asking = async { client.post(&url).json(&body).send().await?.text().await };
        tokio::select! {
            text = asking => panic!("it was not silent: {text:?}"),
            () = model.request(index).resting() => {}
        }
    }
    drop(model);
    before.assert_back(Duration::from_secs(10)).await;
    tasks.assert_back(Duration::from_secs(10)).await;
}
