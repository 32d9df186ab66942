//! Test of quotas of a server that is replaced while its clients continue: two processes share one account.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::end_to_end::udp::Association;
use super::super::upgrade::TookOver;
use super::support::socks::{echo_target, open};
use super::support::{self, start_client, start_server};
use super::{ask, pump, until};

/// Returns a UDP service that echoes datagrams and counts their bytes.
fn counting_target(came: Arc<AtomicU64>) -> std::net::SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2_000];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            came.fetch_add(len as u64, Ordering::Relaxed);
            let _ = socket.send_to(&buffer[..len], from);
        }
    });
    address
}

#[test]
fn an_old_process_and_a_new_one_count_every_byte_once_udp_included() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let control = dir.path().join("control");
    let control = control.to_str().unwrap();
    let allow = ["--allow", "127.0.0.0/8", "--control", control, "--drain", "1s"];
    let quota = ["--quota", "first@4MB,soft=50%"];
    let mut server = start_server(dir.path(), &[&allow[..], &quota[..]].concat());
    let path = format!("127.0.0.1={}", server.address);
    let flags = ["--path", &path, "--warm", "0"];
    let (_client, socks) = start_client(dir.path(), &server.invite_file, &flags);
    let (target, came) = (echo_target(), Arc::default());
    let udp_target = counting_target(Arc::clone(&came));
    let application = Association::open(socks);
    let datagrams = |count: usize| {
        for _ in 0..count {
            application.send(udp_target, &[9; 1_000]);
            let _ = application.recv(std::time::Duration::from_secs(2));
        }
    };
    let mut old = open(socks, target).unwrap();
    pump(&mut old, 300_000).unwrap();
    datagrams(50);
    let said = ask(dir.path(), &["upgrade", "--control", control], true);
    let newest = TookOver::told_by(&said);
    // Existing connections of the old process continue there, new ones are in the new process.
    let mut new = open(socks, target).unwrap();
    pump(&mut old, 300_000).unwrap();
    pump(&mut new, 600_000).unwrap();
    datagrams(50);
    let expected = || 2 * (1_200_000 + came.load(Ordering::Relaxed));
    assert!(came.load(Ordering::Relaxed) >= 90_000);
    // Neither process alone exceeds the soft limit of 2 MB.
    let standing = || {
        let json = ask(dir.path(), &["status", "--json", "--control", control], true);
        let told: serde_json::Value = serde_json::from_str(&json).unwrap();
        let quota = told["clients"][0]["quota"].clone();
        (quota["state"].as_str().unwrap_or_default().to_owned(), json)
    };
    until("the new process knows of the old one's bytes", || standing().0 == "soft");
    drop((old, new, application));
    server.process.signal("TERM");
    assert!(server.process.wait(std::time::Duration::from_secs(30)));
    let pid = i32::try_from(newest.pid()).ok().and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    super::super::upgrade::wait_until_gone(newest.pid());
    let state = std::fs::read_to_string(dir.path().join("server.state")).unwrap();
    let value = |name: &str| {
        let line = state.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        line.parse::<u64>().unwrap()
    };
    assert_eq!(value("period-bytes = "), expected(), "{state}");
    let (sent, received) = (value("sent-bytes = "), value("received-bytes = "));
    assert_eq!((sent, received), (expected() / 2, expected() / 2), "{state}");
}
