//! How a tool call looks in an editor: its title, kind, places and content.

use std::path::Path;

use quell_protocol::RunId;
use quell_protocol::event::CallEnd;
use serde_json::{Value, json};

use crate::diff::parse_diff;
use crate::wire::{
    Content, Diff, Plan, PlanEntry, PlanEntryPriority, PlanEntryStatus, ToolCall, ToolCallContent, ToolCallLocation,
    ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields, ToolKind,
};

/// Longest part of an argument in a title, in characters.
const MAX_TITLE_CHARS: usize = 120;
/// Running output that is shown, in bytes: its end.
pub(crate) const MAX_OUTPUT_BYTES: usize = 16 * 1024;

/// The id of a call in its session. Models may use the same id in each of their answers.
pub(crate) fn wire_call_id(run: &RunId, call: &str) -> String {
    format!("{run}/{call}")
}

/// What is known of a call when it begins.
pub(crate) struct CallStart<'a> {
    pub(crate) id: &'a str,
    pub(crate) tool: &'a str,
    pub(crate) arguments: &'a Value,
    pub(crate) workdir: &'a Path,
}

/// What is known of a call when it has ended.
pub(crate) struct ToolCallEnd<'a> {
    pub(crate) end: CallEnd,
    pub(crate) code: Option<i32>,
    pub(crate) output: &'a str,
    pub(crate) diff: Option<&'a str>,
}

impl CallStart<'_> {
    pub(crate) fn announce(&self, status: ToolCallStatus) -> ToolCall {
        ToolCall::new(self.id.to_owned(), self.title())
            .name(self.tool.to_owned())
            .kind(kind_of(self.tool))
            .status(status)
            .locations(self.locations())
            .raw_input(self.arguments.clone())
    }

    /// The call as a request for permission shows it.
    pub(crate) fn describe(&self, note: Option<String>) -> ToolCallUpdate {
        let fields = ToolCallUpdateFields::new()
            .title(self.title())
            .kind(kind_of(self.tool))
            .status(ToolCallStatus::Pending)
            .locations(self.locations())
            .raw_input(self.arguments.clone());
        let fields = match note {
            Some(note) => fields.content(vec![text_content(note)]),
            None => fields,
        };
        ToolCallUpdate::new(self.id.to_owned(), fields)
    }

    fn title(&self) -> String {
        let argument = |key: &str| self.arguments.get(key).and_then(Value::as_str).map(shorten);
        let titled = match self.tool {
            "shell" => argument("command").map(|command| format!("`{command}`")),
            "read_file" => argument("path").map(|path| format!("Read {path}")),
            "write_file" => argument("path").map(|path| format!("Write {path}")),
            "edit_file" => argument("path").map(|path| format!("Edit {path}")),
            "apply_patch" => Some("Apply a patch".to_owned()),
            "list_files" => Some(format!("List {}", argument("path").unwrap_or_else(|| ".".to_owned()))),
            "search_files" => argument("pattern").map(|pattern| format!("Search for {pattern}")),
            "fetch_url" => argument("url").map(|url| format!("Fetch {url}")),
            "todo" => Some("Plan".to_owned()),
            _ => None,
        };
        titled.unwrap_or_else(|| self.tool.to_owned())
    }

    fn locations(&self) -> Vec<ToolCallLocation> {
        let is_file_tool =
            matches!(self.tool, "read_file" | "write_file" | "edit_file" | "list_files" | "search_files");
        let Some(path) = self.arguments.get("path").and_then(Value::as_str).filter(|_| is_file_tool) else {
            return Vec::new();
        };
        let line = self.arguments.get("offset").and_then(Value::as_u64).and_then(|line| u32::try_from(line).ok());
        vec![ToolCallLocation::new(self.workdir.join(path)).line(line)]
    }

    /// The plan that a call of the `todo` tool shows.
    pub(crate) fn plan(&self) -> Option<Plan> {
        let items = self.arguments.get("items").and_then(Value::as_array).filter(|_| self.tool == "todo")?;
        let entry = |item: &Value| {
            let status = match item.get("status").and_then(Value::as_str)? {
                "in_progress" => PlanEntryStatus::InProgress,
                "completed" => PlanEntryStatus::Completed,
                _ => PlanEntryStatus::Pending,
            };
            Some(PlanEntry::new(item.get("text").and_then(Value::as_str)?, PlanEntryPriority::Medium, status))
        };
        items.iter().map(entry).collect::<Option<Vec<_>>>().map(Plan::new)
    }
}

impl ToolCallEnd<'_> {
    pub(crate) fn update(&self, id: &str, workdir: &Path) -> ToolCallUpdate {
        let status = match self.end {
            CallEnd::Ok => ToolCallStatus::Completed,
            // Version 1 has no word for a call that was stopped.
            CallEnd::Error | CallEnd::Stopped | CallEnd::NotStarted | CallEnd::Denied => ToolCallStatus::Failed,
        };
        let mut fields = ToolCallUpdateFields::new()
            .status(status)
            .raw_output(json!({"end": self.end, "code": self.code, "output": self.output}));
        let hunks = self.diff.and_then(|diff| parse_diff(diff, workdir)).unwrap_or_default();
        let content = match (hunks.is_empty(), self.diff) {
            (false, _) => {
                let place = |hunk: &crate::diff::FileHunk| ToolCallLocation::new(hunk.path.clone()).line(hunk.line);
                fields = fields.locations(hunks.iter().map(place).collect::<Vec<_>>());
                let diffs = hunks.into_iter().map(|hunk| Diff::new(hunk.path, hunk.new).old_text(hunk.old));
                diffs.map(ToolCallContent::Diff).collect()
            }
            (true, Some(diff)) => vec![text_content(fence(self.output)), text_content(fence(diff))],
            (true, None) if self.output.is_empty() => Vec::new(),
            (true, None) => vec![text_content(fence(self.output))],
        };
        ToolCallUpdate::new(id.to_owned(), fields.content(content))
    }
}

/// The update of a running call that has printed something.
pub(crate) fn output_update(id: &str, output: &str) -> ToolCallUpdate {
    let fields = ToolCallUpdateFields::new().content(vec![text_content(fence(output))]);
    ToolCallUpdate::new(id.to_owned(), fields)
}

/// Adds printed output. A carriage return at its beginning takes back the unfinished line.
pub(crate) fn add_output(shown: &mut String, added: &str) {
    let added = match added.strip_prefix('\r') {
        Some(rest) => {
            shown.truncate(shown.rfind('\n').map_or(0, |end| end + 1));
            rest
        }
        None => added,
    };
    shown.push_str(added);
    let excess = shown.len().saturating_sub(MAX_OUTPUT_BYTES);
    if excess > 0 {
        let cut = (excess..=shown.len()).find(|at| shown.is_char_boundary(*at)).unwrap_or(0);
        shown.drain(..cut);
    }
}

fn kind_of(tool: &str) -> ToolKind {
    match tool {
        "read_file" => ToolKind::Read,
        "write_file" | "edit_file" | "apply_patch" => ToolKind::Edit,
        "list_files" | "search_files" | "recall" => ToolKind::Search,
        "shell" | "process" => ToolKind::Execute,
        "fetch_url" => ToolKind::Fetch,
        "todo" | "remember" => ToolKind::Think,
        _ => ToolKind::Other,
    }
}

fn text_content(text: String) -> ToolCallContent {
    ToolCallContent::Content(Content::new(text))
}

/// Editors render text as Markdown: output stays as it is in a block of code.
fn fence(output: &str) -> String {
    let longest_run = output.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let marks = "`".repeat(longest_run.max(2) + 1);
    format!("{marks}\n{}\n{marks}", output.trim_end_matches('\n'))
}

fn shorten(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let is_whole = line.chars().count() <= MAX_TITLE_CHARS && line.len() == text.trim_end().len();
    let kept: String = line.chars().take(MAX_TITLE_CHARS).collect();
    if is_whole { kept } else { format!("{kept}…") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start<'a>(tool: &'a str, arguments: &'a Value) -> CallStart<'a> {
        CallStart { id: "c1", tool, arguments, workdir: Path::new("/w") }
    }

    #[test]
    fn a_call_says_what_it_does_and_where() {
        let arguments = json!({"path": "src/a.rs", "offset": 7});
        let call = start("read_file", &arguments).announce(ToolCallStatus::InProgress);
        assert_eq!((call.title.as_str(), call.kind), ("Read src/a.rs", ToolKind::Read));
        assert_eq!(call.locations, [ToolCallLocation::new("/w/src/a.rs").line(7)]);
        let command = json!({"command": "make\nmake test"});
        assert_eq!(start("shell", &command).announce(ToolCallStatus::Pending).title, "`make…`");
        assert_eq!(start("docs__find", &json!({})).announce(ToolCallStatus::Pending).title, "docs__find");
    }

    #[test]
    fn the_todo_list_is_a_plan() {
        let items =
            json!({"items": [{"text": "Look", "status": "completed"}, {"text": "Do", "status": "in_progress"}]});
        let plan = start("todo", &items).plan().unwrap();
        let statuses: Vec<_> = plan.entries.iter().map(|entry| entry.status.clone()).collect();
        assert_eq!(statuses, [PlanEntryStatus::Completed, PlanEntryStatus::InProgress]);
        assert_eq!(start("todo", &json!({"items": "x"})).plan(), None);
        assert_eq!(start("shell", &items).plan(), None);
    }

    #[test]
    fn a_stopped_call_has_failed_and_an_edit_shows_its_diff() {
        let result = ToolCallEnd { end: CallEnd::Stopped, code: None, output: "cut ```", diff: None };
        let update = result.update("c1", Path::new("/w"));
        assert_eq!(update.fields.status, Some(ToolCallStatus::Failed));
        let shown = serde_json::to_value(&update).unwrap();
        assert_eq!(shown["content"][0]["content"]["text"], "````\ncut ```\n````");
        let diff = Some("--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n+y\n");
        let edited = ToolCallEnd { end: CallEnd::Ok, code: None, output: "ok", diff }.update("c2", Path::new("/w"));
        let shown = serde_json::to_value(&edited).unwrap();
        assert_eq!(shown["content"][0], json!({"type": "diff", "path": "/w/a", "oldText": "x\n", "newText": "y\n"}));
        assert_eq!(shown["status"], "completed");
    }

    #[test]
    fn running_output_takes_back_unfinished_lines_and_is_bounded() {
        let mut shown = "done\n10 %".to_owned();
        add_output(&mut shown, "\r20 %");
        assert_eq!(shown, "done\n20 %");
        add_output(&mut shown, &"ü".repeat(MAX_OUTPUT_BYTES));
        assert!(shown.len() <= MAX_OUTPUT_BYTES && shown.ends_with('ü'));
    }
}
