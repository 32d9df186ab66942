//! `marline-lab import`: conversion of a path's measurement to part of an experiment file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use marline_lab::import::{
    CaptureFile, Measurement, ReadOptions, read_csv, read_iperf3, read_pcaps,
};
use marline_lab::scenario::path_name_from;

use marline_cli::cmd::monitor::print;

/// Maximum file size in bytes.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Arguments of `marline-lab import`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The measurement: CSV with a header line, the output of `iperf3 --json`, or two captures (pcap, pcapng), the
    /// client's and the server's (docs/research/import.md).
    #[arg(required = true, num_args = 1..=2, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Kind of the file [default: by its extension, .csv or .json; two files are captures].
    #[arg(long, value_enum)]
    pub kind: Option<Kind>,
    /// Name of the path [default: the file's name, its first 15 letters, digits, `-` and `_`].
    #[arg(long, value_name = "NAME")]
    pub path: Option<String>,
    /// Queue of the link, which measurements do not contain (docs/research/link.md).
    #[arg(long, value_name = "QUEUE")]
    pub queue: Option<String>,
    /// Column name in the file and its standard name: THEIRS=OURS, for example timestamp=time_s. May be repeated.
    #[arg(long = "column", value_name = "THEIRS=OURS", value_parser = pair)]
    pub columns: Vec<(String, String)>,
    /// CSV without a time column: time between rows. Captures: length of an interval [default: 100ms].
    #[arg(long, value_name = "TIME", value_parser = marline_lab::emulation::script::duration)]
    pub every: Option<Duration>,
    /// Captures: milliseconds by which the server's clock is ahead of the client's, negative if it is behind.
    #[arg(long, value_name = "MS", allow_negative_numbers = true, default_value_t = 0.0)]
    pub clock_ahead: f64,
    /// Write to this file instead of printing.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// A kind of file.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// CSV with a header line: time, and some of rate, delay, loss.
    Csv,
    /// Output of `iperf3 --json`.
    Iperf3,
}

fn pair(text: &str) -> anyhow::Result<(String, String)> {
    let (theirs, ours) = text.split_once('=').context("expected THEIRS=OURS")?;
    Ok((theirs.to_owned(), ours.to_owned()))
}

/// Prints the path and its events.
///
/// # Errors
/// A file cannot be read or used.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let first = &args.files[0];
    let file = first.display().to_string();
    let measured = read_measurement(args)?;
    if !measured.ignored.is_empty() {
        eprintln!("{file}: ignored columns: {}", measured.ignored.join(", "));
    }
    let name = args.path.clone().unwrap_or_else(|| path_name(first));
    let toml = measured.toml(&name, args.queue.as_deref()).with_context(|| file.clone())?;
    match &args.out {
        Some(out) => std::fs::write(out, toml).with_context(|| out.display().to_string())?,
        None => print(&toml)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Derives a path name from a file name.
fn path_name(file: &Path) -> String {
    let name = path_name_from(&file.file_stem().unwrap_or_default().to_string_lossy());
    if name.is_empty() { "path".to_owned() } else { name }
}

fn read_measurement(args: &Args) -> anyhow::Result<Measurement> {
    let ms = args.clock_ahead;
    ensure!(ms.abs() < 1e12, "--clock-ahead {ms}: out of range; must be below 1e12 ms");
    if let [client, server] = &args.files[..] {
        ensure!(
            args.kind.is_none() && args.columns.is_empty(),
            "--kind and --column do not apply to a pair of captures"
        );
        let names = [client, server].map(|file| file.display().to_string());
        let bytes = [bytes(client)?, bytes(server)?];
        let every = args.every.unwrap_or(Duration::from_millis(100));
        let [client, server] = [0, 1].map(|n| CaptureFile { name: &names[n], bytes: &bytes[n] });
        return read_pcaps(client, server, every, (ms * 1e6) as i64);
    }
    let file = args.files[0].display().to_string();
    let text = String::from_utf8(bytes(&args.files[0])?).with_context(|| {
        format!(
            "{file} is not text; captures are needed from both ends, the client's and the server's"
        )
    })?;
    let kind = args.kind.or_else(|| kind_of_file(&args.files[0]));
    let kind = kind.with_context(|| {
        format!("cannot determine the format of {file}; use --kind csv or iperf3")
    })?;
    match kind {
        Kind::Csv => {
            let reading = ReadOptions { renamed: args.columns.clone(), every: args.every };
            read_csv(&file, &text, &reading)
        }
        Kind::Iperf3 => {
            ensure!(
                args.columns.is_empty() && args.every.is_none(),
                "--column and --every apply only to CSV"
            );
            read_iperf3(&file, &text)
        }
    }
}

/// Reads the contents of a file, up to the maximum size.
pub(crate) fn bytes(file: &Path) -> anyhow::Result<Vec<u8>> {
    let named = || file.display().to_string();
    let length = std::fs::metadata(file).with_context(named)?.len();
    ensure!(
        length <= MAX_FILE_BYTES,
        "{} is too large: {length} bytes, at most {MAX_FILE_BYTES}",
        named()
    );
    std::fs::read(file).with_context(named)
}

fn kind_of_file(file: &Path) -> Option<Kind> {
    match file.extension()?.to_str()? {
        "csv" => Some(Kind::Csv),
        "json" => Some(Kind::Iperf3),
        _ => None,
    }
}
