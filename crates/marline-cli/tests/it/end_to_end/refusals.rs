//! Tests of refusals in the log, in metrics and in `marline status`: all are counted, few are logged.

use super::*;
use marline_testkit::free_address;

/// Requests for a target that the rules forbid, and the number of concurrent applications.
const REQUESTS: usize = 10_000;
const APPLICATIONS: usize = 16;

/// Requests 127.0.0.1:9 from the SOCKS port. Returns the code of the answer.
fn ask(socks: SocketAddr) -> u8 {
    let mut stream = TcpStream::connect(socks).unwrap();
    stream.write_all(&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, 0, 9]).unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..3], [5, 0, 5]);
    answer[3]
}

#[test]
fn all_refusals_are_counted_and_few_are_logged() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let port = free_address();
    let (metrics, control) = (port.to_string(), dir.path().join("server.sock"));
    let control = control.to_str().unwrap();
    let flags = ["--metrics", &metrics, "--control", control];
    let mut server = start_server(dir.path(), &flags);
    let path = format!("127.0.0.1={}", server.address);
    let (mut client, socks) = start_client(dir.path(), &server.invite_file, &["--path", &path]);
    let begun = std::time::Instant::now();
    std::thread::scope(|all| {
        let application = || (0..REQUESTS / APPLICATIONS).for_each(|_| assert_eq!(ask(socks), 2));
        (0..APPLICATIONS).for_each(|_| drop(all.spawn(application)));
    });
    println!("{REQUESTS} refusals in {:?}", begun.elapsed());
    let counted = udp::metric(port, "marline_refusals_total{reason=\"rules\"}");
    // On a busy machine, the path may look silent, and a request is then repeated.
    let counted = counted as usize;
    assert!((REQUESTS..=REQUESTS + REQUESTS / 100).contains(&counted), "{counted}");
    let told = server.process.said().iter().filter(|line| line.contains("refused")).count();
    assert!((50..=400).contains(&told), "{told} lines");
    let told = client.said().iter().filter(|line| line.contains("--allow")).count();
    assert!((50..=400).contains(&told), "{told} lines of the client");

    let status = run_ok(dir.path(), &["status", "--control", control]);
    assert!(status.contains(&format!("refused: rules {counted}\n")), "{status}");
    let client = status.lines().find(|line| line.contains(" s ago"));
    let columns: Vec<&str> = client.expect(&status).split_whitespace().collect();
    assert!(columns[2].parse::<usize>().expect("so far") >= REQUESTS, "{status}");
    let json = run_ok(dir.path(), &["status", "--json", "--control", control]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["refusals"]["rules"], counted);
}

/// Invalid SOCKS requests do not flood the log: each place in the code writes a hundred lines, and then one per
/// second.
#[test]
fn lines_that_an_application_causes_are_limited_and_the_rest_is_counted() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let server = start_server(dir.path(), &[]);
    let path = format!("127.0.0.1={}", server.address);
    let (mut client, socks) = start_client(dir.path(), &server.invite_file, &["--path", &path]);
    let nonsense = |count: usize| {
        for _ in 0..count {
            let mut stream = TcpStream::connect(socks).unwrap();
            stream.write_all(&[9, 9, 9]).unwrap();
            // Ends once the line has been written or suppressed.
            let _ = stream.read(&mut [0; 8]);
        }
    };
    let _ = client.said();
    nonsense(3_000);
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    nonsense(1);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let mut said = Vec::new();
    while std::time::Instant::now() < until {
        said.extend(client.said());
        if said.iter().any(|line| line.contains("lines like the next one were suppressed")) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(said.iter().any(|line| line.contains("were suppressed")), "{said:?}");
    assert!((50..=400).contains(&said.len()), "{} lines for 3,001 refusals", said.len());
}

/// With JSON, each line of the log is an object with the message.
#[test]
fn the_log_may_be_json() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    drop(start_server(dir.path(), &[]));
    let args = ["--log-format", "json", "server", "--config", "server.toml"];
    let mut server = Running::start(dir.path(), &args);
    let line = server.line_with("control socket");
    let object: serde_json::Value = serde_json::from_str(&line).expect(&line);
    assert!(
        object["fields"]["message"].as_str().unwrap().starts_with("serving the control socket"),
        "{line}"
    );
    assert!(object["timestamp"].is_string() && object["level"] == "INFO", "{line}");
}

/// Optional log lines about closed connections, which do not contain the target.
#[test]
fn closed_connections_are_logged_on_request() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let target = http_target();
    let mut server = start_server(dir.path(), &["--allow", "127.0.0.0/8", "--log-connections"]);
    let path = format!("127.0.0.1={}", server.address);
    let (mut client, socks) = start_client(dir.path(), &server.invite_file, &["--path", &path]);
    let mut stream = TcpStream::connect(socks).unwrap();
    let port = target.port().to_be_bytes();
    stream.write_all(&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, port[0], port[1]]).unwrap();
    stream.read_exact(&mut [0; 12]).unwrap();
    stream.write_all(b"GET /1000 HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = Vec::new();
    stream.read_to_end(&mut page).unwrap();
    drop(stream);
    let line = server.process.line_with("connection closed");
    assert!(line.contains("normally") && line.contains("who=first"), "{line}");
    assert!(line.contains("to_local_bytes=") && line.contains("seconds="), "{line}");
    assert!(!line.contains("127.0.0.1"), "{line}");
    let told = client.said();
    assert!(!told.iter().any(|line| line.contains("connection closed")), "{told:?}");
}
