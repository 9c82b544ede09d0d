//! A real ngircd on a port of its own, and people who talk there.

mod person;
#[cfg(test)]
mod tests;

use std::fs::Permissions;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::time::timeout;

pub use person::{IrcLine, IrcPerson};

/// How long a test waits. It decides only how late a failing one fails.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a server is started until it has a port for itself.
const ATTEMPTS: u32 = 5;
/// What tests need that fail here.
const NEEDS: &str = "ngircd is missing: `cargo xtask test` installs it";
/// Debian's folder of daemons, which is not in everybody's path.
const PROGRAMS: &[&str] = &["ngircd", "/usr/sbin/ngircd"];

/// A certificate for `127.0.0.1` and `localhost`, signed by itself and of no worth anywhere, until the year 2126.
const CERTIFICATE: &str = include_str!("irc/tls/certificate.pem");
/// Its key.
const KEY: &str = include_str!("irc/tls/key.pem");
/// RFC 7919: ffdhe2048. Without any ngircd looks for some of its own first.
const DH_PARAMETERS: &str = include_str!("irc/tls/dh.pem");

/// How a server is set up.
#[derive(Debug, Clone, Default)]
pub struct IrcSettings {
    /// What everybody has to know who connects.
    pub password: Option<String>,
    /// A second port, where TLS is spoken.
    pub tls: bool,
}

/// A running ngircd. Dropping it kills it.
#[derive(Debug)]
pub struct IrcServer {
    process: Process,
    home: TempDir,
    settings: IrcSettings,
    ports: Ports,
}

/// Where it listens.
#[derive(Debug, Clone, Copy)]
struct Ports {
    plain: u16,
    tls: Option<u16>,
}

/// The program, and what it says.
#[derive(Debug)]
struct Process {
    child: Child,
    output: Arc<Mutex<String>>,
}

impl IrcServer {
    /// Starts one that everybody may use.
    ///
    /// # Cancel safety
    /// Safe: nothing is left behind.
    ///
    /// # Panics
    /// When ngircd is missing or does not start.
    pub async fn start() -> Self {
        Self::start_with(IrcSettings::default()).await
    }

    /// Starts one with settings.
    ///
    /// # Cancel safety
    /// Safe: nothing is left behind.
    ///
    /// # Panics
    /// When ngircd is missing or does not start.
    pub async fn start_with(settings: IrcSettings) -> Self {
        let home = match TempDir::with_prefix("quell-irc-") {
            Ok(home) => home,
            Err(error) => panic!("no folder for ngircd: {error}"),
        };
        let mut said = String::new();
        for _ in 0..ATTEMPTS {
            let ports = Ports { plain: free_port(), tls: settings.tls.then(free_port) };
            if let Err(error) = configure(home.path(), ports, &settings) {
                panic!("no configuration for ngircd: {error}");
            }
            match Process::start(home.path(), ports).await {
                Ok(process) => return Self { process, home, settings, ports },
                Err(output) => said = output,
            }
        }
        panic!("ngircd does not start\n{said}");
    }

    /// Where it listens, as `host:port`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.ports.plain)
    }

    /// Where it speaks TLS, as `host:port`.
    ///
    /// # Panics
    /// When it was started without.
    #[must_use]
    pub fn tls_address(&self) -> String {
        match self.ports.tls {
            Some(port) => format!("127.0.0.1:{port}"),
            None => panic!("this server was started without TLS"),
        }
    }

    /// The file with the certificate that a client has to trust, such as by `SSL_CERT_FILE`.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.home.path().join("certificate.pem")
    }

    /// The password that it wants, if it wants one.
    #[must_use]
    pub fn password(&self) -> Option<&str> {
        self.settings.password.as_deref()
    }

    /// What ngircd said so far.
    #[must_use]
    pub fn output(&self) -> String {
        self.process.output()
    }

    /// Kills it; its port stays free for [`IrcServer::restart`].
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Kills it and starts it anew on the same port, with nobody there.
    ///
    /// # Cancel safety
    /// Dropped half-way it may be left killed.
    ///
    /// # Panics
    /// When it does not start again.
    pub async fn restart(&mut self) {
        self.kill();
        match Process::start(self.home.path(), self.ports).await {
            Ok(process) => self.process = process,
            Err(output) => panic!("ngircd does not start again\n{output}"),
        }
    }
}

impl Process {
    /// One that listens, or what it said instead.
    async fn start(home: &Path, ports: Ports) -> Result<Self, String> {
        let mut child = spawn(home);
        let output = Arc::new(Mutex::new(String::new()));
        let (announce, announced) = oneshot::channel();
        let ports = if ports.tls.is_some() { 2 } else { 1 };
        if let Some(stdout) = child.stdout.take() {
            let kept = Arc::clone(&output);
            // It ends with the output of the server.
            let reading = std::thread::Builder::new().name("ngircd-output".into());
            if let Err(error) = reading.spawn(move || read_output(stdout, ports, &kept, announce)) {
                panic!("no thread for ngircd: {error}");
            }
        }
        let process = Self { child, output };
        match timeout(PATIENCE, announced).await {
            Ok(Ok(())) => Ok(process),
            _ => Err(process.output()),
        }
    }

    fn output(&self) -> String {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn kill(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(home: &Path) -> Child {
    let mut problem = String::new();
    for program in PROGRAMS {
        #[expect(clippy::disallowed_methods, reason = "the other side is a program of its own")]
        let mut command = std::process::Command::new(program);
        command.arg("--nodaemon").arg("--config").arg(home.join("ngircd.conf"));
        match command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn() {
            Ok(child) => return child,
            Err(error) => problem = error.to_string(),
        }
    }
    panic!("{NEEDS} ({problem})");
}

/// Keeps what the server says, and tells when it listens on so many ports.
fn read_output(stdout: impl Read, mut ports: u32, kept: &Mutex<String>, announce: oneshot::Sender<()>) {
    let mut announce = Some(announce);
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if line.contains("Now listening on") {
            ports = ports.saturating_sub(1);
        }
        if ports == 0
            && let Some(announce) = announce.take()
        {
            let _ = announce.send(());
        }
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_str(&line);
        kept.push('\n');
    }
}

fn free_port() -> u16 {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    match bound {
        Ok(address) => address.port(),
        Err(error) => panic!("no free port: {error}"),
    }
}

fn configure(home: &Path, ports: Ports, settings: &IrcSettings) -> io::Result<()> {
    let password = settings.password.as_ref().map(|password| format!("Password = {password}\n")).unwrap_or_default();
    let mut text = format!(
        "[Global]\nName = irc.test\nInfo = Quell's tests\nNetwork = TestNet\nListen = 127.0.0.1\nPorts = {}\n\
         MotdPhrase = welcome\n{password}\
         [Limits]\nMaxConnectionsIP = 0\nMaxNickLength = 30\n\
         [Options]\nDNS = no\nIdent = no\nPAM = no\n",
        ports.plain
    );
    if let Some(port) = ports.tls {
        text += &format!("[SSL]\nPorts = {port}\n");
        let files = [("Cert", "certificate", CERTIFICATE), ("Key", "key", KEY), ("DH", "dh", DH_PARAMETERS)];
        for (key, name, pem) in files {
            let path = home.join(format!("{name}.pem"));
            std::fs::write(&path, pem)?;
            text += &format!("{key}File = {}\n", path.display());
        }
    }
    std::fs::write(home.join("ngircd.conf"), text)?;
    // Started by root it reads its files as nobody.
    std::fs::set_permissions(home, Permissions::from_mode(0o755))
}
