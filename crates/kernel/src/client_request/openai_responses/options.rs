//! Parses the fields that say how the answer is to be.

use super::{ENCRYPTED_REASONING, flag, optional_string};
use crate::client_request::fields::FieldRule::{Ignored, Only, Read, Refused};
use crate::client_request::fields::{RequestField, RequestObject};
use crate::client_request::openai_chat::{parse_effort, parse_json_schema};
use crate::client_request::tools::ClientTool;
use crate::client_request::{AnswerFormat, AnswerOptions, ClientRequestProblem, ToolChoice};

pub(super) fn parse_answer(body: &RequestObject<'_>) -> Result<AnswerOptions, ClientRequestProblem> {
    let mut options = AnswerOptions::default();
    if let Some(tools) = body.optional("tools") {
        for tool in tools.items()? {
            options.add_tool(parse_tool(&tool)?)?;
        }
    }
    if let Some(choice) = body.optional("tool_choice") {
        options.tool_choice = parse_tool_choice(&choice, &options)?;
    }
    options.parallel_tool_calls = flag(body, "parallel_tool_calls")?;
    options.temperature = body.optional("temperature").map(|field| field.number(0.0, 2.0)).transpose()?;
    options.top_p = body.optional("top_p").map(|field| field.number(0.0, 1.0)).transpose()?;
    options.max_tokens = body.optional("max_output_tokens").map(|field| field.count(1)).transpose()?;
    if let Some(text) = body.optional("text") {
        options.format = parse_format(&text)?;
    }
    if let Some(reasoning) = body.optional("reasoning") {
        options.reasoning_effort = parse_reasoning(&reasoning)?;
    }
    Ok(options)
}

/// Whether the encrypted reasoning is wanted. Parts of built-in tools never occur, so they may be asked for.
pub(super) fn parse_include(body: &RequestObject<'_>) -> Result<bool, ClientRequestProblem> {
    let Some(include) = body.optional("include") else { return Ok(false) };
    let mut is_included = false;
    for value in include.items()? {
        match value.string()? {
            ENCRYPTED_REASONING => is_included = true,
            "message.output_text.logprobs" => {
                return Err(value.unsupported("log probabilities are not returned; leave this out"));
            }
            "code_interpreter_call.outputs"
            | "computer_call_output.output.image_url"
            | "file_search_call.results"
            | "message.input_image.image_url"
            | "web_search_call.action.sources"
            | "web_search_call.results" => {}
            _ => return Err(value.invalid("there is no such part of a response")),
        }
    }
    Ok(is_included)
}

fn parse_tool<'a>(tool: &RequestField<'a>) -> Result<ClientTool<'a>, ClientRequestProblem> {
    let fields = tool.object()?;
    let kind = fields.required("type")?;
    if kind.string()? != "function" {
        return Err(kind.unsupported("only tools of the type function are possible, which the client carries out"));
    }
    fields.check_fields(&[
        ("type", Read),
        ("name", Read),
        ("description", Read),
        ("parameters", Read),
        ("strict", Read),
        ("defer_loading", Only(|value| value == false, "false")),
        ("async", Only(|value| value == false, "false")),
        ("allowed_callers", Refused("the model calls the tool itself")),
        ("output_schema", Refused("not every provider has it")),
    ])?;
    Ok(ClientTool {
        name: fields.required("name")?,
        description: optional_string(&fields, "description")?.unwrap_or_default(),
        parameters: fields.optional("parameters"),
        is_strict: flag(&fields, "strict")?.unwrap_or_default(),
    })
}

fn parse_tool_choice(choice: &RequestField<'_>, options: &AnswerOptions) -> Result<ToolChoice, ClientRequestProblem> {
    if let Some(word) = choice.value.as_str() {
        return match word {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" if options.tools.is_empty() => Err(choice.invalid("only allowed if `tools` are given")),
            "required" => Ok(ToolChoice::Required),
            _ => Err(choice.invalid("must be none, auto, required or an object that names a function")),
        };
    }
    let fields = choice.object()?;
    let kind = fields.required("type")?;
    match kind.string()? {
        "function" => {
            fields.check_fields(&[("type", Read), ("name", Read)])?;
            options.known_tool(&fields.required("name")?).map(ToolChoice::Named)
        }
        _ => Err(kind.unsupported("only a function can be chosen; give only the tools that may be called")),
    }
}

fn parse_format(text: &RequestField<'_>) -> Result<AnswerFormat, ClientRequestProblem> {
    let text = text.object()?;
    text.check_fields(&[("format", Read), ("verbosity", Only(|value| value == "medium", "\"medium\""))])?;
    let Some(format) = text.optional("format") else { return Ok(AnswerFormat::Text) };
    let kind = format.object()?.required("type")?;
    match kind.string()? {
        "text" | "json_object" => {
            format.object()?.check_fields(&[("type", Read)])?;
            Ok(if kind.value == "text" { AnswerFormat::Text } else { AnswerFormat::JsonObject })
        }
        "json_schema" => parse_json_schema(&format),
        _ => Err(kind.invalid("must be text, json_object or json_schema")),
    }
}

/// The summary of the reasoning is always in the response, if the provider sends one.
fn parse_reasoning(reasoning: &RequestField<'_>) -> Result<Option<String>, ClientRequestProblem> {
    let fields = reasoning.object()?;
    fields.check_fields(&[("effort", Read), ("summary", Ignored), ("generate_summary", Ignored)])?;
    fields.optional("effort").map(|effort| parse_effort(&effort)).transpose()
}
