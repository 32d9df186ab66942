//! HTTP service on axum, and a client on hyper, over two paths with TLS.
//!
//! ```text
//! cargo run -p marline --example axum --features axum,hyper,tls
//! ```

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use marline::axum::PeerAddr;
use marline::tls::{Acceptor, Connector, Identity, TlsServer};
use marline::{Client, Server};

async fn hello(ConnectInfo(PeerAddr(peer)): ConnectInfo<PeerAddr>) -> String {
    format!("hello {}, over all your paths\n", peer.ip())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A service stores `identity.pkcs8()` in a file, and its clients store `identity.pin()`.
    let identity = Identity::generate()?;
    let server = Server::builder().listen("127.0.0.1:0".parse()?).bind().await?;
    let address = server.local_addr();
    let router = Router::new().route("/", get(hello));
    let service = router.into_make_service_with_connect_info::<PeerAddr>();
    let serving = axum::serve(TlsServer::new(server, Acceptor::new(&identity)?), service);
    tokio::spawn(serving.into_future());

    let client =
        Client::builder().path("127.0.0.1".parse()?).path("127.0.0.2".parse()?).bind().await?;
    let connector = marline::hyper::Connector::tls(client, Connector::pinned(identity.pin())?);
    let http: HttpClient<_, Empty<&'static [u8]>> =
        HttpClient::builder(TokioExecutor::new()).build(connector);
    let response = http.get(format!("http://{address}/").parse()?).await?;
    let body = response.into_body().collect().await?.to_bytes();
    print!("{}", String::from_utf8_lossy(&body));
    Ok(())
}
