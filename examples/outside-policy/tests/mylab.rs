//! The programs of `src/` treat the policy as Marline's programs treat built-in ones: in the list, in errors, in the
//! lab on all stacks and in sweeps, and at both ends of the proxy.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use marline_testkit::need;

fn mylab(dir: &Path, arguments: &[&str]) -> Command {
    program(env!("CARGO_BIN_EXE_mylab"), dir, arguments)
}

fn mymarline(dir: &Path, arguments: &[&str]) -> Command {
    program(env!("CARGO_BIN_EXE_mymarline"), dir, arguments)
}

fn program(file: &str, dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(file);
    command.current_dir(dir).env("XDG_RUNTIME_DIR", dir).args(arguments).stdin(Stdio::null());
    command
}

fn told(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn ok(mut command: Command) -> String {
    let output = command.output().expect("the program");
    let (out, err) = told(&output);
    assert!(output.status.success(), "{command:?}: {err}");
    out
}

/// A directory with `first.toml` in it.
fn temporary_dir_with_first_toml() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/first.toml");
    std::fs::copy(file, dir.path().join("first.toml")).expect("first.toml");
    dir
}

/// Arguments of `mylab` from docs/research/policies.md, and additional ones for the test.
fn typed<'a>(words: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    words.split(' ').chain(more.iter().copied()).collect()
}

/// Bytes of a run on a path in both directions, from `runs.csv`.
fn bytes_on(runs: &str, stack: &str, variant: &str, path: &str) -> u64 {
    let mut lines = runs.lines();
    let heading: Vec<&str> = lines.next().expect("a heading").split(',').collect();
    let row = lines
        .map(|line| line.split(',').collect::<Vec<_>>())
        .find(|row| (row[0], row[1]) == (stack, variant))
        .unwrap_or_else(|| panic!("{stack} {variant} in {runs}"));
    ["up", "down"]
        .map(|way| format!("{path}_{way}_bytes"))
        .map(|column| heading.iter().position(|name| *name == column).expect("a column"))
        .map(|column| row[column].parse::<u64>().expect("bytes"))
        .iter()
        .sum()
}

#[test]
fn the_list_and_errors_know_the_policy_and_its_parameter() {
    let dir = temporary_dir_with_first_toml();
    let list = ok(mymarline(dir.path(), &typed("policies sticky", &[])));
    assert!(list.contains("worth-moving=2") && list.contains("from 1 to 100"), "{list}");
    let text = std::fs::read_to_string(dir.path().join("first.toml")).expect("first.toml");
    let file = dir.path().join("wrong.toml");
    std::fs::write(&file, text.replace("\"sticky\"", "\"sticky,worth=3\"")).expect("a file");
    let refused = mylab(dir.path(), &["run", "wrong.toml"]).output().expect("mylab");
    let (_, said) = told(&refused);
    let wanted =
        "wrong.toml:20:14: scheduler `sticky` has no parameter `worth`; known: worth-moving";
    assert!(!refused.status.success() && said.contains(wanted), "{said}");
}

#[test]
fn the_lab_runs_it_in_virtual_time_and_live_beside_the_kernel() {
    let dir = temporary_dir_with_first_toml();
    let real = need::root() && need::program("ip").is_some();
    let words = if real { "run first.toml --stack sim,live,mptcp" } else { "run first.toml" };
    let table = ok(mylab(dir.path(), &typed(words, &["--seeds", "1", "--out", "out"])));
    assert!(table.contains("sim"), "{table}");
    let runs = std::fs::read_to_string(dir.path().join("out/runs.csv")).expect("runs.csv");
    for stack in if real { &["sim", "live"][..] } else { &["sim"] } {
        let on_lte = |variant| bytes_on(&runs, stack, variant, "lte");
        // A burst is four times as large as WiFi's first window: min-rtt continues over LTE, this scheduler waits.
        assert!(on_lte("mine") < 5_000 && on_lte("min-rtt") > 30_000, "{stack}: {runs}");
    }
    assert!(!real || bytes_on(&runs, "mptcp", "kernel", "wifi") > 1_000_000, "{runs}");
}

#[test]
fn a_sweep_turns_its_parameter() {
    let dir = temporary_dir_with_first_toml();
    ok(mylab(dir.path(), &typed("sweep first.toml", &["--seeds", "1", "--out", "out"])));
    let runs = std::fs::read_to_string(dir.path().join("out/runs.csv")).expect("runs.csv");
    assert!(runs.starts_with("variant.mine.scheduler.worth-moving,stack,"), "{runs}");
    let begin = |start: &str| runs.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!((begin("1,sim,mine,"), begin("4,sim,mine,")), (1, 1), "{runs}");
}

/// A process that ends with the test.
struct Running(Child, BufReader<ChildStdout>);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(mut command: Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let stdout = child.stdout.take().expect("piped");
        Running(child, BufReader::new(stdout))
    }

    /// The word that follows this text in the output.
    fn word_after(&mut self, text: &str) -> String {
        let mut said = String::new();
        loop {
            let from = said.len();
            assert!(self.1.read_line(&mut said).expect("text") > 0, "no {text:?} in\n{said}");
            if let Some((_, rest)) = said[from..].split_once(text) {
                return rest.split([' ', ',', '\n']).next().unwrap_or_default().to_owned();
            }
        }
    }
}

#[test]
fn client_and_server_carry_a_connection_with_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let target = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = target.local_addr().expect("address").port();
    let answered = std::thread::spawn(move || {
        let (mut stream, _) = target.accept().expect("a connection");
        let mut asked = vec![0; 300_000];
        stream.read_exact(&mut asked).expect("the request");
        stream.write_all(&asked).expect("the answer");
    });
    let listen = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let listen = listen.expect("a port").to_string();
    let words = ["server", "--init", "--config", "server.toml", "--listen", &listen];
    let invite = ok(mymarline(dir, &words));
    let mut file = std::fs::OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::mode(&mut file, 0o600);
    let mut file = file.create(true).write(true).open(dir.join("FILE")).expect("a file");
    file.write_all(invite.as_bytes()).expect("the invite");
    let words = "server --config server.toml --scheduler sticky,worth-moving=3";
    let mut server = Running::start(mymarline(dir, &typed(words, &["--allow", "127.0.0.0/8"])));
    let path = format!("127.0.0.1={}", server.word_after("listening on "));
    let ports = ["--socks5", "127.0.0.1:0", "--path", &path];
    let words = "client --invite-file FILE --scheduler sticky,worth-moving=3";
    let mut client = Running::start(mymarline(dir, &typed(words, &ports)));
    let socks = client.word_after("socks5 listening on ");
    let mut stream = TcpStream::connect(&socks).expect("the port");
    stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("a timeout");
    stream.write_all(&[5, 1, 0]).expect("hello");
    let mut two = [0; 2];
    stream.read_exact(&mut two).expect("no password");
    let [high, low] = port.to_be_bytes();
    stream.write_all(&[5, 1, 0, 1, 127, 0, 0, 1, high, low]).expect("connect");
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).expect("a reply");
    assert_eq!(reply[1], 0, "connected");
    let sent: Vec<u8> = (0..300_000_u32).map(|number| (number / 7) as u8).collect();
    stream.write_all(&sent).expect("the request");
    let mut back = vec![0; sent.len()];
    stream.read_exact(&mut back).expect("the answer");
    assert!(back == sent);
    answered.join().expect("the target");
}
