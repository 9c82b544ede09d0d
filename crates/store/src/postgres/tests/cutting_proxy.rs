//! A proxy in front of the server that can lose one message of a connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// What happens at the next `COMMIT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// The server gets it; the client loses the connection instead of the answer.
    Answer,
    /// Both lose the connection instead.
    Request,
    /// Only the client learns that the connection is lost; the server goes on waiting.
    RequestSilently,
}

/// Forwards connections until the test ends.
pub(super) struct CuttingProxy {
    address: SocketAddr,
    next: Arc<Mutex<Option<Cut>>>,
}

/// The message `COMMIT`, and the end of its answer.
const REQUEST: &[u8] = b"COMMIT\0";

impl CuttingProxy {
    pub(super) fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let next = Arc::new(Mutex::new(None));
        let cuts = Arc::clone(&next);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
                let pipe = |from: &TcpStream, to: &TcpStream| (from.try_clone().unwrap(), to.try_clone().unwrap());
                let (requests, answers) = (pipe(&client, &server), pipe(&server, &client));
                let (of_requests, of_answers) = (Arc::clone(&cuts), Arc::clone(&cuts));
                thread::spawn(move || forward_requests(requests.0, requests.1, &of_requests));
                thread::spawn(move || forward_answers(answers.0, answers.1, &of_answers));
            }
        });
        Self { address, next }
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(super) fn cut_next_commit(&self, cut: Cut) {
        *self.next.lock().unwrap() = Some(cut);
    }

    /// Whether what was asked for has happened.
    pub(super) fn has_cut(&self) -> bool {
        self.next.lock().unwrap().is_none()
    }
}

fn forward_requests(mut client: TcpStream, mut server: TcpStream, next: &Mutex<Option<Cut>>) {
    while let Some(bytes) = read_some(&mut client) {
        match take_cut(&bytes, next, |cut| cut != Cut::Answer) {
            None if server.write_all(&bytes).is_ok() => {}
            None => break,
            Some(Cut::RequestSilently) => {
                client.shutdown(Shutdown::Both).unwrap();
                // Keeps the connection to the server open: this thread waits for nothing that comes.
                return thread::park();
            }
            Some(_) => break,
        }
    }
    close(&client, &server);
}

fn forward_answers(mut server: TcpStream, mut client: TcpStream, next: &Mutex<Option<Cut>>) {
    while let Some(bytes) = read_some(&mut server) {
        if take_cut(&bytes, next, |cut| cut == Cut::Answer).is_some() || client.write_all(&bytes).is_err() {
            break;
        }
    }
    close(&client, &server);
}

fn take_cut(bytes: &[u8], next: &Mutex<Option<Cut>>, is_ours: impl Fn(Cut) -> bool) -> Option<Cut> {
    if !bytes.windows(REQUEST.len()).any(|window| window == REQUEST) {
        return None;
    }
    next.lock().unwrap_or_else(PoisonError::into_inner).take_if(|cut| is_ours(*cut))
}

fn read_some(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        match from.read(&mut bytes) {
            Ok(0) => return None,
            Ok(length) => {
                bytes.truncate(length);
                return Some(bytes);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

fn close(client: &TcpStream, server: &TcpStream) {
    // One of them is closed already.
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}
