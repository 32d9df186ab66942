//! One script in a network namespace of its own.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::shims::Place;

/// Makes what scripts expect of the namespace, then becomes packetdrill: scripts configure a device
/// `tun0`, through which nothing passes here.
const ENTER: &str = "\
ip link set lo up
ip link add tun0 type dummy 2>/dev/null || ip tuntap add tun0 mode tun
ip link set tun0 up
LD_PRELOAD=$MARLINE_LIBRARY exec \"$@\"
";

/// What is the same for all scripts.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) program: OsString,
    pub(crate) library: PathBuf,
    pub(crate) ip_version: String,
    /// Directory of the programs that stand before the system's.
    pub(crate) shims: PathBuf,
    pub(crate) captures: Option<PathBuf>,
    /// Longest run of a script, real time.
    pub(crate) patience: Duration,
}

/// How a script ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) passed: bool,
    pub(crate) output: String,
}

/// Addresses of both sides: `--local_ip`, `--gateway_ip`, `--netmask_ip`, `--remote_ip`.
const IPV4: [&str; 4] = ["192.168.0.1", "192.168.0.1", "255.255.0.0", "192.0.2.1"];
const IPV6: [&str; 4] =
    ["fd3d:0a0b:17d6::1", "fd3d:fa7b:d17d:8888::0", "ffff:ffff:ffff:ffff::", "2001:DB8::1"];

/// Runs one script.
pub(crate) fn run(setting: &Setting, place: &Place, script: &Path, name: &str) -> Outcome {
    let failed = |output: String| Outcome { passed: false, output };
    let (state, log) = match place.for_script(name) {
        Ok(paths) => paths,
        Err(error) => return failed(format!("temporary files: {error}")),
    };
    let mut command = command(setting, &state, script, name);
    let output = File::create(&log).and_then(|file| Ok((file.try_clone()?, file)));
    let (out, err) = match output {
        Ok(pair) => pair,
        Err(error) => return failed(format!("{}: {error}", log.display())),
    };
    let spawned = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => return failed(format!("unshare: {error}")),
    };
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if start.elapsed() < setting.patience => {
                std::thread::sleep(Duration::from_millis(5));
            }
            _ => {
                // What cannot be ended is ended with the namespace's first process.
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
        }
    };
    let mut bytes = Vec::new();
    let _ = File::open(&log).and_then(|mut file| file.read_to_end(&mut bytes));
    let mut output = String::from_utf8_lossy(&bytes).into_owned();
    match status {
        Some(status) if status.success() => return Outcome { passed: true, output },
        Some(status) => output.push_str(&format!("\n{status}")),
        None => output.insert_str(0, "ended after too long\n"),
    }
    failed(output)
}

fn command(setting: &Setting, state: &Path, script: &Path, name: &str) -> Command {
    let v6 = setting.ip_version == "ipv6";
    let [local, gateway, netmask, remote] = if v6 { IPV6 } else { IPV4 };
    let mut flags = format!("local={},local={},state={}", IPV4[0], IPV6[0], state.display());
    if let Some(captures) = &setting.captures {
        let file = captures.join(format!("{}.pcapng", name.replace('/', "-")));
        flags.push_str(&format!(",capture={}", file.display()));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(setting.shims.clone()).chain(std::env::split_paths(&path));
    let mut command = Command::new("unshare");
    command.args(["-n", "--", "sh", "-c", ENTER, "sh"]).arg(&setting.program);
    command.arg(format!("--so_filename={}", setting.library.display()));
    command.arg(format!("--so_flags={flags}"));
    command.arg(format!("--ip_version={}", setting.ip_version));
    command.arg(format!("--local_ip={local}"));
    command.arg(format!("--gateway_ip={gateway}"));
    if !v6 {
        command.arg(format!("--netmask_ip={netmask}"));
    }
    command.arg(format!("--remote_ip={remote}"));
    command.arg(script.file_name().unwrap_or_default());
    command.current_dir(script.parent().unwrap_or(Path::new(".")));
    command.env("MARLINE_LIBRARY", &setting.library).env("MARLINE_STATE", state);
    // Some scripts ask for the addresses when packetdrill itself does not tell them.
    for (name, value) in [
        ("OPT_LOCAL_DEV", "tun0"),
        ("OPT_LOCAL_IP", local),
        ("OPT_NETMASK_IP", netmask),
        ("OPT_IP_VERSION", setting.ip_version.as_str()),
    ] {
        command.env(name, value);
    }
    if let Ok(paths) = std::env::join_paths(paths) {
        command.env("PATH", paths);
    }
    command
}
