//! Calls over HTTP, and how their clients stop them.

use std::net::{Shutdown, TcpStream as ClientSocket};

use super::api_server::{HttpRequest, json_of, read_http_answer};
use super::*;

pub(super) const CHAT_COMPLETIONS: ClientApi = ClientApi {
    surface: Surface::Openai,
    reason: StopReason::Disconnect,
    prepare: |server, content| {
        let messages = json!([{"role": "user", "content": content.text}]);
        let body = json!({"model": content.model(), "stream": true, "messages": messages});
        HttpCall::prepare(server, content, "/v1/chat/completions", body)
    },
    is_stopped_answer: None,
};

pub(super) const RESPONSES: ClientApi = ClientApi {
    surface: Surface::Openai,
    reason: StopReason::Disconnect,
    prepare: |server, content| {
        let body = json!({"model": content.model(), "stream": true, "input": content.text});
        HttpCall::prepare(server, content, "/v1/responses", body)
    },
    is_stopped_answer: None,
};

pub(super) const MESSAGES: ClientApi = ClientApi {
    surface: Surface::Anthropic,
    reason: StopReason::Disconnect,
    prepare: |server, content| {
        let messages = json!([{"role": "user", "content": content.text}]);
        let body = json!({"model": content.model(), "max_tokens": 100, "stream": true, "messages": messages});
        HttpCall::prepare(server, content, "/v1/messages", body)
    },
    is_stopped_answer: None,
};

/// Stopped by `POST /v1/responses/{id}/cancel`.
pub(super) const BACKGROUND_RESPONSES: ClientApi = ClientApi {
    surface: Surface::Openai,
    reason: StopReason::User,
    prepare: |server, content| {
        let body = json!({"model": content.model(), "background": true, "input": content.text});
        let call = HttpCall::new(server, content, "/v1/responses", body);
        Arc::new(CallCancelledById {
            call,
            cancel_request: |_, answer| {
                let path = format!("/v1/responses/{}/cancel", answer["id"].as_str().unwrap());
                HttpRequest { path, headers: String::new(), body: json!({}) }
            },
            cancel: Mutex::new(None),
        })
    },
    is_stopped_answer: Some(|answer| json_of(answer)["status"] == "cancelled"),
};

/// Without a session, the end of the connection is the cancel.
pub(super) const CLOSED_MCP_CALLS: ClientApi = ClientApi {
    surface: Surface::Mcp,
    reason: StopReason::Disconnect,
    prepare: |server, content| {
        let mut message = run_agent_call(content);
        message["params"]["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": STATELESS,
            "io.modelcontextprotocol/clientCapabilities": {},
            "progressToken": "p",
        });
        let mut call = HttpCall::new(server, content, "/mcp", message);
        call.request.headers =
            format!("mcp-protocol-version: {STATELESS}\r\nmcp-method: tools/call\r\nmcp-name: run_agent\r\n");
        Arc::new(call)
    },
    is_stopped_answer: None,
};

/// Stopped by `notifications/cancelled` in a session.
pub(super) const CANCELLED_MCP_CALLS: ClientApi = ClientApi {
    surface: Surface::Mcp,
    reason: StopReason::User,
    prepare: |server, content| Arc::new(McpSessionCall::prepare(server, content)),
    // No answer follows a cancel, only the end of the stream.
    is_stopped_answer: Some(|answer| answer.starts_with("HTTP/1.1 200") && !answer.contains("\"result\"")),
};

/// Stopped by `CancelTask`.
pub(super) const A2A_TASKS: ClientApi = ClientApi {
    surface: Surface::A2a,
    reason: StopReason::User,
    prepare: |server, content| {
        let parts = json!([{"text": content.text}]);
        let message = json!({"messageId": "m", "role": "ROLE_USER", "contextId": content.session, "parts": parts});
        let params = json!({"message": message, "configuration": {"returnImmediately": true}});
        let path = format!("/a2a/{}", percent_encode(content.agent));
        let mut call = HttpCall::new(server, content, &path, a2a_request("SendMessage", &params));
        A2A_VERSION.clone_into(&mut call.request.headers);
        Arc::new(CallCancelledById {
            call,
            cancel_request: |call, answer| HttpRequest {
                path: call.request.path.clone(),
                headers: A2A_VERSION.to_owned(),
                body: a2a_request("CancelTask", &json!({"id": answer["result"]["task"]["id"]})),
            },
            cancel: Mutex::new(None),
        })
    },
    is_stopped_answer: Some(|answer| json_of(answer)["result"]["status"]["state"] == "TASK_STATE_CANCELED"),
};

const A2A_VERSION: &str = "a2a-version: 1.0\r\n";

fn a2a_request(method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

impl CallContent {
    fn model(&self) -> String {
        match self.target {
            ClientTarget::Agent => format!("agent/{}", self.agent),
            ClientTarget::Model => "scripted/model".to_owned(),
        }
    }
}

/// A call that its client stops by closing the connection.
struct HttpCall {
    server: Arc<ApiServer>,
    request: HttpRequest,
    session: String,
    connection: Mutex<Option<ClientSocket>>,
}

impl HttpCall {
    fn new(server: &Arc<ApiServer>, content: &CallContent, path: &str, body: Value) -> Self {
        let headers = match content.target {
            ClientTarget::Agent => format!("x-quell-session: {}\r\n", content.session),
            ClientTarget::Model => String::new(),
        };
        let request = HttpRequest { path: path.to_owned(), headers, body };
        let (server, session) = (Arc::clone(server), content.session.clone());
        Self { server, request, session, connection: Mutex::new(None) }
    }

    fn prepare(server: &Arc<ApiServer>, content: &CallContent, path: &str, body: Value) -> Arc<dyn StoppableCall> {
        Arc::new(Self::new(server, content, path, body))
    }
}

impl StoppableCall for HttpCall {
    fn session(&self) -> &str {
        &self.session
    }

    fn begin(&self) {
        let mut connection = self.connection.lock().unwrap();
        *connection = Some(self.server.send(&self.request));
    }

    fn stop(&self) {
        let connection = self.connection.lock().unwrap().take().unwrap();
        connection.shutdown(Shutdown::Both).unwrap();
    }

    fn read_answer(&self) -> String {
        read_http_answer(self.connection.lock().unwrap().as_mut().unwrap())
    }
}

/// A call whose work goes on without its client. It is cancelled by an id, which the client has from the answer.
struct CallCancelledById {
    call: HttpCall,
    /// Makes the request that cancels, from the call and the JSON of its answer.
    cancel_request: fn(&HttpCall, &Value) -> HttpRequest,
    cancel: Mutex<Option<ClientSocket>>,
}

impl StoppableCall for CallCancelledById {
    fn session(&self) -> &str {
        self.call.session()
    }

    fn begin(&self) {
        self.call.begin();
    }

    fn stop(&self) {
        let answer = json_of(&self.call.read_answer());
        let request = (self.cancel_request)(&self.call, &answer);
        *self.cancel.lock().unwrap() = Some(self.call.server.send(&request));
    }

    /// The answer to the cancel, or else to the call.
    fn read_answer(&self) -> String {
        match self.cancel.lock().unwrap().as_mut() {
            Some(connection) => read_http_answer(connection),
            None => self.call.read_answer(),
        }
    }
}

const STATELESS: &str = quell_test_support::mcp_server_client::STATELESS;
const SESSION_VERSION: &str = "2025-11-25";
/// The id of the request that calls the tool.
const CALL_ID: u64 = 7;

fn run_agent_call(content: &CallContent) -> Value {
    let arguments = json!({"message": content.text, "agent": content.agent, "session": content.session});
    let params = json!({"name": "run_agent", "arguments": arguments});
    json!({"jsonrpc": "2.0", "id": CALL_ID, "method": "tools/call", "params": params})
}

struct McpSessionCall {
    call: HttpCall,
    headers: String,
}

impl McpSessionCall {
    fn prepare(server: &Arc<ApiServer>, content: &CallContent) -> Self {
        let client = json!({"name": "sweep", "version": "1"});
        let params = json!({"protocolVersion": SESSION_VERSION, "capabilities": {}, "clientInfo": client});
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
        let initialize = HttpRequest { path: "/mcp".to_owned(), headers: String::new(), body };
        let answer = read_http_answer(&mut server.send(&initialize));
        let session = answer.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).expect("a session");
        let headers = format!("mcp-session-id: {session}\r\nmcp-protocol-version: {SESSION_VERSION}\r\n");
        let mut call = HttpCall::new(server, content, "/mcp", run_agent_call(content));
        call.request.headers.clone_from(&headers);
        Self { call, headers }
    }
}

impl StoppableCall for McpSessionCall {
    fn session(&self) -> &str {
        self.call.session()
    }

    fn begin(&self) {
        self.call.begin();
    }

    fn stop(&self) {
        let params = json!({"requestId": CALL_ID});
        let body = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        let request = HttpRequest { path: "/mcp".to_owned(), headers: self.headers.clone(), body };
        let answer = read_http_answer(&mut self.call.server.send(&request));
        assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
    }

    fn read_answer(&self) -> String {
        self.call.read_answer()
    }
}
