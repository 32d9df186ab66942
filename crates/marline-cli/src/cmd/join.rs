//! Subcommand `marline join`: stores an invite for all other commands.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use marline_proxy::invite::Invite;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use super::monitor::print;
use crate::invite_places::{InvitePlaces, StoreOutcome, servers};

/// Maximum number of bytes read: an invite, and text that was copied with it.
const MAX_INPUT_BYTES: u64 = 64 * 1_024;
/// Argument that stands for standard input.
const INPUT: &str = "-";

/// Arguments of `marline join`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Invite to store [default: read from standard input, as with `-`]. On the command line it is visible to
    /// other users of this machine (`ps`) and stays in the shell's history: prefer standard input
    #[arg(value_name = "INVITE", allow_hyphen_values = true)]
    pub invite: Option<String>,
    /// Read the invite from this file
    #[arg(long, value_name = "FILE", conflicts_with = "invite")]
    pub file: Option<PathBuf>,
    /// Replace a different invite that is already stored
    #[arg(long)]
    pub replace: bool,
}

/// Reads, checks and stores an invite. Prints only the server's address from it.
///
/// # Errors
/// The invite is not valid, another one is stored, or the file cannot be written.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let text = match (args.invite, &args.file) {
        (Some(word), _) if word != INPUT => word,
        (_, Some(file)) => read_file(file)?,
        _ => read_input()?,
    };
    let invite = parse(&text)?;
    let places = InvitePlaces::for_process();
    let stored = places.store(&invite, args.replace)?;
    // A closed output is ignored.
    let _ = print(&outcome(stored, &invite, places.own_place()?));
    Ok(ExitCode::SUCCESS)
}

fn outcome(stored: StoreOutcome, invite: &Invite, path: &Path) -> String {
    let did = match stored {
        StoreOutcome::New => "stored the invite in",
        StoreOutcome::Unchanged => "the same invite is already stored in",
        StoreOutcome::Replaced => "replaced the invite in",
    };
    let next = match rustix::process::geteuid().is_root() {
        true => {
            "next: `marline up` for the whole machine or `marline run -- PROGRAM` for one program;\n\
             as a service: `systemctl enable --now marline-up` (or marline-client: SOCKS5 and HTTP on \
             127.0.0.1:1080)\n"
        }
        false => {
            "next: `marline run -- PROGRAM` for one program, `marline client` for SOCKS5 and HTTP on \
             127.0.0.1:1080,\n\
             or `sudo marline up` for the whole machine; `marline doctor` tests the connection to the server\n"
        }
    };
    format!("{did} {} (server: {})\n{next}", path.display(), servers(invite))
}

fn read_file(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let file = std::fs::File::open(path).with_context(|| format!("cannot read {shown}"))?;
    read(file).with_context(|| format!("cannot read {shown}"))
}

fn read(from: impl Read) -> io::Result<String> {
    let mut text = String::new();
    from.take(MAX_INPUT_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// Reads one hidden line from a terminal, or else all input.
fn read_input() -> anyhow::Result<String> {
    let input = io::stdin();
    if !input.is_terminal() {
        return read(input.lock()).context("cannot read standard input");
    }
    eprint!("Paste the invite and press Enter (it is not shown): ");
    io::stderr().flush()?;
    let hidden = HiddenInput::disable_echo();
    let mut line = String::new();
    let ended = input.lock().take(MAX_INPUT_BYTES).read_line(&mut line);
    drop(hidden);
    eprintln!();
    ended.context("cannot read the terminal")?;
    Ok(line)
}

/// A terminal with input echo disabled until this is dropped.
struct HiddenInput(Option<Termios>);

impl HiddenInput {
    fn disable_echo() -> HiddenInput {
        let before = tcgetattr(io::stdin()).ok();
        if let Some(before) = &before {
            let mut hidden = before.clone();
            hidden.local_modes.remove(LocalModes::ECHO);
            // If echo cannot be disabled, the input can still be read.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &hidden);
        }
        HiddenInput(before)
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

/// Returns the invite in this text, which may contain line breaks or other words.
fn parse(text: &str) -> anyhow::Result<Invite> {
    if text.trim().is_empty() {
        bail!("no invite given: paste the word that starts with \"marline1\"");
    }
    let whole: String = text.split_whitespace().collect();
    let error = match whole.parse::<Invite>() {
        Ok(invite) => return Ok(invite),
        Err(error) => error,
    };
    let quotes: &[char] = &['"', '\'', '`'];
    let words = text.split_whitespace().map(|word| word.trim_matches(quotes));
    let mut found: Vec<Invite> = words.filter_map(|word| word.parse().ok()).collect();
    found.dedup();
    match found.pop() {
        Some(invite) if found.is_empty() => Ok(invite),
        Some(_) => bail!("{} different invites given: give only one", found.len() + 1),
        None => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use marline_proxy::secret::Secret;

    use super::*;

    fn invite(server: &str) -> Invite {
        let token = Secret::random().expect("random bytes");
        Invite::new(vec![server.parse().expect("a server")], [7; 32], token).expect("an invite")
    }

    #[test]
    fn an_invite_is_read_as_people_paste_it() {
        let one = invite("a.example:1");
        let word = one.to_word();
        let (head, tail) = word.split_at(40);
        for text in [
            word.clone(),
            format!("  {word}\r\n"),
            word.to_uppercase(),
            format!("{head}\n{tail}\n"),
            format!("\"{word}\""),
            format!("the invite of the client \"first\" (secret):\n{word}\n"),
        ] {
            assert_eq!(parse(&text).expect(&text), one);
        }
    }

    #[test]
    fn invalid_invite_text_is_refused_without_echoing_it() {
        let word = invite("a.example:1").to_word();
        let other = invite("b.example:1").to_word();
        let damaged = format!("{}a", &word[..word.len() - 1]);
        for (text, says) in [
            ("", "no invite given"),
            ("hello", "not a valid invite"),
            (&word[..50], "cut short"),
            (&damaged, "damaged"),
            (&format!("{word}\n{other}"), "2 different invites"),
        ] {
            // The replacement may equal the last character of the random word.
            if text == word {
                continue;
            }
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(says), "{text}: {error}");
            assert!(!error.contains(&word[8..30]), "{error}");
        }
    }

    #[test]
    fn the_join_message_names_file_and_next_command_but_no_secret() {
        let one = invite("a.example:1");
        for stored in [StoreOutcome::New, StoreOutcome::Unchanged, StoreOutcome::Replaced] {
            let text = outcome(stored, &one, Path::new("/somewhere/invite"));
            assert!(text.contains("/somewhere/invite") && text.contains("a.example:1"), "{text}");
            assert!(text.contains("marline up") && text.lines().count() <= 3, "{text}");
            assert!(!text.contains("marline1"), "{text}");
        }
    }
}
