//! Minimal Rust lexer that blanks comments and literals.
//! A full parser would need expanded macros to match braces correctly. A lexer only needs the beginning and end of
//! comments, strings and characters. It replaces them with blanks, so lines and columns are those of the file.

use std::ops::Range;

/// A function found in a source file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// Name, or `$` if a macro names the function.
    pub(crate) name: String,
    /// Line of its `fn`, from 1.
    pub(crate) line: usize,
    /// Lines of code in its body, without blank lines and comments.
    pub(crate) code_lines: usize,
    /// Range of the body in the text, excluding its braces.
    pub(crate) body: Range<usize>,
}

/// `text` with the contents of comments, strings and character literals blanked out.
pub(crate) fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let (token, end) = next_token(bytes, at);
        if token == Token::Hidden {
            for byte in out[at..end].iter_mut().filter(|byte| **byte != b'\n') {
                *byte = b' ';
            }
        }
        at = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Every function of blanked source text, including nested ones, in the order of their `fn`.
pub(crate) fn functions(blanked: &str) -> Vec<Function> {
    let bytes = blanked.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let (_, end) = next_token(bytes, at);
        // A function pointer's type has no name.
        if &bytes[at..end] == b"fn"
            && let Some(name) = read_name(&blanked[end..])
            && let Some((open, close)) = body(bytes, end)
        {
            let name = name.to_string();
            let (line, body) = (1 + count_lines(&bytes[..at]), open + 1..close);
            let code_lines = code_lines(&blanked[body.clone()]);
            found.push(Function { name, line, code_lines, body });
        }
        at = end;
    }
    found
}

fn code_lines(body: &str) -> usize {
    body.lines().filter(|line| !line.trim().is_empty()).count()
}

/// A word of source text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Word<'a> {
    pub(crate) text: &'a str,
    /// True if arguments follow.
    pub(crate) is_called: bool,
    /// Preceding word, of which this word is a member: `a` in `a.b()`, `a().b()` and `a::b()`.
    pub(crate) owner: Option<&'a str>,
}

/// Words of blanked source text.
pub(crate) fn words(blanked: &str) -> impl Iterator<Item = Word<'_>> {
    let bytes = blanked.as_bytes();
    let (mut at, mut before) = (0, None::<(&str, usize)>);
    std::iter::from_fn(move || {
        at += bytes[at..].iter().position(|byte| is_word(*byte))?;
        let start = at;
        at = word_end(bytes, at);
        let rest = blanked[at..].trim_start();
        let is_called = rest.starts_with('(') || rest.starts_with("::<");
        let owner = before.and_then(|(word, end)| {
            let between: String = blanked[end..start].split_whitespace().collect();
            [".", "().", "::"].contains(&between.as_str()).then_some(word)
        });
        let text = &blanked[start..at];
        before = Some((text, at));
        Some(Word { text, is_called, owner })
    })
}

fn count_lines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| byte == b'\n').count()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

#[derive(PartialEq, Eq)]
enum Token {
    /// Comment or literal.
    Hidden,
    /// Word, or one byte of anything else.
    Code,
}

/// The token that starts at `at`, and its end.
fn next_token(bytes: &[u8], at: usize) -> (Token, usize) {
    let hidden_until = match (bytes[at], bytes.get(at + 1)) {
        (b'/', Some(b'/')) => Some(line_end(bytes, at)),
        (b'/', Some(b'*')) => Some(block_comment_end(bytes, at)),
        (b'"', _) => Some(end_of_quoted(bytes, at + 1, b'"')),
        (b'\'', _) => character_end(bytes, at),
        _ => match literal_prefix(bytes, at) {
            Some(Literal::Raw { hashes, quote }) => Some(raw_end(bytes, quote + 1, hashes)),
            Some(Literal::Quoted { quote }) => Some(end_of_quoted(bytes, quote + 1, bytes[quote])),
            None => None,
        },
    };
    match hidden_until {
        Some(end) => (Token::Hidden, end.min(bytes.len())),
        None => (Token::Code, word_end(bytes, at).max(at + 1)),
    }
}

enum Literal {
    Raw { hashes: usize, quote: usize },
    Quoted { quote: usize },
}

/// Recognizes `r"`, `r#"`, `b"`, `br"`, `c"`, `cr#"` and `b'` at the beginning of a word.
fn literal_prefix(bytes: &[u8], at: usize) -> Option<Literal> {
    let word = &bytes[at..word_end(bytes, at)];
    let next = at + word.len();
    match (word, bytes.get(next)) {
        (b"b" | b"c", Some(b'"')) | (b"b", Some(b'\'')) => Some(Literal::Quoted { quote: next }),
        (b"r" | b"br" | b"cr", Some(b'"' | b'#')) => {
            let hashes = bytes[next..].iter().take_while(|&&byte| byte == b'#').count();
            let quote = next + hashes;
            (bytes.get(quote) == Some(&b'"')).then_some(Literal::Raw { hashes, quote })
        }
        _ => None,
    }
}

fn word_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|&byte| !is_word(byte)).map_or(bytes.len(), |length| at + length)
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |length| at + length)
}

/// The end of a block comment, which may contain other comments.
fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0_usize);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => (at, depth) = (at + 2, depth + 1),
            b"*/" => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

fn end_of_quoted(bytes: &[u8], mut at: usize, quote: u8) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn raw_end(bytes: &[u8], mut at: usize, hashes: usize) -> usize {
    while at < bytes.len() {
        let closes = bytes[at] == b'"'
            && bytes[at + 1..].iter().take(hashes).filter(|&&byte| byte == b'#').count() == hashes;
        if closes {
            return at + 1 + hashes;
        }
        at += 1;
    }
    bytes.len()
}

/// The end of a character literal, or `None` if the quote begins a lifetime.
fn character_end(bytes: &[u8], at: usize) -> Option<usize> {
    let width = match *bytes.get(at + 1)? {
        b'\\' => return Some(end_of_quoted(bytes, at + 1, b'\'')),
        0..0x80 => 1,
        0x80..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0.. => 4,
    };
    (bytes.get(at + 1 + width) == Some(&b'\'')).then_some(at + 2 + width)
}

/// The braces of the body that belongs to the signature starting at `at`, if it has one.
///
/// A signature ends at the first `{` or `;` outside of parentheses and square brackets: an array type such as
/// `[u8; 4]` has a semicolon. A const argument such as `{ N }` is rare and therefore mistaken for the body.
fn body(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let (mut at, mut nesting) = (at, 0_usize);
    let mut before = b' ';
    loop {
        let byte = *bytes.get(at)?;
        match byte {
            b'(' | b'[' => nesting += 1,
            b')' | b']' => nesting = nesting.checked_sub(1)?,
            b';' if nesting == 0 => return None,
            b'{' if nesting == 0 && before != b'<' => return Some((at, brace_end(bytes, at)?)),
            b'{' => at = brace_end(bytes, at)?,
            _ => {}
        }
        if !byte.is_ascii_whitespace() {
            before = byte;
        }
        at += 1;
    }
}

fn brace_end(bytes: &[u8], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (offset, &byte) in bytes[open..].iter().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(open + offset);
        }
    }
    None
}

fn read_name(text: &str) -> Option<&str> {
    let text = text.trim_start();
    match text.bytes().position(|byte| !is_word(byte)).unwrap_or(text.len()) {
        0 => text.starts_with('$').then_some("$"),
        end => Some(&text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        blank(text).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_and_literals_are_hidden_and_the_rest_is_kept() {
        assert_eq!(code("a /* b /* c */ d */ e // f\ng"), "a e g");
        assert_eq!(code(r#"x("todo!()", 'a', '"', b'\'', "\"y") z"#), "x( , , , , ) z");
        assert_eq!(code("r#\"a \" b\"# c br##\"d\"# e\"## f"), "c f");
        assert_eq!(
            code("fn f<'a>(x: &'a str) -> char { 'ä' }"),
            "fn f<'a>(x: &'a str) -> char { }"
        );
        assert_eq!(code("for r in xs { r#type }"), "for r in xs { r#type }");
        assert_eq!(code("'label: loop { break 'label }"), "'label: loop { break 'label }");
    }

    #[test]
    fn hidden_text_keeps_its_line_count() {
        let text = "a\n/* b\nc */ d \"e\nf\"\n";
        assert_eq!(blank(text).lines().count(), text.lines().count());
        assert_eq!(blank(text).len(), text.len());
    }

    #[test]
    fn functions_are_measured_without_blank_and_comment_lines() {
        let text = "trait T {\n    fn none(&self) -> [u8; 2];\n}\n\
            fn outer(a: [u8; 4]) -> u8 {\n    // why }\n\n    fn inner() {\n\
            \x20       a(\"}\")\n    }\n    1\n}\n";
        let found = functions(&blank(text));
        let names: Vec<_> = found.iter().map(|f| (f.name.as_str(), f.line, f.code_lines)).collect();
        assert_eq!(names, [("outer", 4, 4), ("inner", 7, 1)]);
    }

    #[test]
    fn words_are_distinguished_by_calls_and_owners() {
        let shown = |word: Word<'_>| match (word.owner, word.is_called) {
            (Some(owner), true) => format!("{owner}.{}()", word.text),
            (Some(owner), false) => format!("{owner}.{}", word.text),
            (None, true) => format!("{}()", word.text),
            (None, false) => word.text.to_owned(),
        };
        let found: Vec<String> =
            words("a.b(c::<u8>(d), self\n.e().f(), g::h)").map(shown).collect();
        assert_eq!(
            found,
            ["a", "a.b()", "c()", "u8", "d", "self", "self.e()", "e.f()", "g", "g.h"]
        );
    }

    #[test]
    fn a_function_type_is_not_a_function() {
        assert_eq!(functions(&blank("type F = fn(u8) -> u8; struct S { f: fn(), g: u8 }")), []);
    }
}
