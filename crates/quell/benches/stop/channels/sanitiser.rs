//! The sanitiser of answers on texts that would make a careless scanner work long: the same time for each byte, however long the
//! text is.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::time::{Duration, Instant};

use quell_kernel::channel::sanitise::{Narration, Rules, finished, so_far};

use crate::report::{Report, Target};

/// Lengths of the texts, each ten times the one before.
const SIZES: [(usize, &str); 3] = [(10_000, "10 kB"), (100_000, "100 kB"), (1_000_000, "1 MB")];
/// Bytes that are read for one figure of one text, so that short texts are timed as long as long ones.
const READ: usize = 2_000_000;
/// Each figure is the best of so many, which a busy machine disturbs least.
const ROUNDS: usize = 3;
/// How much dearer a byte of the longest text may be than one of the shortest. A scanner that is not linear needs 100 times as
/// much; memory beyond the caches needs a little more, too.
const DEARER: f64 = 2.0;

/// Pieces that are repeated, and what is put behind them.
const WORST: [(&str, &str); 16] = [
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

pub(crate) fn measure(report: &mut Report) {
    let tools: BTreeSet<String> = ["shell", "read_file", "write_file"].map(str::to_owned).into();
    let rules = Rules { tools: &tools, narration: Narration::Keep };
    table(report, "finished", |text| drop(black_box(finished(black_box(text), &rules))));
    table(report, "so_far", |text| drop(black_box(so_far(black_box(text), &rules))));
}

fn table(report: &mut Report, name: &str, clean: impl Fn(&str)) {
    let mut worst = [0.0_f64; SIZES.len()];
    let mut dearest = (0.0_f64, "");
    for (piece, end) in WORST {
        let costs = SIZES.map(|(size, _)| {
            let text = format!("x\n\n{}{end}", piece.repeat(size / piece.len()));
            per_byte(&text, &clean)
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
        let note = format!("the worst of {} texts", WORST.len());
        report.measure(&format!("sanitiser, `{name}`: {size}"), (worst, "ns/B"), note);
    }
    let what = format!("sanitiser, `{name}`: a byte of 1 MB to one of 10 kB");
    report.target(&what, dearest.0, Target(DEARER, "times"), format!("at most, with {:?}", dearest.1));
}

/// Nanoseconds for each byte.
fn per_byte(text: &str, clean: impl Fn(&str)) -> f64 {
    let times = (READ / text.len()).max(1);
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
