//! Tests of the units of `packaging/`, started by systemd itself with all their restrictions, on a machine in
//! namespaces of its own. Needs root, systemd and permission to create a cgroup.

use super::support;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::support::testbed::namespaces_work;
use marline_testkit::need;

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/units_world.sh");
const PATIENCE: Duration = Duration::from_secs(120);

/// A machine. Dropping it ends all its processes and removes its cgroup.
struct Machine {
    child: Child,
    cgroups: Vec<PathBuf>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Its first process ends with this one, and all others end with that.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for group in &self.cgroups {
            remove(group);
        }
    }
}

/// Removes a cgroup and its children once they are empty.
fn remove(group: &Path) {
    let until = Instant::now() + Duration::from_secs(5);
    while group.exists() && Instant::now() < until {
        let folders = std::fs::read_dir(group).into_iter().flatten().flatten();
        for folder in folders.filter(|entry| entry.path().is_dir()) {
            remove(&folder.path());
        }
        if std::fs::remove_dir(group).is_err() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Creates cgroups for the machine, in each hierarchy that systemd uses.
fn make_cgroups() -> Option<Vec<PathBuf>> {
    let base = Path::new("/sys/fs/cgroup");
    let hierarchies = if base.join("cgroup.controllers").exists() {
        vec![base.to_owned()]
    } else {
        vec![base.join("systemd"), base.join("unified")]
    };
    let name = format!("marline-units-{}", std::process::id());
    let groups: Vec<PathBuf> = hierarchies.iter().map(|base| base.join(&name)).collect();
    let made = groups.iter().all(|group| std::fs::create_dir(group).is_ok());
    if !made {
        groups.iter().for_each(|group| remove(group));
        need::skip("no cgroup can be made here");
        return None;
    }
    Some(groups)
}

fn machine(dir: &Path) -> Option<Machine> {
    for folder in ["bin", "units/user", "said"] {
        std::fs::create_dir_all(dir.join(folder)).expect("a folder");
    }
    std::fs::copy(env!("CARGO_BIN_EXE_marline"), dir.join("bin/marline")).expect("the program");
    for file in std::fs::read_dir(PACKAGING).expect("packaging").map(|entry| entry.expect("one")) {
        if file.path().extension().is_some_and(|end| end == "service") {
            std::fs::copy(file.path(), dir.join("units").join(file.file_name())).expect("a unit");
        }
    }
    let user = Path::new(PACKAGING).join("user/marline-client.service");
    std::fs::copy(user, dir.join("units/user/marline-client.service")).expect("a unit");
    let cgroups = make_cgroups()?;
    let join = cgroups.iter().map(|group| format!("echo $$ > {}/cgroup.procs; ", group.display()));
    let namespaces = "unshare --fork --kill-child --pid --mount --net --uts --ipc --cgroup";
    let line =
        format!("{}exec {namespaces} bash {SCRIPT} {}", join.collect::<String>(), dir.display());
    let mut command = Command::new("bash");
    command.args(["-euc", &line]).stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.spawn().expect("bash");
    Some(Machine { child, cgroups })
}

/// Returns the final output, or the output so far at the time limit.
fn heard(machine: &mut Machine, dir: &Path) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let said = std::fs::read_to_string(dir.join("said/look")).unwrap_or_default();
        let ended = machine.child.try_wait().is_ok_and(|status| status.is_some());
        if said.contains("that is all") || ended || Instant::now() > until {
            return said;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn systemd_starts_all_of_them_and_they_work_together() {
    let _alone = support::lock_exclusively();
    for program in ["unshare", "ip", "curl", "python3", "systemctl", "pivot_root", "chroot"] {
        let Some(_) = need::program(program) else { return };
    }
    if !Path::new("/lib/systemd/systemd").exists() {
        return need::skip("systemd is not installed");
    }
    if !need::root() || !namespaces_work() {
        return;
    }
    let filesystems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !filesystems.contains("overlay") {
        return need::skip("no overlay file system here");
    }
    let dir = tempfile::tempdir().expect("a folder");
    let Some(mut machine) = machine(dir.path()) else { return };
    let said = heard(&mut machine, dir.path());
    let has = |line: &str| assert!(said.lines().any(|said| said == line), "no {line:?} in\n{said}");
    has("socks5: Hello from the machine");
    has("serve: Hello from the machine");
    has("socks5 again: Hello from the machine");
    has("upgrade: 1");
    assert!(said.contains("marline-server: upgraded, active"), "{said}");
    has("held: Hello from the machine");
    has("marline-server: the old process has ended, active");
    has("marline-server now: NoNewPrivs: 1");
    has("marline-server now: Seccomp: 2");
    has("marline-server: reloaded again, active");
    has("marline-server: upgraded by reload, active");
    has("socks5 after that: Hello from the machine");
    for unit in ["marline-server", "marline-serve", "marline-client"] {
        has(&format!("{unit}: active"));
        has(&format!("{unit}: reloaded, active"));
        for capabilities in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
            has(&format!("{unit}: {capabilities}: 0000000000000000"));
        }
        has(&format!("{unit}: NoNewPrivs: 1"));
        has(&format!("{unit}: Seccomp: 2"));
        assert!(!said.contains(&format!("{unit}: Uid: 0\n")), "{said}");
        has(&format!("{unit}: ended with success"));
    }
    for state in ["", " again"] {
        has(&format!("marline-up{state}: active, rules: 13"));
    }
    has("marline-up down: inactive, rules: 0");
    for unit in ["marline-server", "marline-serve", "marline-client", "marline-up"] {
        has(&format!("{unit}: limit 0, restarts after 5s"));
    }
    for unit in ["marline-client", "marline-up"] {
        has(&format!("{unit}: may take infinity"));
    }
    has("lockdown: active, 1");
    has("marline-up locked: active, 1");
    has("marline-up locked again: active");
    has("stopped: inactive, 1");
    has("open: 0, restored");
    has("watchdog: left alone");
    has("watchdog: active again, 1");
    has("person: Hello from the machine");
    for line in ["CapPrm: 0000000000001000", "CapEff: 0000000000001000", "CapInh: 0000000000000000"]
    {
        has(&format!("marline-up: {line}"));
    }
    has("marline-up: CapAmb: 0000000000000000");
    has("marline-up: NoNewPrivs: 1");
    has("marline-up: Seccomp: 2");
}
