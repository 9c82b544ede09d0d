//! `quell backup` and `quell restore`: copy the whole database into one file, and back.
//!
//! A running daemon is asked for the copy. So a person without the right to read the daemon's files can make a
//! backup: as another user, from outside of a container, from another machine. Where no daemon runs, the file in the
//! data directory is copied.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use quell_client::term::{ColorMode, Locale, OutputStyle};
use quell_client::text_format::byte_size;
use quell_client::{ClientError, CommandIo, DaemonClient, DaemonTarget};
use quell_store::{self as store, StoreLocation};

use crate::runtime::block_on;
use crate::{config, telemetry};

pub(crate) const BACKUP_HELP: &str = "\
Examples:
  quell backup quell-monday.db
  quell backup --force /backup/quell.db
  quell backup --url https://quell.example.org --token TOKEN quell.db

The copy shows the database at one moment, has mode 0600 and is checked. It contains sessions, runs, notes, agents created at run time,
tokens (hashed), the hold and the audit log. It does not contain the configuration, the files token and session.key of the data directory,
or the agents' files. Without session.key, sessions with an API key of their own need it again: keep a copy of the file apart from the
backups.";

pub(crate) const RESTORE_HELP: &str = "\
Example:
  quell restore quell-monday.db && quell serve

The previous database stays beside the new one under a name that is printed. Runs that had not ended when the backup was made are sealed
as aborted at the next start. Into a new data directory, also copy session.key of the old one: without it the sessions' own API keys
cannot be decrypted.";

const BACKUP_ON_SERVER: &str = "\
the database is on a PostgreSQL server ([store] url), so it is backed up there: \
pg_dump --format=custom --file=quell.dump DATABASE; also keep a copy of session.key of the data directory";

const RESTORE_ON_SERVER: &str = "\
the database is on a PostgreSQL server ([store] url), so it is restored there: stop the daemon, make an empty database, \
pg_restore --no-owner --dbname=DATABASE quell.dump, and start the daemon";

#[derive(Debug, clap::Args)]
pub(crate) struct BackupArgs {
    /// The file to write.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Replace the file if it exists.
    #[arg(long)]
    force: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// The configuration file; else $QUELL_CONFIG, or quell/quell.toml in the XDG config directory.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArgs {
    /// The backup to restore.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// The configuration file; else $QUELL_CONFIG, or quell/quell.toml in the XDG config directory.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(crate) fn backup(args: &BackupArgs, mut target: DaemonTarget) -> anyhow::Result<ExitCode> {
    if !args.force && args.file.exists() {
        bail!("{} exists; name another file, or replace it with --force", args.file.display());
    }
    let data_dir = config::data_dir()?;
    let partial = PartialBackup::next_to(&args.file)?;
    let elsewhere = target.url.as_deref().is_some_and(|url| !url.trim().is_empty());
    match config::store_location(args.config.as_deref())? {
        StoreLocation::Postgres(_) if !elsewhere => bail!(BACKUP_ON_SERVER),
        StoreLocation::Sqlite { file } if !elsewhere && can_copy_directly(&data_dir, &file) => {
            store::sqlite::copy_database(&data_dir, &file, &partial.0)?;
        }
        StoreLocation::Sqlite { .. } | StoreLocation::Postgres(_) => {
            target.data_dir = Some(data_dir);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            block_on(&runtime, download(&target, &partial.0))?;
        }
    }
    store::sqlite::check_database_copy(&partial.0).context("the copy is not valid and was removed")?;
    let bytes = partial.publish(args)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::json!({"file": args.file, "bytes": bytes, "checked": true}))?;
    } else {
        writeln!(out, "{} of backup in {}, checked", byte_size(bytes), args.file.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// True when the data directory here has a database and no running daemon.
fn can_copy_directly(data_dir: &Path, database: &str) -> bool {
    // A directory that this user may not read belongs to somebody else: ask the daemon.
    data_dir.join(database).exists() && matches!(store::find_running_daemon(data_dir), Ok(None))
}

async fn download(target: &DaemonTarget, to: &Path) -> anyhow::Result<()> {
    let color = if telemetry::no_color() { ColorMode::Never } else { ColorMode::Auto };
    let mut screen = CommandIo::standard(color, Locale::default()).output;
    let mut download = DaemonClient::discover(target)?.download_backup().await.map_err(with_version_hint)?;
    let whole = download.length().map(|length| format!(" of {}", byte_size(length))).unwrap_or_default();
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(to).context(write_error_text(to))?;
    let mut received = 0;
    while let Some(piece) = download.next_chunk().await? {
        file.write_all(&piece).context(write_error_text(to))?;
        received += piece.len() as u64;
        screen.show_status(OutputStyle::Quiet, &format!("{}{whole}", byte_size(received)))?;
    }
    screen.end_open_lines()?;
    Ok(())
}

fn with_version_hint(error: ClientError) -> anyhow::Error {
    let old = matches!(&error, ClientError::Refused(problem) if problem.status == 404);
    let error = anyhow::Error::from(error);
    if old { error.context("the daemon is an older version that cannot make backups") } else { error }
}

fn write_error_text(path: &Path) -> String {
    format!("{} cannot be written", path.display())
}

/// An incomplete copy; removed on drop unless it was published.
struct PartialBackup(PathBuf);

impl PartialBackup {
    fn next_to(file: &Path) -> anyhow::Result<Self> {
        let Some(name) = file.file_name() else { bail!("{} is not a file name", file.display()) };
        let name = format!(".{}.{}.partial", name.to_string_lossy(), std::process::id());
        Ok(Self(file.with_file_name(name)))
    }

    /// Gives the copy its final name and syncs the disk. Returns its size in bytes.
    fn publish(&self, args: &BackupArgs) -> anyhow::Result<u64> {
        let file = File::open(&self.0).context(write_error_text(&self.0))?;
        file.sync_all().context(write_error_text(&self.0))?;
        if args.force {
            fs::rename(&self.0, &args.file).context(write_error_text(&args.file))?;
        } else {
            // As a rename, but never over a file that was created meanwhile.
            fs::hard_link(&self.0, &args.file).context(write_error_text(&args.file))?;
        }
        if let Some(folder) = args.file.parent() {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            File::open(folder).and_then(|folder| folder.sync_all()).context(write_error_text(&args.file))?;
        }
        Ok(file.metadata()?.len())
    }
}

impl Drop for PartialBackup {
    fn drop(&mut self) {
        // Fails when it was renamed.
        let _ = fs::remove_file(&self.0);
    }
}

pub(crate) fn restore(args: &RestoreArgs) -> anyhow::Result<ExitCode> {
    let data_dir = config::data_dir()?;
    let StoreLocation::Sqlite { file: database } = config::store_location(args.config.as_deref())? else {
        bail!(RESTORE_ON_SERVER);
    };
    let stamp = quell_scope::clock::file_timestamp();
    let restored = store::sqlite::restore_database(&data_dir, &database, &args.file, &stamp)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::json!({"database": restored.file, "kept": restored.previous}))?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "{} is now the database {}", args.file.display(), restored.file.display())?;
    if let Some(kept) = &restored.previous {
        writeln!(out, "the previous database is {}; remove it when you do not need it any more", kept.display())?;
    }
    Ok(ExitCode::SUCCESS)
}
