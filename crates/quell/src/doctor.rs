//! `quell doctor`: run all checks and report findings with remedies. Changes nothing.
//!
//! Each check is one function in the table [`CHECKS`]. It returns findings and does not know how they are printed.

mod channels;
mod cluster;
mod daemon;
mod database;
mod files;
mod finding;
mod mcp_servers;
mod memory;
mod processes;
mod providers;
mod report;
mod system;
#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use quell_process::WardenExe;
use quell_store::{DatabaseInspection, StoreError};
use tokio::runtime::Runtime;

use crate::config::{self, LoadedConfig};
use finding::DoctorFinding;
use report::DoctorReport;

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// The configuration file; else $QUELL_CONFIG, or quell/quell.toml in the XDG config directory.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the findings as JSON and nothing else.
    #[arg(long)]
    json: bool,
}

/// Input of the checks that need no configuration.
struct CheckInput {
    loaded: anyhow::Result<LoadedConfig>,
    data_dir: anyhow::Result<PathBuf>,
    /// Environment of agents' commands.
    environment: Vec<(OsString, OsString)>,
    now: SystemTime,
    warden: WardenExe,
    runtime: Runtime,
}

/// Input of the checks that need a valid configuration and a data directory.
struct ConfiguredInput<'a> {
    base: &'a CheckInput,
    loaded: &'a LoadedConfig,
    data_dir: &'a Path,
    work_dir: PathBuf,
    inspection: OnceCell<Result<DatabaseInspection, StoreError>>,
}

enum DoctorCheck {
    /// Needs no configuration.
    System(fn(&CheckInput) -> Vec<DoctorFinding>),
    /// Needs a valid configuration; a broken one is not replaced by defaults.
    Configured(fn(&ConfiguredInput<'_>) -> Vec<DoctorFinding>),
}

/// All checks, in the order in which a start would meet the problems.
const CHECKS: [(&str, DoctorCheck); 19] = [
    ("configuration", DoctorCheck::System(files::configuration)),
    ("clock", DoctorCheck::System(system::clock)),
    ("shell", DoctorCheck::System(system::shell)),
    ("data directory", DoctorCheck::System(files::data_directory)),
    ("disk space", DoctorCheck::System(files::disk_space)),
    ("database", DoctorCheck::Configured(database::database)),
    ("cluster", DoctorCheck::Configured(cluster::cluster)),
    ("admin token", DoctorCheck::Configured(files::admin_token)),
    ("daemon", DoctorCheck::Configured(daemon::daemon)),
    ("hold", DoctorCheck::Configured(database::hold)),
    ("providers", DoctorCheck::Configured(providers::providers)),
    ("workdirs", DoctorCheck::Configured(files::workdirs)),
    ("skills", DoctorCheck::Configured(files::skills)),
    ("memory", DoctorCheck::Configured(memory::memory)),
    ("MCP servers", DoctorCheck::Configured(mcp_servers::servers)),
    ("channels", DoctorCheck::Configured(channels::channels)),
    ("processes", DoctorCheck::System(processes::check_wardens)),
    ("isolation", DoctorCheck::Configured(processes::isolation)),
    ("sandbox", DoctorCheck::Configured(processes::sandbox)),
];

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let input = CheckInput {
        loaded: config::load(args.config.as_deref()),
        data_dir: config::data_dir(),
        environment: quell_process::base_environment(std::env::vars_os()),
        now: SystemTime::now(),
        warden: WardenExe::ThisProcess,
        runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
    };
    let mut report = DoctorReport::for_stdout(args.json);
    run_checks(&input, &mut report)?;
    let healthy = report.finish()?;
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_checks(input: &CheckInput, report: &mut DoctorReport<impl Write>) -> anyhow::Result<()> {
    let configured = ConfiguredInput::from_input(input);
    for (name, check) in &CHECKS {
        report.start_check(name)?;
        let findings = match (check, &configured) {
            (DoctorCheck::System(check), _) => check(input),
            (DoctorCheck::Configured(check), Some(setup)) => check(setup),
            (DoctorCheck::Configured(_), None) => {
                report.skip_check(name);
                continue;
            }
        };
        report.add_findings(name, findings)?;
    }
    Ok(())
}

impl<'a> ConfiguredInput<'a> {
    fn from_input(input: &'a CheckInput) -> Option<Self> {
        Some(Self {
            base: input,
            loaded: input.loaded.as_ref().ok()?,
            data_dir: input.data_dir.as_deref().ok()?,
            work_dir: config::work_dir(input.data_dir.as_deref().ok()?),
            inspection: OnceCell::new(),
        })
    }

    /// Inspects the database once for all checks, because a large one takes a while.
    fn inspection(&self) -> &Result<DatabaseInspection, StoreError> {
        self.inspection.get_or_init(|| self.loaded.config.store.location().inspect(self.data_dir))
    }
}
