//! docs/research/policies.md shows this crate's code, not a memory of it.

#[test]
fn the_code_in_the_documentation_is_the_code_here() {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let source = words(include_str!("../src/lib.rs"));
    let page = include_str!("../../../docs/research/policies.md");
    let blocks: Vec<&str> = page
        .split("```rust\n")
        .skip(1)
        .map(|rest| rest.split("```").next().expect("split yields one at least"))
        .collect();
    assert!(blocks.len() >= 4, "the page lost its examples");
    for block in blocks {
        assert!(source.contains(&words(block)), "not in src/lib.rs:\n{block}");
    }
}
