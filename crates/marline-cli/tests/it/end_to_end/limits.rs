//! Tests of a client's limit on connections: at the limit an application gets an answer, and the log gives the
//! reason.

use super::support::socks::{echo, echo_target, open};
use super::*;

/// Number of connections, above the former limit.
const MANY: usize = 1_100;
/// Time limit for a refusal, which takes 3 s; the machine may be busy.
const ANSWERED: Duration = Duration::from_secs(20);

fn echoes(stream: &mut TcpStream) {
    echo(stream, b"still there");
}

#[test]
fn at_the_limit_every_kind_of_application_is_answered_and_the_log_says_so_once() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let target = echo_target();
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let (path, forward) = (format!("127.0.0.1={}", server.address), format!("0:{target}"));
    let invite = server.invite_file.to_str().unwrap();
    let args = ["client", "--invite-file", invite, "--socks5", "127.0.0.1:0", "-L", &forward];
    let args = [&args[..], &["--path", &path, "--max-connections", "3"]].concat();
    let mut client = Running::start(dir.path(), &args);
    let socks = client.address_after("socks5 listening on ");
    let forward = client.address_after("forward listening on ");
    let mut served: Vec<TcpStream> =
        (0..3).map(|_| open(socks, target).expect("a place")).collect();
    // SOCKS, HTTP and a forward concurrently.
    std::thread::scope(|all| {
        all.spawn(|| assert_eq!(open(socks, target).err(), Some(1), "a general failure"));
        all.spawn(|| {
            let mut http = TcpStream::connect(socks).unwrap();
            http.set_read_timeout(Some(ANSWERED)).unwrap();
            write!(http, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").unwrap();
            let mut answer = String::new();
            http.read_to_string(&mut answer).expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
            assert!(answer.contains("connection limit reached (3)"), "{answer}");
        });
        all.spawn(|| {
            let mut fixed = TcpStream::connect(forward).unwrap();
            fixed.set_read_timeout(Some(ANSWERED)).unwrap();
            let error = fixed.read(&mut [0]).expect_err("a reset");
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        });
    });
    let reached = "connection limit reached";
    client.line_with(reached);
    let again: Vec<String> =
        client.said().into_iter().filter(|line| line.contains(reached)).collect();
    assert!(again.is_empty(), "{again:?}");
    served.iter_mut().for_each(echoes);
    // A freed place can be used immediately.
    served.pop();
    echoes(&mut open(socks, target).expect("a place"));
}

#[test]
fn eleven_hundred_connections_at_once_are_all_served() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let target = echo_target();
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8"]);
    let path = format!("127.0.0.1={}", server.address);
    let (_client, socks) = start_client(dir.path(), &server.invite_file, &["--path", &path]);
    let streams = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|all| {
        for _ in 0..20 {
            all.spawn(|| {
                for _ in 0..MANY / 20 {
                    let stream = open(socks, target).expect("a place");
                    streams.lock().unwrap().push(stream);
                }
            });
        }
    });
    let mut streams = streams.into_inner().unwrap();
    assert_eq!(streams.len(), MANY);
    streams.iter_mut().for_each(echoes);
}
