//! Bytes of machine code by crate, from the symbols of a binary.
//!
//! rustc's symbols with version `v0` name two crates for generic code: the one in which it is written, and the one for
//! which it was compiled. The older kind, which begins with `_ZN`, names only the first. What a crate compiles cannot be
//! told from a demangled name, so the symbols are read as they are: only the names of crates in them, which needs no
//! crate for demangling.

use std::collections::{BTreeMap, HashSet};

/// Code of C and assembly, and of the start of the program.
pub(super) const NOT_RUST: &str = "(C and assembly)";

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CodeSizes {
    /// Bytes by the name of the crate for which the code was compiled.
    pub(super) compiled_for: BTreeMap<String, u64>,
    /// Bytes by the name of the crate in which the code is written.
    pub(super) written_in: BTreeMap<String, u64>,
}

/// Reads the output of `nm --print-size --defined-only`: address, size, kind, symbol.
pub(super) fn parse_code_sizes(nm_output: &str) -> CodeSizes {
    let mut sizes = CodeSizes::default();
    let mut seen = HashSet::new();
    for line in nm_output.lines() {
        let mut fields = line.split(' ');
        let (Some(address), Some(size), Some(kind), Some(symbol)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let Ok(size) = u64::from_str_radix(size, 16) else { continue };
        // Functions with equal code have one address.
        if !matches!(kind, "t" | "T" | "w" | "W") || !seen.insert(address) {
            continue;
        }
        let (written_in, compiled_for) = crates_of(symbol);
        *sizes.written_in.entry(written_in.to_owned()).or_default() += size;
        *sizes.compiled_for.entry(compiled_for.to_owned()).or_default() += size;
    }
    sizes
}

/// The names of the crates in which a function is written and for which it was compiled.
fn crates_of(symbol: &str) -> (&str, &str) {
    // Thin LTO appends `.llvm.` and a number.
    let symbol = symbol.split('.').next().filter(|name| name.starts_with("_R")).unwrap_or(symbol);
    if let Some(path) = symbol.strip_prefix("_R") {
        let written_in = first_crate(path).unwrap_or(NOT_RUST);
        return (written_in, last_crate(path).unwrap_or(written_in));
    }
    let name = symbol.strip_prefix("_ZN").and_then(legacy_crate).unwrap_or(NOT_RUST);
    (name, name)
}

/// The first crate root in a path of version `v0`: the one of its outermost module.
fn first_crate(path: &str) -> Option<&str> {
    let mut at = 0;
    loop {
        match path.as_bytes().get(at)? {
            b'C' => return crate_root(path, at).map(|(name, _)| name),
            // A namespace follows, which may be any letter, or the type of a trait's method: `s` is `i16`.
            b'N' => at += 2,
            b'Y' if path[at + 1..].starts_with('s') => at += 2,
            // A number follows.
            b's' | b'B' | b'L' => at += path[at..].find('_')? + 1,
            _ => at += 1,
        }
    }
}

/// The crate root behind a path, in full or as a reference to an earlier place.
fn last_crate(path: &str) -> Option<&str> {
    let starts = path.rmatch_indices('C').map(|(at, _)| at);
    let in_full = starts.filter_map(|at| crate_root(path, at)).find(|(_, end)| *end == path.len());
    let referred = || {
        let number = path.strip_suffix('_')?;
        let begins = number.match_indices('B').map(|(at, _)| at + 1);
        begins.filter_map(|begin| base_62(&number[begin..])).find_map(|at| crate_root(path, at))
    };
    in_full.or_else(referred).map(|(name, _)| name)
}

/// Parses `C`, an optional `s…_`, and a name with its length in front. Returns the name and where it ends.
fn crate_root(path: &str, at: usize) -> Option<(&str, usize)> {
    let mut rest = path.get(at..)?.strip_prefix('C')?;
    if let Some(number) = rest.strip_prefix('s') {
        let (digits, behind) = number.split_once('_')?;
        rest = digits.bytes().all(|byte| byte.is_ascii_alphanumeric()).then_some(behind)?;
    }
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let length: usize = rest[..digits].parse().ok()?;
    let begin = path.len() - rest.len() + digits;
    // Names that begin with a digit or an underscore are behind an underscore; none of crates does.
    Some((path.get(begin..begin + length)?, begin + length))
}

/// No digits mean 0, `0` means 1, and so on.
fn base_62(digits: &str) -> Option<usize> {
    if digits.is_empty() {
        return Some(0);
    }
    let value = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'z' => Some(byte - b'a' + 10),
        b'A'..=b'Z' => Some(byte - b'A' + 36),
        _ => None,
    };
    let number =
        digits.bytes().try_fold(0_usize, |number, byte| number.checked_mul(62)?.checked_add(usize::from(value(byte)?)));
    number?.checked_add(1)
}

/// The first crate in the first part of an older symbol: `3syn` or `51_$LT$syn..Item$u20$as$u20$…`.
fn legacy_crate(symbol: &str) -> Option<&str> {
    let digits = symbol.bytes().take_while(u8::is_ascii_digit).count();
    let length: usize = symbol[..digits].parse().ok()?;
    let mut part = symbol.get(digits..digits + length)?;
    let Some(types) = part.strip_prefix("_$").map(|_| &part[1..]) else {
        return Some(part);
    };
    part = types;
    const IN_FRONT: &[&str] =
        &["$LT$", "$RF$", "$BP$", "$LP$", "$u5b$", "mut$u20$", "const$u20$", "dyn$u20$", "$u27$", "_"];
    while let Some(rest) = IN_FRONT.iter().find_map(|begin| part.strip_prefix(begin)) {
        part = rest;
    }
    // A type without a path is a parameter or built in; then the trait tells.
    match path_root(part) {
        Some(name) => Some(name),
        None => types.split_once("$u20$as$u20$").and_then(|(_, of_trait)| path_root(of_trait)),
    }
}

/// The first name of a path with at least two.
fn path_root(path: &str) -> Option<&str> {
    let end = path.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')?;
    path[end..].starts_with("..").then(|| &path[..end]).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CACHE: &str =
        "_RINvMs0_NtNtCsjrHSEGnQ3l9_3std12backtrace_rs9symbolizeNtB6_5Cache11with_globalNCNvB6_8resolve0EBc_";
    const UNIT: &str = "_RNvMs4_NtNtCsduwmD7cSIQq_5gimli4read5dwarfINtB5_4UnitINtNtB7_12endian_slice11EndianSlice\
                        NtNtB9_9endianity12LittleEndianEjE3newCsjrHSEGnQ3l9_3std";

    #[test]
    fn new_symbols_tell_where_code_is_written_and_for_whom_it_was_compiled() {
        assert_eq!(crates_of("_RNvNtCsabc_12quell_server3api5start"), ("quell_server", "quell_server"));
        assert_eq!(crates_of(UNIT), ("gimli", "std"));
        assert_eq!(crates_of(&format!("{UNIT}.llvm.123")), ("gimli", "std"));
        // `Bc_` refers to the thirteenth byte behind `_R`.
        assert_eq!(crates_of(CACHE), ("std", "std"));
        assert_eq!(crates_of("_RNCNvC5quell4main0"), ("quell", "quell"));
        assert_eq!(crates_of("_RNvYsNtNtCs1_4core3fmt5Debug3fooCs2_5quell"), ("core", "quell"));
    }

    #[test]
    fn old_symbols_tell_where_code_is_written() {
        let cases = [
            ("_ZN3syn4item7parsing10parse_impl17h44fee6d57a1e86d6E", "syn"),
            (
                "_ZN80_$LT$toml_datetime..datetime..Datetime$u20$as$u20$core..str..traits..FromStr$GT$8from_str17h2abE",
                "toml_datetime",
            ),
            ("_ZN55_$LT$$RF$mut$u20$serde_json..ser..S$u20$as$u20$core..A$GT$1aE", "serde_json"),
            ("_ZN37_$LT$T$u20$as$u20$core..any..Any$GT$1aE", "core"),
        ];
        for (symbol, expected) in cases {
            assert_eq!(crates_of(symbol), (expected, expected), "{symbol}");
        }
        assert_eq!(crates_of("sqlite3_step"), (NOT_RUST, NOT_RUST));
    }

    #[test]
    fn code_is_added_up_and_counted_once_for_each_address() {
        let nm_output = "0000000000001000 0000000000000010 t _RNvNtC5quell1a1b\n\
                         0000000000001000 0000000000000010 t _RNvNtC5quell1a1c\n\
                         0000000000002000 0000000000000100 r _RNvNtC5quell1a1D\n\
                         0000000000003000 T _init\n\
                         0000000000004000 0000000000000020 T sqlite3_step\n\
                         0000000000005000 0000000000000001 t _RINvC4core1fuEC5quell\n";
        let sizes = parse_code_sizes(nm_output);
        assert_eq!(sizes.compiled_for, BTreeMap::from([("quell".to_owned(), 17), (NOT_RUST.to_owned(), 32)]));
        assert_eq!(sizes.written_in["core"], 1);
    }
}
