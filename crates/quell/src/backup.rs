//! `quell backup` and `quell restore`: the whole database out into one file, and back.
//!
//! A running daemon is asked for the copy, so that it works for a person who may not read its files: another user, a container,
//! another machine. Where no daemon runs, the file in the data directory is copied.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use quell_client::term::{Color, Locale, Tone};
use quell_client::words::size;
use quell_client::{Io, Link, LinkError, Target};
use quell_engine::store;

use crate::{config, telemetry};

pub(crate) const BACKUP_HELP: &str = "\
Examples:
  quell backup quell-monday.db
  quell backup --force /backup/quell.db
  quell backup --url https://quell.example.org --token TOKEN quell.db

The copy is of one moment, has mode 0600 and is checked. It holds sessions, runs, notes, agents made at run time, tokens (hashed), the
hold and the audit list; it does not hold the configuration, the files token and session.key of the data directory, or the agents'
files. Without session.key the keys that sessions brought along have to be given again: keep a copy of it apart from the backups.";

pub(crate) const RESTORE_HELP: &str = "\
Example:
  quell restore quell-monday.db && quell serve

The database that was there stays beside the new one under a name that is printed. Runs that were not over when the backup was made
are sealed as aborted at the next start. Where the data directory is a new one, put session.key of the old one into it, too: without it
the keys that sessions brought along do not open.";

#[derive(Debug, clap::Args)]
pub(crate) struct BackupArgs {
    /// The file to write.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Replace the file if it is there.
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
    /// The backup.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// The configuration file; else $QUELL_CONFIG, or quell/quell.toml in the XDG config directory.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(crate) fn run(args: &BackupArgs, mut target: Target) -> anyhow::Result<ExitCode> {
    if !args.force && args.file.exists() {
        bail!("{} exists; name another file, or replace it with --force", args.file.display());
    }
    let data_dir = config::data_dir()?;
    let partial = Partial::beside(&args.file)?;
    let database = config::database(args.config.as_deref())?;
    if is_idle(&target, &data_dir, &database) {
        store::copy(&data_dir, &database, &partial.0)?;
    } else {
        target.data_dir = Some(data_dir);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(download(&target, &partial.0))?;
    }
    store::check_copy(&partial.0).context("the copy is of no use and was removed")?;
    let bytes = partial.publish(args)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::json!({"file": args.file, "bytes": bytes, "checked": true}))?;
    } else {
        writeln!(out, "{} of backup in {}, checked", size(bytes), args.file.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// True when the data directory here is meant, has a database, and no daemon uses it.
fn is_idle(target: &Target, data_dir: &Path, database: &str) -> bool {
    let elsewhere = target.url.as_deref().is_some_and(|url| !url.trim().is_empty());
    // A directory that may not be looked into is somebody's whose daemon has to be asked.
    !elsewhere && data_dir.join(database).exists() && matches!(store::holder(data_dir), Ok(None))
}

async fn download(target: &Target, to: &Path) -> anyhow::Result<()> {
    let color = if telemetry::no_color() { Color::Never } else { Color::Auto };
    let mut screen = Io::standard(color, Locale::default()).screen;
    let mut download = Link::discover(target)?.backup().await.map_err(explained)?;
    let whole = download.length().map(|length| format!(" of {}", size(length))).unwrap_or_default();
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to).context(written(to))?;
    let mut got = 0;
    while let Some(piece) = download.piece().await? {
        file.write_all(&piece).context(written(to))?;
        got += piece.len() as u64;
        screen.status(Tone::Quiet, &format!("{}{whole}", size(got)))?;
    }
    screen.finish()?;
    Ok(())
}

fn explained(error: LinkError) -> anyhow::Error {
    let old = matches!(&error, LinkError::Refused(problem) if problem.status == 404);
    let error = anyhow::Error::from(error);
    if old { error.context("the daemon is of an older version, which makes no backups") } else { error }
}

fn written(path: &Path) -> String {
    format!("{} cannot be written", path.display())
}

/// A copy that is not whole yet, removed unless it is published.
struct Partial(PathBuf);

impl Partial {
    fn beside(file: &Path) -> anyhow::Result<Self> {
        let Some(name) = file.file_name() else { bail!("{} is not the name of a file", file.display()) };
        let name = format!(".{}.{}.partial", name.to_string_lossy(), std::process::id());
        Ok(Self(file.with_file_name(name)))
    }

    /// Gives it its name, on the disk for good. Answers its size.
    fn publish(&self, args: &BackupArgs) -> anyhow::Result<u64> {
        let file = File::open(&self.0).context(written(&self.0))?;
        file.sync_all().context(written(&self.0))?;
        if args.force {
            fs::rename(&self.0, &args.file).context(written(&args.file))?;
        } else {
            // As rename, but never over a file that came meanwhile.
            fs::hard_link(&self.0, &args.file).context(written(&args.file))?;
        }
        if let Some(folder) = args.file.parent() {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            File::open(folder).and_then(|folder| folder.sync_all()).context(written(&args.file))?;
        }
        Ok(file.metadata()?.len())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Gone already when it was renamed.
        let _ = fs::remove_file(&self.0);
    }
}

pub(crate) fn restore(args: &RestoreArgs) -> anyhow::Result<ExitCode> {
    let (data_dir, database) = (config::data_dir()?, config::database(args.config.as_deref())?);
    let stamp = quell_engine::clock::stamp();
    let restored = store::restore(&data_dir, &database, (&args.file, &stamp))?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::json!({"database": restored.file, "kept": restored.kept}))?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "{} is now the database {}", args.file.display(), restored.file.display())?;
    if let Some(kept) = &restored.kept {
        writeln!(out, "the one before it is {}; remove it when you do not need it any more", kept.display())?;
    }
    Ok(ExitCode::SUCCESS)
}
