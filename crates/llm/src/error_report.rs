//! Parse the error bodies of providers: message, status, context overflow, quota.

use quell_protocol::display_text;
use serde_json::Value;

/// The maximum length of a message; a proxy may answer with a whole error page.
const MAX_MESSAGE_CHARS: usize = 500;

/// The error codes for a context overflow of OpenAI, llama.cpp, Anthropic, and gateways to other providers.
const OVERFLOW_CODES: [&str; 4] =
    ["context_length_exceeded", "exceed_context_size_error", "string_above_max_length", "request_too_large"];

/// Phrases of errors without such a code: OpenAI, vLLM, the gateways of Anthropic and Google, Ollama, LM Studio.
const OVERFLOW_PHRASES: [&str; 8] = [
    "maximum context length",
    "context length exceeded",
    "exceeds the context",
    "exceed context",
    "context window",
    "prompt is too long",
    "prompt too long",
    "input token count exceeds",
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProviderErrorReport {
    /// The provider's message, shortened.
    pub(super) message: String,
    /// The status, if the body repeats it, as gateways do inside a stream.
    pub(super) status: Option<u16>,
    codes: Vec<String>,
}

impl ProviderErrorReport {
    /// Parses the body of an error response, whatever its format.
    pub(super) fn from_body(body: &str) -> Self {
        match serde_json::from_str::<Value>(body) {
            Ok(value) => Self::from_json(value.get("error").unwrap_or(&value)),
            Err(_) => Self::from_text(body),
        }
    }

    /// Parses the value of an `error` field.
    pub(super) fn from_json(error: &Value) -> Self {
        let text = |name: &str| error.get(name).and_then(Value::as_str);
        let message = ["message", "detail", "error"].into_iter().find_map(text).or(error.as_str());
        let status = ["code", "status"].into_iter().find_map(|name| error.get(name)?.as_u64());
        let codes = ["code", "type"].into_iter().filter_map(text).map(str::to_owned).collect();
        Self {
            message: shorten(message.unwrap_or(&error.to_string())),
            status: status.and_then(|status| u16::try_from(status).ok()),
            codes,
        }
    }

    fn from_text(text: &str) -> Self {
        let message = if text.trim().is_empty() { "no reason given".to_owned() } else { shorten(text) };
        Self { message, status: None, codes: Vec::new() }
    }

    /// True when the conversation is longer than the model accepts.
    pub(super) fn is_overflow(&self) -> bool {
        let words = self.message.to_lowercase();
        OVERFLOW_CODES.into_iter().any(|code| self.has_code(code))
            || OVERFLOW_PHRASES.into_iter().any(|phrase| words.contains(phrase))
    }

    /// True when a 429 is about money, where waiting does not help.
    pub(super) fn is_out_of_quota(&self) -> bool {
        self.has_code("insufficient_quota")
    }

    fn has_code(&self, wanted: &str) -> bool {
        self.codes.iter().any(|code| code == wanted)
    }
}

fn shorten(text: &str) -> String {
    display_text::shorten(text.trim(), MAX_MESSAGE_CHARS, "...")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::openai(r#"{"error":{"message":"m","type":"t","param":null,"code":"c"}}"#, "m", None)]
    #[case::gateway(r#"{"error":{"code":502,"message":"m"}}"#, "m", Some(502))]
    #[case::anthropic(
        r#"{"type":"error","error":{"type":"overloaded_error","message":"m"},"request_id":"r"}"#,
        "m",
        None
    )]
    #[case::ollama(r#"{"error":"m"}"#, "m", None)]
    #[case::fastapi(r#"{"detail":"m"}"#, "m", None)]
    #[case::flat(r#"{"object":"error","message":"m","code":400}"#, "m", Some(400))]
    #[case::unknown_json(r#"{"x":1}"#, r#"{"x":1}"#, None)]
    #[case::text(" bad gateway\n", "bad gateway", None)]
    #[case::empty("", "no reason given", None)]
    fn every_shape_gives_its_words(#[case] body: &str, #[case] message: &str, #[case] status: Option<u16>) {
        let report = ProviderErrorReport::from_body(body);
        assert_eq!((report.message.as_str(), report.status), (message, status));
    }

    #[rstest]
    #[case(r#"{"error":{"message":"m","code":"context_length_exceeded"}}"#, true)]
    #[case(r#"{"error":{"message":"m","type":"exceed_context_size_error"}}"#, true)]
    #[case(r#"{"error":{"message":"This model's maximum context length is 8192 tokens."}}"#, true)]
    #[case(r#"{"error":{"message":"Prompt is too long: 9 > 8"}}"#, true)]
    #[case(r#"{"type":"error","error":{"type":"request_too_large","message":"m"}}"#, true)]
    #[case(r#"{"error":{"message":"input length and `max_tokens` exceed context limit: 190 + 20 > 200"}}"#, true)]
    #[case(r#"{"error":{"message":"max_tokens is too large"}}"#, false)]
    #[case(r#"{"error":{"message":"invalid context"}}"#, false)]
    fn overflow_is_told_from_other_refusals(#[case] body: &str, #[case] overflow: bool) {
        assert_eq!(ProviderErrorReport::from_body(body).is_overflow(), overflow);
    }

    #[test]
    fn a_long_page_is_shortened_between_characters() {
        let report = ProviderErrorReport::from_body(&"ü".repeat(2000));
        assert_eq!(report.message.chars().count(), MAX_MESSAGE_CHARS + 3);
    }
}
