//! One-line description of a path, for command lines:
//! `wifi,10.0.1.2/24,10.0.1.1/24,mtu=1400,rate=8M,delay=10ms`.

use std::str::FromStr;

use anyhow::{Context, ensure};

use super::{IpNet, MTU_RANGE, Path, check_name};

impl FromStr for Path {
    type Err = anyhow::Error;

    /// Parses the name, optional pairs of addresses (the client's and the server's, with prefix lengths), an optional
    /// `mtu=`, and the link's items.
    fn from_str(text: &str) -> anyhow::Result<Path> {
        let mut words = text.split(',').map(str::trim).peekable();
        let name = words.next().unwrap_or_default().to_owned();
        check_name(&name)?;
        let mut path = Path { name, ..Path::default() };
        let read = || -> anyhow::Result<()> {
            while let Some(client) = words.next_if(|word| word.contains('/') && !word.contains('='))
            {
                let server = words.next().context("the server's address is missing")?;
                path.client.push(address(client)?);
                path.server.push(address(server)?);
            }
            if let Some(mtu) = words.next_if(|word| word.starts_with("mtu=")) {
                let mtu = mtu.trim_start_matches("mtu=").parse().context(mtu.to_owned())?;
                ensure!(MTU_RANGE.contains(&mtu), "mtu {mtu} is not in {MTU_RANGE:?}");
                path.mtu = Some(mtu);
            }
            path.link = words.collect::<Vec<&str>>().join(",");
            path.spec().map(drop)
        };
        // One line, because the command line shows only the first line of a flag's error.
        read().map_err(|error| anyhow::anyhow!("`{text}`: {error:#}"))?;
        Ok(path)
    }
}

fn address(text: &str) -> anyhow::Result<IpNet> {
    text.parse().with_context(|| format!("`{text}` is not an address such as 10.0.1.2/24"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_name_addresses_and_link() {
        let path = |text: &str| text.parse::<Path>().expect(text);
        let wifi = path("wifi,10.0.1.2/24,10.0.1.1/24, fd00::2/64,fd00::1/64,rate=8M,delay=10ms");
        assert_eq!((wifi.name.as_str(), wifi.link.as_str()), ("wifi", "rate=8M,delay=10ms"));
        assert_eq!((wifi.client.len(), wifi.server[1].to_string().as_str()), (2, "fd00::1/64"));
        let bare = path("lte,mtu=1400,lte,loss=1%");
        assert_eq!(
            (bare.mtu, bare.link.as_str(), bare.client.len()),
            (Some(1_400), "lte,loss=1%", 0)
        );
        // A repeated rate has a slash but is not an address.
        assert_eq!(path("a,rate=0s:1M+1s:2M/3s").client.len(), 0);
        assert_eq!(path("wire").link, "");
        for (text, word) in [
            ("", "a valid interface name"),
            ("a b", "a valid interface name"),
            ("wifi,10.0.1.2/24", "server's address is missing"),
            ("wifi,10.0.1.2/24,delay=1ms", "not an address such as"),
            ("wifi,10.0.1.2/33,10.0.1.1/24", "not an address such as"),
            ("wifi,mtu=9", "not in"),
            ("wifi,speed=3", "speed"),
        ] {
            let error = text.parse::<Path>().expect_err(text).to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
