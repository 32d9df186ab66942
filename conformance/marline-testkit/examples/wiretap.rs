//! Checks captures taken at one host: `wiretap FILE...` (pcap or pcapng).

use std::process::ExitCode;

use marline_testkit::wiretap;

fn main() -> ExitCode {
    let files: Vec<_> = std::env::args().skip(1).collect();
    let read = files.iter().map(|file| std::fs::read(file).map_err(|e| format!("{file}: {e}")));
    let bytes = match read.collect::<Result<Vec<_>, _>>() {
        Ok(bytes) if !bytes.is_empty() => bytes,
        Ok(_) => return fail("usage: wiretap FILE..."),
        Err(error) => return fail(&error),
    };
    match wiretap::check(&bytes.iter().map(Vec::as_slice).collect::<Vec<_>>()) {
        Err(error) => fail(&error.to_string()),
        Ok(findings) => {
            println!("{findings}");
            findings.faults.iter().for_each(|fault| println!("{fault}"));
            if findings.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("wiretap: {why}");
    ExitCode::FAILURE
}
