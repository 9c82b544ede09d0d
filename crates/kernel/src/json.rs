//! JSON from outside: how much memory it takes once it is made into values. Two bytes of text may become thirty-two.

use serde_json::Value;

/// Bytes that one value takes besides its text.
const VALUE: usize = 32;

/// True when a text holds more than `most` values, as far as can be told without making them. It is no check of the syntax.
#[must_use]
pub fn holds_more_values(text: &[u8], most: usize) -> bool {
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
    values > most
}

/// About how many bytes of memory a value takes.
#[must_use]
pub fn size(value: &Value) -> usize {
    let inside = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(size).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| VALUE + name.len() + size(value)).sum(),
    };
    VALUE + inside
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_counted_outside_of_strings() {
        let many = format!("[{}0]", "0,".repeat(1000));
        assert!(holds_more_values(many.as_bytes(), 1000) && !holds_more_values(many.as_bytes(), 1001));
        let text = format!(r#"{{"text": "\"{}"}}"#, ",[{".repeat(1000));
        assert!(!holds_more_values(text.as_bytes(), 1));
        assert!(holds_more_values("{".repeat(1001).as_bytes(), 1000));
    }

    #[test]
    fn small_values_weigh_more_than_their_text() {
        assert_eq!(size(&json!([0, 0, 0])), 4 * VALUE);
        assert_eq!(size(&json!({"ab": "cde"})), 3 * VALUE + 5);
    }
}
