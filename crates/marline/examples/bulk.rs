//! Bulk transfer over loopback between two processes, compared with kernel TCP.
//!
//! `bulk` runs everything and prints a table; `bulk server KIND` and `bulk client KIND ADDRESS BYTES`
//! are the two roles it starts as processes of their own. KIND is `marline` or `tcp`.
//! CPU time is that of both processes, user and system, by getrusage.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use marline::{Client, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Bytes of one write or read.
const CHUNK: usize = 256 << 10;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", "tcp"] => tcp_server(),
        ["client", "tcp", address, bytes] => tcp_client(address, bytes.parse()?),
        ["server", "marline"] => runtime()?.block_on(server()),
        ["client", "marline", address, bytes] => {
            runtime()?.block_on(client(address, bytes.parse()?))
        }
        [] => compare(4 << 30),
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

async fn server() -> Result<()> {
    let mut listener = Server::builder();
    listener.listen("127.0.0.1:0".parse()?).transport_mut().pacing(paced());
    let listener = listener.bind().await?;
    println!("{}", listener.local_addr());
    let (mut stream, _) = listener.accept().await.ok_or("the server was closed")?;
    let mut buf = vec![0; CHUNK];
    let mut total = 0;
    loop {
        let len = stream.read(&mut buf).await?;
        if len == 0 {
            break;
        }
        total += len as u64;
    }
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
    let elapsed = started.elapsed();
    if std::env::var_os("MARLINE_INFO").is_some() {
        eprintln!("{:#?} {:#?}", stream.info(), client.counters());
    }
    println!("{} {}", elapsed.as_secs_f64(), cpu_seconds());
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

/// User and system time of this process so far.
fn cpu_seconds() -> f64 {
    // SAFETY: all-zero bytes are a valid rusage, and the pointer is to a live one.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn compare(bytes: u64) -> Result<()> {
    println!("{:>10} {:>10} {:>14}", "stack", "Gbit/s", "CPU-s per GB");
    for kind in ["marline", "tcp"] {
        let (mut server, mut lines) = start(&["server", kind])?;
        let address = next_line(&mut lines)?;
        let (mut client, mut answers) = start(&["client", kind, &address, &bytes.to_string()])?;
        let answer = next_line(&mut answers)?;
        let (seconds, client_cpu) = answer.split_once(' ').ok_or("no answer from the client")?;
        let server_cpu: f64 = next_line(&mut lines)?.parse()?;
        let cpu = client_cpu.parse::<f64>()? + server_cpu;
        let gigabytes = bytes as f64 / 1e9;
        let rate = gigabytes * 8.0 / seconds.parse::<f64>()?;
        println!("{kind:>10} {rate:>10.2} {:>14.2}", cpu / gigabytes);
        client.wait()?;
        server.wait()?;
    }
    Ok(())
}

type Lines = BufReader<std::process::ChildStdout>;

fn start(args: &[&str]) -> Result<(Child, Lines)> {
    let mut child =
        Command::new(std::env::current_exe()?).args(args).stdout(Stdio::piped()).spawn()?;
    let stdout = child.stdout.take().ok_or("no output")?;
    Ok((child, BufReader::new(stdout)))
}

fn next_line(lines: &mut Lines) -> Result<String> {
    let mut line = String::new();
    lines.read_line(&mut line)?;
    Ok(line.trim().to_owned())
}
