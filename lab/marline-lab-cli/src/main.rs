//! The `marline-lab` program. All its code is in the library, so that tests and other programs can use it.

use std::process::ExitCode;

fn main() -> ExitCode {
    marline_lab_cli::run()
}
