//! Parsing and replacement of `resolv.conf` texts.

use std::borrow::Cow;
use std::net::IpAddr;

/// First line of a text with which Marline has replaced the text of the network.
const FIRST_LINE: &str =
    "# Written by marline up, which restores what was here before (also: sudo marline down):";
/// Prefix of the lines that preserve the replaced text.
const SAVED_LINE_PREFIX: &str = "#=";

/// Returns the values of a keyword, line by line.
pub fn entries<'a>(text: &'a str, keyword: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| {
        let rest = line.trim_start().strip_prefix(keyword)?;
        rest.starts_with([' ', '\t']).then(|| rest.trim())
    })
}

/// Returns the resolvers as written in the text.
pub fn resolvers(text: &str) -> impl Iterator<Item = &str> {
    entries(text, "nameserver").filter_map(|rest| rest.split_ascii_whitespace().next())
}

/// Returns the addresses of the resolvers, except link-local addresses with a zone.
pub fn addresses(text: &str) -> impl Iterator<Item = IpAddr> {
    resolvers(text).filter_map(|word| word.parse().ok())
}

/// Replaces `former` with `ours`. The result preserves `former` in comments.
#[must_use]
pub fn replacing(former: &str, ours: &str) -> String {
    let kept: String = former.lines().map(|line| format!("{SAVED_LINE_PREFIX}{line}\n")).collect();
    format!("{FIRST_LINE}\n{kept}{ours}")
}

/// Returns the replaced text, or `None` if Marline did not write this text.
#[must_use]
pub fn former(text: &str) -> Option<String> {
    let lines = text.strip_prefix(FIRST_LINE)?.lines();
    Some(
        lines
            .filter_map(|line| line.strip_prefix(SAVED_LINE_PREFIX))
            .map(|line| format!("{line}\n"))
            .collect(),
    )
}

/// Returns the network's text, even if Marline has replaced it.
#[must_use]
pub fn network_text(text: &str) -> Cow<'_, str> {
    former(text).map_or(Cow::Borrowed(text), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replaced_resolv_conf_is_recovered() {
        for before in
            ["", "nameserver 192.0.2.1\n", "# a comment\n\nnameserver fe80::1%eth0\nsearch a b\n"]
        {
            let text = replacing(before, "nameserver 198.18.0.1\n");
            assert_eq!(former(&text).as_deref(), Some(before));
            assert_eq!(network_text(&text), before);
            assert_eq!(resolvers(&text).collect::<Vec<_>>(), ["198.18.0.1"]);
            assert_eq!(former(before), None);
            assert_eq!(network_text(before), before);
        }
        assert_eq!(
            former(&replacing("nameserver 192.0.2.1", "")).unwrap(),
            "nameserver 192.0.2.1\n"
        );
    }
}
