use proptest::prelude::*;

use super::*;

fn sample() -> Invite {
    Invite {
        servers: vec!["example.org:7777".parse().unwrap(), "[2001:db8::1]:7777".parse().unwrap()],
        pin: [7; 32],
        token: Secret::from_bytes([9; 32]),
    }
}

#[test]
fn base32_vectors_of_rfc_4648() {
    for (plain, coded) in
        [("", ""), ("f", "my"), ("fo", "mzxq"), ("foob", "mzxw6yq"), ("foobar", "mzxw6ytboi")]
    {
        let mut out = String::new();
        base32(plain.as_bytes(), &mut out);
        assert_eq!(out, coded);
        assert_eq!(unbase32(coded).unwrap(), plain.as_bytes());
    }
}

#[test]
fn an_invite_word_parses_in_any_case() {
    let word = sample().to_word();
    assert!(word.bytes().all(|b| b.is_ascii_alphanumeric()), "{word}");
    assert_eq!(word.parse(), Ok(sample()));
    assert_eq!(format!("  {}\n", word.to_uppercase()).parse(), Ok(sample()));
}

#[test]
fn every_truncation_says_so() {
    let word = sample().to_word();
    for cut in "marline1".len()..word.len() {
        let error = word[..cut].parse::<Invite>().unwrap_err();
        // The last cut may lose only padding bits of the checksum's last character.
        assert!(
            matches!(error, BadInvite::Truncated { have, .. } if have == cut),
            "{cut}: {error}"
        );
    }
    let full = word[..word.len() - 9].parse::<Invite>().unwrap_err();
    assert_eq!(full, BadInvite::Truncated { have: word.len() - 9, want: word.len() });
}

#[test]
fn every_single_wrong_character_is_found() {
    let word = sample().to_word();
    for position in "marline1".len()..word.len() - 1 {
        let mut bytes = word.clone().into_bytes();
        bytes[position] = if bytes[position] == b'a' { b'b' } else { b'a' };
        let changed = String::from_utf8(bytes).unwrap();
        assert!(changed.parse::<Invite>().is_err(), "position {position}");
    }
}

#[test]
fn invalid_invite_words_have_precise_errors() {
    assert_eq!("hello".parse::<Invite>(), Err(BadInvite::NotAnInvite));
    assert_eq!("".parse::<Invite>(), Err(BadInvite::NotAnInvite));
    assert_eq!("marline".parse::<Invite>(), Err(BadInvite::NotAnInvite));
    assert_eq!("marline2abc".parse::<Invite>(), Err(BadInvite::Version('2')));
    let character = BadInvite::Character { character: '-', position: 10 };
    assert_eq!("marline1a-b".parse::<Invite>(), Err(character));
    let longer = sample().to_word() + "aaaa";
    assert_eq!(longer.parse::<Invite>(), Err(BadInvite::Checksum));
}

#[test]
fn debug_hides_the_secret() {
    assert_eq!(format!("{:?}", sample()), "Invite(example.org:7777 [2001:db8::1]:7777, ..)");
}

/// Returns a word with a correct checksum around contents that an attacker chose.
fn word_around(contents: &[u8]) -> String {
    let mut body = ((contents.len() + CHECK_LEN) as u16).to_be_bytes().to_vec();
    body.extend_from_slice(contents);
    let check = Digest::sha256(&body);
    body.extend_from_slice(&check.as_bytes()[..CHECK_LEN]);
    let mut word = "marline1".to_owned();
    base32(&body, &mut word);
    word
}

#[test]
fn hostile_contents_are_errors() {
    for contents in [&[][..], &[0], &[9], &[1], &[1, 200, b'a'], &[1, 2, 0xff, 0xfe], &[1, 1, b'a']]
    {
        let error = word_around(contents).parse::<Invite>().unwrap_err();
        assert!(matches!(error, BadInvite::Contents(_)), "{contents:?}: {error}");
    }
    let mut long = vec![1, 3];
    long.extend_from_slice(b"a:1");
    long.extend_from_slice(&[0; 65]);
    let error = word_around(&long).parse::<Invite>().unwrap_err();
    assert_eq!(error, BadInvite::Contents("unexpected trailing bytes: 1".into()));
}

proptest! {
    #[test]
    fn round_trip(
        pin: [u8; 32],
        token: [u8; 32],
        hosts in prop::collection::vec("[a-z0-9.-]{1,60}", 1..=8),
        port in 1u16..,
    ) {
        let servers = hosts.iter().map(|h| format!("{h}:{port}").parse().unwrap()).collect();
        let invite = Invite { servers, pin, token: Secret::from_bytes(token) };
        prop_assert_eq!(invite.to_word().parse::<Invite>(), Ok(invite));
    }

    #[test]
    fn no_text_panics(text in ".*") {
        let _ = text.parse::<Invite>();
        let _ = format!("marline1{text}").parse::<Invite>();
    }

    #[test]
    fn no_contents_panic(contents in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = word_around(&contents).parse::<Invite>();
    }
}
