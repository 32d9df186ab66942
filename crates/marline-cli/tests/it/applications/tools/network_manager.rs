//! NetworkManager renames, renumbers, disconnects and switches off the interfaces of a machine with `marline up`
//! (`network_manager.sh`): open connections continue, and everything uses the tunnel.

use std::process::{Command, Stdio};

use super::super::support::two_uplinks;
use super::super::{run, support};

const WORLD: &str = include_str!("network_manager.sh");
const TRAFFIC: &str = include_str!("traffic.py");

/// Longest time without an answer of a connection, of datagrams and of new connections in milliseconds.
const LONGEST: u64 = 4_000;

#[test]
#[ignore = "nightly: needs NetworkManager"]
fn network_manager_does_not_interrupt_marline_up() {
    let _others = support::among_others();
    let programs = ["unshare", "python3", "NetworkManager", "nmcli", "dbus-daemon", "dnsmasq"];
    if !two_uplinks::possible(&programs) {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    run::write_script(&dir.path().join("world"), WORLD);
    std::fs::write(dir.path().join("traffic.py"), TRAFFIC).expect("write");
    let program = support::program();
    let path = std::env::var("PATH").unwrap_or_default();
    let namespaces = ["--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"];
    let output = Command::new("unshare")
        .args(namespaces)
        .args(["timeout", "300", "./world"])
        .current_dir(dir.path())
        .env(
            "PATH",
            format!("{}:{path}:/usr/sbin", program.parent().expect("a directory").display()),
        )
        .stdin(Stdio::null())
        .output()
        .expect("unshare");
    let (out, err) = support::texts(&output);
    let traffic = std::fs::read_to_string(dir.path().join("traffic")).unwrap_or_default();
    println!("{out}{traffic}");
    assert!(output.status.success(), "{out}{err}");
    let echo = std::fs::read_to_string(dir.path().join("echo.log")).unwrap_or_default();
    assert!(!echo.contains("bypassed"), "{echo}");
    for kind in ["tcp", "udp", "new"] {
        let line = traffic.lines().find(|line| line.starts_with(kind)).expect("a result");
        assert!(line.ends_with("from 8.8.4.1"), "not all of it used the tunnel: {line}");
        let longest = line.split("longest ").nth(1).and_then(|rest| rest.split(' ').next());
        let longest: u64 = longest.and_then(|text| text.parse().ok()).expect("milliseconds");
        assert!(longest < LONGEST, "{line}");
    }
}
