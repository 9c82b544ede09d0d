//! How a tool call looks in an editor: its title, kind, places and content.

use std::path::Path;

use quell_protocol::RunId;
use quell_protocol::event::CallEnd;
use serde_json::{Value, json};

use crate::diff::parse_diff;
use crate::editor::{
    CallContent, CallDescription, CallKind, CallStatus, EndedCall, FileLocation, PlanItem, PlanStatus,
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
    pub(crate) fn describe(&self) -> CallDescription {
        CallDescription {
            id: self.id.to_owned(),
            tool: self.tool.to_owned(),
            title: self.title(),
            kind: kind_of(self.tool),
            location: self.location(),
            arguments: self.arguments.clone(),
        }
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

    fn location(&self) -> Option<FileLocation> {
        let is_file_tool =
            matches!(self.tool, "read_file" | "write_file" | "edit_file" | "list_files" | "search_files");
        let path = self.arguments.get("path").and_then(Value::as_str).filter(|_| is_file_tool)?;
        let line = self.arguments.get("offset").and_then(Value::as_u64).and_then(|line| u32::try_from(line).ok());
        Some(FileLocation { path: self.workdir.join(path), line })
    }

    /// The plan that a call of the `todo` tool shows.
    pub(crate) fn plan(&self) -> Option<Vec<PlanItem>> {
        let items = self.arguments.get("items").and_then(Value::as_array).filter(|_| self.tool == "todo")?;
        let entry = |item: &Value| {
            let status = match item.get("status").and_then(Value::as_str)? {
                "in_progress" => PlanStatus::InProgress,
                "completed" => PlanStatus::Completed,
                _ => PlanStatus::Pending,
            };
            Some(PlanItem { text: item.get("text").and_then(Value::as_str)?.to_owned(), status })
        };
        items.iter().map(entry).collect()
    }
}

impl ToolCallEnd<'_> {
    pub(crate) fn result(&self, id: String, workdir: &Path) -> EndedCall {
        let status = match self.end {
            CallEnd::Ok => CallStatus::Completed,
            CallEnd::Error | CallEnd::Denied => CallStatus::Failed,
            CallEnd::Stopped | CallEnd::NotStarted => CallStatus::Cancelled,
        };
        let files = self.diff.and_then(|diff| parse_diff(diff, workdir)).unwrap_or_default();
        let content = match (files.is_empty(), self.diff) {
            (false, _) => CallContent::Diffs(files),
            (true, Some(diff)) => CallContent::Texts(vec![fence(self.output), fence(diff)]),
            (true, None) if self.output.is_empty() => CallContent::Texts(Vec::new()),
            (true, None) => CallContent::Texts(vec![fence(self.output)]),
        };
        EndedCall { id, status, raw: json!({"end": self.end, "code": self.code, "output": self.output}), content }
    }
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

fn kind_of(tool: &str) -> CallKind {
    match tool {
        "read_file" => CallKind::Read,
        "write_file" | "edit_file" | "apply_patch" => CallKind::Edit,
        "list_files" | "search_files" | "recall" => CallKind::Search,
        "shell" | "process" => CallKind::Execute,
        "fetch_url" => CallKind::Fetch,
        "todo" | "remember" => CallKind::Think,
        _ => CallKind::Other,
    }
}

/// Editors render text as Markdown: output stays as it is in a block of code.
pub(crate) fn fence(output: &str) -> String {
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
        let call = start("read_file", &arguments).describe();
        assert_eq!((call.title.as_str(), call.kind), ("Read src/a.rs", CallKind::Read));
        assert_eq!(call.location, Some(FileLocation { path: "/w/src/a.rs".into(), line: Some(7) }));
        let command = json!({"command": "make\nmake test"});
        assert_eq!(start("shell", &command).describe().title, "`make…`");
        assert_eq!(start("docs__find", &json!({})).describe().title, "docs__find");
    }

    #[test]
    fn the_todo_list_is_a_plan() {
        let items =
            json!({"items": [{"text": "Look", "status": "completed"}, {"text": "Do", "status": "in_progress"}]});
        let statuses: Vec<_> = start("todo", &items).plan().unwrap().iter().map(|item| item.status).collect();
        assert_eq!(statuses, [PlanStatus::Completed, PlanStatus::InProgress]);
        assert_eq!(start("todo", &json!({"items": "x"})).plan(), None);
        assert_eq!(start("shell", &items).plan(), None);
    }

    #[test]
    fn each_end_has_its_status_and_an_edit_shows_its_diff() {
        let result =
            |end, diff| ToolCallEnd { end, code: None, output: "cut ```", diff }.result("c1".into(), "/w".as_ref());
        let stopped = result(CallEnd::Stopped, None);
        assert_eq!(stopped.content, CallContent::Texts(vec!["````\ncut ```\n````".to_owned()]));
        assert_eq!(stopped.status, CallStatus::Cancelled);
        assert_eq!(result(CallEnd::NotStarted, None).status, CallStatus::Cancelled);
        assert_eq!(result(CallEnd::Denied, None).status, CallStatus::Failed);
        let edited = result(CallEnd::Ok, Some("--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n+y\n"));
        assert_eq!(edited.status, CallStatus::Completed);
        let CallContent::Diffs(files) = edited.content else { panic!("{edited:?}") };
        assert_eq!((files[0].hunks[0].old.as_str(), files[0].hunks[0].new.as_str()), ("x\n", "y\n"));
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
