//! Reference pages of configuration keys, command line and metrics (docs/reference), generated from the code.
//!
//! The tests compare the pages with the program. With [`WRITE`], which `cargo xtask reference` sets, they write the
//! pages instead.

mod metrics;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, ArgAction, Command, CommandFactory as _};

use crate::Cli;
use crate::config::client::ClientOptions;
use crate::config::effects::{Effect, Effects, Reloadable, SHARED};
use crate::config::machine::MachineOptions;
use crate::config::program::ProgramOptions;
use crate::config::serve::ServeOptions;
use crate::config::server::ServerOptions;
use crate::config::up::UpOptions;

/// Environment variable that makes the tests write the pages.
const WRITE: &str = "MARLINE_WRITE_REFERENCE";

/// Compares a page with its expected text, or writes it.
fn assert_page(name: &str, wanted: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(name);
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&file, wanted).expect("docs/reference can be written");
        return;
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    let differing = wanted.lines().zip(found.lines()).find(|(wanted, found)| wanted != found);
    assert!(found == wanted, "docs/reference/{name}: run `cargo xtask reference`; {differing:?}");
}

/// Returns the arguments of a struct of options, by their long names.
fn arguments<O: clap::Args>() -> Vec<Arg> {
    let command = O::augment_args(Command::new("options"));
    command.get_arguments().filter(|a| a.get_long().is_some()).cloned().collect()
}

/// Returns the value of an argument, as ` VALUE`. Empty for a switch.
fn value_of(argument: &Arg) -> String {
    if !argument.get_action().takes_values() {
        return String::new();
    }
    let words: Vec<String> =
        argument.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    if !words.is_empty() {
        return format!(" {}", words.join("|"));
    }
    let names = argument.get_value_names().unwrap_or_default();
    format!(" {}", names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
}

/// Returns the first sentence of a help text and its default, without names of pages.
fn help_summary(help: Option<&clap::builder::StyledStr>) -> String {
    let text = help.map(ToString::to_string).unwrap_or_default();
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    while let Some(at) = line.find(" (docs/") {
        let end = line[at..].find(')').map_or(line.len(), |len| at + len + 1);
        line.replace_range(at..end, "");
    }
    let (told, default) = match line.find(" [default: ") {
        Some(at) => line.split_at(at),
        None => (line.as_str(), ""),
    };
    let sentence = first_sentence(told);
    format!("{}{default}.", sentence.trim_end_matches('.'))
}

/// Returns the text up to the first full stop or semicolon outside parentheses.
fn first_sentence(text: &str) -> &str {
    let mut depth = 0;
    for (at, sign) in text.char_indices() {
        match sign {
            '(' => depth += 1,
            ')' => depth -= 1,
            ';' | '.' if depth == 0 && text[at + 1..].starts_with(' ') => return &text[..at],
            _ => {}
        }
    }
    text
}

/// Returns a row of the configuration page.
fn setting(argument: &Arg, effect: &str) -> String {
    let name = argument.get_long().unwrap_or_default();
    let value = value_of(argument);
    let kind = if value.is_empty() { " true".to_owned() } else { value };
    let list = if matches!(argument.get_action(), ArgAction::Append) { ", list" } else { "" };
    format!(
        "- **{name}** `{}`{list} *({effect})*: {}\n",
        kind.trim(),
        help_summary(argument.get_help())
    )
}

fn effect_in(effects: Effects, name: &str) -> Option<Effect> {
    effects.iter().find(|(known, _)| *known == name).map(|(_, effect)| *effect)
}

/// Returns the settings of a table, each with its effect.
fn settings(arguments: &[Arg], effects: Effects) -> String {
    let row = |argument: &Arg| {
        let effect = effect_in(effects, argument.get_long()?)?;
        Some(setting(argument, effect.text()))
    };
    arguments.iter().filter_map(row).collect()
}

/// Returns the settings of a client, with the effect of each in `client`, and in `run` and `up` if it differs there.
fn client_settings(arguments: &[Arg]) -> String {
    let mut text = String::new();
    for argument in arguments {
        let Some(name) = argument.get_long() else { continue };
        let Some(at_client) = effect_in(ClientOptions::OWN, name) else { continue };
        let mut effect = at_client.text().to_owned();
        for (whose, effects) in [("run", ProgramOptions::OWN), ("up", MachineOptions::OWN)] {
            let other = effect_in(effects, name).unwrap_or(at_client);
            if other != at_client {
                let _ = write!(effect, ", {whose}: {}", other.text());
            }
        }
        text += &setting(argument, &effect);
    }
    text
}

fn configuration() -> String {
    let (client, server, serve) =
        (arguments::<ClientOptions>(), arguments::<ServerOptions>(), arguments::<ServeOptions>());
    let up: String =
        arguments::<UpOptions>().iter().map(|argument| setting(argument, "restart")).collect();
    format!(
        "# Configuration keys\n\n\
         Generated by `cargo xtask reference`; `--help` has details. Each key of a TOML file is also \
         the flag `--KEY`. The words in parentheses show when a change takes effect in a running program \
         ([reload](../operate/reload.md)): *at once*, for *new connections* and requests, after a *restart*, or in \
         *another command*.\n\n\
         ## All programs\n\n{}\n## client, run and up\n\n{}\n## The table `up`\n\n{up}\n\
         ## server\n\n{}\n## serve\n\n{}",
        settings(&client, SHARED),
        client_settings(&client),
        settings(&server, ServerOptions::OWN),
        settings(&serve, ServeOptions::OWN),
    )
}

/// Returns the names of all settings.
fn setting_names() -> BTreeSet<String> {
    let all = [
        arguments::<ClientOptions>(),
        arguments::<ServerOptions>(),
        arguments::<ServeOptions>(),
        arguments::<UpOptions>(),
    ];
    all.iter().flatten().filter_map(|argument| Some(argument.get_long()?.to_owned())).collect()
}

/// Number of settings from which a command's options count as those of a configuration file.
const MANY_SETTINGS: usize = 20;

/// The command whose subcommands accept the options of other commands.
const CHECK: &str = "check-config";

/// Returns an option or positional argument as written, with its help.
fn option(argument: &Arg) -> String {
    let short = argument.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    let written = match argument.get_long() {
        Some(long) => format!("{short}--{long}{}", value_of(argument)),
        None => value_of(argument).trim().to_owned(),
    };
    format!("- `{written}`: {}\n", help_summary(argument.get_help()))
}

/// Appends a command with its options except the settings, and its subcommands.
fn command_text(text: &mut String, command: &Command, path: &str, settings: &BTreeSet<String>) {
    let path = format!("{path} {}", command.get_name());
    let _ = write!(text, "\n## {}\n\n{}\n", path.trim(), help_summary(command.get_about()));
    let is_setting =
        |argument: &&Arg| argument.get_long().is_some_and(|long| settings.contains(long));
    let has_settings = command.get_arguments().filter(is_setting).count() >= MANY_SETTINGS;
    if has_settings {
        let _ = writeln!(text, "Takes the [settings](configuration.md) of its file as flags.");
    }
    if path.ends_with(CHECK) {
        // Each of its subcommands accepts the settings of the command with the same name.
        let rows = command
            .get_subcommands()
            .map(|c| format!("- `{}`: {}\n", c.get_name(), help_summary(c.get_about())));
        text.push('\n');
        text.extend(rows);
        return;
    }
    let shown_elsewhere = |argument: &Arg| has_settings && is_setting(&argument);
    let own = |argument: &&Arg| !argument.is_hide_set() && !shown_elsewhere(argument);
    let rows: String = command.get_arguments().filter(own).map(option).collect();
    if !rows.is_empty() {
        let _ = write!(text, "\n{rows}");
    }
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        command_text(text, inner, &path, settings);
    }
}

fn command_line() -> String {
    let mut text = "# Command line\n\nGenerated by `cargo xtask reference`; `--help` and \
        `marline man` have details.\n"
        .to_owned();
    command_text(&mut text, &Cli::command(), "", &setting_names());
    text
}

#[test]
fn the_page_of_configuration_has_every_key() {
    let page = configuration();
    for name in setting_names() {
        assert!(page.contains(&format!("\n- **{name}** ")), "{name} is missing");
    }
    assert_page("configuration.md", &page);
}

#[test]
fn the_page_of_the_command_line_has_every_command() {
    let page = command_line();
    for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
        let heading = format!("\n## marline {}\n", command.get_name());
        assert!(page.contains(&heading), "{heading}");
    }
    assert_page("cli.md", &page);
}

#[test]
fn the_page_of_metrics_has_every_metric() {
    assert_page("metrics.md", &metrics::page());
}

#[test]
fn a_first_sentence_ends_outside_of_parentheses() {
    assert_eq!(first_sentence("Read (a; b) from c.toml; else d"), "Read (a; b) from c.toml");
    assert_eq!(first_sentence("All of it"), "All of it");
}

/// Maximum width of a help text, in columns.
const HELP_COLUMNS: usize = 80;

/// Finds lines of the help texts of a command and its subcommands that a terminal would wrap.
fn long_help_lines(command: &Command, found: &mut Vec<String>) {
    let mut shown = command.clone().term_width(HELP_COLUMNS);
    for help in [shown.render_help(), shown.render_long_help()] {
        let help = help.to_string();
        let long = help.lines().filter(|line| line.chars().count() > HELP_COLUMNS);
        found.extend(long.map(|line| format!("{}: {line}", command.get_name())));
    }
    for subcommand in command.get_subcommands() {
        long_help_lines(subcommand, found);
    }
}

#[test]
fn help_fits_a_terminal_of_80_columns() {
    let mut command = Cli::command();
    command.build();
    let mut found = Vec::new();
    long_help_lines(&command, &mut found);
    assert!(found.is_empty(), "{}", found.join("\n"));
}
