//! `quell store copy`: copy the whole database between SQLite and PostgreSQL.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use quell_client::CommandIo;
use quell_client::term::{CliOutput, ColorMode, Locale, OutputStyle};
use quell_store::postgres::PostgresSettings;
use quell_store::{CopyLocation, CopyProgress, CopyStep, StoreLocation, TableCopy, copy_store};

use crate::{config, telemetry};

const DEFAULT_DATABASE_FILE: &str = "quell.db";

pub(crate) const COPY_HELP: &str = "\
Examples:
  quell store copy sqlite: postgres://quell@db.example.org/quell --password-file ~/db-password
  quell store copy postgres://quell@db.example.org/quell sqlite:/var/lib/quell-2
  quell store copy sqlite:/var/lib/quell sqlite:/var/lib/quell-2

FROM and TO are sqlite:DIRECTORY (a data directory; sqlite: alone is the configured one) or postgres://USER@HOST/DATABASE. The password
is read from --password-file, or from the variable PGPASSWORD. Stop the daemons of both first. TO must be empty, and is written in one
transaction: after an error or Ctrl-C it is as it was. Before the end every table is read again and compared with FROM, which is not
changed.

The files token and session.key of the data directory are not copied. Without session.key, sessions with an API key of their own need
it again: copy the file into the data directory of the new daemon.";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum StoreCommand {
    /// Copy all sessions, runs, notes, tokens and the audit log into an empty database, and check the copy.
    #[command(after_help = COPY_HELP)]
    Copy(CopyArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct CopyArgs {
    /// The database to read: sqlite:DIRECTORY or postgres://USER@HOST/DATABASE.
    #[arg(value_name = "FROM")]
    from: String,
    /// The empty database to write.
    #[arg(value_name = "TO")]
    to: String,
    /// The file that holds the password of the PostgreSQL user in its only line; else $PGPASSWORD.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// PEM file with the authorities that may have signed the certificate of the PostgreSQL server; else the system's.
    #[arg(long, value_name = "FILE")]
    tls_ca_file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// The configuration file; else $QUELL_CONFIG, or quell/quell.toml in the XDG config directory.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(crate) fn run(command: &StoreCommand) -> anyhow::Result<ExitCode> {
    match command {
        StoreCommand::Copy(args) => copy(args),
    }
}

fn copy(args: &CopyArgs) -> anyhow::Result<ExitCode> {
    let (from, to) = (parse_location(&args.from, args)?, parse_location(&args.to, args)?);
    if from == to {
        bail!("FROM and TO are the same database; name an empty one as TO");
    }
    let color = if telemetry::no_color() { ColorMode::Never } else { ColorMode::Auto };
    let mut screen = CommandIo::standard(color, Locale::default()).output;
    let copied = copy_store(&from, &to, &mut |progress| show_progress(&mut screen, progress));
    screen.end_open_lines()?;
    print_copied(args, &copied?, [&from, &to])?;
    Ok(ExitCode::SUCCESS)
}

fn parse_location(text: &str, args: &CopyArgs) -> anyhow::Result<CopyLocation> {
    if let Some(directory) = text.strip_prefix("sqlite:") {
        return sqlite_location(directory, args);
    }
    if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
        // Not shown: it may contain a password.
        bail!(
            "a database is named as sqlite:DIRECTORY or postgres://USER@HOST/DATABASE; see `quell store copy --help`"
        );
    }
    let tls_ca_file = args.tls_ca_file.clone();
    Ok(CopyLocation::Postgres(PostgresSettings {
        url: text.to_owned(),
        password: read_password(args)?,
        tls_ca_file,
        cluster: None,
    }))
}

fn sqlite_location(directory: &str, args: &CopyArgs) -> anyhow::Result<CopyLocation> {
    if directory.is_empty() {
        let file = match config::store_location(args.config.as_deref())? {
            StoreLocation::Sqlite { file } => file,
            StoreLocation::Postgres(_) => DEFAULT_DATABASE_FILE.to_owned(),
        };
        return Ok(CopyLocation::Sqlite { data_dir: config::data_dir()?, file });
    }
    let path = Path::new(directory);
    if path.is_file() {
        bail!("{directory} is a file; name its directory, which is the data directory of a daemon");
    }
    Ok(CopyLocation::Sqlite { data_dir: path.to_owned(), file: DEFAULT_DATABASE_FILE.to_owned() })
}

fn read_password(args: &CopyArgs) -> anyhow::Result<Option<String>> {
    let Some(file) = &args.password_file else {
        return Ok(config::postgres_password());
    };
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("the password file {} cannot be read", file.display()))?;
    match text.trim() {
        "" => bail!("the password file {} is empty; write the password of the PostgreSQL user into it", file.display()),
        password => Ok(Some(password.to_owned())),
    }
}

fn show_progress(screen: &mut CliOutput, progress: CopyProgress) {
    let CopyProgress { step, table, rows, total } = progress;
    let step = match step {
        CopyStep::Write => "copying",
        CopyStep::Check => "checking",
    };
    // The copy goes on without a terminal.
    let _ = screen.show_status(OutputStyle::Quiet, &format!("{step} {table} · {rows} of {total}"));
}

fn print_copied(args: &CopyArgs, tables: &[TableCopy], [from, to]: [&CopyLocation; 2]) -> anyhow::Result<()> {
    let rows: u64 = tables.iter().map(|table| table.rows).sum();
    let mut out = std::io::stdout().lock();
    if args.json {
        let counts: serde_json::Map<_, _> =
            tables.iter().map(|table| (table.name.to_owned(), table.rows.into())).collect();
        writeln!(out, "{}", serde_json::json!({"rows": rows, "tables": counts, "checked": true}))?;
        return Ok(());
    }
    for table in tables.iter().filter(|table| table.rows > 0) {
        writeln!(out, "{:>12} {}", table.rows, table.name)?;
    }
    writeln!(out, "{rows} rows copied and checked")?;
    match (from, to) {
        (CopyLocation::Sqlite { data_dir, .. }, CopyLocation::Postgres(_)) => writeln!(
            out,
            "next: set `url` in [store] of the configuration, and keep {} in the data directory",
            data_dir.join("session.key").display()
        )?,
        (_, CopyLocation::Sqlite { data_dir, .. }) => writeln!(
            out,
            "next: copy session.key of the previous data directory to {}, and set `url` in [store] of the configuration",
            data_dir.display()
        )?,
        (CopyLocation::Postgres(_), CopyLocation::Postgres(_)) => {
            writeln!(
                out,
                "next: set `url` in [store] of the configuration, and keep session.key in the data directory"
            )?;
        }
    }
    Ok(())
}
