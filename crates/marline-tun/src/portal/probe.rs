//! Probe for a captive portal: a request over plain HTTP for a page whose response is known. A network that requires
//! a login responds instead of the page.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use marline_io::dns_query;
use marline_wire::{DNS_A, DNS_AAAA};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::{PortalOpener, names};
use crate::dns::message;

/// Maximum duration of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of the response's status and fields, in bytes.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Maximum length of a displayed URL, in bytes.
const MAX_URL_LEN: usize = 2_048;

/// URL that responds with status 204 and no content if there is no portal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    host: String,
    port: u16,
    path: String,
}

/// Error for an invalid probe URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected http://HOST[:PORT]/PATH (not https, which a portal cannot answer)")]
pub struct BadProbe;

/// Result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The page itself responded.
    Open,
    /// Another server responded.
    Portal {
        /// URL of the login page, if known.
        url: Option<String>,
    },
    /// No response, with the reason.
    Silent(String),
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            80 => write!(f, "http://{}{}", self.host, self.path),
            port => write!(f, "http://{}:{port}{}", self.host, self.path),
        }
    }
}

impl FromStr for Probe {
    type Err = BadProbe;

    fn from_str(text: &str) -> Result<Probe, BadProbe> {
        let rest = text.strip_prefix("http://").ok_or(BadProbe)?;
        let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| BadProbe)?),
            None => (authority, 80),
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
        let shown = path.bytes().all(|byte| byte.is_ascii_graphic());
        let labels = host.split('.').all(|label| (1..=63).contains(&label.len()));
        if !host.bytes().all(plain) || !labels || host.len() > 253 || port == 0 || !shown {
            return Err(BadProbe);
        }
        Ok(Probe { host: host.to_ascii_lowercase(), port, path: path.to_owned() })
    }
}

impl Probe {
    /// Sends the request with this opener.
    pub async fn send(&self, way: &PortalOpener) -> Finding {
        match timeout(PROBE_TIMEOUT, self.fetch(way)).await {
            Ok(Ok(head)) => read_head(&head),
            Ok(Err(error)) => Finding::Silent(error.to_string()),
            Err(_) => Finding::Silent(format!("no answer within {} s", PROBE_TIMEOUT.as_secs())),
        }
    }

    /// Returns the status and fields of the response.
    async fn fetch(&self, way: &PortalOpener) -> io::Result<Vec<u8>> {
        let mut last =
            io::Error::new(io::ErrorKind::NotFound, format!("{} has no address", self.host));
        for ip in self.addresses(way).await? {
            match way.connect(SocketAddr::new(ip, self.port)).await {
                Ok(mut stream) => {
                    let Probe { host, path, .. } = self;
                    let request =
                        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
                    stream.write_all(request.as_bytes()).await?;
                    let mut head = Vec::new();
                    let mut limited = stream.take(MAX_HEAD_BYTES as u64);
                    while !head.windows(4).any(|four| four == b"\r\n\r\n")
                        && limited.read_buf(&mut head).await? > 0
                    {}
                    return Ok(head);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn addresses(&self, way: &PortalOpener) -> io::Result<Vec<IpAddr>> {
        if let Ok(ip) = self.host.parse() {
            return Ok(vec![ip]);
        }
        let mut found = Vec::new();
        let mut failed = io::Error::new(
            io::ErrorKind::NotFound,
            format!("no DNS resolver known for {}: give one with --dns", way.interface),
        );
        for resolver in &way.resolvers {
            for kind in [DNS_A, DNS_AAAA] {
                // A socket with its own port sends the query once, so the message number need not be secret.
                let query = dns_query([0x4d, kind as u8], &self.host, kind)?;
                match names::query_resolver(way, *resolver, &query).await {
                    Ok(answer) => found.extend(message::addresses(&answer)),
                    Err(error) => failed = error,
                }
                // A resolver that does not answer one query does not answer the other.
                if found.is_empty() && failed.kind() == io::ErrorKind::TimedOut {
                    break;
                }
            }
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Err(failed)
    }
}

/// Evaluates the beginning of a response.
fn read_head(head: &[u8]) -> Finding {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.lines();
    let status = lines.next().filter(|line| line.starts_with("HTTP/1."));
    let code = status.and_then(|line| line.split(' ').nth(1)?.parse::<u16>().ok());
    match code {
        Some(204) => Finding::Open,
        Some(_) => {
            let field = lines.take_while(|line| !line.is_empty()).find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("location").then(|| value.trim())
            });
            // The URL is shown in a terminal.
            let sound = |url: &&str| {
                url.len() <= MAX_URL_LEN && url.bytes().all(|byte| byte.is_ascii_graphic())
            };
            Finding::Portal { url: field.filter(sound).map(str::to_owned) }
        }
        None => Finding::Silent("not an HTTP response".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_names_the_page_and_only_204_means_open() {
        let read = |text: &str| read_head(text.as_bytes());
        assert_eq!(read("HTTP/1.1 204 No Content\r\n\r\n"), Finding::Open);
        let url = Some("http://login.hotel/?a=1".to_owned());
        let moved = "HTTP/1.1 302 Found\r\nServer: x\r\nLOCATION: http://login.hotel/?a=1\r\n\r\n";
        assert_eq!(read(moved), Finding::Portal { url });
        for nameless in [
            "HTTP/1.0 200 OK\r\n\r\nLocation: http://body/",
            "HTTP/1.1 511 Network Authentication Required\r\n\r\n",
            "HTTP/1.1 302 Found\r\nLocation: http://x/\u{1b}[2J\r\n\r\n",
        ] {
            assert_eq!(read(nameless), Finding::Portal { url: None }, "{nameless}");
        }
        assert!(matches!(read("220 smtp"), Finding::Silent(_)));
        assert!(matches!(read(""), Finding::Silent(_)));
    }

    #[test]
    fn addresses_of_probes_are_plain_http() {
        for text in ["http://check.example/204", "http://192.0.2.1:8080/", "http://a/x?y=%20"] {
            assert_eq!(text.parse::<Probe>().unwrap().to_string(), text);
        }
        assert_eq!("http://a".parse::<Probe>().unwrap().to_string(), "http://a/");
        for text in [
            "",
            "a",
            "https://a/",
            "http:///",
            "http://a:0/",
            "http://a:x/",
            "http://a b/",
            "http://a/ b",
            "http://a/\r\nX: y",
            "http://u@a/",
        ] {
            assert_eq!(text.parse::<Probe>(), Err(BadProbe), "{text}");
        }
    }
}
