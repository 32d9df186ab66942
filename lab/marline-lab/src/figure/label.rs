//! Numbers and names as labels: significant digits, and escaped markup.

/// Formats a number with three or four significant digits, and NaN as `-`.
#[must_use]
pub fn number(value: f64) -> String {
    let size = value.abs();
    let text = match size {
        _ if value.is_nan() => return "-".to_owned(),
        _ if value.is_infinite() => return if value > 0.0 { "∞" } else { "-∞" }.to_owned(),
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 0.1 => format!("{value:.2}"),
        _ if size >= 0.001 => format!("{value:.4}"),
        _ if size == 0.0 => return "0".to_owned(),
        _ => format!("{value:.2e}"),
    };
    match text.contains('.') && !text.contains('e') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Escapes markup in a text.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // XML does not allow other control characters.
            c if c.is_control() && !matches!(c, '\n' | '\t') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
