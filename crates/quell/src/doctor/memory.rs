//! Check of the automatic memory: which of its switches are on, and what the others would do.

use quell_engine::memory::MemorySettings;

use super::ConfiguredInput;
use super::finding::DoctorFinding;

pub(super) fn memory(input: &ConfiguredInput<'_>) -> Vec<DoctorFinding> {
    vec![memory_finding(&input.loaded.config.memory)]
}

fn memory_finding(settings: &MemorySettings) -> DoctorFinding {
    let switches = [
        ("auto_recall", settings.auto_recall, "shows a run the notes that its message is about"),
        ("auto_save", settings.auto_save, "keeps messages as notes"),
        (
            "consolidate",
            settings.consolidate,
            "keeps what is worth remembering, by one more model call after each answer",
        ),
    ];
    let on: Vec<&str> = switches.iter().filter(|switch| switch.1).map(|switch| switch.0).collect();
    let off: Vec<String> =
        switches.iter().filter(|switch| !switch.1).map(|switch| format!("{} {}", switch.0, switch.2)).collect();
    let state = match on.as_slice() {
        [] => "off; notes are written and found only by the tools `remember` and `recall`".to_owned(),
        names => format!("on: {}", names.join(", ")),
    };
    if off.is_empty() {
        return DoctorFinding::ok(state);
    }
    DoctorFinding::ok(format!("{state}. More is possible under [memory], with `= true`: {}", off.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_switch_that_is_off_is_offered() {
        let finding = memory_finding(&MemorySettings { auto_save: true, ..MemorySettings::default() });
        assert!(finding.says.starts_with("on: auto_save. "), "{finding:?}");
        assert!(
            finding.says.contains("auto_recall shows") && finding.says.contains("consolidate keeps"),
            "{finding:?}"
        );
        assert!(memory_finding(&MemorySettings::default()).says.starts_with("off; "));
    }

    #[test]
    fn a_memory_with_all_switches_offers_nothing() {
        let all = MemorySettings { auto_recall: true, auto_save: true, consolidate: true, ..MemorySettings::default() };
        assert_eq!(memory_finding(&all), DoctorFinding::ok("on: auto_recall, auto_save, consolidate"));
    }
}
