//! Read `weight.toml` and compare its budgets with the tree.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, bail, ensure};

/// A size that is the same on every machine. Its name is its key in `weight.toml`.
pub(super) struct MeasuredSize {
    pub(super) name: &'static str,
    pub(super) value: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct SizeBudget {
    max: usize,
}

/// Reads the budgets by name.
///
/// # Errors
/// A budget without `max` or without a reason, or a key that is neither.
pub(super) fn parse_budgets(text: &str) -> anyhow::Result<BTreeMap<String, SizeBudget>> {
    let table: toml::Table = text.parse()?;
    table.into_iter().map(|(name, entry)| Ok((name.clone(), parse_budget(&name, &entry)?))).collect()
}

fn parse_budget(name: &str, entry: &toml::Value) -> anyhow::Result<SizeBudget> {
    let entry = entry.as_table().with_context(|| format!("{name} is not a table with `max` and `reason`"))?;
    if let Some(unknown) = entry.keys().find(|key| !["max", "reason"].contains(&key.as_str())) {
        bail!("{name}.{unknown} is not a key of a budget; it has `max` and `reason`");
    }
    let max = entry.get("max").and_then(toml::Value::as_integer).and_then(|max| usize::try_from(max).ok());
    let max = max.with_context(|| format!("{name}.max is not a whole number"))?;
    let reason = entry.get("reason").and_then(toml::Value::as_str).unwrap_or_default();
    ensure!(!reason.trim().is_empty(), "{name} has no reason: say in {name}.reason why {max} is right");
    Ok(SizeBudget { max })
}

/// Returns a table of all sizes with their budgets.
///
/// # Errors
/// Sizes above their budgets, sizes without a budget, and budgets without a size. All of them are named.
pub(super) fn compare(budgets: &BTreeMap<String, SizeBudget>, sizes: &[MeasuredSize]) -> anyhow::Result<String> {
    let mut table = format!("{:<18} {:>10} {:>10}\n", "size", "now", "budget");
    let mut faults = Vec::new();
    for MeasuredSize { name, value } in sizes {
        let Some(SizeBudget { max }) = budgets.get(*name) else {
            faults.push(format!("{name} has no budget: add [{name}] with `max` and `reason` to weight.toml"));
            continue;
        };
        writeln!(table, "{name:<18} {value:>10} {max:>10}")?;
        if value > max {
            faults.push(format!(
                "{name} is {value}, above its budget of {max}: make it lighter, or raise the number in weight.toml \
                 with a reason beside it"
            ));
        }
    }
    let is_measured = |budget: &str| sizes.iter().any(|size| size.name == budget);
    let unknown = budgets.keys().filter(|budget| !is_measured(budget));
    faults.extend(unknown.map(|budget| format!("weight.toml has a budget for {budget}, which nothing measures")));
    ensure!(faults.is_empty(), "{table}\n{}", faults.join("\n"));
    Ok(table)
}

/// Counts the packages of a lock file: those of the workspace, too.
pub(super) fn count_packages(lock_file: &str) -> anyhow::Result<usize> {
    let table: toml::Table = lock_file.parse()?;
    let packages = table.get("package").and_then(toml::Value::as_array);
    Ok(packages.context("the lock file has no packages")?.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(text: &str) -> String {
        parse_budgets(text).unwrap_err().to_string()
    }

    fn compared(value: usize) -> anyhow::Result<String> {
        let budgets = parse_budgets("[packages]\nmax = 450\nreason = \"why\"\n").unwrap();
        compare(&budgets, &[MeasuredSize { name: "packages", value }])
    }

    #[test]
    fn a_budget_without_a_reason_is_refused() {
        assert!(complaint("[packages]\nmax = 450\n").contains("packages has no reason"));
        assert!(complaint("[packages]\nmax = 450\nreason = \" \"\n").contains("packages has no reason"));
    }

    #[test]
    fn a_budget_is_a_whole_number_with_a_reason_and_nothing_else() {
        assert!(complaint("packages = 450\n").contains("not a table"));
        assert!(complaint("[packages]\nmax = -1\nreason = \"why\"\n").contains("packages.max"));
        assert!(complaint("[packages]\nmax = 1\nreason = \"why\"\nmaximum = 2\n").contains("packages.maximum"));
    }

    #[test]
    fn a_size_above_its_budget_fails_and_says_what_to_do() {
        assert!(compared(450).unwrap().contains("450"));
        let complaint = compared(451).unwrap_err().to_string();
        assert!(
            complaint.contains("packages is 451, above its budget of 450: make it lighter, or raise"),
            "{complaint}"
        );
    }

    #[test]
    fn sizes_and_budgets_without_each_other_are_faults() {
        let budgets = parse_budgets("[pages]\nmax = 450\nreason = \"why\"\n").unwrap();
        let complaint = compare(&budgets, &[MeasuredSize { name: "packages", value: 1 }]).unwrap_err().to_string();
        assert!(complaint.contains("packages has no budget") && complaint.contains("budget for pages"), "{complaint}");
    }

    #[test]
    fn packages_of_a_lock_file_are_counted() {
        let lock_file = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\n\
                         [[package]]\nname = \"a\"\nversion = \"2.0.0\"\n";
        assert_eq!(count_packages(lock_file).unwrap(), 2);
        assert!(count_packages("version = 4\n").is_err());
    }

    #[test]
    fn the_budgets_of_this_tree_can_be_read() {
        let text = include_str!("../../../weight.toml");
        let names: Vec<String> = parse_budgets(text).unwrap().into_keys().collect();
        assert_eq!(names, ["first_load_bytes", "packages", "product_lines", "test_lines"]);
    }
}
