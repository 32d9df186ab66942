//! Subcommand `marline reload`: makes a running process reload its configuration.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;

use super::monitor::{connect_control, print};
use crate::control::protocol::{Answer, Command, PendingSetting, Reloaded};

/// Arguments of `marline reload`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Control socket of the process; may be omitted if only one process runs.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Requests the reload.
///
/// # Errors
/// No process can be reached, or the configuration is invalid. The old configuration then remains in force.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut client = connect_control(args.control.as_ref()).await?;
    let reloaded = match client.request(Command::Reload).await {
        Ok(Answer::Reloaded(reloaded)) => reloaded,
        Ok(other) => bail!("unexpected answer to the reload request: {other:?}"),
        Err(error) => bail!("reload failed; keeping current configuration: {error:#}"),
    };
    let text = match args.json {
        true => serde_json::to_string(&reloaded)? + "\n",
        false => reload_text(&reloaded),
    };
    // A closed output is ignored.
    let _ = print(&text);
    Ok(ExitCode::SUCCESS)
}

fn reload_text(reloaded: &Reloaded) -> String {
    let Reloaded { at_once, for_new, elsewhere, restart } = reloaded;
    let mut text = String::new();
    for (words, settings) in [
        ("applied", at_once),
        ("applied to new connections", for_new),
        ("used by other commands only", elsewhere),
    ] {
        if !settings.is_empty() {
            text += &format!("{words}: {}\n", settings.join(", "));
        }
    }
    for setting in restart {
        text += &format!("needs a restart: {}\n", PendingSetting::text(setting));
    }
    if text.is_empty() {
        text += "no changes\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reloaded_settings_are_grouped_by_when_they_apply() {
        assert_eq!(reload_text(&Reloaded::default()), "no changes\n");
        let reloaded = Reloaded {
            at_once: vec!["drain".into(), "log".into()],
            for_new: vec!["mode".into()],
            elsewhere: vec!["dns".into()],
            restart: vec![PendingSetting {
                setting: "shards".into(),
                in_force: Some("1".into()),
                wanted: None,
            }],
        };
        let expected = "\
applied: drain, log
applied to new connections: mode
used by other commands only: dns
needs a restart: shards (running: 1, configured: nothing)
";
        assert_eq!(reload_text(&reloaded), expected);
    }
}
