//! Markdown tables of one build, and of builds beside each other.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::record::{BuildRecord, PackageWeight};
use super::symbols::NOT_RUST;

/// How many packages of others are shown by themselves.
const SHOWN_DEPENDENCIES: usize = 10;

/// A million bytes.
const MB: f64 = 1e6;

/// The totals of one build and its packages: all own ones, and the heaviest of others.
pub(super) fn build_table(record: &BuildRecord) -> String {
    let mut table = format!("{} at {}\n\n| | |\n|---|---|\n", record.profile, record.commit);
    for total in totals(record) {
        table += &format!("| {} | {} |\n", total.label(), total.text());
    }
    table += "\n| package | CPU s | build script s | peak MiB | code kB | written code kB | lines of LLVM IR |\n\
              |---|---|---|---|---|---|---|\n";
    for row in rows(&[record]) {
        let sum = row.sum(record);
        let cells = [
            row.label(),
            seconds(sum.cpu_seconds),
            seconds(sum.build_script_seconds),
            whole(sum.peak_kib / 1024),
            whole(sum.code / 1000),
            whole(sum.written_code / 1000),
            whole(sum.llvm_lines),
        ];
        table += &format!("| {} |\n", cells.join(" | "));
    }
    table
}

/// Builds beside each other: a column for each in the first table, a value for each in the cells of the second.
pub(super) fn comparison_table(records: &[BuildRecord]) -> String {
    let titles: Vec<String> = records.iter().map(|record| format!("{} at {}", record.profile, record.commit)).collect();
    let mut table = format!("| | {} |\n|---|{}\n", titles.join(" | "), "---|".repeat(records.len()));
    let columns: Vec<Vec<Total>> = records.iter().map(totals).collect();
    for (row, total) in columns.first().into_iter().flatten().enumerate() {
        let texts = columns.iter().map(|totals| totals[row].text());
        table += &format!("| {} | {} |\n", total.label(), texts.collect::<Vec<_>>().join(" | "));
    }
    table += "\n| package | CPU s, with build scripts | code kB | written code kB | lines of LLVM IR |\n\
              |---|---|---|---|---|\n";
    for row in rows(&records.iter().collect::<Vec<_>>()) {
        let sums: Vec<PackageWeight> = records.iter().map(|record| row.sum(record)).collect();
        let cell = |text: fn(&PackageWeight) -> String| sums.iter().map(text).collect::<Vec<_>>().join(" / ");
        let cells = [
            row.label(),
            cell(|sum| seconds(sum.cpu_seconds + sum.build_script_seconds)),
            cell(|sum| whole(sum.code / 1000)),
            cell(|sum| whole(sum.written_code / 1000)),
            cell(|sum| whole(sum.llvm_lines)),
        ];
        table += &format!("| {} |\n", cells.join(" | "));
    }
    table
}

/// `after` in parts of `before`.
pub(super) fn ratio(before: f64, after: f64) -> String {
    if before > 0.0 { format!("{:.2}", after / before) } else { "–".to_owned() }
}

struct Total {
    name: &'static str,
    value: f64,
    unit: &'static str,
    decimals: usize,
}

impl Total {
    fn label(&self) -> String {
        if self.unit.is_empty() { self.name.to_owned() } else { format!("{}, {}", self.name, self.unit) }
    }

    fn text(&self) -> String {
        format!("{:.*}", self.decimals, self.value)
    }
}

fn totals(record: &BuildRecord) -> Vec<Total> {
    let total = |name, value, unit, decimals| Total { name, value, unit, decimals };
    let others = record.other_cpu_seconds();
    vec![
        total("CPU of the cold build", record.cpu_seconds, "s", 0),
        total("of that in rustc", record.cpu_seconds - others, "s", 0),
        total("of that in build scripts, C compilers and cargo", others, "s", 0),
        total("wall of the cold build", record.wall_seconds, "s", 0),
        total("packages built", record.packages.values().filter(|one| !one.versions.is_empty()).count() as f64, "", 0),
        total("binary without symbols", record.binary.total as f64 / MB, "MB", 1),
        total("machine code", record.binary.code as f64 / MB, "MB", 1),
        total("unwind tables", record.binary.unwind as f64 / MB, "MB", 1),
        total("read-only data", record.binary.read_only_data as f64 / MB, "MB", 1),
        total("lines of LLVM IR", record.packages.values().map(|one| one.llvm_lines).sum::<u64>() as f64, "", 0),
    ]
}

/// One package, or all those that have no row of their own.
enum Row {
    Package(String),
    Others(BTreeSet<String>),
}

impl Row {
    fn label(&self) -> String {
        match self {
            Self::Package(name) => name.clone(),
            Self::Others(names) => format!("{} others", names.len()),
        }
    }

    /// The largest peak, and the sums of everything else.
    fn sum(&self, record: &BuildRecord) -> PackageWeight {
        let mut sum = PackageWeight::default();
        let is_in = |name: &String| match self {
            Self::Package(own) => own == name,
            Self::Others(names) => names.contains(name),
        };
        for (_, package) in record.packages.iter().filter(|(name, _)| is_in(name)) {
            sum.cpu_seconds += package.cpu_seconds;
            sum.build_script_seconds += package.build_script_seconds;
            sum.peak_kib = sum.peak_kib.max(package.peak_kib);
            sum.code += package.code;
            sum.written_code += package.written_code;
            sum.llvm_lines += package.llvm_lines;
        }
        sum
    }
}

/// All own packages, then the heaviest of others in any of the records, C, and the rest in one row.
fn rows(records: &[&BuildRecord]) -> Vec<Row> {
    let mut heaviest: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, package) in records.iter().flat_map(|record| &record.packages) {
        let seconds = heaviest.entry(name).or_default();
        *seconds = seconds.max(package.cpu_seconds + package.build_script_seconds);
    }
    let mut names: Vec<(&str, f64)> = heaviest.into_iter().collect();
    names.sort_by_key(|(name, seconds)| (!is_own(name), Reverse((seconds * 100.0) as u64)));
    let own = names.iter().take_while(|(name, _)| is_own(name)).count();
    let shown = names.iter().take(own + SHOWN_DEPENDENCIES).map(|(name, _)| *name);
    let shown: Vec<&str> = shown.chain(names.iter().map(|(name, _)| *name).filter(|name| *name == NOT_RUST)).collect();
    let others = names.iter().filter(|(name, _)| !shown.contains(name)).map(|(name, _)| (*name).to_owned());
    let others: BTreeSet<String> = others.collect();
    let mut rows: Vec<Row> = shown.into_iter().map(|name| Row::Package(name.to_owned())).collect();
    if !others.is_empty() {
        rows.push(Row::Others(others));
    }
    rows
}

fn is_own(package: &str) -> bool {
    package == "quell" || package.starts_with("quell-")
}

/// Nothing is a dash, so that the rest can be seen.
fn seconds(value: f64) -> String {
    if value < 0.05 { "–".to_owned() } else { format!("{value:.1}") }
}

fn whole(value: u64) -> String {
    if value == 0 { "–".to_owned() } else { value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(packages: &[(&str, f64)]) -> BuildRecord {
        let weight = |seconds: f64| PackageWeight {
            versions: BTreeSet::from(["1.0.0".to_owned()]),
            cpu_seconds: seconds,
            code: 2000,
            ..PackageWeight::default()
        };
        BuildRecord {
            commit: "849930ab".to_owned(),
            profile: "release".to_owned(),
            cpu_seconds: 100.0,
            packages: packages.iter().map(|(name, seconds)| ((*name).to_owned(), weight(*seconds))).collect(),
            ..BuildRecord::default()
        }
    }

    fn labels(records: &[&BuildRecord]) -> Vec<String> {
        rows(records).iter().map(Row::label).collect()
    }

    #[test]
    fn own_packages_come_first_and_light_ones_of_others_share_a_row() {
        let names: Vec<String> = (0..12).map(|number| format!("dependency-{number:02}")).collect();
        let mut packages: Vec<(&str, f64)> =
            names.iter().zip(1..).map(|(name, seconds)| (name.as_str(), f64::from(seconds))).collect();
        packages.extend([("quell", 0.5), ("quell-server", 2.0), (NOT_RUST, 0.0)]);
        let labels = labels(&[&record(&packages)]);
        assert_eq!(labels[..3], ["quell-server", "quell", "dependency-11"]);
        assert_eq!(labels[11..], ["dependency-02", NOT_RUST, "2 others"]);
    }

    #[test]
    fn a_package_that_is_gone_stays_in_the_comparison() {
        let records = [record(&[("quell", 5.0), ("old", 3.0)]), record(&[("quell", 2.5)]), record(&[("quell", 2.0)])];
        let table = comparison_table(&records);
        assert!(table.contains("\n| quell | 5.0 / 2.5 / 2.0 | 2 / 2 / 2 | – / – / – | – / – / – |\n"), "{table}");
        assert!(table.contains("\n| old | 3.0 / – / – | 2 / – / – | – / – / – | – / – / – |\n"), "{table}");
        assert!(table.contains("| CPU of the cold build, s | 100 | 100 | 100 |\n"), "{table}");
    }

    #[test]
    fn one_build_shows_what_is_not_rustc() {
        let table = build_table(&record(&[("quell", 60.0)]));
        assert!(table.contains("| of that in build scripts, C compilers and cargo, s | 40 |\n"), "{table}");
        assert!(table.contains("| quell | 60.0 | – | – | 2 | – | – |\n"), "{table}");
    }
}
