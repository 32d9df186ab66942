use std::sync::atomic::Ordering;

use tokio::io::DuplexStream;

use super::allowances::ClientAllowances;
use super::*;
use crate::channel::Channel;
use crate::credentials::Suspensions;
use crate::ledger::Ledger;
use crate::message::VERSION;
use crate::quota::QuotaState;
use crate::secret::Secret;
use crate::testing::{Bench, echo_target};

type Stream = Channel<DuplexStream>;

async fn say(stream: &mut Stream, message: &Message) {
    stream.write_all(&message.to_bytes()).await.unwrap();
    stream.flush().await.unwrap();
}

async fn hear(stream: &mut Stream) -> Message {
    Message::read(stream).await.unwrap()
}

async fn failure(stream: &mut Stream) -> Failure {
    match hear(stream).await {
        Message::Failed(failure) => failure,
        other => panic!("expected Failed, not {other}"),
    }
}

fn hello(token: &Secret) -> Message {
    Message::Hello { version: VERSION, token: token.clone() }
}

async fn welcomed(bench: &Bench) -> Stream {
    let mut stream = bench.dial_tls().await;
    say(&mut stream, &hello(&bench.token)).await;
    assert!(matches!(
        hear(&mut stream).await,
        Message::Welcome { idle_limit_s: 600, session: Some(_), .. }
    ));
    stream
}

async fn connected(bench: &Bench) -> Stream {
    let mut stream = welcomed(bench).await;
    say(&mut stream, &Message::Connect(echo_target().await)).await;
    assert_eq!(hear(&mut stream).await, Message::Working);
    assert_eq!(hear(&mut stream).await, Message::Connected);
    stream
}

async fn echo(stream: &mut Stream, text: &[u8]) {
    stream.write_all(text).await.unwrap();
    stream.flush().await.unwrap();
    let mut back = vec![0; text.len()];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(back, text);
}

#[tokio::test]
async fn a_client_reaches_its_target_and_both_ends_close() {
    let bench = Bench::new(ServerLimits::default());
    let mut stream = connected(&bench).await;
    echo(&mut stream, b"hello over there").await;
    assert_eq!((bench.server.count_unauthenticated(), bench.server.authenticated()), (0, 1));
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "an orderly end");
}

#[tokio::test]
async fn a_wrong_token_is_refused_and_reads_why_even_with_a_request_behind_it() {
    let bench = Bench::new(ServerLimits::default());
    let mut stream = bench.dial_tls().await;
    let mut bytes = hello(&Secret::random().unwrap()).to_bytes();
    Message::Connect(echo_target().await).encode(&mut bytes);
    stream.write_all(&bytes).await.unwrap();
    stream.flush().await.unwrap();
    let failure = failure(&mut stream).await;
    assert_eq!(failure.code, ErrorCode::NotAuthorized);
    assert!(failure.text.contains("unknown"), "{failure}");
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    assert_eq!(bench.server.authenticated(), 0);
}

#[tokio::test]
async fn messages_out_of_turn_are_named() {
    let bench = Bench::new(ServerLimits::default());
    let mut stream = bench.dial_tls().await;
    say(&mut stream, &Message::Connect(echo_target().await)).await;
    assert_eq!(failure(&mut stream).await.code, ErrorCode::UnsupportedMessage);

    let mut stream = bench.dial_tls().await;
    say(&mut stream, &Message::Hello { version: 9, token: bench.token.clone() }).await;
    assert_eq!(failure(&mut stream).await.code, ErrorCode::UnsupportedVersion);

    let mut stream = welcomed(&bench).await;
    say(&mut stream, &Message::Working).await;
    assert_eq!(failure(&mut stream).await.code, ErrorCode::UnsupportedMessage);

    let mut stream = welcomed(&bench).await;
    stream.write_all(&[3, 0, 4, 0, 80, 9, 9]).await.unwrap();
    stream.flush().await.unwrap();
    assert_eq!(failure(&mut stream).await.code, ErrorCode::Malformed);
}

#[tokio::test]
async fn a_private_target_is_refused_with_the_flag_that_allows_it() {
    let bench = Bench::new(ServerLimits::default());
    let mut stream = welcomed(&bench).await;
    say(&mut stream, &Message::Connect("10.1.2.3:22".parse().unwrap())).await;
    assert_eq!(hear(&mut stream).await, Message::Working);
    let failure = failure(&mut stream).await;
    assert_eq!(failure.code, ErrorCode::NotAuthorized);
    assert!(failure.text.contains("--allow 10.1.2.3"), "{failure}");
}

/// Until the credential is verified, the wait for another path after a RST lasts at most a minute.
#[tokio::test]
async fn a_peer_is_known_once_it_has_shown_its_credential_and_not_before() {
    for (right, known) in [(true, true), (false, false)] {
        let bench = Bench::new(ServerLimits::default());
        let near = bench.dial_bound("192.0.2.1", None, None);
        let noted = Arc::clone(&near.peer_known);
        let mut stream = bench.tls_over(near.inner).await;
        assert!(!noted.load(Ordering::Relaxed), "TLS alone does not authenticate the client");
        let token = if right { bench.token.clone() } else { Secret::random().unwrap() };
        say(&mut stream, &hello(&token)).await;
        hear(&mut stream).await;
        assert_eq!(noted.load(Ordering::Relaxed), known);
    }
}

#[tokio::test(start_paused = true)]
async fn lingering_without_authentication_is_bounded_in_number_and_time() {
    let admission =
        AdmissionLimits { silent_per_source: 4, silent_total: 6, ..AdmissionLimits::default() };
    let bench = Bench::new(ServerLimits { admission, ..ServerLimits::default() });
    let mut lingering: Vec<DuplexStream> = (0..20).map(|_| bench.dial_from("192.0.2.9")).collect();
    lingering.extend((0..20).map(|n| bench.dial_from(&format!("198.51.100.{n}"))));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(bench.server.count_unauthenticated(), 6);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(bench.server.count_unauthenticated(), 0);
    for mut stream in lingering {
        let ended = matches!(stream.read(&mut [0; 16]).await, Ok(0) | Err(_));
        assert!(ended, "the server must have dropped the connection");
    }
    // A client with a credential can connect again.
    welcomed(&bench).await;
}

#[tokio::test]
async fn stalled_tls_handshakes_of_many_sources_lock_out_no_client() {
    let admission = AdmissionLimits { per_source: 2, total: 6, ..AdmissionLimits::default() };
    let bench = Bench::new(ServerLimits { admission, ..ServerLimits::default() });
    let mut stalled = Vec::new();
    for n in 0..30 {
        let mut stream = bench.dial_from(&format!("198.51.100.{}", n % 5));
        // The start of a TLS record that never continues.
        stream.write_all(&[22, 3, 1, 2]).await.unwrap();
        stalled.push(stream);
    }
    while bench.server.handshakes.count() < 6 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut stream = timeout(Duration::from_secs(5), connected(&bench)).await.unwrap();
    echo(&mut stream, b"a client connects among them").await;
}

#[tokio::test(start_paused = true)]
async fn lingering_after_tls_and_in_the_middle_of_hello_ends_too() {
    let bench = Bench::new(ServerLimits::default());
    let silent = bench.dial_tls().await;
    let mut half = bench.dial_tls().await;
    half.write_all(&hello(&bench.token).to_bytes()[..20]).await.unwrap();
    half.flush().await.unwrap();
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(bench.server.count_unauthenticated(), 2);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(bench.server.count_unauthenticated(), 0);
    drop((silent, half));
}

#[tokio::test(start_paused = true)]
async fn an_unused_connection_is_closed_in_good_order_after_its_limit() {
    let bench = Bench::new(ServerLimits::default());
    let mut stream = welcomed(&bench).await;
    tokio::time::sleep(Duration::from_secs(601)).await;
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    drop(stream);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(bench.server.authenticated(), 0);
}

#[tokio::test]
async fn revoking_ends_running_and_waiting_connections() {
    let bench = Bench::new(ServerLimits::default());
    let (mut running, mut waiting) = (connected(&bench).await, welcomed(&bench).await);
    echo(&mut running, b"still open").await;
    bench.credentials.send_modify(|all| Arc::make_mut(all).revoke("laptop").unwrap());
    assert!(running.read(&mut [0]).await.is_err(), "broken, not finished");
    assert!(waiting.read(&mut [0]).await.is_err());
}

#[tokio::test]
async fn a_revocation_does_not_affect_other_clients() {
    let bench = Bench::new(ServerLimits::default());
    bench.credentials.send_modify(|all| {
        Arc::make_mut(all).add("phone").unwrap();
    });
    let mut running = connected(&bench).await;
    bench.credentials.send_modify(|all| Arc::make_mut(all).revoke("phone").unwrap());
    echo(&mut running, b"undisturbed").await;
}

#[tokio::test]
async fn a_client_has_a_bounded_number_of_connections() {
    let bench = Bench::new(ServerLimits { per_client: 2, ..ServerLimits::default() });
    let first = welcomed(&bench).await;
    let _second = welcomed(&bench).await;
    let mut third = bench.dial_tls().await;
    say(&mut third, &hello(&bench.token)).await;
    assert_eq!(failure(&mut third).await.code, ErrorCode::ResourceExceeded);
    drop(first);
    while bench.server.authenticated() == 2 {
        tokio::task::yield_now().await;
    }
    welcomed(&bench).await;
}

#[tokio::test]
async fn draining_spares_open_streams_and_the_end_closes_them() {
    let bench = Bench::new(ServerLimits::default());
    let (mut running, mut waiting) = (connected(&bench).await, welcomed(&bench).await);
    bench.stopper.drain();
    assert_eq!(waiting.read(&mut [0]).await.unwrap(), 0);
    echo(&mut running, b"finishing").await;
    bench.stopper.end();
    assert!(running.read(&mut [0]).await.is_err());
}

/// Returns a control connection of `laptop`, the listener's visitor, and the visitor's id.
async fn visited(bench: &Bench) -> (Stream, tokio::net::TcpStream, VisitorId) {
    bench.server.allow_remote(vec!["laptop@127.0.0.1:0".parse().unwrap()]);
    let mut control = welcomed(bench).await;
    say(&mut control, &Message::Listen("127.0.0.1:0".parse().unwrap())).await;
    let Message::Listening(address) = hear(&mut control).await else { panic!("refused") };
    let visitor = tokio::net::TcpStream::connect(address).await.unwrap();
    let Message::Visitor { id, from } = hear(&mut control).await else {
        panic!("no visitor arrived")
    };
    assert_eq!(from, visitor.local_addr().unwrap());
    (control, visitor, id)
}

#[tokio::test]
async fn a_visitor_is_accepted_once_and_by_the_client_it_came_to() {
    let bench = Bench::new(ServerLimits::default());
    let (_control, mut visitor, id) = visited(&bench).await;
    let mut token = None;
    bench.credentials.send_modify(|all| token = Arc::make_mut(all).add("phone").ok());
    let mut foreign = bench.dial_tls().await;
    say(&mut foreign, &hello(&token.unwrap())).await;
    hear(&mut foreign).await;
    let mut own = welcomed(&bench).await;
    for (stream, id) in [(&mut foreign, id), (&mut own, VisitorId::random().unwrap())] {
        say(stream, &Message::Accept(id)).await;
        assert_eq!(hear(stream).await, Message::Working);
        assert_eq!(failure(stream).await.code, ErrorCode::DestinationUnreachable);
    }
    let mut own = welcomed(&bench).await;
    say(&mut own, &Message::Accept(id)).await;
    assert_eq!(hear(&mut own).await, Message::Working);
    assert_eq!(hear(&mut own).await, Message::Connected);
    visitor.write_all(b"hello").await.unwrap();
    let mut heard = [0; 5];
    own.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"hello");
    let mut again = welcomed(&bench).await;
    say(&mut again, &Message::Accept(id)).await;
    assert_eq!(hear(&mut again).await, Message::Working);
    assert_eq!(failure(&mut again).await.code, ErrorCode::DestinationUnreachable);
}

#[tokio::test]
async fn the_end_of_a_control_connection_resets_its_visitors() {
    let bench = Bench::new(ServerLimits::default());
    let (mut control, mut declined, id) = visited(&bench).await;
    say(&mut control, &Message::Decline(VisitorId::random().unwrap())).await;
    say(&mut control, &Message::Alive).await;
    assert_eq!(hear(&mut control).await, Message::Alive);
    say(&mut control, &Message::Decline(id)).await;
    assert!(declined.read(&mut [0]).await.is_err(), "reset");

    let (mut control, mut waiting, _) = visited(&bench).await;
    say(&mut control, &Message::Working).await;
    assert_eq!(failure(&mut control).await.code, ErrorCode::UnsupportedMessage);
    assert!(waiting.read(&mut [0]).await.is_err(), "reset");

    let (mut control, mut waiting, _) = visited(&bench).await;
    bench.credentials.send_modify(|all| Arc::make_mut(all).revoke("laptop").unwrap());
    assert!(control.read(&mut [0]).await.is_err(), "broken");
    assert!(waiting.read(&mut [0]).await.is_err(), "reset");
}

/// Creates a bench with a ledger in a directory. The test itself publishes suspensions.
fn with_book(bench: &Bench, dir: &std::path::Path, rules: &str) -> Suspensions {
    let suspensions = Suspensions::default();
    let ledger = Ledger::open(dir.join("state"));
    bench.server.use_ledger(ledger, suspensions.clone());
    let quotas = vec![rules.parse().unwrap()];
    bench.server.allow_clients(ClientAllowances { quotas, ..ClientAllowances::default() });
    suspensions
}

/// Publishes suspensions, as the follower of the file does.
fn publish(bench: &Bench, suspensions: &Suspensions) {
    bench.credentials.send_modify(|now| {
        *now = Arc::new(now.as_ref().clone().with_suspended(suspensions.now()));
    });
}

/// 2026-11-24 12:00 UTC.
const NOVEMBER: u64 = 1_795_521_600;
const WEEK_S: u64 = 7 * 86_400;

#[tokio::test]
async fn a_client_over_its_quota_is_refused_until_the_month_ends() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::new(ServerLimits::default());
    let suspensions = with_book(&bench, dir.path(), "laptop@1000B,soft=50%");
    let mut relayed = connected(&bench).await;
    let mut warm = welcomed(&bench).await;
    echo(&mut relayed, &[7; 300]).await;
    bench.server.update_accounts(NOVEMBER);
    let used = bench.server.quota_use("laptop", NOVEMBER).unwrap();
    assert_eq!((used.used_bytes, used.state), (600, QuotaState::BeyondSoftLimit));
    assert!(suspensions.now().is_empty(), "the soft limit only warns");
    echo(&mut relayed, &[7; 200]).await;
    bench.server.update_accounts(NOVEMBER);
    publish(&bench, &suspensions);
    // A connection that waits for a request receives the reason. A relaying connection cannot carry it.
    let told = failure(&mut warm).await;
    assert_eq!(told.code, ErrorCode::NotAuthorized);
    assert!(told.text.contains("1kB is used up until 2026-12-01"), "{told}");
    assert!(!matches!(relayed.read(&mut [0]).await, Ok(1..)), "ended");
    let mut refused = bench.dial_tls().await;
    say(&mut refused, &hello(&bench.token)).await;
    assert_eq!(failure(&mut refused).await, told);
    let count = bench.server.refusals().find(|(reason, _)| *reason == RefusalReason::Quota);
    assert_eq!(count, Some((RefusalReason::Quota, 1)));
    // Same process a week later, and another process that reads the file.
    bench.server.update_accounts(NOVEMBER + WEEK_S);
    assert!(suspensions.now().is_empty());
    publish(&bench, &suspensions);
    drop(connected(&bench).await);
}

#[tokio::test]
async fn a_quota_that_is_used_up_is_so_after_a_restart_and_a_larger_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    {
        let bench = Bench::new(ServerLimits::default());
        with_book(&bench, dir.path(), "1000B");
        echo(&mut connected(&bench).await, &[7; 500]).await;
        bench.server.close_ledger().await;
    }
    let bench = Bench::new(ServerLimits::default());
    let suspensions = with_book(&bench, dir.path(), "1000B");
    assert_eq!(suspensions.now().len(), 1, "before a client connects");
    publish(&bench, &suspensions);
    let mut refused = bench.dial_tls().await;
    say(&mut refused, &hello(&bench.token)).await;
    assert_eq!(failure(&mut refused).await.code, ErrorCode::NotAuthorized);
    let quotas = vec!["1001B".parse().unwrap()];
    bench.server.allow_clients(ClientAllowances { quotas, ..ClientAllowances::default() });
    publish(&bench, &suspensions);
    drop(welcomed(&bench).await);
}

#[tokio::test]
async fn the_session_limit_of_a_credential_holds() {
    let bench = Bench::new(ServerLimits::default());
    let sessions = vec!["phone@9".parse().unwrap(), "1".parse().unwrap()];
    bench.server.allow_clients(ClientAllowances { sessions, ..ClientAllowances::default() });
    let first = welcomed(&bench).await;
    let mut second = bench.dial_tls().await;
    say(&mut second, &hello(&bench.token)).await;
    let told = failure(&mut second).await;
    assert_eq!(told.code, ErrorCode::NotAuthorized);
    assert!(told.text.contains("1 sessions"), "{told}");
    drop(first);
    while bench.server.authenticated() > 0 {
        tokio::task::yield_now().await;
    }
    drop(welcomed(&bench).await);
    // A removed limit no longer applies.
    bench.server.allow_clients(ClientAllowances::default());
    let _many = [welcomed(&bench).await, welcomed(&bench).await];
}

/// Ten thousand idle streams need ten thousand of these tasks, so this test limits their size.
#[test]
fn the_task_of_a_stream_is_small() {
    fn of_result<A, R>(_: impl FnOnce(A) -> R) -> usize {
        size_of::<R>()
    }
    let peer = IpAddr::from([127, 0, 0, 1]);
    let task = of_result(|(server, stream): (&'static Server, marline::Stream)| {
        server.serve(stream, peer)
    });
    assert!(task <= 1_400, "{task} bytes");
}
