//! Conversations that get too long: older turns are summarised by the model, whole, once, and for good.

use quell_protocol::{EventKind, RunId, Verdict};
use quell_testkit::Behaviour;
use quell_testkit::model::Stream;
use serde_json::json;

use crate::harness::{Claim, House, Watcher, agent, copy_of, flat};

/// About 3,000 bytes.
fn long(text: &str) -> String {
    format!("{text} {}", "and so on and on it goes, ".repeat(120))
}

async fn house(window_tokens: usize) -> House {
    House::with(Claim::shared().await, |config| {
        config.agents.get_mut(&agent("main")).unwrap().window_tokens = window_tokens;
    })
    .await
}

fn overflow() -> Behaviour {
    let body = json!({"error": {"message": "too many tokens", "code": "context_length_exceeded"}}).to_string();
    Behaviour::Status { code: 400, headers: Vec::new(), body }
}

fn compactions(watcher: &mut Watcher, run: &RunId) -> Vec<(u32, String)> {
    let of = |kind: &EventKind| match kind {
        EventKind::Compacted { turns, summary } => Some((*turns, summary.clone())),
        _ => None,
    };
    watcher.events(run).iter().filter_map(|event| of(&event.kind)).collect()
}

#[tokio::test]
async fn older_turns_are_summarised_when_the_window_fills_and_stay_so() {
    // 1,700 tokens are 6,800 bytes, of which four fifths may be used.
    let house = house(1700).await;
    let mut watcher = Watcher::of(&house.engine);
    let call = Stream::new().text("I look.").tool_call("c1", "list_files", &json!({}));
    house.model.script(call).script(Behaviour::text(long("Boats are fine.")));
    house.ask("s", "tell me of boats").await;
    house.model.script(Behaviour::text(long("Trains are too.")));
    assert!(compactions(&mut watcher, &house.ask("s", "and of trains?").await.run_id).is_empty(), "it fits");
    house.model.script(Behaviour::text("They spoke of boats and trains.")).script(Behaviour::text("Planes fly."));
    let third = house.ask("s", "and of planes?").await;
    assert_eq!(third.output.as_deref(), Some("Planes fly."));
    assert_eq!(compactions(&mut watcher, &third.run_id), [(2, "They spoke of boats and trains.".to_owned())]);
    let seen = house.model.seen();
    let (summary, step) = (flat(seen[3].messages()), flat(seen[4].messages()));
    assert!(summary.contains("Boats are fine.") && summary.contains("Summarise the whole conversation"), "{summary}");
    assert!(!summary.contains("and of planes?"), "what is asked now is not summarised: {summary}");
    assert!(step.contains("They spoke of boats and trains.") && step.contains("and of planes?"), "{step}");
    assert!(!step.contains("Boats are fine.") && !step.contains("list_files"), "{step}");
    // Counted: the summary's call and the step's.
    assert!(third.usage.input_tokens > 0 && third.steps == 1, "{third:?}");
    house.model.script(Behaviour::text("Yes."));
    let fourth = house.ask("s", "really?").await;
    assert!(compactions(&mut watcher, &fourth.run_id).is_empty());
    assert!(flat(&house.last_messages()).contains("They spoke of boats and trains."), "it stays");
    // Also for another daemon on the same database.
    let data = copy_of(house.dir.path());
    let mut config =
        crate::harness::config(data.path(), &house.model.base_url(), quell_engine::scope::Probe::default());
    config.token_file = data.path().join("token");
    let other = quell_engine::Engine::start(config).await.unwrap();
    house.model.script(Behaviour::text("Still yes."));
    let ask = crate::harness::message("s", "and now?");
    let quell_engine::dispatch::Submitted::New(answer) = other.submit(&crate::harness::alice(), ask).await.unwrap()
    else {
        panic!("not new")
    };
    let cell = other.live(&answer.run_id).unwrap();
    cell.reached(quell_engine::cell::Progress::Ended).await;
    let after = flat(&house.last_messages());
    assert!(after.contains("They spoke of boats and trains.") && !after.contains("Boats are fine."), "{after}");
    other.shut_down().await;
    // People still read everything.
    let page = house.engine.history(&crate::harness::key("s"), 10, None).await.unwrap();
    assert!(page.messages.iter().any(|message| message.text.starts_with("Boats are fine.")));
    house.close().await;
}

#[tokio::test]
async fn a_provider_that_finds_it_too_long_triggers_a_summary_once() {
    let house = house(128_000).await;
    let mut watcher = Watcher::of(&house.engine);
    house.model.script(Behaviour::text(long("Boats are fine.")));
    house.ask("s", "tell me of boats").await;
    house.model.script(overflow()).script(Behaviour::text("Boats.")).script(Behaviour::text("Trains are too."));
    let second = house.ask("s", "and of trains?").await;
    assert_eq!(second.output.as_deref(), Some("Trains are too."));
    assert_eq!(compactions(&mut watcher, &second.run_id), [(1, "Boats.".to_owned())]);
    house.model.script(Behaviour::text(long("More."))).script(overflow());
    house.ask("s", "more").await;
    house.model.script(Behaviour::text("Summed up.")).script(overflow());
    let failed = house.ask("s", "and more").await;
    let Some(Verdict::Failed { code, .. }) = failed.verdict else { panic!("{failed:?}") };
    assert_eq!(code, "context_overflow", "the second time in one step it gives up");
    assert_eq!(house.model.unused(), 0);
    house.close().await;
}

#[tokio::test]
async fn a_summary_that_fails_is_no_end_and_after_an_overflow_the_last_words_stay() {
    let house = house(600).await;
    house.model.script(Behaviour::text(long("Boats are fine.")));
    house.ask("s", "tell me of boats").await;
    house.model.script(Behaviour::status(401)).script(Behaviour::text("Trains."));
    assert_eq!(house.ask("s", "and of trains?").await.output.as_deref(), Some("Trains."));
    let whole = flat(&house.last_messages());
    assert!(whole.contains("Boats are fine."), "the window was an estimate: {whole}");
    house.model.script(Behaviour::status(401)).script(overflow()).script(Behaviour::status(401));
    let failed = house.ask("s", "and of planes?").await;
    let Some(Verdict::Failed { code, message }) = failed.verdict else { panic!("{failed:?}") };
    assert_eq!(code, "context_overflow");
    assert!(message.contains("summarising it failed") && message.contains("check its API key"), "{message}");
    house.model.script(Behaviour::text("Planes."));
    assert_eq!(house.ask("s", "again").await.output.as_deref(), Some("Planes."), "it fits, so no summary is made");
    let short = flat(&house.last_messages());
    assert!(short.contains("User: tell me of boats") && short.contains("Assistant: Boats are fine."), "{short}");
    assert!(short.contains("and of planes?"), "the newest turns stay as they are: {short}");
    assert!(!short.contains(&long("Boats are fine.")), "each message by its beginning: {short}");
    house.close().await;
}

/// A call that prints about 3,000 bytes.
fn prints(id: &str) -> Behaviour {
    let command = format!("printf 'begin {id} '; head -c 3000 /dev/zero | tr '\\0' x; printf ' end {id}'");
    Behaviour::tool_call(id, "shell", &json!({"command": command}))
}

#[tokio::test]
async fn a_run_that_is_too_long_by_itself_goes_on_and_so_does_its_session() {
    // 3,000 tokens are 12,000 bytes, of which four fifths may be used.
    let house = house(3000).await;
    for id in ["c1", "c2", "c3", "c4", "c5"] {
        house.model.script(prints(id));
    }
    house.model.script(Behaviour::text("It printed a lot."));
    let run = house.ask("s", "print").await;
    assert_eq!(run.output.as_deref(), Some("It printed a lot."), "{run:#?}");
    let last = flat(&house.last_messages());
    assert!(last.len() < 12_000, "{} bytes", last.len());
    assert!(last.contains("left out to make room") && last.contains("begin c1") && last.contains("end c1"), "{last}");
    assert!(last.contains(&"x".repeat(3000)), "the newest result is whole: {last}");
    house.model.script(Behaviour::text("x was printed.")).script(Behaviour::text("Yes."));
    assert_eq!(house.ask("s", "really?").await.output.as_deref(), Some("Yes."));
    let seen = house.model.seen();
    let summary = flat(seen[6].messages());
    assert!(summary.contains("Summarise the whole") && summary.len() < 12_000, "{} bytes: {summary}", summary.len());
    house.close().await;
}

#[tokio::test]
async fn a_run_that_its_provider_finds_too_long_is_shown_shorter() {
    let house = house(128_000).await;
    house.model.script(prints("c1")).script(prints("c2")).script(overflow()).script(Behaviour::text("Done."));
    assert_eq!(house.ask("s", "print").await.output.as_deref(), Some("Done."));
    let seen = house.model.seen();
    let (refused, taken) = (flat(seen[2].messages()).len(), flat(seen[3].messages()).len());
    assert!(taken < refused - 1500, "{taken} of {refused} bytes");
    house.model.script(overflow());
    let failed = house.ask("empty", "hello").await;
    assert!(matches!(failed.verdict, Some(Verdict::Failed { .. })), "what cannot shrink fails: {failed:?}");
    house.close().await;
}

#[tokio::test]
async fn a_summary_does_not_lose_that_a_request_was_stopped() {
    let house = house(1700).await;
    house.model.script(Behaviour::text(long("Boats are fine.")));
    house.ask("s", "tell me of boats").await;
    house.model.script(Behaviour::silent_mid_stream("Trains"));
    let run = house.send(crate::harness::message("s", "sell all my trains")).await;
    house.text_came(&run).await;
    house.stop(&run);
    house.ended(&run).await;
    house.model.script(Behaviour::text("Boats and trains.")).script(Behaviour::text("Planes fly."));
    assert_eq!(house.ask("s", &long("and of planes?")).await.output.as_deref(), Some("Planes fly."));
    let shown = flat(&house.last_messages());
    assert!(shown.contains("Boats and trains.") && !shown.contains("sell all my trains"), "{shown}");
    assert!(shown.contains("Do not resume them"), "{shown}");
    house.close().await;
}
