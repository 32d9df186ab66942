//! Tests of metrics, dashboard and control socket when their addresses change at a reload, or the change fails.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::support::native::testbed;
use super::support::socks::{echo, echo_target, open};
use super::support::testbed::Until;
use super::support::{self, Running, SERVICES, start_client, start_server, write_private};
use super::{ask, metric, until};
use marline_testkit::free_address;

/// Returns lines of a configuration: addresses of metrics and a dashboard, and the control socket's path.
fn lines([metrics, page]: [SocketAddr; 2], control: &Path) -> String {
    let control = control.display();
    format!("metrics = \"{metrics}\"\ndashboard = \"{page}\"\ncontrol = \"{control}\"\n")
}

/// Requests a page, with a token if there is one. Returns the status, or `None` without an answer.
fn status(at: SocketAddr, path: &str, token: &str) -> Option<String> {
    let mut stream = TcpStream::connect(at).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {at}\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).ok()?;
    line.split(' ').nth(1).map(str::to_owned)
}

/// Opens a dashboard's event stream.
fn watch(at: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "GET /events HTTP/1.1\r\nHost: {at}\r\n\r\n").unwrap();
    assert!(stream.read(&mut [0; 100]).unwrap() > 0);
    stream
}

/// Sends `hello` on a control connection and reads the answer.
fn hello(control: &mut BufReader<UnixStream>) {
    writeln!(control.get_mut(), r#"{{"cmd":"hello"}}"#).unwrap();
    let mut line = String::new();
    control.read_line(&mut line).unwrap();
    assert!(line.contains("\"hello\""), "{line}");
}

/// Runs a program through all changes. `write` writes its configuration with these additional lines. Its control
/// socket is `first.sock` in `dir`, and its metrics and dashboard are at the addresses `first`. It has had one
/// connection.
fn check_moves(
    dir: &Path,
    process: &mut Running,
    [metrics, page]: [SocketAddr; 2],
    write: &dyn Fn(&str),
) {
    let place = |name: &str| dir.join(name).display().to_string();
    let at = |metrics, page, control: &str| lines([metrics, page], &dir.join(control));
    let reload = |control: &str, ok| ask(dir, &["reload", "--control", &place(control)], ok);
    // A counter that cannot be reconstructed later.
    let opened = |at: SocketAddr| metric(at, "marline_events_total{event=\"ESTABLISHED\"}");
    let had = opened(metrics);
    assert!(had > 0);
    let mut watching = watch(page);
    let mut talking = BufReader::new(UnixStream::connect(place("first.sock")).unwrap());
    hello(&mut talking);

    // If an address cannot be bound, nothing changes.
    let holds = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holds.local_addr().unwrap();
    let (new_metrics, new_page) = (free_address(), free_address());
    for (wanted, says) in [
        (at(taken, new_page, "first.sock"), format!("cannot serve metrics on TCP {taken}")),
        (
            at(new_metrics, taken, "first.sock"),
            format!("cannot serve the dashboard on TCP {taken}"),
        ),
        (at(new_metrics, new_page, "no/such/place.sock"), "control socket".to_owned()),
    ] {
        write(&wanted);
        let error = reload("first.sock", false);
        assert!(error.contains("keeping current") && error.contains(&says), "{error}");
        process.line_with(&says);
        assert!(opened(metrics) >= had, "{says}");
        let opened = [new_metrics, new_page].map(|at| TcpStream::connect(at).is_ok());
        assert_eq!(opened, [false, false], "{says}: nothing was opened");
    }
    watching.read_exact(&mut [0; 10]).expect("viewers are not affected");

    // A valid change takes effect, and the counters are kept.
    write(&at(new_metrics, new_page, "second.sock"));
    assert_eq!(reload("first.sock", true), "applied: control, dashboard, metrics\n");
    until("the old addresses are free", || {
        [metrics, page].iter().all(|at| TcpStream::connect(at).is_err())
    });
    assert!(!dir.join("first.sock").exists());
    assert!(opened(new_metrics) >= had, "counters continue");
    assert_eq!(status(new_page, "/", "").as_deref(), Some("200"));
    hello(&mut talking);
    assert_eq!(reload("second.sock", true), "no changes\n");
    until("former viewers are disconnected", || {
        watching.read(&mut [0; 10_000]).is_ok_and(|count| count == 0)
    });

    // A token for viewers, and then another one.
    let token = dir.join("token");
    let with_token = at(new_metrics, new_page, "second.sock")
        + &format!("dashboard-token-file = \"{}\"\n", token.display());
    write(&with_token);
    assert!(reload("second.sock", false).contains("token"), "no token is required yet");
    assert_eq!(status(new_page, "/events", "").as_deref(), Some("200"));
    let [one, two] = ["one-token-of-many-letters", "another-of-many-letters"];
    write_private(&token, one);
    assert_eq!(reload("second.sock", true), "applied: dashboard-token-file\n");
    let admitted = |token: &str| status(new_page, "/events", token).unwrap_or_default();
    assert_eq!([admitted(one), admitted(two)], ["200", "403"]);
    write_private(&token, two);
    process.said();
    process.signal("HUP");
    process.line_with("SIGHUP: configuration reloaded");
    assert_eq!([admitted(one), admitted(two)], ["403", "200"]);

    // Without these settings.
    write(&format!("control = \"{}\"\n", place("second.sock")));
    process.signal("HUP");
    process.line_with("changed: dashboard, dashboard-token-file, metrics");
    until("both ports are closed", || {
        [new_metrics, new_page].iter().all(|at| TcpStream::connect(at).is_err())
    });
}

fn shown_at(dir: &Path) -> ([SocketAddr; 2], String) {
    let shown = [free_address(), free_address()];
    (shown, lines(shown, &dir.join("first.sock")))
}

#[test]
fn a_client_moves_its_status_ports_on_reload_or_keeps_them() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let file = dir.path().join("client.toml");
    let write = |lines: &str| {
        let path = format!("path = [\"127.0.0.1={}\"]", server.address);
        let text = format!(
            "invite-file = \"invite\"\nsocks5 = [\"127.0.0.1:0\"]\nstate-file = \"state\"\n{path}\n{lines}"
        );
        std::fs::write(&file, text).unwrap();
    };
    let (first, lines) = shown_at(dir.path());
    write(&lines);
    let mut client = Running::start(dir.path(), &["client", "--config", file.to_str().unwrap()]);
    let socks = client.address_after("socks5 listening on ");
    let mut stream = open(socks, echo_target()).unwrap();
    echo(&mut stream, b"before");
    check_moves(dir.path(), &mut client, first, &write);
    echo(&mut stream, b"the program still works");
}

#[test]
fn a_server_moves_its_status_ports_on_reload_and_upgrade() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let mut server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let file = dir.path().join("server.toml");
    let made = std::fs::read_to_string(&file).unwrap();
    let write = |lines: &str| std::fs::write(&file, format!("{made}\n{lines}")).unwrap();
    server.process.signal("TERM");
    server.process.wait(Duration::from_secs(30));
    let (first, lines) = shown_at(dir.path());
    write(&lines);
    let args = ["server", "--config", file.to_str().unwrap(), "--allow", "127.0.0.0/8"];
    let mut process = Running::start(dir.path(), &args);
    process.line_with("listening on ");
    let path = format!("127.0.0.1={}", server.address);
    let (_client, socks) = start_client(dir.path(), &server.invite_file, &["--path", &path]);
    let mut stream = open(socks, echo_target()).unwrap();
    echo(&mut stream, b"before");
    check_moves(dir.path(), &mut process, first, &write);
    echo(&mut stream, b"the program still works");
    // The next process has them at their current addresses. In the old process they no longer change.
    let metrics = free_address();
    let second = dir.path().join("second.sock").display().to_string();
    write(&format!("metrics = \"{metrics}\"\ncontrol = \"{second}\"\n"));
    ask(dir.path(), &["reload", "--control", &second], true);
    let said = ask(dir.path(), &["upgrade", "--control", &second], true);
    let _newest = crate::upgrade::TookOver::told_by(&said);
    until("the next one has the metrics", || {
        TcpStream::connect(metrics).is_ok() && metric(metrics, "marline_build_info") == 1
    });
    process.said();
    process.signal("HUP");
    process.line_with("SIGHUP: configuration reloaded");
    echo(&mut stream, b"still");
    ask(dir.path(), &["status", "--control", &second], true);
}

#[test]
fn a_front_moves_its_status_ports_on_reload_or_keeps_them() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut testbed) = testbed(dir.path(), &["curl"]) else { return };
    let write = |lines: &str| {
        let listen = "listen = ['10.91.1.1:80']\nto = '127.0.0.1:8080'\ncontrol = 'serve.sock'\n";
        std::fs::write(dir.path().join("server/serve.toml"), format!("{listen}{lines}")).unwrap();
    };
    write("metrics = '127.0.0.1:9102'\n");
    testbed.start("server", SERVICES, Until::Says("ready"));
    testbed.run("server", "echo here > page");
    let serve = "marline serve --config serve.toml";
    let serve = testbed.start("server", serve, Until::Says("listening on"));
    let fetch = || testbed.run("client", "mptcpize run curl -sS --fail http://10.91.1.1/page");
    let count = |port: u16| {
        let page =
            testbed.run("server", &format!("curl -sS --fail http://127.0.0.1:{port}/metrics"));
        let line = page
            .lines()
            .find(|line| line.starts_with("marline_events_total{event=\"ESTABLISHED\"}"));
        line.expect("a counter").to_owned()
    };
    assert_eq!(fetch(), "here\n");
    let had = count(9102);
    // Port 8080 belongs to the service.
    write("metrics = '127.0.0.1:8080'\ndashboard = '127.0.0.1:9101'\n");
    testbed.signal(serve, "HUP");
    testbed.log_with(serve, "current configuration: cannot serve metrics on TCP 127.0.0.1:8080");
    assert_eq!(count(9102), had);
    write("metrics = '127.0.0.1:9103'\ndashboard = '127.0.0.1:9101'\n");
    let said = testbed.run("server", "marline reload --control serve.sock");
    assert_eq!(said, "applied: dashboard, metrics\n");
    assert_eq!(count(9103), had);
    testbed.run(
        "server",
        "curl -sS --fail -o shown http://127.0.0.1:9101/ && ! curl -sS http://127.0.0.1:9102/",
    );
    assert_eq!(fetch(), "here\n");
}
