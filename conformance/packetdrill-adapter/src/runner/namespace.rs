//! Execution of one script in a separate network namespace.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::shims::ScratchDir;

/// Prepares the namespace for scripts, then becomes packetdrill. Scripts configure a device `tun0`, which carries no
/// packets here.
const ENTER_SCRIPT: &str = "\
ip link set lo up
ip link add tun0 type dummy 2>/dev/null || ip tuntap add tun0 mode tun
ip link set tun0 up
LD_PRELOAD=$MARLINE_LIBRARY exec \"$@\"
";

/// Settings shared by all scripts.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) program: OsString,
    pub(crate) library: PathBuf,
    pub(crate) ip_version: String,
    /// Directory of the shim programs, which comes first in the PATH.
    pub(crate) shims: PathBuf,
    pub(crate) captures: Option<PathBuf>,
    /// Time limit of a script in real time.
    pub(crate) patience: Duration,
}

/// Result of a script.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) passed: bool,
    pub(crate) output: String,
}

/// packetdrill's options for an IP version, as used by the scripts' authors.
struct Version {
    local: &'static str,
    gateway: &'static str,
    netmask: Option<&'static str>,
    remote: &'static str,
    /// IPv6's headers are longer, but scripts expect the same MSS.
    mtu: Option<&'static str>,
    /// Names that some scripts expect to be defined.
    defines: &'static [&'static str],
}

const IPV4: Version = Version {
    local: "192.168.0.1",
    gateway: "192.168.0.1",
    netmask: Some("255.255.0.0"),
    remote: "192.0.2.1",
    mtu: None,
    defines: &[
        "TFO_COOKIE=3021b9d889017eeb",
        "TFO_COOKIE_ZERO=b7c12350a90dc8f5",
        "CODE=host_unreachable",
        "CMSG_LEVEL_IP=SOL_IP",
        "CMSG_TYPE_RECVERR=IP_RECVERR",
    ],
};
const MAPPED: Version = Version {
    defines: &[
        "TFO_COOKIE=3021b9d889017eeb",
        "TFO_COOKIE_ZERO=b7c12350a90dc8f5",
        "CODE=host_unreachable",
        "CMSG_LEVEL_IP=SOL_IPV6",
        "CMSG_TYPE_RECVERR=IPV6_RECVERR",
    ],
    ..IPV4
};
const IPV6: Version = Version {
    local: "fd3d:0a0b:17d6::1",
    gateway: "fd3d:0a0b:17d6:8888::1",
    netmask: None,
    remote: "fd3d:fa7b:d17d::1",
    mtu: Some("1520"),
    defines: &[
        "TFO_COOKIE=c1d1e9742a47a9bc",
        "TFO_COOKIE_ZERO=82af1a8f9a205c34",
        "CODE=address_unreachable",
        "CMSG_LEVEL_IP=SOL_IPV6",
        "CMSG_TYPE_RECVERR=IPV6_RECVERR",
    ],
};

/// Runs one script.
pub(crate) fn run(setting: &Setting, scratch: &ScratchDir, script: &Path, name: &str) -> Outcome {
    let failed = |output: String| Outcome { passed: false, output };
    let (state, log) = match scratch.for_script(name) {
        Ok(paths) => paths,
        Err(error) => return failed(format!("cannot create temporary files: {error}")),
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
        Err(error) => return failed(format!("cannot run unshare: {error}")),
    };
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if start.elapsed() < setting.patience => {
                std::thread::sleep(Duration::from_millis(5));
            }
            _ => {
                // Killing the namespace's first process also ends processes that ignore other signals.
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
        None => output.insert_str(0, "killed after the time limit\n"),
    }
    failed(output)
}

/// The directory in which a script expects to run: its own, or an ancestor with the first program that the script
/// names.
fn find_working_directory(script: &Path) -> PathBuf {
    let own = script.parent().unwrap_or(Path::new("."));
    let text = fs::read(script).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let words = text.split('`').nth(1).unwrap_or_default().split_whitespace();
    let program = words.into_iter().find(|word| word.contains('/') && !word.starts_with('/'));
    let Some(program) = program else { return own.to_path_buf() };
    let found = own.ancestors().find(|directory| directory.join(program).is_file());
    found.unwrap_or(own).to_path_buf()
}

/// Returns the address options. Omits those that an IPv4 script sets itself, because options override the script.
fn addresses(version: &Version, script: &Path, setting: &Setting) -> Vec<String> {
    let text = fs::read(script).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let own = |name: &str| {
        let named = text.lines().any(|line| line.trim_start().starts_with(name));
        named && setting.ip_version != "ipv6"
    };
    let mut all = Vec::new();
    if !own("--local_ip") {
        all.push(format!("--local_ip={}", version.local));
        all.push(format!("--gateway_ip={}", version.gateway));
        all.extend(version.netmask.map(|netmask| format!("--netmask_ip={netmask}")));
    }
    if !own("--remote_ip") {
        all.push(format!("--remote_ip={}", version.remote));
    }
    all
}

fn command(setting: &Setting, state: &Path, script: &Path, name: &str) -> Command {
    let version = match setting.ip_version.as_str() {
        "ipv6" => IPV6,
        "ipv4-mapped-ipv6" => MAPPED,
        _ => IPV4,
    };
    let mut flags = format!("local={},local={}", IPV4.local, IPV6.local);
    flags.push_str(&format!(",state={}", state.display()));
    if let Some(mtu) = version.mtu {
        flags.push_str(&format!(",mtu={mtu}"));
    }
    if let Some(captures) = &setting.captures {
        let file = captures.join(format!("{}.pcapng", name.replace('/', "-")));
        flags.push_str(&format!(",capture={}", file.display()));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(setting.shims.clone()).chain(std::env::split_paths(&path));
    let mut command = Command::new("unshare");
    command.args(["-n", "--", "sh", "-c", ENTER_SCRIPT, "sh"]).arg(&setting.program);
    command.arg(format!("--so_filename={}", setting.library.display()));
    command.arg(format!("--so_flags={flags}"));
    command.arg(format!("--ip_version={}", setting.ip_version));
    command.args(addresses(&version, script, setting));
    command.args(version.mtu.map(|mtu| format!("--mtu={mtu}")));
    command.args(version.defines.iter().flat_map(|define| ["-D", define]));
    let home = find_working_directory(script);
    command.arg(script.strip_prefix(&home).unwrap_or(script));
    command.current_dir(home);
    command.env("MARLINE_LIBRARY", &setting.library).env("MARLINE_STATE", state);
    // Some scripts need the addresses in the environment, if packetdrill itself does not provide them.
    for (name, value) in [
        ("OPT_LOCAL_DEV", "tun0"),
        ("OPT_LOCAL_IP", version.local),
        ("OPT_NETMASK_IP", version.netmask.unwrap_or("")),
        ("OPT_IP_VERSION", setting.ip_version.as_str()),
    ] {
        command.env(name, value);
    }
    if let Ok(paths) = std::env::join_paths(paths) {
        command.env("PATH", paths);
    }
    command
}
