//! A real ngircd on its own port, and test users.

mod test_user;

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use tempfile::TempDir;

use crate::WAIT_TIMEOUT;
use crate::external_server::{ExternalServer, free_port, start_server};
use crate::or_fail::OrFail as _;

pub use test_user::{IrcLine, IrcTestUser};

/// Help text for a missing ngircd.
const MISSING_NGIRCD_HELP: &str = "ngircd is missing: `cargo xtask test --full` installs it";
/// Debian's directory of daemons is not in every PATH.
const PROGRAMS: &[&str] = &["ngircd", "/usr/sbin/ngircd"];

/// A self-signed certificate for `127.0.0.1` and `localhost`, worthless elsewhere, valid until the year 2126.
const CERTIFICATE: &str = include_str!("irc/tls/certificate.pem");
const KEY: &str = include_str!("irc/tls/key.pem");
/// RFC 7919: ffdhe2048. Without parameters ngircd first generates its own.
const DH_PARAMETERS: &str = include_str!("irc/tls/dh.pem");

#[derive(Debug, Clone, Default)]
pub struct IrcSettings {
    /// Password that every client must send.
    pub password: Option<String>,
    /// Open a second port for TLS.
    pub tls: bool,
}

/// A running ngircd. Dropping it kills it.
#[derive(Debug)]
pub struct IrcServer {
    process: ExternalServer,
    home: TempDir,
    settings: IrcSettings,
    ports: IrcPorts,
}

#[derive(Debug, Clone, Copy)]
struct IrcPorts {
    plain: u16,
    tls: Option<u16>,
}

impl IrcServer {
    /// Starts a server without password and TLS.
    ///
    /// # Panics
    /// When ngircd is missing or does not start.
    pub async fn start() -> Self {
        Self::start_with(IrcSettings::default()).await
    }

    /// # Panics
    /// When ngircd is missing or does not start.
    pub async fn start_with(settings: IrcSettings) -> Self {
        let home = TempDir::with_prefix("quell-irc-").or_fail("no folder for ngircd");
        let (process, ports) = start_server("ngircd", async || {
            let ports = IrcPorts { plain: free_port(), tls: settings.tls.then(free_port) };
            write_config(home.path(), ports, &settings).or_fail("no configuration for ngircd");
            Ok((start_process(home.path(), ports).await?, ports))
        })
        .await;
        Self { process, home, settings, ports }
    }

    /// As `host:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.ports.plain)
    }

    /// TLS address as `host:port`.
    ///
    /// # Panics
    /// When it was started without TLS.
    pub fn tls_address(&self) -> String {
        format!("127.0.0.1:{}", self.ports.tls.or_fail("this server was started without TLS"))
    }

    /// File with the certificate that a client must trust, for example by `SSL_CERT_FILE`.
    pub fn certificate(&self) -> PathBuf {
        self.home.path().join("certificate.pem")
    }

    pub fn password(&self) -> Option<&str> {
        self.settings.password.as_deref()
    }

    /// The output of ngircd so far.
    pub fn output(&self) -> String {
        self.process.output()
    }

    /// Kills it; its port stays free for [`IrcServer::restart`].
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Kills it and starts it again on the same port, without users.
    ///
    /// # Cancel safety
    /// If dropped, the server may stay killed.
    pub async fn restart(&mut self) {
        self.kill();
        let started = start_process(self.home.path(), self.ports).await;
        self.process = started.unwrap_or_else(|output| panic!("ngircd does not start again\n{output}"));
    }
}

/// A listening process, or its output.
async fn start_process(home: &Path, ports: IrcPorts) -> Result<ExternalServer, String> {
    let mut unopened = if ports.tls.is_some() { 2 } else { 1 };
    let count_ports = move |line: &str| {
        unopened -= i32::from(line.contains("Now listening on"));
        (unopened == 0).then_some(())
    };
    Ok(ExternalServer::watch(spawn(home), WAIT_TIMEOUT, count_ports).await?.0)
}

fn spawn(home: &Path) -> Child {
    let mut problem = String::new();
    for program in PROGRAMS {
        #[expect(clippy::disallowed_methods, reason = "the test starts an external program")]
        let mut command = std::process::Command::new(program);
        command.arg("--nodaemon").arg("--config").arg(home.join("ngircd.conf"));
        match command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn() {
            Ok(child) => return child,
            Err(error) => problem = error.to_string(),
        }
    }
    panic!("{MISSING_NGIRCD_HELP} ({problem})");
}

fn write_config(home: &Path, ports: IrcPorts, settings: &IrcSettings) -> io::Result<()> {
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
    // When started by root, ngircd reads its files as user nobody.
    std::fs::set_permissions(home, Permissions::from_mode(0o755))
}
