//! Estimates the memory of JSON values and limits their number before parsing. Two bytes of JSON text may become 32
//! bytes of memory.

use serde_json::Value;

/// Bytes that one value takes in addition to its text.
const VALUE_BYTES: usize = 32;

/// True if a text contains more than `limit` values, estimated without parsing. Does not check the syntax.
#[must_use]
pub fn exceeds_value_count(text: &[u8], limit: usize) -> bool {
    let (mut values, mut in_string, mut escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => values += 1,
            _ => {}
        }
    }
    values > limit
}

/// Estimated memory of a value in bytes.
pub fn memory_size(value: &Value) -> usize {
    let inside = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(memory_size).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| VALUE_BYTES + name.len() + memory_size(value)).sum(),
    };
    VALUE_BYTES + inside
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_counted_outside_of_strings() {
        let many = format!("[{}0]", "0,".repeat(1000));
        assert!(exceeds_value_count(many.as_bytes(), 1000) && !exceeds_value_count(many.as_bytes(), 1001));
        let text = format!(r#"{{"text": "\"{}"}}"#, ",[{".repeat(1000));
        assert!(!exceeds_value_count(text.as_bytes(), 1));
        assert!(exceeds_value_count("{".repeat(1001).as_bytes(), 1000));
    }

    #[test]
    fn small_values_weigh_more_than_their_text() {
        assert_eq!(memory_size(&json!([0, 0, 0])), 4 * VALUE_BYTES);
        assert_eq!(memory_size(&json!({"ab": "cde"})), 3 * VALUE_BYTES + 5);
    }
}
