//! Rules for the input items of an OpenAI Responses request that stores nothing at the provider.

use serde_json::{Map, Value};

use super::{
    CallReference, HistoryFindings, HistoryRule, HistoryViolation, WRONG_PICTURE, is_blank, is_valid_tool_name,
    list_of, match_calls_to_results, text_of,
};

const BODY_FIELDS: &str = "model input instructions stream stream_options store include tools tool_choice parallel_tool_calls \
    temperature top_p max_output_tokens reasoning text metadata user prompt_cache_key safety_identifier service_tier \
    truncation";

/// All violations in the body of a request, in order of place within each rule.
pub fn check(body: &Value) -> Vec<HistoryViolation> {
    let mut findings = HistoryFindings::default();
    let items = findings.check_body(body, BODY_FIELDS, "input");
    findings.check_model_name(body);
    if let Some(instructions) = body.get("instructions") {
        let is_text = instructions.as_str().is_some_and(|text| !is_blank(text));
        findings.expect(is_text, HistoryRule::EmptyText, "body.instructions", "says nothing");
    }
    let is_hosted = |tool: &&Value| text_of(tool, "type") == "web_search";
    let functions: Vec<Value> = list_of(body, "tools").iter().filter(|tool| !is_hosted(tool)).cloned().collect();
    findings.check_tools(&functions, |tool| {
        let is_function = text_of(tool, "type") == "function" && tool.get("parameters").is_some_and(Value::is_object);
        Some(text_of(tool, "name")).filter(|_| is_function)
    });
    if items.is_empty() {
        return findings.0;
    }
    for (at, item) in items.iter().enumerate() {
        check_item(&mut findings, item, &item_place(at));
    }
    check_order(&mut findings, items);
    check_reasoning_order(&mut findings, items);
    check_call_pairing(&mut findings, items);
    findings.0
}

/// The sides of the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ItemSide {
    System,
    User,
    ModelText,
    /// Reasoning, searches of the provider and calls.
    ModelWork,
    Result,
}

/// None for an item of an unknown type or role.
fn side_of(item: &Value) -> Option<ItemSide> {
    match (text_of(item, "type"), text_of(item, "role")) {
        ("message" | "", "system" | "developer") => Some(ItemSide::System),
        ("message" | "", "user") => Some(ItemSide::User),
        ("message" | "", "assistant") => Some(ItemSide::ModelText),
        ("reasoning" | "web_search_call" | "function_call", _) => Some(ItemSide::ModelWork),
        ("function_call_output", _) => Some(ItemSide::Result),
        _ => None,
    }
}

fn item_place(at: usize) -> String {
    format!("input[{at}]")
}

fn check_item(findings: &mut HistoryFindings, item: &Value, place: &str) {
    let empty = Map::new();
    let object = item.as_object().unwrap_or(&empty);
    match text_of(item, "type") {
        "message" | "" => check_message(findings, item, object, place),
        "reasoning" => {
            findings.check_unknown_fields(object, "type id summary encrypted_content", place);
            let is_complete = ["id", "encrypted_content"].iter().all(|name| !text_of(item, name).is_empty());
            let detail = "has no id or no encrypted content, and nothing is stored";
            findings.expect(is_complete, HistoryRule::UnsignedThinking, place, detail);
            let is_summary = |part: &Value| text_of(part, "type") == "summary_text" && part["text"].is_string();
            let has_summary = item.get("summary").and_then(Value::as_array).is_some_and(|s| s.iter().all(is_summary));
            findings.expect(has_summary, HistoryRule::ContentType, place, "has no list of summaries");
        }
        "web_search_call" => {
            findings.check_unknown_fields(object, "type id status action", place);
            let is_complete = ["id", "status"].iter().all(|name| !text_of(item, name).is_empty());
            findings.expect(is_complete, HistoryRule::ContentType, place, "has no id or no status");
        }
        "function_call" => {
            findings.check_unknown_fields(object, "type id call_id name arguments status", place);
            let is_named = is_valid_tool_name(text_of(item, "name"));
            findings.expect(is_named, HistoryRule::CallShape, place, "has no legal name");
            let arguments = serde_json::from_str::<Map<String, Value>>(text_of(item, "arguments"));
            findings.expect(arguments.is_ok(), HistoryRule::Arguments, place, "is not the text of a JSON object");
        }
        "function_call_output" => {
            findings.check_unknown_fields(object, "type id call_id output status", place);
            match item.get("output") {
                Some(Value::String(_)) => {}
                parts => check_parts(findings, parts, &["input_text", "input_image"], place),
            }
        }
        other => findings.add(HistoryRule::ContentType, place, format!("{other:?} is no type of an item")),
    }
}

fn check_message(findings: &mut HistoryFindings, item: &Value, object: &Map<String, Value>, place: &str) {
    let (kinds, rule): (&[&str], _) = match text_of(item, "role") {
        "user" => (&["input_text", "input_image", "input_file"], HistoryRule::EmptyText),
        "system" | "developer" => (&["input_text"], HistoryRule::EmptyText),
        "assistant" => (&["output_text", "refusal"], HistoryRule::EmptyAssistant),
        other => {
            findings.add(HistoryRule::UnknownRole, place, format!("{other:?} is no role"));
            return;
        }
    };
    findings.check_unknown_fields(object, "type id role content status", place);
    match item.get("content") {
        Some(Value::String(text)) => findings.expect(!is_blank(text), rule, place, "says nothing"),
        Some(Value::Array(parts)) if parts.is_empty() => findings.add(rule, place, "has no part"),
        parts => check_parts(findings, parts, kinds, place),
    }
}

fn check_parts(findings: &mut HistoryFindings, parts: Option<&Value>, kinds: &[&str], place: &str) {
    let Some(parts) = parts.and_then(Value::as_array).filter(|parts| !parts.is_empty()) else {
        findings.add(HistoryRule::ContentType, place, "is neither text nor a list of parts");
        return;
    };
    for (nth, part) in parts.iter().enumerate() {
        let place = format!("{place}.content[{nth}]");
        let kind = text_of(part, "type");
        if !kinds.contains(&kind) {
            findings.add(HistoryRule::ContentType, place, format!("{kind:?} is no part of this item"));
            continue;
        }
        if let Some(object) = part.as_object() {
            findings.check_unknown_fields(
                object,
                "type text annotations logprobs refusal image_url detail file_id",
                &place,
            );
        }
        if kind == "input_image" {
            let is_valid = super::is_data_url(text_of(part, "image_url")) || is_web_url(text_of(part, "image_url"));
            findings.expect(is_valid, HistoryRule::ContentType, place, WRONG_PICTURE);
        } else if kind.ends_with("text") {
            findings.expect(!is_blank(text_of(part, "text")), HistoryRule::EmptyText, place, "says nothing");
        }
    }
}

fn is_web_url(url: &str) -> bool {
    url.starts_with("https://") || url.starts_with("http://")
}

/// The order of the sides. An answer may hold several items, but no two texts beside each other.
fn check_order(findings: &mut HistoryFindings, items: &[Value]) {
    let sides: Vec<(usize, ItemSide)> =
        items.iter().enumerate().filter_map(|(at, item)| Some((at, side_of(item)?))).collect();
    for (at, _) in sides.iter().skip(1).filter(|(_, side)| *side == ItemSide::System) {
        findings.add(HistoryRule::SystemNotFirst, item_place(*at), "a system message behind the first item");
    }
    let sides: Vec<(usize, ItemSide)> = sides.into_iter().filter(|(_, side)| *side != ItemSide::System).collect();
    match sides.first() {
        Some((_, ItemSide::User | ItemSide::Result)) => {}
        Some((at, _)) => findings.add(HistoryRule::FirstNotUser, item_place(*at), "the first item is the model's"),
        None => findings.add(HistoryRule::FirstNotUser, "body.input", "holds no item of the user"),
    }
    if let Some((at, ItemSide::ModelText)) = sides.last() {
        findings.add(HistoryRule::LastIsAssistant, item_place(*at), "leaves nothing to answer");
    }
    for pair in sides.windows(2) {
        let (at, rule) = match pair {
            [(_, ItemSide::User), (at, ItemSide::User)] => (at, HistoryRule::ConsecutiveUser),
            [(_, ItemSide::ModelText), (at, ItemSide::ModelText)] => (at, HistoryRule::ConsecutiveAssistant),
            _ => continue,
        };
        findings.add(rule, item_place(*at), "follows another message of its role");
    }
}

/// Reasoning and searches stand before the item that they led to, and never twice.
fn check_reasoning_order(findings: &mut HistoryFindings, items: &[Value]) {
    let mut ids = Vec::new();
    for (at, item) in items.iter().enumerate().filter(|(_, item)| leads_on(item)) {
        let next = items.get(at + 1).and_then(side_of);
        let has_next = matches!(next, Some(ItemSide::ModelText | ItemSide::ModelWork));
        findings.expect(has_next, HistoryRule::ThinkingLast, item_place(at), "is without the item that follows it");
        let id = text_of(item, "id");
        let is_new = id.is_empty() || !ids.contains(&id);
        findings.expect(is_new, HistoryRule::ReasoningTwice, item_place(at), format!("{id:?} was sent before"));
        ids.push(id);
    }
}

fn leads_on(item: &Value) -> bool {
    matches!(text_of(item, "type"), "reasoning" | "web_search_call")
}

/// Results stand directly behind the items of the answer with their calls.
fn check_call_pairing(findings: &mut HistoryFindings, items: &[Value]) {
    let mut calls = Vec::new();
    let mut results = Vec::new();
    // The number of the answer, and the side of the item before.
    let (mut answer, mut before) = (0, None);
    for (at, item) in items.iter().enumerate() {
        let (side, place) = (side_of(item), item_place(at));
        let is_model = |side| matches!(side, Some(ItemSide::ModelText | ItemSide::ModelWork));
        // A misplaced result makes no room for others.
        let is_misplaced = side == Some(ItemSide::Result) && !is_model(before) && before != side;
        answer += usize::from(is_model(side) && !is_model(before));
        match text_of(item, "type") {
            "function_call" => {
                if let Some(id) = findings.check_call_id(item.get("call_id"), &place) {
                    calls.push(CallReference { message: answer, place, id });
                }
            }
            "function_call_output" => {
                if let Some(id) = findings.check_call_id(item.get("call_id"), &place) {
                    results.push((CallReference { message: at, place, id }, (!is_misplaced).then_some(answer)));
                }
            }
            _ => {}
        }
        before = if is_misplaced { before } else { side };
    }
    match_calls_to_results(findings, &calls, &results);
}
