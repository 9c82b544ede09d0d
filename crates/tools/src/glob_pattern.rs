//! Glob patterns of models and of ignore files, bounded before they are parsed.
//!
//! `globset` works a level of braces deeper with a call deeper, in its parser, in what makes the regular expression, and
//! when the pattern is dropped; so the levels are counted here first.

use std::path::Path;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::file_tool::{FileToolError, failed_call};
use crate::text::quoted;

/// Far above what people write; the longest patterns of well-known `.gitignore` templates have about 100 bytes.
const MAX_BYTES: usize = 1000;
/// Braces in braces.
const MAX_LEVELS: usize = 10;

/// Why a pattern is not parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum GlobLimit {
    #[error("it has more than {MAX_BYTES} bytes")]
    Bytes,
    #[error("it has more than {MAX_LEVELS} levels of braces")]
    Levels,
}

/// # Errors
/// The pattern is too long, or its braces are too deep.
pub(super) fn check_glob_limits(text: &str) -> Result<(), GlobLimit> {
    if text.len() > MAX_BYTES {
        return Err(GlobLimit::Bytes);
    }
    let mut levels = 0_usize;
    for byte in text.bytes() {
        // An escaped brace counts, too, which only makes the count too high.
        match byte {
            b'{' => levels += 1,
            b'}' => levels = levels.saturating_sub(1),
            _ => {}
        }
        if levels > MAX_LEVELS {
            return Err(GlobLimit::Levels);
        }
    }
    Ok(())
}

/// Without a slash it matches file names, with a slash paths relative to the start.
#[derive(Debug)]
pub(super) struct GlobPattern {
    globs: GlobSet,
    matches_names: bool,
}

impl GlobPattern {
    pub(super) fn parse(text: &str) -> Result<Self, FileToolError> {
        let refused = |why: &dyn std::fmt::Display| failed_call(format!("{} is not a glob: {why}", quoted(text)));
        check_glob_limits(text).map_err(|limit| refused(&limit))?;
        let plain = text.strip_prefix("./").unwrap_or(text);
        let glob = GlobBuilder::new(plain).literal_separator(true).build().map_err(|error| refused(error.kind()))?;
        // `compile_matcher` would panic for a pattern whose regular expression is too large.
        let globs = GlobSetBuilder::new().add(glob).build().map_err(|error| refused(error.kind()))?;
        Ok(Self { globs, matches_names: !plain.contains('/') })
    }

    pub(super) fn matches(&self, path: &Path, start: &Path) -> bool {
        if self.matches_names {
            return path.file_name().is_some_and(|name| self.globs.is_match(name));
        }
        self.globs.is_match(path.strip_prefix(start).unwrap_or(path))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn nested(levels: usize) -> String {
        "{a,".repeat(levels) + "b" + &"}".repeat(levels)
    }

    #[test]
    fn patterns_of_people_pass_and_match() {
        for (pattern, path, matches) in [
            ("*.{rs,toml}", "src/lib.rs", true),
            ("src/**/*.rs", "src/a/b.rs", true),
            ("./src/*.rs", "src/a/b.rs", false),
            (nested(MAX_LEVELS).as_str(), "b", true),
        ] {
            assert_eq!(
                GlobPattern::parse(pattern).unwrap().matches(Path::new(path), Path::new("")),
                matches,
                "{pattern}"
            );
        }
    }

    /// Regression: the stack overflowed, which ends the daemon.
    #[test]
    fn deep_and_long_patterns_are_refused_with_the_limit() {
        let refuse = || {
            [
                nested(MAX_LEVELS + 1),
                nested(100_000),
                "{".repeat(100_000),
                "[".repeat(100_000),
                "a".repeat(MAX_BYTES + 1),
            ]
            .map(|pattern| format!("{:?}", GlobPattern::parse(&pattern).unwrap_err()))
        };
        let errors = thread::Builder::new().stack_size(2 << 20).spawn(refuse).unwrap().join().unwrap();
        assert!(errors[0].contains("10 levels of braces"), "{errors:?}");
        assert!(errors[1..].iter().all(|error| error.contains("1000 bytes")), "{errors:?}");
    }

    /// A pattern within the limits is refused or compiled, and never a panic.
    #[test]
    fn the_largest_patterns_do_not_panic() {
        for part in ["[a-z]", "**/", "{a,b}", "?", "[!\\]]", "\\", "{[", "*", "é"] {
            let pattern = part.repeat(MAX_BYTES / part.len());
            let _ = GlobPattern::parse(&pattern).map(|glob| glob.matches(Path::new("a/b/c"), Path::new("")));
        }
    }
}
