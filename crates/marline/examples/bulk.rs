//! Bulk transfer over loopback between two processes, compared with kernel TCP and QUIC without encryption (quinn).
//!
//! `bulk [BYTES]` runs all stacks in turn, in a new network namespace (requires root) whose loopback has an MTU of
//! 1,500 bytes, and prints medians. `bulk server KIND` and `bulk client KIND ADDRESS BYTES` are the two roles, which it
//! starts as separate processes. KIND is `marline`, `tcp` or `quinn`. Kernel TCP is measured twice: with its offloads,
//! and with one segment at a time, as a user-space stack has to send them. CPU time is the total of both processes,
//! user and system, from getrusage.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use marline::{Client, Server};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Size of a write or read, in bytes.
const CHUNK: usize = 256 << 10;
/// Number of runs per stack, for the median.
const ROUNDS: usize = 5;
/// MTU of the namespace's loopback, in bytes.
const MTU: u32 = 1_500;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", "tcp"] => tcp_server(),
        ["client", "tcp", address, bytes] => tcp_client(address, bytes.parse()?),
        ["server", "quinn"] => runtime()?.block_on(quinn_server()),
        ["client", "quinn", address, bytes] => {
            runtime()?.block_on(quinn_client(address, bytes.parse()?))
        }
        ["server", "marline"] => runtime()?.block_on(server()),
        ["client", "marline", address, bytes] => {
            runtime()?.block_on(client(address, bytes.parse()?))
        }
        [] => compare(1 << 30),
        [bytes] => compare(bytes.parse()?),
        _ => Err("usage: bulk [BYTES]".into()),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

fn paced() -> bool {
    std::env::var_os("MARLINE_NO_PACING").is_none()
}

/// Writes this many bytes and ends the stream. Returns the time until the other end has counted them.
async fn send(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), bytes: u64) -> Result<Duration> {
    let buf = vec![7; CHUNK];
    let started = Instant::now();
    let mut left = bytes;
    while left > 0 {
        let len = left.min(CHUNK as u64) as usize;
        stream.write_all(&buf[..len]).await?;
        left -= len as u64;
    }
    stream.shutdown().await?;
    let mut total = [0; 8];
    stream.read_exact(&mut total).await?;
    assert_eq!(u64::from_be_bytes(total), bytes);
    Ok(started.elapsed())
}

/// Counts the bytes until the end of the stream.
async fn count(reader: &mut (impl AsyncRead + Unpin)) -> Result<u64> {
    let mut buf = vec![0; CHUNK];
    let mut total = 0;
    loop {
        match reader.read(&mut buf).await? {
            0 => return Ok(total),
            len => total += len as u64,
        }
    }
}

async fn server() -> Result<()> {
    let mut listener = Server::builder();
    listener.listen("127.0.0.1:0".parse()?).transport_mut().pacing(paced());
    let listener = listener.bind().await?;
    println!("{}", listener.local_addr());
    let (mut stream, _) = listener.accept().await.ok_or("the server was closed")?;
    let total = count(&mut stream).await?;
    if std::env::var_os("MARLINE_INFO").is_some() {
        eprintln!("{:#?} {:#?}", stream.info(), listener.counters());
    }
    stream.write_all(&total.to_be_bytes()).await?;
    stream.shutdown().await?;
    listener.drained(Duration::from_secs(1)).await;
    println!("{}", cpu_seconds());
    Ok(())
}

async fn client(address: &str, bytes: u64) -> Result<()> {
    let mut client = Client::builder();
    client.path("127.0.0.1".parse()?).transport_mut().pacing(paced());
    if std::env::var_os("MARLINE_TWO_PATHS").is_some() {
        client.path("127.0.0.2".parse()?);
    }
    let client = client.bind().await?;
    let mut stream = client.connect(address).await?;
    let elapsed = send(&mut stream, bytes).await?;
    if std::env::var_os("MARLINE_INFO").is_some() {
        eprintln!("{:#?} {:#?}", stream.info(), client.counters());
    }
    println!("{} {}", elapsed.as_secs_f64(), cpu_seconds());
    Ok(())
}

/// Sets windows that do not limit the transfer.
fn roomy() -> Arc<quinn::TransportConfig> {
    let mut config = quinn::TransportConfig::default();
    let window = quinn::VarInt::from_u32(16 << 20);
    config.stream_receive_window(window).receive_window(window).send_window(16 << 20);
    Arc::new(config)
}

async fn quinn_server() -> Result<()> {
    let mut config = quinn_plaintext::server_config();
    config.transport_config(roomy());
    let endpoint = quinn::Endpoint::server(config, (Ipv4Addr::LOCALHOST, 0).into())?;
    println!("{}", endpoint.local_addr()?);
    let connection =
        endpoint.accept().await.ok_or("the endpoint closed before a connection arrived")?.await?;
    let (mut writer, mut reader) = connection.accept_bi().await?;
    let total = count(&mut reader).await?;
    writer.write_all(&u64::to_be_bytes(total)).await?;
    writer.finish()?;
    connection.closed().await;
    println!("{}", cpu_seconds());
    Ok(())
}

async fn quinn_client(address: &str, bytes: u64) -> Result<()> {
    let mut endpoint = quinn::Endpoint::client((Ipv4Addr::LOCALHOST, 0).into())?;
    let mut config = quinn_plaintext::client_config();
    config.transport_config(roomy());
    endpoint.set_default_client_config(config);
    let connection = endpoint.connect(address.parse()?, "localhost")?.await?;
    let (writer, reader) = connection.open_bi().await?;
    let elapsed = send(&mut tokio::io::join(reader, writer), bytes).await?;
    println!("{} {}", elapsed.as_secs_f64(), cpu_seconds());
    connection.close(0u32.into(), b"");
    endpoint.wait_idle().await;
    Ok(())
}

fn tcp_server() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let (mut stream, _) = listener.accept()?;
    let mut buf = vec![0; CHUNK];
    let mut total = 0;
    loop {
        let len = stream.read(&mut buf)?;
        if len == 0 {
            break;
        }
        total += len as u64;
    }
    stream.write_all(&u64::to_be_bytes(total))?;
    drop(stream);
    println!("{}", cpu_seconds());
    Ok(())
}

fn tcp_client(address: &str, bytes: u64) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    let buf = vec![7; CHUNK];
    let started = Instant::now();
    let mut left = bytes;
    while left > 0 {
        let len = left.min(CHUNK as u64) as usize;
        stream.write_all(&buf[..len])?;
        left -= len as u64;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut total = [0; 8];
    stream.read_exact(&mut total)?;
    assert_eq!(u64::from_be_bytes(total), bytes);
    println!("{} {}", started.elapsed().as_secs_f64(), cpu_seconds());
    Ok(())
}

/// Returns the user and system time of this process so far, in seconds.
fn cpu_seconds() -> f64 {
    // SAFETY: all-zero bytes are a valid rusage, and the pointer refers to a live one.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Gives this process and its children a separate loopback interface with the MTU of Ethernet. Returns false on
/// failure.
fn own_loopback() -> bool {
    // SAFETY: no memory is passed; there is one thread.
    let own = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    own && ip(&format!("link set lo mtu {MTU} up"))
}

fn ip(words: &str) -> bool {
    Command::new("ip").args(words.split(' ')).status().is_ok_and(|status| status.success())
}

/// Stacks, with the maximum number of segments that the loopback interface carries as one (1: no offloads).
const STACKS: [(&str, &str, u32); 4] = [
    ("marline", "marline", 65_535),
    ("quinn, plain", "quinn", 65_535),
    ("TCP, one by one", "tcp", 1),
    ("TCP", "tcp", 65_535),
];

fn compare(bytes: u64) -> Result<()> {
    let own = own_loopback();
    if !own {
        println!(
            "not root: using the machine's loopback interface and its MTU, and measuring TCP only with offloads"
        );
    }
    let mut measured = STACKS.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for ((_, kind, segments), all) in STACKS.iter().zip(&mut measured) {
            if own && !ip(&format!("link set lo gso_max_segs {segments}")) {
                return Err("ip failed to set the offloads of the loopback interface".into());
            }
            // A transfer with one segment at a time is slow, so it sends fewer bytes.
            let bytes = if *segments == 1 { bytes / 8 } else { bytes };
            all.push(transfer(kind, bytes)?);
        }
    }
    println!("{:>16} {:>10} {:>14}", "stack", "Gbit/s", "CPU-s per GB");
    let medians = measured.map(|all| {
        [0, 1].map(|part| {
            let mut values: Vec<f64> = all.iter().map(|turn: &[f64; 2]| turn[part]).collect();
            values.sort_by(f64::total_cmp);
            values[ROUNDS / 2]
        })
    });
    for ((name, ..), [rate, cpu]) in STACKS.iter().zip(&medians) {
        println!("{name:>16} {rate:>10.2} {cpu:>14.2}");
    }
    let [ours, quinn, tcp, _] = medians;
    if own {
        println!("figure bulk-to-tcp {:.2}", ours[0] / tcp[0]);
        println!("figure bulk-cpu-to-tcp {:.2}", ours[1] / tcp[1]);
        println!("figure bulk-to-quinn {:.2}", ours[0] / quinn[0]);
        println!("figure bulk-cpu-to-quinn {:.2}", ours[1] / quinn[1]);
    }
    Ok(())
}

/// Returns the rate in Gbit/s, and the CPU time in seconds per GB.
fn transfer(kind: &str, bytes: u64) -> Result<[f64; 2]> {
    let (mut server, mut lines) = start(&["server", kind])?;
    let address = next_line(&mut lines)?;
    let (mut client, mut answers) = start(&["client", kind, &address, &bytes.to_string()])?;
    let answer = next_line(&mut answers)?;
    let (seconds, client_cpu) =
        answer.split_once(' ').ok_or("incomplete output from the client process")?;
    let server_cpu: f64 = next_line(&mut lines)?.parse()?;
    let cpu = client_cpu.parse::<f64>()? + server_cpu;
    client.wait()?;
    server.wait()?;
    let gigabytes = bytes as f64 / 1e9;
    Ok([gigabytes * 8.0 / seconds.parse::<f64>()?, cpu / gigabytes])
}

type Lines = BufReader<std::process::ChildStdout>;

fn start(args: &[&str]) -> Result<(Child, Lines)> {
    let mut child =
        Command::new(std::env::current_exe()?).args(args).stdout(Stdio::piped()).spawn()?;
    let stdout = child.stdout.take().ok_or("cannot read the child's standard output")?;
    Ok((child, BufReader::new(stdout)))
}

fn next_line(lines: &mut Lines) -> Result<String> {
    let mut line = String::new();
    lines.read_line(&mut line)?;
    Ok(line.trim().to_owned())
}
