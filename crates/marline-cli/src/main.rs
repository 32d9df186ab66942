//! The `marline` program. Everything happens in the library beside it, so that tests reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    marline_cli::run()
}
