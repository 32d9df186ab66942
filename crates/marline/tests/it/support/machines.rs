//! Two hosts for tests against the kernel: separate network namespaces, connected by veth pairs.
//!
//! A test starts itself again under `unshare`, as the near machine, which starts itself again as the far one. Both
//! disappear with their processes. Needs `unshare`, `nsenter`, `ip`, and a kernel that allows user namespaces and
//! supports Multipath TCP.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use marline::{Carrier, Server};
use marline_testkit::need;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::AsyncWriteExt as _;

pub const ROLE: &str = "MARLINE_TEST_ROLE";
/// Protocol number of the kernel's Multipath TCP sockets.
const IPPROTO_MPTCP: i32 = 262;
/// Timeout: a kernel peer takes this long only if it hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Role of this process, if the test has started itself again.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Returns true if namespaces can be created; otherwise prints the reason.
pub fn can_make_machines() -> bool {
    if ["unshare", "nsenter", "ip"].iter().any(|program| need::program(program).is_none()) {
        return false;
    }
    let may = Command::new("unshare").args(["-rn", "true"]).stderr(Stdio::null()).status();
    let may = may.is_ok_and(|status| status.success());
    if !may {
        need::skip("user namespaces are not allowed here");
    }
    may
}

/// Exit status of a successful restarted test: a harness that finds no test of this name also exits successfully.
const DONE: i32 = 42;

/// Returns the name of this test, or of the test that contains this closure, for the harness.
pub fn name_of_test<T>(_test: &T) -> &'static str {
    let path = std::any::type_name::<T>();
    let path = path.strip_suffix("::{{closure}}").unwrap_or(path);
    path.split_once("::").expect("the program's name first").1
}

/// Ends a restarted test successfully.
pub fn done() -> ! {
    std::process::exit(DONE)
}

/// Runs the test of this name again, in a role and in new namespaces, to its end.
pub fn run_this_test(role: &str, unshare: &[&str], name: &str) {
    let status = this_test(role, unshare, name).status().unwrap();
    assert_eq!(status.code(), Some(DONE), "{name} as {role}: see the output above");
}

/// Command that runs the test of this name again, in a role and in new namespaces.
pub fn this_test(role: &str, unshare: &[&str], name: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(unshare).arg(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env(ROLE, role);
    command
}

/// Runs the test as `near`, a closure in the test itself, in its own namespace, or as the far machine.
pub fn on_two_machines(near: impl FnOnce(Far)) {
    let name = name_of_test(&near);
    match role().as_deref() {
        Some("far") => return far(),
        Some(_) => {
            trust_addresses();
            near_ip("link set lo up");
            near(Far::start(name));
            done();
        }
        None => {}
    }
    if !can_make_machines() {
        return;
    }
    if mptcp_socket("127.0.0.1:0".parse().unwrap()).is_err() {
        need::skip("the kernel does not speak Multipath TCP");
        return;
    }
    run_this_test("near", &["-rn"], name);
}

fn mptcp_socket(family: SocketAddr) -> std::io::Result<Socket> {
    Socket::new(Domain::for_address(family), Type::STREAM, Some(Protocol::from(IPPROTO_MPTCP)))
}

/// TCP socket of the kernel.
pub fn kernel_socket(family: SocketAddr, mptcp: bool) -> Socket {
    if mptcp {
        return mptcp_socket(family).unwrap();
    }
    Socket::new(Domain::for_address(family), Type::STREAM, Some(Protocol::TCP)).unwrap()
}

/// Runs `ip` on this machine.
pub fn near_ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().unwrap();
    assert!(status.success(), "near: ip {args}");
}

/// Far machine: a process that executes commands from lines of text.
pub struct Far {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Far {
    fn start(name: &str) -> Far {
        let mut command = this_test("far", &["-n"], name);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut far = Far { child, lines };
        far.hear("ready");
        far.ip("link set lo up");
        far
    }

    fn inside(&self, program: &str) -> Command {
        let pid = self.child.id().to_string();
        let mut command = Command::new("nsenter");
        command.args(["-t", &pid, "-n", program]);
        command
    }

    /// Runs `ip` there.
    pub fn ip(&self, args: &str) {
        let status = self.inside("ip").args(args.split(' ')).status().unwrap();
        assert!(status.success(), "far: ip {args}");
    }

    /// Writes a setting there.
    pub fn write(&self, setting: &str, value: &str) {
        let script = format!("echo {value} > {setting}");
        let status = self.inside("sh").args(["-c", &script]).status().unwrap();
        assert!(status.success(), "far: {script}");
    }

    /// Connects the machines by a cable: 10.N.0.1 and fd00:N::1 here, .2 there, and a default route over it.
    pub fn cable(&self, n: u8) {
        let pid = self.child.id();
        near_ip(&format!("link add near{n} type veth peer name far{n}"));
        near_ip(&format!("link set far{n} netns {pid}"));
        self.ip(&format!("addr add 10.{n}.0.2/24 dev far{n}"));
        self.ip(&format!("addr add fd00:{n}::2/64 dev far{n} nodad"));
        self.ip(&format!("link set far{n} up"));
        near_ip(&format!("addr add 10.{n}.0.1/24 dev near{n}"));
        near_ip(&format!("addr add fd00:{n}::1/64 dev near{n} nodad"));
        near_ip(&format!("link set near{n} up"));
        // The other side sees only a path's address; answers use the same path.
        let metric = 100 * u32::from(n);
        near_ip(&format!("route add default via 10.{n}.0.2 dev near{n} metric {metric}"));
        near_ip(&format!("-6 route add default via fd00:{n}::2 dev near{n} metric {metric}"));
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Waits for a line with `word: ...` and returns the rest of it.
    fn hear(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the far machine is gone");
            // The test harness writes lines as well.
            if let Some((_, rest)) = line.trim_end().split_once(&format!("far {word}:")) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Starts a kernel echo server there.
    pub fn serve(&mut self, listen: &str, mptcp: bool) -> SocketAddr {
        self.tell(&format!("serve {listen} {mptcp}"));
        self.hear("serves").parse().unwrap()
    }

    /// Starts a Marline echo server there, on raw sockets.
    pub fn serve_marline(&mut self, listen: &str) -> SocketAddr {
        self.tell(&format!("serve-marline {listen}"));
        self.hear("serves").parse().unwrap()
    }

    /// Starts a kernel client there that sends bytes, expects them back and reports the result.
    pub fn start_client(&mut self, server: SocketAddr, bytes: usize, mptcp: bool) {
        self.tell(&format!("ask {server} {bytes} {mptcp}"));
    }

    /// Returns the result of the client: `ok`, or the error.
    pub fn client_result(&mut self) -> String {
        self.hear("asked")
    }

    /// Counter of the far kernel, by its name in `nstat`.
    pub fn counter(&self, name: &str) -> u64 {
        let output = self
            .inside("cat")
            .args(["/proc/net/netstat", "/proc/net/snmp"])
            .output()
            .expect("nsenter runs");
        find_counter(&String::from_utf8_lossy(&output.stdout), name)
    }
}

/// Returns the number of bytes sent on an interface of the near machine.
pub fn bytes_sent(interface: &str) -> u64 {
    const TRANSMITTED_BYTES: usize = 8;
    let table = std::fs::read_to_string("/proc/self/net/dev").unwrap();
    let line = table.lines().find_map(|line| line.trim().strip_prefix(&format!("{interface}:")));
    let count = line.and_then(|line| line.split_whitespace().nth(TRANSMITTED_BYTES));
    count.and_then(|count| count.parse().ok()).expect("the interface is in the table")
}

/// Counter of the near kernel, by its name in `nstat`.
pub fn near_counter(name: &str) -> u64 {
    let mut text = std::fs::read_to_string("/proc/self/net/netstat").unwrap();
    text.push_str(&std::fs::read_to_string("/proc/self/net/snmp").unwrap());
    find_counter(&text, name)
}

fn find_counter(text: &str, name: &str) -> u64 {
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.chunks_exact(2) {
        let (names, values) = (pair[0].split_whitespace(), pair[1].split_whitespace());
        let prefix = pair[0].split(':').next().unwrap_or_default();
        for (field, value) in names.zip(values).skip(1) {
            if format!("{prefix}{field}") == name {
                return value.parse().unwrap();
            }
        }
    }
    panic!("the kernel has no counter {name}")
}

/// No other host is on the cable: IPv6 addresses may be used immediately.
fn trust_addresses() {
    for which in ["all", "default"] {
        let setting = format!("/proc/sys/net/ipv6/conf/{which}/accept_dad");
        // Without this setting the tests take two seconds longer.
        let _ = std::fs::write(setting, "0");
    }
}

/// Main loop of the far machine: reads a line and executes it.
fn far() {
    trust_addresses();
    println!("far ready:");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["serve", listen, mptcp] => far_serve(listen.parse().unwrap(), mptcp == "true"),
            ["serve-marline", listen] => far_serve_marline(listen.parse().unwrap()),
            ["ask", server, bytes, mptcp] => {
                let (server, bytes) = (server.parse().unwrap(), bytes.parse().unwrap());
                let result = far_ask(server, bytes, mptcp == "true");
                println!("far asked: {}", result.map_or_else(|e| e.to_string(), |()| "ok".into()));
            }
            _ => panic!("the far machine does not understand {line:?}"),
        }
    }
}

fn far_serve(listen: SocketAddr, mptcp: bool) {
    let socket = kernel_socket(listen, mptcp);
    socket.set_reuse_address(true).unwrap();
    socket.bind(&listen.into()).unwrap();
    socket.listen(16).unwrap();
    let listener = TcpListener::from(socket);
    println!("far serves: {}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || echo(stream));
        }
    });
}

fn far_serve_marline(listen: SocketAddr) {
    let (told, tells) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut server = Server::builder();
            let listener = server.carrier(Carrier::Raw).listen(listen).bind().await.unwrap();
            told.send(listener.local_addr()).unwrap();
            while let Some((stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut reader, mut writer) = tokio::io::split(stream);
                    let _ = tokio::io::copy(&mut reader, &mut writer).await;
                    let _ = writer.shutdown().await;
                });
            }
        });
    });
    println!("far serves: {}", tells.recv().unwrap());
}

fn echo(mut stream: TcpStream) {
    let mut buf = vec![0; 65_536];
    while let Ok(len @ 1..) = stream.read(&mut buf) {
        if stream.write_all(&buf[..len]).is_err() {
            return;
        }
    }
}

fn far_ask(server: SocketAddr, bytes: usize, mptcp: bool) -> std::io::Result<()> {
    let socket = kernel_socket(server, mptcp);
    socket.connect_timeout(&server.into(), PATIENCE)?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    let sent = super::bytes(bytes, 9);
    // First exchange a byte in each direction: the kernel joins only after it has received data from the server.
    stream.write_all(&sent[..1])?;
    let mut first = [0; 1];
    stream.read_exact(&mut first)?;
    std::thread::sleep(Duration::from_millis(200));
    let mut writer = stream.try_clone()?;
    let rest = sent[1..].to_vec();
    let writing = std::thread::spawn(move || {
        writer.write_all(&rest)?;
        writer.shutdown(Shutdown::Write)
    });
    let mut got = first.to_vec();
    stream.read_to_end(&mut got)?;
    writing.join().map_err(|_| std::io::Error::other("the writer panicked"))??;
    if got == sent { Ok(()) } else { Err(std::io::Error::other("the echo differs")) }
}
