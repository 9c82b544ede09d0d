//! `cargo xtask weight`: what the build, the binary and the page weigh.
//!
//! `check` compares sizes that are equal on every machine with the budgets in `weight.toml`. Everything else measures and
//! judges nothing.
#![expect(clippy::print_stdout, reason = "the figures are the output of this command")]

mod budgets;
mod first_load;

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

use self::budgets::MeasuredSize;
use crate::structure;

/// Runs one of the commands that `USAGE` describes.
pub(crate) fn run(root: &Path, args: &[String]) -> anyhow::Result<()> {
    match args.first().map(String::as_str) {
        Some("check") => check(root),
        other => bail!("there is no `weight` command {other:?}; see `cargo xtask help`"),
    }
}

fn check(root: &Path) -> anyhow::Result<()> {
    let budgets = budgets::parse_budgets(&read_text(&root.join("weight.toml"))?).context("weight.toml")?;
    let lines = structure::count_lines(root)?;
    let page = first_load::first_load(|path| read_text(&root.join("web").join(path)))?;
    let sizes = [
        MeasuredSize { name: "packages", value: budgets::count_packages(&read_text(&root.join("Cargo.lock"))?)? },
        MeasuredSize { name: "product_lines", value: lines.product },
        MeasuredSize { name: "test_lines", value: lines.tests },
        MeasuredSize { name: "first_load_bytes", value: page.values().sum() },
    ];
    print!("{}", budgets::compare(&budgets, &sizes)?);
    Ok(())
}

fn read_text(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}
