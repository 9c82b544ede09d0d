//! `quell token`: create, list, rotate and revoke tokens.

use std::io;

use quell_protocol::api::{
    NewToken, StandardApi, TokenRequest, TokenRestrictions, TokenRotationRequest, TokenRow, TokenScope, TokenScopes,
    TokenUsageSum,
};
use serde_json::json;

use super::table::CliTableCell;
use super::{Exit, SubcommandContext, SubcommandResult};
use crate::daemon_client::DaemonClient;
use crate::term::CommandIo;
use crate::text_format::{format_count, relative_age, time_left};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  quell token create ci --scope write\n  quell token create desk --scope write,approve\n  quell token create phone --scope read --expires 30d --json\n  \
    quell token create app --api openai --models 'openai/*' --daily-cost 5 --expires 30d\n  \
    quell token list\n  quell token rotate ci\n  quell token rotate ci --overlap 10m --expires 90d\n  \
    quell token revoke ci"
)]
pub struct TokenArgs {
    #[command(subcommand)]
    what: TokenSubcommand,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum TokenSubcommand {
    /// Create a token; it is shown once and stored hashed
    Create {
        /// The token's name; its actions are recorded under this name
        name: String,
        /// What the token may do; separate several by commas
        #[arg(long, value_enum, value_delimiter = ',', default_values_t = [TokenScopeArg::Write])]
        scope: Vec<TokenScopeArg>,
        /// Refuse the token after this time, such as 30d, 12h or 90m; without it, it never expires
        #[arg(long, value_name = "DURATION", value_parser = parse_seconds)]
        expires: Option<u32>,
        #[command(flatten)]
        restrictions: RestrictionArgs,
    },
    /// List the tokens without their secrets, with their restrictions and what their runs have used
    List,
    /// Give a token a new secret; name, scopes and what it owns stay, and the old secret ends
    Rotate {
        /// The token's name
        name: String,
        /// Accept the old secret for this time, such as 10m; without it, it ends at once
        #[arg(long, value_name = "DURATION", value_parser = parse_seconds)]
        overlap: Option<u32>,
        /// Refuse the new secret after this time; without it, it expires when the old one would have
        #[arg(long, value_name = "DURATION", value_parser = parse_seconds)]
        expires: Option<u32>,
    },
    /// Revoke a token
    Revoke {
        /// The token's name
        name: String,
    },
}

/// What a token that is an API key may use.
#[derive(Debug, Default, clap::Args)]
struct RestrictionArgs {
    /// The only APIs that the token may use, besides stopping its own runs
    #[arg(long, value_enum, value_delimiter = ',', value_name = "API")]
    api: Vec<StandardApiArg>,
    /// The only agents that it may run, by id; * for all. Without --models, it may name no model then
    #[arg(long, value_delimiter = ',', value_name = "AGENT")]
    agents: Vec<String>,
    /// The only models that it may name: provider/model, provider/* or *. Without --agents, it may run no agent then
    #[arg(long, value_delimiter = ',', value_name = "MODEL")]
    models: Vec<String>,
    /// The most that its runs may cost in a day, in the currency of the prices
    #[arg(long, value_name = "COST")]
    daily_cost: Option<f64>,
}

impl From<RestrictionArgs> for TokenRestrictions {
    fn from(args: RestrictionArgs) -> Self {
        let RestrictionArgs { api, agents, models, daily_cost } = args;
        let apis: Vec<StandardApi> = api.into_iter().map(StandardApi::from).collect();
        Self {
            apis: (!apis.is_empty()).then_some(apis),
            agents: (!agents.is_empty()).then_some(agents),
            models: (!models.is_empty()).then_some(models),
            daily_cost,
        }
    }
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum StandardApiArg {
    /// OpenAI: chat completions, responses, models
    #[value(name = "openai")]
    OpenAi,
    /// Anthropic: messages
    Anthropic,
    /// Agent Client Protocol, by `quell acp`; includes the API of Quell itself
    Acp,
    /// Model Context Protocol
    Mcp,
    /// Agent2Agent
    A2a,
}

impl From<StandardApiArg> for StandardApi {
    fn from(api: StandardApiArg) -> Self {
        match api {
            StandardApiArg::OpenAi => Self::OpenAi,
            StandardApiArg::Anthropic => Self::Anthropic,
            StandardApiArg::Acp => Self::Acp,
            StandardApiArg::Mcp => Self::Mcp,
            StandardApiArg::A2a => Self::A2a,
        }
    }
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum TokenScopeArg {
    /// Read
    Read,
    /// Send messages, stop own runs
    Write,
    /// Decide approvals
    Approve,
    /// Create sessions with their own model or MCP address
    Endpoints,
    /// Read the sessions and runs of everybody
    #[value(name = "read:all")]
    ReadAll,
    /// Read, use, share, reset and delete the sessions of everybody
    #[value(name = "write:all")]
    WriteAll,
    /// Stop every run, and everything at once
    #[value(name = "stop:all")]
    StopAll,
    /// Everything
    Admin,
}

impl From<TokenScopeArg> for TokenScope {
    fn from(scope: TokenScopeArg) -> Self {
        match scope {
            TokenScopeArg::Read => Self::Read,
            TokenScopeArg::Write => Self::Write,
            TokenScopeArg::Approve => Self::Approve,
            TokenScopeArg::Endpoints => Self::Endpoints,
            TokenScopeArg::ReadAll => Self::ReadAll,
            TokenScopeArg::WriteAll => Self::WriteAll,
            TokenScopeArg::StopAll => Self::StopAll,
            TokenScopeArg::Admin => Self::Admin,
        }
    }
}

/// An older daemon sends only `scope`.
fn scopes_text(scope: impl Into<TokenScope>, scopes: &[TokenScope]) -> String {
    if scopes.is_empty() {
        return scope.into().as_str().to_owned();
    }
    scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(" ")
}

pub(super) async fn run(client: &DaemonClient, args: TokenArgs, io: &mut CommandIo) -> SubcommandResult {
    let cx = &mut SubcommandContext::new(client, io, args.json);
    match args.what {
        TokenSubcommand::Create { name, scope, expires, restrictions } => {
            let scopes: Vec<TokenScope> = scope.into_iter().map(TokenScope::from).collect();
            let scopes = if let [one] = scopes[..] { TokenScopes::One(one) } else { TokenScopes::Several(scopes) };
            let restrictions = restrictions.into();
            let request = TokenRequest { name, scope: scopes, expires_in_s: expires, restrictions };
            let made = client.create_token(&request).await?;
            print_secret(cx, &made)?;
        }
        TokenSubcommand::Rotate { name, overlap, expires } => {
            let request = TokenRotationRequest { overlap_s: overlap, expires_in_s: expires };
            print_secret(cx, &client.rotate_token(&name, &request).await?)?;
        }
        TokenSubcommand::List => return print_tokens(cx).await,
        TokenSubcommand::Revoke { name } => {
            client.revoke_token(&name).await?;
            cx.print_value(&json!({"name": name, "revoked": true}), &format!("token {name} is revoked"))?;
        }
    }
    Ok(Exit::Done)
}

/// Prints only the secret to stdout, so that it can be stored in a file or a variable.
fn print_secret(cx: &mut SubcommandContext<'_>, made: &NewToken) -> io::Result<()> {
    if !cx.print_json(made)? {
        let scopes = scopes_text(made.scope, &made.scopes);
        let expiry = made.expires_at.as_ref().map(|at| format!(", expires {at}")).unwrap_or_default();
        let limits = restrictions_text(&made.restrictions).map(|text| format!(", only {text}")).unwrap_or_default();
        cx.io.output.eprint_line(&format!("token {} ({scopes}{expiry}{limits}), shown only now:", made.name))?;
        cx.io.output.print_line(&made.token)?;
    }
    Ok(())
}

/// Parses a duration such as `30d`, `12h` or `1h 30m` into seconds. A day has 24 hours.
fn parse_seconds(text: &str) -> Result<u32, String> {
    let help = "write a time such as 30d, 12h, 90m or 45s, of at most ten years";
    let span: jiff::Span = text.parse().map_err(|_| help.to_owned())?;
    let total =
        span.total(jiff::SpanTotal::from(jiff::Unit::Second).days_are_24_hours()).map_err(|_| help.to_owned())?;
    let seconds = total.ceil();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be in the range")]
    let in_range = (1.0..=315_360_000.0).contains(&seconds).then_some(seconds as u32);
    in_range.ok_or_else(|| help.to_owned())
}

/// `never`, the time that is left, or how long ago it was.
fn expiry_text(token: &TokenRow, now: jiff::Timestamp) -> String {
    let Some(at) = &token.expires_at else { return "never".to_owned() };
    match at.parse::<jiff::Timestamp>() {
        Ok(time) if time > now => format!("in {}", time_left(at, now).unwrap_or_default()),
        _ => format!("expired {}", relative_age(at, now)),
    }
}

/// What a token is restricted to, such as `openai; agents main; 5 a day`; `None` if to nothing.
fn restrictions_text(restrictions: &TokenRestrictions) -> Option<String> {
    let TokenRestrictions { apis, agents, models, daily_cost } = restrictions;
    let parts = [
        apis.as_ref().map(|apis| apis.iter().map(|api| api.as_str()).collect::<Vec<_>>().join(",")),
        agents.as_ref().map(|agents| format!("agents {}", agents.join(","))),
        models.as_ref().map(|models| format!("models {}", models.join(","))),
        daily_cost.map(|cost| format!("{cost} a day")),
    ];
    parts.into_iter().flatten().reduce(|text, part| format!("{text}; {part}"))
}

/// Tokens and cost, such as `1200 tokens, 0.0350`.
fn usage_text(sum: TokenUsageSum) -> String {
    let tokens = format_count(sum.input_tokens.saturating_add(sum.output_tokens), "token", "tokens");
    if sum.cost > 0.0 { format!("{tokens}, {:.4}", sum.cost) } else { tokens }
}

async fn print_tokens(cx: &mut SubcommandContext<'_>) -> SubcommandResult {
    let tokens = cx.client.list_tokens().await?;
    let now = jiff::Timestamp::now();
    let row = |token: &TokenRow| {
        let usage = token.usage.unwrap_or_default();
        [
            CliTableCell::truncated(&token.name, 40),
            CliTableCell::from(scopes_text(token.scope, &token.scopes)),
            relative_age(&token.created_at, now).into(),
            expiry_text(token, now).into(),
            CliTableCell::truncated(&restrictions_text(&token.restrictions).unwrap_or_else(|| "-".to_owned()), 100),
            usage_text(usage.today).into(),
            usage_text(usage.last30_days).into(),
        ]
    };
    let nothing = "no tokens: make one with `quell token create NAME`";
    cx.print_table(&tokens, ["NAME", "SCOPE", "MADE", "EXPIRES", "ONLY", "TODAY", "30 DAYS"], row, nothing)
}
