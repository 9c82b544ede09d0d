//! Test support: a client of A2A, in both bindings.

pub mod pushes;

use reqwest::{RequestBuilder, Response};

use crate::mcp_server_client::MessageStream;
use crate::prelude::*;

/// How the operations are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum A2aTestBinding {
    JsonRpc,
    Rest,
}

/// A client of the agent `main`.
#[derive(Debug, Clone)]
pub struct A2aTestClient {
    pub api: TestApiClient,
    pub binding: A2aTestBinding,
    pub agent: String,
}

impl A2aTestClient {
    pub fn new(api: &TestApiClient, binding: A2aTestBinding) -> Self {
        Self { api: api.clone(), binding, agent: "main".to_owned() }
    }

    pub fn with_api(&self, api: TestApiClient) -> Self {
        Self { api, ..self.clone() }
    }

    pub fn with_agent(&self, agent: &str) -> Self {
        Self { agent: agent.to_owned(), ..self.clone() }
    }

    pub fn request(&self, method: &str, params: &Value) -> RequestBuilder {
        let base = format!("/a2a/{}", percent_encode(&self.agent));
        let id = percent_encode(params["id"].as_str().unwrap_or_default());
        let task = percent_encode(params["taskId"].as_str().unwrap_or_default());
        let configs = format!("{base}/tasks/{task}/pushNotificationConfigs");
        let request = match self.binding {
            A2aTestBinding::JsonRpc => {
                let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
                self.api.request(Method::POST, &base).json(&message)
            }
            A2aTestBinding::Rest => match method {
                "SendMessage" => self.api.request(Method::POST, &format!("{base}/message:send")).json(params),
                "SendStreamingMessage" => {
                    self.api.request(Method::POST, &format!("{base}/message:stream")).json(params)
                }
                "GetTask" => self.api.request(Method::GET, &format!("{base}/tasks/{id}?{}", query_of(params))),
                "ListTasks" => self.api.request(Method::GET, &format!("{base}/tasks?{}", query_of(params))),
                "CancelTask" => self.api.request(Method::POST, &format!("{base}/tasks/{id}:cancel")),
                "CreateTaskPushNotificationConfig" => self.api.request(Method::POST, &configs).json(params),
                "ListTaskPushNotificationConfigs" => self.api.request(Method::GET, &configs),
                "GetTaskPushNotificationConfig" => self.api.request(Method::GET, &format!("{configs}/{id}")),
                "DeleteTaskPushNotificationConfig" => self.api.request(Method::DELETE, &format!("{configs}/{id}")),
                "SubscribeToTask" => self.api.request(Method::POST, &format!("{base}/tasks/{id}:subscribe")),
                other => self.api.request(Method::POST, &format!("{base}/{other}")).json(params),
            },
        };
        request.header("a2a-version", "1.0")
    }

    /// The result; the error is the reason that clients branch on.
    pub async fn call(&self, method: &str, params: &Value) -> Result<Value, String> {
        result_of(self.request(method, params).send().await.unwrap()).await
    }

    pub async fn task(&self, method: &str, params: &Value) -> Value {
        let result = self.call(method, params).await.unwrap();
        result.get("task").cloned().unwrap_or(result)
    }

    /// Opens a stream of updates.
    pub async fn open_stream(&self, method: &str, params: &Value) -> TaskTestStream {
        let response = self.request(method, params).send().await.unwrap();
        assert_eq!(response.status(), 200, "{method}");
        TaskTestStream(MessageStream::of(response))
    }

    pub async fn error(&self, method: &str, params: &Value) -> String {
        let answered = self.call(method, params).await;
        answered.expect_err("it was refused")
    }
}

/// Parameters in a query, without those that paths name.
fn query_of(params: &Value) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let fields = params.as_object().unwrap().iter().filter(|(name, _)| *name != "id");
    fields.map(|(name, value)| format!("{name}={}", percent_encode(&text(value)))).collect::<Vec<_>>().join("&")
}

/// The result of an answer; the error is the reason that clients branch on.
pub async fn result_of(response: Response) -> Result<Value, String> {
    let body: Value = response.json().await.unwrap();
    let reason = |details: &Value| details[0]["reason"].as_str().unwrap_or_else(|| panic!("{body:#}")).to_owned();
    match (body.get("error"), body.get("jsonrpc")) {
        (Some(error), Some(_)) => Err(reason(&error["data"])),
        (Some(error), None) => Err(reason(&error["details"])),
        (None, Some(_)) => Ok(body["result"].clone()),
        (None, None) => Ok(body),
    }
}

/// A message of a person, as the parameters of an operation.
pub fn message(text: &str, fields: &Value) -> Value {
    let mut message = json!({"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": text}]});
    message.as_object_mut().unwrap().extend(fields.as_object().cloned().unwrap_or_default());
    json!({"message": message})
}

/// The parts of a stream, without the envelope of the binding.
pub struct TaskTestStream(MessageStream);

impl TaskTestStream {
    pub async fn next(&mut self) -> Option<Value> {
        let message = self.0.next().await?.message;
        Some(message.get("result").cloned().unwrap_or(message))
    }

    /// The task that begins the stream.
    pub async fn first_task(&mut self) -> Value {
        let first = self.next().await.unwrap();
        first.get("task").cloned().unwrap_or_else(|| panic!("no task: {first:#}"))
    }

    /// The parts until the answer has this text.
    pub async fn read_until(&mut self, text: &str) {
        let mut answer = String::new();
        while answer != text {
            let part = self.next().await.unwrap_or_else(|| panic!("the stream ended with {answer:?}"));
            add_answer(&mut answer, &part);
        }
    }

    pub async fn read_to_end(mut self) -> Vec<Value> {
        let mut parts = Vec::new();
        while let Some(part) = self.next().await {
            parts.push(part);
        }
        parts
    }
}

pub fn add_answer(answer: &mut String, part: &Value) {
    let Some(update) = part.get("artifactUpdate") else { return };
    if update["append"] == json!(false) {
        answer.clear();
    }
    answer.push_str(update["artifact"]["parts"][0]["text"].as_str().unwrap());
}

pub fn states_of(parts: &[Value]) -> Vec<&str> {
    parts.iter().filter_map(|part| part["statusUpdate"]["status"]["state"].as_str()).collect()
}
