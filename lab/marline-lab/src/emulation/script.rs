//! Textual commands for a running link: `down`, `up uplink`, `set rate=5M`, `rebind`, `stats`; and
//! with a time: `5s down`.

use std::time::Duration;

use anyhow::{Context, bail};
use marline_emulator::Side;
use marline_link::DuplexSpec;

/// A parsed command.
#[derive(Clone, Debug, PartialEq)]
pub enum ParsedCommand {
    /// `down [uplink|downlink]`: the link goes down.
    Break(Side),
    /// `up [uplink|downlink]`: the link comes up again.
    Restore(Side),
    /// `set ITEM,...`: changes these properties and keeps the others.
    Set(String),
    /// `rebind`: the link gets new ports, as when a NAT loses its bindings.
    Rebind,
    /// `stats`.
    Stats,
    /// `quit`.
    Quit,
}

/// Known commands, for error messages.
const COMMANDS: &str =
    "down [uplink|downlink], up [uplink|downlink], set ITEM=VALUE,..., rebind, stats, quit";

impl std::str::FromStr for ParsedCommand {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<ParsedCommand> {
        let (word, rest) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
        let rest = rest.trim();
        let order = match word {
            "down" => return Ok(ParsedCommand::Break(side(rest)?)),
            "up" => return Ok(ParsedCommand::Restore(side(rest)?)),
            "set" if rest.is_empty() => {
                bail!("`set` needs items, for example: set rate=5M,up.delay=20ms")
            }
            "set" => return Ok(ParsedCommand::Set(rest.to_owned())),
            "rebind" => ParsedCommand::Rebind,
            "stats" => ParsedCommand::Stats,
            "quit" => ParsedCommand::Quit,
            _ => bail!("unknown command `{word}`; known: {COMMANDS}"),
        };
        if !rest.is_empty() {
            bail!("`{word}` takes no argument, but `{rest}` follows");
        }
        Ok(order)
    }
}

fn side(text: &str) -> anyhow::Result<Side> {
    Ok(match text {
        "" | "both" => Side::Both,
        "uplink" => Side::Up,
        "downlink" => Side::Down,
        _ => bail!("`{text}` is not a valid direction; expected uplink or downlink"),
    })
}

/// Input line for named links: `down wifi`, `up wifi uplink`, `set lte rate=5M`, `stats`, `quit`.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// Command for the path with this name.
    Path(String, ParsedCommand),
    /// Prints statistics of all links.
    Stats,
    /// Ends the program.
    Quit,
}

impl std::str::FromStr for Line {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Line> {
        let mut words = text.split_ascii_whitespace();
        let word = words.next().unwrap_or_default();
        let Some(path) = words.next() else {
            return match word.parse() {
                Ok(ParsedCommand::Stats) => Ok(Line::Stats),
                Ok(ParsedCommand::Quit) => Ok(Line::Quit),
                Ok(_) => bail!("`{word}` needs a path, for example: {word} wifi"),
                Err(_) if word == "set" => {
                    bail!(
                        "`set` needs a path and items, for example: set wifi rate=5M,up.delay=20ms"
                    )
                }
                Err(error) => Err(error),
            };
        };
        let rest: Vec<&str> = words.collect();
        let order: ParsedCommand = format!("{word} {}", rest.join(" ")).parse()?;
        if matches!(order, ParsedCommand::Stats | ParsedCommand::Quit) {
            bail!("`{word}` takes no argument, but `{path}` follows");
        }
        Ok(Line::Path(path.to_owned(), order))
    }
}

/// Parses a line for a named link with its time: `7.5s down wifi`.
///
/// # Errors
/// The time or the command is invalid; the error quotes the text.
pub fn parse_timed_line(text: &str) -> anyhow::Result<(Duration, String, ParsedCommand)> {
    let (time, line) = text.trim().split_once(char::is_whitespace).with_context(|| {
        format!("`{text}` must be a time and a command, such as `5s down wifi`")
    })?;
    match line.parse()? {
        Line::Path(path, order) => Ok((duration(time)?, path, order)),
        Line::Stats | Line::Quit => bail!("`{text}`: only down, up and set can be scheduled"),
    }
}

/// Parses a command with its time: `5s down`.
///
/// # Errors
/// The time or the command is invalid; the error quotes the text.
pub fn parse_scheduled(text: &str) -> anyhow::Result<(Duration, ParsedCommand)> {
    let (time, order) = text
        .trim()
        .split_once(char::is_whitespace)
        .with_context(|| format!("`{text}` must be a time and a command, such as `5s down`"))?;
    let order = order.parse()?;
    if matches!(order, ParsedCommand::Stats | ParsedCommand::Quit) {
        bail!("`{text}`: only down, up, set and rebind can be scheduled");
    }
    Ok((duration(time)?, order))
}

/// Parses a time with its unit: `250ms`, `5s`, `1.5min`.
///
/// # Errors
/// The text is not a time.
pub fn duration(text: &str) -> anyhow::Result<Duration> {
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3_600.0,
        _ => bail!("`{text}` is not a valid time; write a number and one of us, ms, s, min, h"),
    };
    let number: f64 = number.parse().with_context(|| format!("`{text}` is not a valid time"))?;
    Duration::try_from_secs_f64(number * scale)
        .with_context(|| format!("`{text}` is not a valid time"))
}

/// Changes some items of a description: later items win.
///
/// # Errors
/// An item cannot be parsed.
pub fn amend(spec: &DuplexSpec, items: &str) -> anyhow::Result<DuplexSpec> {
    let before = spec.to_string();
    let comma = if before.is_empty() { "" } else { "," };
    Ok(format!("{before}{comma}{items}").parse()?)
}

/// Converts items of one direction to items of a link: `rate=5M,delay=2ms` with `up` becomes
/// `up.rate=5M,up.delay=2ms`.
#[must_use]
pub fn one_direction(direction: &str, items: &str) -> String {
    let named = items.split(',').map(|item| format!("{direction}.{}", item.trim()));
    named.collect::<Vec<String>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_commands() {
        let order = |text: &str| text.parse::<ParsedCommand>().expect("a command");
        assert_eq!(order(" down "), ParsedCommand::Break(Side::Both));
        assert_eq!(order("down uplink"), ParsedCommand::Break(Side::Up));
        assert_eq!(order("up downlink"), ParsedCommand::Restore(Side::Down));
        assert_eq!(order("set rate=5M"), ParsedCommand::Set("rate=5M".into()));
        assert_eq!(
            parse_scheduled("1.5s rebind").expect("at"),
            (Duration::from_millis(1_500), ParsedCommand::Rebind)
        );
        for (text, word) in [
            ("", "unknown command"),
            ("sideways", "unknown command"),
            ("set", "needs items"),
            ("down left", "direction"),
            ("rebind now", "takes no argument"),
        ] {
            let error = text.parse::<ParsedCommand>().expect_err("an invalid command").to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
        for text in ["down", "5 down", "-1s down", "5s quit", "nans down", "1e300h down"] {
            parse_scheduled(text).expect_err(text);
        }
    }

    #[test]
    fn lines_name_their_path() {
        let line = |text: &str| text.parse::<Line>().expect("a line");
        let path = |name: &str, order| Line::Path(name.to_owned(), order);
        assert_eq!(line("down wifi"), path("wifi", ParsedCommand::Break(Side::Both)));
        assert_eq!(line(" up  lte downlink "), path("lte", ParsedCommand::Restore(Side::Down)));
        assert_eq!(line("set lte rate=5M"), path("lte", ParsedCommand::Set("rate=5M".into())));
        assert_eq!((line("stats"), line("quit")), (Line::Stats, Line::Quit));
        let at = parse_timed_line("7.5s down wifi").expect("at");
        assert_eq!(
            at,
            (Duration::from_millis(7_500), "wifi".into(), ParsedCommand::Break(Side::Both))
        );
        for (text, word) in [
            ("", "unknown command"),
            ("down", "needs a path"),
            ("set", "set wifi"),
            ("set wifi", "needs items"),
            ("quit wifi", "takes no argument"),
            ("down wifi left", "direction"),
        ] {
            let error = text.parse::<Line>().expect_err("an invalid line").to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
        for text in ["7s", "7s stats", "down wifi", "7 down wifi"] {
            parse_timed_line(text).expect_err(text);
        }
    }

    #[test]
    fn amended_descriptions_keep_the_rest() {
        let spec: DuplexSpec = "rate=20M,delay=10ms".parse().expect("spec");
        let amended = amend(&spec, &one_direction("up", "rate=5M, loss=1%")).expect("amend");
        let expected: DuplexSpec =
            "rate=20M,delay=10ms,up.rate=5M,up.loss=1%".parse().expect("spec");
        assert_eq!(amended, expected);
        assert_eq!(
            amend(&DuplexSpec::default(), "delay=1ms").expect("amend").up.delay.as_millis(),
            1
        );
        assert!(amend(&spec, "speed=9").expect_err("no such item").to_string().contains("speed"));
    }
}
