//! Echo of 200 bytes over loopback between two processes, one request in flight, compared with
//! kernel TCP and QUIC (quinn with ring; it also encrypts).
//!
//! `echo` runs all kinds and prints percentiles, with both processes unpinned and with both pinned to one CPU. `echo
//! server KIND` and `echo client KIND ADDRESS COUNT` are the roles, which it starts as separate processes. KIND is
//! `marline`, `tcp`, `quinn`, or `busy` (Marline that polls its sockets for some time instead of sleeping). The other
//! three sleep while they wait (epoll). Set `PIN_CPU=N` to pin a role.

mod quic;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use marline::{Client, Server};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Length of a message, in bytes.
const MESSAGE: usize = 200;
/// Duration of busy polling after each message. Busy polling is useless if both ends share one CPU.
const BUSY_POLL: Duration = Duration::from_micros(100);
/// Number of round trips before the measurement.
const WARM_UP: u64 = 1_000;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if let Ok(cpu) = std::env::var("PIN_CPU") {
        pin(cpu.parse()?)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match args[..] {
        ["server", "marline"] => play(&runtime, marline_server(Duration::ZERO)),
        ["server", "busy"] => play(&runtime, marline_server(BUSY_POLL)),
        ["server", "tcp"] => play(&runtime, tcp_server()),
        ["server", "quinn"] => play(&runtime, quinn_server()),
        ["client", kind, address, count] => {
            play(&runtime, client(kind.to_owned(), address.parse()?, count.parse()?))
        }
        [] => compare(20_000),
        [count] => compare(count.parse()?),
        _ => Err("usage: echo [COUNT]".into()),
    }
}

/// Runs a role as a spawned task, like a program with several tasks: the future on which a runtime blocks is polled
/// only after another check of its sockets.
fn play(
    runtime: &tokio::runtime::Runtime,
    role: impl Future<Output = Result<()>> + Send + 'static,
) -> Result<()> {
    runtime.block_on(runtime.spawn(role))?
}

async fn answer(mut reader: impl AsyncRead + Unpin, mut writer: impl AsyncWrite + Unpin) {
    let mut buf = [0; MESSAGE];
    while reader.read_exact(&mut buf).await.is_ok() {
        if writer.write_all(&buf).await.is_err() {
            return;
        }
    }
}

async fn measure_echoes(
    mut reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
    count: u64,
) -> Result<()> {
    let mut histogram = Histogram::<u64>::new(3)?;
    let request = [7; MESSAGE];
    let mut buf = [0; MESSAGE];
    for round in 0..WARM_UP + count {
        let started = Instant::now();
        writer.write_all(&request).await?;
        reader.read_exact(&mut buf).await?;
        if round >= WARM_UP {
            histogram.record(started.elapsed().as_nanos() as u64)?;
        }
    }
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
    println!("{:.1} {:.1} {:.1} {:.1}", at(0.5), at(0.95), at(0.99), at(1.0));
    Ok(())
}

async fn client(kind: String, address: SocketAddr, count: u64) -> Result<()> {
    match kind.as_str() {
        "tcp" => {
            let mut stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let (reader, writer) = stream.split();
            measure_echoes(reader, writer, count).await
        }
        "quinn" => {
            let endpoint = quic::client();
            let connection = endpoint.connect(address, "localhost")?.await?;
            let (writer, reader) = connection.open_bi().await?;
            measure_echoes(reader, writer, count).await
        }
        _ => {
            let mut client = Client::builder();
            client.busy_poll(if kind == "busy" { BUSY_POLL } else { Duration::ZERO });
            let client = client.path("127.0.0.1".parse()?).bind().await?;
            let (reader, writer) = client.connect(address).await?.into_split();
            measure_echoes(reader, writer, count).await
        }
    }
}

async fn marline_server(busy_poll: Duration) -> Result<()> {
    let mut listener = Server::builder();
    listener.listen("127.0.0.1:0".parse()?).busy_poll(busy_poll);
    let listener = listener.bind().await?;
    println!("{}", listener.local_addr());
    let (stream, _) = listener.accept().await.ok_or("the server was closed")?;
    let (reader, writer) = stream.into_split();
    answer(reader, writer).await;
    Ok(())
}

async fn tcp_server() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let (mut stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.split();
    answer(reader, writer).await;
    Ok(())
}

async fn quinn_server() -> Result<()> {
    let endpoint = quic::server();
    println!("{}", endpoint.local_addr()?);
    let connection =
        endpoint.accept().await.ok_or("the endpoint closed before a connection arrived")?.await?;
    let (writer, reader) = connection.accept_bi().await?;
    answer(reader, writer).await;
    Ok(())
}

/// Pins this process to one CPU.
fn pin(cpu: usize) -> Result<()> {
    // SAFETY: all-zero bytes are a valid cpu_set_t; the pointer refers to a live one of the given size.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}

/// Number of runs per kind, for the median.
const ROUNDS: usize = 5;
const KINDS: [&str; 4] = ["marline", "tcp", "quinn", "busy"];

/// Percentiles p50, p95 and p99, and the maximum, in microseconds.
type Times = [f64; 4];

fn compare(count: u64) -> Result<()> {
    for (title, pinned) in [("both ends on the same CPU", true), ("anywhere", false)] {
        let mut turns = KINDS.map(|_| Vec::new());
        for _ in 0..ROUNDS {
            for (kind, all) in KINDS.iter().zip(&mut turns) {
                all.push(times(kind, count, pinned)?);
            }
        }
        println!(
            "{MESSAGE} B echo, {title}, us, medians of {ROUNDS} runs; both ends wait in epoll"
        );
        println!("{:>10} {:>8} {:>8} {:>8} {:>8}", "stack", "p50", "p95", "p99", "max");
        let medians = turns.map(|all| median(&all));
        for (kind, [p50, p95, p99, max]) in KINDS.iter().zip(&medians) {
            println!("{kind:>10} {p50:>8.1} {p95:>8.1} {p99:>8.1} {max:>8.1}");
        }
        if pinned {
            let [ours, tcp, quinn, _] = medians;
            println!("figure echo-p50-over-tcp-us {:.1}", ours[0] - tcp[0]);
            println!("figure echo-p99-to-tcp {:.2}", ours[2] / tcp[2]);
            let worst = (0..3).map(|at| ours[at] / quinn[at]).fold(0.0, f64::max);
            println!("figure echo-to-quinn {worst:.2}");
        }
    }
    Ok(())
}

/// Returns the median of each value.
fn median(turns: &[Times]) -> Times {
    [0, 1, 2, 3].map(|part| {
        let mut values: Vec<f64> = turns.iter().map(|turn| turn[part]).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    })
}

fn times(kind: &str, count: u64, pinned: bool) -> Result<Times> {
    let (mut server, mut lines) = start(&["server", kind], pinned)?;
    let address = next_line(&mut lines)?;
    let (mut client, mut answers) = start(&["client", kind, &address, &count.to_string()], pinned)?;
    let answer = next_line(&mut answers)?;
    let fields: std::result::Result<Vec<f64>, _> = answer.split(' ').map(str::parse).collect();
    client.wait()?;
    std::thread::sleep(Duration::from_millis(50));
    // The server may still be waiting for a connection to end.
    server.kill()?;
    server.wait()?;
    fields?.try_into().map_err(|_| "no answer".into())
}

type Lines = BufReader<std::process::ChildStdout>;

fn start(args: &[&str], pinned: bool) -> Result<(Child, Lines)> {
    let mut command = Command::new(std::env::current_exe()?);
    if pinned {
        command.env("PIN_CPU", "0");
    }
    let mut child = command.args(args).stdout(Stdio::piped()).spawn()?;
    let stdout = child.stdout.take().ok_or("cannot read the child's standard output")?;
    Ok((child, BufReader::new(stdout)))
}

fn next_line(lines: &mut Lines) -> Result<String> {
    let mut line = String::new();
    lines.read_line(&mut line)?;
    Ok(line.trim().to_owned())
}
