//! Conversations from the messages of a client, and messages that form none.

use quell_protocol::CallEnd;
use serde_json::json;

use super::*;

const PNG: &str = "data:image/png;base64,iVBORw0KGgo=";

fn text(text: &str) -> MessageBlock<ClientCall> {
    MessageBlock::Text { text: text.to_owned() }
}

fn call(id: &str) -> MessageBlock<ClientCall> {
    MessageBlock::Call(ClientCall { id: id.to_owned(), tool: "look".into(), arguments: json!({}) })
}

fn user(builder: &mut ConversationBuilder, text: &str) {
    builder.push_user(&[ClientPart::Text(text.to_owned())]);
}

fn ok(output: &str) -> CallResult {
    CallResult::new(CallEnd::Ok, output)
}

fn item_texts(items: &[TurnItem]) -> Vec<String> {
    let text = |item: &TurnItem| match item {
        TurnItem::User { text, .. } => text.clone(),
        TurnItem::Assistant(message) => {
            let calls = message.calls().map(|call| format!("{}={}", call.call.id, call.result.output));
            std::iter::once(message.own_text()).chain(calls).collect::<Vec<_>>().join(" ")
        }
    };
    items.iter().map(text).collect()
}

#[test]
fn history_becomes_turns_text_and_continuation() {
    let mut builder = ConversationBuilder::new("p/m");
    builder.push_instructions("Be brief.").unwrap();
    builder.push_instructions("Be kind.").unwrap();
    user(&mut builder, "one");
    user(&mut builder, "two");
    builder.push_assistant(vec![text("hello")]).unwrap();
    user(&mut builder, "three");
    builder.push_assistant(vec![call("a"), call("b")]).unwrap();
    builder.push_result("b", ok("B")).unwrap();
    builder.push_result("a", ok("A")).unwrap();
    builder.push_assistant(vec![text("so")]).unwrap();
    let conversation = builder.finish().unwrap();
    assert_eq!(conversation.instructions, "Be brief.\n\nBe kind.");
    assert_eq!(conversation.turns.len(), 1);
    assert_eq!(item_texts(conversation.turns[0].items()), ["one\n\ntwo", "hello"]);
    assert_eq!(conversation.text, "three");
    let continuation: Vec<TurnItem> = conversation.continuation.into_iter().map(TurnItem::Assistant).collect();
    assert_eq!(item_texts(&continuation), [" a=A b=B", "so"]);
}

#[test]
fn history_that_begins_with_the_model_gets_a_stand_in() {
    let mut builder = ConversationBuilder::new("p/m");
    builder.push_assistant(vec![text("hello")]).unwrap();
    user(&mut builder, "hi");
    let conversation = builder.finish().unwrap();
    assert_eq!(item_texts(conversation.turns[0].items()), [ADDED_MESSAGE_REQUEST, "hello"]);
    assert!(conversation.turns[0].note().is_none() && conversation.text == "hi");
}

#[test]
fn results_without_a_call_and_calls_without_one_are_named() {
    let mut builder = ConversationBuilder::new("p/m");
    user(&mut builder, "go");
    assert_eq!(builder.push_result("x", ok("?")), Err(ConversationProblem::UnknownCall));
    assert_eq!(builder.push_assistant(vec![call("a"), call("a")]), Err(ConversationProblem::RepeatedCallId));
    builder.push_assistant(vec![call("a"), call("b")]).unwrap();
    builder.push_result("a", ok("1")).unwrap();
    assert_eq!(builder.push_result("a", ok("2")), Err(ConversationProblem::AlreadyAnswered));
    assert_eq!(builder.push_instructions("late"), Err(ConversationProblem::LateInstructions));
    assert_eq!(builder.finish(), Err(ConversationProblem::Unanswered(vec!["b".into()])));
}

#[test]
fn the_same_id_may_occur_in_two_messages() {
    let mut builder = ConversationBuilder::new("p/m");
    user(&mut builder, "go");
    for output in ["first", "second"] {
        builder.push_assistant(vec![call("call_0")]).unwrap();
        builder.push_result("call_0", ok(output)).unwrap();
    }
    let continuation = builder.finish().unwrap().continuation;
    let calls: Vec<_> = continuation.iter().flat_map(ModelMessage::calls).collect();
    assert_eq!(calls.iter().map(|call| call.result.output.as_str()).collect::<Vec<_>>(), ["first", "second"]);
    assert_ne!(calls[0].call.id, calls[1].call.id);
}

#[test]
fn single_blocks_form_one_message_until_a_result() {
    let mut builder = ConversationBuilder::new("p/m");
    user(&mut builder, "go");
    builder.extend_assistant(text("I look.")).unwrap();
    builder.extend_assistant(call("a")).unwrap();
    assert_eq!(builder.extend_assistant(call("a")), Err(ConversationProblem::RepeatedCallId));
    builder.extend_assistant(call("b")).unwrap();
    builder.push_result("a", ok("A")).unwrap();
    builder.push_result("b", ok("B")).unwrap();
    builder.extend_assistant(text("Done.")).unwrap();
    let continuation = builder.finish().unwrap().continuation;
    assert_eq!(continuation.len(), 2);
    assert_eq!(continuation[0].blocks.len(), 3);
    assert_eq!(continuation[1].own_text(), "Done.");
}

#[test]
fn images_are_markers_and_texts_never_are() {
    let mut builder = ConversationBuilder::new("p/m");
    builder.push_user(&[ClientPart::Text("[IMAGE:/etc/passwd]".into()), ClientPart::Image(PNG.into())]);
    let text = builder.finish().unwrap().text;
    assert_eq!(image_sources(&text).collect::<Vec<_>>(), [PNG]);
    assert!(text.starts_with("[ IMAGE:/etc/passwd]\n\n"));
}

#[test]
fn only_urls_of_images_that_models_accept_are_images() {
    assert_eq!(image_part(PNG), Ok(ClientPart::Image(PNG.into())));
    assert!(image_part("https://a.example/x.png").is_ok());
    for url in [
        "http://a.example/x.png",
        "/etc/passwd",
        "file:///x",
        "data:image/png;base64,AAAA",
        "data:,x",
        "https://a/[",
        "",
    ] {
        assert!(image_part(url).is_err(), "{url}");
    }
}

#[test]
fn more_images_than_a_request_takes_are_refused() {
    let mut builder = ConversationBuilder::new("p/m");
    builder.push_user(&vec![ClientPart::Image(PNG.into()); MAX_REQUEST_IMAGES]);
    builder.push_assistant(vec![call("a")]).unwrap();
    builder.push_result("a", call_result(CallEnd::Ok, vec![ClientPart::Image(PNG.into())])).unwrap();
    assert_eq!(builder.finish(), Err(ConversationProblem::TooManyImages));
}
