use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use super::application::{self, Download, EchoPlan, EchoResult, LiveProgress};
use super::columns::COLUMNS;
use super::content::Content;
use super::origin::{File, OriginServers};
use super::outcome::{self, Latency, Outcome};
use super::plan::{SETUPS, Setup};
use super::verdict;

const FILE: File = File { seed: 3, length: 300_000, pace: None };

fn plan(count: u32, deadline: Duration) -> EchoPlan {
    let start = Instant::now();
    EchoPlan { start, interval: Duration::from_millis(2), count, deadline: start + deadline }
}

/// Returns a SOCKS5 proxy for one connection that answers with code `reply` and then forwards.
async fn proxy(reply: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bind");
    let address = listener.local_addr().expect("address");
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.expect("accept");
        let (mut greeting, mut request) = ([0; 3], [0; 10]);
        client.read_exact(&mut greeting).await.expect("greeting");
        client.write_all(&[5, 0]).await.expect("method");
        client.read_exact(&mut request).await.expect("request");
        let ip: [u8; 4] = request[4..8].try_into().expect("four bytes");
        let port = u16::from_be_bytes([request[8], request[9]]);
        let mut target = TcpStream::connect(SocketAddr::from((ip, port))).await.expect("target");
        client.write_all(reply).await.expect("reply");
        let _ = tokio::io::copy_bidirectional(&mut client, &mut target).await;
    });
    address
}

#[tokio::test]
async fn the_file_comes_through_a_proxy_with_the_right_hash_or_is_called_wrong() {
    let origin = OriginServers::start(FILE).await.expect("start");
    for (seed, intact) in [(FILE.seed, true), (FILE.seed + 1, false)] {
        let proxy = proxy(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await;
        let stream = application::connect(proxy, origin.http).await.expect("connect");
        let expected = Content::new(seed, FILE.length).hash();
        let (deadline, live) = (Instant::now() + Duration::from_secs(20), Arc::default());
        let got = application::download(stream, FILE.length, expected, deadline, live).await;
        assert_eq!((got.bytes, got.intact, got.error.is_none()), (FILE.length, intact, intact));
        assert_eq!(got.sha256.expect("whole").len(), 64);
    }
}

#[tokio::test]
async fn a_file_that_is_not_finished_in_time_is_incomplete() {
    let slow = File { pace: Some(100_000), ..FILE };
    let origin = OriginServers::start(slow).await.expect("start");
    let stream = TcpStream::connect(origin.http).await.expect("connect");
    let expected = Content::new(FILE.seed, FILE.length).hash();
    let deadline = Instant::now() + Duration::from_millis(300);
    let got = application::download(stream, FILE.length, expected, deadline, Arc::default()).await;
    assert!(got.bytes < FILE.length && !got.intact && got.sha256.is_none(), "{got:?}");
    assert_eq!(got.error.as_deref(), Some("not finished in time"));
}

#[tokio::test]
async fn a_refusing_proxy_is_an_error() {
    let origin = OriginServers::start(FILE).await.expect("start");
    let refusing = proxy(&[5, 2, 0, 1, 0, 0, 0, 0, 0, 0]).await;
    let error = application::connect(refusing, origin.http).await.expect_err("refused");
    assert!(error.to_string().contains("answered 2"), "{error}");
}

#[tokio::test]
async fn echoes_are_counted_and_timed() {
    let origin = OriginServers::start(FILE).await.expect("start");
    let stream = TcpStream::connect(origin.echo).await.expect("connect");
    let live = Arc::new(LiveProgress::default());
    let result = application::echo(stream, plan(50, Duration::from_secs(20)), live).await;
    assert_eq!(result.error, None);
    assert_eq!(result.latencies.iter().flatten().count(), 50);
    assert!(result.longest_pause >= Duration::from_millis(1), "{:?}", result.longest_pause);
}

#[tokio::test]
async fn unanswered_messages_are_a_pause_until_the_end() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bind");
    let address = listener.local_addr().expect("address");
    // Answers five messages, then stays silent.
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accept");
        let mut message = [0; application::MESSAGE];
        for _ in 0..5 {
            stream.read_exact(&mut message).await.expect("message");
            stream.write_all(&message).await.expect("answer");
        }
        stream
    });
    let stream = TcpStream::connect(address).await.expect("connect");
    let plan = plan(20, Duration::from_millis(400));
    let result = application::echo(stream, plan, Arc::default()).await;
    drop(server);
    let latency = Latency::from_samples(&result.latencies);
    assert_eq!((latency.unanswered, latency.p99, latency.max), (15, None, None));
    assert!(result.longest_pause >= Duration::from_millis(300), "{:?}", result.longest_pause);
}

#[tokio::test]
async fn an_echo_that_comes_back_changed_is_noticed() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bind");
    let address = listener.local_addr().expect("address");
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accept");
        let mut message = [0; application::MESSAGE];
        stream.read_exact(&mut message).await.expect("message");
        message[100] ^= 1;
        stream.write_all(&message).await.expect("answer");
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    let stream = TcpStream::connect(address).await.expect("connect");
    let result = application::echo(stream, plan(3, Duration::from_secs(20)), Arc::default()).await;
    assert_eq!(result.error.as_deref(), Some("echo 0 was corrupted"));
}

fn outcome(way: Setup, pause_ms: u64, intact: Option<bool>) -> Outcome {
    let ms = Duration::from_millis;
    Outcome {
        way,
        echo: EchoResult {
            latencies: (1..=100).map(|n| Some(ms(n))).collect(),
            longest_pause: ms(pause_ms),
            error: None,
        },
        file: Download {
            bytes: 1_000_000,
            intact: intact == Some(true),
            sha256: intact.map(|_| "0123456789abcdef".to_owned()),
            took: ms(2_000),
            error: None,
        },
        wifi_bytes: 1_500_000,
        lte_bytes: 20_000,
    }
}

#[test]
fn percentiles_are_ranks_and_no_answer_is_the_worst() {
    let mut latencies: Vec<_> = (1..=100).map(|n| Some(Duration::from_millis(n))).collect();
    let latency = Latency::from_samples(&latencies);
    assert_eq!(latency.p50, Some(Duration::from_millis(50)));
    assert_eq!(latency.p99, Some(Duration::from_millis(99)));
    assert_eq!(latency.max, Some(Duration::from_millis(100)));
    latencies[0] = None;
    latencies[1] = None;
    let latency = Latency::from_samples(&latencies);
    assert_eq!((latency.p99, latency.max, latency.unanswered), (None, None, 2));
    assert_eq!(latency.p50, Some(Duration::from_millis(52)));
    assert_eq!(Latency::from_samples(&[]).p50, None);
}

#[test]
fn the_table_has_a_row_for_each_variant() {
    let outcomes = [outcome(SETUPS[0], 6_000, None), outcome(SETUPS[2], 250, Some(true))];
    let text = outcome::table(&outcomes);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].starts_with("WiFi alone") && lines[1].ends_with("incomplete"), "{text}");
    assert!(lines[1].contains("6000") && lines[1].contains(" -  "), "{text}");
    assert!(lines[2].starts_with("Marline ") && lines[2].ends_with("2.0 s ok"), "{text}");
    assert!(lines[2].contains("1.50 MB") && lines[2].contains("20.0 kB"), "{text}");
    assert_eq!(lines[3], "WiFi alone: received 1.00 MB of the file");
}

#[test]
fn the_widest_table_fits_a_terminal() {
    let mut worst = SETUPS.map(|way| outcome(way, 608_000, None));
    for outcome in &mut worst {
        outcome.echo.latencies = vec![None; 12_000];
        (outcome.wifi_bytes, outcome.lte_bytes) = (9_990_000_000, 9_990_000_000);
        outcome.file.error = Some("not finished in time ".repeat(9));
    }
    worst[0].echo.latencies = vec![Some(Duration::from_secs(608)); 12_000];
    worst[1].file.sha256 = Some("0123456789abcdef".to_owned());
    let text = outcome::table(&worst);
    assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
}

#[test]
fn the_verdict_reports_the_measurement_good_or_bad() {
    let dead = Duration::from_secs(6);
    let said = |both: Outcome, wifi: Outcome| verdict::sentence(&[wifi, both], dead).expect("both");
    assert_eq!(
        said(outcome(SETUPS[2], 94, Some(true)), outcome(SETUPS[0], 6_888, Some(true))),
        "WiFi died for 6 s: the longest pause was 94 ms over both paths, 6.9 s over WiFi alone; \
         the download arrived complete.",
    );
    let mut stalled = outcome(SETUPS[0], 13_550, None);
    stalled.echo.latencies.push(None);
    let bad = said(outcome(SETUPS[2], 14_000, None), stalled);
    assert_eq!(
        bad,
        "WiFi died for 6 s, and the second path did not help: the longest pause was 14 s over both \
         paths, at least 13.6 s over WiFi alone; only 1.00 MB of the download arrived.",
    );
    let damaged = said(outcome(SETUPS[2], 94, Some(false)), outcome(SETUPS[0], 6_888, None));
    assert!(damaged.ends_with("the download arrived DAMAGED."), "{damaged}");
    // Only Marline with default settings is judged, not the variant that copies everything.
    assert_eq!(
        verdict::sentence(&[outcome(SETUPS[0], 1, None), outcome(SETUPS[3], 1, None)], dead),
        None
    );
}

#[test]
fn a_pause_on_the_working_link_makes_the_run_unreliable() {
    assert_eq!(
        outcome::describe_unreliable_run(&SETUPS.map(|way| outcome(way, 999, Some(true)))),
        None
    );
    let doubt =
        outcome::describe_unreliable_run(&SETUPS.map(|way| outcome(way, 2_066, Some(true))))
            .expect("a doubt");
    assert!(doubt.contains("LTE alone") && doubt.contains("2.1 s"), "{doubt}");
}

#[test]
fn the_verdict_forgives_stalled_single_paths_only() {
    let singles = [outcome(SETUPS[0], 6_000, None), outcome(SETUPS[1], 60, Some(true))];
    let all = |marline: Outcome| outcome::failures(&[singles.to_vec(), vec![marline]].concat());
    assert_eq!(all(outcome(SETUPS[2], 5_999, Some(true))), Vec::<String>::new());
    assert!(all(outcome(SETUPS[2], 6_001, Some(true)))[0].contains("longer than those of both"));
    assert!(all(outcome(SETUPS[3], 60, Some(false)))[0].contains("hash is wrong"));
    assert!(all(outcome(SETUPS[3], 60, None))[0].contains("incomplete"));
    assert_eq!(outcome::failures(&[outcome(SETUPS[0], 1, Some(false))]).len(), 1);
}
