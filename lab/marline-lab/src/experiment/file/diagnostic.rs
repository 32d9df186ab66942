//! Error in a file: message, position, and suggested correction.
//!
//! ```text
//! echo.toml:12:13: unknown scheduler `min-rt`; known: blest, ecf, min-rtt; did you mean `min-rtt`?
//!    12 | scheduler = "min-rt"
//!       |             ^^^^^^^^
//! ```

use std::fmt::{self, Write as _};
use std::ops::Range;

use toml::de::{DeTable, DeValue};

/// A step from a table or an array to an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A key of a table.
    Key(String),
    /// An element of an array.
    At(usize),
}

/// Keys that lead to a value: `["variant", 2, "scheduler"]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyPath(Vec<Step>);

impl KeyPath {
    /// A top-level table or value.
    pub(crate) fn top_level(key: &str) -> KeyPath {
        KeyPath::default().key(key)
    }

    /// The value of a key in this table.
    pub(crate) fn key(&self, key: &str) -> KeyPath {
        self.step(Step::Key(key.to_owned()))
    }

    /// An element of this array.
    pub(crate) fn at(&self, index: usize) -> KeyPath {
        self.step(Step::At(index))
    }

    fn step(&self, step: Step) -> KeyPath {
        KeyPath(self.0.iter().cloned().chain([step]).collect())
    }

    /// Byte range of the value in a text. For a missing value, that of the table it belongs to.
    fn span(&self, text: &str) -> Option<Range<usize>> {
        let document = DeTable::parse(text).ok()?;
        let mut table = Some(document.get_ref());
        let mut value: Option<&toml::Spanned<DeValue<'_>>> = None;
        for step in &self.0 {
            let next = match (step, table, value.map(toml::Spanned::get_ref)) {
                (Step::Key(key), Some(table), _) => table.get(key.as_str()),
                (Step::At(index), _, Some(DeValue::Array(array))) => array.get(*index),
                _ => None,
            };
            let Some(next) = next else { break };
            value = Some(next);
            table = match next.get_ref() {
                DeValue::Table(table) => Some(table),
                _ => None,
            };
        }
        value.map(toml::Spanned::span)
    }
}

/// A mistake in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Diagnostic {
    /// Byte range of the mistake in the text, if known.
    span: Option<Range<usize>>,
    /// The mistake and the valid alternatives.
    what: String,
}

impl Diagnostic {
    /// Creates a diagnostic about a value. It points at a word in backticks that occurs in the value.
    pub(crate) fn new(text: &str, key_path: &KeyPath, what: impl fmt::Display) -> Diagnostic {
        let what = what.to_string();
        let span = key_path.span(text).map(|span| find_word_span(text, span, &what));
        Diagnostic { span, what }
    }

    /// The message, without its position.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }
}

impl From<toml::de::Error> for Diagnostic {
    fn from(error: toml::de::Error) -> Self {
        Diagnostic { span: error.span(), what: error.message().to_owned() }
    }
}

/// The first word in backticks that occurs within the span, or else the span's first line.
fn find_word_span(text: &str, span: Range<usize>, what: &str) -> Range<usize> {
    let within = text.get(span.clone()).unwrap_or_default();
    let found = what.split('`').skip(1).step_by(2).find_map(|word| {
        let at = (!word.is_empty()).then(|| within.find(word)).flatten()?;
        Some(span.start + at..span.start + at + word.len())
    });
    found.unwrap_or_else(|| span.start..span.start + within.lines().next().map_or(0, str::len))
}

/// Formats all diagnostics of a file as text. `name` is the file's name.
pub(crate) fn format_diagnostics(name: &str, text: &str, diagnostics: &[Diagnostic]) -> String {
    let mut said = String::new();
    for diagnostic in diagnostics {
        if !said.is_empty() {
            said.push('\n');
        }
        let mut what = diagnostic.what.trim().replace('\n', " ");
        if let Some(better) = find_suggestion(&what) {
            // Writing to a String cannot fail.
            let _ = write!(what, "; did you mean `{better}`?");
        }
        let Some(span) = &diagnostic.span else {
            let _ = write!(said, "{name}: {what}");
            continue;
        };
        let start = span.start.min(text.len());
        let before = &text[..start];
        let number = before.matches('\n').count() + 1;
        let begin = before.rfind('\n').map_or(0, |at| at + 1);
        let line = text[begin..].lines().next().unwrap_or_default();
        let column = text[begin..start].chars().count() + 1;
        let end = span.end.clamp(start, begin + line.len().max(start - begin));
        let carets = text.get(start..end).unwrap_or_default().chars().count().max(1);
        let blanks = " ".repeat(column - 1);
        let carets = "^".repeat(carets);
        let _ = write!(said, "{name}:{number}:{column}: {what}\n{number:5} | {line}\n      | ");
        let _ = write!(said, "{blanks}{carets}");
    }
    said
}

/// The likely correction, for a message that contains a word and then the known ones: "unknown key `delya`; there are
/// rate, delay", "unknown field `nam`, expected one of `name`, `link`".
fn find_suggestion(message: &str) -> Option<String> {
    const LISTS: [&str; 5] =
        ["there are ", "there is ", "known: ", "expected one of ", "expected "];
    let (at, list) = LISTS.iter().find_map(|word| Some((message.find(word)?, *word)))?;
    let (before, after) = (&message[..at], &message[at + list.len()..]);
    let unknown = before.split('`').skip(1).step_by(2).last()?;
    let words = after.split([',', ' ', ';']).map(|word| word.trim_matches(['`', '.']));
    let longest = (unknown.chars().count() / 3).clamp(1, 4);
    let near = |word: &str| {
        let distance = strsim::damerau_levenshtein(unknown, word);
        (distance > 0 && distance <= longest).then(|| (distance, word.to_owned()))
    };
    words.filter(|word| word.len() > 1).filter_map(near).min().map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diagnostics_show_their_line_and_word() {
        let text = "a = 1\n[[variant]]\nname = 'x'\nscheduler = 'min-rt+orp'\n";
        let key_path = KeyPath::top_level("variant").at(0).key("scheduler");
        let what = "unknown scheduler `min-rt`; known: blest, min-rtt, redundant";
        let said = format_diagnostics("f.toml", text, &[Diagnostic::new(text, &key_path, what)]);
        let expected = format!(
            "f.toml:4:14: {what}; did you mean `min-rtt`?\n    4 | scheduler = 'min-rt+orp'\n      \
             |              ^^^^^^"
        );
        assert_eq!(said, expected);
        // A missing key is reported at its table.
        let said =
            format_diagnostics("f", text, &[Diagnostic::new(text, &key_path.key("x"), "no")]);
        assert!(said.starts_with("f:4:13: no"), "{said}");
        let nowhere = format_diagnostics(
            "f",
            text,
            &[Diagnostic::new(text, &KeyPath::top_level("b"), "missing")],
        );
        assert_eq!(nowhere, "f: missing");
    }

    #[test]
    fn suggestions_come_from_the_list_in_the_message() {
        let meant = |message: &str| find_suggestion(message);
        let field = "unknown field `nmae`, expected one of `name`, `link`, `mtu`";
        assert_eq!(meant(field).as_deref(), Some("name"));
        assert_eq!(meant("no path is named `lta`; known: wifi, lte").as_deref(), Some("lte"));
        assert_eq!(meant("unknown field `color`, expected `name` or `link`"), None);
        assert_eq!(meant("nothing to see"), None);
    }
}
