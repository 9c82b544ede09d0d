//! Table of all routes with their parameters, bodies and responses.

use self::RequestBodySpec::{Optional, Required};
use crate::access_rules::RouteAccess::{
    self, Admin, Approve, Configure, Create, List, Manage, Public, Read, ReadAll, Stop, StopAll, Token, Use,
};

pub(super) struct RouteSpec {
    pub(super) access: RouteAccess,
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) summary: &'static str,
    pub(super) request_body: Option<RequestBodySpec>,
    /// Responses besides those that [`super::shared_responses`] adds.
    pub(super) responses: &'static [ResponseSpec],
}

/// Status, schema of a response below 400, meaning: `200 AgentView the agent`, `404 unknown`. `[X]` is a page of X.
pub(super) type ResponseSpec = &'static str;

/// Name, kind, meaning. A kind is `count`, `flag`, `text`, or the allowed words separated by `|`.
pub(super) type QueryParamSpec = (&'static str, &'static str, &'static str);

#[derive(Clone, Copy)]
pub(super) enum RequestBodySpec {
    Required(&'static str),
    /// May be absent, empty or `{}`.
    Optional(&'static str),
}

/// This route needs no token: its callers sign their messages.
pub(super) const WEBHOOK_ROUTE: &str = "/api/channels/{name}/messages";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteAuth {
    /// None, and any Host header is accepted.
    Probe,
    /// No token; the origin of a browser is checked where it signs in or out.
    Public,
    /// A token or the page's cookie.
    Token,
}

impl RouteSpec {
    pub(super) fn auth(&self) -> RouteAuth {
        match self.path {
            "/healthz" | "/readyz" => RouteAuth::Probe,
            WEBHOOK_ROUTE | "/api/sign-in" | "/api/sign-out" | "/sign-in/{code}" | "/assets/{path}" => {
                RouteAuth::Public
            }
            _ => RouteAuth::Token,
        }
    }

    pub(super) fn query_params(&self) -> &'static [QueryParamSpec] {
        match (self.method, self.path) {
            ("get", "/api/sessions") => &[("search", "text", "keys that hold this text"), LIMIT_PARAM, CURSOR_PARAM],
            ("get", "/api/sessions/{key}") => {
                &[("allowMissing", "flag", "answer 204, and not 404, if there is none; not with 0, false or no")]
            }
            ("get", "/api/sessions/{key}/history") => {
                &[("turns", "count", "most turns of the page: 100 without it, at most 1000"), CURSOR_PARAM]
            }
            ("get", "/api/runs") => &[
                ("state", "active|all", "`active`: those that are not over"),
                SESSION_PARAM,
                LIMIT_PARAM,
                CURSOR_PARAM,
            ],
            ("get", "/api/runs/{id}/events") => &[("after", "count", "the number of the last event that is known")],
            ("post", "/api/sessions/{key}/runs") => {
                &[("stopOnDisconnect", "flag", "answer with the events; the end of the connection stops the run")]
            }
            ("get", "/api/sessions/{key}/processes/{id}") => {
                &[("after", "count", "the place to read on from, in bytes")]
            }
            ("delete", "/api/sessions/{key}/processes/{id}") => &[FORCE_PARAM],
            ("delete", "/api/agents/{id}") => &[("force", "flag", "stop its runs first")],
            ("post", "/api/agent/{id}/abort") => {
                &[("scope", "call|run|tree", "model calls alone, all runs, or those of all agents below it, too")]
            }
            ("post", "/api/runs/{id}/stop" | "/api/sessions/{key}/stop" | "/api/stop") => &[WAIT_PARAM],
            ("get", "/api/audit") => &[
                ("after", "count", "the number of the last entry that is known"),
                ("format", "json|jsonl", "`jsonl`: an export of all entries as lines of JSON"),
                LIMIT_PARAM,
            ],
            ("get", "/api/mcp/prompts" | "/api/mcp/resources") => &[AGENT_PARAM],
            ("get", "/api/senders") => &[LIMIT_PARAM, CURSOR_PARAM],
            ("get", "/v1/responses/{id}") => &[
                ("stream", "true|false", "its events, if it was made in the background"),
                ("starting_after", "count", "the number of the last event that is known"),
            ],
            ("get", "/v1/responses/{id}/input_items" | "/v1/conversations/{id}/items") => &[
                ("limit", "count", "items of the page: 20 without it, at most 100"),
                ("order", "asc|desc", "`desc`, the newest first, without it"),
                ("after", "text", "the id of the last item that is known"),
            ],
            ("get", path) if path.ends_with("/memory") => NOTE_PARAMS,
            _ => &[],
        }
    }
}

const fn route(
    access: RouteAccess,
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    answers: &'static [ResponseSpec],
) -> RouteSpec {
    RouteSpec { access, method, path, summary, request_body: None, responses: answers }
}

const fn get(
    access: RouteAccess,
    path: &'static str,
    summary: &'static str,
    answers: &'static [ResponseSpec],
) -> RouteSpec {
    route(access, "get", path, summary, answers)
}

const fn post(
    access: RouteAccess,
    path: &'static str,
    summary: &'static str,
    takes: RequestBodySpec,
    answers: &'static [ResponseSpec],
) -> RouteSpec {
    RouteSpec { request_body: Some(takes), ..route(access, "post", path, summary, answers) }
}

const fn delete(
    access: RouteAccess,
    path: &'static str,
    summary: &'static str,
    answers: &'static [ResponseSpec],
) -> RouteSpec {
    route(access, "delete", path, summary, answers)
}

const LIMIT_PARAM: QueryParamSpec = ("limit", "count", "most rows of the page: 100 without it, at most 1000");
const CURSOR_PARAM: QueryParamSpec = ("cursor", "text", "`nextCursor` of the page before");
const SESSION_PARAM: QueryParamSpec = ("session", "text", "of this session alone");
const AGENT_PARAM: QueryParamSpec = ("agent", "text", "the agent as which the servers are asked");
const WAIT_PARAM: QueryParamSpec = ("wait", "flag", "answer when what was stopped is settled; not with 0, false or no");
const FORCE_PARAM: QueryParamSpec = ("force", "flag", "without grace; not with 0, false or no");
const MCP_UNAVAILABLE: ResponseSpec = "502 the server cannot be used, or everything was stopped";
const NOTE_PARAMS: &[QueryParamSpec] =
    &[("query", "text", "notes that are about this, the most relevant first"), LIMIT_PARAM, CURSOR_PARAM];

pub(super) const ROUTES: &[RouteSpec] = &[
    get(Public, "/healthz", "The process is up", &["200 object up"]),
    get(Public, "/readyz", "The daemon takes requests", &["200 object ready", "503 closing"]),
    get(Token, "/metrics", "Prometheus metrics", &["200 text metrics", "404 started without metrics"]),
    get(Token, "/openapi.json", "This document", &["200 object the document"]),
    get(List, "/api/agents", "All agents", &["200 [AgentRow] agents"]),
    post(
        Admin,
        "/api/agents",
        "Make an agent at run time",
        Required("NewAgent"),
        &[
            "201 AgentRow made, durable",
            "400 it cannot be built",
            "409 the id is taken",
            "503 closing, or the database cannot be written",
        ],
    ),
    get(List, "/api/agents/tree", "All agents as the trees that they form", &["200 [AgentNode] the roots"]),
    delete(
        Admin,
        "/api/agents/{id}",
        "Delete an agent that was made at run time, with all below it; ?force stops their runs first",
        &["200 AgentsDeleted gone", "404 unknown", "409 it is configured, or has runs that are not over"],
    ),
    get(
        List,
        "/api/agents/{id}",
        "One agent, with what it has spent today",
        &["200 AgentView the agent", "404 unknown"],
    ),
    post(
        Stop,
        "/api/agent/{id}/abort",
        "Abort the agent's model calls; with ?scope=run all its runs, with ?scope=tree those of all agents below it, too",
        Optional("StopRunRequest"),
        &["200 AgentAbortAnswer what was aborted", "400 no id", "404 unknown"],
    ),
    get(Token, "/api/models", "The models that agents work with", &["200 [ModelRow] models"]),
    get(Token, "/api/me", "Who the caller is", &["200 Me the token's name and scope"]),
    post(
        Public,
        "/api/sign-in",
        "Sign a browser in with a token or the code of a one-time link",
        Required("SignInRequest"),
        &["200 SignedIn with the page's cookie and the secret of its origin", "401 no token, or no code"],
    ),
    route(
        Admin,
        "post",
        "/api/sign-in-link",
        "Make a one-time link that signs a browser in",
        &["200 SignInLink its path", "403 only admins may"],
    ),
    route(Public, "post", "/api/sign-out", "Sign a browser out", &["204 none the cookie is worth nothing any more"]),
    get(
        Public,
        "/sign-in/{code}",
        "The one-time link: leads to the page, which signs in with its code",
        &["303 none to `/#sign-in=CODE`"],
    ),
    get(
        Public,
        "/assets/{path}",
        "A file of the page",
        &["200 file the file", "304 none it is as it was", "404 unknown"],
    ),
    get(List, "/api/sessions", "Sessions, the last used first", &["200 [SessionRow] sessions"]),
    post(
        Use,
        "/api/sessions",
        "Get or create the session of a user's chat with a provider",
        Required("SessionRequest"),
        &[
            "201 SessionAnswer made",
            "200 SessionAnswer it was there, and is configured so from now on",
            "403 a hook refused it, or the token's scope does not allow it",
            "422 it cannot be made as it is configured",
        ],
    ),
    get(
        Read,
        "/api/sessions/{key}",
        "One session with the configuration in force; keys are masked",
        &["200 SessionView the session", "204 none unknown, with allowMissing", "404 unknown"],
    ),
    RouteSpec {
        request_body: Some(Required("SessionPatch")),
        ..route(
            Configure,
            "patch",
            "/api/sessions/{key}",
            "Give a session another model or agent from its next run on; makes it when there is none",
            &[
                "200 SessionView the session",
                "404 it was deleted in this moment",
                "422 the model or agent cannot be used",
            ],
        )
    },
    delete(Manage, "/api/sessions/{key}", "Stop and delete a session", &["204 none deleted", "404 unknown"]),
    RouteSpec {
        request_body: Some(Required("SharingRequest")),
        ..route(
            Manage,
            "put",
            "/api/sessions/{key}/sharing",
            "Share a session with every token, or make it private again",
            &["200 SessionRow the session", "403 it belongs to somebody else", "404 unknown"],
        )
    },
    get(
        Read,
        "/api/sessions/{key}/history",
        "A session's messages, for people",
        &["200 [HistoryMessage] messages", "404 unknown"],
    ),
    get(
        Read,
        "/api/sessions/{key}/export",
        "A session as lines of JSON, for POST /api/import",
        &["200 lines the session's head, runs and past", "404 unknown"],
    ),
    post(
        Create,
        "/api/import",
        "Take in a session that was exported, whole or not at all",
        Required("lines"),
        &[
            "201 SessionRow the session",
            "400 a line is not right; the detail names it",
            "409 the session or one of its runs exists, or another import is under way",
            "413 larger than import_bytes in [limits]",
        ],
    ),
    post(
        Manage,
        "/api/sessions/{key}/compact",
        "Summarise a session's conversation for its model, by a run that a stop ends as any other",
        Optional("EMPTY"),
        &[
            "202 SendAnswer the run that summarises",
            "403 it belongs to somebody else",
            "404 unknown",
            "409 the session is busy, or there is nothing to summarise",
            "503 new runs are held",
        ],
    ),
    post(
        Manage,
        "/api/sessions/{key}/reset",
        "Stop a session and empty its history; old turns stay under a boundary",
        Optional("REASON"),
        &["200 SessionRow the session", "404 unknown"],
    ),
    get(
        Read,
        "/api/sessions/{key}/memory",
        "A session's notes, the newest first; ?query= finds those that are about it, the most relevant first",
        &["200 [NoteRow] notes", "404 unknown"],
    ),
    delete(
        Manage,
        "/api/sessions/{key}/memory/{note}",
        "Forget a note of a session",
        &["204 none deleted", "404 unknown"],
    ),
    get(
        ReadAll,
        "/api/agents/{id}/memory",
        "What an agent knows in all its sessions; ?query= as for a session",
        &["200 [NoteRow] notes", "404 unknown"],
    ),
    delete(Admin, "/api/agents/{id}/memory/{note}", "Forget a note of an agent", &["204 none deleted", "404 unknown"]),
    get(
        ReadAll,
        "/api/senders",
        "Of whom in chat networks something is remembered, the newest note first",
        &["200 [SenderRow] senders"],
    ),
    get(
        ReadAll,
        "/api/senders/{sender}/memory",
        "The notes of who writes in a chat network, as CHANNEL:SENDER; ?query= as for a session",
        &["200 [NoteRow] notes", "404 no notes are stored about them"],
    ),
    delete(
        Admin,
        "/api/senders/{sender}/memory",
        "Forget all notes of a sender",
        &["200 NotesForgotten how many", "404 no notes are stored about them"],
    ),
    delete(
        Admin,
        "/api/senders/{sender}/memory/{note}",
        "Forget a note of a sender",
        &["204 none deleted", "404 unknown"],
    ),
    post(
        Use,
        "/api/sessions/{key}/runs",
        "Send a message",
        Required("SendRequest"),
        &[
            "202 SendAnswer accepted",
            "200 SENT a repeat: its state now; for a stop text: what was stopped; with ?stopOnDisconnect: the run's events",
            "404 there is no such agent",
            "409 the idempotency key was used for another message, or the session is busy",
            "429 too many wait, or the agent has spent what it may in a day",
            "503 held, closing, or the database cannot be written",
        ],
    ),
    post(
        Stop,
        "/api/sessions/{key}/stop",
        "Stop all runs of a session and withdraw its queue",
        Optional("StopSessionRequest"),
        &["200 StopAnswer what was stopped"],
    ),
    get(List, "/api/processes", "The background commands of all sessions", &["200 [ProcessRow] processes"]),
    get(List, "/api/sessions/{key}/processes", "A session's background commands", &["200 [ProcessRow] processes"]),
    get(
        Read,
        "/api/sessions/{key}/processes/{id}",
        "A background command with what it printed; ?after= reads on",
        &["200 ProcessView the process", "404 unknown"],
    ),
    delete(
        Stop,
        "/api/sessions/{key}/processes/{id}",
        "End a background command and wait until it is dead; ?force=1 kills at once",
        &["200 ProcessRow ended", "403 not yours", "404 unknown"],
    ),
    get(List, "/api/runs", "Runs, newest first; ?state=active for those that are not over", &["200 [RunView] runs"]),
    get(Read, "/api/runs/{id}", "One run with its receipt", &["200 RunView the run", "404 unknown"]),
    get(
        Read,
        "/api/runs/{id}/events",
        "A run's events as server-sent events; resume by Last-Event-ID or ?after=",
        &["200 events each frame's data is a RunEvent", "404 unknown"],
    ),
    post(
        Stop,
        "/api/runs/{id}/stop",
        "Stop a run; ?wait=1 answers with the receipt",
        Optional("StopRunRequest"),
        &["202 TicketView stopping", "200 TicketView over, with the receipt", "403 not yours", "404 unknown"],
    ),
    post(
        Manage,
        "/api/runs/{id}/undo",
        "Put the files back that the file tools of a run and its sub-runs have changed, all or none",
        Optional("UndoRequest"),
        &[
            "200 UndoReport what was put back, and what is not covered",
            "403 not yours",
            "404 unknown",
            "409 a run is active, a file was changed since, or it was undone before",
        ],
    ),
    get(List, "/api/approvals", "Calls that wait for a person", &["200 [ApprovalRow] approvals"]),
    post(
        Approve,
        "/api/approvals/{id}",
        "Allow or deny a call that waits",
        Required("ApprovalAnswer"),
        &["200 ApprovalRow answered", "403 not yours", "404 unknown", "409 it was settled before"],
    ),
    get(List, "/api/approval-rules", "Remembered allowances", &["200 [ApprovalRule] allowances"]),
    delete(
        Approve,
        "/api/approval-rules/{id}",
        "Delete a remembered allowance, so that its calls wait for a person again",
        &["204 none deleted", "404 unknown"],
    ),
    post(StopAll, "/api/stop", "Stop everything", Optional("StopAllRequest"), &["200 StopAllAnswer what was stopped"]),
    get(Token, "/api/hold", "Whether new runs are held", &["200 Hold the hold"]),
    RouteSpec {
        request_body: Some(Optional("HOLD")),
        ..route(Admin, "put", "/api/hold", "Hold new runs", &["200 Hold the hold"])
    },
    delete(Admin, "/api/hold", "Lift the hold", &["200 Hold the hold"]),
    get(
        Token,
        "/api/cluster",
        "The nodes of the cluster and how they fare",
        &["200 ClusterView the nodes", "404 this daemon is not a node of a cluster"],
    ),
    post(
        Admin,
        "/api/drain",
        "Let the node that answers take no new sessions, and give back its idle ones",
        Optional("DrainRequest"),
        &["200 DrainView what is left on it", "404 this daemon is not a node of a cluster"],
    ),
    delete(
        Admin,
        "/api/drain",
        "Let the node that answers take new sessions again",
        &["200 DrainView what it has", "404 this daemon is not a node of a cluster"],
    ),
    get(Token, "/api/channels", "The chat networks and how they fare", &["200 [ChannelRow] channels"]),
    post(
        Admin,
        "/api/channels/send",
        "Say something in a chat in the name of a channel",
        Required("ChannelSend"),
        &[
            "200 ChannelDelivery what became of it; look at `delivery`",
            "400 it is not said where, or nothing is said",
            "404 there is no such channel",
            "409 the channel's configuration cannot be used",
        ],
    ),
    route(
        Create,
        "post",
        "/api/channels/{name}/test",
        "Ask a network who the account of a channel is",
        &["200 ChannelTest what it says; look at `ok`", "404 unknown"],
    ),
    post(
        Public,
        "/api/channels/{name}/messages",
        "Post a message to a channel of signed HTTP; authenticated by its signature alone",
        Required("object"),
        &[
            "202 ChannelReceived it is kept, and a stop has acted",
            "400 it is no message",
            "401 it is not signed, wrongly, or not now",
            "404 there is no such channel of signed HTTP",
            "413 the body is too large",
            "503 it is not kept yet, or the daemon is closing: post it again",
        ],
    ),
    get(Admin, "/api/backup", "A copy of the whole database, as it is at one moment", &["200 database a SQLite file"]),
    get(
        List,
        "/api/schedules",
        "The schedules of the caller; of everybody for those who read all sessions",
        &["200 [ScheduleView] schedules"],
    ),
    post(
        Create,
        "/api/schedules",
        "Make a schedule: its runs are those of the caller",
        Required("ScheduleRequest"),
        &[
            "201 ScheduleView made, durable",
            "400 the times are wrong, or nothing may be sent there",
            "404 there is no such agent",
            "409 there are as many as `[schedules]` admits",
            "503 closing, or the database cannot be written",
        ],
    ),
    get(Read, "/api/schedules/{id}", "One schedule", &["200 ScheduleView the schedule", "404 unknown"]),
    RouteSpec {
        request_body: Some(Required("SchedulePatch")),
        ..route(
            Manage,
            "patch",
            "/api/schedules/{id}",
            "Pause or resume a schedule, change its text",
            &["200 ScheduleView the schedule now", "400 it is over", "404 unknown"],
        )
    },
    delete(
        Manage,
        "/api/schedules/{id}",
        "Delete a schedule; a run that it has started goes on",
        &["204 none deleted", "404 unknown"],
    ),
    get(
        Create,
        "/api/mcp/prompts",
        "The prompts of the MCP servers of an agent; starts the servers",
        &[
            "200 McpList prompts, and the servers that could not be asked",
            "404 there is no such agent",
            MCP_UNAVAILABLE,
        ],
    ),
    get(
        Create,
        "/api/mcp/resources",
        "The resources of the MCP servers of an agent; starts the servers",
        &[
            "200 McpList resources, and the servers that could not be asked",
            "404 there is no such agent",
            MCP_UNAVAILABLE,
        ],
    ),
    post(
        Create,
        "/api/mcp/{server}/prompt",
        "A prompt with its arguments filled in, as the text of a message",
        Required("McpPromptRequest"),
        &["200 McpContent the text", "404 there is no such agent, or it has no such server", MCP_UNAVAILABLE],
    ),
    post(
        Create,
        "/api/mcp/{server}/resource",
        "A resource, as the text of a message",
        Required("McpResourceRequest"),
        &["200 McpContent the text", "404 there is no such agent, or it has no such server", MCP_UNAVAILABLE],
    ),
    get(
        Admin,
        "/api/audit",
        "Who did what, when and from where: the oldest first after ?after=",
        &["200 AUDIT a page of entries; with format=jsonl all of them, one in each line"],
    ),
    get(Admin, "/api/tokens", "All tokens, without their secrets", &["200 [TokenRow] tokens"]),
    post(
        Admin,
        "/api/tokens",
        "Make a token; its secret is shown once",
        Required("TokenRequest"),
        &["201 NewToken the token", "409 the name is taken"],
    ),
    post(
        Admin,
        "/api/tokens/{name}/rotate",
        "Give a token a new secret, which is shown once; the old one ends at once, or after an overlap",
        Optional("TokenRotationRequest"),
        &["200 NewToken the token with its new secret", "404 unknown", "409 it was changed at the same time"],
    ),
    delete(Admin, "/api/tokens/{name}", "Revoke a token", &["204 none revoked", "404 unknown"]),
    get(Token, "/v1/models", "What clients of the model APIs may name as a model", &["200 object the models"]),
    get(Token, "/v1/models/{name}", "A model, or an agent as agent/ID", &["200 object the model", "404 unknown"]),
    post(
        Create,
        "/v1/chat/completions",
        "An answer of an agent or a model, in OpenAI's format; the client stops it by closing its connection",
        Required("ChatRequest"),
        &[
            "200 ChatCompletion the answer",
            "404 there is no such model",
            "409 somebody stopped the run",
            "500 the run failed",
            "502 the provider of the model failed",
        ],
    ),
    post(
        Create,
        "/v1/messages",
        "An answer of an agent or a model, in Anthropic's format; the client stops it by closing its connection",
        Required("MessagesRequest"),
        &[
            "200 AnthropicMessage the answer",
            "404 there is no such model",
            "409 somebody stopped the run",
            "500 the run failed",
            "502 the provider of the model failed",
        ],
    ),
    post(
        Create,
        "/v1/messages/count_tokens",
        "An estimate of the tokens of a request in Anthropic's format",
        Required("CountTokensRequest"),
        &["200 TokenCount the estimate", "404 there is no such model"],
    ),
    post(
        Create,
        "/v1/responses",
        "A response of an agent or a model, in OpenAI's format; in the background it goes on without its client",
        Required("ResponsesRequest"),
        &[
            "200 ResponseObject the response",
            "404 there is no such model, response or conversation",
            "409 somebody stopped the run",
            "500 the run failed",
            "502 the provider of the model failed",
        ],
    ),
    post(
        Create,
        "/v1/responses/input_tokens",
        "An estimate of the tokens of a request",
        Required("ResponsesRequest"),
        &["200 object the number of tokens", "404 there is no such model, response or conversation"],
    ),
    get(
        Read,
        "/v1/responses/{id}",
        "A stored response; with stream=true its events, if it was made in the background",
        &["200 ResponseObject the response", "404 unknown"],
    ),
    delete(
        Manage,
        "/v1/responses/{id}",
        "Delete a response; one that is being made is stopped first",
        &["200 object it is deleted", "404 unknown"],
    ),
    route(
        Stop,
        "post",
        "/v1/responses/{id}/cancel",
        "Stop a response in the background; repeated, it answers the same",
        &["200 ResponseObject the response", "404 unknown"],
    ),
    get(
        Read,
        "/v1/responses/{id}/input_items",
        "The items of the request of a response",
        &["200 object a page of items", "404 unknown"],
    ),
    post(
        Create,
        "/v1/conversations",
        "Begin a conversation, which responses continue and extend",
        Required("ConversationRequest"),
        &["200 object the conversation"],
    ),
    get(Read, "/v1/conversations/{id}", "A conversation", &["200 object the conversation", "404 unknown"]),
    post(
        Create,
        "/v1/conversations/{id}",
        "Replace the metadata of a conversation",
        Required("ConversationMetadata"),
        &["200 object the conversation", "404 unknown"],
    ),
    delete(
        Manage,
        "/v1/conversations/{id}",
        "Delete a conversation with its items",
        &["200 object it is deleted", "404 unknown"],
    ),
    get(
        Read,
        "/v1/conversations/{id}/items",
        "The items of a conversation",
        &["200 object a page of items", "404 unknown"],
    ),
    post(
        Create,
        "/v1/conversations/{id}/items",
        "Add items to a conversation",
        Required("ConversationItems"),
        &["200 object the items", "404 unknown"],
    ),
    get(
        Read,
        "/v1/conversations/{id}/items/{item}",
        "An item of a conversation",
        &["200 object the item", "404 unknown"],
    ),
    delete(
        Manage,
        "/v1/conversations/{id}/items/{item}",
        "Delete an item of a conversation",
        &["200 object the conversation", "404 unknown"],
    ),
];
