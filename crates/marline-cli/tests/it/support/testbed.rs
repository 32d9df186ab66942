//! Network namespaces of a test, built by a shell script, and the programs that run in them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use marline_testkit::need;

/// Time limit for a program to become ready.
const READY: Duration = Duration::from_secs(20);

/// The namespaces. Dropping this ends them, after all programs started in them.
pub(crate) struct Testbed {
    pub(crate) dir: PathBuf,
    pids: BTreeMap<String, String>,
    shell: Child,
    // Closing it ends the testbed.
    input: Option<ChildStdin>,
    background: Vec<Child>,
}

/// Returns true if this process may create namespaces.
pub(crate) fn namespaces_work() -> bool {
    let status = Command::new("unshare").args(["--net", "--mount", "true"]).status();
    status.is_ok_and(|status| status.success())
}

impl Testbed {
    /// Like [`Testbed::make`], with the program under test in all PATHs. `None` and a message if this machine does
    /// not support it, or lacks one of these programs.
    pub(crate) fn of_marline(dir: &Path, script: &str, programs: &[&str]) -> Option<Testbed> {
        for program in ["unshare", "nsenter", "ip"].iter().chain(programs) {
            need::program(program)?;
        }
        if !namespaces_work() {
            need::skip("creating network namespaces needs root");
            return None;
        }
        std::fs::create_dir_all(dir.join("bin")).expect("a folder");
        std::fs::copy(super::program(), dir.join("bin/marline")).expect("the program");
        Some(Testbed::make(dir, script))
    }

    /// Runs `script` in namespaces of its own. It creates others, prints those that can be joined, and runs as long
    /// as the testbed.
    pub(crate) fn make(dir: &Path, script: &str) -> Testbed {
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "bash", script]).arg(dir);
        let mut shell =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare");
        let (input, output) = (shell.stdin.take(), shell.stdout.take().unwrap());
        let (pids, background) = (BTreeMap::new(), Vec::new());
        let mut testbed = Testbed { dir: dir.to_owned(), pids, shell, input, background };
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        for line in lines.take_while(|line| line != "ready") {
            let (role, pid) = line.split_once(' ').expect("ROLE PID");
            testbed.pids.insert(role.to_owned(), pid.to_owned());
        }
        assert!(testbed.pids.len() >= 2, "the testbed was not made");
        for role in testbed.pids.keys() {
            std::fs::create_dir_all(testbed.dir.join(role)).unwrap();
        }
        testbed
    }

    /// Returns a shell command in this role's namespace and home directory, for at most `limit_s` seconds.
    pub(crate) fn command(&self, role: &str, text: &str, limit_s: &str) -> Command {
        let pid = self.pids.get(role).unwrap_or_else(|| panic!("no role {role}"));
        let home = self.dir.join(role);
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("timeout");
        // Otherwise it would send a signal to the program and then to its group, which includes the program: a
        // second SIGTERM means "now".
        command.arg("--foreground");
        command.args(["--kill-after=5", limit_s, "nsenter", "--net", "--mount", "--target", pid]);
        command.args(["bash", "-euc"]).arg(format!("cd ~\n{text}"));
        command.env("HOME", &home).env("XDG_RUNTIME_DIR", &home);
        // Daemons are in sbin, which an ordinary user's PATH often omits.
        let bin = self.dir.join("bin");
        command.env("PATH", format!("{}:{path}:/usr/local/sbin:/usr/sbin", bin.display()));
        command
    }

    /// Runs a command to its end, which must be successful. Returns its output.
    pub(crate) fn run(&self, role: &str, text: &str) -> String {
        let mut command = self.command(role, text, "60");
        let output = command.stdin(Stdio::null()).output().expect("timeout");
        let (out, err) = super::texts(&output);
        assert!(output.status.success(), "{role}: {text}: {}\n{out}\n{err}", output.status);
        out
    }

    /// Starts a command that runs as long as the testbed, and waits until it is ready. Returns its number.
    pub(crate) fn start(&mut self, role: &str, text: &str, until: Until<'_>) -> usize {
        let number = self.background.len();
        let log = self.dir.join(format!("log-{number}"));
        let file = std::fs::File::create(&log).unwrap();
        let mut command = self.command(role, &format!("exec {text}"), "300");
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        self.background.push(command.spawn().unwrap());
        let deadline = Instant::now() + READY;
        loop {
            let said = self.log(number);
            let ready = match until {
                Until::Says(word) => said.contains(word),
                Until::Listens(port) => {
                    let test = format!("test -n \"$(ss -Hltn sport = :{port})\"");
                    self.command(role, &test, "5").status().unwrap().success()
                }
            };
            if ready {
                return number;
            }
            assert!(Instant::now() < deadline, "{role}: {text}: not ready\n{said}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the output of a started program so far.
    pub(crate) fn log(&self, number: usize) -> String {
        std::fs::read_to_string(self.dir.join(format!("log-{number}"))).unwrap_or_default()
    }

    /// Waits until a started program's output contains `word`.
    pub(crate) fn log_with(&self, number: usize, word: &str) -> String {
        let deadline = Instant::now() + READY;
        loop {
            let said = self.log(number);
            if said.contains(word) {
                return said;
            }
            assert!(Instant::now() < deadline, "no {word:?} in the output:\n{said}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sends a signal to a started program. The process that `timeout` runs receives it too.
    pub(crate) fn signal(&self, number: usize, name: &str) {
        let id = self.background[number].id().to_string();
        let status = Command::new("kill").args(["-s", name, &id]).status().expect("kill");
        assert!(status.success());
    }

    /// Waits for the end of a started program. Returns true if it was successful.
    pub(crate) fn wait(&mut self, number: usize) -> bool {
        let deadline = Instant::now() + READY;
        loop {
            if let Some(status) = self.background[number].try_wait().expect("wait") {
                return status.success();
            }
            assert!(Instant::now() < deadline, "the program does not end:\n{}", self.log(number));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the value of a kernel counter (`MPTcpExt...`, `TcpExt...`) in this namespace. 0 if it is not listed.
    pub(crate) fn counter(&self, role: &str, name: &str) -> u64 {
        let text = self.run(role, &format!("nstat -asz {name}"));
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        let value = value.and_then(|rest| rest.split_whitespace().next());
        value.map_or(0, |value| value.parse().expect("a count"))
    }
}

/// Condition under which a started program is ready.
#[derive(Copy, Clone)]
pub(crate) enum Until<'a> {
    /// Its output contains this text.
    Says(&'a str),
    /// A program listens on this TCP port.
    Listens(u16),
}

impl Drop for Testbed {
    fn drop(&mut self) {
        let runs = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        for child in self.background.iter_mut().filter_map(|c| runs(c).then_some(c)) {
            // Not KILL, because `timeout` passes this signal on.
            let id = child.id().to_string();
            let _ = Command::new("kill").args(["-s", "TERM", &id]).status();
        }
        for child in &mut self.background {
            let _ = child.wait();
        }
        drop(self.input.take());
        let _ = self.shell.wait();
    }
}
