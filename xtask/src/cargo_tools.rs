//! Programs of cargo that are built once from crates.io, for all clones of this user.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;

use anyhow::Context;

use crate::cache::{beside, cache_dir, take_turn};
use crate::{command, command_succeeds, run_checked};

/// A subcommand of cargo, with the version that is built if there is none.
pub(crate) struct CargoTool {
    name: &'static str,
    version: &'static str,
    /// Features in place of the default ones.
    features: Option<&'static str>,
}

pub(crate) const DENY: CargoTool = CargoTool { name: "cargo-deny", version: "0.20.2", features: None };

pub(crate) const NEXTEST: CargoTool =
    CargoTool { name: "cargo-nextest", version: "0.9.143", features: Some("default-no-update") };

impl CargoTool {
    /// The program, if it is on the PATH or was built before.
    pub(crate) fn find(&self) -> Option<PathBuf> {
        if command_succeeds(self.name, ["--version"]) {
            return Some(self.name.into());
        }
        let built = self.built_path();
        built.exists().then_some(built)
    }

    /// The program; builds it if there is none, which takes some minutes, once for this user.
    pub(crate) fn find_or_build(&self) -> anyhow::Result<PathBuf> {
        if let Some(found) = self.find() {
            return Ok(found);
        }
        let root = self.root();
        let _turn = take_turn(&root)?;
        if let Some(found) = self.find() {
            return Ok(found);
        }
        eprintln!(
            "{} is not installed; building {} into {}, which takes some minutes, once",
            self.name,
            self.version,
            root.display()
        );
        let mut install =
            command("cargo", ["install", self.name, "--locked", "--version", self.version, "--root"].map(OsStr::new));
        // Cargo would delete a target directory of its own; in this one, an interrupted build can continue.
        let build = beside(&root, "build");
        install.arg(&root).env("CARGO_TARGET_DIR", &build).env("CARGO_PROFILE_RELEASE_LTO", "off");
        // Built to be used a few times, so a short build matters more than a fast program.
        install.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        if let Some(features) = self.features {
            install.args(["--no-default-features", "--features", features]);
        }
        run_checked(&mut install)?;
        fs::remove_dir_all(&build).with_context(|| format!("{} cannot be removed", build.display()))?;
        Ok(self.built_path())
    }

    fn root(&self) -> PathBuf {
        cache_dir().join(format!("{}-{}", self.name, self.version))
    }

    fn built_path(&self) -> PathBuf {
        self.root().join("bin").join(self.name)
    }
}
