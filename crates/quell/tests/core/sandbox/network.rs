//! The network of sandboxed commands: none, or the servers of a list.

use super::usability::has_program;
use super::*;

/// A server that answers each connection with one line, and counts them.
async fn answering_server() -> (std::net::SocketAddr, tokio::sync::watch::Receiver<usize>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (count, seen) = tokio::sync::watch::channel(0);
    #[expect(clippy::disallowed_methods, reason = "a server of the test")]
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            count.send_modify(|count| *count += 1);
            let (mut request, mut chunk) = (Vec::new(), [0; 1024]);
            while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                match tokio::io::AsyncReadExt::read(&mut stream, &mut chunk).await {
                    Ok(read @ 1..) => request.extend_from_slice(&chunk[..read]),
                    _ => break,
                }
            }
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nreached";
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await;
        }
    });
    (address, seen)
}

/// Asks for a URL through the proxy of the environment, if there is one.
fn get(url: &str) -> String {
    format!(
        "python3 - <<'END'\nimport urllib.request\nprint(urllib.request.urlopen('{url}', timeout=10).read().decode())\nEND"
    )
}

#[rstest]
#[case::shared("", true, true)]
#[case::closed("network = \"off\"\n", false, false)]
#[case::listed("network = [\"LISTED\"]\n", true, false)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_reach_the_servers_of_their_agent(
    #[case] network: &str,
    #[case] reaches_listed: bool,
    #[case] reaches_other: bool,
    #[values(SandboxUser::Root, SandboxUser::Ordinary)] user: SandboxUser,
) {
    if !has_program("python3") {
        return;
    }
    let (listed, seen) = answering_server().await;
    let (other, other_seen) = answering_server().await;
    let agent = network.replace("LISTED", &listed.to_string());
    let Some(test) = SandboxDaemon::start(user, &agent).await else { return };
    // The loopback interface of the command is its own: the proxy is asked for the server of the test.
    let ask =
        |address: std::net::SocketAddr| format!("unset NO_PROXY no_proxy\n{}", get(&format!("http://{address}/")));
    let (told, _) = test.run_command("s", &ask(listed)).await;
    assert_eq!(told.contains("reached"), reaches_listed, "{told}");
    assert_eq!(*seen.borrow() > 0, reaches_listed);
    let (told, run) = test.run_command("t", &ask(other)).await;
    assert_eq!(told.contains("reached"), reaches_other, "{told}");
    assert_eq!(*other_seen.borrow() > 0, reaches_other);
    if network.contains("LISTED") {
        assert!(told.contains("The network list of this agent refused") && told.contains(&other.to_string()), "{told}");
        let layers = process_row(&run)["sandbox"]["layers"].as_array().unwrap().clone();
        assert!(layers.contains(&json!("network")), "{layers:?}");
    }
    // A server of the command's own is reached in any case.
    // Its port is chosen by the system: another command may run in the same network.
    let own = "python3 -c \"import socket; server = socket.create_server(('127.0.0.1', 0)); \
               socket.create_connection(server.getsockname()); print('served')\"";
    let (told, _) = test.run_command("u", own).await;
    assert!(told.contains("served"), "{told}");
}

/// A server in the background is reached by the next command of its session, and by nobody else.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_a_session_reach_each_other(
    #[values("off", "list")] network: &str,
    #[values(SandboxUser::Root, SandboxUser::Ordinary)] user: SandboxUser,
) {
    if !has_program("python3") {
        return;
    }
    let (listed, _) = answering_server().await;
    let value = if network == "off" { "\"off\"".to_owned() } else { format!("[\"{listed}\"]") };
    let Some(test) = SandboxDaemon::start(user, &format!("network = {value}\n")).await else { return };
    let serve = json!({"command": "exec python3 -m http.server 8123 --bind 127.0.0.1", "background": true});
    test.model.script(ScriptedResponse::tool_call("c0", "shell", &serve)).script(ScriptedResponse::text("serving"));
    let run = test.daemon.api().send_message("s", "serve").await;
    test.daemon.api().wait_ended(&run).await;
    let connect = "python3 -c \"import socket; socket.create_connection(('127.0.0.1', 8123)); print('connected')\"";
    let (told, _) = test.run_command("s", &format!("until {connect} 2>/dev/null; do :; done")).await;
    assert!(told.contains("connected"), "{told}");
    let (told, _) = test.run_command("other", connect).await;
    assert!(!told.contains("connected"), "{told}");
    if network == "list" {
        // Each command has a proxy of its own, also while another one of the session runs.
        let ask = format!("unset NO_PROXY no_proxy\n{}", get(&format!("http://{listed}/")));
        let (told, _) = test.run_command("s", &ask).await;
        assert!(told.contains("reached"), "{told}");
    }
    test.daemon.api().post("/api/sessions/s/stop?wait=1", &json!({})).await.expect_status(200);
}

/// A server on the port of the proxy, on all addresses, is in the way of the next command; its proxy says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_the_port_of_the_proxy_is_named() {
    if !has_program("python3") {
        return;
    }
    let Some(test) = SandboxDaemon::start(SandboxUser::Ordinary, "network = [\"example.org:443\"]\n").await else {
        return;
    };
    // The first command has its proxy on 127.0.0.1; the server listens on another loopback address that is still free.
    let serve = "exec python3 -c \"import socket; s = [socket.create_server(('127.0.0.%d' % n, 3128)) for n in range(2, 9)]; \
                 open('ready', 'w'); socket.socket.accept(s[0])\"";
    let serve = json!({"command": serve, "background": true});
    test.model.script(ScriptedResponse::tool_call("c0", "shell", &serve)).script(ScriptedResponse::text("serving"));
    let run = test.daemon.api().send_message("s", "serve").await;
    test.daemon.api().wait_ended(&run).await;
    let ready = test.daemon.home().work_dir().join("main/ready");
    poll_until("the server", async || ready.exists().then_some(())).await;
    test.model.script(shell_call("true")).script(ScriptedResponse::text("seen"));
    let run = test.daemon.api().send_message("s", "go").await;
    test.daemon.api().wait_ended(&run).await;
    let told = test.model.recorded_requests().last().unwrap().messages().last().unwrap()["content"].to_string();
    assert!(told.contains("uses port 3128") && told.contains("end it"), "{told}");
    test.daemon.api().post("/api/sessions/s/stop?wait=1", &json!({})).await.expect_status(200);
}

#[rstest]
#[case::closed("network = \"off\"\n", "has no network")]
#[case::listed("network = [\"example.org:443\"]\n", "example.org:443")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetch_url_has_the_same_border(#[case] network: &str, #[case] why: &str) {
    let Some(test) = SandboxDaemon::start(SandboxUser::Ordinary, network).await else { return };
    let call = ScriptedResponse::tool_call("c1", "fetch_url", &json!({"url": "https://example.com/"}));
    test.model.script(call).script(ScriptedResponse::text("seen"));
    let run = test.daemon.api().send_message("s", "go").await;
    test.daemon.api().wait_ended(&run).await;
    let requests = test.model.recorded_requests();
    let told = requests.last().unwrap().messages().last().unwrap()["content"].to_string();
    assert!(told.contains(why) || told.contains("example.com"), "{told}");
    assert!(!told.contains("resolve"), "the name was looked up: {told}");
}

/// A stop in the middle of a transfer through the proxy closes its sockets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_the_proxy_with_its_command() {
    if !has_program("python3") {
        return;
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let agent = format!("network = [\"{address}\"]\n");
    let Some(test) = SandboxDaemon::start(SandboxUser::Ordinary, &agent).await else { return };
    let command = format!("unset NO_PROXY no_proxy\n{}", get(&format!("http://{address}/")));
    test.model.script(shell_call(command));
    let run = test.daemon.api().send_message("s", "go").await;
    let (mut server_side, _) = listener.accept().await.unwrap();
    let view = test.daemon.api().post(&format!("/api/runs/{run}/stop?wait=1"), &json!({})).await.expect_status(200);
    assert_eq!(view["receipt"]["leftovers"], json!([]), "{view:#}");
    let proxy = view["receipt"]["resources"].as_array().unwrap().iter().find(|row| row["label"] == "network proxy");
    assert_eq!(proxy.unwrap()["how"], "cancelled", "{view:#}");
    // The end of the connection, after the request.
    let mut rest = Vec::new();
    let ended = tokio::io::AsyncReadExt::read_to_end(&mut server_side, &mut rest).await;
    assert!(
        ended.is_ok()
            || rest.is_empty()
            || ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
    );
}
