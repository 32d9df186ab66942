//! Engine that executes the runs of a sweep. For a cluster, it starts the Python package.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::str::FromStr;

use anyhow::{Context as _, bail, ensure};
use marline_lab::experiment::Stack;

use super::run::RunOptions;

/// Executor of the runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Threads of this process.
    Local,
    /// A Ray cluster: without an address, the one that Ray finds, or else this machine alone.
    Ray(Option<String>),
}

impl FromStr for Engine {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Engine> {
        match text.split_once('=') {
            None if text == "local" => Ok(Engine::Local),
            None if text == "ray" => Ok(Engine::Ray(None)),
            Some(("ray", address)) if !address.is_empty() => {
                Ok(Engine::Ray(Some(address.to_owned())))
            }
            _ => bail!("expected local, ray or ray=ADDRESS"),
        }
    }
}

/// Executes a sweep on Ray with the Python package.
///
/// # Errors
/// The package or Ray is not installed, or a stack other than virtual time is requested.
pub(crate) fn run_on_ray(
    file: &Path,
    how: &RunOptions,
    address: Option<&str>,
) -> anyhow::Result<ExitCode> {
    let RunOptions { stacks, seeds, formats, trace_dir, .. } = how;
    ensure!(stacks[..] == [Stack::Sim], "--engine ray supports only stack sim");
    let python = std::env::var_os("MARLINE_PYTHON").unwrap_or_else(|| "python3".into());
    let mut able = Command::new(&python);
    able.args(["-c", "import marline, ray"]).stdin(Stdio::null()).stdout(Stdio::null());
    let able = able.stderr(Stdio::null()).status();
    ensure!(
        able.is_ok_and(|status| status.success()),
        "--engine ray needs the Python package with Ray where {} finds them: pip install \
            './lab/marline-python[ray]' \
         (docs/research/python.md). MARLINE_PYTHON can select another Python. Without them, use \
         --shard to divide a sweep among machines",
        python.display()
    );
    let formats: Vec<&str> = formats.iter().map(|format| format.name()).collect();
    let engine = address.map_or("ray".to_owned(), |address| format!("ray={address}"));
    let mut command = Command::new(&python);
    command.args(["-m", "marline", "sweep"]).arg(file);
    command.args(["--seeds", &seeds.to_string(), "--engine", &engine]);
    command.args(["--format", &formats.join(",")]);
    command.arg("--out").arg(how.results_directory(file)?);
    if let Some(directory) = trace_dir {
        command.arg("--trace-dir").arg(directory);
    }
    let status = command.status().with_context(|| python.display().to_string())?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
