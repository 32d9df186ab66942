//! Targets behind the server: pages, a resolver, and services with different endings.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use super::super::end_to_end::serve;
use super::super::support::stun;
use super::{OTHER_V4, PUBLIC_V4, PUBLIC_V6, TARGET_V4, TARGET_V6, two_uplinks};

/// Pages: GET /N returns N bytes of the pattern, PUT returns the SHA-256 of the received content.
pub(crate) const HTTP: u16 = 8_080;
/// Reads to the end, and then sends the number of bytes.
pub(crate) const COUNT: u16 = 9_001;
/// Resets after the first byte.
pub(crate) const RESET: u16 = 9_002;
/// Sends the number of reset connections to [`WAIT`] immediately, and ends.
pub(crate) const RESETS: u16 = 9_003;
/// Reads, sends nothing, and records whether the end is orderly or a reset.
pub(crate) const WAIT: u16 = 9_004;
/// Sends first.
pub(crate) const GREET: u16 = 9_005;
/// Reads nothing until a client connects to [`READ_ON`], then counts.
pub(crate) const STALL: u16 = 9_006;
pub(crate) const READ_ON: u16 = 9_007;
/// Sends the last number of [`COUNT`].
pub(crate) const LAST: u16 = 9_008;
/// UDP: echoes datagrams.
pub(crate) const ECHO: u16 = 9_009;
/// UDP: sends the source address of each datagram, as text.
pub(crate) const MIRRORS: [u16; 2] = [9_010, 9_011];
/// STUN over UDP.
pub(crate) const STUN: u16 = 3_478;
/// DNS over UDP and TCP.
pub(crate) const DNS: u16 = 53;

static RESETS_SEEN: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
static LAST_COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
static MAY_READ: (std::sync::Mutex<bool>, std::sync::Condvar) =
    (std::sync::Mutex::new(false), std::sync::Condvar::new());

/// Runs all targets.
#[test]
pub(crate) fn targets() {
    if !two_uplinks::plays(targets) {
        return;
    }
    for address in [TARGET_V4, OTHER_V4, TARGET_V6, PUBLIC_V4, PUBLIC_V6] {
        let ip: IpAddr = address.parse().expect("an address");
        let is_public = [PUBLIC_V4, PUBLIC_V6].contains(&address);
        if is_public && UdpSocket::bind((ip, 0)).is_err() {
            // This world does not have the address.
            continue;
        }
        listen((ip, HTTP).into(), |stream| drop(serve(stream)));
        listen((ip, COUNT).into(), count);
        listen((ip, RESET).into(), reset);
        listen((ip, RESETS).into(), |mut stream| {
            let seen = RESETS_SEEN.load(std::sync::atomic::Ordering::SeqCst);
            let _ = write!(stream, "{seen}");
        });
        listen((ip, LAST).into(), |mut stream| {
            let count = LAST_COUNT.load(std::sync::atomic::Ordering::SeqCst);
            let _ = write!(stream, "{count}");
        });
        listen((ip, WAIT).into(), wait);
        listen((ip, GREET).into(), |mut stream| {
            let _ = stream.write_all(b"hello\n");
        });
        listen((ip, STALL).into(), |stream| {
            let may = MAY_READ.0.lock().expect("lock");
            drop(MAY_READ.1.wait_while(may, |may| !*may).expect("lock"));
            count(stream);
        });
        listen((ip, READ_ON).into(), |_| {
            *MAY_READ.0.lock().expect("lock") = true;
            MAY_READ.1.notify_all();
        });
        listen((ip, DNS).into(), |stream| drop(resolve(stream)));
        answer_datagrams((ip, DNS).into(), |query, _| Some(answer(query)));
        answer_datagrams((ip, ECHO).into(), |payload, _| Some(payload.to_vec()));
        answer_datagrams((ip, STUN).into(), stun::answer);
        for port in MIRRORS {
            answer_datagrams((ip, port).into(), |_, from| Some(from.to_string().into_bytes()));
        }
    }
    println!("ready");
    loop {
        std::thread::park();
    }
}

fn listen(address: SocketAddr, serve: impl Fn(TcpStream) + Send + Copy + 'static) {
    let listener = TcpListener::bind(address).expect("bind");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
}

fn answer_datagrams(
    address: SocketAddr,
    answer: impl Fn(&[u8], SocketAddr) -> Option<Vec<u8>> + Send + 'static,
) {
    let socket = UdpSocket::bind(address).expect("bind");
    std::thread::spawn(move || {
        let mut buffer = [0; 10_000];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            if let Some(answer) = answer(&buffer[..len], from) {
                let _ = socket.send_to(&answer, from);
            }
        }
    });
}

fn count(mut stream: TcpStream) {
    let mut buffer = vec![0; 1 << 16];
    let mut count = 0;
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        count += read;
    }
    LAST_COUNT.store(count, std::sync::atomic::Ordering::SeqCst);
    let _ = write!(stream, "{count}");
}

fn reset(mut stream: TcpStream) {
    let _ = stream.read(&mut [0]);
    abort(&stream);
}

/// Makes the end of this stream a reset.
pub(crate) fn abort(stream: &TcpStream) {
    socket2::SockRef::from(stream).set_linger(Some(std::time::Duration::ZERO)).expect("an option");
}

fn wait(mut stream: TcpStream) {
    let mut buffer = [0; 64];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                RESETS_SEEN.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                return;
            }
        }
    }
}

/// Answers all queries on a connection.
fn resolve(mut stream: TcpStream) -> std::io::Result<()> {
    loop {
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut query)?;
        let answer = answer(&query);
        let mut bytes = (answer.len() as u16).to_be_bytes().to_vec();
        bytes.extend(answer);
        stream.write_all(&bytes)?;
    }
}

fn answer(query: &[u8]) -> Vec<u8> {
    let (mut name, mut at) = (String::new(), 12);
    while query[at] > 0 {
        let end = at + 1 + usize::from(query[at]);
        name.push_str(&String::from_utf8_lossy(&query[at + 1..end]).to_lowercase());
        name.push('.');
        at = end;
    }
    let kind = u16::from_be_bytes([query[at + 1], query[at + 2]]);
    let question = &query[12..at + 5];
    let (v4, v6): (IpAddr, IpAddr) = (TARGET_V4.parse().unwrap(), TARGET_V6.parse().unwrap());
    let (known, records): (bool, Vec<Vec<u8>>) = match (name.as_str(), kind) {
        ("www.example.test." | "v4.example.test.", 1) => (true, vec![bytes(v4)]),
        ("direct.example.test.", 1) => (true, vec![bytes(PUBLIC_V4.parse().unwrap())]),
        // A public address among addresses that are not routed on the Internet.
        ("rebinding.example.test.", 1) => {
            let all = ["127.0.0.1", "10.0.0.1", "169.254.169.254", "198.18.0.1", "9.9.9.21"];
            (true, all.map(|address| bytes(address.parse().unwrap())).into())
        }
        ("many.example.test.", 1) => (true, (1..=40).map(|n| vec![9, 9, 8, n]).collect()),
        ("www.example.test." | "v6.example.test.", 28) => (true, vec![bytes(v6)]),
        // More than fits in any datagram.
        ("big.example.test.", 16) => (true, vec![[&[200u8][..], &[b'x'; 200]].concat(); 20]),
        (name, _) => (NAMES.contains(&name), Vec::new()),
    };
    let alias = (name == "alias.example.test.").then(|| {
        // v6.example.test, in the question's own domain.
        let label = [&[2][..], b"v6", &[0xc0, 12 + 6]].concat();
        let length = (label.len() as u16).to_be_bytes();
        [&[0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 60][..], &length, &label].concat()
    });
    let mut answer = query[..2].to_vec();
    answer.extend([0x85, if known { 0x80 } else { 0x83 }, 0, 1]);
    answer.extend((records.len() as u16 + u16::from(alias.is_some())).to_be_bytes());
    answer.extend([0; 4]);
    answer.extend(question);
    answer.extend(alias.unwrap_or_default());
    for record in records {
        answer.extend([0xc0, 12]);
        answer.extend(kind.to_be_bytes());
        answer.extend([0, 1, 0, 0, 0, 60]);
        answer.extend((record.len() as u16).to_be_bytes());
        answer.extend(record);
    }
    answer
}

/// Names that exist for all record types.
const NAMES: [&str; 8] = [
    "www.example.test.",
    "v4.example.test.",
    "v6.example.test.",
    "big.example.test.",
    "direct.example.test.",
    "rebinding.example.test.",
    "many.example.test.",
    "alias.example.test.",
];

fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}
