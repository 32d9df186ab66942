//! Text wrapping of the demo for the width of a terminal.

/// Maximum number of characters in a line.
pub const COLUMNS: usize = 80;

/// Indentation of continuation lines.
const INDENT: &str = "  ";

/// Wraps a line to at most [`COLUMNS`] characters per line, each with its line break. A longer word, such as the
/// spec of a link, is broken after a comma if it has one, and anywhere otherwise.
#[must_use]
pub fn wrap_line(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line.trim_end();
    let mut indent = "";
    loop {
        let room = COLUMNS - indent.len();
        let Some((beyond, _)) = rest.char_indices().nth(room) else {
            text.push_str(&format!("{indent}{rest}\n"));
            return text;
        };
        // The line can also be broken at a blank that directly follows it.
        let (fits, behind) = rest.split_at(beyond);
        let blank = if behind.starts_with(' ') { Some(beyond) } else { fits.rfind(' ') };
        let comma = fits.rfind(',').map(|at| at + 1);
        let end = blank.or(comma).unwrap_or(beyond);
        text.push_str(&format!("{indent}{}\n", rest[..end].trim_end()));
        rest = rest[end..].trim_start();
        indent = INDENT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_longer_than_the_terminal_and_no_word_is_lost() {
        let words = "one two, three ".repeat(20);
        let spec = "a=1,".repeat(50);
        let solid = "x".repeat(200);
        for line in [words.as_str(), &spec, &solid, &format!("LTE: {spec}"), &"ä ".repeat(100)] {
            let text = wrap_line(line);
            assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
            let bare = |text: &str| text.split_whitespace().collect::<String>();
            assert_eq!(bare(&text), bare(line));
        }
        assert_eq!(wrap_line(words.trim()).split_whitespace().count(), 60, "words are not split");
        assert_eq!(
            wrap_line(&spec).lines().next().map(str::len),
            Some(COLUMNS),
            "broken at a comma"
        );
    }

    #[test]
    fn a_line_that_fits_stays_as_it_is() {
        let full = format!("{} {}", "a".repeat(39), "b".repeat(40));
        assert_eq!(wrap_line(&full), format!("{full}\n"));
        assert_eq!(wrap_line(&format!("{full} c")), format!("{full}\n  c\n"));
        assert_eq!(wrap_line(""), "\n");
    }
}
