use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn rules(allow: &[&str], deny: &[&str]) -> Rules {
    let parse = |list: &[&str]| list.iter().map(|c| c.parse().unwrap()).collect();
    Rules { allow: parse(allow), deny: parse(deny) }
}

/// Addresses that are not public unicast, or embed such an address.
const NOT_PUBLIC: &str = "0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.127.255.255 127.0.0.1 127.8.8.8 \
    169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.8 192.0.2.1 192.168.1.1 198.18.0.1 \
    198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 \
    :: ::1 ::127.0.0.1 ::5 fe80::1 febf::1 fec0::1 fc00::1 fdff::1 ff02::1 2001:db8::1 100::1 \
    ::ffff:127.0.0.1 ::ffff:10.1.2.3 64:ff9b::127.0.0.1 64:ff9b::a00:1 64:ff9b:1::1 \
    2002:7f00:1::1 2002:c0a8:101::1 2001::1 2001:2::1 3fff::1 5f00::1 \
    168.63.129.16 ::ffff:168.63.129.16 ::ffff:1.1.1.1 ::1.1.1.1 64:ff9b::8.8.8.8 2002:808:808::1 \
    1000::1 1fff:ffff::1 4000::1 6000::1 8000::1 c000::1 e000::1 f000::1";

/// Public addresses, many of them next to a block that is not.
const PUBLIC: &str = "1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 \
    126.255.255.255 128.0.0.1 169.253.0.1 172.15.0.1 172.32.0.1 192.167.0.1 192.169.0.1 \
    198.17.0.1 198.20.0.1 223.255.255.255 2606:4700::1111 2001:4860:4860::8888 2003::1 \
    168.63.129.15 168.63.129.17 3ffe:ffff::1";

#[test]
fn nothing_but_public_unicast_is_allowed_by_default() {
    let rules = Rules::default();
    for refused in NOT_PUBLIC.split_whitespace() {
        assert!(rules.check(ip(refused)).is_err(), "{refused} must be refused");
    }
    for allowed in PUBLIC.split_whitespace() {
        assert_eq!(rules.check(ip(allowed)), Ok(()), "{allowed} must be allowed");
    }
}

#[test]
fn allow_opens_exactly_its_networks() {
    let rules = rules(
        &["127.0.0.0/8", "10.1.2.0/24", "::1", "fd00::/16", "168.63.129.16", "64:ff9b::800:0/104"],
        &[],
    );
    for allowed in [
        "127.0.0.1",
        "10.1.2.255",
        "::1",
        "fd00::5",
        "::ffff:127.0.0.1",
        "168.63.129.16",
        "64:ff9b::8.8.8.8",
    ] {
        assert_eq!(rules.check(ip(allowed)), Ok(()), "{allowed}");
    }
    for refused in ["10.1.3.0", "fd01::1", "169.254.169.254", "64:ff9b::127.0.0.1"] {
        assert!(rules.check(ip(refused)).is_err(), "{refused}");
    }
}

#[test]
fn deny_outranks_allow_also_for_translated_addresses() {
    let rules = rules(&["10.0.0.0/8"], &["10.6.6.6", "8.8.8.0/24"]);
    assert_eq!(rules.check(ip("10.6.6.5")), Ok(()));
    for denied in ["10.6.6.6", "8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::"] {
        let error = rules.check(ip(denied)).unwrap_err();
        assert!(matches!(error, Refused::Denied { .. }), "{denied}: {error}");
    }
}

#[test]
fn a_refusal_names_the_flag() {
    let error = Rules::default().check(ip("192.168.1.1")).unwrap_err();
    assert!(error.to_string().contains("--allow 192.168.1.1"), "{error}");
    let mapped = Rules::default().check(ip("::ffff:127.0.0.1")).unwrap_err();
    assert!(mapped.to_string().contains("--allow 127.0.0.1"), "{mapped}");
}

#[test]
fn an_address_of_the_server_is_refused_and_so_is_one_that_may_be() {
    let public = ip("1.1.1.1");
    let rules = rules(&["9.9.9.9"], &[]);
    let refused = rules.check_by(public, |_| Ok(true)).unwrap_err();
    assert!(refused.to_string().contains("the server itself"), "{refused}");
    assert_eq!(refused.code(), ErrorCode::NotAuthorized);
    let exhausted = io::Error::from_raw_os_error(libc::EMFILE);
    let unknown = rules.check_by(public, |_| Err(exhausted)).unwrap_err();
    assert!(matches!(unknown, Refused::Unknown { .. }), "{unknown}");
    assert_eq!(unknown.code(), ErrorCode::ResourceExceeded);
    assert_eq!(rules.check_by(public, |_| Ok(false)), Ok(()));
    // An address that the owner allows is not checked.
    let unasked = |_| -> io::Result<bool> { panic!("the check is not called") };
    assert_eq!(rules.check_by(ip("9.9.9.9"), unasked), Ok(()));
}

#[test]
fn blocks_as_text() {
    for good in ["10.0.0.0/8", "0.0.0.0/0", "::/0", "fd00::/16", "192.0.2.1/32"] {
        assert_eq!(good.parse::<Cidr>().map(|c| c.to_string()), Ok(good.to_owned()));
    }
    assert_eq!("192.0.2.1".parse::<Cidr>().unwrap().to_string(), "192.0.2.1/32");
    assert!("0.0.0.0/0".parse::<Cidr>().unwrap().contains(ip("255.1.1.1")));
    assert!("::/0".parse::<Cidr>().unwrap().contains(ip("ffff::")));
    assert!(!"0.0.0.0/0".parse::<Cidr>().unwrap().contains(ip("::1")));
    for bad in ["", "ten", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/x", "::/129", "10.0.0.0/8/8"] {
        assert!(bad.parse::<Cidr>().is_err(), "{bad}");
    }
    let error = "10.1.2.3/8".parse::<Cidr>().unwrap_err();
    assert!(error.to_string().contains("10.0.0.0/8"), "{error}");
}
