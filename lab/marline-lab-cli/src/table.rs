//! Table for a terminal: aligned columns within 80 characters.

use std::fmt::Write as _;

/// Maximum length of a line.
const MAX_LINE: usize = 80;
/// Maximum length of an unbroken word in a cell.
const MAX_WORD: usize = 30;
/// Maximum number of leading columns that are repeated when a table is split.
const MAX_KEY_COLUMNS: usize = 3;

/// Aligns cells in columns. The last column is not padded. If a line would be longer than [`MAX_LINE`], wide cells are
/// wrapped at spaces. If that is not enough, the table is split, and the remaining columns follow below, after the
/// leading columns without numbers.
pub(crate) fn align_columns(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let all: Vec<usize> = (0..columns).collect();
    if let Some(widths) = fitting_widths(rows, &all) {
        return format_columns(rows, &all, &widths);
    }
    let is_number = |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit() || c == '-');
    let is_key =
        |column: usize| !rows.iter().skip(1).filter_map(|row| row.get(column)).any(is_number);
    let keys =
        (0..columns.min(MAX_KEY_COLUMNS)).take_while(|column| is_key(*column)).count().max(1);
    let mut text = String::new();
    let mut next = keys;
    while next < columns {
        let mut part: Vec<usize> = (0..keys).chain([next]).collect();
        let mut widths = fitting_widths(rows, &part);
        next += 1;
        while next < columns {
            part.push(next);
            let Some(wider) = fitting_widths(rows, &part) else {
                part.pop();
                break;
            };
            widths = Some(wider);
            next += 1;
        }
        if !text.is_empty() {
            text.push('\n');
        }
        let widths = widths.unwrap_or_else(|| part.iter().map(|_| MAX_WORD).collect());
        text.push_str(&format_columns(rows, &part, &widths));
    }
    text
}

/// Column widths with which every line fits, or `None`. The widest columns are narrowed first.
fn fitting_widths(rows: &[Vec<String>], columns: &[usize]) -> Option<Vec<usize>> {
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let longest = |lens: &mut dyn Iterator<Item = usize>| lens.max().unwrap_or(0);
    let natural = |column: &usize| longest(&mut cells(*column).map(|cell| cell.chars().count()));
    let least = |column: &usize| {
        let words = cells(*column).flat_map(|cell| cell.split(' '));
        longest(&mut words.map(|word| word.chars().count().min(MAX_WORD)))
    };
    let least: Vec<usize> = columns.iter().map(least).collect();
    let mut widths: Vec<usize> = columns.iter().map(natural).collect();
    while widths.iter().map(|width| width + 2).sum::<usize>() > MAX_LINE {
        let narrowable = (0..widths.len()).filter(|at| widths[*at] > least[*at]);
        let widest = narrowable.max_by_key(|at| widths[*at])?;
        widths[widest] -= 1;
    }
    Some(widths)
}

fn format_columns(rows: &[Vec<String>], columns: &[usize], widths: &[usize]) -> String {
    let mut text = String::new();
    for row in rows {
        let cell = |(column, width): (&usize, &usize)| {
            wrap(row.get(*column).map_or("", String::as_str), *width)
        };
        let cells: Vec<Vec<String>> = columns.iter().zip(widths).map(cell).collect();
        for line_number in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
            let mut line = String::from(" ");
            for (lines, width) in cells.iter().zip(widths) {
                let part = lines.get(line_number).map_or("", String::as_str);
                // Writing to a String cannot fail.
                let _ = write!(line, " {part:width$} ");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text
}

/// Wraps a text at spaces into lines of at most [`MAX_LINE`] characters, each with its line break.
pub(crate) fn wrap_text(text: &str) -> String {
    text.lines().flat_map(|line| wrap(line, MAX_LINE)).map(|line| line + "\n").collect()
}

/// Wraps a cell at spaces into lines of at most this width, and breaks longer words.
fn wrap(cell: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut len = 0;
    for word in cell.split(' ') {
        let chars: Vec<char> = word.chars().collect();
        for (at, piece) in chars.chunks(width.max(1)).enumerate() {
            let needs = piece.len() + usize::from(len > 0);
            if at > 0 || len + needs > width && len > 0 {
                lines.push(String::new());
                len = 0;
            }
            if let Some(line) = lines.last_mut() {
                if len > 0 {
                    line.push(' ');
                    len += 1;
                }
                line.extend(piece);
                len += piece.len();
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    fn fits(text: &str) -> bool {
        text.lines().all(|line| line.chars().count() <= MAX_LINE)
    }

    #[test]
    fn a_narrow_table_has_a_line_per_row() {
        let text = align_columns(&rows(&[&["a", "long name"], &["1", "2"]]));
        assert_eq!(text, "  a  long name\n  1  2\n");
    }

    #[test]
    fn long_cells_are_wrapped_at_spaces() {
        let long =
            "one two three four five six seven eight nine ten eleven twelve thirteen fourteen";
        let text = align_columns(&rows(&[&["what", "ours", "asked"], &[long, "1.25", long]]));
        assert!(fits(&text), "{text}");
        assert_eq!(text.split_whitespace().filter(|word| *word == "seven").count(), 2, "{text}");
        assert!(text.lines().nth(1).is_some_and(|line| line.contains("1.25")), "{text}");
    }

    #[test]
    fn many_columns_are_split_after_row_names() {
        let head: Vec<String> = ["stack".to_owned(), "variant".to_owned()]
            .into_iter()
            .chain((0..20).map(|number| format!("measure{number}")))
            .collect();
        let row: Vec<String> = ["sim".to_owned(), "min-rtt".to_owned()]
            .into_iter()
            .chain((0..20).map(|number| format!("{number}.5")))
            .collect();
        let text = align_columns(&[head, row]);
        assert!(fits(&text), "{text}");
        let parts: Vec<&str> = text.split("\n\n").collect();
        assert!(parts.len() > 1, "{text}");
        assert!(parts.iter().all(|part| part.contains("min-rtt")), "{text}");
        assert!((0..20).all(|number| text.contains(&format!("measure{number}"))), "{text}");
    }

    #[test]
    fn long_words_are_broken() {
        let text = align_columns(&rows(&[&["file", "n"], &[&"x".repeat(200), "1"]]));
        assert!(fits(&text), "{text}");
        assert_eq!(text.chars().filter(|c| *c == 'x').count(), 200);
    }
}
