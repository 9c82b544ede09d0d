//! Parses a request of Anthropic's Messages API.
//!
//! [`FIELDS`] says which fields of the body are read, ignored, accepted with a value that changes nothing, or refused.
//! The same holds for the tables of blocks. A field that is not in its table does not exist in the API and is refused,
//! as the API does. Marks of the prompt cache only affect costs, and Quell sets its own.
//!
//! A model of another provider has reasoning that this API has no block for. A client gets it as a thinking block whose
//! signature holds the reasoning itself, and returns it unchanged: see [`reasoning_signature`].

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use quell_protocol::CallEnd;
use serde_json::{Value, json};

use super::conversation::{ClientCall, ClientPart, ConversationBuilder, ConversationProblem, call_result, image_part};
use super::fields::FieldRule::{Ignored, Only, Read, Refused};
use super::fields::{FieldTable, RequestField, RequestObject};
use super::tools::ClientTool;
use super::{
    AnswerFormat, AnswerOptions, ClientRequest, ClientRequestProblem, RequestProblemKind, ThinkingChoice, ThinkingMode,
    ToolChoice,
};
use crate::turn::{MessageBlock, Thinking, is_blank};

/// The fields of the body.
const FIELDS: &FieldTable = &[
    ("model", Read),
    ("messages", Read),
    ("max_tokens", Read),
    ("system", Read),
    ("stream", Read),
    ("stop_sequences", Read),
    ("temperature", Read),
    ("top_p", Read),
    ("tools", Read),
    ("tool_choice", Read),
    ("thinking", Read),
    ("output_config", Read),
    // The transport reads `metadata.session`.
    ("metadata", Ignored),
    ("cache_control", Ignored),
    ("service_tier", Ignored),
    ("user_profile_id", Ignored),
    ("workspace_id", Ignored),
    ("speed", Only(|value| value == "standard", "\"standard\"")),
    ("top_k", Refused("not every provider has it; use top_p")),
    ("container", Refused("containers of the provider are not available")),
    ("context_management", Refused("the request must hold what the model is to see")),
    ("diagnostics", Refused("not every provider has it")),
    ("inference_geo", Refused("set the region at the provider")),
    ("mcp_servers", Refused("give an agent the MCP servers instead")),
    ("output_format", Refused("use `output_config.format`")),
];

const TEXT_FIELDS: &FieldTable = &[
    ("type", Read),
    ("text", Read),
    ("cache_control", Ignored),
    ("citations", Only(|value| value.as_array().is_some_and(Vec::is_empty), "[]")),
];
const IMAGE_FIELDS: &FieldTable = &[
    ("type", Read),
    ("source", Read),
    ("cache_control", Ignored),
    ("transformations", Refused("scale the image before you send it")),
];
const TOOL_USE_FIELDS: &FieldTable = &[
    ("type", Read),
    ("id", Read),
    ("name", Read),
    ("input", Read),
    ("cache_control", Ignored),
    ("caller", Only(|value| value["type"] == "direct", "{\"type\": \"direct\"}")),
    ("toolset_name", Refused("only tools of the type custom are possible")),
];
const TOOL_RESULT_FIELDS: &FieldTable = &[
    ("type", Read),
    ("tool_use_id", Read),
    ("content", Read),
    ("is_error", Read),
    ("cache_control", Ignored),
    ("toolset_name", Refused("only tools of the type custom are possible")),
];
const TOOL_FIELDS: &FieldTable = &[
    ("type", Read),
    ("name", Read),
    ("description", Read),
    ("input_schema", Read),
    ("strict", Read),
    ("cache_control", Ignored),
    ("eager_input_streaming", Ignored),
    ("allowed_callers", Only(|value| *value == json!(["direct"]), "[\"direct\"]")),
    ("defer_loading", Only(|value| value == false, "false")),
    ("input_examples", Only(|value| value.as_array().is_some_and(Vec::is_empty), "[]")),
];

const EFFORTS: &[&str] = &["low", "medium", "high", "xhigh", "max"];
/// The least budget for thinking that the API takes.
const MIN_THINKING_TOKENS: u32 = 1024;
/// The name of a JSON schema towards a provider that wants one.
const FORMAT_NAME: &str = "answer";
/// The beginning of a signature that holds reasoning which this API has no block for.
const WRAPPED_SIGNATURE: &str = "quell1:";
/// The signature of reasoning that is for people only, such as that of an agent's earlier steps.
pub const UNSIGNED: &str = "quell1:unsigned";

/// Parses the body of `POST /v1/messages`.
pub fn parse(body: &Value) -> Result<ClientRequest, ClientRequestProblem> {
    let fields = RequestField::body(body).object()?;
    let max_tokens = fields.required("max_tokens")?.count(1)?;
    parse_body(&fields, Some(max_tokens))
}

/// Parses the body of `POST /v1/messages/count_tokens`, which needs no `max_tokens`.
pub fn parse_to_count(body: &Value) -> Result<ClientRequest, ClientRequestProblem> {
    parse_body(&RequestField::body(body).object()?, None)
}

fn parse_body(body: &RequestObject<'_>, max_tokens: Option<u32>) -> Result<ClientRequest, ClientRequestProblem> {
    let model = body.required("model")?.string()?;
    let messages = body.required("messages")?;
    body.check_fields(FIELDS)?;
    let mut builder = ConversationBuilder::new(model);
    if let Some(system) = body.optional("system") {
        let text = text_of_blocks(&system)?;
        builder.push_instructions(&text).map_err(|problem| conversation_problem(&system, problem))?;
    }
    let mut is_empty = true;
    for message in messages.items()? {
        is_empty = false;
        push_message(&mut builder, &message)?;
    }
    if is_empty {
        return Err(messages.invalid("at least one message is required"));
    }
    let conversation = builder.finish().map_err(|problem| conversation_problem(&messages, problem))?;
    let answer = AnswerOptions { max_tokens, ..parse_options(body, max_tokens)? };
    let stream = body.optional("stream").map_or(Ok(false), |stream| stream.boolean())?;
    Ok(ClientRequest { model: model.to_owned(), conversation, answer, stream })
}

/// A text, or a list of text blocks, joined in paragraphs.
fn text_of_blocks(content: &RequestField<'_>) -> Result<String, ClientRequestProblem> {
    if let Value::String(text) = content.value {
        return Ok(text.clone());
    }
    let mut texts = Vec::new();
    for block in content.items_unless_text()? {
        let fields = block.object()?;
        let kind = fields.required("type")?;
        if kind.string()? != "text" {
            return Err(kind.invalid("must be text"));
        }
        texts.push(text_of_block(&fields)?);
    }
    Ok(texts.join("\n\n"))
}

fn text_of_block<'a>(fields: &RequestObject<'a>) -> Result<&'a str, ClientRequestProblem> {
    fields.check_fields(TEXT_FIELDS)?;
    let text = fields.required("text")?;
    match text.string()? {
        blank if is_blank(blank) => Err(text.invalid("text content blocks must contain non-whitespace text")),
        text => Ok(text),
    }
}

fn push_message(builder: &mut ConversationBuilder, message: &RequestField<'_>) -> Result<(), ClientRequestProblem> {
    let fields = message.object()?;
    fields.check_fields(&[("role", Read), ("content", Read)])?;
    let role = fields.required("role")?;
    let content = fields.required("content")?;
    match role.string()? {
        "system" => {
            let text = text_of_blocks(&content)?;
            builder.push_instructions(&text).map_err(|problem| conversation_problem(&role, problem))
        }
        "user" => push_user(builder, message, &content),
        "assistant" => {
            builder.check_answered().map_err(|problem| conversation_problem(message, problem))?;
            let blocks = assistant_blocks(&content)?;
            builder.push_assistant(blocks).map_err(|problem| conversation_problem(message, problem))
        }
        _ => Err(role.invalid("must be user, assistant or system")),
    }
}

/// Adds the results and the text of a message. The results come first, as the API demands.
fn push_user(
    builder: &mut ConversationBuilder,
    message: &RequestField<'_>,
    content: &RequestField<'_>,
) -> Result<(), ClientRequestProblem> {
    if let Value::String(text) = content.value {
        builder.check_answered().map_err(|problem| conversation_problem(message, problem))?;
        if is_blank(text) {
            return Err(content.invalid("user messages must have non-empty content"));
        }
        builder.push_user(&[ClientPart::Text(text.clone())]);
        return Ok(());
    }
    let mut parts = Vec::new();
    let mut is_empty = true;
    for block in content.items_unless_text()? {
        is_empty = false;
        let fields = block.object()?;
        if fields.type_name()? == "tool_result" {
            push_result(builder, &block, &fields)?;
        } else {
            builder.check_answered().map_err(|problem| conversation_problem(message, problem))?;
            parts.push(user_part(&fields)?);
        }
    }
    if is_empty {
        return Err(content.invalid("user messages must have non-empty content"));
    }
    builder.check_answered().map_err(|problem| conversation_problem(message, problem))?;
    if !parts.is_empty() {
        builder.push_user(&parts);
    }
    Ok(())
}

fn push_result(
    builder: &mut ConversationBuilder,
    block: &RequestField<'_>,
    fields: &RequestObject<'_>,
) -> Result<(), ClientRequestProblem> {
    fields.check_fields(TOOL_RESULT_FIELDS)?;
    let id = fields.required("tool_use_id")?.string()?;
    let is_error = fields.optional("is_error").map_or(Ok(false), |field| field.boolean())?;
    let mut parts = Vec::new();
    match fields.optional("content") {
        None => {}
        Some(RequestField { value: Value::String(text), .. }) => parts.push(ClientPart::Text(text.clone())),
        Some(content) => {
            for block in content.items_unless_text()? {
                parts.push(user_part(&block.object()?)?);
            }
        }
    }
    let end = if is_error { CallEnd::Error } else { CallEnd::Ok };
    builder.push_result(id, call_result(end, parts)).map_err(|problem| conversation_problem(block, problem))
}

fn user_part(fields: &RequestObject<'_>) -> Result<ClientPart, ClientRequestProblem> {
    let kind = fields.required("type")?;
    match kind.string()? {
        "text" => Ok(ClientPart::Text(text_of_block(fields)?.to_owned())),
        "image" => {
            fields.check_fields(IMAGE_FIELDS)?;
            image(&fields.required("source")?)
        }
        "document" => {
            Err(kind.unsupported("documents cannot be passed to every provider; send the text of the document"))
        }
        other => Err(kind.unsupported(format!("blocks of the type {other} are not supported; use text and image"))),
    }
}

fn image(source: &RequestField<'_>) -> Result<ClientPart, ClientRequestProblem> {
    let fields = source.object()?;
    let kind = fields.required("type")?;
    match kind.string()? {
        "base64" => {
            fields.check_fields(&[("type", Read), ("media_type", Read), ("data", Read)])?;
            let (media_type, data) = (fields.required("media_type")?.string()?, fields.required("data")?);
            let url = format!("data:{media_type};base64,{}", data.string()?);
            image_part(&url).map_err(|problem| data.invalid(problem))
        }
        "url" => {
            fields.check_fields(&[("type", Read), ("url", Read)])?;
            let url = fields.required("url")?;
            match url.string()? {
                text if text.starts_with("https://") => image_part(text).map_err(|problem| url.invalid(problem)),
                _ => Err(url.invalid("must be an https URL")),
            }
        }
        "file" => Err(kind.unsupported("files of the provider are not available; send the image as base64")),
        _ => Err(kind.invalid("must be base64 or url")),
    }
}

fn assistant_blocks(content: &RequestField<'_>) -> Result<Vec<MessageBlock<ClientCall>>, ClientRequestProblem> {
    if let Value::String(text) = content.value {
        return Ok(vec![MessageBlock::Text { text: text.clone() }]);
    }
    let mut blocks = Vec::new();
    for block in content.items_unless_text()? {
        let fields = block.object()?;
        if fields.type_name()? == "thinking" {
            fields.check_fields(&[("type", Read), ("thinking", Read), ("signature", Read)])?;
            blocks.extend(signed_thinking(&fields)?.into_iter().map(MessageBlock::Thinking));
        } else {
            blocks.push(assistant_block(&fields)?);
        }
    }
    Ok(blocks)
}

fn assistant_block(fields: &RequestObject<'_>) -> Result<MessageBlock<ClientCall>, ClientRequestProblem> {
    let kind = fields.required("type")?;
    Ok(match kind.string()? {
        "text" => MessageBlock::Text { text: text_of_block(fields)?.to_owned() },
        "redacted_thinking" => {
            fields.check_fields(&[("type", Read), ("data", Read)])?;
            MessageBlock::Thinking(Thinking::Redacted { data: fields.required("data")?.string()?.to_owned() })
        }
        "tool_use" => {
            fields.check_fields(TOOL_USE_FIELDS)?;
            let input = fields.required("input")?;
            input.object()?;
            MessageBlock::Call(ClientCall {
                id: fields.required("id")?.string()?.to_owned(),
                tool: fields.required("name")?.string()?.to_owned(),
                arguments: input.value.clone(),
            })
        }
        other => {
            let message =
                format!("blocks of the type {other} are not supported; tools of the provider are not available");
            return Err(kind.unsupported(message));
        }
    })
}

fn signed_thinking(fields: &RequestObject<'_>) -> Result<Vec<Thinking>, ClientRequestProblem> {
    let signature = fields.required("signature")?;
    let invalid = || signature.invalid("Invalid `signature` in `thinking` block");
    let text = fields.required("thinking")?.string()?.to_owned();
    match signature.string()? {
        blank if is_blank(blank) => Err(invalid()),
        UNSIGNED => Ok(Vec::new()),
        own => match own.strip_prefix(WRAPPED_SIGNATURE) {
            Some(wrapped) => unwrap_thinking(wrapped).ok_or_else(invalid),
            None => Ok(vec![Thinking::Shown { text, signature: Some(own.to_owned()) }]),
        },
    }
}

/// The signature for a thinking block that stands for these pieces of reasoning, which follow each other.
pub fn reasoning_signature(pieces: &[&Thinking]) -> String {
    let is_returned = |piece: &&&Thinking| piece.is_returnable() && !matches!(piece, Thinking::WebSearch { .. });
    let returned: Vec<&Thinking> = pieces.iter().filter(is_returned).copied().collect();
    match returned.as_slice() {
        [] => UNSIGNED.to_owned(),
        [Thinking::Shown { signature: Some(signature), .. }] => signature.clone(),
        several => format!("{WRAPPED_SIGNATURE}{}", STANDARD_NO_PAD.encode(json!(several).to_string())),
    }
}

/// The block in which a client gets reasoning, and returns it. `None` if the reasoning is of no use to anybody.
pub fn thinking_block(pieces: &[&Thinking]) -> Option<Value> {
    if let [Thinking::Redacted { data }] = pieces {
        return Some(json!({"type": "redacted_thinking", "data": data}));
    }
    let texts: Vec<_> = pieces.iter().map(|piece| piece.readable_text()).filter(|text| !text.is_empty()).collect();
    let signature = reasoning_signature(pieces);
    let is_empty = texts.is_empty() && signature == UNSIGNED;
    (!is_empty).then(|| json!({"type": "thinking", "thinking": texts.join("\n\n"), "signature": signature}))
}

/// Searches of a provider do not come back from a client: it must not make up any.
fn unwrap_thinking(wrapped: &str) -> Option<Vec<Thinking>> {
    let pieces: Vec<Thinking> = serde_json::from_slice(&STANDARD_NO_PAD.decode(wrapped).ok()?).ok()?;
    let is_search = |piece: &Thinking| matches!(piece, Thinking::WebSearch { .. });
    (!pieces.is_empty() && !pieces.iter().any(is_search)).then_some(pieces)
}

/// The problem in the words of the API.
fn conversation_problem(field: &RequestField<'_>, problem: ConversationProblem) -> ClientRequestProblem {
    match problem {
        ConversationProblem::LateInstructions => field.unsupported(
            "a system message must come before all other messages, because not every provider accepts it later; use \
             `system`",
        ),
        ConversationProblem::UnknownCall => field.invalid(
            "unexpected `tool_use_id` found in `tool_result` blocks. Each `tool_result` block must have a corresponding \
             `tool_use` block in the previous message.",
        ),
        ConversationProblem::AlreadyAnswered => field.invalid("each `tool_use` must have a single `tool_result` block"),
        ConversationProblem::RepeatedCallId => field.invalid("`tool_use` ids must be unique"),
        ConversationProblem::Unanswered(ids) => field.invalid(format!(
            "`tool_use` ids were found without `tool_result` blocks immediately after: {}. Each `tool_use` block must \
             have a corresponding `tool_result` block in the next message.",
            ids.join(", ")
        )),
        ConversationProblem::TooManyImages => field.invalid("at most 20 images are possible in a request"),
    }
}

fn parse_options(body: &RequestObject<'_>, max_tokens: Option<u32>) -> Result<AnswerOptions, ClientRequestProblem> {
    let mut options = AnswerOptions::default();
    if let Some(tools) = body.optional("tools") {
        for tool in tools.items()? {
            options.add_tool(parse_tool(&tool)?)?;
        }
    }
    if let Some(choice) = body.optional("tool_choice") {
        set_tool_choice(&choice, &mut options)?;
    }
    if let Some(stop) = body.optional("stop_sequences") {
        options.stop_sequences = stop.nonblank_strings()?;
    }
    if let Some(thinking) = body.optional("thinking") {
        options.thinking = parse_thinking(&thinking, max_tokens)?;
    }
    if let Some(temperature) = body.optional("temperature") {
        let number = temperature.number(0.0, 1.0)?;
        if matches!(options.thinking, ThinkingChoice::On(_)) && number < 1.0 {
            return Err(temperature.invalid("may only be set to 1 when thinking is enabled"));
        }
        options.temperature = Some(number);
    }
    options.top_p = body.optional("top_p").map(|field| field.number(0.0, 1.0)).transpose()?;
    if let Some(config) = body.optional("output_config") {
        set_output_config(&config.object()?, &mut options)?;
    }
    Ok(options)
}

fn parse_tool<'a>(tool: &RequestField<'a>) -> Result<ClientTool<'a>, ClientRequestProblem> {
    let fields = tool.object()?;
    if let Some(kind) = fields.optional("type").filter(|kind| kind.value != "custom") {
        kind.string()?;
        return Err(kind.unsupported("tools of the provider are not available; describe a tool of your own"));
    }
    fields.check_fields(TOOL_FIELDS)?;
    let schema = fields.required("input_schema")?;
    schema.object()?.required("type")?;
    Ok(ClientTool {
        name: fields.required("name")?,
        description: fields.optional("description").map_or(Ok(""), |field| field.string())?.to_owned(),
        parameters: Some(schema),
        is_strict: fields.optional("strict").map_or(Ok(false), |field| field.boolean())?,
    })
}

fn set_tool_choice(choice: &RequestField<'_>, options: &mut AnswerOptions) -> Result<(), ClientRequestProblem> {
    let fields = choice.object()?;
    fields.check_fields(&[("type", Read), ("name", Read), ("disable_parallel_tool_use", Read)])?;
    if options.tools.is_empty() {
        return Err(choice.invalid("may only be specified while providing tools"));
    }
    let kind = fields.required("type")?;
    options.tool_choice = match kind.string()? {
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Required,
        "none" => ToolChoice::None,
        "tool" => ToolChoice::Named(options.known_tool(&fields.required("name")?)?),
        _ => return Err(kind.invalid("must be auto, any, tool or none")),
    };
    let at_most_one = fields.optional("disable_parallel_tool_use").map_or(Ok(false), |field| field.boolean())?;
    options.parallel_tool_calls = at_most_one.then_some(false);
    Ok(())
}

fn parse_thinking(
    thinking: &RequestField<'_>,
    max_tokens: Option<u32>,
) -> Result<ThinkingChoice, ClientRequestProblem> {
    let fields = thinking.object()?;
    let shown = Only(|value| value == "summarized", "\"summarized\"");
    fields.check_fields(&[("type", Read), ("budget_tokens", Read), ("display", shown)])?;
    let kind = fields.required("type")?;
    match kind.string()? {
        "disabled" => Ok(ThinkingChoice::Off),
        "adaptive" => Ok(ThinkingChoice::On(ThinkingMode::Adaptive)),
        "enabled" => {
            let budget = fields.required("budget_tokens")?;
            let tokens = budget.count(MIN_THINKING_TOKENS)?;
            if max_tokens.is_some_and(|most| most <= tokens) {
                return Err(budget.invalid("`max_tokens` must be greater than `thinking.budget_tokens`"));
            }
            Ok(ThinkingChoice::On(ThinkingMode::Tokens(tokens)))
        }
        "between_tools" => Err(kind.unsupported("not every provider has it; use enabled, adaptive or disabled")),
        _ => Err(kind.invalid("must be enabled, adaptive or disabled")),
    }
}

fn set_output_config(config: &RequestObject<'_>, options: &mut AnswerOptions) -> Result<(), ClientRequestProblem> {
    config.check_fields(&[("effort", Read), ("format", Read), ("task_budget", Refused("use max_tokens"))])?;
    if let Some(effort) = config.optional("effort") {
        options.reasoning_effort = match effort.string()? {
            word if EFFORTS.contains(&word) => Some(word.to_owned()),
            _ => return Err(effort.invalid(format!("must be one of {}", EFFORTS.join(", ")))),
        };
    }
    if let Some(format) = config.optional("format") {
        let fields = format.object()?;
        fields.check_fields(&[("type", Read), ("schema", Read)])?;
        let kind = fields.required("type")?;
        if kind.string()? != "json_schema" {
            return Err(kind.problem(RequestProblemKind::Invalid, "must be json_schema"));
        }
        let schema = fields.required("schema")?;
        schema.object()?;
        options.format = AnswerFormat::JsonSchema {
            name: FORMAT_NAME.to_owned(),
            description: None,
            schema: schema.value.clone().into(),
            strict: Some(true),
        };
    }
    Ok(())
}

#[cfg(test)]
mod tests;
