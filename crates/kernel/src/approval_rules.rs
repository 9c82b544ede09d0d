//! Remembered allowances: which one an answer gives, and which later calls it covers.

use quell_protocol::Requester;
use quell_protocol::approval::{
    AllowanceScope, ApprovalAnswer, ApprovalRow, ApprovalRule, Decision, MAX_PATTERN_CHARS, subject_field,
};
use serde_json::{Map, Value};

/// Characters by which a shell starts, joins, substitutes or redirects commands. A `*` of a pattern matches none of
/// them, so that `git push *` does not cover `git push; rm -rf /`.
const SHELL_OPERATORS: &[char] = &[';', '&', '|', '<', '>', '$', '`', '(', ')', '{', '}', '\n', '\r', '\0'];

/// The calls that an answer covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowance {
    Once,
    Session,
    Pattern(String),
}

/// What is wrong with the scope of an answer. Nothing is allowed then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllowanceProblem {
    #[error("a denial is for one call; leave `scope` and `pattern` out")]
    DenialWithScope,
    #[error("`scope` is \"pattern\", and `pattern` is missing")]
    PatternMissing,
    #[error("`pattern` needs `scope` \"pattern\"")]
    PatternUnused,
    #[error("the pattern is too long; it may have {MAX_PATTERN_CHARS} characters")]
    PatternTooLong,
    #[error(
        "the pattern begins with `*`, so it would cover every program; begin it with the name of one, such as `git push *`"
    )]
    PatternTooBroad,
    #[error(
        "the pattern does not match the call that waits, so it would not cover it; a `*` matches neither `..` nor ; & | < > $ ` ( ) {{ }} and line ends"
    )]
    PatternMatchesNot,
    #[error("a call of {0} has no command and no path that a pattern could match; allow it once or for the session")]
    NoPatternForTool(String),
    #[error(
        "a pattern for {0} outside of the sandbox would not confine it, because a path may lead through symbolic links; \
         allow it once"
    )]
    NoPatternForEscalatedFiles(String),
    #[error(
        "a call outside of the sandbox is not allowed for a whole session: the rule would cover calls that nobody has read. \
         Allow it once{}", if *.0 == "shell" { ", or by a pattern" } else { "" }
    )]
    EscalatedOnce(String),
    #[error("the call needs {0} people, so it is allowed once; leave `scope` out")]
    QuorumOnce(u32),
}

impl Allowance {
    /// Reads the scope of an answer to `row`.
    ///
    /// # Errors
    /// The scope contradicts the decision, the pattern or the call.
    pub fn of_answer(answer: &ApprovalAnswer, row: &ApprovalRow) -> Result<Self, AllowanceProblem> {
        let scope = answer.scope.unwrap_or(AllowanceScope::Once);
        let allowance = match (scope, &answer.pattern) {
            (AllowanceScope::Once, None) => return Ok(Self::Once),
            _ if answer.decision == Decision::Deny => return Err(AllowanceProblem::DenialWithScope),
            (AllowanceScope::Once | AllowanceScope::Session, Some(_)) => return Err(AllowanceProblem::PatternUnused),
            (AllowanceScope::Session, None) if row.escalation.is_some() => {
                return Err(AllowanceProblem::EscalatedOnce(row.tool.clone()));
            }
            (AllowanceScope::Session, None) => Self::Session,
            (AllowanceScope::Pattern, None) => return Err(AllowanceProblem::PatternMissing),
            (AllowanceScope::Pattern, Some(pattern)) => {
                check_pattern(pattern, row)?;
                Self::Pattern(pattern.clone())
            }
        };
        if row.quorum > 1 { Err(AllowanceProblem::QuorumOnce(row.quorum)) } else { Ok(allowance) }
    }

    /// The rule that this allowance of `row` leaves; `None` for a single call.
    #[must_use]
    pub fn into_rule(
        self,
        row: &ApprovalRow,
        id: String,
        allowed_by: Requester,
        allowed_at: String,
    ) -> Option<ApprovalRule> {
        let (session_key, pattern, arguments) = match self {
            Self::Once => return None,
            Self::Session => (Some(row.session_key.clone()), None, Map::new()),
            Self::Pattern(pattern) => (None, Some(pattern), way_of_running(row)),
        };
        Some(ApprovalRule {
            id,
            agent: row.agent.clone(),
            principal: row.principal.clone(),
            tool: row.tool.clone(),
            escalated: row.escalation.is_some(),
            session_key,
            pattern,
            arguments,
            own_model: row.own_model,
            allowed_by,
            allowed_at,
        })
    }
}

/// A waiting call, as far as an allowance for later calls depends on it.
#[derive(Debug, Clone, Copy)]
pub struct WaitingCallKind<'a> {
    pub tool: &'a str,
    pub arguments: &'a Value,
    pub is_escalated: bool,
    pub is_question: bool,
    pub quorum: u32,
}

impl<'a> From<&'a ApprovalRow> for WaitingCallKind<'a> {
    fn from(row: &'a ApprovalRow) -> Self {
        Self {
            tool: &row.tool,
            arguments: &row.arguments,
            is_escalated: row.escalation.is_some(),
            is_question: row.question.is_some(),
            quorum: row.quorum,
        }
    }
}

/// The narrowest allowance for later calls, for clients that can say "always" and no more: exactly this command or path,
/// or all calls of a tool that has none, in the same session. `None` if the call has no such allowance.
#[must_use]
pub fn standing_allowance(call: WaitingCallKind<'_>) -> Option<ApprovalAnswer> {
    if call.quorum > 1 || call.is_question {
        return None;
    }
    let Some(field) = subject_field(call.tool) else {
        return (!call.is_escalated).then(ApprovalAnswer::for_session);
    };
    // All commands of a session would be more than the person has read.
    let subject = call.arguments.get(field)?.as_str()?;
    let is_exact = !subject.contains('*') && !subject.trim().is_empty() && !is_too_long(subject);
    let is_confined = !call.is_escalated || call.tool == "shell";
    (is_exact && is_confined).then(|| ApprovalAnswer::for_pattern(subject.to_owned()))
}

/// True if a remembered allowance answers for this call. A call that needs several people is covered by none, and a call
/// outside of the sandbox only by the pattern of a command.
#[must_use]
pub fn rule_covers(rule: &ApprovalRule, row: &ApprovalRow) -> bool {
    let is_of_same_kind = rule.escalated == row.escalation.is_some() && rule.own_model == row.own_model;
    let is_of_same_caller = rule.agent == row.agent && rule.principal == row.principal && rule.tool == row.tool;
    let is_covered = match (&rule.session_key, &rule.pattern) {
        (Some(session), None) => *session == row.session_key && !rule.escalated,
        (None, Some(pattern)) => {
            row.pattern_subject().is_some_and(|subject| pattern_matches(pattern, subject))
                && rule.arguments == way_of_running(row)
        }
        (Some(_), Some(_)) | (None, None) => false,
    };
    row.quorum <= 1 && is_of_same_kind && is_of_same_caller && is_covered
}

/// Where and how a command runs, without what it would be if the call did not say it. The text of a command means
/// something else in another directory, and one in the background outlives its call.
fn way_of_running(row: &ApprovalRow) -> Map<String, Value> {
    let is_usual = |name: &str, value: &Value| match name {
        "cwd" => value.is_null() || value.as_str().is_some_and(|cwd| matches!(cwd, "." | "./")),
        _ => value.is_null() || *value == Value::Bool(false),
    };
    let arguments = row.arguments.as_object().filter(|_| row.tool == "shell").into_iter().flatten();
    let of_running =
        arguments.filter(|(name, value)| matches!(name.as_str(), "cwd" | "background") && !is_usual(name, value));
    of_running.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn is_too_long(pattern: &str) -> bool {
    pattern.chars().count() > MAX_PATTERN_CHARS
}

fn check_pattern(pattern: &str, row: &ApprovalRow) -> Result<(), AllowanceProblem> {
    let Some(subject) = row.pattern_subject() else {
        return Err(AllowanceProblem::NoPatternForTool(row.tool.clone()));
    };
    // Inside of it, the sandbox confines the path.
    if row.escalation.is_some() && row.tool != "shell" {
        return Err(AllowanceProblem::NoPatternForEscalatedFiles(row.tool.clone()));
    }
    if is_too_long(pattern) {
        return Err(AllowanceProblem::PatternTooLong);
    }
    if pattern.trim_start().starts_with('*') || pattern.trim().is_empty() {
        return Err(AllowanceProblem::PatternTooBroad);
    }
    if pattern_matches(pattern, subject) { Ok(()) } else { Err(AllowanceProblem::PatternMatchesNot) }
}

/// Matches a whole text. Without a `*` the texts must be equal.
fn pattern_matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    // Counted in the whole text, because a dot of the pattern and one of the gap make two.
    if text.matches("..").count() > pattern.matches("..").count() {
        return false;
    }
    for part in middle {
        // The earliest place leaves the most for the parts that follow.
        let Some(at) = rest.find(part) else { return false };
        if !is_plain(&rest[..at]) {
            return false;
        }
        rest = &rest[at + part.len()..];
    }
    rest.strip_suffix(last).is_some_and(is_plain)
}

/// True if a `*` may stand for this text, by its characters.
fn is_plain(text: &str) -> bool {
    !text.contains(SHELL_OPERATORS)
}

#[cfg(test)]
mod tests {
    use quell_protocol::approval::{ApprovalState, Escalation};
    use quell_protocol::sandbox::SandboxMode;
    use quell_protocol::{AgentId, CallId, Principal, RunId, SessionKey, Surface};
    use serde_json::json;

    use super::*;

    fn row(command: &str) -> ApprovalRow {
        ApprovalRow {
            id: "a".to_owned(),
            run_id: RunId::parse("r").expect("a run"),
            session_key: SessionKey::parse("s").expect("a session"),
            agent: AgentId::parse("main").expect("an agent"),
            principal: Principal::parse("ann").expect("a principal"),
            call_id: CallId::parse("c").expect("a call"),
            tool: "shell".to_owned(),
            arguments: json!({"command": command}),
            escalation: None,
            question: None,
            answer_fields: None,
            requested_at: String::new(),
            expires_at: String::new(),
            own_model: false,
            quorum: 1,
            allowed_by: Vec::new(),
            state: ApprovalState::Pending,
        }
    }

    fn escalated(row: ApprovalRow) -> ApprovalRow {
        let (rule, opens) = (String::new(), String::new());
        let escalation = Escalation { reason: "why".to_owned(), mode: SandboxMode::Workspace, rule, opens };
        ApprovalRow { escalation: Some(escalation), ..row }
    }

    fn answer(scope: AllowanceScope, pattern: Option<&str>) -> ApprovalAnswer {
        let pattern = pattern.map(str::to_owned);
        ApprovalAnswer { scope: Some(scope), pattern, ..Decision::Allow.into() }
    }

    fn rule(row: &ApprovalRow, answer: &ApprovalAnswer) -> ApprovalRule {
        let by = Requester { principal: Principal::parse("bob").expect("a principal"), surface: Surface::Cli };
        let allowance = Allowance::of_answer(answer, row).expect("an allowance");
        allowance.into_rule(row, "r1".to_owned(), by, String::new()).expect("a rule")
    }

    #[test]
    fn a_rule_inside_of_the_sandbox_never_covers_a_call_outside() {
        let scope = answer(AllowanceScope::Pattern, Some("ls *"));
        let (inside, outside) = (row("ls a"), escalated(row("ls a")));
        let (of_inside, of_outside) = (rule(&inside, &scope), rule(&outside, &scope));
        assert!(rule_covers(&of_inside, &inside) && rule_covers(&of_outside, &outside));
        assert!(!rule_covers(&of_inside, &outside) && !rule_covers(&of_outside, &inside));
    }

    /// Regression: one "always" for a patch outside of the sandbox allowed all later ones, to any path.
    #[test]
    fn no_tool_gets_a_rule_for_a_session_outside_of_the_sandbox() {
        let session = answer(AllowanceScope::Session, None);
        for tool in ["shell", "apply_patch", "write_file", "edit_file", "fetch_url", "mcp__x__y", "a_tool_to_come"] {
            let outside = escalated(ApprovalRow { tool: tool.to_owned(), ..row("ls") });
            let problem = Allowance::of_answer(&session, &outside).unwrap_err();
            assert_eq!(problem, AllowanceProblem::EscalatedOnce(tool.to_owned()));
            assert_eq!(standing_allowance((&outside).into()).is_some(), tool == "shell", "{tool}");
            // A rule that was made in another way does not cover it, either.
            let inside = ApprovalRow { tool: tool.to_owned(), ..row("ls") };
            let forged = ApprovalRule { escalated: true, ..rule(&inside, &session) };
            assert!(!rule_covers(&forged, &outside), "{tool}");
        }
        let text = |tool: &str| AllowanceProblem::EscalatedOnce(tool.to_owned()).to_string();
        assert!(text("shell").ends_with("Allow it once, or by a pattern") && text("other").ends_with("Allow it once"));
    }

    #[test]
    fn a_pattern_covers_a_command_in_its_directory_and_its_way_of_running() {
        let with = |more: Value| {
            let Value::Object(mut arguments) = more else { unreachable!("an object") };
            arguments.insert("command".to_owned(), json!("git log -1"));
            ApprovalRow { arguments: Value::Object(arguments), ..row("") }
        };
        let ways =
            [json!({}), json!({"cwd": "docs"}), json!({"background": true}), json!({"cwd": "a", "background": true})];
        let pattern = answer(AllowanceScope::Pattern, Some("git log *"));
        for (at, allowed) in ways.iter().enumerate() {
            let given = rule(&with(allowed.clone()), &pattern);
            for (other_at, other) in ways.iter().enumerate() {
                assert_eq!(rule_covers(&given, &with(other.clone())), at == other_at, "{allowed} {other}");
            }
        }
        let usual = rule(&with(json!({})), &pattern);
        for same in [json!({"cwd": "."}), json!({"cwd": null, "background": false}), json!({"timeout_s": 5})] {
            assert!(rule_covers(&usual, &with(same.clone())), "{same}");
        }
    }

    #[test]
    fn a_session_rule_covers_its_tool_in_its_session_for_its_principal() {
        let given = rule(&row("ls"), &answer(AllowanceScope::Session, None));
        assert!(rule_covers(&given, &row("rm x")));
        let elsewhere = [
            ApprovalRow { session_key: SessionKey::parse("t").expect("a session"), ..row("ls") },
            ApprovalRow { agent: AgentId::parse("other").expect("an agent"), ..row("ls") },
            ApprovalRow { principal: Principal::parse("bob").expect("a principal"), ..row("ls") },
            ApprovalRow { tool: "process".to_owned(), ..row("ls") },
            ApprovalRow { own_model: true, ..row("ls") },
            ApprovalRow { quorum: 2, ..row("ls") },
        ];
        for other in elsewhere {
            assert!(!rule_covers(&given, &other), "{other:?}");
        }
    }

    #[test]
    fn a_star_starts_no_other_command_and_leaves_no_directory() {
        let given = rule(&row("git push origin main"), &answer(AllowanceScope::Pattern, Some("git push *")));
        for covered in ["git push origin dev", "git push 'a b'", "git push "] {
            assert!(rule_covers(&given, &row(covered)), "{covered}");
        }
        for other in [
            "git pull",
            "git push; rm -rf /",
            "git push x; rm -rf /",
            "git push $(rm -rf /)",
            "git push `rm x`",
            "git push x\nrm y",
            "git push x > /etc/passwd",
            "git push x && rm y",
            "git push x | sh",
            "git push ../other",
            "sudo git push x",
        ] {
            assert!(!rule_covers(&given, &row(other)), "{other}");
        }
        let two = rule(&row("cp /a/b /c/d"), &answer(AllowanceScope::Pattern, Some("cp /a/* /c/*")));
        assert!(rule_covers(&two, &row("cp /a/x /c/y")) && !rule_covers(&two, &row("cp /a/x /d/y")));
        let dot = rule(&row("cat /a/.x"), &answer(AllowanceScope::Pattern, Some("cat /a/.*")));
        assert!(!rule_covers(&dot, &row("cat /a/../b")), "a dot of the pattern and one of the gap");
        let exact = rule(&row("a; b"), &answer(AllowanceScope::Pattern, Some("a; b")));
        assert!(rule_covers(&exact, &row("a; b")) && !rule_covers(&exact, &row("a; b ")));
    }

    #[test]
    fn a_pattern_of_a_path_allows_nothing_outside_of_the_sandbox() {
        let read = ApprovalRow { tool: "read_file".to_owned(), arguments: json!({"path": "/srv/a"}), ..row("") };
        let pattern = answer(AllowanceScope::Pattern, Some("/srv/*"));
        assert!(rule_covers(&rule(&read, &pattern), &read));
        let outside = escalated(read);
        let refused = AllowanceProblem::NoPatternForEscalatedFiles("read_file".to_owned());
        assert_eq!(Allowance::of_answer(&pattern, &outside), Err(refused));
        assert!(Allowance::of_answer(&answer(AllowanceScope::Pattern, Some("ls *")), &escalated(row("ls a"))).is_ok());
    }

    #[test]
    fn always_covers_exactly_the_command_and_no_other() {
        let standing = |row: &ApprovalRow| standing_allowance(row.into());
        for waiting in [row("git push; echo done"), escalated(row("make"))] {
            let given = rule(&waiting, &standing(&waiting).expect("an allowance"));
            assert!(rule_covers(&given, &waiting), "{waiting:?}");
            assert!(!rule_covers(&given, &row("git push")) && given.session_key.is_none());
        }
        let fetch = ApprovalRow { tool: "fetch_url".to_owned(), ..row("x") };
        assert_eq!(standing(&fetch), Some(ApprovalAnswer::for_session()));
        let read = ApprovalRow { tool: "read_file".to_owned(), arguments: json!({"path": "/srv/a"}), ..row("") };
        assert_eq!(standing(&read), Some(ApprovalAnswer::for_pattern("/srv/a".to_owned())));
        let unbounded = [
            row("rm *.tmp"),
            row(" "),
            row(&"x".repeat(1001)),
            escalated(read),
            ApprovalRow { arguments: json!({}), ..row("") },
            ApprovalRow { quorum: 2, ..row("ls") },
        ];
        for other in unbounded {
            assert_eq!(standing(&other), None, "{other:?}");
        }
    }

    #[test]
    fn a_scope_that_contradicts_the_answer_is_explained() {
        let pattern = |text: &str| answer(AllowanceScope::Pattern, Some(text));
        let problem = |answer: &ApprovalAnswer, row: &ApprovalRow| Allowance::of_answer(answer, row).unwrap_err();
        let deny = ApprovalAnswer { decision: Decision::Deny, ..answer(AllowanceScope::Session, None) };
        assert_eq!(problem(&deny, &row("ls")), AllowanceProblem::DenialWithScope);
        assert_eq!(problem(&answer(AllowanceScope::Pattern, None), &row("ls")), AllowanceProblem::PatternMissing);
        assert_eq!(problem(&answer(AllowanceScope::Once, Some("ls")), &row("ls")), AllowanceProblem::PatternUnused);
        assert_eq!(problem(&pattern("* x"), &row("ls x")), AllowanceProblem::PatternTooBroad);
        assert_eq!(problem(&pattern("rm *"), &row("ls x")), AllowanceProblem::PatternMatchesNot);
        assert_eq!(problem(&pattern("ls *"), &row("ls; rm x")), AllowanceProblem::PatternMatchesNot);
        assert_eq!(problem(&pattern(&"x".repeat(1001)), &row("ls")), AllowanceProblem::PatternTooLong);
        let fetch = ApprovalRow { tool: "fetch_url".to_owned(), ..row("ls") };
        assert!(matches!(problem(&pattern("ls"), &fetch), AllowanceProblem::NoPatternForTool(_)));
        let two = ApprovalRow { quorum: 2, ..row("ls") };
        assert_eq!(problem(&answer(AllowanceScope::Session, None), &two), AllowanceProblem::QuorumOnce(2));
        assert_eq!(Allowance::of_answer(&Decision::Allow.into(), &two), Ok(Allowance::Once));
        assert_eq!(Allowance::of_answer(&ApprovalAnswer::denial(None), &row("ls")), Ok(Allowance::Once));
    }
}
