//! Install Python tools into virtual environments in the user's cache, with links below `target/tools`: the homeserver Synapse, the tools that check the
//! HTTP API against its OpenAPI document, a library for MCP servers, the clients of model providers, of MCP and of A2A,
//! and the proxy that the bench compares with.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;

use crate::cache::{beside, keyed_dir, link_into_target, take_turn};
use crate::{command, run_checked};

/// A tool with its virtual environment.
pub(super) struct PythonTool {
    pub(super) name: &'static str,
    /// The name of the environment's directory, in the cache and below `target/tools`.
    folder: &'static str,
    /// Packages and versions to install. Their dependencies are the newest that fit them and the machine's Python.
    packages: &'static [(&'static str, &'static str)],
    /// Size of the download, for people.
    size_text: &'static str,
}

pub(super) const SYNAPSE: PythonTool = PythonTool {
    name: "Synapse",
    folder: "synapse",
    packages: &[("matrix-synapse", "1.163.2")],
    size_text: "about 250 MB, which takes half a minute or more",
};

pub(super) const SCHEMATHESIS: PythonTool = PythonTool {
    name: "schemathesis",
    folder: "schemathesis",
    packages: &[("schemathesis", "4.32.5"), ("openapi-spec-validator", "0.9.0")],
    size_text: "about 70 MB, which takes some seconds",
};

pub(super) const MODEL_CLIENTS: PythonTool = PythonTool {
    name: "the clients of model providers",
    folder: "model-clients",
    packages: &[("openai", "3.57.0"), ("anthropic", "2.14.0"), ("google-genai", "3.6.1"), ("openai-agents", "0.24.0")],
    size_text: "about 30 MB, which takes some seconds",
};

pub(super) const FASTMCP: PythonTool = PythonTool {
    name: "FastMCP",
    folder: "fastmcp",
    packages: &[("fastmcp", "4.1.6")],
    size_text: "about 40 MB, which takes half a minute",
};

pub(super) const MCP_CLIENT: PythonTool = PythonTool {
    name: "the official client of MCP",
    folder: "mcp-client",
    packages: &[("mcp", "2.3.0")],
    size_text: "about 20 MB, which takes some seconds",
};

pub(super) const A2A_CLIENT: PythonTool = PythonTool {
    name: "the official client of A2A",
    folder: "a2a-client",
    packages: &[("a2a-sdk", "1.3.0")],
    size_text: "about 15 MB, which takes some seconds",
};

pub(super) const LITELLM: PythonTool = PythonTool {
    name: "LiteLLM's proxy",
    folder: "litellm",
    packages: &[("litellm[proxy]", "1.108.7")],
    size_text: "about 200 MB, which takes a minute",
};

impl PythonTool {
    /// True if the cache has it; makes the link of this clone then. Asks the environment's own Python for the versions,
    /// so that an environment with a replaced Python is created again.
    pub(super) fn is_installed(&self) -> bool {
        let folder = self.cached_dir();
        let python = python_path(&folder);
        if !self.has_versions(&python) {
            return false;
        }
        let linked = link_into_target(self.folder, &folder);
        linked.inspect_err(|error| eprintln!("{} is installed, but not linked: {error:#}", self.name)).is_ok()
    }

    fn cached_dir(&self) -> PathBuf {
        keyed_dir(self.folder, &format!("{:?}", self.packages))
    }

    fn has_versions(&self, python: &Path) -> bool {
        self.packages.iter().all(|(name, version)| {
            let (name, _extras) = name.split_once('[').unwrap_or((name, ""));
            let script = format!("import importlib.metadata; print(importlib.metadata.version('{name}'))");
            let answer = command(python, ["-c", &script]).output();
            answer.is_ok_and(|answer| {
                answer.status.success() && String::from_utf8_lossy(&answer.stdout).trim() == *version
            })
        })
    }

    pub(super) fn install(&self) -> anyhow::Result<()> {
        let folder = self.cached_dir();
        let _turn = take_turn(&folder)?;
        if self.is_installed() {
            return Ok(());
        }
        // Created under another name, so that an interrupted installation is not taken for a complete one.
        let unfinished = beside(&folder, "unfinished");
        eprintln!("installing {} from PyPI into {}, {}", self.name, folder.display(), self.size_text);
        let begun = Instant::now();
        for old in [&folder, &unfinished] {
            remove_if_exists(old)?;
        }
        run_checked(command("python3", ["-m", "venv"]).arg(&unfinished))?;
        let pip_args = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        let mut pip = command(python_path(&unfinished), pip_args);
        // Compile nothing: without a built package for this machine, pip fails at once.
        pip.args(["--only-binary", ":all:"]);
        pip.args(self.packages.iter().map(|(name, version)| format!("{name}=={version}")));
        run_checked(&mut pip)?;
        // Python finds its environment by the path of its program, so the directory can be renamed.
        fs::rename(&unfinished, &folder).with_context(|| format!("{} cannot be moved", unfinished.display()))?;
        link_into_target(self.folder, &folder)?;
        eprintln!("{} is installed, in {:.0} s", self.name, begun.elapsed().as_secs_f64());
        Ok(())
    }
}

fn remove_if_exists(folder: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{} cannot be removed", folder.display()))
        }
        _ => Ok(()),
    }
}

fn python_path(folder: &Path) -> PathBuf {
    folder.join("bin/python")
}
