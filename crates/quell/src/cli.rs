//! Command line definition and dispatch to subcommands.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use quell_acp::AcpArgs;
use quell_client::term::{ColorMode, Locale};
use quell_client::{ClientSubcommand, CommandIo, DaemonTarget, Exit};
use quell_tui::ChatArgs;

use crate::mcp_command::{self, McpCommand};
use crate::runtime::block_on;
use crate::{backup, config, daemon, demo, doctor, store_copy, telemetry};

/// A self-hosted gateway for LLM agents that you can stop.
#[derive(Debug, Parser)]
#[command(name = "quell", version, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(flatten)]
    target: DaemonTarget,
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

const EXAMPLES: &str = "\
Examples:
  quell demo                          see what a stop does; needs no set-up
  quell serve                         start the daemon on 127.0.0.1:7171
  quell chat                          talk to it; Esc stops what runs
  quell send \"list the files here\"    the same for scripts; Ctrl-C stops the run
  quell stop --all                    stop everything";

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Show a tour: start a run with processes, stop it, print the receipt.
    #[command(after_help = "Example:\n  quell demo\n\nExit code 0 only if the receipt names no leftovers.")]
    Demo(demo::DemoArgs),
    /// Run the daemon.
    #[command(after_help = "Examples:\n  quell serve\n  quell serve --config quell.toml --listen 127.0.0.1:0")]
    Serve(daemon::ServeArgs),
    /// Check, describe or show the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check configuration, keys, models, ports and processes, and name a remedy for each problem.
    #[command(
        after_help = "Example:\n  quell doctor\n\nKeys are read from the environment of this command. A running daemon has the environment that it was started with: restart it\nafter you add a key.\n\nExit code 0 when nothing fails. It changes nothing."
    )]
    Doctor(doctor::DoctorArgs),
    /// Copy the whole database into a file, also while the daemon runs, and check the copy.
    #[command(after_help = backup::BACKUP_HELP)]
    Backup(backup::BackupArgs),
    /// Replace the database by a backup, while no daemon runs.
    #[command(after_help = backup::RESTORE_HELP)]
    Restore(backup::RestoreArgs),
    /// Copy the database between SQLite and PostgreSQL.
    #[command(subcommand)]
    Store(store_copy::StoreCommand),
    /// Serve an MCP client on standard input and output; sign in at MCP servers, show their resources and prompts.
    #[command(after_help = mcp_command::MCP_HELP)]
    Mcp {
        #[command(subcommand)]
        command: Option<McpCommand>,
    },
    /// Print completions for a shell.
    #[command(after_help = "Example:\n  quell completions bash > ~/.local/share/bash-completion/completions/quell")]
    Completions {
        /// The shell to print them for.
        shell: Shell,
    },
    /// Chat in the terminal; Esc stops the run
    Chat(ChatArgs),
    /// Serve an editor over the Agent Client Protocol on standard input and output
    Acp(AcpArgs),
    #[command(flatten)]
    Client(ClientSubcommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the configuration and report a problem with line and column.
    Check {
        /// The configuration file to check.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Print the JSON Schema of the configuration file.
    Schema,
    /// Print the configuration in force, with defaults; secrets are never shown.
    Show {
        /// The configuration file to show.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
}

impl CliCommand {
    /// The log filter where `QUELL_LOG` sets none.
    pub(crate) fn default_log_filter(&self) -> &'static str {
        // The MCP library logs whole messages at info.
        if matches!(self, Self::Serve(_)) { "info,rmcp=error" } else { "error" }
    }
}

pub(crate) fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        CliCommand::Demo(args) => demo::run(&args),
        CliCommand::Serve(args) => daemon::run(&args),
        CliCommand::Doctor(args) => doctor::run(&args),
        CliCommand::Config(command) => run_config_command(command),
        CliCommand::Backup(args) => backup::backup(&args, cli.target),
        CliCommand::Restore(args) => backup::restore(&args),
        CliCommand::Store(command) => store_copy::run(&command),
        CliCommand::Mcp { command: Some(command) } => mcp_command::run(&command),
        CliCommand::Mcp { command: None } if std::io::stdin().is_terminal() => {
            anyhow::bail!("quell mcp speaks MCP on standard input and output: let an MCP client start it (see --help)")
        }
        CliCommand::Mcp { command: None } => run_client_command(cli.target, quell_client::serve_mcp),
        CliCommand::Completions { shell } => {
            // Into memory first: the generator panics when its output is closed (`| head`).
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "quell", &mut script);
            std::io::stdout().write_all(&script)?;
            Ok(ExitCode::SUCCESS)
        }
        CliCommand::Chat(args) => {
            run_client_command(cli.target, async |target, io| quell_tui::run(args, target, io).await)
        }
        CliCommand::Acp(args) => serve_editor(&args, cli.target),
        CliCommand::Client(verb) => {
            run_client_command(cli.target, async |target, io| quell_client::run(verb, target, io).await)
        }
    }
}

/// Prints an error for people: what happened and why. Returns exit code 1.
pub(crate) fn print_error(error: &anyhow::Error) -> ExitCode {
    // The reader has closed the pipe (`| head`): that is not worth a message.
    let pipe = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
    if error.chain().filter_map(|cause| cause.downcast_ref()).any(pipe) {
        return ExitCode::FAILURE;
    }
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr(), "quell: {error:#}");
    ExitCode::FAILURE
}

fn run_client_command(
    mut target: DaemonTarget,
    body: impl AsyncFnOnce(&DaemonTarget, CommandIo) -> Exit,
) -> anyhow::Result<ExitCode> {
    target.data_dir = Some(config::data_dir()?);
    let color = if telemetry::no_color() { ColorMode::Never } else { ColorMode::Auto };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(block_on(&runtime, body(&target, CommandIo::standard(color, locale_from_environment()))).into())
}

fn serve_editor(args: &AcpArgs, mut target: DaemonTarget) -> anyhow::Result<ExitCode> {
    target.data_dir = Some(config::data_dir()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let exit = block_on(&runtime, quell_acp::run(args.clone(), &target));
    // A read of standard input may still wait, and nothing ends it.
    runtime.shutdown_background();
    Ok(exit.into())
}

/// Reads the locale as POSIX does: from the first variable that is not empty.
fn locale_from_environment() -> Locale {
    let first = |names: [&str; 3]| {
        let value = names.iter().filter_map(std::env::var_os).find(|value| !value.is_empty());
        value.map(|value| value.to_string_lossy().into_owned()).unwrap_or_default()
    };
    Locale::of(&first(["LC_ALL", "LC_MESSAGES", "LANG"]), &first(["LC_ALL", "LC_CTYPE", "LANG"]))
}

fn run_config_command(command: ConfigCommand) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    match command {
        ConfigCommand::Check { config } => {
            let loaded = config::load(config.as_deref())?;
            loaded.check_start(&config::data_dir()?)?;
            let source = match loaded.path() {
                Some(path) => format!("{} is valid", path.display()),
                None => "there is no configuration file; the environment and defaults are used".to_owned(),
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
