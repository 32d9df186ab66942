//! PAC file of the port: a script by which browsers and systems choose a proxy for each URL.
//!
//! All traffic uses the port except names of this machine or its own network, which mean something else at a
//! distant server. The script never resolves a name, because that would reveal the visited names to the network. It
//! never returns `DIRECT` as a fallback: when the client is stopped, connections fail instead of silently using
//! another route.
//!
//! A site that makes its name resolve to this machine (DNS rebinding) could let a browser treat the port as part of
//! the site and read from it. Therefore requests are answered only if `Host` is an address or `localhost`, which
//! cannot be the name of a site.

use super::answer::{Refusal, document};
use super::request::OwnResource;
use crate::target::Host;

const PATHS: [&str; 2] = ["/proxy.pac", "/wpad.dat"];
const MEDIA_TYPE: &str = "application/x-ns-proxy-autoconfig";

/// Answers a request for a resource of this port. `local` is the address that the application connected to.
///
/// # Errors
/// There is no such resource, or the request has a foreign `Host`.
pub fn answer(asked: &OwnResource, local: std::net::SocketAddr) -> Result<Vec<u8>, Refusal> {
    let authority = match &asked.host {
        Some(host) => own_authority(host)?,
        None => local.to_string(),
    };
    if asked.method == "OPTIONS" {
        return Ok(document(200, "text/plain", "Allow: GET, HEAD, OPTIONS\r\n", "", false));
    }
    let path = asked.path.split('?').next().unwrap_or_default();
    if !PATHS.contains(&path) {
        let text = "this is a proxy; its PAC file is at /proxy.pac";
        return Err(Refusal::new(404, text));
    }
    if !matches!(asked.method.as_str(), "GET" | "HEAD") {
        return Err(Refusal::new(405, "read the PAC file with GET"));
    }
    let is_head = asked.method == "HEAD";
    Ok(document(200, MEDIA_TYPE, "", &script(&authority), is_head))
}

/// Returns the authority in the request, if it cannot be the name of a site.
fn own_authority(host: &str) -> Result<String, Refusal> {
    let strange = || {
        let text = "use this port's address or localhost: other host names are refused";
        Refusal::new(421, text)
    };
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port.parse::<u16>().ok()),
        _ => (host, Some(80)),
    };
    let port = port.ok_or_else(strange)?;
    match Host::parse(name).map_err(|_| strange())? {
        Host::V4(address) => Ok(format!("{address}:{port}")),
        Host::V6(address) => Ok(format!("[{address}]:{port}")),
        Host::Name(name) if name.eq_ignore_ascii_case("localhost") => {
            Ok(format!("localhost:{port}"))
        }
        Host::Name(_) => Err(strange()),
    }
}

/// Returns the script. `isInNet` is called for addresses only, so that nothing is resolved.
fn script(authority: &str) -> String {
    format!(
        r#"// Everything through Marline, except this machine and its own network.
function FindProxyForURL(url, host) {{
  host = host.toLowerCase().replace(/^\[|\]$/g, "").replace(/\.$/, "");
  if (isPlainHostName(host) && host.indexOf(":") < 0) return "DIRECT";
  if (/(^|\.)(localhost|local|home\.arpa)$/.test(host)) return "DIRECT";
  if (/^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+$/.test(host)) {{
    if (isInNet(host, "127.0.0.0", "255.0.0.0") || isInNet(host, "10.0.0.0", "255.0.0.0") ||
        isInNet(host, "172.16.0.0", "255.240.0.0") || isInNet(host, "192.168.0.0", "255.255.0.0") ||
        isInNet(host, "169.254.0.0", "255.255.0.0")) return "DIRECT";
  }}
  if (host === "::1" || /^(f[cd][0-9a-f][0-9a-f]|fe[89ab][0-9a-f]):/.test(host)) return "DIRECT";
  return "SOCKS5 {authority}; PROXY {authority}";
}}
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: &str, path: &str, host: Option<&str>) -> Result<String, u16> {
        let host = host.map(str::to_owned);
        let own = OwnResource { method: method.to_owned(), path: path.to_owned(), host };
        let bytes = answer(&own, "127.0.0.1:1080".parse().unwrap());
        bytes.map(|bytes| String::from_utf8(bytes).unwrap()).map_err(|refusal| refusal.status)
    }

    #[test]
    fn the_script_names_the_requested_address() {
        for (host, named) in [
            (None, "127.0.0.1:1080"),
            (Some("127.0.0.1:1080"), "127.0.0.1:1080"),
            (Some("LocalHost:1081"), "localhost:1081"),
            (Some("[::1]:1080"), "[::1]:1080"),
            (Some("192.168.1.7"), "192.168.1.7:80"),
        ] {
            let text = asked("GET", "/proxy.pac", host).unwrap();
            assert!(text.contains("Content-Type: application/x-ns-proxy-autoconfig\r\n"), "{text}");
            let line = format!("return \"SOCKS5 {named}; PROXY {named}\"");
            assert!(text.contains(&line), "{line} is not in {text}");
        }
        assert!(asked("HEAD", "/wpad.dat?x", None).unwrap().ends_with("\r\n\r\n"));
    }

    #[test]
    fn requests_for_a_possible_site_name_are_refused() {
        for host in
            ["evil.example:1080", "localhost.evil.example", "", "a b", "localhost:x", "[::1"]
        {
            assert_eq!(asked("GET", "/proxy.pac", Some(host)), Err(421), "{host}");
        }
    }

    #[test]
    fn other_paths_and_methods_are_refused() {
        assert_eq!(asked("GET", "/", Some("127.0.0.1")), Err(404));
        assert!(asked("OPTIONS", "*", None).unwrap().contains("\r\nAllow: GET, HEAD, OPTIONS\r\n"));
        assert_eq!(asked("TRACE", "*", None), Err(404));
        assert_eq!(asked("POST", "/proxy.pac", None), Err(405));
    }
}
