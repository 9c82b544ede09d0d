//! Read the skill files below an agent's workdir and report the invalid ones.
//!
//! The read is always confined to the workdir, as those of the file tools are: a file that `read_file` may not read is
//! no skill.

use std::io::Read;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::AtomicBool;

use quell_kernel::skill::{SKILL_FILE, Skill, SkillCatalogue, SkillError};
use rustix::fs::{Dir, FileType};
use rustix::io::Errno;

use crate::confined_fs::{WorkdirRoot, path_error, quoted_path};
use crate::file_tool::{FileToolContext, FileToolError, StopFlag, failed_call};

/// How many bytes of a skill file are read; its front matter is at the start.
const HEAD_BYTES: u64 = 64 * 1024;
/// The maximum number of entries in a folder of skills. A larger folder is not read.
const MAX_ENTRIES: usize = 1000;

/// The skills of a folder, and the problems found there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedSkills {
    /// The valid skills, which the agent is told of.
    pub skills: SkillCatalogue,
    /// What was left out, each with its path and the problem, in whole sentences.
    pub problems: Vec<String>,
}

/// Reads the skills in this folder, a path relative to the workdir. A missing folder is no problem. Returns `None`
/// after a stop.
pub fn read_skills(workdir: &Path, folder: &str, stop: &AtomicBool) -> Option<LoadedSkills> {
    // Remove `.` components, so that the path is shown as people write it.
    let folder: PathBuf = Path::new(folder).components().filter(|part| *part != Component::CurDir).collect();
    let mut loaded =
        LoadedSkills { skills: SkillCatalogue::new(folder.to_string_lossy().into_owned()), problems: Vec::new() };
    match loaded.load_folder(workdir, &folder, &StopFlag(stop)) {
        Ok(()) => Some(loaded),
        Err(FileToolError::Failed(problem)) => {
            loaded.problems.push(problem);
            Some(loaded)
        }
        Err(FileToolError::Cancelled) => None,
    }
}

impl LoadedSkills {
    fn load_folder(&mut self, workdir: &Path, folder: &Path, stop: &StopFlag<'_>) -> Result<(), FileToolError> {
        let root = WorkdirRoot::open(&FileToolContext::confined(workdir))?;
        if matches!(root.find_path(folder), Err(Errno::NOENT)) {
            return Ok(());
        }
        for name in entry_names(&root, folder, stop)? {
            stop.check()?;
            if self.load_skill(&root, folder, &name)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Loads the skill in this subfolder. Skips an entry that is no folder. Breaks when the catalogue is full.
    fn load_skill(&mut self, root: &WorkdirRoot, folder: &Path, name: &Path) -> Result<ControlFlow<()>, FileToolError> {
        let path = folder.join(name);
        match root.find_path(&path) {
            Ok(found) if found.kind != FileType::Directory => return Ok(ControlFlow::Continue(())),
            Ok(_) => {}
            Err(error) => return self.skip_with_problem(path_error(&path, error)),
        }
        let file = path.join(SKILL_FILE);
        let text = match read_head(root, &file) {
            Ok(text) => text,
            Err(fault) => return self.skip_with_problem(fault),
        };
        let added = Skill::parse(&name.to_string_lossy(), &text).and_then(|skill| self.skills.add(skill));
        let Err(error) = added else { return Ok(ControlFlow::Continue(())) };
        self.problems.push(format!("{} {error}", quoted_path(&file)));
        Ok(if error == SkillError::CatalogueFull { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    fn skip_with_problem(&mut self, fault: FileToolError) -> Result<ControlFlow<()>, FileToolError> {
        let FileToolError::Failed(problem) = fault else { return Err(fault) };
        self.problems.push(problem);
        Ok(ControlFlow::Continue(()))
    }
}

/// The names in the folder, sorted, without hidden ones.
fn entry_names(root: &WorkdirRoot, folder: &Path, stop: &StopFlag<'_>) -> Result<Vec<PathBuf>, FileToolError> {
    let directory = root.open_directory(folder)?;
    let mut names = Vec::new();
    for entry in Dir::read_from(&directory).map_err(|error| path_error(folder, error))? {
        stop.check()?;
        let entry = entry.map_err(|error| path_error(folder, error))?;
        let name = entry.file_name().to_bytes();
        if name.starts_with(b".") {
            continue;
        }
        if names.len() == MAX_ENTRIES {
            let problem = format!("{} has more than {MAX_ENTRIES} entries, so no skill is read", quoted_path(folder));
            return Err(failed_call(problem));
        }
        names.push(PathBuf::from(std::ffi::OsStr::from_bytes(name)));
    }
    names.sort_unstable();
    Ok(names)
}

/// The beginning of a file, up to the first byte that is not valid UTF-8.
fn read_head(root: &WorkdirRoot, path: &Path) -> Result<String, FileToolError> {
    let mut bytes = Vec::new();
    let source = root.open_file(path)?.file.take(HEAD_BYTES).read_to_end(&mut bytes);
    source.map_err(|error| failed_call(format!("{} cannot be read: {error}", quoted_path(path))))?;
    let end = std::str::from_utf8(&bytes).map_or_else(|error| error.valid_up_to(), str::len);
    bytes.truncate(end);
    // Valid UTF-8 up to here.
    Ok(String::from_utf8(bytes).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    static NOT_STOPPED: AtomicBool = AtomicBool::new(false);

    fn write_skill(workdir: &Path, place: &str, name: &str) {
        let folder = workdir.join(place);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(SKILL_FILE), format!("---\nname: {name}\ndescription: For {name}.\n---\nDo it.\n"))
            .unwrap();
    }

    fn load(workdir: &Path, folder: &str) -> LoadedSkills {
        read_skills(workdir, folder, &NOT_STOPPED).unwrap()
    }

    fn skill_names(loaded: &LoadedSkills) -> Vec<&str> {
        loaded.skills.names().collect()
    }

    #[test]
    fn skills_are_read_in_order_and_broken_ones_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let workdir = dir.path();
        for name in ["words", "pdf"] {
            write_skill(workdir, &format!("skills/{name}"), name);
        }
        write_skill(workdir, "skills/other", "another");
        write_skill(workdir, "skills/.hidden", "hidden");
        write_skill(workdir, "skills/deep/below", "below");
        fs::write(workdir.join("skills/README.md"), "not a skill").unwrap();
        fs::create_dir_all(workdir.join("skills/pipe")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, workdir.join("skills/pipe").join(SKILL_FILE), rustix::fs::Mode::RWXU)
            .unwrap();
        let found = load(workdir, "./skills/");
        assert_eq!(skill_names(&found), ["pdf", "words"]);
        assert!(found.skills.append_to_prompt("", "read_file").contains("- pdf: For pdf. (skills/pdf/SKILL.md)"));
        let [deep, other, pipe] = &found.problems[..] else { panic!("{:#?}", found.problems) };
        assert!(deep.contains("\"skills/deep/SKILL.md\" does not exist"), "{deep}");
        assert!(other.contains("\"skills/other/SKILL.md\" has the name \"another\""), "{other}");
        assert!(pipe.contains("is a named pipe"), "{pipe}");
    }

    #[test]
    fn files_that_read_file_may_not_read_are_no_skills() {
        let dir = tempfile::tempdir().unwrap();
        let workdir = dir.path().join("work");
        write_skill(dir.path(), "outside/pdf", "pdf");
        write_skill(&workdir, "shared/words", "words");
        write_skill(&workdir, "skills/inner", "inner");
        symlink(dir.path().join("outside/pdf"), workdir.join("skills/pdf")).unwrap();
        symlink("../shared/words", workdir.join("skills/words")).unwrap();
        symlink("nowhere", workdir.join("skills/gone")).unwrap();
        fs::create_dir(workdir.join("skills/linked")).unwrap();
        symlink(dir.path().join("outside/pdf").join(SKILL_FILE), workdir.join("skills/linked").join(SKILL_FILE))
            .unwrap();
        let found = load(&workdir, "skills");
        assert_eq!(skill_names(&found), ["inner", "words"], "a link that stays inside is one");
        let [gone, linked, pdf] = &found.problems[..] else { panic!("{:#?}", found.problems) };
        assert!(gone.contains("does not exist"), "{gone}");
        assert!(
            [linked, pdf].iter().all(|problem| problem.contains("leads outside the working directory")),
            "{linked} {pdf}"
        );
        symlink(dir.path().join("outside"), workdir.join("way-out")).unwrap();
        for folder in ["way-out", "../outside", "skills/inner/SKILL.md"] {
            let found = load(&workdir, folder);
            assert_eq!((skill_names(&found), found.problems.len()), (vec![], 1), "{folder}");
        }
    }

    #[test]
    fn a_folder_that_is_missing_or_empty_is_no_fault() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("empty")).unwrap();
        for folder in ["none", "none/below", "empty"] {
            let found = load(dir.path(), folder);
            assert!(skill_names(&found).is_empty() && found.problems.is_empty(), "{folder}: {found:?}");
        }
    }

    #[test]
    fn a_large_file_and_a_large_folder_are_read_within_bounds() {
        let dir = tempfile::tempdir().unwrap();
        write_skill(dir.path(), "skills/large", "large");
        let large = fs::OpenOptions::new().write(true).open(dir.path().join("skills/large").join(SKILL_FILE)).unwrap();
        large.set_len(1 << 40).unwrap();
        fs::create_dir(dir.path().join("skills/endless")).unwrap();
        let endless = format!("---\nname: endless\n{}---\n", "# and on\n".repeat(10_000));
        fs::write(dir.path().join("skills/endless").join(SKILL_FILE), endless).unwrap();
        fs::create_dir(dir.path().join("skills/latin")).unwrap();
        fs::write(dir.path().join("skills/latin").join(SKILL_FILE), b"---\nname: latin\ndescription: caf\xe9\n---\n")
            .unwrap();
        let found = load(dir.path(), "skills");
        assert_eq!(skill_names(&found), ["large"]);
        assert!(found.problems.len() == 2 && found.problems.iter().all(|problem| problem.contains("no second line")));
        for number in 0..70 {
            write_skill(dir.path(), &format!("many/s{number}"), &format!("s{number}"));
        }
        let found = load(dir.path(), "many");
        assert_eq!((skill_names(&found).len(), found.problems.len()), (64, 1), "{:#?}", found.problems);
        assert!(found.problems[0].contains("exceeds the limit of 64 skills"));
        for number in 0..=MAX_ENTRIES {
            fs::write(dir.path().join("many").join(format!("{number}.txt")), "").unwrap();
        }
        let found = load(dir.path(), "many");
        assert!(skill_names(&found).is_empty() && found.problems[0].contains("more than 1000 entries"));
    }

    #[test]
    fn a_stop_ends_the_reading_without_a_result() {
        let dir = tempfile::tempdir().unwrap();
        write_skill(dir.path(), "skills/pdf", "pdf");
        assert_eq!(read_skills(dir.path(), "skills", &AtomicBool::new(true)), None);
    }
}
