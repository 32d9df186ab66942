use std::net::IpAddr;

use marline_core::AddressPairStatistics;
use marline_policy::{AddressPairFault, PathHealthConfig};

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn wifi() -> AddressPair {
    AddressPair { local: ip("192.0.2.7"), remote: ip("198.51.100.1"), interface: 3 }
}

fn silent(since: Instant) -> AddressPairVerdict {
    let (address_pair, fault) = (wifi(), AddressPairFault::Silent);
    AddressPairVerdict { address_pair, fault, since, unheard_from: Instant::ZERO }
}

/// A directory, the monitor of a process that takes part there, and the socket of another process.
struct Fixture {
    _directory: tempfile::TempDir,
    clock: Clock,
    monitor: PathHealthMonitor,
    exchange: HealthExchange,
    other: net::UnixDatagram,
}

impl Fixture {
    fn new() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let monitor = PathHealthMonitor::new(PathHealthConfig::prompt());
        monitor.set_interface(wifi().local, wifi().interface);
        let place = directory.path().join("exchange");
        let exchange = HealthExchange::join(&place, "udp", &monitor, &[]).unwrap();
        let other = exchange.place.own.with_file_name(format!("{}other", exchange.place.group));
        let other = net::UnixDatagram::bind(other).unwrap();
        other.set_nonblocking(true).unwrap();
        Fixture { _directory: directory, clock: Clock::start(), monitor, exchange, other }
    }

    fn beside(&self, name: &str) -> PathBuf {
        self.exchange.place.directory.join(name)
    }

    /// Sends when there is room: a few messages fit the queue of a socket.
    async fn send(&self, text: impl AsRef<[u8]>) {
        while self.other.send_to(text.as_ref(), &self.exchange.place.own).is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    async fn send_verdicts(&self, verdicts: Vec<AddressPairVerdict>) {
        self.send(Message::Verdicts(verdicts).text(&self.clock)).await;
    }

    fn is_bad(&self) -> bool {
        self.monitor.is_bad(wifi().local, wifi().remote)
    }

    async fn until(&self, bad: bool) {
        let wait = async {
            while self.is_bad() != bad {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(20), wait).await.expect("in time");
    }
}

#[tokio::test]
async fn a_verdict_of_another_process_holds_until_it_is_withdrawn_or_not_repeated() {
    let fixture = Fixture::new();
    fixture.send_verdicts(vec![silent(fixture.clock.now())]).await;
    fixture.until(true).await;
    fixture.send_verdicts(Vec::new()).await;
    fixture.until(false).await;
    fixture.send_verdicts(vec![silent(fixture.clock.now())]).await;
    fixture.until(true).await;
    fixture.until(false).await;
}

#[tokio::test]
async fn what_one_of_two_processes_withdraws_the_other_still_holds() {
    let fixture = Fixture::new();
    let path =
        fixture.exchange.place.own.with_file_name(format!("{}2", fixture.exchange.place.group));
    let second = net::UnixDatagram::bind(path).unwrap();
    let verdicts = Message::Verdicts(vec![silent(fixture.clock.now())]).text(&fixture.clock);
    second.send_to(verdicts.as_bytes(), &fixture.exchange.place.own).unwrap();
    fixture.send(&verdicts).await;
    fixture.until(true).await;
    fixture.send_verdicts(Vec::new()).await;
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(fixture.is_bad());
    fixture.until(false).await;
}

#[tokio::test]
async fn garbage_and_strangers_change_nothing() {
    let fixture = Fixture::new();
    let verdicts = Message::Verdicts(vec![silent(fixture.clock.now())]).text(&fixture.clock);
    // Of another network namespace or transport.
    let stranger = net::UnixDatagram::bind(fixture.beside("0-tcp-1-0")).unwrap();
    stranger.send_to(verdicts.as_bytes(), &fixture.exchange.place.own).unwrap();
    let nameless = net::UnixDatagram::unbound().unwrap();
    nameless.send_to(verdicts.as_bytes(), &fixture.exchange.place.own).unwrap();
    let truncated = (0..verdicts.len() - 1).map(|end| verdicts.as_bytes()[..end].to_vec());
    let more = [&b"\xff\xfe"[..], b"", b"marline-path-health 2 verdicts\n"].map(<[u8]>::to_vec);
    let word = verdicts.replace("silent", "fading").into_bytes();
    let long = vec![b'x'; 100_000];
    for text in truncated.chain(more).chain([word, long]) {
        fixture.send(&text).await;
        assert!(!fixture.is_bad(), "{:?}", String::from_utf8_lossy(&text));
    }
    fixture.send(&verdicts).await;
    fixture.until(true).await;
}

#[tokio::test]
async fn what_a_process_leaves_behind_is_removed() {
    let fixture = Fixture::new();
    let left = fixture.other.local_addr().unwrap().as_pathname().unwrap().to_owned();
    drop(fixture.other);
    assert!(left.exists());
    fixture.exchange.place.send(&Message::Verdicts(Vec::new()), &fixture.clock);
    assert!(!left.exists());
    let own = fixture.exchange.place.own.clone();
    assert!(own.exists());
    drop(fixture.exchange);
    assert!(!own.exists());
}

#[tokio::test]
async fn a_directory_that_others_may_enter_is_refused_and_a_second_exchange_too() {
    let fixture = Fixture::new();
    let again = HealthExchange::join(&fixture.beside(""), "udp", &fixture.monitor, &[]);
    assert!(again.unwrap_err().to_string().contains("shared already"));
    let open = fixture.beside("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    let monitor = PathHealthMonitor::new(PathHealthConfig::prompt());
    let refused = HealthExchange::join(&open, "udp", &monitor, &[]).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    let made = fixture.beside("a/b");
    HealthExchange::join(&made, "udp", &monitor, &[]).unwrap();
    assert_eq!(fs::metadata(made).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn messages_are_read_as_they_were_written() {
    let clock = Clock::start();
    let later = clock.now();
    let verdicts = Message::Verdicts(vec![silent(later), silent(later + Duration::from_nanos(1))]);
    let six = AddressPair { local: ip("2001:db8::1"), remote: ip("2001:db8::2"), interface: 0 };
    let part = AddressPairStatistics {
        lost: 1,
        outstanding: 2,
        at_risk: 3,
        retransmitted: 4,
        sent: u64::MAX,
        rto: Duration::from_millis(200),
    };
    let statistics = Message::Statistics(vec![(wifi(), part), (six, part)]);
    for message in [verdicts, statistics, Message::Verdicts(Vec::new())] {
        let text = message.text(&clock);
        assert_eq!(Message::read(text.as_bytes(), &clock), Some(message), "{text}");
    }
    let many = Message::Verdicts(vec![silent(later); MAX_LINES + 1]).text(&clock);
    assert!(many.len() < MAX_MESSAGE, "{} bytes", many.len());
    let Some(Message::Verdicts(read)) = Message::read(many.as_bytes(), &clock) else { panic!() };
    assert_eq!(read.len(), MAX_LINES);
}
