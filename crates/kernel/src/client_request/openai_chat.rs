//! Parses a request of OpenAI's Chat Completions API.
//!
//! [`FIELDS`] says which fields of the body are read, ignored, accepted with a value that changes nothing, or refused. A
//! field that is not in it does not exist in the API and is refused, as the API does. The same holds for the objects in
//! the body, each of which has such a table.
//!
//! A conversation has its system and developer messages at the beginning: elsewhere most providers have no place for
//! them. `stream_options` is checked here; the transport reads `include_usage` from it.

use quell_protocol::CallEnd;
use serde_json::{Map, Value};

use super::conversation::{ClientCall, ClientPart, ConversationBuilder, ConversationProblem, call_result, image_part};
use super::fields::FieldRule::{Ignored, Only, Read, Refused};
use super::fields::{FieldTable, RequestField, RequestObject};
use super::tools::ClientTool;
use super::{AnswerFormat, AnswerOptions, ClientRequest, ClientRequestProblem, RequestProblemKind, ToolChoice};
use crate::turn::{MessageBlock, Thinking};

/// The fields of the body.
const FIELDS: &FieldTable = &[
    ("model", Read),
    ("messages", Read),
    ("stream", Read),
    ("stream_options", Read),
    ("tools", Read),
    ("tool_choice", Read),
    ("parallel_tool_calls", Read),
    ("temperature", Read),
    ("top_p", Read),
    ("max_tokens", Read),
    ("max_completion_tokens", Read),
    ("stop", Read),
    ("response_format", Read),
    ("reasoning_effort", Read),
    // The transport reads `metadata.session`.
    ("metadata", Ignored),
    ("user", Ignored),
    ("store", Ignored),
    ("service_tier", Ignored),
    ("prompt_cache_key", Ignored),
    ("prompt_cache_options", Ignored),
    ("prompt_cache_retention", Ignored),
    ("safety_identifier", Ignored),
    ("n", Only(|value| value == 1, "1")),
    ("frequency_penalty", Only(is_zero, "0")),
    ("presence_penalty", Only(is_zero, "0")),
    ("logprobs", Only(|value| value == false, "false")),
    ("top_logprobs", Only(is_zero, "0")),
    ("logit_bias", Only(|value| value.as_object().is_some_and(Map::is_empty), "{}")),
    ("modalities", Only(|value| *value == serde_json::json!(["text"]), "[\"text\"]")),
    ("verbosity", Only(|value| value == "medium", "\"medium\"")),
    ("seed", Refused("not every provider has it")),
    ("audio", Refused("answers are text")),
    ("prediction", Refused("not every provider has it")),
    ("web_search_options", Refused("give an agent the web search instead")),
    ("moderation", Refused("not every provider has it")),
    ("functions", Refused("use `tools`")),
    ("function_call", Refused("use `tool_choice`")),
];

/// The fields of a message of the assistant. Clients send back what they received, with its empty fields.
const ASSISTANT_FIELDS: &FieldTable = &[
    ("role", Read),
    ("content", Read),
    ("refusal", Read),
    ("tool_calls", Read),
    ("reasoning_content", Read),
    ("annotations", Ignored),
    ("parsed", Ignored),
    ("name", Refused(NAME_ADVICE)),
    ("audio", Refused("only text is possible")),
    ("function_call", Refused("use `tool_calls`")),
];

/// The fields of a part of a message, besides its content. Marks for caches are those of other gateways.
const TEXT_PART_FIELDS: &FieldTable =
    &[("type", Read), ("text", Read), ("prompt_cache_breakpoint", Ignored), ("cache_control", Ignored)];
const IMAGE_PART_FIELDS: &FieldTable =
    &[("type", Read), ("image_url", Read), ("prompt_cache_breakpoint", Ignored), ("cache_control", Ignored)];
/// The fields of a call. Clients send back what they have collected from a stream, with its number.
const CALL_FIELDS: &FieldTable = &[("id", Read), ("type", Read), ("function", Read), ("index", Ignored)];
const CALL_FUNCTION_FIELDS: &FieldTable = &[("name", Read), ("arguments", Read), ("parsed_arguments", Ignored)];

const NAME_ADVICE: &str = "write the name into the text of the message";
const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh"];
/// The most stop sequences that the API takes.
const MAX_STOP_SEQUENCES: usize = 4;

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

/// Parses the body of `POST /v1/chat/completions`.
pub fn parse(body: &Value) -> Result<ClientRequest, ClientRequestProblem> {
    let body = RequestField::body(body).object()?;
    let model = body.required("model")?.string()?;
    let messages = body.required("messages")?;
    body.check_fields(FIELDS)?;
    let stream = body.optional("stream").map_or(Ok(false), |stream| stream.boolean())?;
    check_stream_options(&body, stream)?;
    let mut builder = ConversationBuilder::new(model);
    let mut is_empty = true;
    for message in messages.items()? {
        is_empty = false;
        push_message(&mut builder, &message)?;
    }
    if is_empty {
        return Err(messages.invalid("must hold at least one message"));
    }
    let conversation = builder.finish().map_err(|problem| conversation_problem(&messages, problem))?;
    Ok(ClientRequest { model: model.to_owned(), conversation, answer: parse_options(&body)?, stream })
}

fn check_stream_options(body: &RequestObject<'_>, stream: bool) -> Result<(), ClientRequestProblem> {
    let Some(options) = body.optional("stream_options") else { return Ok(()) };
    if !stream {
        return Err(options.invalid("only allowed if `stream` is true"));
    }
    let fields = options.object()?;
    fields.check_fields(&[("include_usage", Read), ("include_obfuscation", Ignored)])?;
    fields.optional("include_usage").map_or(Ok(false), |include| include.boolean()).map(drop)
}

fn push_message(builder: &mut ConversationBuilder, message: &RequestField<'_>) -> Result<(), ClientRequestProblem> {
    let fields = message.object()?;
    let role = fields.required("role")?;
    let problem = |problem| conversation_problem(message, problem);
    match role.string()? {
        "system" | "developer" => {
            fields.check_fields(&[("role", Read), ("content", Read), ("name", Refused(NAME_ADVICE))])?;
            let text = text_of_parts(&fields.required("content")?, "text")?;
            builder.push_instructions(&text).map_err(|why| conversation_problem(&role, why))
        }
        "user" => {
            fields.check_fields(&[("role", Read), ("content", Read), ("name", Refused(NAME_ADVICE))])?;
            builder.check_answered().map_err(problem)?;
            builder.push_user(&user_parts(&fields.required("content")?)?);
            Ok(())
        }
        "assistant" => {
            fields.check_fields(ASSISTANT_FIELDS)?;
            builder.check_answered().map_err(problem)?;
            let blocks = assistant_blocks(message, &fields)?;
            builder.push_assistant(blocks).map_err(problem)
        }
        "tool" => {
            let known = [("role", Read), ("content", Read), ("tool_call_id", Read), ("name", Ignored)];
            fields.check_fields(&known)?;
            let id = fields.required("tool_call_id")?;
            let text = text_of_parts(&fields.required("content")?, "text")?;
            let result = call_result(CallEnd::Ok, vec![ClientPart::Text(text)]);
            builder.push_result(id.string()?, result).map_err(|why| conversation_problem(&id, why))
        }
        "function" => Err(role.unsupported("not supported; use `tools` and the role `tool`")),
        _ => Err(role.invalid("must be one of system, developer, user, assistant and tool")),
    }
}

/// A text, or a list of parts of the type `part_type`, joined in paragraphs.
fn text_of_parts(content: &RequestField<'_>, part_type: &str) -> Result<String, ClientRequestProblem> {
    if let Value::String(text) = content.value {
        return Ok(text.clone());
    }
    let mut texts = Vec::new();
    for part in content.items_unless_text()? {
        let fields = part.object()?;
        let kind = fields.required("type")?;
        match kind.string()? {
            "text" => {
                fields.check_fields(TEXT_PART_FIELDS)?;
                texts.push(fields.required("text")?.string()?);
            }
            "refusal" if part_type == "refusal" => {
                fields.check_fields(&[("type", Read), ("refusal", Read)])?;
                texts.push(fields.required("refusal")?.string()?);
            }
            _ => return Err(kind.unsupported("only text is possible here")),
        }
    }
    Ok(texts.join("\n\n"))
}

fn user_parts(content: &RequestField<'_>) -> Result<Vec<ClientPart>, ClientRequestProblem> {
    if let Value::String(text) = content.value {
        return Ok(vec![ClientPart::Text(text.clone())]);
    }
    let mut parts = Vec::new();
    for part in content.items_unless_text()? {
        let fields = part.object()?;
        let kind = fields.required("type")?;
        parts.push(match kind.string()? {
            "text" => {
                fields.check_fields(TEXT_PART_FIELDS)?;
                ClientPart::Text(fields.required("text")?.string()?.to_owned())
            }
            "image_url" => {
                fields.check_fields(IMAGE_PART_FIELDS)?;
                image(&fields.required("image_url")?)?
            }
            "input_audio" | "file" => {
                return Err(kind.unsupported("only text and image_url are possible; send the text of the file"));
            }
            _ => return Err(kind.invalid("must be text or image_url")),
        });
    }
    if parts.is_empty() { Err(content.invalid("must hold at least one part")) } else { Ok(parts) }
}

fn image(image: &RequestField<'_>) -> Result<ClientPart, ClientRequestProblem> {
    let fields = image.object()?;
    fields.check_fields(&[("url", Read), ("detail", Only(|value| value == "auto", "\"auto\""))])?;
    let url = fields.required("url")?;
    image_part(url.string()?).map_err(|problem| url.invalid(problem))
}

fn assistant_blocks(
    message: &RequestField<'_>,
    fields: &RequestObject<'_>,
) -> Result<Vec<MessageBlock<ClientCall>>, ClientRequestProblem> {
    let mut blocks = Vec::new();
    if let Some(reasoning) = fields.optional("reasoning_content") {
        blocks.push(MessageBlock::Thinking(Thinking::Open { text: reasoning.string()?.to_owned() }));
    }
    if let Some(content) = fields.optional("content") {
        blocks.push(MessageBlock::Text { text: text_of_parts(&content, "refusal")? });
    }
    if let Some(refusal) = fields.optional("refusal") {
        blocks.push(MessageBlock::Text { text: refusal.string()?.to_owned() });
    }
    if let Some(calls) = fields.optional("tool_calls") {
        for call in calls.items()? {
            blocks.push(MessageBlock::Call(parse_call(&call)?));
        }
    }
    let is_content = |block: &MessageBlock<ClientCall>| !matches!(block, MessageBlock::Thinking(_));
    if blocks.iter().any(is_content) {
        Ok(blocks)
    } else {
        Err(message.problem(RequestProblemKind::Missing, "an assistant message needs `content` or `tool_calls`"))
    }
}

fn parse_call(call: &RequestField<'_>) -> Result<ClientCall, ClientRequestProblem> {
    let fields = call.object()?;
    let kind = fields.required("type")?;
    if kind.string()? != "function" {
        return Err(kind.unsupported("only function calls are possible"));
    }
    fields.check_fields(CALL_FIELDS)?;
    let function = fields.required("function")?.object()?;
    function.check_fields(CALL_FUNCTION_FIELDS)?;
    let arguments = function.required("arguments")?.string()?;
    Ok(ClientCall {
        id: fields.required("id")?.string()?.to_owned(),
        tool: function.required("name")?.string()?.to_owned(),
        arguments: parse_arguments(arguments),
    })
}

/// The arguments of a call, which are JSON in a string. Models also write other text, which is kept as it is.
pub(super) fn parse_arguments(text: &str) -> Value {
    if text.trim().is_empty() {
        return Value::Object(Map::new());
    }
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// The problem in the words of the API.
fn conversation_problem(field: &RequestField<'_>, problem: ConversationProblem) -> ClientRequestProblem {
    match problem {
        ConversationProblem::LateInstructions => field.unsupported(
            "a system or developer message must come before all other messages, because not every provider accepts it \
             later",
        ),
        ConversationProblem::UnknownCall => {
            field.invalid("a tool message must be a response to a preceding message with 'tool_calls' of this id")
        }
        ConversationProblem::AlreadyAnswered => field.invalid("the tool call has a response already"),
        ConversationProblem::RepeatedCallId => field.invalid("the ids of 'tool_calls' must be unique"),
        ConversationProblem::Unanswered(ids) => field.invalid(format!(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each \
             'tool_call_id'. The following tool_call_ids did not have response messages: {}",
            ids.join(", ")
        )),
        ConversationProblem::TooManyImages => field.invalid("at most 20 images are possible in a request"),
    }
}

fn parse_options(body: &RequestObject<'_>) -> Result<AnswerOptions, ClientRequestProblem> {
    let mut options = AnswerOptions::default();
    if let Some(tools) = body.optional("tools") {
        for tool in tools.items()? {
            options.add_tool(parse_tool(&tool)?)?;
        }
    }
    if let Some(choice) = body.optional("tool_choice") {
        options.tool_choice = parse_tool_choice(&choice, &options)?;
    }
    options.parallel_tool_calls = body.optional("parallel_tool_calls").map(|field| field.boolean()).transpose()?;
    options.temperature = body.optional("temperature").map(|field| field.number(0.0, 2.0)).transpose()?;
    options.top_p = body.optional("top_p").map(|field| field.number(0.0, 1.0)).transpose()?;
    let old_limit = body.optional("max_tokens");
    let limit = body.optional("max_completion_tokens");
    if let (Some(old_limit), Some(_)) = (&old_limit, &limit) {
        return Err(old_limit.invalid("set either `max_tokens` or `max_completion_tokens`, not both"));
    }
    options.max_tokens = limit.or(old_limit).map(|field| field.count(1)).transpose()?;
    if let Some(stop) = body.optional("stop") {
        options.stop_sequences = parse_stop(&stop)?;
    }
    if let Some(format) = body.optional("response_format") {
        options.format = parse_format(&format)?;
    }
    if let Some(effort) = body.optional("reasoning_effort") {
        options.reasoning_effort = Some(parse_effort(&effort)?);
    }
    Ok(options)
}

fn parse_tool<'a>(tool: &RequestField<'a>) -> Result<ClientTool<'a>, ClientRequestProblem> {
    let fields = tool.object()?;
    let kind = fields.required("type")?;
    if kind.string()? != "function" {
        return Err(kind.unsupported("only tools of the type function are possible"));
    }
    fields.check_fields(&[("type", Read), ("function", Read)])?;
    let function = fields.required("function")?.object()?;
    function.check_fields(&[("name", Read), ("description", Read), ("parameters", Read), ("strict", Read)])?;
    Ok(ClientTool {
        name: function.required("name")?,
        description: function.optional("description").map_or(Ok(""), |field| field.string())?.to_owned(),
        parameters: function.optional("parameters"),
        is_strict: function.optional("strict").map_or(Ok(false), |field| field.boolean())?,
    })
}

fn parse_tool_choice(choice: &RequestField<'_>, options: &AnswerOptions) -> Result<ToolChoice, ClientRequestProblem> {
    if options.tools.is_empty() {
        return Err(choice.invalid("only allowed if `tools` are given"));
    }
    if let Value::String(word) = choice.value {
        return match word.as_str() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" => Ok(ToolChoice::Required),
            _ => Err(choice.invalid("must be none, auto, required or an object that names a function")),
        };
    }
    let fields = choice.object()?;
    let kind = fields.required("type")?;
    match kind.string()? {
        "function" => {
            fields.check_fields(&[("type", Read), ("function", Read)])?;
            let function = fields.required("function")?.object()?;
            function.check_fields(&[("name", Read)])?;
            options.known_tool(&function.required("name")?).map(ToolChoice::Named)
        }
        _ => Err(kind.unsupported("only a function can be chosen; give only the tools that may be called")),
    }
}

fn parse_stop(stop: &RequestField<'_>) -> Result<Vec<String>, ClientRequestProblem> {
    if let Value::String(text) = stop.value {
        return Ok(vec![text.clone()]);
    }
    let sequences =
        stop.items_unless_text()?.map(|item| item.string().map(str::to_owned)).collect::<Result<Vec<_>, _>>()?;
    if sequences.len() > MAX_STOP_SEQUENCES {
        return Err(stop.invalid("at most 4 stop sequences are possible"));
    }
    Ok(sequences)
}

fn parse_format(format: &RequestField<'_>) -> Result<AnswerFormat, ClientRequestProblem> {
    let fields = format.object()?;
    fields.check_fields(&[("type", Read), ("json_schema", Read)])?;
    let kind = fields.required("type")?;
    match kind.string()? {
        "text" => Ok(AnswerFormat::Text),
        "json_object" => Ok(AnswerFormat::JsonObject),
        "json_schema" => parse_json_schema(&fields.required("json_schema")?),
        _ => Err(kind.invalid("must be text, json_object or json_schema")),
    }
}

/// A schema with its name, as Chat Completions and Responses have it. In the latter it has a `type`, too.
pub(super) fn parse_json_schema(format: &RequestField<'_>) -> Result<AnswerFormat, ClientRequestProblem> {
    let fields = format.object()?;
    fields.check_fields(&[
        ("type", Read),
        ("name", Read),
        ("description", Read),
        ("schema", Read),
        ("strict", Read),
    ])?;
    let schema = fields.required("schema")?;
    schema.object()?;
    Ok(AnswerFormat::JsonSchema {
        name: fields.required("name")?.string()?.to_owned(),
        description: fields.optional("description").map(|field| field.string().map(str::to_owned)).transpose()?,
        schema: schema.value.clone().into(),
        strict: fields.optional("strict").map(|field| field.boolean()).transpose()?,
    })
}

/// A word for the effort of reasoning, as OpenAI's APIs have it.
pub(super) fn parse_effort(effort: &RequestField<'_>) -> Result<String, ClientRequestProblem> {
    match effort.string()? {
        word if EFFORTS.contains(&word) => Ok(word.to_owned()),
        _ => Err(effort.invalid(format!("must be one of {}", EFFORTS.join(", ")))),
    }
}

#[cfg(test)]
mod tests;
