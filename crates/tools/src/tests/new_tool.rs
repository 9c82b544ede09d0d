//! A tool that is written as docs/add-a-tool.md says, and called as runs call tools.

use quell_scope::{Cancelled, Point};
use schemars::JsonSchema;
use serde::Deserialize;

use super::*;
use crate::definition::ToolArguments;
use crate::tool::{ContextTool, ToolContext, ToolOutput};

/// Arguments of `echo`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EchoArgs {
    /// The text to repeat.
    text: String,
    /// How often; once if absent.
    times: Option<u32>,
}

impl ToolArguments for EchoArgs {
    const NAME: &'static str = "echo";
    const ABOUT: &'static str = "Repeats a text.";
    const EXAMPLE: &'static str = r#"{"text": "hello", "times": 2}"#;
}

impl ContextTool for EchoArgs {
    async fn call(self, cx: &mut ToolContext<'_>) -> Result<ToolOutput, Cancelled> {
        cx.scope.check(Point::BeforeTool)?;
        let EchoArgs { text, times } = self;
        let times = usize::try_from(times.unwrap_or(1)).unwrap_or(usize::MAX);
        if text.len().saturating_mul(times) > cx.output_limit {
            return Ok(ToolOutput::error("The answer would be too long.".to_owned()));
        }
        Ok(ToolOutput::ok(text.repeat(times)))
    }
}

static ECHO: BuiltInTool<EchoArgs> = BuiltInTool::new();

#[tokio::test]
async fn a_new_tool_is_called_like_all_others() {
    let mut fixture = ToolFixture::new();
    fixture.limit = 300;
    let output = fixture.try_call_of(&ECHO, json!({"text": "hello ", "times": 2})).await;
    assert_eq!(output, Ok(ToolOutput::ok("hello hello ".to_owned())));
    let output = fixture.try_call_of(&ECHO, json!({"text": "x", "times": 301})).await.unwrap();
    assert_eq!(output, ToolOutput::error("The answer would be too long.".to_owned()));
    let text = fixture.try_call_of(&ECHO, json!({"words": "hello"})).await.unwrap().text;
    assert!(text.contains(r#"there is no field "words"; the fields are `text`, `times`"#), "{text}");
    assert!(text.ends_with(r#"{"text": "hello", "times": 2}"#), "{text}");
    fixture.scope.cancel();
    assert_eq!(fixture.try_call_of(&ECHO, json!({"text": "hello"})).await, Err(Cancelled));
}

#[test]
fn a_new_tool_describes_itself() {
    let definition = ECHO.definition();
    let spec = (definition.spec_for)(&AgentFacts::default()).unwrap();
    assert_eq!((spec.name.as_str(), spec.description.as_str()), ("echo", "Repeats a text."));
    assert_eq!(spec.parameters["properties"]["times"]["description"], "How often; once if absent.");
    assert_eq!(definition.resource_kind, quell_protocol::ResourceKind::Task);
}

/// The page and this file show the same code.
#[test]
fn the_page_has_this_tool() {
    let page = include_str!("../../../../docs/add-a-tool.md");
    let own = include_str!("new_tool.rs");
    let tool = |text: &'static str| {
        let (_, rest) = text.split_once("/// Arguments of `echo`").unwrap();
        rest.split_once("text.repeat(times)").unwrap().0
    };
    assert_eq!(tool(page), tool(own));
}
