//! Which answers of a model count: one that was cut or refused is never a finished one, none of its calls runs, and what was
//! refused does not stand in the way of the next message.

use quell_protocol::api::RunView;
use quell_protocol::{EventKind, Verdict};
use quell_testkit::Behaviour;
use quell_testkit::model::Stream;
use rstest::rstest;

use crate::harness::{Claim, House, Watcher, agent, flat, key};

fn failure(view: &RunView) -> (&str, &str) {
    match &view.verdict {
        Some(Verdict::Failed { code, message }) => (code, message),
        other => panic!("not failed: {other:?}"),
    }
}

/// What the next request of the session shows.
async fn next_sees(house: &House) -> String {
    house.model.script(Behaviour::text("fine"));
    let view = house.ask("s", "and now?").await;
    assert_eq!(view.verdict, Some(Verdict::Completed), "{view:#?}");
    flat(&house.last_messages())
}

#[tokio::test]
async fn an_answer_cut_by_its_length_is_failed_and_kept_for_people_alone() {
    let house = House::shared().await;
    house.model.script(Stream::new().text("The plan is: first").finish_reason("length"));
    let view = house.ask("s", "make a plan").await;
    let (code, message) = failure(&view);
    assert_eq!(code, "truncated");
    assert!(message.contains("max_tokens"), "{message}");
    let page = house.engine.history(&key("s"), 10, None).await.unwrap();
    let cut = page.messages.iter().find(|message| message.text == "The plan is: first");
    assert!(cut.is_some_and(|message| message.partial), "{page:#?}");
    let seen = next_sees(&house).await;
    assert!(seen.contains("make a plan") && !seen.contains("The plan is"), "{seen}");
    house.close().await;
}

#[rstest]
#[case::before_its_arguments("")]
#[case::with_arguments(r#"{"path":"."}"#)]
#[tokio::test]
async fn a_call_of_a_cut_message_does_not_run(#[case] arguments: &str) {
    let house = House::shared().await;
    let mut watcher = Watcher::of(&house.engine);
    let cut = Stream::new().text("I look.").raw_tool_call("c1", "list_files", arguments);
    house.model.script(cut.finish_reason("length"));
    let view = house.ask("s", "look").await;
    assert_eq!(failure(&view).0, "truncated");
    let started = |kind: &EventKind| matches!(kind, EventKind::ToolStarted { .. });
    assert!(!watcher.events(&view.run_id).iter().any(|event| started(&event.kind)), "{view:#?}");
    let seen = next_sees(&house).await;
    assert!(!seen.contains("list_files"), "{seen}");
    house.close().await;
}

#[tokio::test]
async fn a_refused_request_fails_and_leaves_what_the_model_sees() {
    let house = House::shared().await;
    house.model.script(Stream::new().text("I would say").finish_reason("content_filter"));
    let view = house.ask("s", "something forbidden").await;
    let (code, message) = failure(&view);
    assert_eq!(code, "refused");
    assert!(message.contains("refused to answer"), "{message}");
    let seen = next_sees(&house).await;
    assert!(!seen.contains("something forbidden") && !seen.contains("I would say"), "{seen}");
    assert!(seen.contains("refused"), "the model is told that there was something: {seen}");
    let page = house.engine.history(&key("s"), 10, None).await.unwrap();
    for text in ["something forbidden", "I would say"] {
        assert!(page.messages.iter().any(|message| message.text == text), "the record keeps it: {page:#?}");
    }
    house.close().await;
}

#[tokio::test]
async fn an_answer_of_white_space_is_no_answer() {
    let house = House::shared().await;
    house.model.script(Behaviour::text("\n "));
    let view = house.ask("s", "hello").await;
    assert_eq!(failure(&view).0, "empty_answer");
    house.close().await;
}

#[tokio::test]
async fn a_summary_cut_by_its_length_does_not_replace_the_history() {
    let house = House::with(Claim::shared().await, |config| {
        config.agents.get_mut(&agent("main")).unwrap().window_tokens = 600;
    })
    .await;
    house.model.script(Behaviour::text(format!("Boats are fine. {}", "And so on. ".repeat(300))));
    house.ask("s", "tell me of boats").await;
    house.model.script(Stream::new().text("It was ab").finish_reason("length"));
    house.model.script(Behaviour::text("Trains."));
    house.ask("s", "and of trains?").await;
    house.model.script(Behaviour::text("Of boats.")).script(Behaviour::text("Planes."));
    house.ask("s", "and of planes?").await;
    let asked = house.model.seen();
    let summary = flat(asked[3].messages());
    assert!(summary.contains("Boats are fine.") && !summary.contains("It was ab"), "nothing was lost: {summary}");
    house.close().await;
}

#[tokio::test]
async fn reasoning_in_the_chat_dialect_goes_back_with_its_call() {
    let house = House::shared().await;
    let look = Stream::new().thinking("Let me ").thinking("see.").text("I look.");
    house.model.script(look.tool_call("c1", "list_files", &serde_json::json!({})));
    house.model.script(Stream::new().thinking("Nothing.").text("It is empty."));
    house.ask("s", "look").await;
    let in_loop = house.last_messages();
    assert_eq!(in_loop[2]["reasoning_content"], "Let me see.", "{in_loop:#?}");
    next_sees(&house).await;
    let later = house.last_messages();
    assert_eq!(later[..in_loop.len()], in_loop, "in later turns as well");
    assert!(!flat(&later).contains("Nothing."), "reasoning that led to no call stays out");
    house.close().await;
}
