//! Tests of the reply sanitiser: shared golden cases and partial replies.

mod drafts;
mod golden;

use std::collections::BTreeSet;

use super::{NarrationPolicy, SanitiserRules};

/// The tools that exist in these tests.
fn tools() -> BTreeSet<String> {
    ["shell", "web_search", "read_file", "write_file", "files__read"].map(str::to_owned).into()
}

fn rules_keeping_narration(tools: &BTreeSet<String>) -> SanitiserRules<'_> {
    SanitiserRules { tools, narration_policy: NarrationPolicy::Keep }
}

/// Replies with protocol, and the expected results.
const PROTOCOL: &str = include_str!("golden/protocol.txt");
/// Ordinary replies, which stay unchanged.
const ORDINARY: &str = include_str!("golden/ordinary.txt");
/// Replies with narration, and the expected results with [`NarrationPolicy::Drop`].
const NARRATION: &str = include_str!("golden/narration.txt");

#[derive(Debug)]
struct GoldenCase {
    name: &'static str,
    input: &'static str,
    /// `None` if the result is empty.
    expected: Option<&'static str>,
}

/// Parses a table: `%%% name`, the reply, and then `%%% becomes` with the result, `%%% nothing` if the result is empty,
/// or neither if the reply stays unchanged.
fn parse_golden_cases(table: &'static str) -> Vec<GoldenCase> {
    let mut rows: Vec<GoldenCase> = Vec::new();
    for part in table.split("%%% ").skip(1) {
        let (head, body) = part.split_once('\n').unwrap_or((part, ""));
        let body = body.trim_end_matches('\n');
        match (head, rows.last_mut()) {
            ("becomes", Some(row)) => row.expected = Some(body),
            ("nothing", Some(row)) => row.expected = None,
            _ => rows.push(GoldenCase { name: head, input: body, expected: Some(body) }),
        }
    }
    rows
}
