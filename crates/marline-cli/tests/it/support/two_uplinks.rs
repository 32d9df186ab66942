//! Test network of a phone and a server: namespaces with emulated links between them, and the programs in them.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use marline_lab::net::{Net, Options};
use marline_lab::scenario::{Scenario, Side};
use marline_testkit::need;

use super::name_of_test;
use super::testbed::namespaces_work;

/// Time limit for any expected state.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);
/// Environment variable with the role of this binary when a test runs it again.
const ROLE: &str = "MARLINE_TEST_ROLE";

/// Returns true if this machine supports such hosts and has these programs.
pub(crate) fn possible(programs: &[&str]) -> bool {
    for program in ["ip"].iter().chain(programs) {
        if need::program(program).is_none() {
            return false;
        }
    }
    if !namespaces_work() {
        need::skip("creating network namespaces needs root");
        return false;
    }
    true
}

/// Returns true if this test binary runs in this role.
pub(crate) fn plays(role: impl Fn()) -> bool {
    std::env::var(ROLE).as_deref() == Ok(name_of_test(role))
}

/// Sends this many bytes to each client of 127.0.0.1:8080, after printing `ready`. A role that never ends.
pub(crate) fn pour(bytes: usize) {
    let listener = TcpListener::bind("127.0.0.1:8080").expect("bind");
    println!("ready");
    for mut stream in listener.incoming().flatten() {
        std::thread::spawn(move || stream.write_all(&vec![7; bytes]));
    }
}

/// Echoes all data at this address, after printing `ready`. A role that never ends.
pub(crate) fn echo(address: &str) {
    let listener = TcpListener::bind(address).expect("bind");
    println!("ready");
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let _ = stream.set_nodelay(true);
            std::io::copy(&mut &stream, &mut &stream)
        });
    }
}

/// Returns a scenario with WiFi and LTE over these links.
pub(crate) fn wifi_and_lte(wifi: &str, lte: &str) -> String {
    let path = |name: &str, net: u8, link: &str| {
        format!(
            "[[path]]
            name = \"{name}\"
            link = \"{link}\"
            client = [\"10.0.{net}.2/24\"]
            server = [\"10.0.{net}.1/24\"]\n"
        )
    };
    path("wifi", 1, wifi) + &path("lte", 2, lte)
}

/// Two hosts. Programs end before their namespaces.
pub(crate) struct TwoUplinks {
    running: Vec<Child>,
    pub(crate) net: Net,
    pub(crate) dir: PathBuf,
}

impl Drop for TwoUplinks {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl TwoUplinks {
    /// Returns the hosts of a scenario, under a unique name, because tests of one process run concurrently. `dir` is
    /// the home of all programs.
    pub(crate) fn set(scenario: &str, name: &str, dir: &Path) -> TwoUplinks {
        static STAGES: AtomicU32 = AtomicU32::new(0);
        let scenario = Scenario::from_toml(scenario).expect("scenario");
        let number = STAGES.fetch_add(1, Ordering::Relaxed);
        // A net's name has at most 20 characters, and the numbers grow.
        let own = format!("-{}-{number}", std::process::id());
        let instance: String = name.chars().take(20 - own.len()).chain(own.chars()).collect();
        let net = Net::create(&scenario, &Options::new(&instance)).expect("net");
        TwoUplinks { running: Vec::new(), net, dir: dir.to_owned() }
    }

    /// Returns a shell command with the program under test in its PATH.
    pub(crate) fn command(&self, text: &str) -> Command {
        let program = super::program();
        let folder = program.parent().expect("a directory");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("bash");
        command.args(["-euc", text]).current_dir(&self.dir).stdin(Stdio::null());
        command.env("PATH", format!("{}:{path}:/usr/sbin", folder.display()));
        command.env("HOME", &self.dir).env("XDG_RUNTIME_DIR", &self.dir);
        // Processes that a shell leaves behind end with it.
        command.process_group(0);
        command
    }

    /// Runs a command to its end. Returns its output.
    pub(crate) fn shell(&self, side: Side, text: &str) -> String {
        let mut command = self.command(text);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.net.spawn(side, &mut command).expect("spawn");
        let output = child.wait_with_output().expect("output");
        let (out, err) = super::texts(&output);
        assert!(output.status.success(), "{text}: {}\n{out}\n{err}", output.status);
        out
    }

    /// Starts a command that runs as long as the hosts. Returns it, for access to its pipes.
    pub(crate) fn spawn(&mut self, side: Side, command: &mut Command) -> &mut Child {
        let child = self.net.spawn(side, command).expect("spawn");
        self.running.push(child);
        self.running.last_mut().expect("just pushed")
    }

    /// Starts a command. Returns its output line by line.
    fn lines_of(&mut self, side: Side, command: &mut Command) -> Receiver<String> {
        let child = self.spawn(side, command.stdin(Stdio::null()).stdout(Stdio::piped()));
        lines(child)
    }

    /// Starts a program. Returns both its outputs line by line.
    pub(crate) fn program(&mut self, side: Side, text: &str) -> Receiver<String> {
        let mut command = self.command(&format!("exec {text} 2>&1"));
        self.lines_of(side, &mut command)
    }

    /// Runs this test binary again, as the test `role`, which must check [`plays`]. `wrapper` runs it.
    pub(crate) fn role(&mut self, side: Side, wrapper: &str, role: impl Fn()) -> Receiver<String> {
        let role = name_of_test(role);
        let binary = std::env::current_exe().expect("this test");
        let text = format!("exec {wrapper} {} --exact {role} --nocapture", binary.display());
        let mut command = self.command(&text);
        self.lines_of(side, command.env(ROLE, role))
    }

    /// Returns the id of the process that was started last.
    pub(crate) fn newest_pid(&self) -> u32 {
        self.running.last().expect("a process was started").id()
    }

    /// Like [`role`](Self::role), with its standard input.
    pub(crate) fn dialogue(
        &mut self,
        side: Side,
        role: impl Fn(),
    ) -> (ChildStdin, Receiver<String>) {
        let role = name_of_test(role);
        let binary = std::env::current_exe().expect("this test");
        let text = format!("exec {} --exact {role} --nocapture", binary.display());
        let mut command = self.command(&text);
        command.env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = self.spawn(side, &mut command);
        let input = child.stdin.take().expect("piped");
        (input, lines(child))
    }

    /// Creates the server's configuration, starts the server at 10.0.1.1, and stores its invite in `invite`.
    pub(crate) fn marline_server(&mut self, carrier: &str) {
        self.shell(
            Side::Server,
            "umask 077; marline server --init --config marline.toml --listen 10.0.1.1:7777 \
             --public 10.0.1.1:7777 --allow 127.0.0.0/8 > invite 2> /dev/null",
        );
        let server =
            format!("marline server --config marline.toml --allow 127.0.0.0/8 --carrier {carrier}");
        hear(&self.program(Side::Server, &server), "listening on");
    }
}

/// Returns lines of a program's standard output.
fn lines(child: &mut Child) -> Receiver<String> {
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            // A closed receiver must not end a program that still prints.
            let _ = tell.send(line);
        }
    });
    told
}

/// Waits for a line that contains this word.
pub(crate) fn hear(lines: &Receiver<String>, word: &str) -> String {
    let begun = Instant::now();
    let mut heard = Vec::new();
    while let Some(left) = PATIENCE.checked_sub(begun.elapsed()) {
        let Ok(line) = lines.recv_timeout(left) else { break };
        if line.contains(word) {
            return line;
        }
        heard.push(line);
    }
    panic!("nothing with {word:?} in {heard:#?}");
}
