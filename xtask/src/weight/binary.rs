//! Sizes of a binary, read by binutils: its sections, and its machine code by crate.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

use super::record::BinarySizes;
use super::symbols::{self, CodeSizes};
use crate::{command, run_checked};

/// Measures a binary that has its symbols.
///
/// # Errors
/// A tool of binutils is missing, or the binary cannot be read.
pub(super) fn measure(binary: &Path) -> anyhow::Result<(BinarySizes, CodeSizes)> {
    let nm_output = output("nm", &["--print-size", "--defined-only"], binary)?;
    let sections = output("size", &["-A"], binary)?;
    let mut sizes = parse_sections(&sections).with_context(|| format!("{} has no code", binary.display()))?;
    let stripped = binary.with_extension("stripped");
    fs::copy(binary, &stripped)?;
    run_checked(command("strip", ["--strip-all"]).arg(&stripped))?;
    sizes.total = fs::metadata(&stripped)?.len();
    fs::remove_file(&stripped)?;
    Ok((sizes, symbols::parse_code_sizes(&nm_output)))
}

fn output(program: &str, options: &[&str], binary: &Path) -> anyhow::Result<String> {
    let output = command(program, options).arg(binary).output();
    let output = output.with_context(|| format!("{program} is missing; it is a part of binutils"))?;
    ensure!(output.status.success(), "{program} failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Reads the output of `size -A`: name, size, address. The size of the file is not in it.
fn parse_sections(size_output: &str) -> Option<BinarySizes> {
    let size_of = |name: &str| {
        let rows = size_output.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = rows.into_iter().find(|row| row.first() == Some(&name))?;
        row.get(1)?.parse::<u64>().ok()
    };
    Some(BinarySizes {
        total: 0,
        code: size_of(".text")?,
        unwind: size_of(".eh_frame").unwrap_or(0) + size_of(".gcc_except_table").unwrap_or(0),
        read_only_data: size_of(".rodata").unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_found_by_their_whole_names() {
        let text = "quell  :\nsection                  size       addr\n.rodata               3556005    1757184\n\
                    .gcc_except_table     2574916    5313192\n.eh_frame_hdr          535188    7888108\n\
                    .eh_frame             4285608    8423296\n.text                46348492   12713024\nTotal   65423715\n";
        let expected = BinarySizes { total: 0, code: 46_348_492, unwind: 6_860_524, read_only_data: 3_556_005 };
        assert_eq!(parse_sections(text), Some(expected));
        assert_eq!(parse_sections("quell  :\n"), None);
    }
}
