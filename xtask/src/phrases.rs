//! Phrases that have no correct use in this tree, and British spellings.

use crate::checks::{Finding, finding};

/// Phrases, in lower case, each with its replacement.
const PHRASES: &[(&str, &str)] = &[
    ("anew", "again"),
    ("once more", "again"),
    ("as ever", "as before"),
    ("in place of", "instead of"),
    ("whoever", "name the subject"),
    ("it was asked", "name who requested it"),
    ("of then", "give the date"),
    ("of before", "earlier"),
    ("gives way", "is replaced, yields"),
    ("gave way", "was replaced, yielded"),
    ("sign of life", "answer"),
    ("out of turn", "unexpected"),
    ("one's own", "your own"),
    ("what is owed", "outstanding data"),
    ("purse", "budget"),
    ("elders", "older processes"),
    ("lobby", "pending handshakes"),
    ("absolve", "cancel"),
    ("few_lines", "log rate limit"),
];

/// British words that no American word begins with.
const BRITISH: &[&str] = &[
    "behaviour",
    "colour",
    "neighbour",
    "favour",
    "honour",
    "labour",
    "flavour",
    "rumour",
    "harbour",
    "centre",
    "centimetre",
    "kilometre",
    "millimetre",
    "fibre",
    "theatre",
    "litre",
    "travelled",
    "travelling",
    "cancelled",
    "cancelling",
    "modelled",
    "modelling",
    "signalled",
    "signalling",
    "labelled",
    "labelling",
    "tunnelled",
    "tunnelling",
    "channelled",
    "levelled",
    "learnt",
    "burnt",
    "spelt",
    "spoilt",
    "licence",
    "defence",
    "offence",
    "practise",
    "grey",
    "judgement",
    "acknowledgement",
    "catalogue",
    "analogue",
    "artefact",
    "ageing",
    "whilst",
    "amongst",
    "analyse",
    "paralyse",
];
/// Stems of verbs that end in `ise` in British English and in `ize` in American English.
const STEMS: &[&str] = &[
    "author",
    "categor",
    "central",
    "character",
    "custom",
    "equal",
    "final",
    "general",
    "initial",
    "local",
    "maxim",
    "memor",
    "minim",
    "neutral",
    "normal",
    "optim",
    "organ",
    "parallel",
    "penal",
    "priorit",
    "quant",
    "random",
    "real",
    "recogn",
    "serial",
    "special",
    "stabil",
    "standard",
    "summar",
    "synchron",
    "token",
    "util",
    "vector",
    "virtual",
    "visual",
];
const ENDINGS: &[&str] = &["e", "ed", "es", "er", "ers", "ing", "ation", "ations", "able"];
/// Names in other projects, and one that seeds random draws, which keep their spelling.
const FOREIGN_NAMES: &[&str] =
    &["linux/neighbour.h", "prepare_from_greyscale", "\"LICENCE\"", "\"neighbours\""];
/// Files that quote old names.
const EXEMPT: &[&str] = &["CHANGELOG.md", "Cargo.lock", "xtask/src/phrases.rs"];

/// Phrases and spellings found in a file.
pub(crate) fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    if EXEMPT.iter().any(|exempt| path.ends_with(exempt)) {
        return found;
    }
    for (index, line) in text.lines().enumerate() {
        let lower = line.to_lowercase();
        for (phrase, better) in PHRASES.iter().filter(|(phrase, _)| has_phrase(&lower, phrase)) {
            found.push(finding(index + 1, format!("\"{phrase}\": {better}")));
        }
        if FOREIGN_NAMES.iter().any(|name| line.contains(name)) {
            continue;
        }
        for word in lower.split(|c: char| !c.is_alphabetic()).filter(|word| is_british(word)) {
            found.push(finding(index + 1, format!("British spelling: {word}")));
        }
    }
    found
}

/// Returns true if the phrase occurs with no letter before or after it.
fn has_phrase(line: &str, phrase: &str) -> bool {
    let is_letter = |c: Option<char>| c.is_some_and(char::is_alphabetic);
    line.match_indices(phrase).any(|(at, _)| {
        let after = &line[at + phrase.len()..];
        !is_letter(line[..at].chars().next_back()) && !is_letter(after.chars().next())
    })
}

fn is_british(word: &str) -> bool {
    if BRITISH.iter().any(|british| word.starts_with(british)) {
        return true;
    }
    ENDINGS.iter().filter_map(|ending| word.strip_suffix(ending)).any(|verb| {
        verb.strip_suffix("is").is_some_and(|stem| STEMS.iter().any(|known| stem.ends_with(known)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        check("a.md", text).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn phrases_are_found_as_whole_words() {
        assert_eq!(messages("It begins anew.\nIt was ever so; a purser."), ["\"anew\": again"]);
        assert_eq!(messages("// Once more, in Place of it").len(), 2);
        assert!(check("CHANGELOG.md", "anew").is_empty());
    }

    #[test]
    fn spellings_are_found_in_names_and_comments() {
        assert_eq!(messages("fn on_colour()"), ["British spelling: colour"]);
        assert_eq!(messages("unoptimised, Recognising").len(), 2);
        assert!(
            messages("promise, raise, precise, realistic, organism, color, linux/neighbour.h")
                .is_empty()
        );
    }
}
