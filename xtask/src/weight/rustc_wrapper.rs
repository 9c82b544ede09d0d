//! xtask in the place of rustc: it runs the compiler and appends what that took to a log.
//!
//! Cargo calls `RUSTC_WRAPPER` with the path of rustc and its arguments.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, exit};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::cpu_clock;

/// The file that the wrapper appends to. If it is set, xtask is the wrapper.
pub(super) const LOG_VARIABLE: &str = "QUELL_WEIGHT_LOG";

/// If it is set, the wrapper also counts the lines of LLVM IR before any optimisation.
pub(super) const IR_VARIABLE: &str = "QUELL_WEIGHT_IR";

/// How often the peak memory of rustc is read. The peak of the last interval may be missed.
const MEMORY_INTERVAL: Duration = Duration::from_millis(20);

/// One call of rustc.
#[derive(Debug, PartialEq)]
pub(super) struct RustcCall {
    /// Empty for calls that belong to no package: cargo asks rustc for its version.
    pub(super) package: String,
    pub(super) version: String,
    pub(super) crate_name: String,
    pub(super) cpu_seconds: f64,
    pub(super) wall_seconds: f64,
    pub(super) peak_kib: u64,
    pub(super) llvm_lines: u64,
}

pub(crate) fn is_rustc_wrapper() -> bool {
    env::var_os(LOG_VARIABLE).is_some()
}

/// Runs rustc and exits as it did.
///
/// # Errors
/// The log cannot be written, or rustc cannot be started.
pub(crate) fn run_rustc(args: &[String]) -> anyhow::Result<()> {
    let log = env::var_os(LOG_VARIABLE).context("there is no log for the calls of rustc")?;
    let (rustc, args) = args.split_first().context("cargo named no rustc")?;
    let compiled = CompiledCrate::parse(args);
    let counts_ir = compiled.is_some() && env::var_os(IR_VARIABLE).is_some();
    #[expect(clippy::disallowed_methods, reason = "xtask runs other programs")]
    let mut command = Command::new(rustc);
    command.args(args);
    if compiled.is_some() {
        // Only these names of functions tell for which crate generic code was compiled.
        command.arg("-Csymbol-mangling-version=v0");
    }
    if counts_ir {
        command.args(["--emit=llvm-ir", "-Cno-prepopulate-passes"]);
    }
    let begun = Instant::now();
    let mut child = command.spawn().with_context(|| format!("{rustc} cannot be started"))?;
    let peak = watch_peak_memory(&child)?;
    let status = child.wait()?;
    let call = RustcCall {
        package: variable("CARGO_PKG_NAME"),
        version: variable("CARGO_PKG_VERSION"),
        crate_name: compiled.as_ref().map_or("", |compiled| compiled.name).to_owned(),
        cpu_seconds: cpu_clock::children_cpu_seconds()?,
        wall_seconds: begun.elapsed().as_secs_f64(),
        peak_kib: peak.load(Ordering::Relaxed),
        llvm_lines: match &compiled {
            Some(compiled) if counts_ir => compiled.take_llvm_lines()?,
            _ => 0,
        },
    };
    // One write of one line, so that those of other calls do not get into it.
    let mut log = OpenOptions::new().create(true).append(true).open(log)?;
    log.write_all(format!("{}\n", call.to_json()).as_bytes())?;
    exit(status.code().unwrap_or(1));
}

/// Empty if it is not set.
fn variable(name: &str) -> String {
    env::var_os(name).unwrap_or_default().to_string_lossy().into_owned()
}

/// Reads the peak memory of a process until it ends. Only the process itself counts, not a linker that it runs.
fn watch_peak_memory(child: &Child) -> anyhow::Result<Arc<AtomicU64>> {
    let peak = Arc::new(AtomicU64::new(0));
    let (pid, seen) = (child.id(), Arc::clone(&peak));
    thread::Builder::new().spawn(move || {
        while let Some(kib) = cpu_clock::peak_kib(pid) {
            seen.store(kib, Ordering::Relaxed);
            thread::sleep(MEMORY_INTERVAL);
        }
    })?;
    Ok(peak)
}

/// What cargo told rustc about the crate to compile.
struct CompiledCrate<'a> {
    name: &'a str,
    out_dir: &'a str,
    /// Makes the names of files unique, such as `-0123456789abcdef`.
    extra_filename: &'a str,
}

impl<'a> CompiledCrate<'a> {
    /// `None` if cargo only asks something, or if a build script tries something.
    fn parse(args: &'a [String]) -> Option<Self> {
        let value = |name: &str| args.windows(2).find(|pair| pair[0] == name).map(|pair| pair[1].as_str());
        let extra = args.iter().find_map(|arg| arg.strip_prefix("extra-filename="));
        args.iter().find(|arg| arg.starts_with("--error-format"))?;
        Some(Self {
            name: value("--crate-name").filter(|name| *name != "___")?,
            out_dir: value("--out-dir")?,
            extra_filename: extra.unwrap_or_default(),
        })
    }

    /// Counts the lines of the files with LLVM IR, one for each unit of code generation, and deletes them.
    fn take_llvm_lines(&self) -> anyhow::Result<u64> {
        let prefix = format!("{}{}", self.name, self.extra_filename);
        let mut lines = 0;
        for entry in fs::read_dir(Path::new(self.out_dir))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(&prefix) && name.ends_with(".ll") {
                lines += fs::read(&path)?.iter().filter(|byte| **byte == b'\n').count() as u64;
                fs::remove_file(&path)?;
            }
        }
        Ok(lines)
    }
}

impl RustcCall {
    fn to_json(&self) -> Value {
        json!({
            "package": self.package,
            "version": self.version,
            "crate": self.crate_name,
            "cpu_seconds": self.cpu_seconds,
            "wall_seconds": self.wall_seconds,
            "peak_kib": self.peak_kib,
            "llvm_lines": self.llvm_lines,
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name)?.as_str().map(str::to_owned);
        Some(Self {
            package: text("package")?,
            version: text("version")?,
            crate_name: text("crate")?,
            cpu_seconds: value.get("cpu_seconds")?.as_f64()?,
            wall_seconds: value.get("wall_seconds")?.as_f64()?,
            peak_kib: value.get("peak_kib")?.as_u64()?,
            llvm_lines: value.get("llvm_lines")?.as_u64()?,
        })
    }
}

/// Reads what the wrapper has written.
pub(super) fn parse_log(text: &str) -> anyhow::Result<Vec<RustcCall>> {
    let calls = text.lines().map(|line| {
        let value = serde_json::from_str(line).with_context(|| format!("no call of rustc: {line}"))?;
        RustcCall::from_json(&value).with_context(|| format!("no call of rustc: {line}"))
    });
    let calls: Vec<RustcCall> = calls.collect::<anyhow::Result<_>>()?;
    ensure!(!calls.is_empty(), "the log has no calls of rustc");
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(args: &[&str]) -> Vec<String> {
        args.iter().map(|arg| (*arg).to_owned()).collect()
    }

    #[test]
    fn only_what_cargo_compiles_is_a_crate() {
        let args = ["--crate-name", "libc", "--error-format=json", "-C", "extra-filename=-12", "--out-dir", "deps"];
        let args = strings(&args);
        let compiled = CompiledCrate::parse(&args).unwrap();
        assert_eq!((compiled.name, compiled.out_dir, compiled.extra_filename), ("libc", "deps", "-12"));
        let question = strings(&["-", "--crate-name", "___", "--error-format=json", "--out-dir", "deps"]);
        assert!(CompiledCrate::parse(&question).is_none());
        let probe = strings(&["--crate-name", "probe", "--out-dir", "out"]);
        assert!(CompiledCrate::parse(&probe).is_none());
    }

    #[test]
    fn a_call_in_the_log_is_read_as_it_was_written() {
        let call = RustcCall {
            package: "quell-server".to_owned(),
            version: "0.1.0".to_owned(),
            crate_name: "quell_server".to_owned(),
            cpu_seconds: 90.62,
            wall_seconds: 82.78,
            peak_kib: 1_725_804,
            llvm_lines: 7,
        };
        assert_eq!(parse_log(&format!("{}\n", call.to_json())).unwrap(), [call]);
        assert!(parse_log("{}\n").is_err());
        assert!(parse_log("").is_err());
    }
}
