//! The `todo` tool: the plan of a longer task, shown to people.

use std::fmt::Write as _;

use quell_scope::{Cancelled, Point};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::definition::ToolArguments;
use crate::tool::{ContextTool, ToolContext, ToolOutput};

const MAX_ITEMS: usize = 100;
const MAX_TEXT_CHARS: usize = 500;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TodoArgs {
    /// The whole list, in order. It replaces the list before.
    items: Vec<TodoItem>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TodoItem {
    /// What is to be done, in a few words.
    text: String,
    /// `pending`, `in_progress` (at most one item) or `completed`.
    status: TodoStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum TodoStatus {
    Pending,
    InProgress,
    Completed,
}

impl ToolArguments for TodoArgs {
    const NAME: &'static str = "todo";
    const ABOUT: &'static str = "Shows your plan to people as a to-do list. Use it for tasks of three steps or more: give the whole list at the \
                                 beginning, and again whenever the status of an item changes.";
    const EXAMPLE: &'static str = r#"{"items": [{"text": "Find the failing test", "status": "completed"}, {"text": "Correct it", "status": "in_progress"}]}"#;
}

impl ContextTool for TodoArgs {
    async fn call(self, cx: &mut ToolContext<'_>) -> Result<ToolOutput, Cancelled> {
        cx.scope.check(Point::BeforeTool)?;
        Ok(match self.problem() {
            Some(problem) => ToolOutput::error(problem),
            None => ToolOutput::ok(self.rendered()),
        })
    }
}

impl TodoArgs {
    fn problem(&self) -> Option<String> {
        if self.items.len() > MAX_ITEMS {
            return Some(format!("a list has at most {MAX_ITEMS} items; join some of them"));
        }
        for (number, item) in (1..).zip(&self.items) {
            if item.text.trim().is_empty() {
                return Some(format!("item {number} has no text"));
            }
            if item.text.chars().count() > MAX_TEXT_CHARS {
                return Some(format!("the text of item {number} has more than {MAX_TEXT_CHARS} characters"));
            }
        }
        let in_progress = self.items.iter().filter(|item| item.status == TodoStatus::InProgress).count();
        (in_progress > 1).then(|| format!("{in_progress} items are in_progress; work on one at a time"))
    }

    fn rendered(&self) -> String {
        let done = self.items.iter().filter(|item| item.status == TodoStatus::Completed).count();
        let mut out = format!("{done} of {} done", self.items.len());
        for item in &self.items {
            let mark = match item.status {
                TodoStatus::Pending => "[ ]",
                TodoStatus::InProgress => "[>]",
                TodoStatus::Completed => "[x]",
            };
            let _ = write!(out, "\n{mark} {}", item.text.split_whitespace().collect::<Vec<_>>().join(" "));
        }
        out
    }
}
