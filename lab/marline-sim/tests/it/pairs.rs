//! Tests of pairs of changing links, compared with the better one alone. The whole table is a row of the `numbers`
//! example; here every pair runs at one offset and must not collapse. The target of 0.95 everywhere applies to
//! schedulers that take head-of-line blocking into account.

use crate::cases::{pairs, parallel};
use marline_time::Duration;

#[test]
fn two_changing_links_are_not_much_worse_than_the_better_one() {
    let Some(dir) = marline_testkit::need::trace_dir() else { return };
    let length = Duration::from_secs(15);
    let outcomes = parallel(&pairs::all(), |pair| pairs::run(pair, 25, "min-rtt", length, &dir));
    let mut collapsed = Vec::new();
    for outcome in &outcomes {
        let line = format!("{}: {:.2} {outcome:?}", outcome.name, outcome.ratio());
        println!("{line}");
        if outcome.ratio() < 0.6 {
            collapsed.push(line);
        }
    }
    assert!(collapsed.is_empty(), "{collapsed:#?}");
}
