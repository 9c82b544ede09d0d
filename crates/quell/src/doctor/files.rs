//! Check configuration file, data directory, disk space, admin token, workdirs and skills.

use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use quell_engine::agent::AgentFactory;
use quell_tools::read_skills;
use rustix::fs::{Access, access, statvfs};

use super::finding::DoctorFinding;
use super::{CheckInput, ConfiguredInput};

/// Below this much free space a daemon will probably fail soon.
const LOW_SPACE: u64 = 200 << 20;
const CRITICAL_SPACE: u64 = 16 << 20;

/// The configuration must be readable and valid.
pub(super) fn configuration(input: &CheckInput) -> Vec<DoctorFinding> {
    vec![match &input.loaded {
        Ok(loaded) => DoctorFinding::ok(match loaded.path() {
            Some(path) => format!("{} is valid: {}", path.display(), loaded.summary()),
            None => format!("no file; environment and defaults: {}", loaded.summary()),
        }),
        Err(error) => DoctorFinding::fail(
            format!("{error:#}"),
            "correct the file; `quell config check` says whether it is right, docs/configuration.md has every key",
        ),
    }]
}

/// The data directory must be writable and private.
pub(super) fn data_directory(input: &CheckInput) -> Vec<DoctorFinding> {
    let directory = match &input.data_dir {
        Ok(directory) => directory,
        Err(error) => {
            return vec![DoctorFinding::fail(format!("{error:#}"), "export QUELL_HOME=/a/directory/of/your/own")];
        }
    };
    let place = directory.display();
    vec![match fs::metadata(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => check_absent_directory(directory),
        Err(error) => DoctorFinding::fail(
            format!("{place} cannot be looked at: {error}"),
            "choose another directory with QUELL_HOME, or mend the rights of the directories above it",
        ),
        Ok(found) if !found.is_dir() => {
            DoctorFinding::fail(format!("{place} is a file"), "move it away, or choose a directory with QUELL_HOME")
        }
        Ok(_) if access(directory, Access::WRITE_OK | Access::EXEC_OK).is_err() => DoctorFinding::fail(
            format!("{place} cannot be written by this user"),
            format!("chown it to yourself: sudo chown -R \"$USER\" {place}"),
        ),
        Ok(found) if is_accessible_by_others(&found) => DoctorFinding::warn(
            format!("{place} can be entered by other users (mode {:03o})", mode_bits(&found)),
            format!("chmod 700 {place}"),
        ),
        Ok(_) => DoctorFinding::ok(format!("{place} is writable and private")),
    }]
}

fn check_absent_directory(directory: &Path) -> DoctorFinding {
    let place = directory.display();
    match nearest_existing(directory) {
        Some(parent) if parent.is_dir() && access(parent, Access::WRITE_OK | Access::EXEC_OK).is_ok() => {
            DoctorFinding::ok(format!("{place} will be made at the first start"))
        }
        _ => DoctorFinding::fail(
            format!("{place} does not exist and cannot be made by this user"),
            "make it, or choose another directory with QUELL_HOME",
        ),
    }
}

/// Checks the room for the database and for files of commands.
pub(super) fn disk_space(input: &CheckInput) -> Vec<DoctorFinding> {
    let Ok(directory) = &input.data_dir else { return Vec::new() };
    let Some(there) = nearest_existing(directory) else { return Vec::new() };
    vec![match statvfs(there) {
        Ok(disk) => check_free_space(disk.f_bavail.saturating_mul(disk.f_frsize), there),
        Err(error) => DoctorFinding::warn(
            format!("the free space of {} is unknown: {error}", there.display()),
            "look at it by `df -h`, and keep 200 MiB free",
        ),
    }]
}

pub(super) fn check_free_space(free: u64, place: &Path) -> DoctorFinding {
    let says = format!("{} MiB are free for {}", free >> 20, place.display());
    let remedy = "free some space, or move the data with QUELL_HOME; a full disk refuses every new run";
    match free {
        0..CRITICAL_SPACE => DoctorFinding::fail(says, remedy),
        CRITICAL_SPACE..LOW_SPACE => DoctorFinding::warn(says, remedy),
        LOW_SPACE.. => DoctorFinding::ok(says),
    }
}

/// Checks the file of the admin token: its owner may do everything.
pub(super) fn admin_token(input: &ConfiguredInput<'_>) -> Vec<DoctorFinding> {
    let file = input.loaded.token_file(input.data_dir);
    let place = file.display();
    vec![match fs::metadata(&file) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            DoctorFinding::ok(format!("{place} will be made at the next start"))
        }
        Err(error) => {
            DoctorFinding::fail(format!("{place} cannot be looked at: {error}"), "mend its rights, or remove it")
        }
        Ok(found) if !found.is_file() => {
            DoctorFinding::fail(format!("{place} is no file"), "remove it; the next start makes one")
        }
        Ok(found) if is_accessible_by_others(&found) => DoctorFinding::fail(
            format!(
                "{place} can be read by other users (mode {:03o}); whoever has it may do everything",
                mode_bits(&found)
            ),
            format!(
                "chmod 600 {place}, then remove it and restart the daemon for a new token if others may have read it"
            ),
        ),
        Ok(found) if found.len() == 0 => {
            DoctorFinding::fail(format!("{place} is empty"), format!("rm {place}; the next start makes a new one"))
        }
        Ok(_) if access(&file, Access::READ_OK).is_err() => DoctorFinding::fail(
            format!("{place} cannot be read by this user"),
            "run quell as the user who started the daemon, or pass --token",
        ),
        Ok(_) => DoctorFinding::ok(format!("{place} is there and private")),
    }]
}

pub(super) fn workdirs(input: &ConfiguredInput<'_>) -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    let protected = input.loaded.protected(input.data_dir);
    for (id, agent) in &input.loaded.config.agents {
        let workdir = AgentFactory::workdir_of(&input.work_dir, id, agent);
        let key = format!("workdir of [agents.{id}]");
        if let Some(problem) = protected.workdir_problem(&workdir) {
            findings.push(DoctorFinding::fail(
                format!("agent {id}: {problem}"),
                format!("change {key}; no start takes it so"),
            ));
            continue;
        }
        if let Some(earlier) = AgentFactory::legacy_workdir(input.data_dir, id) {
            findings.push(DoctorFinding::warn(
                format!("files of agent {id} are in {}, where it does not work any more", earlier.display()),
                format!("move those that it needs to {}", workdir.display()),
            ));
        }
        let Some(workdir) = &agent.workdir else { continue };
        let place = workdir.display();
        findings.push(match fs::metadata(workdir) {
            Ok(found) if !found.is_dir() => {
                DoctorFinding::fail(format!("{place} of agent {id} is a file"), format!("set {key} to a directory"))
            }
            Ok(_) if access(workdir, Access::WRITE_OK | Access::EXEC_OK).is_err() => DoctorFinding::fail(
                format!("{place} of agent {id} cannot be written by this user"),
                format!("change its rights, or set {key} to a directory of your own"),
            ),
            Ok(_) => DoctorFinding::ok(format!("{place} of agent {id} is writable")),
            Err(error) if error.kind() == ErrorKind::NotFound => DoctorFinding::warn(
                format!("{place} of agent {id} does not exist; a start makes it, empty"),
                format!("check {key}"),
            ),
            Err(error) => DoctorFinding::fail(
                format!("{place} of agent {id} cannot be looked at: {error}"),
                format!("check {key}"),
            ),
        });
    }
    if findings.is_empty() {
        findings.push(DoctorFinding::ok(format!("agents work in {}", input.work_dir.display())));
    }
    findings
}

/// Lists the skills of each agent, and the ones that are left out.
pub(super) fn skills(input: &ConfiguredInput<'_>) -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    for (id, agent) in &input.loaded.config.agents {
        let Some(folder) = &agent.skills else { continue };
        let workdir = AgentFactory::workdir_of(&input.work_dir, id, agent);
        let place = workdir.join(folder);
        // Never cancelled.
        let Some(found) = read_skills(&workdir, folder, &AtomicBool::new(false)) else { continue };
        let names: Vec<&str> = found.skills.names().collect();
        if !names.is_empty() {
            findings.push(DoctorFinding::ok(format!("agent {id}: {}", names.join(", "))));
        } else if !place.exists() || found.problems.is_empty() {
            let remedy = format!("put a folder with a SKILL.md into {}; see docs/skills.md", place.display());
            findings.push(DoctorFinding::warn(format!("agent {id} has none"), remedy));
            continue;
        }
        let left_out =
            |problem| DoctorFinding::warn(format!("agent {id}: {problem}"), "correct it; see docs/skills.md");
        findings.extend(found.problems.into_iter().map(left_out));
    }
    if findings.is_empty() {
        findings.push(DoctorFinding::ok("no agent has any"));
    }
    findings
}

/// The directory itself, or the nearest one above it that exists.
fn nearest_existing(directory: &Path) -> Option<&Path> {
    directory.ancestors().find(|above| above.exists())
}

fn mode_bits(found: &Metadata) -> u32 {
    found.permissions().mode() & 0o777
}

fn is_accessible_by_others(found: &Metadata) -> bool {
    mode_bits(found) & 0o077 != 0
}
