//! Deserialises only JSON objects where serde's derived code also accepts arrays. With an array, `[]` would be an empty
//! body, and `[true]` would set the first field.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

/// A `T` that is read from a JSON object and from nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

/// For `#[serde(deserialize_with)]` on a field that holds an object, null or nothing.
pub fn optional_object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Object<T>>::deserialize(deserializer)?.map(|Object(value)| value))
}

/// For `#[serde(deserialize_with)]` on a field that holds an object, or nothing with `#[serde(default)]`.
pub fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Object::deserialize(deserializer).map(|Object(value)| value)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_str, from_value};

    use super::Object;
    use crate::api::{StopAllRequest, StopRunRequest};

    #[test]
    fn an_array_is_no_body() {
        for text in ["[]", "[true]", "[true, true, \"x\"]", "7", "\"x\"", "null", "true"] {
            let read = from_str::<Object<StopAllRequest>>(text);
            let problem = read.expect_err(text).to_string();
            assert!(problem.contains("expected a JSON object"), "{text}: {problem}");
            assert!(from_value::<Object<StopAllRequest>>(from_str::<Value>(text).unwrap()).is_err(), "{text}");
        }
    }

    #[test]
    fn an_object_is_read_as_before() {
        let Object(request) = from_str::<Object<StopRunRequest>>(r#"{"force": true, "sessionKey": "s"}"#).unwrap();
        assert!(request.force && request.session_key.is_some());
        assert_eq!(from_str::<Object<StopAllRequest>>("{}").unwrap().0, StopAllRequest::default());
        let unknown = from_str::<Object<StopAllRequest>>("{\n\"hard\": true}").unwrap_err();
        assert!(unknown.to_string().contains("unknown field `hard`") && unknown.line() == 2, "{unknown}");
        let twice = from_str::<Object<StopAllRequest>>(r#"{"force": true, "force": true}"#).unwrap_err();
        assert!(twice.to_string().contains("duplicate field"), "{twice}");
    }
}
