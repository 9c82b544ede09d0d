//! Check that a session's history is well formed: each call has one result, each turn is sealed.

use std::collections::BTreeMap;

use serde_json::Value;

/// Returns the faults in the messages of complete turns.
pub(crate) fn history_faults(messages: &[Value]) -> Vec<String> {
    let of_runs = messages.iter().filter(|message| message["role"] != "reset");
    let turns: Vec<Vec<&Value>> = of_runs.fold(Vec::new(), |mut turns: Vec<Vec<&Value>>, message| {
        match turns.last_mut() {
            Some(turn) if turn[0]["runId"] == message["runId"] => turn.push(message),
            _ => turns.push(vec![message]),
        }
        turns
    });
    turns.iter().flat_map(|turn| turn_faults(turn)).collect()
}

fn turn_faults(turn: &[&Value]) -> Vec<String> {
    let run = &turn[0]["runId"];
    let mut faults = Vec::new();
    if !run.is_string() {
        faults.push(format!("a turn without a run: {:#}", turn[0]));
    }
    if turn[0]["role"] != "user" {
        faults.push(format!("the turn of {run} begins with {}", turn[0]["role"]));
    }
    let sealed = turn.iter().filter(|message| message["verdict"].is_object()).count();
    if sealed != 1 || turn.last().is_none_or(|last| !last["verdict"].is_object()) {
        faults.push(format!("the turn of {run} has {sealed} verdicts; one is due, on its last message"));
    }
    let mut open: BTreeMap<&str, i32> = BTreeMap::new();
    for message in turn {
        match message["role"].as_str() {
            Some("assistant") => {
                if let Some((id, _)) = open.iter().find(|(_, owed)| **owed != 0) {
                    faults.push(format!("{run}: the call {id} has no result before the next answer of the model"));
                }
                for call in message["calls"].as_array().into_iter().flatten() {
                    *open.entry(call["id"].as_str().unwrap_or_default()).or_default() += 1;
                }
            }
            Some("tool") => *open.entry(message["callId"].as_str().unwrap_or_default()).or_default() -= 1,
            Some("user" | "note") => {}
            other => faults.push(format!("{run}: a message of {other:?}")),
        }
    }
    let owed = open.iter().filter(|(_, owed)| **owed != 0);
    faults.extend(owed.map(|(id, owed)| format!("{run}: the call {id} lacks {owed} results")));
    faults
}
