//! Parses requests of OpenAI's Responses API.
//!
//! A request names the history that it continues by an id, so it is parsed in two steps: [`ResponsesRequest::parse`]
//! reads the request, and [`ResponsesRequest::client_request`] puts the stored items of the history before its own.

mod end;
mod items;
mod options;
mod reasoning;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

use super::conversation::{ConversationBuilder, ConversationProblem};
use super::fields::FieldRule::{Ignored, Only, Read, Refused};
use super::fields::{FieldTable, RequestField, RequestObject};
use super::{AnswerOptions, ClientRequest, ClientRequestProblem, RequestProblemKind};
use crate::turn::PartialPolicy;
pub use end::IncompleteEnd;
pub use reasoning::{ReasoningPlace, SealedBlocks, encode_reasoning, seal_blocks};

/// The value of `include` with which responses contain the encrypted reasoning.
const ENCRYPTED_REASONING: &str = "reasoning.encrypted_content";

/// The fields of the body.
const FIELDS: &FieldTable = &[
    ("background", Read),
    ("conversation", Read),
    ("include", Read),
    ("input", Read),
    ("instructions", Read),
    ("max_output_tokens", Read),
    ("metadata", Read),
    ("model", Read),
    ("parallel_tool_calls", Read),
    ("previous_response_id", Read),
    ("reasoning", Read),
    ("store", Read),
    ("stream", Read),
    ("stream_options", Read),
    ("temperature", Read),
    ("text", Read),
    ("tool_choice", Read),
    ("tools", Read),
    ("top_p", Read),
    ("prompt_cache_key", Ignored),
    ("prompt_cache_options", Ignored),
    ("prompt_cache_retention", Ignored),
    ("safety_identifier", Ignored),
    ("service_tier", Ignored),
    ("user", Ignored),
    ("top_logprobs", Only(|value| value == 0, "0")),
    ("truncation", Only(|value| value == "disabled", "\"disabled\"")),
    ("context_management", Refused("let the client shorten the input")),
    ("max_tool_calls", Refused("the client carries out its tools, so it can count the calls")),
    ("moderation", Refused("not every provider has it")),
    ("prompt", Refused("send the text of the template as `instructions` and `input`")),
];

/// A parsed request, without the history that it continues.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponsesRequest {
    /// `agent/ID` or `PROVIDER/MODEL`, unchecked.
    pub model: String,
    /// Instructions of this request only.
    pub instructions: String,
    /// The items of the request. References to other items are still in it.
    pub input: Vec<Value>,
    pub answer: AnswerOptions,
    pub stream: bool,
    pub background: bool,
    pub store: bool,
    /// The response that this one continues.
    pub previous: Option<String>,
    /// The conversation that this response continues and extends.
    pub conversation: Option<String>,
    pub metadata: Map<String, Value>,
    /// Whether the client wants the encrypted reasoning, to send it back.
    pub includes_encrypted_reasoning: bool,
    /// What the model sees of answers that were cut off. The rule of the agent, which the caller sets.
    pub partial: PartialPolicy,
}

impl ResponsesRequest {
    /// # Errors
    /// The field that is wrong, or that Quell cannot express.
    pub fn parse(body: &Value) -> Result<Self, ClientRequestProblem> {
        let body = RequestField::body(body).object()?;
        body.check_fields(FIELDS)?;
        let request = Self {
            model: body.required("model")?.string()?.to_owned(),
            instructions: optional_string(&body, "instructions")?.unwrap_or_default(),
            input: items::parse_input(&body.required("input")?)?,
            answer: options::parse_answer(&body)?,
            stream: flag(&body, "stream")?.unwrap_or(false),
            background: flag(&body, "background")?.unwrap_or(false),
            store: flag(&body, "store")?.unwrap_or(true),
            previous: optional_string(&body, "previous_response_id")?,
            conversation: parse_conversation_id(&body)?,
            metadata: parse_metadata(&body)?,
            includes_encrypted_reasoning: options::parse_include(&body)?,
            partial: PartialPolicy::default(),
        };
        request.check_storage(&body)?;
        if let Some(options) = body.optional("stream_options") {
            options.object()?.check_fields(&[("include_obfuscation", Ignored)])?;
        }
        Ok(request)
    }

    fn check_storage(&self, body: &RequestObject<'_>) -> Result<(), ClientRequestProblem> {
        if self.background && !self.store {
            return Err(body
                .required("background")?
                .invalid("a background response must be stored; leave out `store`"));
        }
        if self.conversation.is_some() && !self.store {
            return Err(body.required("store")?.invalid("a conversation stores its items; leave out `store`"));
        }
        if self.previous.is_some() && self.conversation.is_some() {
            let message = "it cannot be combined with `conversation`, which has a history of its own";
            return Err(body.required("previous_response_id")?.invalid(message));
        }
        Ok(())
    }

    /// The positions and ids of the items that are to be replaced by stored ones.
    pub fn item_references(&self) -> Vec<(usize, String)> {
        let reference = |(at, item): (usize, &Value)| Some((at, items::reference_id(item)?.to_owned()));
        self.input.iter().enumerate().filter_map(reference).collect()
    }

    /// The request with its whole conversation: `history` is what was said before its own items.
    ///
    /// # Errors
    /// The item that fits to nothing before it, or a reference that was not replaced.
    pub fn client_request(&self, history: &[Value]) -> Result<ClientRequest, ClientRequestProblem> {
        let mut builder = ConversationBuilder::new(&self.model).with_partial_policy(self.partial);
        let field = |at: usize| match at.checked_sub(history.len()) {
            Some(at) => format!("input[{at}]"),
            None => format!("previous input[{at}]"),
        };
        let word = |at: usize, problem| word_problem(problem, field(at));
        builder.push_instructions(&self.instructions).map_err(|problem| word(history.len(), problem))?;
        let mut group = items::AssistantGroup::new(&self.model);
        for (at, value) in history.iter().chain(&self.input).enumerate() {
            let item = RequestField { value, path: field(at) };
            items::push_item(&item, &mut group, &mut builder)?.map_err(|problem| word(at, problem))?;
            if let Some(end) = history.get(at).and_then(IncompleteEnd::of) {
                let cut_text = group.take_cut_text(end.cut_bytes);
                group.close(&mut builder).map_err(|problem| word(at, problem))?;
                builder.end_exchange(end.verdict, cut_text);
            }
        }
        let last = (history.len() + self.input.len()).saturating_sub(1);
        group.close(&mut builder).map_err(|problem| word(last, problem))?;
        let conversation = builder.finish().map_err(|problem| word_problem(problem, "input".to_owned()))?;
        Ok(ClientRequest { model: self.model.clone(), conversation, answer: self.answer.clone(), stream: self.stream })
    }
}

/// The items that begin a conversation, checked as those of a request.
///
/// # Errors
/// The field that is wrong.
pub fn parse_conversation(body: &Value) -> Result<(Vec<Value>, Map<String, Value>), ClientRequestProblem> {
    let body = RequestField::body(body).object()?;
    body.check_fields(&[("items", Read), ("metadata", Read)])?;
    let items = match body.optional("items") {
        Some(field) => {
            // Text alone is an input of a response, and no item.
            let fields = field.items()?;
            let items = items::parse_input(&field)?;
            if let Some((reference, _)) = fields.zip(&items).find(|(_, item)| items::reference_id(item).is_some()) {
                return Err(reference.unsupported("a conversation begins with items; send this one itself"));
            }
            items
        }
        None => Vec::new(),
    };
    Ok((items, parse_metadata(&body)?))
}

/// The items that are added to a conversation, checked as those of a request.
///
/// # Errors
/// The field that is wrong.
pub fn parse_conversation_items(body: &Value) -> Result<Vec<Value>, ClientRequestProblem> {
    let body = RequestField::body(body).object()?;
    body.check_fields(&[("items", Read)])?;
    let items = body.required("items")?;
    // Text alone is an input of a response, and no item.
    drop(items.items()?);
    items::parse_input(&items)
}

/// The new metadata of a conversation.
///
/// # Errors
/// The field that is wrong.
pub fn parse_conversation_metadata(body: &Value) -> Result<Map<String, Value>, ClientRequestProblem> {
    let body = RequestField::body(body).object()?;
    body.check_fields(&[("metadata", Read)])?;
    drop(body.required("metadata")?);
    parse_metadata(&body)
}

fn optional_string(object: &RequestObject<'_>, name: &str) -> Result<Option<String>, ClientRequestProblem> {
    object.optional(name).map(|field| field.string().map(str::to_owned)).transpose()
}

fn flag(object: &RequestObject<'_>, name: &str) -> Result<Option<bool>, ClientRequestProblem> {
    object.optional(name).map(|field| field.boolean()).transpose()
}

/// The id, or an object with the id.
fn parse_conversation_id(body: &RequestObject<'_>) -> Result<Option<String>, ClientRequestProblem> {
    let Some(field) = body.optional("conversation") else { return Ok(None) };
    match field.value {
        Value::String(id) => Ok(Some(id.clone())),
        _ => {
            let object = field.object()?;
            object.check_fields(&[("id", Read)])?;
            Ok(Some(object.required("id")?.string()?.to_owned()))
        }
    }
}

fn parse_metadata(body: &RequestObject<'_>) -> Result<Map<String, Value>, ClientRequestProblem> {
    let Some(field) = body.optional("metadata") else { return Ok(Map::new()) };
    let mut metadata = Map::new();
    let fields = field.object()?;
    for name in field.value.as_object().into_iter().flat_map(Map::keys) {
        let value = fields.required(name)?;
        let text = value.string()?;
        if name.chars().count() > 64 || text.chars().count() > 512 {
            return Err(value.invalid("a name has at most 64 characters, and a value at most 512"));
        }
        metadata.insert(name.clone(), json!(text));
    }
    if metadata.len() > 16 {
        return Err(field.invalid("at most 16 entries are possible"));
    }
    Ok(metadata)
}

fn word_problem(problem: ConversationProblem, field: String) -> ClientRequestProblem {
    let invalid = |message: String| ClientRequestProblem::new(RequestProblemKind::Invalid, field.clone(), message);
    match problem {
        ConversationProblem::LateInstructions => ClientRequestProblem::new(
            RequestProblemKind::Unsupported,
            field,
            "messages of the system and the developer must come before all others; use `instructions`",
        ),
        ConversationProblem::UnknownCall => invalid("no function call with this `call_id` comes before it".to_owned()),
        ConversationProblem::AlreadyAnswered => invalid("this function call has an output already".to_owned()),
        ConversationProblem::RepeatedCallId => invalid("this `call_id` occurs twice".to_owned()),
        ConversationProblem::Unanswered(ids) => {
            invalid(format!("no tool output found for function call {}", ids.join(", ")))
        }
        ConversationProblem::TooManyImages => invalid("there are too many images; leave out older ones".to_owned()),
    }
}
