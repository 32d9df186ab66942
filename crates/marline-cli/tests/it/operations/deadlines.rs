//! Latency requirements by port, at both ends of a tunnel.

use std::io::Read;
use std::net::{Shutdown, TcpStream};

use serde_json::Value;

use super::support::socks::{echo, echo_target, open};
use super::support::{self, Running, start_server};
use super::{ask, until};

#[test]
fn a_stream_to_such_a_port_has_the_deadline_at_both_ends_and_the_next_on_its_connection_has_not() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let (prompt, usual) = (echo_target(), echo_target());
    let [at_server, at_client] = ["server-control", "control"].map(|name| dir.path().join(name));
    let [at_server, at_client] = [&at_server, &at_client].map(|path| path.to_str().unwrap());
    let rule = format!("{}=40ms", prompt.port());
    let flags = ["--allow", "127.0.0.0/8", "--control", at_server, "--deadline", &rule];
    let server = start_server(dir.path(), &flags);
    let file = dir.path().join("client.toml");
    let write = |deadline: &str| {
        let path = format!("127.0.0.1={}", server.address);
        let rest = "socks5 = [\"127.0.0.1:0\"]\nwarm = 0\nstate-file = \"state\"";
        let text = format!(
            "invite-file = \"invite\"\npath = [\"{path}\"]\ndeadline = [\"{deadline}\"]\n{rest}\n"
        );
        std::fs::write(&file, text).unwrap();
    };
    write(&format!("{}=80ms", prompt.port()));
    let config = ["client", "--config", file.to_str().unwrap(), "--control", at_client];
    let mut client = Running::start(dir.path(), &config);
    let socks = client.address_after("socks5 listening on ");
    let schedulers = |control: &str| {
        let text = ask(dir.path(), &["status", "--json", "--control", control], true);
        let status: Value = serde_json::from_str(&text).unwrap();
        (status["connections"].clone(), status["schedulers"].clone())
    };
    let end = |mut stream: TcpStream| {
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    };
    // The first connection creates the session. It is a TLS connection, so it is not reused.
    let mut first = open(socks, prompt).unwrap();
    echo(&mut first, b"in time");
    assert_eq!(schedulers(at_client).1, serde_json::json!(["deadline,within=80000us"]));
    assert_eq!(schedulers(at_server).1, serde_json::json!(["deadline,within=40000us"]));
    end(first);
    let mut second = open(socks, prompt).unwrap();
    echo(&mut second, b"in time, on a session");
    end(second);
    until("the connection is free again", || {
        schedulers(at_server).1 == serde_json::json!(["auto"])
    });
    let mut third = open(socks, usual).unwrap();
    echo(&mut third, b"as usual");
    let auto = (serde_json::json!(1), serde_json::json!(["auto"]));
    assert_eq!((schedulers(at_client), schedulers(at_server)), (auto.clone(), auto));
    end(third);
    // A changed rule applies starting with the next request.
    write(&format!("{}-{0}=1s", usual.port()));
    let told = ask(dir.path(), &["reload", "--control", at_client], true);
    assert!(told.contains("applied to new connections: deadline"), "{told}");
    let mut fourth = open(socks, usual).unwrap();
    echo(&mut fourth, b"within a second");
    assert_eq!(schedulers(at_client).1, serde_json::json!(["deadline,within=1000000us"]));
    assert_eq!(schedulers(at_server).1, serde_json::json!(["auto"]));
}
