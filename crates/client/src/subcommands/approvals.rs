//! `quell approvals`: list pending approvals, allow or deny one.

use quell_protocol::approval::{AllowanceScope, ApprovalAnswer, ApprovalRow, ApprovalRule, ApprovalState, Decision};

use serde_json::Value;

use super::{Exit, SubcommandContext, SubcommandResult};
use crate::daemon_client::DaemonClient;
use crate::term::{CommandIo, OutputStyle};
use crate::text_format::{escalation_lines, one_line, relative_age, time_left, tool_call_lines};

#[derive(Debug, clap::Args)]
#[command(after_help = "An agent asks where its configuration says so: approvals.shell = \"ask\".\n\n\
    Or a call asks to run outside of the sandbox; that always waits for a person.\n\n\
    Examples:\n  quell approvals\n  quell approvals allow 0198a3c2-...\n  quell approvals allow --session 0198a3c2-...\n  quell approvals deny 0198a3c2-... use the staging server")]
pub struct ApprovalsArgs {
    #[command(subcommand)]
    what: Option<ApprovalsSubcommand>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum ApprovalsSubcommand {
    /// List the waiting calls (the default)
    List,
    /// Allow a call to run
    Allow {
        /// The approval's id
        #[arg(value_name = "ID")]
        id: String,
        /// Also allow later calls of this tool in the same session
        #[arg(long, conflicts_with = "pattern")]
        session: bool,
        /// Also allow later calls whose command or path matches, such as 'git push *'
        #[arg(long, value_name = "PATTERN")]
        pattern: Option<String>,
        /// The value of a field, if an MCP server asks; repeat it for each field
        #[arg(long = "field", value_name = "NAME=VALUE", value_parser = parse_field)]
        fields: Vec<(String, Value)>,
    },
    /// List the allowances that are remembered
    Rules,
    /// Delete a remembered allowance; its calls ask again
    Forget {
        /// The id of the allowance
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Deny a call; the model is told
    Deny {
        /// The approval's id
        #[arg(value_name = "ID")]
        id: String,
        /// Why, in words for the model
        #[arg(value_name = "REASON", trailing_var_arg = true)]
        reason: Vec<String>,
    },
}

pub(super) async fn run(client: &DaemonClient, args: ApprovalsArgs, io: &mut CommandIo) -> SubcommandResult {
    let cx = &mut SubcommandContext::new(client, io, args.json);
    match args.what {
        Some(ApprovalsSubcommand::Allow { id, session, pattern, fields }) => {
            let scope = match (session, &pattern) {
                (true, _) => Some(AllowanceScope::Session),
                (false, Some(_)) => Some(AllowanceScope::Pattern),
                (false, None) => None,
            };
            let fields = (!fields.is_empty()).then(|| fields.into_iter().collect());
            decide_approval(cx, &id, ApprovalAnswer { scope, pattern, fields, ..Decision::Allow.into() }).await
        }
        Some(ApprovalsSubcommand::Rules) => print_rules(cx).await,
        Some(ApprovalsSubcommand::Forget { id }) => {
            cx.client.forget_approval_rule(&id).await?;
            cx.print_styled(OutputStyle::Done, "forgotten; its calls ask again")?;
            Ok(Exit::Done)
        }
        Some(ApprovalsSubcommand::Deny { id, reason }) => {
            let reason = Some(reason.join(" ")).filter(|reason| !reason.is_empty());
            decide_approval(cx, &id, ApprovalAnswer::denial(reason)).await
        }
        Some(ApprovalsSubcommand::List) | None => print_approvals(cx).await,
    }
}

fn parse_field(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok((name.to_owned(), Value::String(value.to_owned())))
}

async fn decide_approval(cx: &mut SubcommandContext<'_>, id: &str, answer: ApprovalAnswer) -> SubcommandResult {
    let row = cx.client.answer_approval(id, &answer).await?;
    if cx.print_json(&row)? {
        return Ok(Exit::Done);
    }
    let word = match (answer.decision, row.question.is_some()) {
        (Decision::Allow, false) => "allowed",
        (Decision::Deny, false) => "denied",
        (Decision::Allow, true) => "answered",
        (Decision::Deny, true) => "declined",
    };
    let mut text = format!("{word}: {} of run {}", call_summary(&row), row.run_id);
    if row.state == ApprovalState::Pending {
        text.push_str(&format!(" · the call still waits: {}", quorum_text(&row)));
    }
    cx.print_styled(OutputStyle::Done, &text)?;
    Ok(Exit::Done)
}

async fn print_approvals(cx: &mut SubcommandContext<'_>) -> SubcommandResult {
    let rows = cx.client.list_approvals().await?;
    if cx.print_json(&rows)? {
        return Ok(Exit::Done);
    }
    if rows.is_empty() {
        cx.io.output.eprint_line("nothing waits for an approval")?;
        return Ok(Exit::Done);
    }
    for (nth, row) in rows.iter().enumerate() {
        if nth > 0 {
            cx.io.output.print_line("")?;
        }
        print_approval(cx, row)?;
    }
    Ok(Exit::Done)
}

/// Prints a block instead of a table row, so that the whole call can be read before deciding.
fn print_approval(cx: &mut SubcommandContext<'_>, row: &ApprovalRow) -> SubcommandResult<()> {
    let now = jiff::Timestamp::now();
    let head = cx.io.output.stdout().apply_style(OutputStyle::Waiting, &format!("◔ {}", one_line(&row.tool, 60)));
    let asked = relative_age(&row.requested_at, now);
    let left = time_left(&row.expires_at, now).unwrap_or_default();
    cx.io
        .output
        .print_line(&format!("{head}  agent {} · session {} · for {}", row.agent, row.session_key, row.principal))?;
    cx.io
        .output
        .print_line(&format!("  asked {asked} · denied in {left} unless somebody answers · run {}", row.run_id))?;
    if let Some(question) = &row.question {
        let server = one_line(&question.server, 60);
        let mark = format!("the MCP server {server} asks; allow answers it, deny declines it");
        cx.io.output.print_line(&format!("  {}", cx.io.output.stdout().apply_style(OutputStyle::Waiting, &mark)))?;
    }
    if row.escalation.is_some() {
        let mark = cx.io.output.stdout().apply_style(OutputStyle::Waiting, "asks to run OUTSIDE OF THE SANDBOX");
        cx.io.output.print_line(&format!("  {mark}"))?;
    }
    let escalation = row.escalation.iter().flat_map(escalation_lines);
    for line in tool_call_lines(&row.arguments).into_iter().chain(escalation) {
        cx.io.output.print_line(&format!("  {line}"))?;
    }
    if row.quorum > 1 {
        cx.io.output.print_line(&format!("  {}", quorum_text(row)))?;
    }
    let fields = row.question.iter().flat_map(|question| &question.fields);
    let options: String = fields
        .map(|field| format!(" --field {}={}", one_line(&field.name, 60), field.kind.as_str().to_uppercase()))
        .collect();
    cx.io.output.print_line(&format!("  quell approvals allow {}{options}", row.id))?;
    Ok(())
}

async fn print_rules(cx: &mut SubcommandContext<'_>) -> SubcommandResult {
    let rules = cx.client.list_approval_rules().await?;
    if cx.print_json(&rules)? {
        return Ok(Exit::Done);
    }
    if rules.is_empty() {
        cx.io.output.eprint_line("no allowance is remembered")?;
    }
    for rule in &rules {
        cx.io.output.print_line(&rule_text(rule))?;
    }
    Ok(Exit::Done)
}

fn rule_text(rule: &ApprovalRule) -> String {
    let place = if rule.escalated { " outside of the sandbox" } else { "" };
    let calls = match (&rule.session_key, &rule.pattern) {
        (Some(session), _) => format!("in session {session}"),
        (None, pattern) => {
            let place = rule.arguments.get("cwd").and_then(|cwd| cwd.as_str());
            let place = place.map_or_else(String::new, |cwd| format!(" in {}", one_line(cwd, 60)));
            let way = if rule.arguments.contains_key("background") { " in the background" } else { "" };
            format!("{}{place}{way}", one_line(pattern.as_deref().unwrap_or_default(), 200))
        }
    };
    let ApprovalRule { id, tool, agent, principal, allowed_by, .. } = rule;
    let tool = one_line(tool, 60);
    format!("{id}  {tool}{place}: {calls} · agent {agent} · for {principal} · allowed by {}", allowed_by.principal)
}

/// How many have allowed the call, and who.
fn quorum_text(row: &ApprovalRow) -> String {
    let names: Vec<&str> = row.allowed_by.iter().map(|by| by.principal.as_str()).collect();
    let names = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
    format!("{} of {} have allowed it{names}", row.allowed_by.len(), row.quorum)
}

fn call_summary(row: &ApprovalRow) -> String {
    one_line(&format!("{} {}", row.tool, row.arguments), 200)
}
