//! Tests of a client's limit on connections: at the limit an application gets an answer, and the log says why.

use super::*;

/// More than the limit once was.
const MANY: usize = 1_100;
/// A refusal takes 3 s; the machine may be busy.
const ANSWERED: Duration = Duration::from_secs(20);

/// A service that sends back what comes.
fn echo_target() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let echo = move || std::io::copy(&mut &stream, &mut &stream);
            let _ = std::thread::Builder::new().stack_size(64 << 10).spawn(echo);
        }
    });
    address
}

/// Asks a SOCKS port for an IPv4 target; the stream and the reply code.
fn ask(socks: SocketAddr, target: SocketAddr) -> (TcpStream, u8) {
    let mut stream = TcpStream::connect(socks).unwrap();
    stream.set_read_timeout(Some(ANSWERED)).unwrap();
    let SocketAddr::V4(target) = target else { panic!("IPv4") };
    let (address, port) = (target.ip().octets(), target.port().to_be_bytes());
    stream.write_all(&[&[5, 1, 0, 5, 1, 0, 1][..], &address, &port].concat()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer[..3], [5, 0, 5]);
    (stream, answer[3])
}

fn echoes(stream: &mut TcpStream) {
    stream.write_all(b"still there").unwrap();
    let mut back = [0; 11];
    stream.read_exact(&mut back).expect("an echo");
    assert_eq!(&back, b"still there");
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
    let mut served: Vec<TcpStream> = (0..3)
        .map(|_| {
            let (stream, code) = ask(socks, target);
            assert_eq!(code, 0);
            stream
        })
        .collect();
    // SOCKS, HTTP and a forward, all at once.
    std::thread::scope(|all| {
        all.spawn(|| assert_eq!(ask(socks, target).1, 1, "a general failure"));
        all.spawn(|| {
            let mut http = TcpStream::connect(socks).unwrap();
            http.set_read_timeout(Some(ANSWERED)).unwrap();
            write!(http, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").unwrap();
            let mut answer = String::new();
            http.read_to_string(&mut answer).expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
            assert!(answer.contains("limit of 3 connections"), "{answer}");
        });
        all.spawn(|| {
            let mut fixed = TcpStream::connect(forward).unwrap();
            fixed.set_read_timeout(Some(ANSWERED)).unwrap();
            let error = fixed.read(&mut [0]).expect_err("a reset");
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        });
    });
    let said = client.said();
    let told = said.iter().filter(|line| line.contains("connection limit reached")).count();
    assert_eq!(told, 1, "{said:?}");
    served.iter_mut().for_each(echoes);
    // A place that comes free is somebody's at once.
    served.pop();
    let (mut next, code) = ask(socks, target);
    assert_eq!(code, 0);
    echoes(&mut next);
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
                    let (stream, code) = ask(socks, target);
                    assert_eq!(code, 0);
                    streams.lock().unwrap().push(stream);
                }
            });
        }
    });
    let mut streams = streams.into_inner().unwrap();
    assert_eq!(streams.len(), MANY);
    streams.iter_mut().for_each(echoes);
}
