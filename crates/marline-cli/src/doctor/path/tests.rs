use super::seen::{read_line, write_line};
use super::*;

#[test]
fn lines_survive_and_nonsense_is_refused() {
    let (local, remote) = ("10.0.0.1:443".parse().unwrap(), "[fd00::2]:999".parse().unwrap());
    let mut segment = vec![7; 50];
    segment[12] = 0x80;
    let entry = Tapped::of(12, true, (local, remote), &segment).expect("a segment");
    let mut text = String::new();
    write_line(&entry, &mut text);
    assert_eq!(read_line(text.trim_end()), Some(entry));
    for bad in [
        "",
        "end",
        "1 S x y 1 2 00",
        "1 S 1.2.3.4:5 1.2.3.4:5 1 2 zz",
        text.trim_end_matches("07\n"),
    ] {
        let read = read_line(bad);
        assert!(read.is_none() || bad.len() > 60, "{bad}: {read:?}");
    }
}
