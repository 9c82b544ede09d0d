//! How long build scripts ran, from the report of `cargo build --timings`.
//!
//! The report is a page for people. Its data stands in it as JSON, in no promised form.

use std::collections::BTreeMap;

use serde_json::Value;

/// Wall seconds of the build scripts by package, C compilers included. `None` if the page has another form.
pub(super) fn parse_build_scripts(page: &str) -> Option<BTreeMap<String, f64>> {
    let (_, data) = page.split_once("const UNIT_DATA = ")?;
    let (data, _) = data.split_once("];\n")?;
    let units: Vec<Value> = serde_json::from_str(&format!("{data}]")).ok()?;
    let mut seconds = BTreeMap::new();
    for unit in units {
        if unit.get("mode")?.as_str()? == "run-custom-build" {
            *seconds.entry(unit.get("name")?.as_str()?.to_owned()).or_default() += unit.get("duration")?.as_f64()?;
        }
    }
    Some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_runs_of_build_scripts_are_added_up() {
        let page = r#"DURATION = 12;
const UNIT_DATA = [
  {"i": 0, "name": "ring", "mode": "todo", "target": " build-script", "duration": 0.77, "sections": [["a", {}]]},
  {"i": 1, "name": "ring", "mode": "run-custom-build", "duration": 20.5, "unblocked_units": [1]},
  {"i": 2, "name": "ring", "mode": "run-custom-build", "duration": 0.5}
];
const CONCURRENCY_DATA = [];
"#;
        assert_eq!(parse_build_scripts(page), Some(BTreeMap::from([("ring".to_owned(), 21.0)])));
    }

    #[test]
    fn a_page_of_another_form_has_no_data() {
        assert_eq!(parse_build_scripts("<html></html>"), None);
        assert_eq!(parse_build_scripts("const UNIT_DATA = [\n{}\n];\n"), None);
    }
}
