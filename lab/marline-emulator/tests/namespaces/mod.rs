//! Test and benchmark network of two namespaces with emulated links between them. Path number n has
//! the interface `path<n>` with 10.90.n.2 at the client and 10.90.n.1 at the server.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use marline_emulator::netns;
use marline_emulator::{Emulator, LinkEnds, TunnelConfig, TunnelEnd};
use marline_link::DuplexSpec;
use marline_time::SeedTree;

pub(crate) struct Testbed {
    // Drop order: the interfaces are removed before their namespaces.
    pub(crate) emulator: Emulator,
    names: Names,
}

/// Namespaces, removed on drop, also after a panic.
struct Names([String; 2]);

impl Drop for Names {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

pub(crate) fn ip(words: &[&str]) -> io::Result<()> {
    let output = Command::new("ip").args(words).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(io::Error::other(format!("ip {}: {said}", words.join(" "))))
}

impl Testbed {
    /// `tag` distinguishes testbeds of one process. `read` reads traces.
    pub(crate) fn new(
        tag: &str,
        paths: usize,
        spec: &str,
        spin: Duration,
        read: &mut dyn FnMut(&str) -> Option<Vec<u8>>,
    ) -> io::Result<Testbed> {
        let names = ["c", "s"].map(|side| format!("emu-{}-{tag}-{side}", std::process::id()));
        let names = Names(names);
        names.0.iter().try_for_each(|name| ip(&["netns", "add", name]))?;
        let spec: DuplexSpec = spec.parse().map_err(io::Error::other)?;
        let mut links = Vec::new();
        for path in 0..paths {
            let name = format!("path{path}");
            let seeds = SeedTree::new(1).branch(&name);
            let link = spec.resolve(&seeds, read).map_err(io::Error::other)?;
            let [client, server] = names
                .0
                .clone()
                .map(|namespace| TunnelEnd { namespace: Some(namespace), interface: name.clone() });
            let schedule = Vec::new();
            let config = TunnelConfig { name, client, server, link, seeds, schedule, tap: None };
            links.push(LinkEnds::Tunnel(config));
        }
        let emulator = Emulator::start_links(links, spin)?;
        for (namespace, host) in names.0.iter().zip([2, 1]) {
            // Otherwise the kernel's router solicitations would be counted.
            ip(&["netns", "exec", namespace, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"])?;
            for path in 0..paths {
                let (device, address) = (format!("path{path}"), format!("10.90.{path}.{host}/24"));
                ip(&["-n", namespace, "link", "set", &device, "txqueuelen", "10000", "up"])?;
                ip(&["-n", namespace, "addr", "add", &address, "dev", &device])?;
            }
        }
        Ok(Testbed { emulator, names })
    }

    pub(crate) fn client(&self) -> &str {
        &self.names.0[0]
    }

    pub(crate) fn server(&self) -> &str {
        &self.names.0[1]
    }

    /// A socket of the client connected over the first path to one of the server.
    pub(crate) fn sockets(&self) -> io::Result<(UdpSocket, UdpSocket)> {
        let to: SocketAddr = ([10, 90, 0, 1], 5_000).into();
        let server = netns::run_in(self.server(), || UdpSocket::bind(to))?;
        let client = netns::run_in(self.client(), || {
            let socket = UdpSocket::bind("10.90.0.2:0")?;
            socket.connect(to).map(|()| socket)
        })?;
        Ok((client, server))
    }
}

/// CPU time of the thread of this process's only emulator.
pub(crate) fn processor_time() -> io::Result<Duration> {
    for entry in std::fs::read_dir("/proc/self/task")?.flatten() {
        let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if name.trim() == "marline-link" {
            let text = std::fs::read_to_string(entry.path().join("schedstat"))?;
            let first = text.split_ascii_whitespace().next().and_then(|word| word.parse().ok());
            return Ok(Duration::from_nanos(first.unwrap_or(0)));
        }
    }
    Err(io::ErrorKind::NotFound.into())
}
