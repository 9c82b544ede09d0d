//! An editor: `quell acp` as a process of its own, with the messages of its client on standard input and output.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};

use super::*;

pub(super) const ACP: ClientApi = ClientApi {
    surface: Surface::Acp,
    reason: StopReason::User,
    prepare: |server, content| Arc::new(Editor::open(server, content, 1)),
    is_stopped_answer: Some(|answer| answer.contains("\"stopReason\":\"cancelled\"")),
};

/// A message that is taken back before its run begins is answered with an error in version 2.
pub(super) const ACP_VERSION_2: ClientApi = ClientApi {
    prepare: |server, content| Arc::new(Editor::open(server, content, 2)),
    is_stopped_answer: Some(|answer| {
        answer.contains("\"stopReason\":\"cancelled\"") || answer.contains("\"code\":-32800")
    }),
    ..ACP
};

/// The ids of the requests, in their order.
const INITIALIZE_ID: u64 = 0;
const NEW_SESSION_ID: u64 = 1;
const PROMPT_ID: u64 = 2;

/// An editor with one session.
struct Editor {
    version: u64,
    program: Mutex<Child>,
    /// `None` once it is closed.
    input: Mutex<Option<ChildStdin>>,
    messages: Mutex<Receiver<Value>>,
    session: String,
    text: String,
    _home: DaemonHome,
}

impl Editor {
    fn open(server: &ApiServer, content: &CallContent, version: u64) -> Self {
        let home = DaemonHome::new("");
        let mut command = home.command(quell_exe());
        command.args(["acp", "--agent", content.agent, "--url", &format!("http://{}", server.address)]);
        command.env("QUELL_TOKEN", &server.token).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = command.spawn().unwrap();
        let (input, output) = (program.stdin.take(), program.stdout.take().unwrap());
        let (sender, messages) = channel();
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            // The receiver has gone when the test has failed.
            lines.for_each(|line| drop(sender.send(serde_json::from_str::<Value>(&line).unwrap())));
        });
        let (input, messages) = (Mutex::new(input), Mutex::new(messages));
        let (session, text) = (String::new(), content.text.clone());
        let mut editor = Self { version, program: Mutex::new(program), input, messages, session, text, _home: home };
        let hello = match version {
            1 => json!({"protocolVersion": 1, "clientCapabilities": {}}),
            _ => json!({"protocolVersion": 2, "info": {"name": "it", "version": "1"}, "capabilities": {}}),
        };
        editor.request(INITIALIZE_ID, "initialize", hello);
        editor.read_result(INITIALIZE_ID);
        editor.request(NEW_SESSION_ID, "session/new", json!({"cwd": content.workdir, "mcpServers": []}));
        let opened = editor.read_result(NEW_SESSION_ID);
        opened["sessionId"].as_str().unwrap().clone_into(&mut editor.session);
        editor
    }

    fn request(&self, id: u64, method: &str, params: Value) {
        self.write(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    fn write(&self, message: &Value) {
        let mut input = self.input.lock().unwrap();
        writeln!(input.as_mut().unwrap(), "{message}").unwrap();
    }

    /// Reads messages up to the answer to this request.
    fn read_result(&self, id: u64) -> Value {
        let message = self.read_until(|message| message["id"] == id && message["method"].is_null());
        assert!(message["error"].is_null(), "{message:#}");
        message["result"].clone()
    }

    fn read_until(&self, is_wanted: impl Fn(&Value) -> bool) -> Value {
        let messages = self.messages.lock().unwrap();
        loop {
            let message = messages.recv_timeout(WAIT_TIMEOUT).expect("the message that the editor waits for");
            if is_wanted(&message) {
                return message;
            }
        }
    }
}

impl StoppableCall for Editor {
    fn session(&self) -> &str {
        &self.session
    }

    fn begin(&self) {
        let prompt = json!([{"type": "text", "text": self.text}]);
        self.request(PROMPT_ID, "session/prompt", json!({"sessionId": self.session, "prompt": prompt}));
    }

    fn stop(&self) {
        let params = json!({"sessionId": self.session});
        self.write(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": params}));
    }

    fn read_answer(&self) -> String {
        if self.version == 1 {
            return self.read_result(PROMPT_ID).to_string();
        }
        let is_end = |message: &Value| message["error"].is_object() || message["params"]["update"]["state"] == "idle";
        self.read_until(is_end).to_string()
    }
}

impl Drop for Editor {
    /// The program ends when its input is closed.
    fn drop(&mut self) {
        let mut program = self.program.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *self.input.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
        if thread::panicking() {
            let _ = program.kill();
        }
        let _ = program.wait();
    }
}
