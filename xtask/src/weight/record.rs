//! What one cold build took and made, as it is kept in a JSON file.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use serde_json::{Value, json};

use super::rustc_wrapper::RustcCall;
use super::symbols::CodeSizes;

#[derive(Debug, Default, PartialEq)]
pub(super) struct BuildRecord {
    pub(super) commit: String,
    pub(super) profile: String,
    /// User and system, of all processes of the build.
    pub(super) cpu_seconds: f64,
    pub(super) wall_seconds: f64,
    pub(super) binary: BinarySizes,
    pub(super) packages: BTreeMap<String, PackageWeight>,
}

/// Bytes of the binary without symbols.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BinarySizes {
    pub(super) total: u64,
    /// Machine code, `.text`.
    pub(super) code: u64,
    /// Unwind tables, `.eh_frame` and `.gcc_except_table`.
    pub(super) unwind: u64,
    /// `.rodata`.
    pub(super) read_only_data: u64,
}

/// All versions of a package together, with their build scripts. For code without a package, the name is that of the
/// crate: `std`, `core`, `alloc`.
#[derive(Debug, Default, PartialEq)]
pub(super) struct PackageWeight {
    pub(super) versions: BTreeSet<String>,
    /// Of rustc, which also compiles the build script, and runs the linker.
    pub(super) cpu_seconds: f64,
    pub(super) peak_kib: u64,
    /// Wall seconds of the runs of its build scripts.
    pub(super) build_script_seconds: f64,
    /// Bytes of machine code that was compiled for it.
    pub(super) code: u64,
    /// Bytes of machine code that is written in it.
    pub(super) written_code: u64,
    /// Lines of LLVM IR before optimisation; 0 if they were not counted.
    pub(super) llvm_lines: u64,
}

impl BuildRecord {
    /// Adds up the calls of rustc by package.
    pub(super) fn add_calls(&mut self, calls: &[RustcCall]) {
        for call in calls.iter().filter(|call| !call.package.is_empty()) {
            let package = self.packages.entry(call.package.clone()).or_default();
            package.versions.insert(call.version.clone());
            package.cpu_seconds += call.cpu_seconds;
            package.peak_kib = package.peak_kib.max(call.peak_kib);
        }
    }

    /// Adds machine code to the packages whose crates are in `calls`.
    pub(super) fn add_code(&mut self, calls: &[RustcCall], sizes: &CodeSizes) {
        let is_build_script = |call: &&RustcCall| call.crate_name.starts_with("build_script_");
        let compiled = calls.iter().filter(|call| !is_build_script(call));
        let packages: BTreeMap<&str, &str> =
            compiled.map(|call| (call.crate_name.as_str(), call.package.as_str())).collect();
        let package_of = |name: &String| packages.get(name.as_str()).map_or(name.clone(), |name| (*name).to_owned());
        for (name, bytes) in &sizes.compiled_for {
            self.packages.entry(package_of(name)).or_default().code += bytes;
        }
        for (name, bytes) in &sizes.written_in {
            self.packages.entry(package_of(name)).or_default().written_code += bytes;
        }
    }

    /// CPU seconds outside of rustc: build scripts with their C compilers, cargo, and the measurement.
    pub(super) fn other_cpu_seconds(&self) -> f64 {
        self.cpu_seconds - self.packages.values().map(|package| package.cpu_seconds).sum::<f64>()
    }

    pub(super) fn to_json(&self) -> Value {
        let packages: serde_json::Map<String, Value> =
            self.packages.iter().map(|(name, package)| (name.clone(), package.to_json())).collect();
        json!({
            "commit": self.commit,
            "profile": self.profile,
            "cpu_seconds": round(self.cpu_seconds),
            "wall_seconds": round(self.wall_seconds),
            "binary_bytes": self.binary.total,
            "code_bytes": self.binary.code,
            "unwind_bytes": self.binary.unwind,
            "read_only_data_bytes": self.binary.read_only_data,
            "packages": packages,
        })
    }

    /// # Errors
    /// A key is missing or has a value of another kind.
    pub(super) fn from_json(value: &Value) -> anyhow::Result<Self> {
        let packages = value.get("packages").and_then(Value::as_object).context("packages are missing")?;
        let packages = packages.iter().map(|(name, package)| {
            Ok((name.clone(), PackageWeight::from_json(package).with_context(|| name.clone())?))
        });
        Ok(Self {
            commit: text(value, "commit")?,
            profile: text(value, "profile")?,
            cpu_seconds: seconds(value, "cpu_seconds")?,
            wall_seconds: seconds(value, "wall_seconds")?,
            binary: BinarySizes {
                total: count(value, "binary_bytes")?,
                code: count(value, "code_bytes")?,
                unwind: count(value, "unwind_bytes")?,
                read_only_data: count(value, "read_only_data_bytes")?,
            },
            packages: packages.collect::<anyhow::Result<_>>()?,
        })
    }
}

impl PackageWeight {
    fn to_json(&self) -> Value {
        json!({
            "versions": self.versions,
            "cpu_seconds": round(self.cpu_seconds),
            "peak_kib": self.peak_kib,
            "build_script_seconds": round(self.build_script_seconds),
            "code_bytes": self.code,
            "written_code_bytes": self.written_code,
            "llvm_lines": self.llvm_lines,
        })
    }

    fn from_json(value: &Value) -> anyhow::Result<Self> {
        let versions = value.get("versions").and_then(Value::as_array).context("versions are missing")?;
        Ok(Self {
            versions: versions.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            cpu_seconds: seconds(value, "cpu_seconds")?,
            peak_kib: count(value, "peak_kib")?,
            build_script_seconds: seconds(value, "build_script_seconds")?,
            code: count(value, "code_bytes")?,
            written_code: count(value, "written_code_bytes")?,
            llvm_lines: count(value, "llvm_lines")?,
        })
    }
}

/// Linux counts hundredths of seconds.
fn round(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}

fn text(value: &Value, name: &str) -> anyhow::Result<String> {
    Ok(value.get(name).and_then(Value::as_str).with_context(|| format!("{name} is no text"))?.to_owned())
}

fn seconds(value: &Value, name: &str) -> anyhow::Result<f64> {
    value.get(name).and_then(Value::as_f64).with_context(|| format!("{name} is no number"))
}

fn count(value: &Value, name: &str) -> anyhow::Result<u64> {
    value.get(name).and_then(Value::as_u64).with_context(|| format!("{name} is no whole number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(package: &str, version: &str, crate_name: &str, cpu_seconds: f64) -> RustcCall {
        RustcCall {
            package: package.to_owned(),
            version: version.to_owned(),
            crate_name: crate_name.to_owned(),
            cpu_seconds,
            wall_seconds: cpu_seconds,
            peak_kib: 10,
            llvm_lines: 0,
        }
    }

    fn record() -> BuildRecord {
        let calls = [
            call("", "", "", 1.0),
            call("md-5", "0.10.0", "md5", 2.0),
            call("md-5", "0.10.0", "build_script_build", 0.5),
            call("md-5", "0.11.0", "md5", 3.0),
        ];
        let mut record = BuildRecord { cpu_seconds: 8.0, ..BuildRecord::default() };
        record.add_calls(&calls);
        let code = BTreeMap::from([("md5".to_owned(), 7), ("core".to_owned(), 8)]);
        record.add_code(&calls, &CodeSizes { compiled_for: code.clone(), written_in: code });
        record
    }

    #[test]
    fn calls_and_code_are_added_up_by_package() {
        let record = record();
        let package = &record.packages["md-5"];
        assert_eq!(package.versions, BTreeSet::from(["0.10.0".to_owned(), "0.11.0".to_owned()]));
        assert_eq!((package.cpu_seconds, package.code, package.peak_kib), (5.5, 7, 10));
        assert_eq!(record.packages["core"].written_code, 8);
        assert_eq!(record.other_cpu_seconds(), 2.5);
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let written = record();
        assert_eq!(BuildRecord::from_json(&written.to_json()).unwrap(), written);
        assert!(BuildRecord::from_json(&json!({"packages": {}})).is_err());
    }
}
