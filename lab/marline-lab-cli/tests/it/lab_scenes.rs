//! Test of the scenes: each question is answered as docs/research/scenes.md says.

use std::path::Path;

use marline_lab::parallel::available;
use marline_lab::scenes::{Answer, answers, read_directory};

use super::support;

/// Rows of the page's table: question, check, and whether the answer was right.
fn page(root: &Path) -> Vec<(String, String, bool)> {
    let page = std::fs::read_to_string(root.join("docs/research/scenes.md")).expect("the page");
    let (_, rest) = page.split_once("|---|---|---|---|\n").expect("a table");
    let mut question = String::new();
    let rows = rest.lines().take_while(|line| line.starts_with('|')).map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if !cells[1].is_empty() {
            cells[1].clone_into(&mut question);
        }
        (question.clone(), cells[2].to_owned(), cells[4] == "yes")
    });
    rows.collect()
}

#[test]
fn every_scene_is_answered_as_well_as_the_page_says() {
    let _others = support::among_others();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let scenes = read_directory(&root.join("scenarios")).expect("scenes");
    let answers = answers(&scenes, available()).expect("the scenes run");
    let page = page(&root);
    let asked = |answer: &Answer| (answer.question.clone(), answer.asked.clone());
    let (now, then): (Vec<_>, Vec<_>) = (
        answers.iter().map(asked).collect(),
        page.iter().map(|(question, asked, _)| (question.clone(), asked.clone())).collect(),
    );
    let how = "marline-lab scenes --write docs/research/scenes.md";
    assert_eq!(now, then, "the page has different questions: {how}");
    let worse = |(answer, (.., held)): (Answer, (String, String, bool))| {
        (held && !answer.holds).then_some(answer)
    };
    let worse: Vec<Answer> = answers.into_iter().zip(page).filter_map(worse).collect();
    assert!(worse.is_empty(), "worse answers than on the page: {worse:#?}");
}
