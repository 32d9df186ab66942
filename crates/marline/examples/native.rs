//! Client and server with a selectable carrier: with `raw`, the other end may be any stack that supports Multipath
//! TCP, or plain TCP.
//!
//! ```text
//! native server [--carrier udp|raw|INTERFACE=ADDRESS]... [--announce ADDRESS[:PORT]]... LISTEN
//! native client [--carrier udp|raw|INTERFACE=ADDRESS]... [--path PATH]... [--bytes N] SERVER
//! ```
//! `INTERFACE=ADDRESS` is a TUN interface and the address behind it. If it is given several times, each is a path.
//!
//! The server sends back what it receives. The client sends N random-looking bytes (default 1 MiB), compares the data
//! sent back, and prints the state of the connection.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use marline::config::{ServerAddress, TunPath};
use marline::monitor::ConnectionInfo;
use marline::paths::PathSpec;
use marline::{Carrier, Client, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const USAGE: &str =
    "usage: native server [--carrier udp|raw|TUN=ADDRESS]... [--announce ADDRESS]... LISTEN
       native client [--carrier udp|raw|TUN=ADDRESS]... [--path PATH]... [--bytes N] SERVER";

#[derive(Default)]
struct Options {
    carrier: Carrier,
    announce: Vec<ServerAddress>,
    paths: Vec<PathSpec>,
    bytes: usize,
    address: Option<SocketAddr>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let role = args.next().ok_or(USAGE)?;
    let options = options(args)?;
    match role.as_str() {
        "server" => server(options).await,
        "client" => client(options).await,
        _ => Err(USAGE.into()),
    }
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options { bytes: 1 << 20, ..Options::default() };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--carrier" => {
                let text = value()?;
                match (text.as_str(), text.split_once('='), &mut options.carrier) {
                    ("udp", ..) => options.carrier = Carrier::Udp,
                    ("raw", ..) => options.carrier = Carrier::Raw,
                    (_, Some((interface, address)), Carrier::Tun(tuns)) => {
                        tuns.push(tun_path(interface, address)?);
                    }
                    (_, Some((interface, address)), carrier) => {
                        *carrier = Carrier::Tun(vec![tun_path(interface, address)?]);
                    }
                    (other, ..) => return Err(format!("unknown carrier `{other}`").into()),
                }
            }
            "--announce" => {
                let text = value()?;
                let ip = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 0));
                let address = ip.or_else(|_| text.parse())?;
                options.announce.push(ServerAddress::new(address));
            }
            "--path" => options.paths.push(value()?.parse()?),
            "--bytes" => options.bytes = value()?.parse()?,
            address => options.address = Some(address.parse()?),
        }
    }
    Ok(options)
}

fn tun_path(interface: &str, address: &str) -> Result<TunPath> {
    Ok(TunPath::new(interface.to_owned(), address.parse()?))
}

async fn server(options: Options) -> Result<()> {
    let mut listener = Server::builder();
    listener.carrier(options.carrier).listen(options.address.ok_or(USAGE)?);
    for address in options.announce {
        listener.announce(address);
    }
    let listener = listener.bind().await?;
    println!("listening on {}", listener.local_addr());
    while let Some((stream, peer)) = listener.accept().await {
        tokio::spawn(async move {
            let (mut reader, mut writer) = tokio::io::split(stream);
            let copied = tokio::io::copy(&mut reader, &mut writer).await;
            let _ = writer.shutdown().await;
            let stream = reader.unsplit(writer);
            println!("{peer}: {copied:?}, {}", words(stream.info()));
        });
    }
    Ok(())
}

async fn client(options: Options) -> Result<()> {
    let client = Client::builder().carrier(options.carrier).paths(options.paths).bind().await?;
    let stream = client.connect(options.address.ok_or(USAGE)?).await?;
    let sent: Vec<u8> = (0..options.bytes).map(|i| (i * 7 + i / 251) as u8).collect();
    let started = Instant::now();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut got = vec![0; sent.len()];
    let (written, read) = tokio::join!(writer.write_all(&sent), reader.read_exact(&mut got));
    written?;
    read?;
    let took = started.elapsed();
    let stream = reader.unsplit(writer);
    println!("echoed {} bytes in {took:?}, {}", sent.len(), words(stream.info()));
    let mut stream = stream;
    stream.shutdown().await?;
    let rest = stream.read(&mut [0; 1]).await?;
    drop(stream);
    client.drained(Duration::from_secs(5)).await;
    println!("{:?}", client.counters().1);
    if got != sent || rest != 0 {
        return Err("the echoed data differs from the data sent".into());
    }
    Ok(())
}

fn words(info: Option<ConnectionInfo>) -> String {
    let Some(info) = info else { return "the connection has ended".to_owned() };
    let subflows: Vec<String> = info
        .subflows
        .iter()
        .map(|s| format!("{} -> {} {:?}", s.path.local, s.path.remote, s.state))
        .collect();
    match info.fallback {
        Some(reason) => format!("plain TCP ({reason:?}), {}", subflows.join(", ")),
        None => format!("{} subflows: {}", subflows.len(), subflows.join(", ")),
    }
}
