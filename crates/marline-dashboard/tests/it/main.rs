//! Tests of a dashboard's server over TCP, with requests from browsers and with invalid ones.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use marline_dashboard::{
    Access, CarriedBytes, Description, MAX_VIEWERS, PathSummary, Places, RunningServer, Sample,
    Source, TimedEvent, Token, TransmissionKind,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;

/// Timeout that is not reached even on a very busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const TOKEN: &str = "0123456789abcdef0123";

struct Still;

impl Source for Still {
    fn describe(&self) -> Description {
        Description { role: "client".into(), version: "1".into(), pid: 7 }
    }

    fn sample(&self, _: bool) -> Sample {
        let path = PathSummary { name: "wlan0".into(), bytes_sent: 42, ..PathSummary::default() };
        Sample { at_us: 1_000, paths: vec![path], ..Sample::default() }
    }

    /// Connection 5 sends endlessly.
    fn watch_places(&self, connection: u64) -> Option<mpsc::Receiver<Places>> {
        if connection != 5 {
            return None;
        }
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let one = CarriedBytes {
                at_us: 1,
                subflow: 1,
                sent: true,
                manner: TransmissionKind::Reinjection,
                dsn: 0,
                bytes: 1_400,
            };
            let places = Places { carried: vec![one; 500], ..Places::default() };
            while sender.send(places.clone()).await.is_ok() {
                ASKED.fetch_add(1, Ordering::Relaxed);
            }
            ENDED.fetch_add(1, Ordering::Relaxed);
        });
        Some(receiver)
    }
}

/// Number of position messages accepted, and number of dropped receivers.
static ASKED: AtomicUsize = AtomicUsize::new(0);
static ENDED: AtomicUsize = AtomicUsize::new(0);

async fn served(token: Option<&str>) -> RunningServer {
    let address = "127.0.0.1:0".parse().expect("an address");
    let token = token.map(|text| Token::new(text).expect("a token"));
    let access = Access::new(address, token).expect("access");
    marline_dashboard::serve(address, access, Arc::new(Still)).await.expect("the server listens")
}

/// Sends `bytes` and reads until the end, or until `until` is received.
async fn say(to: SocketAddr, text: &[u8], until: Option<&str>) -> String {
    let talk = async {
        let mut stream = TcpStream::connect(to).await.expect("the server accepts");
        // The server may have closed the connection before it read everything.
        let _ = stream.write_all(text).await;
        hear(&mut stream, until).await
    };
    tokio::time::timeout(PATIENCE, talk).await.expect("an answer or an end")
}

async fn hear(stream: &mut TcpStream, until: Option<&str>) -> String {
    let mut heard = Vec::new();
    let mut buffer = [0; 4_096];
    loop {
        let text = String::from_utf8_lossy(&heard);
        if until.is_some_and(|word| text.contains(word)) {
            return text.into_owned();
        }
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return String::from_utf8_lossy(&heard).into_owned(),
            Ok(count) => heard.extend_from_slice(&buffer[..count]),
        }
    }
}

fn get(path: &str, more: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:9101\r\n{more}\r\n").into_bytes()
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("none")
}

#[tokio::test]
async fn the_page_is_there_and_may_load_nothing_from_elsewhere() {
    let served = served(None).await;
    for (path, word) in [("/", "<title>Marline"), ("/page.js", "uPlot"), ("/page.css", "--paper")] {
        let answer = say(served.local_addr(), &get(path, ""), None).await;
        assert_eq!(status(&answer), "200", "{path}");
        assert!(answer.contains(word), "{path}");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let head = head.to_lowercase();
        for rule in [
            "default-src 'none'",
            "script-src 'self'",
            "frame-ancestors 'none'",
            "nosniff",
            "no-store",
        ] {
            assert!(head.contains(rule), "{path}: {rule}: {head}");
        }
        assert!(!head.contains("unsafe") && !head.contains("set-cookie"), "{head}");
        // The page attempts nothing that the policy forbids.
        assert!(
            path != "/"
                || !(body.contains("http:") || body.contains("style=") || body.contains("onclick"))
        );
        let only_head =
            say(served.local_addr(), &[b"HEAD", &get(path, "")[3..]].concat(), None).await;
        assert!(
            only_head.starts_with("HTTP/1.1 200") && only_head.ends_with("\r\n\r\n"),
            "{only_head}"
        );
    }
    assert_eq!(status(&say(served.local_addr(), &get("/../etc/passwd", ""), None).await), "404");
}

#[tokio::test]
async fn a_viewer_gets_about_sample_and_happening_events() {
    let served = served(None).await;
    let mut stream = TcpStream::connect(served.local_addr()).await.expect("the server accepts");
    stream.write_all(&get("/events", "Sec-Fetch-Site: same-origin\r\n")).await.expect("asked");
    let heard = hear(&mut stream, Some("event: sample")).await;
    assert_eq!(status(&heard), "200");
    assert!(
        heard.contains("text/event-stream")
            && heard.contains("event: about\ndata: {\"role\":\"client\"")
    );
    served.dashboard().report(&TimedEvent {
        event: "HOLE".into(),
        at_us: 9,
        ..TimedEvent::default()
    });
    let heard = hear(&mut stream, Some("\"event\":\"HOLE\"")).await;
    assert!(heard.contains("event: happening"), "{heard}");
    assert_eq!(served.dashboard().viewers(), 1);
}

#[tokio::test]
async fn other_sites_and_other_names_are_refused() {
    let served = served(None).await;
    let at = served.local_addr();
    for (host, expected) in [
        ("Host: 127.0.0.1:9101\r\n", "200"),
        ("Host: localhost\r\n", "200"),
        ("Host: [::1]:1\r\n", "200"),
        // A name that its owner temporarily points here.
        ("Host: rebound.example:9101\r\n", "403"),
        ("Host: 127.0.0.1.rebound.example\r\n", "403"),
        ("", "400"),
        ("Host: 127.0.0.1\r\nHost: rebound.example\r\n", "400"),
        ("Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\n", "403"),
        ("Host: 127.0.0.1\r\nSec-Fetch-Site: same-site\r\n", "403"),
        ("Host: 127.0.0.1\r\nSec-Fetch-Site: none\r\n", "200"),
        // Any page may contain a link to this one.
        ("Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Dest: document\r\n", "200"),
        ("Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Dest: iframe\r\n", "403"),
    ] {
        let answer = say(at, format!("GET / HTTP/1.1\r\n{host}\r\n").as_bytes(), None).await;
        assert_eq!(status(&answer), expected, "{host:?}: {answer}");
    }
    let absolute = b"GET http://rebound.example/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    assert_eq!(status(&say(at, absolute, None).await), "403");
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT"] {
        let request = format!("{method} /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        let answer = say(at, request.as_bytes(), None).await;
        assert!(["405", "400"].contains(&status(&answer)), "{method}: {answer}");
    }
    assert_eq!(served.dashboard().viewers(), 0);
}

#[tokio::test]
async fn without_the_token_there_is_a_page_and_nothing_on_it() {
    let served = served(Some(TOKEN)).await;
    let at = served.local_addr();
    assert_eq!(status(&say(at, &get("/", ""), None).await), "200");
    let missing = say(at, &get("/events", ""), None).await;
    assert_eq!(status(&missing), "401");
    assert!(missing.to_lowercase().contains("www-authenticate: bearer"));
    for wrong in
        ["Bearer x", "Bearer ", "Basic MDEy", "0123456789abcdef0123", "Bearer 0123456789abcdef0124"]
    {
        let answer = say(at, &get("/events", &format!("Authorization: {wrong}\r\n")), None).await;
        assert_eq!(status(&answer), "403", "{wrong}");
        assert!(!answer.contains(TOKEN) && !answer.contains("wlan0"));
    }
    // A token in the URL, which logs would record, is ignored.
    assert_eq!(status(&say(at, &get(&format!("/events?token={TOKEN}"), ""), None).await), "401");
    let right = get("/events", &format!("Authorization: Bearer {TOKEN}\r\n"));
    assert!(say(at, &right, Some("wlan0")).await.contains("\"bytes_sent\":42"));
}

#[tokio::test]
async fn viewers_beyond_the_limit_wait_until_one_leaves() {
    let served = served(None).await;
    let mut all = Vec::new();
    for _ in 0..MAX_VIEWERS {
        let mut stream = TcpStream::connect(served.local_addr()).await.expect("the server accepts");
        stream.write_all(&get("/events", "")).await.expect("asked");
        assert_eq!(status(&hear(&mut stream, Some("event: about")).await), "200");
        all.push(stream);
    }
    assert_eq!(status(&say(served.local_addr(), &get("/events", ""), None).await), "503");
    // The page itself is still served.
    assert_eq!(status(&say(served.local_addr(), &get("/", ""), None).await), "200");
    all.pop();
    let again = async {
        while status(&say(served.local_addr(), &get("/events", ""), Some("\r\n\r\n")).await)
            != "200"
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, again).await.expect("a place was freed");
}

#[tokio::test]
async fn a_viewer_that_stops_reading_is_disconnected() {
    let served = served(None).await;
    let slow = TcpSocket::new_v4().expect("a socket");
    slow.set_recv_buffer_size(4_096).expect("a small buffer");
    let mut slow = slow.connect(served.local_addr()).await.expect("the server accepts");
    slow.write_all(&get("/events", "")).await.expect("asked");
    let mut quick = TcpStream::connect(served.local_addr()).await.expect("the server accepts");
    quick.write_all(&get("/events", "")).await.expect("asked");
    hear(&mut quick, Some("event: sample")).await;
    let both = async {
        while served.dashboard().viewers() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, both).await.expect("both watch");
    let reading = tokio::spawn(async move { hear(&mut quick, Some("\"LAST\"")).await.len() });
    let cause = Some("x".repeat(20_000));
    let happening = TimedEvent { event: "HOLE".into(), cause, ..TimedEvent::default() };
    let let_go = async {
        while served.dashboard().viewers() > 1 {
            served.dashboard().report(&happening);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, let_go).await.expect("the slow viewer was disconnected");
    // Its connection is closed, not left in the middle of a write.
    let end = async { while slow.read(&mut [0; 4_096]).await.is_ok_and(|count| count > 0) {} };
    tokio::time::timeout(PATIENCE, end).await.expect("the slow viewer's connection ended");
    let last = TimedEvent { event: "LAST".into(), ..TimedEvent::default() };
    let heard = async {
        while !reading.is_finished() {
            served.dashboard().report(&last);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        reading.await.expect("it read")
    };
    assert!(
        tokio::time::timeout(PATIENCE, heard)
            .await
            .expect("the other viewer received the last message")
            > 20_000
    );
}

#[tokio::test]
async fn invalid_requests_do_no_harm() {
    let served = served(None).await;
    let at = served.local_addr();
    let mut garbage: Vec<Vec<u8>> = vec![
        b"\0\x01\x02\xff\xfe".repeat(2_000),
        b"GET".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        [b"GET /".as_slice(), &b"a".repeat(60_000), b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"]
            .concat(),
    ];
    let many: String = (0..500).map(|n| format!("X-{n}: y\r\n")).collect();
    garbage.push(get("/events", &many));
    garbage.push(get("/events", &format!("X: {}\r\n", "y".repeat(40_000))));
    garbage.push(get("/", "Content-Length: 99999999999999999999\r\n"));
    for text in garbage {
        let answer = say(at, &text, None).await;
        assert!(
            !answer.contains("event: about"),
            "{:?}",
            String::from_utf8_lossy(&text[..text.len().min(40)])
        );
    }
    assert_eq!(status(&say(at, &get("/", ""), None).await), "200");
    assert_eq!(served.dashboard().viewers(), 0);
}

/// A page must load while 300 idle connections are open, immediately, not only after their timeout.
#[tokio::test]
async fn idle_connections_make_room_for_a_page_and_viewers_stay() {
    let served = served(None).await;
    let at = served.local_addr();
    let mut viewer = TcpStream::connect(at).await.expect("the server accepts");
    viewer.write_all(&get("/events", "")).await.expect("asked");
    hear(&mut viewer, Some("event: about")).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(at).await.expect("the server accepts"));
    }
    assert_eq!(status(&say(at, &get("/", ""), None).await), "200");
    let mut first = silent.remove(0);
    let end = async { while first.read(&mut [0; 64]).await.is_ok_and(|count| count > 0) {} };
    tokio::time::timeout(PATIENCE, end).await.expect("the oldest connection was closed");
    assert_eq!(served.dashboard().viewers(), 1);
    // The youngest ones are still open: only as many were closed as necessary.
    let mut last = silent.pop().expect("a further connection is open");
    let open = tokio::time::timeout(Duration::from_millis(50), last.read(&mut [0; 1])).await;
    assert!(open.is_err(), "{open:?}");
}

#[tokio::test]
async fn places_are_streamed_only_for_the_requested_connection() {
    let served = served(Some(TOKEN)).await;
    let at = served.local_addr();
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(status(&say(at, &get("/places?connection=5", ""), None).await), "401");
    for (query, expected) in [("", "400"), ("?connection=x", "400"), ("?connection=6", "404")] {
        let answer = say(at, &get(&format!("/places{query}"), &bearer), None).await;
        assert_eq!(status(&answer), expected, "{query}");
    }
    assert_eq!(ASKED.load(Ordering::Relaxed), 0, "positions were requested too early");
    // A stream that no reader can process: the reader is disconnected and the source stops.
    let mut stream = TcpStream::connect(at).await.expect("the server accepts");
    stream.write_all(&get("/places?connection=5", &bearer)).await.expect("asked");
    let first = hear(&mut stream, Some("\"manner\":\"reinjection\"")).await;
    assert!(first.contains("event: places") && first.contains("text/event-stream"), "{first}");
    let gone = async {
        while ENDED.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone)
        .await
        .expect("a viewer that does not read is disconnected");
}
