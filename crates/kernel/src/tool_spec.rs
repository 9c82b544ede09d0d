//! The description of a tool for a model.

use std::sync::Arc;

/// The description of a tool for a model. Clones share the schema, since each request in progress holds one.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    pub name: String,
    pub description: String,
    /// The parameters as a JSON schema.
    pub parameters: Arc<serde_json::Value>,
}
