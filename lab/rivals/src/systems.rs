//! The systems under comparison: how each is started in a world, and the transports through it.

mod mqvpn;
mod wireguard;

use std::process::Command;

use anyhow::{Context, ensure};

use crate::noq_tunnel;
use crate::protocol::{PORT, PORT_BBR, PORT_LIBRARY, PORT_MULTIPATH};
use crate::world::{LTE, SERVER, Side, TARGET, WIFI, World};

/// Implementation and configuration of a system.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Kind {
    /// Marline's proxy in this mode, with SOCKS5 and a forwarded UDP port.
    MarlineProxy(&'static str),
    /// `marline up`.
    MarlineUp,
    /// Marline's library in client and server.
    MarlineLibrary,
    /// The kernel's Multipath TCP.
    Kernel {
        /// True if LTE has the backup flag.
        backup: bool,
    },
    /// The kernel's TCP over one path.
    Tcp {
        /// The path: WiFi or LTE.
        wifi: bool,
        /// True if both ends use BBR instead of CUBIC.
        bbr: bool,
    },
    /// A tunnel over noq.
    Noq,
    /// mqvpn.
    Mqvpn,
    /// WireGuard with our duplicator, which sends its datagrams over both paths.
    WireguardTwice,
}

/// A system.
#[derive(Copy, Clone, Debug)]
pub struct System {
    /// Name on the command line.
    pub name: &'static str,
    /// Implementation and configuration.
    pub kind: Kind,
}

/// All systems, in the order of the tables.
pub const ALL: [System; 13] = [
    System { name: "marline", kind: Kind::MarlineProxy("balanced") },
    System { name: "marline-handover", kind: Kind::MarlineProxy("handover") },
    System { name: "marline-up", kind: Kind::MarlineUp },
    System { name: "marline-library", kind: Kind::MarlineLibrary },
    System { name: "kernel", kind: Kind::Kernel { backup: false } },
    System { name: "kernel-backup", kind: Kind::Kernel { backup: true } },
    System { name: "tcp-wifi", kind: Kind::Tcp { wifi: true, bbr: false } },
    System { name: "tcp-wifi-bbr", kind: Kind::Tcp { wifi: true, bbr: true } },
    System { name: "tcp-lte", kind: Kind::Tcp { wifi: false, bbr: false } },
    System { name: "tcp-lte-bbr", kind: Kind::Tcp { wifi: false, bbr: true } },
    System { name: "noq", kind: Kind::Noq },
    System { name: "mqvpn", kind: Kind::Mqvpn },
    System { name: "wireguard-twice", kind: Kind::WireguardTwice },
];

/// Transports through a running system, in the syntax of [`crate::dial::Dial`].
pub struct Transports {
    /// Transport for streams.
    pub stream: String,
    /// Transport for datagrams, if the system supports them.
    pub datagrams: Option<String>,
}

impl System {
    /// Returns true if the system carries datagrams.
    pub fn has_datagrams(self) -> bool {
        matches!(
            self.kind,
            Kind::MarlineProxy(_)
                | Kind::MarlineUp
                | Kind::Noq
                | Kind::Mqvpn
                | Kind::WireguardTwice
        )
    }

    /// Version of the system.
    ///
    /// # Errors
    /// The system cannot be measured on this machine; the error says what is missing.
    pub fn version(self, programs: &Programs) -> anyhow::Result<String> {
        let first_line = |program: &str, argument: &str| -> anyhow::Result<String> {
            let output = Command::new(program).arg(argument).output();
            let output = output.with_context(|| format!("`{program}` is not installed"))?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let text = if text.is_empty() {
                String::from_utf8_lossy(&output.stderr).into_owned()
            } else {
                text
            };
            Ok(text.lines().next().unwrap_or_default().trim().to_owned())
        };
        let kernel = || first_line("uname", "-r").map(|release| format!("Linux {release}"));
        match self.kind {
            Kind::MarlineProxy(_) | Kind::MarlineUp | Kind::MarlineLibrary => {
                first_line(&programs.marline, "--version")
            }
            Kind::Kernel { .. } => {
                crate::dial::tcp_socket(true).context(
                    "this kernel does not support Multipath \
                    TCP",
                )?;
                kernel()
            }
            Kind::Tcp { bbr, .. } => {
                let congestion = if bbr { "bbr" } else { "cubic" };
                let set = crate::dial::tcp_socket(false)?.set_tcp_congestion(congestion.as_bytes());
                set.with_context(|| format!("this kernel does not support {congestion}"))?;
                kernel()
            }
            Kind::Noq => Ok(noq_version()),
            Kind::Mqvpn => first_line(&programs.mqvpn, "--version"),
            Kind::WireguardTwice => {
                first_line("wg", "--version")?;
                first_line("wireguard-go", "--version")
            }
        }
    }

    /// Starts the system in a world.
    ///
    /// # Errors
    /// The system does not start.
    pub fn start(self, world: &mut World, programs: &Programs) -> anyhow::Result<Transports> {
        let tcp = |port: u16, rest: &str| format!("tcp,to={TARGET}:{port}{rest}");
        match self.kind {
            Kind::MarlineProxy(mode) => start_marline_proxy(world, programs, mode),
            Kind::MarlineUp => start_marline_up(world, programs),
            Kind::MarlineLibrary => {
                let paths = format!("path={},path={}", WIFI.0, LTE.0);
                let stream = format!("library,to={TARGET}:{PORT_LIBRARY},{paths}");
                Ok(Transports { stream, datagrams: None })
            }
            Kind::Kernel { backup } => kernel(world, backup),
            Kind::Tcp { wifi, bbr } => {
                let (interface, _) = if wifi { WIFI } else { LTE };
                let (port, congestion) = if bbr { (PORT_BBR, "bbr") } else { (PORT, "cubic") };
                let rest = format!(",interface={interface},congestion={congestion}");
                Ok(Transports { stream: tcp(port, &rest), datagrams: None })
            }
            Kind::Noq => noq(world, programs),
            Kind::Mqvpn => mqvpn::start(world, programs),
            Kind::WireguardTwice => wireguard::start(world, programs),
        }
    }
}

/// Paths of the programs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `marline`.
    pub marline: String,
    /// `marline-lab`.
    pub lab: String,
    /// This program.
    pub rivals: String,
    /// `mqvpn`.
    pub mqvpn: String,
}

fn noq_version() -> String {
    let lock = include_str!("../Cargo.lock");
    let version = lock.split("name = \"noq\"").nth(1).and_then(|rest| rest.split('"').nth(1));
    format!("noq {}", version.unwrap_or("?"))
}

/// Starts Marline's server and returns the file with the invite.
fn start_marline_server(world: &mut World, programs: &Programs) -> anyhow::Result<()> {
    let marline = programs.marline.as_str();
    let public = format!("{SERVER}:7777");
    let init = ["server", "--init", "--config", "marline.toml", "--listen", "0.0.0.0:7777"];
    let init = [&[marline], &init[..], &["--public", &public, "--invite-out", "invite"]].concat();
    world.run(Side::Server, &init)?;
    // The target is on the server's machine, which the server rejects by default.
    let allow = format!("{TARGET}/32");
    let serve = [
        marline,
        "server",
        "--config",
        "marline.toml",
        "--control",
        "server.sock",
        "--allow",
        &allow,
    ];
    world.start(Side::Server, "marline-server", &serve)?;
    world.await_printed("marline-server", "listening on")
}

fn start_marline_proxy(
    world: &mut World,
    programs: &Programs,
    mode: &str,
) -> anyhow::Result<Transports> {
    start_marline_server(world, programs)?;
    let (socks, forward) = ("127.0.0.1:1080", format!("9000:{TARGET}:{PORT}"));
    let client = [
        programs.marline.as_str(),
        "client",
        "--invite-file",
        "invite",
        "--control",
        "client.sock",
    ];
    let rest =
        ["--mode", mode, "--path", WIFI.0, "--path", LTE.0, "--socks5", socks, "-U", &forward];
    world.start(Side::Client, "marline-client", &[&client[..], &rest].concat())?;
    world.await_printed("marline-client", "socks5 listening on")?;
    let stream = format!("socks,proxy={socks},to={TARGET}:{PORT}");
    Ok(Transports { stream, datagrams: Some("tcp,to=127.0.0.1:9000".into()) })
}

fn start_marline_up(world: &mut World, programs: &Programs) -> anyhow::Result<Transports> {
    start_marline_server(world, programs)?;
    // `up` keeps its records in a machine-wide directory, so parallel worlds need separate ones.
    let script = format!(
        "mkdir -p /run/marline && mount -t tmpfs tmpfs /run/marline && exec {} up --invite-file \
            invite --control \
         client.sock --path {} --path {} --only {TARGET}/32",
        programs.marline, WIFI.0, LTE.0
    );
    world.start(Side::Client, "marline-up", &["sh", "-c", &script])?;
    world.await_printed("marline-up", "up: ")?;
    let way = format!("tcp,to={TARGET}:{PORT}");
    Ok(Transports { stream: way.clone(), datagrams: Some(way) })
}

fn kernel(world: &mut World, backup: bool) -> anyhow::Result<Transports> {
    let limits = ["ip", "mptcp", "limits", "set", "subflow", "2", "add_addr_accepted", "2"];
    for side in [Side::Client, Side::Server] {
        world.run(side, &limits)?;
    }
    for (interface, address) in [WIFI, LTE] {
        let mut endpoint =
            vec!["ip", "mptcp", "endpoint", "add", address, "dev", interface, "subflow"];
        if backup && interface == LTE.0 {
            endpoint.push("backup");
        }
        world.run(Side::Client, &endpoint)?;
    }
    Ok(Transports {
        stream: format!("mptcp,to={TARGET}:{PORT_MULTIPATH},congestion=cubic"),
        datagrams: None,
    })
}

fn noq(world: &mut World, programs: &Programs) -> anyhow::Result<Transports> {
    let rivals = programs.rivals.as_str();
    world.start(Side::Server, "noq-server", &[rivals, "noq-server", "certificate"])?;
    world.await_printed("noq-server", "ready")?;
    world.start(Side::Client, "noq-client", &[rivals, "noq-client", "certificate"])?;
    world.await_printed("noq-client", "ready")?;
    let printed = world.printed("noq-client");
    ensure!(printed.matches("path ").count() >= 2, "noq did not open two paths: {printed}");
    let way = format!("tcp,to=127.0.0.1:{}", noq_tunnel::PORT_LOCAL);
    Ok(Transports { stream: way.clone(), datagrams: Some(way) })
}
