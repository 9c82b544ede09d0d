//! Limits on what a model can make a run accumulate.

use super::{LimitsFixture, MB};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_calls_in_a_message_fail_and_start_nothing() {
    let fixture = LimitsFixture::start().await;
    let call = json!({"command": "touch proof"});
    let stream = (0..10_000).fold(ScriptedStream::new(), |stream, n| stream.tool_call(format!("c{n}"), "shell", &call));
    fixture.model.script(stream);
    let before = fixture.resident_bytes();
    fixture.assert_fails_alone("more than 128 tool calls").await;
    fixture.assert_grown_less(before, 200, "10,000 calls");
    assert!(fixture.daemon.home().data_dir().ancestors().all(|folder| !folder.join("proof").exists()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_megabytes_of_arguments_fail_the_run() {
    let fixture = LimitsFixture::start().await;
    let before = fixture.resident_bytes();
    let whole = json!({"path": "large", "content": "x".repeat(10 * MB)});
    fixture.model.script(ScriptedStream::new().tool_call("c1", "write_file", &whole).split_arguments(60_000));
    fixture.assert_fails_alone("bytes of arguments").await;
    fixture.assert_grown_less(before, 200, "10 MB of arguments");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_collects_too_much_ends_and_keeps_what_it_did() {
    let fixture = LimitsFixture::start().await;
    let (before, stored) = (fixture.resident_bytes(), fixture.database_bytes());
    // A message holds at most 4 MiB of arguments, a turn 16 MiB.
    for step in 0..15 {
        let stream = (0..4).fold(ScriptedStream::new(), |stream, call| {
            let arguments = json!({"path": format!("file-{step}-{call}"), "content": "x".repeat(900 * 1000)});
            stream.tool_call(format!("c{step}-{call}"), "write_file", &arguments)
        });
        fixture.model.script(stream.split_arguments(60_000));
    }
    let verdict = fixture.run_to_verdict("s").await;
    assert_eq!((&verdict["kind"], &verdict["code"]), (&json!("failed"), &json!("turn_too_large")), "{verdict}");
    let steps = fixture.model.recorded_requests().len();
    assert!((4..8).contains(&steps), "{steps} steps");
    fixture.assert_grown_less(before, 400, "60 long calls");
    let stored = fixture.database_bytes().saturating_sub(stored);
    assert!(stored < 100_000_000, "{stored} bytes in the database");
}
