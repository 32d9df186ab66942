//! Access to a dashboard: by which names it is asked for, and the token that is asked for beyond loopback.
//!
//! A browser shows pages of many sites at once. What keeps them apart is the name by which each was loaded, and a name
//! is its owner's to point anywhere, at 127.0.0.1 too (DNS rebinding). So only what is no name is answered to: an
//! address, or `localhost`, which no resolver may give away (RFC 6761).

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Request, StatusCode};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

/// Bytes of a token that is made here.
const TOKEN_BYTES: usize = 16;

/// A token. It is compared in constant time, and not shown.
#[derive(Clone)]
pub struct Token {
    /// Compared is what this key makes of it: that takes as long whatever differs.
    key: hmac::Key,
    tag: hmac::Tag,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// This token, of a file for instance. Blanks around it do not count.
    ///
    /// # Errors
    /// It is shorter than 16 characters, or has one that cannot stand in a header or an address.
    pub fn new(text: &str) -> Result<Token, String> {
        let text = text.trim();
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        if text.len() < 16 || text.len() > 256 || !text.bytes().all(fits) {
            return Err("a token is 16 to 256 letters, digits, `-`, `_`, `.` or `~`".to_owned());
        }
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map_err(|_| "the system has no randomness".to_owned())?;
        let tag = hmac::sign(&key, text.as_bytes());
        Ok(Token { key, tag })
    }

    /// A new token, and its text.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn generate() -> Result<(Token, String), String> {
        let mut bytes = [0; TOKEN_BYTES];
        SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_| "the system has no randomness".to_owned())?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((Token::new(&text)?, text))
    }

    /// Whether it is the one of this text. Blanks around that do not count.
    #[must_use]
    pub fn is_of(&self, text: &str) -> bool {
        self.is(text.trim().as_bytes())
    }

    fn is(&self, text: &[u8]) -> bool {
        hmac::verify(&self.key, text, self.tag.as_ref()).is_ok()
    }
}

/// Who may see a dashboard.
#[derive(Clone, Debug)]
pub struct Access {
    token: Option<Token>,
}

impl Access {
    /// Whoever reaches this address and knows the token; without one, whoever reaches it.
    ///
    /// # Errors
    /// Others than this machine reach it, and there is no token.
    pub fn new(address: SocketAddr, token: Option<Token>) -> Result<Access, String> {
        if token.is_none() && !address.ip().to_canonical().is_loopback() {
            return Err(format!(
                "a dashboard at {address} needs a token: other machines can reach it"
            ));
        }
        Ok(Access { token })
    }

    /// A page of another site asks, or a name was given for which anybody may answer: the status to refuse with.
    pub(crate) fn refuses_site<T>(request: &Request<T>) -> Option<(StatusCode, &'static str)> {
        let mut hosts = request.headers().get_all(HOST).iter();
        let (Some(_), None) = (hosts.next(), hosts.next()) else {
            return Some((StatusCode::BAD_REQUEST, "exactly one Host header is required\n"));
        };
        // What was asked for and what the header says may both be there; neither may be a name.
        if names_another_site(request) {
            let why = "use an IP address or localhost: other host names are refused\n";
            return Some((StatusCode::FORBIDDEN, why));
        }
        let said = |name: &str| request.headers().get(name).map(|value| value.as_bytes());
        match said("sec-fetch-site") {
            None | Some(b"same-origin" | b"none") => None,
            // Somebody follows a link to the page, which stands in no frame and says nothing by itself.
            Some(_)
                if request.uri().path() == "/" && said("sec-fetch-dest") == Some(b"document") =>
            {
                None
            }
            Some(_) => Some((StatusCode::FORBIDDEN, "cross-site request refused\n")),
        }
    }

    /// The status to refuse with what is for those who know the token.
    pub(crate) fn refuses<T>(&self, request: &Request<T>) -> Option<(StatusCode, &'static str)> {
        let token = self.token.as_ref()?;
        let Some(shown) = request.headers().get(AUTHORIZATION) else {
            return Some((StatusCode::UNAUTHORIZED, "the address ends in #token=...\n"));
        };
        match shown.as_bytes().strip_prefix(b"Bearer ") {
            Some(text) if token.is(text) => None,
            _ => Some((StatusCode::FORBIDDEN, "wrong token\n")),
        }
    }
}

/// Whether a request names a host that is neither an address nor `localhost`, and so may be another site's whose name
/// was made to lead here.
pub fn names_another_site<T>(request: &Request<T>) -> bool {
    let headers = request.headers().get_all(HOST).iter().map(|host| host.to_str().ok());
    let of_target = request.uri().authority().map(|authority| Some(authority.as_str()));
    headers.chain(of_target).any(|name| !name.is_some_and(is_address))
}

/// `ADDRESS[:PORT]` or `localhost[:PORT]`.
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
    fn only_what_nobody_else_can_own_is_answered_to() {
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
    fn a_token_is_the_one_or_it_is_not_and_is_never_shown() {
        let (token, text) = Token::generate().expect("a token");
        assert_eq!(text.len(), 32);
        assert!(token.is(text.as_bytes()));
        assert!(
            !token.is(&text.as_bytes()[1..])
                && !token.is(b"")
                && !token.is(text.to_uppercase().as_bytes())
        );
        assert!(!format!("{token:?}").contains(&text));
        assert!(Token::new("short").is_err() && Token::new(&"a b".repeat(9)).is_err());
        assert!(Token::new(" 0123456789abcdef\n").expect("a token").is(b"0123456789abcdef"));
        let (_, again) = Token::generate().expect("a token");
        assert_ne!(text, again);
    }

    #[test]
    fn beyond_loopback_there_is_no_access_without_a_token() {
        let open = |address: &str| Access::new(address.parse().expect("address"), None).is_ok();
        assert!(open("127.0.0.1:1") && open("[::1]:1") && open("[::ffff:127.0.0.1]:1"));
        assert!(!open("0.0.0.0:1") && !open("192.0.2.1:1") && !open("[::]:1"));
    }
}
