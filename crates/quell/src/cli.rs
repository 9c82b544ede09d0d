//! The command line: what was asked, and who does it.

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use quell_client::term::{Color, Locale};
use quell_client::{Io, Target, Verb};

use crate::config::{self, Source};
use crate::{backup, daemon, demo, doctor, telemetry};

/// A self-hosted gateway for LLM agents that you can stop.
#[derive(Debug, Parser)]
#[command(name = "quell", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  quell demo                          see what a stop does; needs nothing
  quell serve                         start the daemon on 127.0.0.1:7171
  quell chat                          talk to it; Esc stops what runs
  quell send \"list the files here\"    the same for scripts; Ctrl-C stops the run
  quell stop --all                    stop everything";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The tour: start a run with processes, stop it, see the receipt.
    #[command(after_help = "Example:\n  quell demo\n\nExit code 0 only if the receipt names no leftovers.")]
    Demo(demo::DemoArgs),
    /// The daemon.
    #[command(after_help = "Examples:\n  quell serve\n  quell serve --config quell.toml --listen 127.0.0.1:0")]
    Serve(ServeArgs),
    /// Check, describe or show the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Find what is wrong here: configuration, keys, models, ports, processes; each with its remedy.
    #[command(
        after_help = "Example:\n  quell doctor\n\nKeys are read from the environment of this command. A daemon that runs has the environment that it was started with: where a\nkey was added since, restart it.\n\nExit code 0 when nothing fails. It changes nothing."
    )]
    Doctor(doctor::DoctorArgs),
    /// Copy the whole database into a file, also while the daemon runs, and check the copy.
    #[command(after_help = backup::BACKUP_HELP)]
    Backup(backup::BackupArgs),
    /// Put a backup in the place of the database, while no daemon runs.
    #[command(after_help = backup::RESTORE_HELP)]
    Restore(backup::RestoreArgs),
    /// Completions for a shell, on standard output.
    #[command(after_help = "Example:\n  quell completions bash > ~/.local/share/bash-completion/completions/quell")]
    Completions {
        /// The shell.
        shell: Shell,
    },
    #[command(flatten)]
    Talk(Verb),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// The configuration file; else $QUELL_CONFIG, or quell/quell.toml in the XDG config directory.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Read the configuration and say what is wrong with it, with line and column.
    Check {
        /// The file.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Print the JSON Schema of the configuration file.
    Schema,
    /// Print the configuration in force, with defaults; secrets are never shown.
    Show {
        /// The file.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
}

pub(crate) fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Demo(args) => demo::run(&args),
        Command::Serve(args) => daemon::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Config(command) => configuration(command),
        Command::Backup(args) => backup::run(&args, cli.target),
        Command::Restore(args) => backup::restore(&args),
        Command::Completions { shell } => {
            // Into memory first: the generator panics when whoever reads it has had enough (`| head`).
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "quell", &mut script);
            std::io::stdout().write_all(&script)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Talk(verb) => talk(verb, cli.target),
    }
}

/// Prints an error for a person: what happened and why; exit code 1.
pub(crate) fn print_error(error: &anyhow::Error) -> ExitCode {
    // Whoever read what was printed has had enough (`| head`): no complaint.
    let pipe = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
    if error.chain().filter_map(|cause| cause.downcast_ref()).any(pipe) {
        return ExitCode::FAILURE;
    }
    // Standard error may be closed; then there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "quell: {error:#}");
    ExitCode::FAILURE
}

fn talk(verb: Verb, mut target: Target) -> anyhow::Result<ExitCode> {
    target.data_dir = Some(config::data_dir()?);
    let color = if telemetry::no_color() { Color::Never } else { Color::Auto };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let exit = runtime.block_on(quell_client::run(verb, &target, Io::standard(color, locale())));
    Ok(ExitCode::from(exit.code()))
}

/// The person's surroundings, as POSIX reads them: the first of the variables that says something.
fn locale() -> Locale {
    let first = |names: [&str; 3]| {
        let said = names.iter().filter_map(std::env::var_os).find(|value| !value.is_empty());
        said.map(|value| value.to_string_lossy().into_owned()).unwrap_or_default()
    };
    Locale::of(&first(["LC_ALL", "LC_MESSAGES", "LANG"]), &first(["LC_ALL", "LC_CTYPE", "LANG"]))
}

fn configuration(command: ConfigCommand) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    match command {
        ConfigCommand::Check { config } => {
            let loaded = config::load(config.as_deref())?;
            loaded.check_channels()?;
            loaded.check_workdirs(&config::data_dir()?)?;
            let source = match &loaded.source {
                Source::File { path, .. } => format!("{} is valid", path.display()),
                Source::Environment => {
                    "there is no configuration file; the environment and defaults are used".to_owned()
                }
            };
            writeln!(out, "{source}: {}", loaded.summary())?;
        }
        ConfigCommand::Schema => {
            let schema = schemars::schema_for!(config::Config);
            writeln!(out, "{}", serde_json::to_string_pretty(&schema)?)?;
        }
        ConfigCommand::Show { config } => {
            let loaded = config::load(config.as_deref())?;
            let text = toml::to_string_pretty(&loaded.config).context("the configuration cannot be printed")?;
            if std::io::stdout().is_terminal() {
                writeln!(out, "# {}", loaded.summary())?;
            }
            write!(out, "{text}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
