//! Build the provider-safe name `SERVER__TOOL` of each tool.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// The longest name that every provider accepts.
const MAX_TOOL_NAME_CHARS: usize = 64;
/// Separates the name of the server from the tool's own name.
pub(super) const SEPARATOR: &str = "__";

/// The name of a server's tool. A tool whose own name is too long or has illegal characters gets a part of its hash. So
/// no two tools of a server share a name, and a name never depends on other tools.
pub(super) fn offered_tool_name(server: &str, tool: &str) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    let plain: String = tool.chars().map(legal).collect();
    let name = format!("{server}{SEPARATOR}{plain}");
    if plain == tool && name.len() <= MAX_TOOL_NAME_CHARS {
        return name;
    }
    let hash = Sha256::digest(tool.as_bytes()).iter().take(4).fold(String::from("_"), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    });
    let kept: String = name.chars().take(MAX_TOOL_NAME_CHARS - hash.len()).collect();
    kept + &hash
}

/// The server that a tool's name begins with.
#[must_use]
pub fn server_of_tool(tool: &str) -> Option<&str> {
    tool.split_once(SEPARATOR).map(|(server, _)| server)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_legal_name_stays_as_it_is() {
        assert_eq!(offered_tool_name("everything", "get-sum"), "everything__get-sum");
        assert_eq!(server_of_tool("everything__get-sum"), Some("everything"));
        assert_eq!(server_of_tool("read_file"), None);
    }

    proptest! {
        #[test]
        fn every_name_is_legal_and_of_one_tool_alone(one in "\\PC{0,80}", other in "\\PC{0,80}") {
            let name = offered_tool_name("files", &one);
            prop_assert!(name.len() <= MAX_TOOL_NAME_CHARS && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)));
            prop_assert_eq!(name == offered_tool_name("files", &other), one == other);
        }
    }
}
