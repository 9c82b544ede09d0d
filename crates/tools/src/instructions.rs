//! Read the project instructions, `AGENTS.md`, of a workdir and, where the tools may leave it, of the repository around it.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use quell_kernel::project_instructions::{INSTRUCTIONS_FILE, MAX_INSTRUCTIONS_BYTES, ProjectInstructions};
use rustix::io::Errno;

use crate::confined_fs::WorkdirRoot;
use crate::file_tool::{FileToolContext, FileToolError, StopFlag, failed_call};
use crate::protected_paths::ProtectedPaths;

/// Directories above the workdir that are looked at.
const MAX_DEPTH: usize = 64;

/// How far the instructions of an agent may lie from its workdir.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstructionsReach {
    Workdir,
    /// The directories above it, up to the one with `.git`.
    Repository,
}

/// The instructions, and the problems found while they were read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadedInstructions {
    pub instructions: ProjectInstructions,
    /// What was left out, in whole sentences.
    pub problems: Vec<String>,
}

/// Reads the files, the nearest to the workdir first. A symlink that leads out of its directory is not followed. Returns
/// `None` after a stop.
pub fn read_instructions(
    workdir: &Path,
    reach: InstructionsReach,
    protected: &ProtectedPaths,
    stop: &AtomicBool,
) -> Option<LoadedInstructions> {
    let mut loaded = LoadedInstructions::default();
    for (directory, path) in instruction_places(workdir, reach) {
        if loaded.instructions.is_full() {
            loaded.problems.push(format!("{path} is left out, because nearer files fill the room"));
            continue;
        }
        match read_file(&directory, protected, &StopFlag(stop)) {
            Ok(Some(text)) => loaded.instructions.add(path, &text),
            Ok(None) => {}
            Err(FileToolError::Failed(problem)) => loaded.problems.push(format!("{path}: {problem}")),
            Err(FileToolError::Cancelled) => return None,
        }
    }
    Some(loaded)
}

/// The directories, each with the path of its file as the agent can use it.
fn instruction_places(workdir: &Path, reach: InstructionsReach) -> Vec<(PathBuf, String)> {
    let mut places = vec![(workdir.to_owned(), INSTRUCTIONS_FILE.to_owned())];
    let Ok(real) = workdir.canonicalize() else { return places };
    let has_git = |directory: &&Path| directory.join(".git").symlink_metadata().is_ok();
    let root = real.ancestors().take(MAX_DEPTH).position(|directory| has_git(&directory));
    if let (InstructionsReach::Repository, Some(root)) = (reach, root) {
        let above = real.ancestors().enumerate().skip(1).take(root);
        places.extend(
            above.map(|(up, directory)| (directory.to_owned(), format!("{}{INSTRUCTIONS_FILE}", "../".repeat(up)))),
        );
    }
    places
}

/// The text of the file up to the limit and up to the first byte that is not valid UTF-8; `None` without a file.
fn read_file(
    directory: &Path,
    protected: &ProtectedPaths,
    stop: &StopFlag<'_>,
) -> Result<Option<String>, FileToolError> {
    stop.check()?;
    let context = FileToolContext { protected: protected.clone(), ..FileToolContext::confined(directory) };
    let (root, name) = (WorkdirRoot::open(&context)?, Path::new(INSTRUCTIONS_FILE));
    if matches!(root.find_path(name), Err(Errno::NOENT)) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    // One byte more tells that there is more.
    let limit = MAX_INSTRUCTIONS_BYTES as u64 + 1;
    let read = root.open_file(name)?.file.take(limit).read_to_end(&mut bytes);
    read.map_err(|error| failed_call(format!("it cannot be read: {error}")))?;
    let end = std::str::from_utf8(&bytes).map_or_else(|error| error.valid_up_to(), str::len);
    bytes.truncate(end);
    Ok(Some(String::from_utf8(bytes).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn read(workdir: &Path, reach: InstructionsReach) -> LoadedInstructions {
        read_instructions(workdir, reach, &ProtectedPaths::default(), &AtomicBool::new(false)).unwrap()
    }

    fn paths(loaded: &LoadedInstructions) -> Vec<&str> {
        loaded.instructions.files().iter().map(|file| file.path.as_str()).collect()
    }

    #[test]
    fn the_nearest_file_comes_first_and_the_repository_ends_the_search() {
        let dir = tempfile::tempdir().unwrap();
        let workdir = dir.path().join("repo/crates/a");
        fs::create_dir_all(&workdir).unwrap();
        fs::create_dir(dir.path().join("repo/.git")).unwrap();
        for place in ["", "repo", "repo/crates/a"] {
            fs::write(dir.path().join(place).join("AGENTS.md"), format!("In {place:?}.")).unwrap();
        }
        let near = read(&workdir, InstructionsReach::Workdir);
        assert_eq!((paths(&near), near.problems.len()), (vec!["AGENTS.md"], 0));
        let far = read(&workdir, InstructionsReach::Repository);
        assert_eq!(paths(&far), ["AGENTS.md", "../../AGENTS.md"]);
        assert!(far.instructions.append_to_prompt("").contains("## From ../../AGENTS.md\n\nIn \"repo\"."));
        assert_eq!(paths(&read(&dir.path().join("repo"), InstructionsReach::Repository)), ["AGENTS.md"]);
        let outside = read(dir.path(), InstructionsReach::Repository);
        assert_eq!(paths(&outside), ["AGENTS.md"], "without a repository only the workdir counts");
    }

    #[test]
    fn no_link_leads_out_and_what_is_no_text_is_said_or_cut() {
        let dir = tempfile::tempdir().unwrap();
        let workdir = dir.path().join("work");
        fs::create_dir(&workdir).unwrap();
        fs::write(dir.path().join("secret"), "outside").unwrap();
        assert_eq!(read(&workdir, InstructionsReach::Repository), LoadedInstructions::default());
        symlink("../secret", workdir.join("AGENTS.md")).unwrap();
        let linked = read(&workdir, InstructionsReach::Repository);
        assert_eq!(paths(&linked), [""; 0]);
        assert!(linked.problems[0].contains("leads outside the working directory"), "{:?}", linked.problems);
        fs::remove_file(workdir.join("AGENTS.md")).unwrap();
        fs::create_dir(workdir.join("AGENTS.md")).unwrap();
        assert!(read(&workdir, InstructionsReach::Workdir).problems[0].contains("is a directory"));
        fs::remove_dir(workdir.join("AGENTS.md")).unwrap();
        fs::write(workdir.join("AGENTS.md"), [b"Plain.\n".as_slice(), &[0xff, 0xfe], b"odd"].concat()).unwrap();
        assert!(
            read(&workdir, InstructionsReach::Workdir).instructions.append_to_prompt("").contains("Plain.\n\n[end")
        );
        let file = fs::OpenOptions::new().write(true).open(workdir.join("AGENTS.md")).unwrap();
        file.set_len(1 << 40).unwrap();
        assert_eq!(paths(&read(&workdir, InstructionsReach::Workdir)), ["AGENTS.md"]);
        let stopped =
            read_instructions(&workdir, InstructionsReach::Workdir, &ProtectedPaths::default(), &AtomicBool::new(true));
        assert_eq!(stopped, None);
    }
}
