//! What a model can make a run collect.

use quell_testkit::model::{Behaviour, Stream};
use serde_json::json;

use super::{MB, Site};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_calls_in_a_message_fail_and_start_nothing() {
    let site = Site::open().await;
    let call = json!({"command": "touch proof"});
    let stream = (0..10_000).fold(Stream::new(), |stream, n| stream.tool_call(format!("c{n}"), "shell", &call));
    site.model.script(stream);
    let before = site.resident();
    let verdict = site.verdict("s").await;
    assert_eq!(verdict["kind"], "failed", "{verdict}");
    assert!(verdict["message"].as_str().unwrap().contains("more than 128 tool calls"), "{verdict}");
    let grown = site.peak().saturating_sub(before);
    assert!(grown < 200 * MB, "{} MB more", grown / MB);
    assert!(site.daemon.home().data().ancestors().all(|folder| !folder.join("proof").exists()));
    site.model.script(Behaviour::text("Here again."));
    assert_eq!(site.verdict("s").await["kind"], "completed");
    site.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_megabytes_of_arguments_fail_the_run() {
    let site = Site::open().await;
    let before = site.resident();
    let whole = json!({"path": "large", "content": "x".repeat(10 * MB)});
    site.model.script(Stream::new().tool_call("c1", "write_file", &whole).arguments_in_pieces_of(60_000));
    let verdict = site.verdict("s").await;
    assert_eq!(verdict["kind"], "failed", "{verdict}");
    assert!(verdict["message"].as_str().unwrap().contains("bytes of arguments"), "{verdict}");
    let grown = site.peak().saturating_sub(before);
    assert!(grown < 200 * MB, "{} MB more", grown / MB);
    site.model.script(Behaviour::text("Here again."));
    assert_eq!(site.verdict("s").await["kind"], "completed");
    site.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_collects_too_much_ends_and_keeps_what_it_did() {
    let site = Site::open().await;
    let (before, stored) = (site.resident(), site.database());
    for n in 0..60 {
        let call = json!({"path": format!("file-{n}"), "content": "x".repeat(900 * 1000)});
        let stream = Stream::new().tool_call(format!("c{n}"), "write_file", &call).arguments_in_pieces_of(60_000);
        site.model.script(stream);
    }
    let verdict = site.verdict("s").await;
    assert_eq!((&verdict["kind"], &verdict["code"]), (&json!("failed"), &json!("turn_too_large")), "{verdict}");
    let steps = site.model.seen().len();
    assert!((15..25).contains(&steps), "{steps} steps");
    let (grown, stored) = (site.peak().saturating_sub(before), site.database().saturating_sub(stored));
    assert!(grown < 400 * MB, "{} MB more", grown / MB);
    assert!(stored < 100_000_000, "{stored} bytes in the database");
}
