//! Tests of adapters for HTTP, TLS streams, host names and split streams, over loopback.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::support::*;
use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::{get, post};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use marline::axum::PeerAddr;
use marline::tls::{Acceptor, Connector, Identity, TlsError, TlsServer};
use marline::{ConnectError, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

type Http = HttpClient<marline::hyper::Connector, Full<&'static [u8]>>;

fn http(connector: marline::hyper::Connector) -> Http {
    HttpClient::builder(TokioExecutor::new()).build(connector)
}

fn router() -> Router {
    let peer = async |ConnectInfo(PeerAddr(peer)): ConnectInfo<PeerAddr>| peer.ip().to_string();
    let echo = async |body: axum::body::Bytes| body;
    Router::new().route("/peer", get(peer)).route("/echo", post(echo))
}

async fn body_of(response: http::Response<hyper::body::Incoming>) -> Vec<u8> {
    response.into_body().collect().await.unwrap().to_bytes().to_vec()
}

/// A hundred parallel requests, with keep-alive and bodies larger than a window.
#[tokio::test]
async fn axum_serves_hyper_in_plaintext() {
    let server = server(1).await;
    let address = server.local_addr();
    let service = router().into_make_service_with_connect_info::<PeerAddr>();
    let serving = tokio::spawn(axum::serve(server, service).into_future());
    let http = http(marline::hyper::Connector::new(client(&["127.0.0.1", "127.0.0.2"]).await));
    let big: &'static [u8] = Box::leak(bytes(300_000, 3).into_boxed_slice());
    let answered = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (http, answered) = (http.clone(), Arc::clone(&answered));
        tasks.spawn(async move {
            let request = http::Request::post(format!("http://{address}/echo"));
            let response = http.request(request.body(Full::from(big)).unwrap()).await.unwrap();
            assert_eq!(response.status(), 200);
            assert!(body_of(response).await == big);
            answered.fetch_add(1, Ordering::Relaxed);
        });
    }
    within(async { while tasks.join_next().await.transpose().unwrap().is_some() {} }).await;
    assert_eq!(answered.load(Ordering::Relaxed), 100);
    serving.abort();
}

#[tokio::test]
async fn axum_serves_hyper_with_tls_despite_a_silent_client() {
    let identity = Identity::generate().unwrap();
    let server = server(1).await;
    let address = server.local_addr();
    let tls = TlsServer::new(server, Acceptor::new(&identity).unwrap());
    let service = router().into_make_service_with_connect_info::<PeerAddr>();
    let serving = tokio::spawn(axum::serve(tls, service).into_future());
    let client = client(&["127.0.0.1"]).await;
    // Connects and sends nothing.
    let silent = within(client.connect(address)).await.unwrap();
    let connector = Connector::pinned(identity.pin()).unwrap();
    let http = http(marline::hyper::Connector::tls(client.clone(), connector));
    let request = http.get(format!("http://{address}/peer").parse().unwrap());
    let response = within(request).await.unwrap();
    assert_eq!(body_of(response).await, b"127.0.0.1");
    // Another key is refused before any data is sent.
    let other = Connector::pinned(Identity::generate().unwrap().pin()).unwrap();
    let error = within(other.connect(&client, address)).await.unwrap_err();
    assert!(matches!(error, TlsError::WrongKey), "{error}");
    // Plaintext does not reach a handler.
    let plain = http_plain(&client, address).await;
    assert!(plain.is_err(), "{plain:?}");
    drop(silent);
    serving.abort();
}

async fn http_plain(client: &marline::Client, address: SocketAddr) -> Result<(), String> {
    let http = http(marline::hyper::Connector::new(client.clone()));
    let request = http.get(format!("http://{address}/peer").parse().unwrap());
    within(request).await.map(|_| ()).map_err(|error| error.to_string())
}

#[tokio::test]
async fn other_schemes_are_refused_with_the_reason() {
    let http = http(marline::hyper::Connector::new(client(&["127.0.0.1"]).await));
    let error = http.get("https://127.0.0.1:1/".parse().unwrap()).await.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("only http://"), "{cause}");
}

/// Handshakes run in parallel. Those in progress when the server closes are still completed before it ends.
#[tokio::test]
async fn a_tls_server_ends_after_close() {
    let identity = Identity::generate().unwrap();
    let server = server(1).await;
    let mut tls = TlsServer::new(server.clone(), Acceptor::new(&identity).unwrap());
    let client = client(&["127.0.0.1"]).await;
    let connector = Connector::pinned(identity.pin()).unwrap();
    let connecting = connector.connect(&client, server.local_addr());
    let (near, far) = within(async { tokio::join!(connecting, tls.accept()) }).await;
    let (mut near, (mut far, peer)) = (near.unwrap(), far.unwrap());
    assert_eq!(peer.ip().to_string(), "127.0.0.1");
    near.write_all(b"secret").await.unwrap();
    near.flush().await.unwrap();
    let mut got = [0; 6];
    within(far.read_exact(&mut got)).await.unwrap();
    assert_eq!(&got, b"secret");
    server.close();
    assert!(within(tls.accept()).await.is_none());
}

#[tokio::test]
async fn a_server_is_reached_by_its_name() {
    let server = server(1).await;
    let client = client(&["127.0.0.1"]).await;
    let name = format!("localhost:{}", server.local_addr().port());
    let (near, far) = within(async { tokio::join!(client.connect(name), server.accept()) }).await;
    let (near, (far, _)) = (near.unwrap(), far.unwrap());
    assert_eq!(near.local_addr().unwrap().ip(), far.peer_addr().ip());
    assert_eq!(far.local_addr().unwrap().port(), server.local_addr().port());
    let error = within(client.connect("nobody.invalid:1")).await.unwrap_err();
    assert!(matches!(error, ConnectError::Resolve(_)), "{error}");
    assert!(std::error::Error::source(&error).is_some());
    let error = within(client.connect("no port here")).await.unwrap_err();
    assert!(matches!(error, ConnectError::Resolve(_)), "{error}");
}

/// Transfers in both directions in parallel, each half in a separate task, with more data than all buffers hold.
#[tokio::test]
async fn halves_work_in_separate_tasks_and_can_be_reunited() {
    const LEN: usize = 3 << 20;
    let (server, client) = (server(1).await, client(&["127.0.0.1", "127.0.0.2"]).await);
    let (near, mut far) = pair(&client, &server).await;
    let echo = tokio::spawn(async move {
        let (mut reader, mut writer) = tokio::io::split(&mut far);
        tokio::io::copy(&mut reader, &mut writer).await.unwrap();
        writer.shutdown().await.unwrap();
        far
    });
    let (mut reader, mut writer) = near.into_split();
    let sent = bytes(LEN, 5);
    let expected = sent.clone();
    let writing = tokio::spawn(async move {
        writer.write_all(&sent).await.unwrap();
        writer
    });
    let mut got = vec![0; LEN];
    within(reader.read_exact(&mut got)).await.unwrap();
    assert!(got == expected);
    let writer = within(writing).await.unwrap();
    // Halves of different streams: both are returned.
    let (other, _other_far) = pair(&client, &server).await;
    let (other_reader, other_writer) = other.into_split();
    let wrong = reader.reunite(other_writer).unwrap_err();
    let mut near = wrong.0.reunite(writer).unwrap();
    drop(other_reader);
    // Reunited, and still open in both directions.
    near.write_all(b"more").await.unwrap();
    let mut more = [0; 4];
    within(near.read_exact(&mut more)).await.unwrap();
    // Dropping the writing half ends the stream, as with tokio's own streams.
    let (mut reader, writer) = near.into_split();
    drop(writer);
    let mut rest = Vec::new();
    within(reader.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.is_empty());
    within(echo).await.unwrap();
}

/// A forgotten half leaves the connection open.
#[tokio::test]
async fn a_forgotten_half_shuts_nothing_down() {
    let (server, client) = (server(1).await, client(&["127.0.0.1"]).await);
    let (near, mut far) = pair(&client, &server).await;
    let (mut reader, writer) = near.into_split();
    writer.forget();
    let quiet = tokio::time::timeout(Duration::from_millis(100), far.read_u8()).await;
    assert!(quiet.is_err(), "the stream has not ended");
    far.write_all(b"!").await.unwrap();
    assert_eq!(within(reader.read_u8()).await.unwrap(), b'!');
}

/// A builder can be used twice, and its errors come before anything is opened.
#[tokio::test]
async fn builders_report_contradictory_settings() {
    let mut builder = Server::builder();
    assert!(builder.bind().await.is_err_and(|error| error.to_string().contains("no address")));
    builder.listen("127.0.0.1:0".parse().unwrap());
    let (one, two) = (builder.bind().await.unwrap(), builder.bind().await.unwrap());
    assert_ne!(one.local_addr(), two.local_addr());
    let error = builder.shards(3).bind().await.unwrap_err().to_string();
    assert!(error.contains("power of two"), "{error}");
    let error = marline::Client::builder().scheduler("none-such").unwrap_err().to_string();
    assert!(error.contains("none-such") && error.contains("min-rtt"), "{error}");
    let mut client = marline::Client::builder();
    let error = client.udp_keepalive(Duration::from_secs(21)).bind().await.unwrap_err();
    assert!(error.to_string().contains("at most 20 s"), "{error}");
}
