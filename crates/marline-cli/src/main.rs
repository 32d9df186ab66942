//! The `marline` program. All its code is in the library, so that tests can use it.

use std::process::ExitCode;

fn main() -> ExitCode {
    marline_cli::run()
}
