mod pump;

use std::future::pending;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::channel::Channel;
use crate::tls::{ServerKey, connector, server_name};

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (near, listener.accept().await.unwrap().0)
}

async fn tls_over_tcp() -> (Channel<TcpStream>, Channel<TcpStream>) {
    let key = ServerKey::generate().unwrap();
    let (near, far) = tcp_pair().await;
    let connect = connector(key.pin()).unwrap();
    let accept = key.acceptor().unwrap();
    let (near, far) = tokio::join!(connect.connect(server_name(), near), accept.accept(far));
    (Channel::tls(near.unwrap()), Channel::tls(far.unwrap()))
}

/// app <tcp> relay <tls over tcp> relay <tcp> target
async fn chain() -> (TcpStream, TcpStream) {
    let (app, app_side) = tcp_pair().await;
    let (target, target_side) = tcp_pair().await;
    let (near, far) = tls_over_tcp().await;
    tokio::spawn(async move { relay(app_side, near, &Traffic::default(), pending()).await });
    tokio::spawn(async move { relay(target_side, far, &Traffic::default(), pending()).await });
    (app, target)
}

#[tokio::test]
async fn half_close_goes_through_and_the_other_way_stays_open() {
    let (mut app, mut target) = chain().await;
    app.write_all(b"question").await.unwrap();
    app.shutdown().await.unwrap();
    let mut question = Vec::new();
    target.read_to_end(&mut question).await.unwrap();
    assert_eq!(question, b"question");
    let answer = vec![0x5a; 300_000];
    target.write_all(&answer).await.unwrap();
    target.shutdown().await.unwrap();
    let mut got = Vec::new();
    app.read_to_end(&mut got).await.unwrap();
    assert!(got == answer);
}

#[tokio::test]
async fn a_reset_arrives_as_a_reset() {
    let (mut app, mut target) = chain().await;
    app.write_all(b"x").await.unwrap();
    let mut byte = [0];
    target.read_exact(&mut byte).await.unwrap();
    Transport::abort(target);
    let error = app.read(&mut byte).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn an_end_without_close_notify_is_an_error() {
    let (app, app_side) = tcp_pair().await;
    let (near, far) = tls_over_tcp().await;
    // The far end's TCP ends properly but its TLS does not: the stream was cut.
    let Channel::Tls(far) = far else { panic!("made by TLS") };
    let tokio_rustls::TlsStream::Server(far) = far.into_inner() else { panic!("the far end") };
    let (mut raw, _) = far.into_inner();
    raw.shutdown().await.unwrap();
    let error = relay(app_side, near, &Traffic::default(), pending()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    let mut app = app;
    assert!(app.read(&mut [0]).await.is_err(), "the application must see an error");
}

#[tokio::test]
async fn bytes_are_counted_in_both_directions() {
    let (app, app_side) = duplex(1024);
    let (far, far_side) = duplex(1024);
    let traffic = Traffic::default();
    let (mut app, mut far) = (app, far);
    let run = relay(app_side, far_side, &traffic, pending());
    let talk = async {
        app.write_all(&[1; 500]).await.unwrap();
        app.shutdown().await.unwrap();
        far.write_all(&[2; 700]).await.unwrap();
        far.shutdown().await.unwrap();
        let mut sink = Vec::new();
        far.read_to_end(&mut sink).await.unwrap();
        app.read_to_end(&mut sink).await.unwrap();
        sink.len()
    };
    let (result, length) = tokio::join!(run, talk);
    result.unwrap();
    assert_eq!(length, 1_200);
    assert_eq!(traffic.from_local.into_inner(), 500);
    assert_eq!(traffic.to_local.into_inner(), 700);
}

#[tokio::test]
async fn a_canceled_relay_ends_with_errors_on_both_sides() {
    let (mut app, app_side) = tcp_pair().await;
    let (mut target, target_side) = tcp_pair().await;
    let soon = tokio::time::sleep(std::time::Duration::from_millis(20));
    let error = relay(app_side, target_side, &Traffic::default(), soon).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    assert!(app.read(&mut [0]).await.is_err());
    assert!(target.read(&mut [0]).await.is_err());
}
