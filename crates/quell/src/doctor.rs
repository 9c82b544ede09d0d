//! `quell doctor`: looks at what a person typically has wrong, and says for each what to do. It changes nothing that stays.
//!
//! Each check is one function in the table [`CHECKS`]; it knows what it looks at and nothing of how it is shown.

mod channels;
mod daemon;
mod database;
mod files;
mod finding;
mod machine;
mod processes;
mod providers;
mod report;
mod servers;
#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use quell_engine::proc::WardenExe;
use quell_engine::store::{Inspection, StoreError};
use tokio::runtime::Runtime;

use crate::config::{self, Loaded};
use finding::Finding;
use report::Report;

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// The configuration file; else $QUELL_CONFIG, or quell/quell.toml in the XDG config directory.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the findings as JSON and nothing else.
    #[arg(long)]
    json: bool,
}

/// What every check may look at.
struct Patient {
    loaded: anyhow::Result<Loaded>,
    data_dir: anyhow::Result<PathBuf>,
    /// What commands of agents get as their environment.
    environment: Vec<(OsString, OsString)>,
    now: SystemTime,
    warden: WardenExe,
    runtime: Runtime,
}

/// A patient with a readable configuration and a place for its data.
struct Setup<'a> {
    runtime: &'a Runtime,
    warden: &'a WardenExe,
    environment: &'a [(OsString, OsString)],
    loaded: &'a Loaded,
    data_dir: &'a Path,
    work_dir: PathBuf,
    inspection: OnceCell<Result<Inspection, StoreError>>,
}

/// What a check needs.
enum Check {
    /// The machine alone.
    Machine(fn(&Patient) -> Vec<Finding>),
    /// A configuration in force; a broken one is not replaced by defaults.
    Setup(fn(&Setup<'_>) -> Vec<Finding>),
}

/// All checks, in the order in which a start would meet what they look at.
const CHECKS: [(&str, Check); 16] = [
    ("configuration", Check::Machine(files::configuration)),
    ("clock", Check::Machine(machine::clock)),
    ("shell", Check::Machine(machine::shell)),
    ("data directory", Check::Machine(files::data_directory)),
    ("disk space", Check::Machine(files::disk_space)),
    ("database", Check::Setup(database::database)),
    ("admin token", Check::Setup(files::admin_token)),
    ("daemon", Check::Setup(daemon::daemon)),
    ("hold", Check::Setup(database::hold)),
    ("providers", Check::Setup(providers::providers)),
    ("workdirs", Check::Setup(files::workdirs)),
    ("skills", Check::Setup(files::skills)),
    ("MCP servers", Check::Setup(servers::servers)),
    ("channels", Check::Setup(channels::channels)),
    ("processes", Check::Machine(processes::wardens)),
    ("isolation", Check::Setup(processes::isolation)),
];

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let patient = Patient {
        loaded: config::load(args.config.as_deref()),
        data_dir: config::data_dir(),
        environment: quell_engine::proc::base_environment(std::env::vars_os()),
        now: SystemTime::now(),
        warden: WardenExe::ThisProcess,
        runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
    };
    let mut report = Report::of_process(args.json);
    examine(&patient, &mut report)?;
    let healthy = report.finish()?;
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn examine(patient: &Patient, report: &mut Report) -> anyhow::Result<()> {
    let setup = Setup::of(patient);
    for (name, check) in &CHECKS {
        report.begin(name)?;
        let findings = match (check, &setup) {
            (Check::Machine(look), _) => look(patient),
            (Check::Setup(look), Some(setup)) => look(setup),
            (Check::Setup(_), None) => {
                report.not_made(name);
                continue;
            }
        };
        report.found(name, findings)?;
    }
    Ok(())
}

impl<'a> Setup<'a> {
    fn of(patient: &'a Patient) -> Option<Self> {
        Some(Self {
            runtime: &patient.runtime,
            warden: &patient.warden,
            environment: &patient.environment,
            loaded: patient.loaded.as_ref().ok()?,
            data_dir: patient.data_dir.as_deref().ok()?,
            work_dir: config::work_dir(patient.data_dir.as_deref().ok()?),
            inspection: OnceCell::new(),
        })
    }

    /// One look at the database for all checks: in a large one it takes a while.
    fn inspection(&self) -> &Result<Inspection, StoreError> {
        self.inspection.get_or_init(|| quell_engine::store::inspect(self.data_dir, &self.loaded.store_file()))
    }
}
