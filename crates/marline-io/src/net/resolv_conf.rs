//! Text of a `resolv.conf`.

use std::borrow::Cow;
use std::net::IpAddr;

/// The first line of one that Marline has put in place of the network's.
const OURS: &str =
    "# Written by marline up, which restores what was here before (also: sudo marline down):";
/// What was there before follows in lines that begin so.
const FORMER: &str = "#=";

/// What follows a keyword, line by line.
pub fn entries<'a>(text: &'a str, keyword: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| {
        let rest = line.trim_start().strip_prefix(keyword)?;
        rest.starts_with([' ', '\t']).then(|| rest.trim())
    })
}

/// The resolvers, as they are written.
pub fn resolvers(text: &str) -> impl Iterator<Item = &str> {
    entries(text, "nameserver").filter_map(|rest| rest.split_ascii_whitespace().next())
}

/// The addresses of those that have a plain one: link-local ones with a zone are left out.
pub fn addresses(text: &str) -> impl Iterator<Item = IpAddr> {
    resolvers(text).filter_map(|word| word.parse().ok())
}

/// The text `ours` in place of `former`, which it keeps.
#[must_use]
pub fn replacing(former: &str, ours: &str) -> String {
    let kept: String = former.lines().map(|line| format!("{FORMER}{line}\n")).collect();
    format!("{OURS}\n{kept}{ours}")
}

/// What was there before Marline put a text in its place. `None`: this is not such a text.
#[must_use]
pub fn former(text: &str) -> Option<String> {
    let lines = text.strip_prefix(OURS)?.lines();
    Some(
        lines
            .filter_map(|line| line.strip_prefix(FORMER))
            .map(|line| format!("{line}\n"))
            .collect(),
    )
}

/// The text as the network's configuration has it, whether Marline has put its own in place of it or not.
#[must_use]
pub fn of_network(text: &str) -> Cow<'_, str> {
    former(text).map_or(Cow::Borrowed(text), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_replaced_is_found_again() {
        for before in
            ["", "nameserver 192.0.2.1\n", "# a comment\n\nnameserver fe80::1%eth0\nsearch a b\n"]
        {
            let text = replacing(before, "nameserver 198.18.0.1\n");
            assert_eq!(former(&text).as_deref(), Some(before));
            assert_eq!(of_network(&text), before);
            assert_eq!(resolvers(&text).collect::<Vec<_>>(), ["198.18.0.1"]);
            assert_eq!(former(before), None);
            assert_eq!(of_network(before), before);
        }
        assert_eq!(
            former(&replacing("nameserver 192.0.2.1", "")).unwrap(),
            "nameserver 192.0.2.1\n"
        );
    }
}
