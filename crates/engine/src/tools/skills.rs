//! The skills below an agent's workdir, read for its prompt.
//!
//! The border is that of the file tools and always stands: what `read_file` may not read is no skill either.

use std::io::Read;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::AtomicBool;

use quell_kernel::skill::{BadSkill, Catalogue, FILE, Skill};
use rustix::fs::{Dir, FileType};
use rustix::io::Errno;

use super::confine::{Root, explain, shown};
use super::{Fault, Ground, Protected, Stop};

/// So much of a file is read: its head is at its beginning.
const HEAD_BYTES: u64 = 64 * 1024;
/// Things in a folder of skills; one with more of them is something else.
const MOST_ENTRIES: usize = 1000;

/// What a folder of skills holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shelf {
    /// Those that the agent is told of.
    pub skills: Catalogue,
    /// What was left out: where it is and what is wrong with it, in whole sentences.
    pub left_out: Vec<String>,
}

/// Reads the skills in this folder, which is named as from the workdir. That there is no such folder is no fault. Nothing when
/// it was told to stop before it was done.
#[must_use]
pub fn read_skills(workdir: &Path, folder: &str, stop: &AtomicBool) -> Option<Shelf> {
    // Without what means nothing in a path, so that it is shown as people write it.
    let folder: PathBuf = Path::new(folder).components().filter(|part| *part != Component::CurDir).collect();
    let mut shelf = Shelf { skills: Catalogue::new(folder.to_string_lossy().into_owned()), left_out: Vec::new() };
    match shelf.fill(workdir, &folder, &Stop(stop)) {
        Ok(()) => Some(shelf),
        Err(Fault::Told(problem)) => {
            shelf.left_out.push(problem);
            Some(shelf)
        }
        Err(Fault::Stopped) => None,
    }
}

impl Shelf {
    fn fill(&mut self, workdir: &Path, folder: &Path, stop: &Stop<'_>) -> Result<(), Fault> {
        let (workdir, protected) = (workdir.to_path_buf(), Protected::default());
        let root = Root::open(&Ground { workdir, unconfined: false, output_limit: 0, protected })?;
        if matches!(root.look(folder), Err(Errno::NOENT)) {
            return Ok(());
        }
        for name in names(&root, folder, stop)? {
            stop.check()?;
            if self.take(&root, folder, &name)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Takes in what stands in the folder under this name, if that is a folder itself. Breaks when there is no place for more.
    fn take(&mut self, root: &Root, folder: &Path, name: &Path) -> Result<ControlFlow<()>, Fault> {
        let path = folder.join(name);
        match root.look(&path) {
            Ok(found) if found.kind != FileType::Directory => return Ok(ControlFlow::Continue(())),
            Ok(_) => {}
            Err(error) => return self.leave_out(explain(&path, error)),
        }
        let file = path.join(FILE);
        let text = match read(root, &file) {
            Ok(text) => text,
            Err(fault) => return self.leave_out(fault),
        };
        let added = Skill::parse(&name.to_string_lossy(), &text).and_then(|skill| self.skills.add(skill));
        let Err(bad) = added else { return Ok(ControlFlow::Continue(())) };
        self.left_out.push(format!("{} {bad}", shown(&file)));
        Ok(if bad == BadSkill::NoPlace { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    fn leave_out(&mut self, fault: Fault) -> Result<ControlFlow<()>, Fault> {
        let Fault::Told(problem) = fault else { return Err(fault) };
        self.left_out.push(problem);
        Ok(ControlFlow::Continue(()))
    }
}

/// What stands in the folder, in order; hidden things are not looked at.
fn names(root: &Root, folder: &Path, stop: &Stop<'_>) -> Result<Vec<PathBuf>, Fault> {
    let place = root.directory(folder)?;
    let mut names = Vec::new();
    for entry in Dir::read_from(&place).map_err(|error| explain(folder, error))? {
        stop.check()?;
        let entry = entry.map_err(|error| explain(folder, error))?;
        let name = entry.file_name().to_bytes();
        if name.starts_with(b".") {
            continue;
        }
        if names.len() == MOST_ENTRIES {
            let problem = format!("{} has more than {MOST_ENTRIES} entries, and none is looked at", shown(folder));
            return Err(Fault::told(problem));
        }
        names.push(PathBuf::from(std::ffi::OsStr::from_bytes(name)));
    }
    names.sort_unstable();
    Ok(names)
}

/// The beginning of a file, as far as it is text.
fn read(root: &Root, path: &Path) -> Result<String, Fault> {
    let mut bytes = Vec::new();
    let source = root.file(path)?.file.take(HEAD_BYTES).read_to_end(&mut bytes);
    source.map_err(|error| Fault::told(format!("{} cannot be read: {error}", shown(path))))?;
    let end = std::str::from_utf8(&bytes).map_or_else(|error| error.valid_up_to(), str::len);
    bytes.truncate(end);
    // It is text up to here.
    Ok(String::from_utf8(bytes).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    static GO: AtomicBool = AtomicBool::new(false);

    fn put(workdir: &Path, place: &str, name: &str) {
        let folder = workdir.join(place);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(FILE), format!("---\nname: {name}\ndescription: For {name}.\n---\nDo it.\n")).unwrap();
    }

    fn shelf(workdir: &Path, folder: &str) -> Shelf {
        read_skills(workdir, folder, &GO).unwrap()
    }

    fn names(shelf: &Shelf) -> Vec<&str> {
        shelf.skills.names().collect()
    }

    #[test]
    fn skills_are_read_in_order_and_broken_ones_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let workdir = dir.path();
        for name in ["words", "pdf"] {
            put(workdir, &format!("skills/{name}"), name);
        }
        put(workdir, "skills/other", "another");
        put(workdir, "skills/.hidden", "hidden");
        put(workdir, "skills/deep/below", "below");
        fs::write(workdir.join("skills/README.md"), "not a skill").unwrap();
        fs::create_dir_all(workdir.join("skills/pipe")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, workdir.join("skills/pipe").join(FILE), rustix::fs::Mode::RWXU).unwrap();
        let found = shelf(workdir, "./skills/");
        assert_eq!(names(&found), ["pdf", "words"]);
        assert!(found.skills.prompt("", "read_file").contains("- pdf: For pdf. (skills/pdf/SKILL.md)"));
        let [deep, other, pipe] = &found.left_out[..] else { panic!("{:#?}", found.left_out) };
        assert!(deep.contains("\"skills/deep/SKILL.md\" does not exist"), "{deep}");
        assert!(other.contains("\"skills/other/SKILL.md\" has the name \"another\""), "{other}");
        assert!(pipe.contains("is a named pipe"), "{pipe}");
    }

    #[test]
    fn what_read_file_may_not_read_is_no_skill() {
        let dir = tempfile::tempdir().unwrap();
        let workdir = dir.path().join("work");
        put(dir.path(), "outside/pdf", "pdf");
        put(&workdir, "shared/words", "words");
        put(&workdir, "skills/inner", "inner");
        symlink(dir.path().join("outside/pdf"), workdir.join("skills/pdf")).unwrap();
        symlink("../shared/words", workdir.join("skills/words")).unwrap();
        symlink("nowhere", workdir.join("skills/gone")).unwrap();
        fs::create_dir(workdir.join("skills/linked")).unwrap();
        symlink(dir.path().join("outside/pdf").join(FILE), workdir.join("skills/linked").join(FILE)).unwrap();
        let found = shelf(&workdir, "skills");
        assert_eq!(names(&found), ["inner", "words"], "a link that stays inside is one");
        let [gone, linked, pdf] = &found.left_out[..] else { panic!("{:#?}", found.left_out) };
        assert!(gone.contains("does not exist"), "{gone}");
        assert!(
            [linked, pdf].iter().all(|told| told.contains("leads outside the working directory")),
            "{linked} {pdf}"
        );
        symlink(dir.path().join("outside"), workdir.join("way-out")).unwrap();
        for folder in ["way-out", "../outside", "skills/inner/SKILL.md"] {
            let found = shelf(&workdir, folder);
            assert_eq!((names(&found), found.left_out.len()), (vec![], 1), "{folder}");
        }
    }

    #[test]
    fn a_folder_that_is_missing_or_empty_is_no_fault() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("empty")).unwrap();
        for folder in ["none", "none/below", "empty"] {
            let found = shelf(dir.path(), folder);
            assert!(names(&found).is_empty() && found.left_out.is_empty(), "{folder}: {found:?}");
        }
    }

    #[test]
    fn a_large_file_and_a_large_folder_are_read_within_bounds() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "skills/large", "large");
        let large = fs::OpenOptions::new().write(true).open(dir.path().join("skills/large").join(FILE)).unwrap();
        large.set_len(1 << 40).unwrap();
        fs::create_dir(dir.path().join("skills/endless")).unwrap();
        let endless = format!("---\nname: endless\n{}---\n", "# and on\n".repeat(10_000));
        fs::write(dir.path().join("skills/endless").join(FILE), endless).unwrap();
        fs::create_dir(dir.path().join("skills/latin")).unwrap();
        fs::write(dir.path().join("skills/latin").join(FILE), b"---\nname: latin\ndescription: caf\xe9\n---\n")
            .unwrap();
        let found = shelf(dir.path(), "skills");
        assert_eq!(names(&found), ["large"]);
        assert!(found.left_out.len() == 2 && found.left_out.iter().all(|told| told.contains("no second line")));
        for number in 0..70 {
            put(dir.path(), &format!("many/s{number}"), &format!("s{number}"));
        }
        let found = shelf(dir.path(), "many");
        assert_eq!((names(&found).len(), found.left_out.len()), (64, 1), "{:#?}", found.left_out);
        assert!(found.left_out[0].contains("has no place any more"));
        for number in 0..=MOST_ENTRIES {
            fs::write(dir.path().join("many").join(format!("{number}.txt")), "").unwrap();
        }
        let found = shelf(dir.path(), "many");
        assert!(names(&found).is_empty() && found.left_out[0].contains("more than 1000 entries"));
    }

    #[test]
    fn a_stop_ends_the_reading_without_a_result() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "skills/pdf", "pdf");
        assert_eq!(read_skills(dir.path(), "skills", &AtomicBool::new(true)), None);
    }
}
