//! Golden tables, what holds for every text, and the work that is done for the worst ones.

mod adversarial;
mod drafts;
mod golden;

use std::collections::BTreeSet;

use super::{Narration, Rules};

/// The tools that exist in these tests.
fn tools() -> BTreeSet<String> {
    ["shell", "web_search", "read_file", "write_file", "files__read"].map(str::to_owned).into()
}

fn keep(tools: &BTreeSet<String>) -> Rules<'_> {
    Rules { tools, narration: Narration::Keep }
}

/// Replies and what becomes of them.
const PROTOCOL: &str = include_str!("golden/protocol.txt");
/// Ordinary replies: each stays as it is.
const ORDINARY: &str = include_str!("golden/ordinary.txt");
/// Replies of which narration is dropped.
const NARRATION: &str = include_str!("golden/narration.txt");

/// One row of a table.
#[derive(Debug)]
struct Row {
    name: &'static str,
    input: &'static str,
    /// What is left; none when nothing is.
    left: Option<&'static str>,
}

/// Reads a table: `%%% name`, the reply, and then `%%% becomes` with what is left, `%%% nothing`, or neither if it stays.
fn rows(table: &'static str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for part in table.split("%%% ").skip(1) {
        let (head, body) = part.split_once('\n').unwrap_or((part, ""));
        let body = body.trim_end_matches('\n');
        match (head, rows.last_mut()) {
            ("becomes", Some(row)) => row.left = Some(body),
            ("nothing", Some(row)) => row.left = None,
            _ => rows.push(Row { name: head, input: body, left: Some(body) }),
        }
    }
    rows
}
