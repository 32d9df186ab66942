//! `marline-lab mutations`: each mechanism of the seed systems is switched off in turn. The rows that claim it must
//! fail, and no others without a stated reason.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use marline_cli::cmd::monitor::print;
use marline_lab::generated_part::write_between_markers;
use marline_papers::{Mechanism, MutationEffect, Reproduction};

use super::paper::{Runs, file, reproduce};

/// Arguments of `marline-lab mutations`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Mechanisms [default: all].
    #[arg(value_name = "MECHANISM", value_parser = Mechanism::find)]
    pub mechanisms: Vec<Mechanism>,
    /// Write the table into the page mutations.md of this directory.
    #[arg(long, value_name = "DIR")]
    pub docs: Option<PathBuf>,
    /// Options of the runs.
    #[command(flatten)]
    pub runs: Runs,
}

/// Runs the papers of the mechanisms, unchanged and with each mechanism switched off, and prints a line for each
/// mechanism. The exit status is success if every effect is clean ([`MutationEffect::is_clean`]).
///
/// # Errors
/// A paper cannot run, or the page cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let chosen = match args.mechanisms.as_slice() {
        [] => &Mechanism::ALL,
        some => some,
    };
    let mut unchanged: BTreeMap<&str, Reproduction> = BTreeMap::new();
    let mut effects = Vec::new();
    for mechanism in chosen {
        let paper = marline_papers::find(mechanism.paper())?;
        if !unchanged.contains_key(paper.key()) {
            unchanged.insert(paper.key(), reproduce(paper, &args.runs)?.0);
        }
        Mechanism::switch_off(Some(*mechanism));
        let changed = reproduce(paper, &args.runs);
        Mechanism::switch_off(None);
        let statements = file(paper)?.statements;
        let with = &unchanged[paper.key()];
        let effect = MutationEffect::compare(*mechanism, &statements, with, &changed?.0);
        eprintln!("{}", line(*mechanism, &effect));
        effects.push((*mechanism, effect));
    }
    let table = table(&effects);
    print(&table)?;
    if let Some(docs) = &args.docs {
        write_between_markers(&docs.join("mutations.md"), "mutations", &table)?;
    }
    let all_clean = effects.iter().all(|(_, effect)| effect.is_clean());
    Ok(if all_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Markdown table with a line for each mechanism.
fn table(effects: &[(Mechanism, MutationEffect)]) -> String {
    let mut text = String::from(
        "| paper | switched off | statements that fail, as they should | accepted without it | others that fail |\n\
         |---|---|---|---|---|\n",
    );
    for (mechanism, effect) in effects {
        let _ = writeln!(text, "{}", line(*mechanism, effect));
    }
    text
}

fn line(mechanism: Mechanism, effect: &MutationEffect) -> String {
    let list = |ids: &[String]| match ids {
        [] => "-".to_owned(),
        ids => ids.join(", "),
    };
    let others: Vec<String> = effect
        .others
        .iter()
        .map(|(id, reason)| match reason {
            Some(reason) => format!("{id} ({reason})"),
            None => format!("**{id}**"),
        })
        .collect();
    let survived = match effect.survived.as_slice() {
        [] => "-".to_owned(),
        ids => format!("**{}**", ids.join(", ")),
    };
    format!(
        "| {} | `{}` | {} | {survived} | {} |",
        mechanism.paper(),
        mechanism.name(),
        list(&effect.failed),
        list(&others)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_what_is_wrong_in_bold() {
        let effect = MutationEffect {
            failed: vec!["a".into(), "b".into()],
            survived: vec!["c".into()],
            others: vec![("d".into(), None), ("e".into(), Some("why".into()))],
        };
        assert_eq!(
            line(Mechanism::FastJoin, &effect),
            "| multimob2018 | `fast-join` | a, b | **c** | **d**, e (why) |"
        );
        let none = line(Mechanism::FastJoin, &MutationEffect::default());
        assert_eq!(none, "| multimob2018 | `fast-join` | - | - | - |");
    }
}
