//! What a chat shows of tool calls, where it shows them: the start of a call, the plan of the `todo` tool, and the
//! changes of files. All of it is bounded in length.

use quell_protocol::display_text::one_line;
use serde_json::Value;

/// The tool whose arguments are a plan for people.
const PLAN_TOOL: &str = "todo";

const MAX_ARGUMENT_CHARS: usize = 200;
const MAX_PLAN_ITEMS: usize = 20;
const MAX_ITEM_CHARS: usize = 120;
/// A message of some networks has room for 2,000 characters.
const MAX_DIFF_LINES: usize = 40;
const MAX_DIFF_CHARS: usize = 1500;
const MAX_LINE_CHARS: usize = 160;

/// The text for the start of a call.
#[must_use]
pub fn call_notice(tool: &str, arguments: &Value) -> String {
    if tool == PLAN_TOOL
        && let Some(plan) = plan_text(arguments)
    {
        return plan;
    }
    let shown = ["command", "query", "path", "url"].iter().find_map(|key| arguments.get(key)?.as_str());
    let shown = shown.map_or_else(|| arguments.to_string(), str::to_owned);
    format!("🔧 `{tool}`: {}", one_line(&shown, MAX_ARGUMENT_CHARS))
}

/// The changes of a call as a code block. `None` if there are none.
#[must_use]
pub fn diff_notice(diff: &str) -> Option<String> {
    let (mut shown, mut chars) = (Vec::new(), 0);
    for line in diff.lines() {
        let line = without_controls(line, MAX_LINE_CHARS);
        chars += line.chars().count() + 1;
        if shown.len() == MAX_DIFF_LINES || chars > MAX_DIFF_CHARS {
            break;
        }
        shown.push(line);
    }
    let left_out = diff.lines().count() - shown.len();
    if shown.is_empty() {
        return None;
    }
    if left_out > 0 {
        shown.push(format!("… +{left_out}"));
    }
    let body = shown.join("\n");
    // A fence is longer than every run of backticks inside of it.
    let fence = "`".repeat(longest_backtick_run(&body).max(2) + 1);
    Some(format!("{fence}diff\n{body}\n{fence}"))
}

/// One line for each item. `None` if the arguments are no plan.
fn plan_text(arguments: &Value) -> Option<String> {
    let items = arguments.get("items")?.as_array()?;
    let line = |item: &Value| {
        let mark = match item.get("status")?.as_str()? {
            "completed" => "✓",
            "in_progress" => "●",
            _ => "○",
        };
        Some(format!("{mark} {}", one_line(item.get("text")?.as_str()?, MAX_ITEM_CHARS)))
    };
    let mut lines = items.iter().take(MAX_PLAN_ITEMS).map(line).collect::<Option<Vec<String>>>()?;
    if items.len() > MAX_PLAN_ITEMS {
        lines.push(format!("… +{}", items.len() - MAX_PLAN_ITEMS));
    }
    // Lines that follow each other directly would become one paragraph.
    (!lines.is_empty()).then(|| format!("📋\n\n{}", lines.join("  \n")))
}

fn without_controls(text: &str, max_chars: usize) -> String {
    let mut chars = text.chars().map(|c| if c == '\t' { ' ' } else { c }).filter(|c| !c.is_control());
    let mut shown: String = chars.by_ref().take(max_chars).collect();
    if chars.next().is_some() {
        shown.push('…');
    }
    shown
}

fn longest_backtick_run(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case("shell", json!({"command": "ls\n  -l"}), "🔧 `shell`: ls -l")]
    #[case("spawn_agent", json!({"agent": "a"}), "🔧 `spawn_agent`: {\"agent\":\"a\"}")]
    #[case("todo", json!({"items": []}), "🔧 `todo`: {\"items\":[]}")]
    #[case("todo", json!({"items": [{"text": "x"}]}), "🔧 `todo`: {\"items\":[{\"text\":\"x\"}]}")]
    fn a_call_is_named_with_what_it_is_about(#[case] tool: &str, #[case] arguments: Value, #[case] text: &str) {
        assert_eq!(call_notice(tool, &arguments), text);
    }

    #[test]
    fn a_plan_is_shown_as_a_list_of_bounded_length() {
        let item = |text: &str, status: &str| json!({"text": text, "status": status});
        let mut items = vec![item("Look", "completed"), item("Act", "in_progress"), item("Test", "pending")];
        let plan = call_notice("todo", &json!({"items": items}));
        assert_eq!(plan, "📋\n\n✓ Look  \n● Act  \n○ Test");
        items.extend(vec![item(&"long ".repeat(100), "pending"); 97]);
        let plan = call_notice("todo", &json!({"items": items}));
        assert!(plan.ends_with("… +80") && plan.chars().count() < 2800, "{plan}");
    }

    #[test]
    fn a_diff_is_a_code_block_of_bounded_length() {
        assert_eq!(diff_notice(""), None);
        let diff = "--- a/a.md\n+++ b/a.md\n-one\u{1b}[31m\n+```two```\n";
        assert_eq!(diff_notice(diff).unwrap(), "````diff\n--- a/a.md\n+++ b/a.md\n-one[31m\n+```two```\n````");
        let long = diff_notice(&"+a line of some length\n".repeat(500)).unwrap();
        assert!(long.contains("… +460") && long.chars().count() < MAX_DIFF_CHARS + 50, "{long}");
        let wide = diff_notice(&format!("+{}\n", "x".repeat(5000))).unwrap();
        assert!(wide.chars().count() < MAX_LINE_CHARS + 20, "{wide}");
    }
}
