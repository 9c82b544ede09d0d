//! Worst-case inputs: time grows with the length, and not with its square.

use std::time::Duration;

use quell_kernel::channel::sanitise::{NarrationPolicy, SanitiserRules, sanitise_partial_reply, sanitise_reply};
use rustix::time::{ClockId, clock_gettime};

const SHORT_BYTES: usize = 5_000;
const LONG_BYTES: usize = 50_000;
/// Largest time of the long text in times of the short one. Linear work gives 10, quadratic work 100.
const MAX_RATIO: f64 = 40.0;
/// In shorter times the clock decides.
const MIN_TIME: Duration = Duration::from_millis(2);

/// Pieces that are repeated, and the end that is appended once.
const WORST_CASES: &[(&str, &str)] = &[
    ("<tool_call>", ""),
    ("<tool_call>\n", ""),
    ("\n<tool_call>", "</tool_call>"),
    ("<tool_call>{", ""),
    ("<tool_call>{\"", ""),
    ("<tool_call>{\"a\":\"", "</tool_call>"),
    ("<tool_call>{\"name\":\"shell\",\"arguments\":\"", ""),
    ("\n<tool_call>{\"name\":1,x", ""),
    ("\n<tool_call>{\"name\":1,x", "</tool_call>"),
    ("<tool_call>[", "</tool_call>"),
    ("<tool_call><invoke name=\"a\">", ""),
    ("<function_calls><parameter=x></parameter>", ""),
    ("<invoke name=\"", ""),
    ("<invoke name=\"a\">", "</invoke>"),
    ("<function=shell>", ""),
    ("<tool>", ""),
    ("<tool>{", "</tool>"),
    ("<think>", ""),
    ("\n<think>.", "</think>"),
    ("\n<think> X", "</think>y"),
    ("x\n<think>\n", ""),
    ("\n<think>...", "</think>"),
    (" <tool_result>.", "</tool_result>"),
    (" <tool_result>a", " </tool_result>"),
    ("<tool_result>\n", ""),
    ("</tool_call>", ""),
    ("</", ""),
    ("<", ""),
    ("< ", ""),
    ("{", ""),
    ("[", ""),
    ("[\n", ""),
    ("{\n", ""),
    ("{\"a\":", ""),
    ("\n{\"a\":", ""),
    ("[{\"a\":", ""),
    ("\n[[[1]", ""),
    ("\n{\"name\":\"shell\",\"arguments\":", ""),
    ("\n{\"name\":\"shell\",\"arguments\":\"", ""),
    ("{\"name\":\"shell\",\"arguments\":{}} ", ""),
    ("\n{\"name\":\"shell\",\"arguments\":{},x", ""),
    ("\n{\"name\":\"shell\",\"arguments\":1}\n{\"result\":1}", ""),
    ("{}", ""),
    ("\n\"", ""),
    ("{\"\\", ""),
    ("```", ""),
    ("```\n", ""),
    ("\n```json\n{", ""),
    ("\n```json\n[\n", ""),
    ("````\n```\n", ""),
    ("\n```tool_call\n{\"name\":\"shell\",\"arguments\":", ""),
    ("\n~~~", ""),
    ("\n~~~ `", ""),
    ("`", ""),
    ("` ", ""),
    ("`a``b", ""),
    ("`<tool_call>", ""),
    ("\\`", ""),
    ("> ", ""),
    ("1. ", ""),
    ("- ", "```"),
    ("\n> 1. - ```json\n", ""),
    ("[Used tools: a]", ""),
    ("[Used tools: ", ""),
    ("\n[Used tools: a, ", "]"),
    (" ", "x"),
    ("\n", "x"),
    ("<tool_call> ", ""),
    ("Let me\n", ""),
    ("    {\n", ""),
    ("\t<tool_call>\n\n", ""),
    ("가나<think>다\n", ""),
    ("x", ""),
];

fn worst_case_texts(size: usize) -> impl Iterator<Item = String> {
    // With text in front, no piece is the whole reply.
    const FRONTS: [&str; 2] = ["", "x\n\n"];
    WORST_CASES.iter().flat_map(move |(piece, end)| {
        FRONTS.iter().map(move |front| format!("{front}{}{end}", piece.repeat(size / piece.len())))
    })
}

/// The best of three runs, in time of the processor: other work of the machine counts little.
fn best_time(text: &str, rules: &SanitiserRules<'_>) -> Duration {
    let measure = |_| {
        let started = thread_time();
        let _ = sanitise_reply(text, rules);
        let _ = sanitise_partial_reply(text, rules.tools);
        thread_time() - started
    };
    (0..3).map(measure).min().unwrap_or_default()
}

fn thread_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_else(|error| panic!("{error}"))
}

#[rstest::rstest]
#[case::with_narration(NarrationPolicy::Keep)]
#[case::without_narration(NarrationPolicy::Drop)]
fn work_is_linear_in_the_length(#[case] narration_policy: NarrationPolicy) {
    let tools = ["shell", "web_search"].map(str::to_owned).into();
    let rules = SanitiserRules { tools: &tools, narration_policy };
    for (short, long) in worst_case_texts(SHORT_BYTES).zip(worst_case_texts(LONG_BYTES)) {
        let (short_time, long_time) = (best_time(&short, &rules), best_time(&long, &rules));
        if long_time < MIN_TIME {
            continue;
        }
        let beginning: String = short.chars().take(40).collect();
        let ratio = long_time.as_secs_f64() / short_time.as_secs_f64();
        println!("{ratio:.1} for {beginning:?}: {short_time:?}, {long_time:?}");
        assert!(
            ratio < MAX_RATIO,
            "{beginning:?}: {short_time:?} for {SHORT_BYTES} bytes, {long_time:?} for {LONG_BYTES}"
        );
    }
}
