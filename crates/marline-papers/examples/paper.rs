//! A published measurement done again from a program of one's own: `paper KEY [MASTER [ROOTS]]`. With
//! ROOTS so many roots of each part, without as many as verdicts need. Prints the judged rows.

use marline_papers::{Context, Effort, Spent, find, run, trace_directory};

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let key = words.next().unwrap_or_else(|| "multimob2018".to_owned());
    let master = words.next().map_or(Ok(1), |word| word.parse())?;
    let effort = match words.next() {
        None => Effort::Full,
        Some(word) => Effort::Roots(word.parse()?),
    };
    let results = std::env::temp_dir().join(format!("marline-{key}-{master}"));
    std::fs::create_dir_all(&results)?;
    let traces = trace_directory();
    let context = Context {
        key: &key,
        master,
        effort,
        scale: 1.0,
        jobs: 2,
        program: "example",
        results: &results,
        traces: traces.as_deref(),
        spent: &Spent::default(),
        progress: &|_, _, _| {},
    };
    let (result, digest) = run(find(&key)?, &context)?;
    for table in &result.tables {
        println!("{}", table.title);
        for row in &table.rows {
            let value = |value: &Option<marline_papers::Value>| {
                value.as_ref().map_or("-".to_owned(), ToString::to_string)
            };
            println!(
                "  {} | {} | {} | {} | {} | {} roots | {}",
                row.what,
                value(&row.paper),
                value(&row.ours),
                row.requirement,
                row.verdict_words(),
                row.roots.map_or("no".to_owned(), |roots| roots.to_string()),
                row.remark
            );
        }
    }
    println!("{:?}, digest {digest}", result.counts());
    Ok(())
}
