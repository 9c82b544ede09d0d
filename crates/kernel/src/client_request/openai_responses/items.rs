//! Parses the items of a conversation: messages, calls, their outputs, and reasoning.

use quell_protocol::CallEnd;
use serde_json::{Value, json};

use super::reasoning::decode_reasoning;
use crate::client_request::ClientRequestProblem;
use crate::client_request::conversation::{
    ClientCall, ClientPart, ConversationBuilder, ConversationProblem, call_result, image_part, join_parts,
};
use crate::client_request::fields::FieldRule::{Ignored, Only, Read, Refused};
use crate::client_request::fields::{FieldTable, RequestField, RequestObject};
use crate::client_request::openai_chat::parse_arguments;
use crate::turn::{MessageBlock, Thinking};

const NAMESPACE_ADVICE: &str = "give each tool a name of its own";
/// The fields of items. Clients send back what they received, with what their libraries have added.
const MESSAGE_FIELDS: &FieldTable =
    &[("type", Read), ("role", Read), ("content", Read), ("id", Read), ("status", Ignored), ("phase", Ignored)];
const CALL_FIELDS: &FieldTable = &[
    ("type", Read),
    ("id", Read),
    ("call_id", Read),
    ("name", Read),
    ("arguments", Read),
    ("status", Ignored),
    ("parsed_arguments", Ignored),
    ("caller", Ignored),
    ("async", Only(|value| value == false, "false")),
    ("namespace", Refused(NAMESPACE_ADVICE)),
];
const OUTPUT_FIELDS: &FieldTable = &[
    ("type", Read),
    ("id", Read),
    ("call_id", Read),
    ("output", Read),
    ("status", Ignored),
    ("name", Ignored),
    ("caller", Ignored),
    ("namespace", Refused(NAMESPACE_ADVICE)),
];
const REASONING_FIELDS: &FieldTable = &[
    ("type", Read),
    ("id", Read),
    ("summary", Read),
    ("content", Ignored),
    ("encrypted_content", Read),
    ("status", Ignored),
];
const TEXT_PART_FIELDS: &FieldTable = &[
    ("type", Read),
    ("text", Read),
    ("annotations", Ignored),
    ("logprobs", Ignored),
    ("parsed", Ignored),
    ("prompt_cache_breakpoint", Ignored),
];

/// The reasoning, texts and calls that follow each other: one message of the model.
pub(super) struct AssistantGroup {
    model: String,
    blocks: Vec<MessageBlock<ClientCall>>,
    /// The reasoning with which the message began. Its item can come after the text that it led to.
    leading: usize,
}

impl AssistantGroup {
    pub(super) fn new(model: &str) -> Self {
        Self { model: model.to_owned(), blocks: Vec::new(), leading: 0 }
    }

    /// Ends the message: something of the user or a tool follows.
    pub(super) fn close(&mut self, builder: &mut ConversationBuilder) -> Result<(), ConversationProblem> {
        self.leading = 0;
        std::mem::take(&mut self.blocks).into_iter().try_for_each(|block| builder.extend_assistant(block))
    }

    /// Takes the last bytes of the text away, which were cut off while they streamed.
    pub(super) fn take_cut_text(&mut self, bytes: usize) -> String {
        let Some(MessageBlock::Text { text }) = self.blocks.last_mut() else { return String::new() };
        let cut_text = text.split_off(text.floor_char_boundary(text.len().saturating_sub(bytes)));
        text.truncate(text.trim_end().len());
        if text.is_empty() {
            self.blocks.pop();
        }
        cut_text
    }

    fn push_leading(&mut self, thinking: Thinking) {
        self.blocks.insert(self.leading, MessageBlock::Thinking(thinking));
        self.leading += 1;
    }
}

/// The items of a request as items with a type, and with content in parts. A text is a message of the user.
pub(super) fn parse_input(input: &RequestField<'_>) -> Result<Vec<Value>, ClientRequestProblem> {
    if let Some(text) = input.value.as_str() {
        return Ok(vec![message_item("user", text)]);
    }
    let items = input.items_unless_text()?.map(|item| parse_item(&item)).collect::<Result<Vec<_>, _>>()?;
    if items.is_empty() { Err(input.invalid("it must not be empty")) } else { Ok(items) }
}

/// The id of a stored item, if this is a reference to one.
pub(super) fn reference_id(item: &Value) -> Option<&str> {
    if item["type"] == "item_reference" { item["id"].as_str() } else { None }
}

/// Adds an item to the conversation. The outer error is about the item itself, the inner one about its place.
pub(super) fn push_item(
    item: &RequestField<'_>,
    group: &mut AssistantGroup,
    builder: &mut ConversationBuilder,
) -> Result<Result<(), ConversationProblem>, ClientRequestProblem> {
    let object = item.object()?;
    let kind = object.required("type")?;
    Ok(match kind.string()? {
        "message" => push_message(&object, group, builder)?,
        "function_call" => {
            group.blocks.push(MessageBlock::Call(parse_call(&object)?));
            Ok(())
        }
        "function_call_output" => {
            let output = object.required("output")?;
            let result = call_result(CallEnd::Ok, parse_parts(&output, Speaker::User)?);
            let call_id = object.required("call_id")?.string()?;
            group.close(builder).and_then(|()| builder.push_result(call_id, result))
        }
        "reasoning" => {
            push_reasoning(&object, group)?;
            Ok(())
        }
        "item_reference" => return Err(item.invalid("there is no stored item with this id")),
        _ => return Err(unsupported_item(&kind)),
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Speaker {
    User,
    /// The system or the developer, who send no images.
    Instructions,
    Model,
}

fn push_message(
    message: &RequestObject<'_>,
    group: &mut AssistantGroup,
    builder: &mut ConversationBuilder,
) -> Result<Result<(), ConversationProblem>, ClientRequestProblem> {
    let speaker = parse_speaker(message)?;
    let parts = parse_parts(&message.required("content")?, speaker)?;
    Ok(match speaker {
        Speaker::User => group.close(builder).map(|()| builder.push_user(&parts)),
        Speaker::Instructions => group.close(builder).and_then(|()| builder.push_instructions(&join_parts(&parts))),
        Speaker::Model => {
            let text = join_parts(&parts);
            group.blocks.extend(Some(MessageBlock::Text { text }).filter(|_| !parts.is_empty()));
            Ok(())
        }
    })
}

fn push_reasoning(item: &RequestObject<'_>, group: &mut AssistantGroup) -> Result<(), ClientRequestProblem> {
    let Some(field) = item.optional("encrypted_content") else { return Ok(()) };
    let encrypted = field.string()?;
    match decode_reasoning(encrypted) {
        Some(sealed) if sealed.model == group.model && sealed.is_leading => {
            sealed.blocks.into_iter().for_each(|thinking| group.push_leading(thinking));
        }
        Some(sealed) if sealed.model == group.model => {
            group.blocks.extend(sealed.blocks.into_iter().map(MessageBlock::Thinking));
        }
        // Another model does not understand it.
        Some(_) => {}
        None => {
            let id = item.required("id")?.string()?.to_owned();
            let summary = parse_summary(item)?;
            let thinking = Thinking::Item { id, summary, encrypted: encrypted.to_owned() };
            group.blocks.push(MessageBlock::Thinking(thinking));
        }
    }
    Ok(())
}

fn parse_summary(item: &RequestObject<'_>) -> Result<Vec<String>, ClientRequestProblem> {
    let Some(summary) = item.optional("summary") else { return Ok(Vec::new()) };
    summary.items()?.map(|part| Ok(part.object()?.required("text")?.string()?.to_owned())).collect()
}

/// Checks the shape of an item, and gives it a type and parts. What it fits to is checked with the conversation.
fn parse_item(item: &RequestField<'_>) -> Result<Value, ClientRequestProblem> {
    let object = item.object()?;
    let kind = object.optional("type").map(|field| field.string().map(|kind| (field.clone(), kind))).transpose()?;
    match kind {
        None if object.optional("role").is_some() => parse_message_item(item, &object),
        None => {
            object.check_fields(&[("id", Read)])?;
            let id = object.required("id")?.string()?;
            Ok(json!({"type": "item_reference", "id": id}))
        }
        Some((_, "message")) => parse_message_item(item, &object),
        Some((_, "function_call")) => {
            object.check_fields(CALL_FIELDS)?;
            parse_call(&object).map(|_| item.value.clone())
        }
        Some((_, "function_call_output")) => {
            object.check_fields(OUTPUT_FIELDS)?;
            object.required("call_id")?.string()?;
            parse_parts(&object.required("output")?, Speaker::User).map(|_| item.value.clone())
        }
        Some((_, "reasoning")) => {
            object.check_fields(REASONING_FIELDS)?;
            parse_summary(&object)?;
            object.optional("encrypted_content").map(|encrypted| encrypted.string()).transpose()?;
            Ok(item.value.clone())
        }
        Some((_, "item_reference")) => {
            object.check_fields(&[("type", Read), ("id", Read)])?;
            object.required("id")?.string().map(|_| item.value.clone())
        }
        Some((field, _)) => Err(unsupported_item(&field)),
    }
}

fn parse_message_item(item: &RequestField<'_>, object: &RequestObject<'_>) -> Result<Value, ClientRequestProblem> {
    object.check_fields(MESSAGE_FIELDS)?;
    let speaker = parse_speaker(object)?;
    let content = object.required("content")?;
    parse_parts(&content, speaker)?;
    let mut parsed = item.value.clone();
    if let Some(text) = content.value.as_str() {
        let kind = if speaker == Speaker::Model { "output_text" } else { "input_text" };
        parsed["content"] = json!([{"type": kind, "text": text}]);
    }
    parsed["type"] = json!("message");
    Ok(parsed)
}

fn parse_speaker(message: &RequestObject<'_>) -> Result<Speaker, ClientRequestProblem> {
    let role = message.required("role")?;
    match role.string()? {
        "user" => Ok(Speaker::User),
        "system" | "developer" => Ok(Speaker::Instructions),
        "assistant" => Ok(Speaker::Model),
        _ => Err(role.invalid("expected `user`, `assistant`, `system` or `developer`")),
    }
}

fn parse_call(item: &RequestObject<'_>) -> Result<ClientCall, ClientRequestProblem> {
    let arguments = item.required("arguments")?.string()?;
    Ok(ClientCall {
        id: item.required("call_id")?.string()?.to_owned(),
        tool: item.required("name")?.string()?.to_owned(),
        arguments: parse_arguments(arguments),
    })
}

fn parse_parts(content: &RequestField<'_>, speaker: Speaker) -> Result<Vec<ClientPart>, ClientRequestProblem> {
    match content.value {
        Value::String(text) => Ok(vec![ClientPart::Text(text.clone())]),
        _ => content.items_unless_text()?.map(|part| parse_part(&part, speaker)).collect(),
    }
}

fn parse_part(part: &RequestField<'_>, speaker: Speaker) -> Result<ClientPart, ClientRequestProblem> {
    let part = part.object()?;
    let kind = part.required("type")?;
    let text = |name: &str, fields: &FieldTable| {
        part.check_fields(fields)?;
        Ok(ClientPart::Text(part.required(name)?.string()?.to_owned()))
    };
    match (kind.string()?, speaker) {
        ("input_text" | "output_text" | "text", _) => text("text", TEXT_PART_FIELDS),
        ("refusal", Speaker::Model) => text("refusal", &[("type", Read), ("refusal", Read)]),
        ("input_image", Speaker::User) => parse_image(&part),
        ("input_image", _) => Err(kind.unsupported("only messages of the user and outputs have images")),
        ("input_file" | "input_audio", _) => {
            Err(kind.unsupported("files and audio are not supported; send their text as `input_text`"))
        }
        _ => Err(kind.invalid("expected `input_text`, `input_image` or `output_text`")),
    }
}

fn parse_image(part: &RequestObject<'_>) -> Result<ClientPart, ClientRequestProblem> {
    part.check_fields(&[
        ("type", Read),
        ("image_url", Read),
        ("detail", Only(|value| value == "auto", "\"auto\"")),
        ("prompt_cache_breakpoint", Ignored),
        ("file_id", Refused("send the image as `image_url`")),
    ])?;
    let url = part.required("image_url")?;
    image_part(url.string()?).map_err(|problem| url.invalid(problem))
}

fn unsupported_item(kind: &RequestField<'_>) -> ClientRequestProblem {
    kind.unsupported(
        "only items of type `message`, `function_call`, `function_call_output`, `reasoning` and `item_reference` are \
         supported",
    )
}

fn message_item(role: &str, text: &str) -> Value {
    json!({"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]})
}
