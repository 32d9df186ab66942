//! Text of a `resolv.conf`.

use std::net::IpAddr;

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
