//! Options of the commands of `cargo xtask weight`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail};

/// The options that were given.
#[derive(Debug, Default)]
pub(super) struct Options {
    values: BTreeMap<String, String>,
    switches: BTreeSet<String>,
}

impl Options {
    /// # Errors
    /// An unknown option, or one whose value is missing.
    pub(super) fn parse(args: &[String], with_value: &[&str], switches: &[&str]) -> anyhow::Result<Self> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            if with_value.contains(&arg.as_str()) {
                let value = args.next().with_context(|| format!("{arg} needs a value"))?;
                options.values.insert(arg.clone(), value.clone());
            } else if switches.contains(&arg.as_str()) {
                options.switches.insert(arg.clone());
            } else {
                bail!("there is no option {arg:?} here; see `cargo xtask help`");
            }
        }
        Ok(options)
    }

    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.switches.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> anyhow::Result<Options> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        Options::parse(&args, &["--profile"], &["--ir"])
    }

    #[test]
    fn options_have_values_or_are_switches() {
        let options = parse(&["--ir", "--profile", "dist"]).unwrap();
        assert_eq!(options.value("--profile"), Some("dist"));
        assert!(options.has("--ir") && !parse(&[]).unwrap().has("--ir"));
    }

    #[test]
    fn unknown_and_unfinished_options_are_errors() {
        assert!(parse(&["--profile"]).unwrap_err().to_string().contains("needs a value"));
        assert!(parse(&["--other"]).unwrap_err().to_string().contains("no option \"--other\""));
    }
}
