//! Cost of the reply sanitiser per byte on worst-case texts. It must not depend on the length of the text.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::time::{Duration, Instant};

use quell_kernel::channel::sanitise::{NarrationPolicy, SanitiserRules, sanitise_partial_reply, sanitise_reply};

use crate::report::{BenchReport, FigureTarget};

/// Lengths of the texts, each ten times the previous one.
const SIZES: [(usize, &str); 3] = [(10_000, "10 kB"), (100_000, "100 kB"), (1_000_000, "1 MB")];
/// Bytes that are processed for one figure, so that short texts are measured as long as long ones.
const BYTES_PER_FIGURE: usize = 2_000_000;
/// Each figure is the best of this many: a busy machine affects the best one least.
const ROUNDS: usize = 3;
/// Largest ratio of the cost of a byte in the longest text to one in the shortest. A quadratic scanner needs 100;
/// memory beyond the caches costs a little more, too.
const MAX_COST_RATIO: f64 = 2.0;

/// Texts that are repeated, and the text at the end.
const WORST_CASES: [(&str, &str); 16] = [
    ("<tool_call>{\"name\":\"shell\",\"arguments\":\"", ""),
    ("\n<tool_call>{\"name\":1,x", "</tool_call>"),
    ("<invoke name=\"a\">", "</invoke>"),
    ("<think>", ""),
    ("\n<think>.", "</think>"),
    (" <tool_result>a", " </tool_result>"),
    ("</", ""),
    ("<", ""),
    ("{", ""),
    ("\n[[[1]", ""),
    ("\n{\"name\":\"shell\",\"arguments\":", ""),
    ("\n{\"name\":\"shell\",\"arguments\":1}\n{\"result\":1}", ""),
    ("\n```json\n{", ""),
    ("`a``b", ""),
    ("\n> 1. - ```json\n", ""),
    ("\n[Used tools: a, ", "]"),
];

pub(crate) fn measure(report: &BenchReport) {
    let tools: BTreeSet<String> = ["shell", "read_file", "write_file"].map(str::to_owned).into();
    let rules = SanitiserRules { tools: &tools, narration_policy: NarrationPolicy::Keep };
    measure_function(report, "finished", |text| drop(black_box(sanitise_reply(black_box(text), &rules))));
    measure_function(report, "so_far", |text| drop(black_box(sanitise_partial_reply(black_box(text), &tools))));
}

fn measure_function(report: &BenchReport, name: &str, clean: impl Fn(&str)) {
    let mut worst = [0.0_f64; SIZES.len()];
    let mut dearest = (0.0_f64, "");
    for (piece, end) in WORST_CASES {
        let costs = SIZES.map(|(size, _)| {
            let text = format!("x\n\n{}{end}", piece.repeat(size / piece.len()));
            nanos_per_byte(&text, &clean)
        });
        for (worst, cost) in worst.iter_mut().zip(costs) {
            *worst = worst.max(cost);
        }
        let [shortest, .., longest] = costs;
        if longest / shortest > dearest.0 {
            dearest = (longest / shortest, piece);
        }
    }
    for ((_, size), worst) in SIZES.iter().zip(worst) {
        let note = format!("the worst of {} texts", WORST_CASES.len());
        report.add(format!("sanitiser, `{name}`: {size}"), (worst, "ns/B"), FigureTarget::Free, note);
    }
    let what = format!("sanitiser, `{name}`: a byte of 1 MB to one of 10 kB");
    let note = format!("at most, with {:?}", dearest.1);
    report.add(what, (dearest.0, "times"), FigureTarget::AtMost(MAX_COST_RATIO), note);
}

fn nanos_per_byte(text: &str, clean: impl Fn(&str)) -> f64 {
    let times = (BYTES_PER_FIGURE / text.len()).max(1);
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for _ in 0..times {
            clean(text);
        }
        best = best.min(begun.elapsed());
    }
    #[expect(clippy::cast_precision_loss, reason = "a count of bytes")]
    let bytes = (times * text.len()) as f64;
    best.as_secs_f64() * 1e9 / bytes
}
