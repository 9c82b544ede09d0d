//! Amendments in the receipt of a stored view.

use quell_protocol::Amendment;
use quell_protocol::receipt::summary_line::unix_millis;
use serde_json::Value;

/// Adds an amendment to the receipt in `view`, with its milliseconds since the stop. Returns the view and the amendment
/// as written; `None` when the view has no receipt.
pub(crate) fn add_amendment(view: &str, mut amendment: Amendment) -> serde_json::Result<Option<(String, Amendment)>> {
    let mut view: Value = serde_json::from_str(view)?;
    let Some(receipt) = view.get_mut("receipt").and_then(Value::as_object_mut) else { return Ok(None) };
    let requested = receipt.get("requestedAt").and_then(|at| serde_json::from_value(at.clone()).ok());
    amendment.at.ms = requested
        .and_then(|at| unix_millis(&amendment.at).zip(unix_millis(&at)))
        .map(|(now, requested)| now - requested);
    let line = serde_json::to_value(&amendment)?;
    match receipt.get_mut("amendments").and_then(Value::as_array_mut) {
        Some(before) => before.push(line),
        // An older version wrote this receipt without the field.
        None => drop(receipt.insert("amendments".to_owned(), Value::Array(vec![line]))),
    }
    Ok(Some((view.to_string(), amendment)))
}

/// Merges into a view the amendments that only its stored version has: they arrived when the run was already out of
/// memory.
pub(crate) fn merge_amendments(stored: &str, view: &str) -> serde_json::Result<String> {
    let amendments_of =
        |view: &Value| view.pointer("/receipt/amendments").and_then(Value::as_array).cloned().unwrap_or_default();
    let stored = serde_json::from_str(stored).map(|stored| amendments_of(&stored)).unwrap_or_default();
    if stored.is_empty() {
        return Ok(view.to_owned());
    }
    let mut view: Value = serde_json::from_str(view)?;
    let known = amendments_of(&view);
    if let Some(amendments) = view.pointer_mut("/receipt/amendments").and_then(Value::as_array_mut) {
        amendments.extend(stored.into_iter().filter(|amendment| !known.contains(amendment)));
    }
    Ok(view.to_string())
}
