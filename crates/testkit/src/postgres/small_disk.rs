//! A small file system for the tables of PostgreSQL, in a mount namespace of its own, which a test fills.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::or_fail::OrFail as _;

/// An empty database server has 22 MB.
const SIZE: &str = "size=48m";

/// Moves the directory `$1` to a file system that lasts as long as the input is open.
const MOUNT_SCRIPT: &str = r#"
mv "$1" "$1-files" && mkdir "$1" && mount -t tmpfs -o "$2" small "$1" && cp -a "$1-files/." "$1" &&
chmod --reference="$1-files" "$1" && chown --reference="$1-files" "$1" && rm -r "$1-files" && echo mounted && exec cat
"#;

#[derive(Debug)]
pub(super) struct SmallDisk {
    /// Keeps the file system mounted.
    holder: Child,
    dir: PathBuf,
}

impl SmallDisk {
    /// Mounts it over this directory, with a copy of its files. For root.
    pub(super) fn mount(dir: PathBuf) -> Self {
        #[expect(clippy::disallowed_methods, reason = "keeps a file system mounted for PostgreSQL")]
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", MOUNT_SCRIPT, "mount"]).arg(&dir).arg(SIZE);
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().or_fail("no unshare");
        let mut said = String::new();
        let read = BufReader::new(holder.stdout.take().or_fail("no output")).read_line(&mut said);
        assert!(read.is_ok() && said == "mounted\n", "no file system on {}", dir.display());
        Self { holder, dir }
    }

    pub(super) fn namespace(&self) -> PathBuf {
        format!("/proc/{}/ns/mnt", self.holder.id()).into()
    }

    pub(super) fn fill(&self) {
        let mut filler = File::create(self.filler()).or_fail("no file on the small disk");
        loop {
            match filler.write_all(&[0; 4096]) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return,
                Err(error) => panic!("the small disk cannot be filled: {error}"),
            }
        }
    }

    pub(super) fn free(&self) {
        fs::remove_file(self.filler()).or_fail("no file on the small disk");
    }

    fn filler(&self) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        root.join(self.dir.strip_prefix("/").unwrap_or(&self.dir)).join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        // It exits at the end of its input.
        let _ = self.holder.wait();
    }
}
