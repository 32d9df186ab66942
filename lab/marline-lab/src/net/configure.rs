//! Addresses, routes and settings of a host.
//! The `ip` program, which is required for `ip mptcp`, runs one batch per host. Its errors name the line. Sysctls are
//! written by a thread in the namespace.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use ipnet::IpNet;
use marline_emulator::netns;

use crate::scenario::{Endpoint, Path, Scenario, Side};

/// Transmit queue of an interface in packets. The link's thread reads within microseconds, but a burst of a whole
/// window must reach the link model without loss.
const QUEUE_PACKETS: u32 = 10_000;
/// Routing table of the first path. The others follow.
const FIRST_TABLE: usize = 101;
/// Metric of the first path's default route.
const FIRST_METRIC: usize = 10;

/// Creates a namespace.
pub(super) fn make_namespace(name: &str) -> anyhow::Result<()> {
    let output = Command::new("ip").args(["netns", "add", name]).output();
    let output = output.context("cannot run `ip` (package iproute2)")?;
    if !output.status.success() {
        bail!("cannot create the namespace {name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // Set before interfaces exist, because an interface takes the defaults at its creation.
    for (key, value) in INTERFACE_SYSCTLS {
        set(name, key, value)?;
    }
    Ok(())
}

/// Sysctls that make interfaces send nothing on their own and be usable immediately.
const INTERFACE_SYSCTLS: &[(&str, &str)] = &[
    ("net.ipv6.conf.default.accept_ra", "0"),
    ("net.ipv6.conf.default.router_solicitations", "0"),
    ("net.ipv6.conf.default.accept_dad", "0"),
    ("net.ipv6.conf.all.accept_dad", "0"),
    ("net.ipv4.conf.all.rp_filter", "0"),
    ("net.ipv4.conf.default.rp_filter", "0"),
];

/// Sysctls for measurements: no cached metrics of earlier connections, no blackhole detection that outlives a test,
/// and the congestion control of the comparison.
const MEASUREMENT_SYSCTLS: &[(&str, &str)] = &[
    ("net.ipv4.tcp_no_metrics_save", "1"),
    ("net.ipv4.tcp_congestion_control", "cubic"),
    ("net.mptcp.blackhole_timeout", "0"),
];

/// Configures one host, whose interfaces exist already.
pub(super) fn configure(scenario: &Scenario, side: Side, namespace: &str) -> anyhow::Result<()> {
    batch(namespace, &batch_script(scenario, side))?;
    let host = scenario.host(side);
    for (key, value) in MEASUREMENT_SYSCTLS {
        set(namespace, key, value)?;
    }
    let switch = |on: bool| if on { "1" } else { "0" };
    set(namespace, "net.mptcp.enabled", switch(host.mptcp.enabled))?;
    set(namespace, "net.mptcp.checksum_enabled", switch(host.mptcp.checksum))?;
    for (key, value) in &host.sysctl {
        set(namespace, key, value)?;
    }
    Ok(())
}

/// Returns the lines for `ip -batch`.
fn batch_script(scenario: &Scenario, side: Side) -> String {
    let mut lines = "link set lo up\n".to_owned();
    for (number, path) in scenario.paths.iter().enumerate() {
        interface(&mut lines, side, path);
        routes(&mut lines, side, number, &path.name, path.addresses(side));
    }
    let mptcp = &scenario.host(side).mptcp;
    let (subflows, accepted) = (mptcp.subflows, mptcp.add_addr_accepted);
    let _ = writeln!(lines, "mptcp limits set subflows {subflows} add_addr_accepted {accepted}");
    for endpoint in &mptcp.endpoints {
        let _ = writeln!(lines, "{}", endpoint_command(endpoint));
    }
    lines
}

/// Brings up an interface with its addresses.
fn interface(lines: &mut String, side: Side, path: &Path) {
    let name = &path.name;
    let mtu = path.mtu.map_or(String::new(), |mtu| format!(" mtu {mtu}"));
    // Writing to a String cannot fail.
    let _ = writeln!(lines, "link set {name} txqueuelen {QUEUE_PACKETS}{mtu} up");
    for net in path.addresses(side) {
        let nodad = if net.addr().is_ipv6() { " nodad" } else { "" };
        let _ = writeln!(lines, "addr add {net} dev {name}{nodad}");
    }
}

/// Brings up the interfaces of one side with their addresses, but without routes.
pub(super) fn set_up(namespace: &str, side: Side, paths: &[Path]) -> anyhow::Result<()> {
    let mut lines = String::new();
    paths.iter().for_each(|path| interface(&mut lines, side, path));
    batch(namespace, &lines)
}

/// Adds routes and rules. The client's packets use the interface of their source address, and the server's packets
/// that of their destination address, so the client's address identifies the path in both directions. Packets without
/// a source address use the first path.
fn routes(lines: &mut String, side: Side, number: usize, name: &str, addresses: &[IpNet]) {
    let (table, metric) = (FIRST_TABLE + number, FIRST_METRIC + number);
    for family in ["-4", "-6"] {
        let of_family = |net: &&IpNet| net.addr().is_ipv6() == (family == "-6");
        let mut mine = addresses.iter().filter(of_family).peekable();
        if mine.peek().is_none() {
            continue;
        }
        let _ = writeln!(lines, "{family} route add default dev {name} metric {metric}");
        if side == Side::Server {
            continue;
        }
        let _ = writeln!(lines, "{family} route add default dev {name} table {table}");
        for net in mine {
            let _ = writeln!(lines, "{family} rule add from {} lookup {table}", net.addr());
        }
    }
}

fn endpoint_command(endpoint: &Endpoint) -> String {
    let mut line = format!("mptcp endpoint add {}", endpoint.address);
    if let Some(path) = &endpoint.path {
        let _ = write!(line, " dev {path}");
    }
    if let Some(id) = endpoint.id {
        let _ = write!(line, " id {id}");
    }
    if let Some(port) = endpoint.port {
        let _ = write!(line, " port {port}");
    }
    for flag in &endpoint.flags {
        let _ = write!(line, " {}", flag.name());
    }
    line
}

fn batch(namespace: &str, script: &str) -> anyhow::Result<()> {
    // `-4` and `-6` are options of the program, not of a line, so there is one run per family and subject.
    for (option, lines) in group_lines(script) {
        let mut ip = Command::new("ip");
        ip.args(["-n", namespace]);
        ip.args(option);
        ip.args(["-batch", "-"]);
        ip.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = ip.spawn().context("cannot run `ip` (package iproute2)")?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(lines.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("ip -batch: {}\nlines:\n{lines}", said.trim());
        }
    }
    Ok(())
}

/// Groups consecutive lines by family option, and removes the option.
fn group_lines(script: &str) -> Vec<(Option<&'static str>, String)> {
    let mut groups: Vec<(Option<&'static str>, String)> = Vec::new();
    for line in script.lines() {
        let (option, rest) = match line.split_at_checked(3) {
            Some(("-4 ", rest)) => (Some("-4"), rest),
            Some(("-6 ", rest)) => (Some("-6"), rest),
            _ => (None, line),
        };
        match groups.last_mut() {
            Some((last, lines)) if *last == option => {
                let _ = writeln!(lines, "{rest}");
            }
            _ => groups.push((option, format!("{rest}\n"))),
        }
    }
    groups
}

/// Writes a sysctl in a namespace.
fn set(namespace: &str, key: &str, value: &str) -> anyhow::Result<()> {
    let write = || {
        let file = format!("/proc/sys/{}", key.replace('.', "/"));
        netns::run_in(namespace, || std::fs::write(&file, value))
    };
    let mut result = write();
    let refused = result.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied);
    if refused && key == "net.ipv4.tcp_congestion_control" {
        allow_congestion_control(value)?;
        result = write();
    }
    result.with_context(|| format!("cannot set {key} = {value}"))
}

/// Adds a congestion control to the machine's list of allowed ones, from which namespaces may choose.
fn allow_congestion_control(name: &str) -> anyhow::Result<()> {
    const LIST: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
    let before = std::fs::read_to_string(LIST).with_context(|| LIST.to_owned())?;
    if before.split_ascii_whitespace().any(|known| known == name) {
        return Ok(());
    }
    eprintln!("marline-lab: adding {name} to net.ipv4.tcp_allowed_congestion_control");
    std::fs::write(LIST, format!("{} {name}", before.trim())).with_context(|| LIST.to_owned())
}
