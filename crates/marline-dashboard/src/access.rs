//! Access control of a dashboard: permitted host names, and the token required beyond loopback.
//!
//! A browser shows pages of many sites at once and separates them by the names from which they were loaded. The
//! owner of a name can point it anywhere, even to 127.0.0.1 (DNS rebinding). So requests are only answered if the
//! host is an address, or `localhost`, which no resolver may assign to another host (RFC 6761).

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Request, StatusCode};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

/// Length of a generated token, in bytes.
const TOKEN_BYTES: usize = 16;

/// Secret token, which is compared in constant time and never shown.
#[derive(Clone)]
pub struct Token {
    /// Key of the HMAC that is compared instead of the token, so that the comparison time does not depend on the
    /// difference.
    key: hmac::Key,
    tag: hmac::Tag,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Creates a token from this text, for instance from a file. Surrounding whitespace is ignored.
    ///
    /// # Errors
    /// The text is shorter than 16 characters, or has a character that is invalid in a header or URL.
    pub fn new(text: &str) -> Result<Token, String> {
        let text = text.trim();
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        if text.len() < 16 || text.len() > 256 || !text.bytes().all(fits) {
            return Err(
                "a token must be 16 to 256 letters, digits, `-`, `_`, `.` or `~`".to_owned()
            );
        }
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map_err(|_| "cannot get random bytes from the system".to_owned())?;
        let tag = hmac::sign(&key, text.as_bytes());
        Ok(Token { key, tag })
    }

    /// Generates a token, and returns it with its text.
    ///
    /// # Errors
    /// The system provides no randomness.
    pub fn generate() -> Result<(Token, String), String> {
        let mut bytes = [0; TOKEN_BYTES];
        SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_| "cannot get random bytes from the system".to_owned())?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((Token::new(&text)?, text))
    }

    /// Returns true if this text is the token. Surrounding whitespace is ignored.
    #[must_use]
    pub fn matches_text(&self, text: &str) -> bool {
        self.matches(text.trim().as_bytes())
    }

    fn matches(&self, text: &[u8]) -> bool {
        hmac::verify(&self.key, text, self.tag.as_ref()).is_ok()
    }
}

/// Access policy of a dashboard.
#[derive(Clone, Debug)]
pub struct Access {
    token: Option<Token>,
}

impl Access {
    /// Permits access to clients that reach this address and have the token, if there is one.
    ///
    /// # Errors
    /// Other machines can reach the address and there is no token.
    pub fn new(address: SocketAddr, token: Option<Token>) -> Result<Access, String> {
        if token.is_none() && !address.ip().to_canonical().is_loopback() {
            return Err(format!(
                "a dashboard at {address} needs a token: other machines can reach it"
            ));
        }
        Ok(Access { token })
    }

    /// Returns the status and text of the refusal, if the request comes from a page of another site, or is for a host
    /// name that others control.
    pub(crate) fn refusal<T>(request: &Request<T>) -> Option<(StatusCode, &'static str)> {
        let mut hosts = request.headers().get_all(HOST).iter();
        let (Some(_), None) = (hosts.next(), hosts.next()) else {
            return Some((StatusCode::BAD_REQUEST, "missing or repeated Host header\n"));
        };
        // The request's URI and its Host header may both contain a host, and neither may be a name.
        if has_foreign_host(request) {
            let why = "use an IP address or localhost: other host names are refused\n";
            return Some((StatusCode::FORBIDDEN, why));
        }
        let said = |name: &str| request.headers().get(name).map(|value| value.as_bytes());
        match said("sec-fetch-site") {
            None | Some(b"same-origin" | b"none") => None,
            // The user follows a link to the page, which cannot be framed and contains no data itself.
            Some(_)
                if request.uri().path() == "/" && said("sec-fetch-dest") == Some(b"document") =>
            {
                None
            }
            Some(_) => Some((StatusCode::FORBIDDEN, "cross-site request refused\n")),
        }
    }

    /// Returns the status and text of the refusal, if the request lacks the required token.
    pub(crate) fn check_request<T>(
        &self,
        request: &Request<T>,
    ) -> Option<(StatusCode, &'static str)> {
        let token = self.token.as_ref()?;
        let Some(shown) = request.headers().get(AUTHORIZATION) else {
            return Some((
                StatusCode::UNAUTHORIZED,
                "the token is missing: open the full address, which ends \
                in #token=...\n",
            ));
        };
        match shown.as_bytes().strip_prefix(b"Bearer ") {
            Some(text) if token.matches(text) => None,
            _ => Some((StatusCode::FORBIDDEN, "wrong token\n")),
        }
    }
}

/// Returns true if a request's host is neither an address nor `localhost`, and so may be the name of another site that
/// resolves to this machine.
pub fn has_foreign_host<T>(request: &Request<T>) -> bool {
    let headers = request.headers().get_all(HOST).iter().map(|host| host.to_str().ok());
    let of_target = request.uri().authority().map(|authority| Some(authority.as_str()));
    headers.chain(of_target).any(|name| !name.is_some_and(is_address))
}

/// Returns true for `ADDRESS[:PORT]` or `localhost[:PORT]`.
fn is_address(host: &str) -> bool {
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    if let Some(rest) = host.strip_prefix('[') {
        let Some((ip, port)) = rest.split_once(']') else { return false };
        let fits = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return fits && ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6());
    }
    let (name, port) = match host.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (host, None),
    };
    port.is_none_or(is_port)
        && (name.eq_ignore_ascii_case("localhost")
            || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ip_addresses_and_localhost_are_accepted_hosts() {
        for good in
            ["127.0.0.1:9101", "127.0.0.1", "localhost:9101", "LOCALHOST", "[::1]:9101", "[::1]"]
        {
            assert!(is_address(good), "{good}");
        }
        let bad = [
            "evil.example:9101",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "",
            ":9101",
            "::1",
            "[evil]:1",
            "[::1",
            "[127.0.0.1]",
            "127.0.0.1:x",
            "user@127.0.0.1",
            "127.1",
            "0x7f000001",
            "2130706433",
        ];
        for bad in bad {
            assert!(!is_address(bad), "{bad}");
        }
    }

    #[test]
    fn tokens_compare_exactly_and_are_never_shown() {
        let (token, text) = Token::generate().expect("a token");
        assert_eq!(text.len(), 32);
        assert!(token.matches(text.as_bytes()));
        assert!(
            !token.matches(&text.as_bytes()[1..])
                && !token.matches(b"")
                && !token.matches(text.to_uppercase().as_bytes())
        );
        assert!(!format!("{token:?}").contains(&text));
        assert!(Token::new("short").is_err() && Token::new(&"a b".repeat(9)).is_err());
        assert!(Token::new(" 0123456789abcdef\n").expect("a token").matches(b"0123456789abcdef"));
        let (_, again) = Token::generate().expect("a token");
        assert_ne!(text, again);
    }

    #[test]
    fn beyond_loopback_access_needs_a_token() {
        let open = |address: &str| Access::new(address.parse().expect("address"), None).is_ok();
        assert!(open("127.0.0.1:1") && open("[::1]:1") && open("[::ffff:127.0.0.1]:1"));
        assert!(!open("0.0.0.0:1") && !open("192.0.2.1:1") && !open("[::]:1"));
    }
}
