//! Test support: running the program as a process.

// Each test file uses only a part of this module.
#![allow(dead_code, reason = "a bench compiles this file as well and uses a part of it")]

pub(crate) mod cgroup;
pub(crate) mod native;
pub(crate) mod nginx;
pub(crate) mod socks;
pub(crate) mod stun;
pub(crate) mod testbed;
pub(crate) mod two_uplinks;

use marline_testkit::free_port;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// Lock that gives tests exclusive or shared use of the machine.
static MACHINE: RwLock<()> = RwLock::new(());

/// For tests whose measurements other work would disturb, or that use the whole machine: no test that takes this
/// lock runs meanwhile.
pub(crate) fn lock_exclusively() -> RwLockWriteGuard<'static, ()> {
    // A panic does not invalidate the lock.
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// For all tests that take longer than a moment. To be called once per test, because a second call may wait for the
/// first.
pub(crate) fn among_others() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Time limit for a process to become ready.
const READY: Duration = Duration::from_secs(30);

/// Returns the name of this test in the harness, for starting it in a process of its own.
pub(crate) fn name_of_test<T: Fn()>(_test: T) -> &'static str {
    let path = std::any::type_name::<T>();
    path.split_once("::").expect("the program's name first").1
}

/// Services of a testbed: the files of the directory at port 8080, at N bytes per second as `FILE?N`, and a UDP
/// echo at port 8053.
pub(crate) const SERVICES: &str = "python3 -u -c '
import http.server, os, socket, threading, time
class Paced(http.server.SimpleHTTPRequestHandler):
    def copyfile(self, source, out):
        rate = int(self.path.partition(\"?\")[2] or 0)
        while piece := source.read(rate // 20 or 65536):
            out.write(piece)
            time.sleep(0.05 if rate else 0)
def echo():
    port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    port.bind((\"127.0.0.1\", 8053))
    while True:
        data, sender = port.recvfrom(2048)
        port.sendto(data, sender)
threading.Thread(target=echo, daemon=True).start()
server = http.server.ThreadingHTTPServer((\"127.0.0.1\", 8080), Paced)
print(\"ready\")
server.serve_forever()
'";

/// Fetches a page through a client's proxy.
pub(crate) const CURL: &str = "curl -sS --fail --max-time 50 --socks5-hostname 127.0.0.1:1080";

/// Makes the client fetch the file `large` of [`SERVICES`] while `meanwhile` runs. Its sum must match the file
/// `sums`. The service limits the rate, in bytes per second. A limit at the reader would have no effect, since
/// sockets on loopback hold megabytes.
pub(crate) fn download(testbed: &testbed::Testbed, rate: u32, meanwhile: impl FnOnce()) {
    download_from(testbed, "http://127.0.0.1:8080", rate, meanwhile);
}

/// Like [`download`], from this host.
pub(crate) fn download_from(
    testbed: &testbed::Testbed,
    host: &str,
    rate: u32,
    meanwhile: impl FnOnce(),
) {
    testbed.run("client", "rm -f large sums");
    let fetch = format!(
        "{CURL} -o sums {host}/sums
        {CURL} -N -o large '{host}/large?{rate}'
        sha256sum --check sums"
    );
    std::thread::scope(|scope| {
        let fetching = scope.spawn(|| testbed.run("client", &fetch));
        meanwhile();
        assert!(fetching.join().expect("no panic").contains("large: OK"));
    });
}

/// Returns the length of a growing file in bytes. 0 if it does not exist.
pub(crate) fn length(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |file| file.len())
}

/// Waits until the file contains `some` bytes of a transfer. Returns its length, which must be below `whole`, so
/// that later events still affect the transfer.
pub(crate) fn under_way(file: &Path, some: u64, whole: u64) -> u64 {
    let until = Instant::now() + READY;
    loop {
        let now = length(file);
        if now >= some {
            assert!(now < whole, "all {whole} bytes are there: the transfer is over");
            return now;
        }
        assert!(Instant::now() < until, "only {now} of {some} bytes within {READY:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Environment variable with the path of another build of the program, such as an optimized one.
const PROGRAM: &str = "MARLINE_TEST_PROGRAM";

/// Returns the program under test.
pub(crate) fn program() -> PathBuf {
    let other = std::env::var_os(PROGRAM).map(PathBuf::from);
    other.unwrap_or_else(|| env!("CARGO_BIN_EXE_marline").into())
}

/// Returns the program with these arguments, in `dir`.
pub(crate) fn marline(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(args).current_dir(dir).env("XDG_RUNTIME_DIR", dir).env_remove("RUNTIME_DIRECTORY");
    command
}

/// Environment variable with the arguments for the lab's program in this process, separated by [`SEPARATOR`].
const LAB_ARGUMENTS: &str = "MARLINE_TEST_LAB_ARGUMENTS";
const SEPARATOR: &str = "\u{1f}";

/// Returns the lab's program `marline-lab`, run by a process of this test program, because the lab may not have been
/// built.
pub(crate) fn marline_lab(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "support::the_labs_program", "--nocapture"]);
    command.current_dir(dir).env(LAB_ARGUMENTS, args.join(SEPARATOR));
    command
}

/// Becomes the lab's program if [`marline_lab`] started this process.
pub(crate) fn be_the_labs_program_if_asked() {
    if let Ok(args) = std::env::var(LAB_ARGUMENTS) {
        let words = std::iter::once("marline-lab").chain(args.split(SEPARATOR));
        let code = marline_lab_cli::run_from(words.map(std::ffi::OsString::from));
        std::process::exit(i32::from(code != std::process::ExitCode::SUCCESS));
    }
}

/// Returns the output of `marline-lab plot` for the traces in `dir` with this prefix. Returns `None` if one cannot be
/// read.
pub(crate) fn plotted(dir: &Path, begin: &str) -> Option<Vec<String>> {
    let entries = std::fs::read_dir(dir).ok()?.flatten().map(|entry| entry.file_name());
    let names = entries.filter_map(|name| name.into_string().ok());
    let mut traces: Vec<String> =
        names.filter(|name| name.starts_with(begin) && name.ends_with(".sqlog")).collect();
    traces.sort();
    let plot = |name: &String| {
        let output = marline_lab(dir, &["plot", name]).output().expect("the lab's program");
        let (drawn, said) = texts(&output);
        if !output.status.success() {
            eprintln!("{name}: {said}");
            return None;
        }
        Some(drawn)
    };
    traces.iter().map(plot).collect()
}

#[test]
fn the_labs_program() {
    be_the_labs_program_if_asked();
}

/// Runs the program to its end.
pub(crate) fn run(dir: &Path, args: &[&str]) -> Output {
    marline(dir, args).stdin(Stdio::null()).output().expect("the program starts")
}

/// Runs the program, which must succeed. Returns its standard output.
pub(crate) fn run_ok(dir: &Path, args: &[&str]) -> String {
    let output = run(dir, args);
    let (out, err) = texts(&output);
    assert!(output.status.success(), "marline {args:?}: {err}");
    out
}

/// Runs the program, which must fail. Returns its standard error.
pub(crate) fn run_err(dir: &Path, args: &[&str]) -> String {
    let output = run(dir, args);
    let (_, err) = texts(&output);
    assert!(!output.status.success(), "marline {args:?} should fail");
    err
}

/// Returns both outputs as text.
pub(crate) fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// A running process that ends with the test.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
    name: String,
}

impl Running {
    /// Starts the program. Its standard error is passed to the test's and is searched as well.
    pub(crate) fn start(dir: &Path, args: &[&str]) -> Running {
        Running::start_command(marline(dir, args), args.first().copied().unwrap_or_default())
    }

    /// Starts a command that runs the program. Its output is shown under `name`.
    pub(crate) fn start_command(mut command: Command, name: &str) -> Running {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // In a group of its own, so that signals of the terminal only reach the test.
        command.process_group(0);
        let mut child = command.spawn().expect("the program starts");
        let (sender, lines) = channel();
        let name = name.to_owned();
        let outputs: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|out| Box::new(out) as Box<dyn Read + Send>),
            child.stderr.take().map(|err| Box::new(err) as Box<dyn Read + Send>),
        ];
        for output in outputs.into_iter().flatten() {
            let (sender, name) = (sender.clone(), name.clone());
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    eprintln!("[{name}] {line}");
                    let _ = sender.send(line);
                }
            });
        }
        Running { child, lines, name }
    }

    /// Waits for a line with `text` and returns it.
    pub(crate) fn line_with(&mut self, text: &str) -> String {
        let until = Instant::now() + READY;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(text) => return line,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{} did not say {text:?} within {READY:?}", self.name)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("{} ended without saying {text:?}", self.name)
                }
            }
        }
    }

    /// Returns lines of output that were not read yet.
    pub(crate) fn said(&mut self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// Waits for `text ADDRESS:PORT` and returns the address.
    pub(crate) fn address_after(&mut self, text: &str) -> SocketAddr {
        let line = self.line_with(text);
        let rest = line.split(text).nth(1).unwrap_or_default().trim();
        let word = rest.split([' ', ',']).next().unwrap_or_default();
        word.parse().unwrap_or_else(|_| panic!("no address in {line:?}"))
    }

    /// Returns its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status, if the process has ended.
    pub(crate) fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().expect("wait")
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &id]).status().expect("kill");
        assert!(status.success());
    }

    /// Waits for the end after a signal that cannot be ignored.
    pub(crate) fn end(&mut self) {
        let _ = self.child.wait();
    }

    /// Waits for the end. Returns true if it was successful.
    pub(crate) fn wait(&mut self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{} did not end within {patience:?}", self.name);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Another program with all processes that it starts. They end with the test.
pub(crate) struct Beside(Child);

impl Beside {
    /// Starts the program in a process group of its own.
    pub(crate) fn start(command: &mut Command) -> Beside {
        let command = command.stdin(Stdio::null()).process_group(0);
        Beside(command.spawn().expect("the other program starts"))
    }

    /// Process id, and id of the process group.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // Killing the server alone would leave its workers. It has not been waited for, so its id cannot have been
        // reused.
        let group = i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(group) = group {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// A running server that was set up in `dir`, with its first invite in a file.
pub(crate) struct ServerSide {
    pub(crate) process: Running,
    pub(crate) address: SocketAddr,
    pub(crate) invite_file: PathBuf,
}

/// Waits until a program listens there.
pub(crate) fn listens(address: SocketAddr) {
    let until = Instant::now() + READY;
    while std::net::TcpStream::connect(address).is_err() {
        assert!(Instant::now() < until, "no listener on {address}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the resident memory of a process in KiB, or 0 if it does not exist.
pub(crate) fn resident_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse().ok()).unwrap_or_default()
}

/// Returns the CPU time of a process so far, user and system.
pub(crate) fn processor_time(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name is in brackets and may contain blanks.
    let after = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = after.split_whitespace().skip(11).take(2).flat_map(str::parse::<u64>).sum();
    // USER_HZ, which Linux shows to programs regardless of the kernel's own value.
    Duration::from_millis(ticks * 10)
}

/// Returns the subflows of all connections in the output of `marline monitor --table --once --json`, including closed
/// ones.
pub(crate) fn subflows(said: &str) -> Vec<serde_json::Value> {
    let line = said.lines().next().expect("a line");
    let connections: Vec<serde_json::Value> = serde_json::from_str(line).expect("a list");
    let listed = connections.iter().flat_map(|connection| {
        ["subflows", "gone"].into_iter().filter_map(|kind| connection[kind].as_array())
    });
    listed.flatten().cloned().collect()
}

/// Writes a file that only its owner can read.
pub(crate) fn write_private(path: &Path, text: &str) {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// Sets up a server and starts it.
pub(crate) fn start_server(dir: &Path, flags: &[&str]) -> ServerSide {
    start_server_by(dir, flags, Running::start)
}

/// Like [`start_server`], with `start` to run the program in another place.
pub(crate) fn start_server_by(
    dir: &Path,
    flags: &[&str],
    start: impl FnOnce(&Path, &[&str]) -> Running,
) -> ServerSide {
    let listen = format!("127.0.0.1:{}", free_port());
    let config = dir.join("server.toml");
    let config = config.to_str().expect("text");
    let invite = run_ok(dir, &["server", "--init", "--config", config, "--listen", &listen]);
    let invite_file = dir.join("invite");
    write_private(&invite_file, &invite);
    let mut args = vec!["server", "--config", config];
    args.extend_from_slice(flags);
    let mut process = start(dir, &args);
    let address = process.address_after("listening on ");
    ServerSide { process, address, invite_file }
}

/// Starts a client with a SOCKS5 port. Also returns the port's address.
pub(crate) fn start_client(
    dir: &Path,
    invite_file: &Path,
    flags: &[&str],
) -> (Running, SocketAddr) {
    start_client_by(dir, invite_file, flags, Running::start)
}

/// Like [`start_client`], with `start` to run the program in another place.
pub(crate) fn start_client_by(
    dir: &Path,
    invite_file: &Path,
    flags: &[&str],
    start: impl FnOnce(&Path, &[&str]) -> Running,
) -> (Running, SocketAddr) {
    let invite = invite_file.to_str().expect("text");
    let mut args = vec!["client", "--invite-file", invite, "--socks5", "127.0.0.1:0"];
    args.extend_from_slice(flags);
    let mut process = start(dir, &args);
    let address = process.address_after("socks5 listening on ");
    (process, address)
}
