//! HTML report of all results: every paper's tables and figures, its assumptions, the commands that reproduce it,
//! and the machine it ran on. The report is a single page without scripts or external resources, so that it can be
//! mailed.

use std::fmt::Write as _;

use marline_lab::figure::escape;
use marline_lab::figure::{Figure, number};

use crate::file::PaperFile;
use crate::judge::{Row, Verdict};
use crate::output::RunInfo;
use crate::table::{Grid, Reproduction, Table};
use crate::value::Value;

/// Maximum number of rows of an expanded grid. Longer grids are collapsed.
const OPEN_ROWS: usize = 30;

const STYLE: &str = "\
:root{color-scheme:light dark;--bg:#fff;--fg:#222;--mute:#666;--line:#ddd;--good:#0a6b3d;--goodbg:#e3f4ea;\
--bad:#a31515;--badbg:#fbe6e4;--soft:#f5f6f8;--link:#0060a8}\
@media(prefers-color-scheme:dark){:root{--bg:#16181c;--fg:#e6e6e6;--mute:#a0a0a0;--line:#363a40;\
--good:#7ddba6;--goodbg:#12301f;--bad:#ff9d8f;--badbg:#3d1512;--soft:#1f2227;--link:#7cc0f5}}\
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);\
font:15px/1.5 system-ui,sans-serif}main{max-width:1100px;margin:0 auto;padding:1rem}\
a{color:var(--link)}h1{font-size:1.6rem}h2{margin-top:3rem;border-top:2px solid var(--line);padding-top:1rem}\
.scroll{overflow-x:auto;margin:.7rem 0}table{border-collapse:collapse;font-size:.87rem}\
caption{text-align:left;font-weight:600;padding:.3rem 0}\
th,td{border:1px solid var(--line);padding:.2rem .5rem;text-align:left;vertical-align:top}\
th{background:var(--soft)}td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\
.good{color:var(--good);background:var(--goodbg);font-weight:600;white-space:nowrap}\
.bad{color:var(--bad);background:var(--badbg);font-weight:600;white-space:nowrap}\
.open{background:var(--soft);font-weight:600}.mute{color:var(--mute)}\
figure{margin:1rem 0}figure .scroll svg{max-width:none}\
figcaption{color:var(--mute);font-size:.87rem}code{background:var(--soft);padding:.1rem .3rem}\
details{margin:.7rem 0}summary{cursor:pointer}footer{margin:3rem 0 1rem;color:var(--mute)}";

/// Everything about one key.
#[derive(Debug)]
pub struct Section {
    /// Key of the paper.
    pub key: String,
    /// File of the paper.
    pub file: PaperFile<toml::Table>,
    /// Results. `None`: the paper was not run.
    pub results: Option<(Reproduction, RunInfo)>,
}

/// A drawing that accompanies the results.
#[derive(Debug)]
pub struct Drawing {
    /// Title, as plain text.
    pub title: String,
    /// Numbers that describe the drawing.
    pub says: String,
    /// The drawing as SVG without external references.
    pub svg: String,
}

/// The page, with drawings after the results. `program` is the current build. Results of other builds are marked.
#[must_use]
pub fn html(sections: &[Section], traces: &[Drawing], program: &str) -> String {
    let mut page = Page::default();
    page.add(format_args!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>Marline compared with the papers</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>Marline compared with the papers</h1>\n"
    ));
    page.summary(sections);
    for section in sections {
        page.section(section, program);
    }
    page.traces(traces);
    page.add(format_args!(
        "<footer>Made by <code>marline-lab report</code>, version {}, build {}.</footer>\n\
         </main>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION"),
        escape(program)
    ));
    page.text
}

/// HTML page under construction.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn add(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.text.write_fmt(text);
    }

    fn summary(&mut self, sections: &[Section]) {
        self.add(format_args!(
            "<div class=\"scroll\"><table id=\"summary\">\n<tr><th>key</th><th>what</th>\
             <th>verdict</th><th>rows accepted</th><th>not accepted</th><th>inconclusive</th>\
             <th>fitted</th><th>shown</th><th>time</th></tr>\n"
        ));
        for Section { key, file, results } in sections {
            let (key, title) = (escape(key), escape(&file.title));
            self.add(format_args!("<tr><td><a href=\"#{key}\">{key}</a></td><td>{title}</td>"));
            match results {
                None => {
                    self.add(format_args!("<td class=\"bad\">not run</td><td colspan=\"6\"></td>"))
                }
                Some((result, run)) => {
                    let (verdict, counts) = (result.verdict(), result.counts());
                    self.add(format_args!("{}", verdict_cell(verdict, verdict.name())));
                    for count in [
                        counts.accepted,
                        counts.not_accepted,
                        counts.inconclusive,
                        counts.fitted,
                        counts.shown,
                    ] {
                        self.add(format_args!("<td class=\"n\">{count}</td>"));
                    }
                    self.add(format_args!("<td class=\"n\">{:.0} s</td>", run.seconds));
                }
            }
            self.add(format_args!("</tr>\n"));
        }
        self.add(format_args!("</table></div>\n"));
    }

    fn traces(&mut self, traces: &[Drawing]) {
        if traces.is_empty() {
            return;
        }
        self.add(format_args!("<section><h2 id=\"traces\">Positions in the stream</h2>\n"));
        for Drawing { title, says, svg } in traces {
            let (title, says) = (escape(title), escape(says));
            self.add(format_args!(
                "<figure><div class=\"scroll\">{svg}</div>\
                 <figcaption>{title}: {says}</figcaption></figure>\n"
            ));
        }
        self.add(format_args!("</section>\n"));
    }

    fn section(&mut self, section: &Section, program: &str) {
        let Section { key, file, results } = section;
        let (id, title) = (escape(key), escape(&file.title));
        self.add(format_args!("<section>\n<h2 id=\"{id}\">{id}: {title}</h2>\n"));
        let citation = escape(&file.citation);
        // Only a web address becomes a link, because the file is text, not markup.
        match file.url.starts_with("https://") {
            true => {
                let url = escape(&file.url);
                self.add(format_args!(
                    "<p><a href=\"{url}\" rel=\"noreferrer\">{citation}</a></p>\n"
                ));
            }
            false => self.add(format_args!("<p>{citation}</p>\n")),
        }
        let (accepted, command) =
            (html_text(file.accepted.trim_end_matches('.')), escape(&file.command));
        self.add(format_args!(
            "<p>Accepted when: {accepted}.</p>\n<p><code>{command}</code></p>\n"
        ));
        match results {
            None => self.add(format_args!("<p class=\"bad\">Not run: there are no results.</p>\n")),
            Some((result, run)) => self.results(result, run, program),
        }
        self.list("Buffers", &file.buffers);
        self.list("Assumptions", &file.assumptions);
        self.add(format_args!("</section>\n"));
    }

    fn results(&mut self, result: &Reproduction, run: &RunInfo, program: &str) {
        result.tables.iter().for_each(|table| self.table(table));
        result.figures.iter().for_each(|figure| self.figure(figure));
        result.grids.iter().for_each(|grid| self.grid(grid));
        for note in &result.notes {
            self.add(format_args!("<p>{}</p>\n", html_text(note)));
        }
        let machine = &run.machine;
        self.add(format_args!(
            "<p class=\"mute\">{:.1} s on {} threads of {} processors ({}), Linux {}; Marline {}, build {}; master \
             root {}, {}.",
            run.seconds,
            run.jobs,
            machine.processors,
            escape(&machine.processor),
            escape(&machine.kernel),
            escape(&run.version),
            escape(&run.program),
            run.master,
            escape(&run.effort)
        ));
        if (run.scale - 1.0).abs() > f64::EPSILON {
            let share = number(100.0 * run.scale);
            self.add(format_args!(" <strong class=\"bad\">Only {share} % of the runs.</strong>"));
        }
        if run.program != program {
            self.add(format_args!(" Results from a different build than this page."));
        }
        self.add(format_args!("</p>\n"));
    }

    fn table(&mut self, table: &Table) {
        let bound = table.rows.iter().any(|row| row.bound_ratio.is_some());
        let remarks = table.rows.iter().any(|row| !row.remark.is_empty());
        self.add(format_args!(
            "<div class=\"scroll\"><table>\n<caption>{}</caption>\n\
             <tr><th></th><th>paper</th><th>ours</th>{}<th>goal</th><th>verdict</th>{}</tr>\n",
            escape(&table.title),
            if bound { "<th>ratio to bound</th>" } else { "" },
            if remarks { "<th></th>" } else { "" }
        ));
        for row in &table.rows {
            let Row { what, paper, ours, bound_ratio, requirement, remark, .. } = row;
            let (paper, ours) = (cell(paper.as_ref()), cell(ours.as_ref()));
            self.add(format_args!("<tr><td>{}</td>{paper}{ours}", escape(what)));
            if bound {
                let ratio = bound_ratio.map_or_else(String::new, number);
                self.add(format_args!("<td class=\"n\">{ratio}</td>"));
            }
            let verdict = verdict_cell(row.verdict, &row.verdict_words());
            let requirement = escape(requirement);
            self.add(format_args!("<td>{requirement}</td>{verdict}"));
            if remarks {
                self.add(format_args!("<td>{}</td>", escape(remark)));
            }
            self.add(format_args!("</tr>\n"));
        }
        self.add(format_args!("</table></div>\n"));
    }

    fn grid(&mut self, grid: &Grid) {
        let open = if grid.rows.len() <= OPEN_ROWS { " open" } else { "" };
        let (title, count) = (escape(&grid.title), grid.rows.len());
        self.add(format_args!(
            "<details{open}><summary>{title} ({count} rows)</summary>\n<div class=\"scroll\"><table>\n<tr>"
        ));
        for column in &grid.columns {
            let unit = match column.unit.as_str() {
                "" => String::new(),
                unit => format!(" ({})", escape(unit)),
            };
            self.add(format_args!("<th>{}{unit}</th>", escape(&column.name)));
        }
        self.add(format_args!("</tr>\n"));
        for row in &grid.rows {
            let cells: String = row.iter().map(|value| cell(Some(value))).collect();
            self.add(format_args!("<tr>{cells}</tr>\n"));
        }
        self.add(format_args!("</table></div></details>\n"));
    }

    fn figure(&mut self, figure: &Figure) {
        self.add(format_args!(
            "<figure>\n<div class=\"scroll\">{}</div>\n<figcaption>{}</figcaption>\n</figure>\n",
            figure.svg.trim_end(),
            escape(&figure.caption)
        ));
    }

    fn list(&mut self, title: &str, items: &[String]) {
        if items.is_empty() {
            return;
        }
        self.add(format_args!("<h3>{title}</h3>\n<ul>\n"));
        for item in items {
            self.add(format_args!("<li>{}</li>\n", html_text(item)));
        }
        self.add(format_args!("</ul>\n"));
    }
}

fn cell(value: Option<&Value>) -> String {
    match value {
        None => "<td></td>".to_owned(),
        Some(value @ Value::Number { .. }) => {
            format!("<td class=\"n\">{}</td>", escape(&value.to_string()))
        }
        Some(value @ Value::Text(_)) => format!("<td>{}</td>", escape(&value.to_string())),
    }
}

/// HTML of a text in which backticks mark code.
fn html_text(text: &str) -> String {
    let mut html = String::new();
    let mut pieces = text.split('`').peekable();
    let mut is_code = false;
    while let Some(piece) = pieces.next() {
        // A backtick without a partner stays a backtick.
        match (is_code, pieces.peek().is_some()) {
            (true, true) => html.push_str(&format!("<code>{}</code>", escape(piece))),
            (true, false) => html.push_str(&format!("`{}", escape(piece))),
            (false, _) => html.push_str(&escape(piece)),
        }
        is_code = !is_code;
    }
    html
}

/// Cell with a word and a mark in addition to the color, for accessibility.
fn verdict_cell(verdict: Verdict, words: &str) -> String {
    let (class, mark) = match verdict {
        Verdict::Accepted => ("good", "✓ "),
        Verdict::NotAccepted => ("bad", "✗ "),
        Verdict::Inconclusive => ("open", "? "),
        Verdict::NotJudged | Verdict::Fitted | Verdict::Shown => ("mute", ""),
    };
    format!("<td class=\"{class}\">{mark}{}</td>", escape(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Machine;

    fn section(key: &str, results: Option<(Reproduction, RunInfo)>) -> Section {
        let text = "title = \"<b>T</b>\"\ncitation = \"C\"\nurl = \"javascript:alert(1)\"\n\
                    command = \"marline-lab paper x\"\naccepted = \"always\"\nassumptions = [\"A & B\"]\n\
                    published = {}\n";
        let file = PaperFile::parse(text).expect("file");
        Section { key: key.to_owned(), file, results }
    }

    fn info() -> RunInfo {
        let machine = Machine { kernel: "6".into(), processor: "<cpu>".into(), processors: 2 };
        let (version, program) = ("0".to_owned(), "p".to_owned());
        RunInfo {
            version,
            program,
            machine,
            master: 1,
            effort: "full".into(),
            scale: 0.5,
            jobs: 2,
            seconds: 3.0,
            cpu_s: 6.0,
            digest: String::new(),
        }
    }

    #[test]
    fn text_between_backticks_is_code() {
        assert_eq!(html_text("a `b<c` d"), "a <code>b&lt;c</code> d");
        assert_eq!(html_text("`a` and `b"), "<code>a</code> and `b");
        assert_eq!(html_text("none"), "none");
    }

    #[test]
    fn the_page_has_every_row_and_no_active_content() {
        let rows = vec![
            Row::new("one")
                .paper(2.0, "ms")
                .measured(2.1, "ms")
                .within_of_paper(0.1)
                .bound_ratio(1.25),
            Row::new("<script>").measured(9.0, "ms").at_most(3.0).with_remark("why not"),
        ];
        let mut grid = Grid::new("g", "Grid", &[("who", ""), ("p99", "ms")]);
        (0..40).for_each(|n| grid.push(&["x"], &[f64::from(n)]));
        let result = Reproduction {
            tables: vec![Table::new("t", "Table", rows)],
            grids: vec![grid],
            notes: vec!["a note".into()],
            ..Reproduction::default()
        };
        let (title, says) = ("<script>t".to_owned(), "12 B copied & more".to_owned());
        let traces = [Drawing { title, says, svg: "<svg id=\"s\"></svg>".to_owned() }];
        let sections = [section("x", Some((result, info()))), section("y", None)];
        assert!(!html(&sections, &[], "q").contains("Positions in the stream"));
        let page = html(&sections, &traces, "q");
        assert!(
            page.contains("<svg id=\"s\"></svg>")
                && page.contains("&lt;script&gt;t: 12 B copied &amp; more")
        );
        assert!(page.contains("<td class=\"good\">✓ accepted</td>"));
        assert!(page.contains("<td class=\"bad\">✗ not accepted</td><td>why not</td>"));
        assert!(page.contains("<th>ratio to bound</th>") && page.contains(">1.25</td>"));
        assert!(page.contains("&lt;script&gt;") && page.contains("&lt;b&gt;T&lt;/b&gt;"));
        assert!(!page.contains("<script") && !page.contains("href=\"javascript"));
        assert!(page.contains("<td class=\"bad\">not run</td>"));
        assert!(page.contains("A &amp; B") && page.contains("Only 50 % of the runs."));
        assert!(
            page.contains("a different build") && page.contains("<details><summary>Grid (40 rows)")
        );
        assert!(!page.contains("src=") && !page.contains("@import") && !page.contains("<link"));
    }
}
