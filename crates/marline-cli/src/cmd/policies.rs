//! `marline policies`: the list of policies and their parameters.

use std::process::ExitCode;

use marline_algos::PolicyKind;
use serde_json::json;

use super::monitor::print;
use crate::config::policies::registry;

/// Arguments of `marline policies`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show only this policy.
    pub name: Option<String>,
    /// Print a JSON array instead of text.
    #[arg(long)]
    pub json: bool,
}

/// The kinds, with the syntax for choosing a policy of each.
const KINDS: [(PolicyKind, &str); 7] = [
    (PolicyKind::Scheduler, "NAME[,KEY=VALUE...]"),
    (PolicyKind::SchedulerWrapper, "SCHEDULER+NAME[,KEY=VALUE...]"),
    (PolicyKind::PathManager, "NAME[,KEY=VALUE...]"),
    (PolicyKind::Congestion, "NAME[,KEY=VALUE...]"),
    (PolicyKind::CongestionWrapper, "CONGESTION+NAME[,KEY=VALUE...]"),
    (PolicyKind::Recovery, "NAME[,KEY=VALUE...]"),
    (PolicyKind::Datagrams, "NAME[,KEY=VALUE...]"),
];

/// Prints the policies. Failure if the requested one does not exist.
///
/// # Errors
/// The result cannot be serialized.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let registry = registry();
    let (mut text, mut list) = (String::new(), Vec::new());
    for (kind, spec) in KINDS {
        let wanted = |name: &&str| args.name.as_deref().is_none_or(|wanted| wanted == *name);
        let names: Vec<&str> = registry.names(kind).into_iter().filter(wanted).collect();
        if names.is_empty() {
            continue;
        }
        text += &format!("{kind}: {spec}\n");
        for name in names {
            let parameters = registry.parameters(kind, name).unwrap_or_default();
            text += &format!("  {name}\n");
            for p in &parameters {
                let given = format!("{}={}", p.key, p.default);
                text += &format!("      {given:<26}  {}\n", p.expected);
            }
            let parameters: Vec<_> = parameters
                .iter()
                .map(|p| json!({"key": p.key, "default": p.default, "expected": p.expected}))
                .collect();
            list.push(json!({"kind": kind.to_string(), "name": name, "parameters": parameters}));
        }
    }
    if let (true, Some(name)) = (list.is_empty(), &args.name) {
        anyhow::bail!("no policy named `{name}`; `marline policies` lists all");
    }
    // A closed output is ignored.
    let _ = print(&if args.json {
        format!("{}\n", serde_json::to_string_pretty(&list)?)
    } else {
        text
    });
    Ok(ExitCode::SUCCESS)
}
