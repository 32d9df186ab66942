//! Mechanisms of the seed systems, which can be switched off one at a time. The rows that claim a mechanism must then
//! fail; otherwise they prove nothing about it.
//!
//! A switch holds for the whole process and changes only the systems of the studies, never Marline's own policies.
//! Roots measured with a mechanism switched off are stored apart from the others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::file::Statement;
use crate::judge::{Row, Verdict};
use crate::table::Reproduction;

/// A mechanism of a seed system.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// TLP-MP's copy of the probed packet on another path.
    TlpCopy,
    /// TLP-MP's move of all data to the other path once the copy is acknowledged there.
    TlpMove,
    /// ReMP's copies on every path.
    Redundancy,
    /// PAPD's choice between redundant and parallel use of the paths: always parallel.
    ModeChoice,
    /// BBR, on whose rate estimates PAPD depends: CUBIC takes its place.
    BbrFeed,
    /// MultiMob's oracle, which replaces a path before its timers fire.
    Oracle,
    /// MultiMob's use of cellular paths only after WiFi has failed: both paths are used from the start.
    BreakBeforeMake,
    /// MultiMob's Fast JOIN.
    FastJoin,
    /// The server's use of the path on which the client was heard last.
    FollowClient,
    /// Opportunistic retransmission.
    OpportunisticRetransmission,
    /// Penalization of slow subflows.
    Penalization,
}

/// Index in [`Mechanism::ALL`] plus one of the mechanism that is switched off; 0: none.
static SWITCHED_OFF: AtomicUsize = AtomicUsize::new(0);

impl Mechanism {
    /// All mechanisms, by paper.
    pub const ALL: [Mechanism; 11] = [
        Mechanism::TlpCopy,
        Mechanism::TlpMove,
        Mechanism::Redundancy,
        Mechanism::ModeChoice,
        Mechanism::BbrFeed,
        Mechanism::Oracle,
        Mechanism::BreakBeforeMake,
        Mechanism::FastJoin,
        Mechanism::FollowClient,
        Mechanism::OpportunisticRetransmission,
        Mechanism::Penalization,
    ];

    /// Name in commands and in `papers/KEY.toml`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Mechanism::TlpCopy => "tlp-copy",
            Mechanism::TlpMove => "tlp-move",
            Mechanism::Redundancy => "redundancy",
            Mechanism::ModeChoice => "mode-choice",
            Mechanism::BbrFeed => "bbr-feed",
            Mechanism::Oracle => "oracle",
            Mechanism::BreakBeforeMake => "break-before-make",
            Mechanism::FastJoin => "fast-join",
            Mechanism::FollowClient => "follow-client",
            Mechanism::OpportunisticRetransmission => "opportunistic-retransmission",
            Mechanism::Penalization => "penalization",
        }
    }

    /// Key of the paper whose system has the mechanism.
    #[must_use]
    pub const fn paper(self) -> &'static str {
        match self {
            Mechanism::TlpCopy | Mechanism::TlpMove => "tlp2019",
            Mechanism::Redundancy => "remp2015",
            Mechanism::ModeChoice | Mechanism::BbrFeed => "papd2017",
            Mechanism::Oracle
            | Mechanism::BreakBeforeMake
            | Mechanism::FastJoin
            | Mechanism::FollowClient => "multimob2018",
            Mechanism::OpportunisticRetransmission | Mechanism::Penalization => "raiciu2012",
        }
    }

    /// Finds a mechanism by its name.
    ///
    /// # Errors
    /// Unknown name. The error lists the valid ones.
    pub fn find(name: &str) -> anyhow::Result<Mechanism> {
        let found = Mechanism::ALL.into_iter().find(|mechanism| mechanism.name() == name);
        found.ok_or_else(|| {
            let known = Mechanism::ALL.map(Mechanism::name).join(", ");
            anyhow::anyhow!("unknown mechanism `{name}`; known: {known}")
        })
    }

    /// True if the mechanism is switched off.
    #[must_use]
    pub fn is_off(self) -> bool {
        Mechanism::switched_off() == Some(self)
    }

    /// The mechanism that is switched off.
    #[must_use]
    pub fn switched_off() -> Option<Mechanism> {
        let number = SWITCHED_OFF.load(Ordering::SeqCst);
        number.checked_sub(1).map(|index| Mechanism::ALL[index])
    }

    /// Switches a mechanism off, and all others on. `None`: all are on, as at the start of the process.
    pub fn switch_off(mechanism: Option<Mechanism>) {
        let number = mechanism
            .and_then(|mechanism| Mechanism::ALL.iter().position(|one| *one == mechanism))
            .map_or(0, |index| index + 1);
        SWITCHED_OFF.store(number, Ordering::SeqCst);
    }
}

/// Effect of a mutation: a paper's rows with one mechanism switched off, compared with the unchanged system. Only
/// statements accepted for the unchanged system are compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MutationEffect {
    /// Statements that claim the mechanism and fail without it.
    pub failed: Vec<String>,
    /// Statements that claim the mechanism but are also accepted without it.
    pub survived: Vec<String>,
    /// Other statements that fail, each with the reason from the paper's file. `None`: the file gives none.
    pub others: Vec<(String, Option<String>)>,
}

impl MutationEffect {
    /// True if at least one statement claims the mechanism, all of them fail without it, and each other failing
    /// statement has a reason.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        !self.failed.is_empty()
            && self.survived.is_empty()
            && self.others.iter().all(|(_, reason)| reason.is_some())
    }

    /// Compares the results of a paper with and without a mechanism.
    #[must_use]
    pub fn compare(
        mechanism: Mechanism,
        statements: &[Statement],
        with: &Reproduction,
        without: &Reproduction,
    ) -> MutationEffect {
        let (with, without) = (rows(with), rows(without));
        let verdict = |rows: &BTreeMap<&str, &Row>, id: &str| rows.get(id).map(|row| row.verdict);
        let mut effect = MutationEffect::default();
        for statement in statements {
            let id = statement.id.as_str();
            if verdict(&with, id) != Some(Verdict::Accepted) {
                continue;
            }
            let is_accepted = verdict(&without, id) == Some(Verdict::Accepted);
            let is_claimed = statement.claims.iter().any(|name| name == mechanism.name());
            match (is_claimed, is_accepted) {
                (true, false) => effect.failed.push(id.to_owned()),
                (true, true) => effect.survived.push(id.to_owned()),
                (false, false) => {
                    let reason = statement.affected_by.get(mechanism.name()).cloned();
                    effect.others.push((id.to_owned(), reason));
                }
                (false, true) => {}
            }
        }
        effect
    }
}

fn rows(result: &Reproduction) -> BTreeMap<&str, &Row> {
    let rows = result.tables.iter().flat_map(|table| &table.rows);
    rows.map(|row| (row.statement.as_str(), row)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;

    fn statement(id: &str, claims: &[&str], affected_by: &[(&str, &str)]) -> Statement {
        let text = |text: &&str| (*text).to_owned();
        Statement {
            claims: claims.iter().map(text).collect(),
            affected_by: affected_by.iter().map(|(name, why)| (text(name), text(why))).collect(),
            ..Statement::new(id, "figure 1", "A sentence.")
        }
    }

    fn result(values: [f64; 4]) -> Reproduction {
        let row = |(id, value)| Row::new(id).statement(id).measured(value, "").at_most(1.0);
        let rows = ["a", "b", "c", "d"].into_iter().zip(values).map(row).collect();
        Reproduction { tables: vec![Table::new("t", "T", rows)], ..Reproduction::default() }
    }

    #[test]
    fn rows_that_pass_without_the_mechanism_they_claim_are_found() {
        let statements = [
            statement("a", &["fast-join"], &[]),
            statement("b", &["oracle"], &[("fast-join", "it needs the join")]),
            statement("c", &[], &[]),
            statement("d", &["fast-join"], &[]),
        ];
        let compare = |with, without| {
            let (with, without) = (result(with), result(without));
            MutationEffect::compare(Mechanism::FastJoin, &statements, &with, &without)
        };
        let effect = compare([0.5; 4], [2.0, 2.0, 0.5, 2.0]);
        assert_eq!(effect.failed, ["a", "d"]);
        assert_eq!(effect.others, [("b".to_owned(), Some("it needs the join".to_owned()))]);
        assert!(effect.is_clean(), "{effect:?}");
        assert_eq!(compare([0.5; 4], [0.5, 0.5, 0.5, 2.0]).survived, ["a"]);
        assert!(!compare([0.5; 4], [0.5, 0.5, 0.5, 2.0]).is_clean());
        assert!(!compare([0.5; 4], [2.0, 0.5, 2.0, 2.0]).is_clean(), "c has no reason to fail");
        // What fails anyway shows nothing.
        assert_eq!(compare([2.0; 4], [2.0; 4]), MutationEffect::default());
    }

    #[test]
    fn every_mechanism_has_a_name_and_a_paper() {
        for mechanism in Mechanism::ALL {
            assert_eq!(Mechanism::find(mechanism.name()).unwrap(), mechanism);
            assert!(crate::find(mechanism.paper()).is_ok());
        }
        assert!(Mechanism::find("magic").is_err());
    }
}
