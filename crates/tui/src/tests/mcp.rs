//! Prompts and resources of MCP servers: lists to choose from, and texts that come into the input.

use crossterm::event::KeyCode;
use quell_protocol::mcp::{McpContent, McpContentRequest, McpList, McpListKind};
use serde_json::json;

use super::away;
use crate::effects::{ChatEffect, DaemonQuery, DaemonResponse};
use crate::harness::{ChatHarness, from_json};

fn prompts() -> McpList {
    from_json(json!({
        "items": [
            {"server": "notes", "id": "daily", "description": "Asks for the day."},
            {"server": "notes", "id": "review", "description": "Reviews.", "arguments": [
                {"name": "topic", "required": true}, {"name": "depth", "required": false},
            ]},
        ],
        "unavailable": [],
    }))
}

/// A chat whose list of prompts is open.
fn chat_with_prompts() -> ChatHarness {
    let mut scene = ChatHarness::new();
    let effects = scene.submit_text("/prompts");
    let is_query = |effect: &ChatEffect| {
        matches!(effect, ChatEffect::Query(DaemonQuery::McpList { kind: McpListKind::Prompts, .. }))
    };
    assert!(effects.iter().any(is_query), "{effects:?}");
    scene.respond(DaemonResponse::McpList { kind: McpListKind::Prompts, result: Ok(prompts()) });
    scene
}

/// The request for a content among effects.
fn content_request(effects: &[ChatEffect]) -> Option<(String, McpContentRequest)> {
    effects.iter().find_map(|effect| match effect {
        ChatEffect::Query(DaemonQuery::McpContent { command, .. }) => {
            Some((command.server.clone(), command.request.clone()))
        }
        _ => None,
    })
}

#[test]
fn a_chosen_prompt_comes_into_the_input_and_is_not_sent() {
    let mut scene = chat_with_prompts();
    let chosen = McpContentRequest::Prompt { name: "daily".to_owned(), arguments: Default::default() };
    assert_eq!(content_request(&scene.press_key(KeyCode::Enter)), Some(("notes".to_owned(), chosen)));
    let content = McpContent { text: "What is due today?".to_owned() };
    let effects = scene.respond(DaemonResponse::McpContent { text: String::new(), result: Ok(content) });
    assert_eq!(scene.chat.composer.text(), "What is due today?");
    assert!(!effects.iter().any(|effect| matches!(effect, ChatEffect::SendMessage { .. })), "{effects:?}");
}

#[test]
fn a_prompt_with_arguments_asks_for_them_in_the_input() {
    let mut scene = chat_with_prompts();
    scene.type_text("review");
    assert_eq!(content_request(&scene.press_key(KeyCode::Enter)), None);
    assert_eq!(scene.chat.composer.text(), "/prompt notes review topic=");
    scene.type_text("the parser");
    let arguments = [("topic".to_owned(), "the parser".to_owned())].into_iter().collect();
    let filled = McpContentRequest::Prompt { name: "review".to_owned(), arguments };
    assert_eq!(content_request(&scene.press_key(KeyCode::Enter)), Some(("notes".to_owned(), filled)));
}

#[test]
fn a_resource_comes_before_the_text_and_a_failure_is_told() {
    let mut scene = ChatHarness::new();
    scene.type_text("/resource notes notes://today What is urgent?");
    let resource = McpContentRequest::Resource("notes://today".to_owned());
    assert_eq!(content_request(&scene.press_key(KeyCode::Enter)), Some(("notes".to_owned(), resource)));
    let content = McpContent { text: "Buy milk.".to_owned() };
    let text = "What is urgent?".to_owned();
    scene.respond(DaemonResponse::McpContent { text, result: Ok(content) });
    assert_eq!(scene.chat.composer.text(), "Buy milk.\n\nWhat is urgent?");
    scene.respond(DaemonResponse::McpContent { text: String::new(), result: Err(away()) });
    assert_eq!(scene.chat.composer.text(), "Buy milk.\n\nWhat is urgent?");
}
