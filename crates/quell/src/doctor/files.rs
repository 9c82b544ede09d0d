//! Files and directories: the configuration, the data directory, the token, the agents' workdirs.

use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use quell_engine::agent::Materials;
use quell_engine::tools::read_skills;
use rustix::fs::{Access, access, statvfs};

use super::finding::Finding;
use super::{Patient, Setup};
use crate::config::Source;

/// Below this much free space a daemon is expected to fail soon, or to be about to.
const LITTLE_SPACE: u64 = 200 << 20;
const NO_SPACE: u64 = 16 << 20;

/// Found, readable, and without errors.
pub(super) fn configuration(patient: &Patient) -> Vec<Finding> {
    let finding = match &patient.loaded {
        Ok(loaded) => Finding::ok(match &loaded.source {
            Source::File { path, .. } => format!("{} is valid: {}", path.display(), loaded.summary()),
            Source::Environment => format!("no file; environment and defaults: {}", loaded.summary()),
        }),
        Err(error) => Finding::fail(
            format!("{error:#}"),
            "correct the file; `quell config check` says whether it is right, docs/configuration.md has every key",
        ),
    };
    vec![finding]
}

/// There, writable, and nobody else's business.
pub(super) fn data_directory(patient: &Patient) -> Vec<Finding> {
    let directory = match &patient.data_dir {
        Ok(directory) => directory,
        Err(error) => return vec![Finding::fail(format!("{error:#}"), "export QUELL_HOME=/a/directory/of/your/own")],
    };
    let place = directory.display();
    let finding = match fs::metadata(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => absent_directory(directory),
        Err(error) => Finding::fail(
            format!("{place} cannot be looked at: {error}"),
            "choose another directory with QUELL_HOME, or mend the rights of the directories above it",
        ),
        Ok(found) if !found.is_dir() => {
            Finding::fail(format!("{place} is a file"), "move it away, or choose a directory with QUELL_HOME")
        }
        Ok(_) if access(directory, Access::WRITE_OK | Access::EXEC_OK).is_err() => Finding::fail(
            format!("{place} cannot be written by this user"),
            format!("chown it to yourself: sudo chown -R \"$USER\" {place}"),
        ),
        Ok(found) if shared(&found) => Finding::warn(
            format!("{place} can be entered by other users (mode {:03o})", mode(&found)),
            format!("chmod 700 {place}"),
        ),
        Ok(_) => Finding::ok(format!("{place} is writable and private")),
    };
    vec![finding]
}

fn absent_directory(directory: &Path) -> Finding {
    let place = directory.display();
    match existing_parent(directory) {
        Some(parent) if parent.is_dir() && access(parent, Access::WRITE_OK | Access::EXEC_OK).is_ok() => {
            Finding::ok(format!("{place} will be made at the first start"))
        }
        _ => Finding::fail(
            format!("{place} does not exist and cannot be made by this user"),
            "make it, or choose another directory with QUELL_HOME",
        ),
    }
}

/// Room for the database and for what commands write.
pub(super) fn disk_space(patient: &Patient) -> Vec<Finding> {
    let Ok(directory) = &patient.data_dir else { return Vec::new() };
    let Some(there) = existing_parent(directory) else { return Vec::new() };
    let finding = match statvfs(there) {
        Ok(disk) => space(disk.f_bavail.saturating_mul(disk.f_frsize), there),
        Err(error) => Finding::warn(
            format!("the free space of {} is unknown: {error}", there.display()),
            "look at it by `df -h`, and keep 200 MiB free",
        ),
    };
    vec![finding]
}

pub(super) fn space(free: u64, place: &Path) -> Finding {
    let says = format!("{} MiB are free for {}", free >> 20, place.display());
    let remedy = "free some space, or move the data with QUELL_HOME; a full disk refuses every new run";
    match free {
        0..NO_SPACE => Finding::fail(says, remedy),
        NO_SPACE..LITTLE_SPACE => Finding::warn(says, remedy),
        LITTLE_SPACE.. => Finding::ok(says),
    }
}

/// The admin token: whoever reads it may do everything.
pub(super) fn admin_token(setup: &Setup<'_>) -> Vec<Finding> {
    let file = setup.loaded.token_file(setup.data_dir);
    let place = file.display();
    let finding = match fs::metadata(&file) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Finding::ok(format!("{place} will be made at the next start"))
        }
        Err(error) => Finding::fail(format!("{place} cannot be looked at: {error}"), "mend its rights, or remove it"),
        Ok(found) if !found.is_file() => {
            Finding::fail(format!("{place} is no file"), "remove it; the next start makes one")
        }
        Ok(found) if shared(&found) => Finding::fail(
            format!("{place} can be read by other users (mode {:03o}); whoever has it may do everything", mode(&found)),
            format!(
                "chmod 600 {place}, then remove it and restart the daemon for a new token if others may have read it"
            ),
        ),
        Ok(found) if found.len() == 0 => {
            Finding::fail(format!("{place} is empty"), format!("rm {place}; the next start makes a new one"))
        }
        Ok(_) if access(&file, Access::READ_OK).is_err() => Finding::fail(
            format!("{place} cannot be read by this user"),
            "run quell as the user who started the daemon, or pass --token",
        ),
        Ok(_) => Finding::ok(format!("{place} is there and private")),
    };
    vec![finding]
}

/// Where the tools of each agent work.
pub(super) fn workdirs(setup: &Setup<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let protected = setup.loaded.protected(setup.data_dir);
    for (id, agent) in &setup.loaded.config.agents {
        let workdir = Materials::workdir(&setup.work_dir, id, agent);
        let key = format!("workdir of [agents.{id}]");
        if let Some(problem) = protected.problem_of(&workdir) {
            findings
                .push(Finding::fail(format!("agent {id}: {problem}"), format!("change {key}; no start takes it so")));
            continue;
        }
        if let Some(earlier) = Materials::earlier_workdir(setup.data_dir, id) {
            findings.push(Finding::warn(
                format!("files of agent {id} are in {}, where it does not work any more", earlier.display()),
                format!("move those that it needs to {}", workdir.display()),
            ));
        }
        let Some(workdir) = &agent.workdir else { continue };
        let place = workdir.display();
        findings.push(match fs::metadata(workdir) {
            Ok(found) if !found.is_dir() => {
                Finding::fail(format!("{place} of agent {id} is a file"), format!("set {key} to a directory"))
            }
            Ok(_) if access(workdir, Access::WRITE_OK | Access::EXEC_OK).is_err() => Finding::fail(
                format!("{place} of agent {id} cannot be written by this user"),
                format!("change its rights, or set {key} to a directory of your own"),
            ),
            Ok(_) => Finding::ok(format!("{place} of agent {id} is writable")),
            Err(error) if error.kind() == ErrorKind::NotFound => Finding::warn(
                format!("{place} of agent {id} does not exist; a start makes it, empty"),
                format!("check {key}"),
            ),
            Err(error) => {
                Finding::fail(format!("{place} of agent {id} cannot be looked at: {error}"), format!("check {key}"))
            }
        });
    }
    if findings.is_empty() {
        findings.push(Finding::ok(format!("agents work in {}", setup.work_dir.display())));
    }
    findings
}

/// What each agent is told of its skills, and what is left out.
pub(super) fn skills(setup: &Setup<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (id, agent) in &setup.loaded.config.agents {
        let Some(folder) = &agent.skills else { continue };
        let workdir = Materials::workdir(&setup.work_dir, id, agent);
        let place = workdir.join(folder);
        // Nobody tells it to stop.
        let Some(shelf) = read_skills(&workdir, folder, &AtomicBool::new(false)) else { continue };
        let names: Vec<&str> = shelf.skills.names().collect();
        if !names.is_empty() {
            findings.push(Finding::ok(format!("agent {id}: {}", names.join(", "))));
        } else if !place.exists() || shelf.left_out.is_empty() {
            let remedy = format!("put a folder with a SKILL.md into {}; see docs/skills.md", place.display());
            findings.push(Finding::warn(format!("agent {id} has none"), remedy));
            continue;
        }
        let left_out = |problem| Finding::warn(format!("agent {id}: {problem}"), "correct it; see docs/skills.md");
        findings.extend(shelf.left_out.into_iter().map(left_out));
    }
    if findings.is_empty() {
        findings.push(Finding::ok("no agent has any"));
    }
    findings
}

/// The directory itself, or the nearest one above it that exists.
fn existing_parent(directory: &Path) -> Option<&Path> {
    directory.ancestors().find(|above| above.exists())
}

fn mode(found: &Metadata) -> u32 {
    found.permissions().mode() & 0o777
}

fn shared(found: &Metadata) -> bool {
    mode(found) & 0o077 != 0
}
