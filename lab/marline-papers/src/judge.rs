//! Rows of a reproduction: the published value, the measured one with its interval, the acceptance
//! criterion, and the verdict.
//!
//! A criterion is met if the whole interval lies inside the required range, and missed if it lies outside. Otherwise
//! it is undecided, and the row estimates how many roots would decide it.

use marline_lab::figure::number;
use serde::{Deserialize, Serialize};

use crate::estimate::{Estimate, MIN_ROOTS, RangePosition, RequiredRange};
use crate::value::Value;

/// Verdict on a row.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every requirement is met.
    Accepted,
    /// A requirement is not met.
    NotAccepted,
    /// No requirement is missed, but at least one is undecided.
    Inconclusive,
    /// There is a requirement, but too few roots for a verdict.
    NotJudged,
    /// The required value was used to choose a parameter of this scene. The row is shown, not judged.
    Fitted,
    /// No requirement.
    Shown,
}

impl Verdict {
    /// The verdict as text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Accepted => "accepted",
            Verdict::NotAccepted => "not accepted",
            Verdict::Inconclusive => "inconclusive",
            Verdict::NotJudged => "not judged",
            Verdict::Fitted => "fitted",
            Verdict::Shown => "",
        }
    }

    /// True for verdicts of judged rows.
    #[must_use]
    pub const fn is_judged(self) -> bool {
        matches!(self, Verdict::Accepted | Verdict::NotAccepted | Verdict::Inconclusive)
    }
}

/// A row of a [`Table`](super::Table). Requirements are chained and must all be met. A value that is missing or
/// not a number meets none.
///
/// ```
/// use marline_papers::{Row, Samples, Verdict};
/// let peaks = Samples::new((0..20).map(|n| 168.0 + f64::from(n % 5)).collect(), 1);
/// let peak = peaks.mean(|peak| *peak);
/// let row = Row::new("peak, WiFi").paper(180.0, "ms").estimate(&peak, "ms");
/// let row = row.within_of_paper(0.25).at_most(200.0);
/// assert_eq!(row.verdict, Verdict::Accepted);
/// assert_eq!(row.requirement, "within 25 % of the paper, at most 200 ms");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Metric.
    pub what: String,
    /// Identifier of the statement of the paper that the row judges. Empty: none.
    #[serde(default)]
    pub statement: String,
    /// Value of the paper. `None`: the paper has none.
    pub paper: Option<Value>,
    /// Our value.
    pub ours: Option<Value>,
    /// Our value relative to that of a clairvoyant sender on the same links, at least 1.
    pub bound_ratio: Option<f64>,
    /// Requirement, as text.
    pub requirement: String,
    /// Verdict on the requirement.
    pub verdict: Verdict,
    /// Number of roots that the verdict is based on. 0: nothing is random. `None`: measured once, in real time.
    pub roots: Option<usize>,
    /// Approximate number of roots that would decide the row.
    pub needed: Option<u64>,
    /// Parameter that was fitted to this scene, and the value it was fitted to. Empty: none.
    pub fitted: String,
    /// Remark, such as the reason why the requirement cannot be met.
    pub remark: String,
}

impl Row {
    /// A row without a requirement.
    #[must_use]
    pub fn new(what: impl Into<String>) -> Row {
        Row {
            what: what.into(),
            statement: String::new(),
            paper: None,
            ours: None,
            bound_ratio: None,
            requirement: String::new(),
            verdict: Verdict::Shown,
            roots: None,
            needed: None,
            fitted: String::new(),
            remark: String::new(),
        }
    }

    /// Names the statement of the paper that the row judges: an identifier in `papers/KEY.toml`.
    #[must_use]
    pub fn statement(mut self, id: impl Into<String>) -> Row {
        self.statement = id.into();
        self
    }

    /// Sets the paper's number and its unit.
    #[must_use]
    pub fn paper(mut self, value: f64, unit: &str) -> Row {
        self.paper = Some(Value::new(value, unit));
        self
    }

    /// Sets the paper's claim, as text.
    #[must_use]
    pub fn paper_claim(mut self, text: impl Into<String>) -> Row {
        self.paper = Some(Value::Text(text.into()));
        self
    }

    /// Sets our number and its unit, measured once in real time, or only shown.
    #[must_use]
    pub fn measured(mut self, value: f64, unit: &str) -> Row {
        self.ours = Some(Value::new(value, unit));
        self
    }

    /// Sets our number over all roots.
    #[must_use]
    pub fn estimate(mut self, estimate: &Estimate, unit: &str) -> Row {
        let Estimate { value, low, high, roots } = *estimate;
        self.ours = Some(match roots {
            0 => Value::new(value, unit),
            _ => Value::with_interval(value, low, high, unit),
        });
        self.roots = Some(roots);
        self
    }

    /// Sets our finding, as text.
    #[must_use]
    pub fn our_finding(mut self, text: impl Into<String>) -> Row {
        self.ours = Some(Value::Text(text.into()));
        self
    }

    /// Sets the ratio of our value to the clairvoyant bound.
    #[must_use]
    pub fn bound_ratio(mut self, ratio: f64) -> Row {
        self.bound_ratio = Some(ratio);
        self
    }

    /// Adds a remark.
    #[must_use]
    pub fn with_remark(mut self, text: impl Into<String>) -> Row {
        self.remark = text.into();
        self
    }

    /// Names the parameter of this scene that was chosen by looking at the required value. The row is shown and no
    /// longer judged.
    #[must_use]
    pub fn mark_fitted(mut self, what: impl Into<String>) -> Row {
        self.fitted = what.into();
        self.verdict = if self.requirement.is_empty() { Verdict::Shown } else { Verdict::Fitted };
        self
    }

    /// Adds a requirement without a number. `met` is true if every run meets it.
    #[must_use]
    pub fn require(self, met: bool, requirement: impl Into<String>) -> Row {
        let standing = if met { RangePosition::Inside } else { RangePosition::Outside };
        self.with_standing(standing, requirement.into())
    }

    /// Requires our value to lie in this range. `requirement` is its text.
    #[must_use]
    pub fn require_range(self, asked: RequiredRange, requirement: impl Into<String>) -> Row {
        let ours = self.our_estimate();
        self.require_also(&ours, asked, requirement)
    }

    /// Adds a requirement on another quantity.
    #[must_use]
    pub fn require_also(
        mut self,
        of: &Estimate,
        asked: RequiredRange,
        requirement: impl Into<String>,
    ) -> Row {
        let standing = of.position_in(asked);
        if (1..MIN_ROOTS).contains(&of.roots) {
            self = self.with_standing(standing, requirement.into());
            self.verdict = Verdict::NotJudged;
            return self;
        }
        self.with_standing(standing, requirement.into())
    }

    fn with_standing(mut self, standing: RangePosition, requirement: String) -> Row {
        if !self.requirement.is_empty() {
            self.requirement.push_str(", ");
        }
        self.requirement.push_str(&requirement);
        if matches!(self.verdict, Verdict::NotJudged | Verdict::Fitted) {
            return self;
        }
        match (self.verdict, standing) {
            (Verdict::NotAccepted, _) => {}
            (_, RangePosition::Outside) => {
                (self.verdict, self.needed) = (Verdict::NotAccepted, None)
            }
            (Verdict::Inconclusive, RangePosition::Undecided { needed }) => {
                self.needed = self.needed.zip(needed).map(|(a, b)| a.max(b));
            }
            (_, RangePosition::Undecided { needed }) => {
                (self.verdict, self.needed) = (Verdict::Inconclusive, needed);
            }
            (Verdict::Shown, RangePosition::Inside) => self.verdict = Verdict::Accepted,
            (_, RangePosition::Inside) => {}
        }
        self
    }

    /// Requires our value to be within this share of the paper's.
    #[must_use]
    pub fn within_of_paper(self, share: f64) -> Row {
        let asked = RequiredRange::within(share, number_of(self.paper.as_ref()));
        self.require_range(asked, format!("within {} % of the paper", number(100.0 * share)))
    }

    /// Requires our value to be within this share of the constant `of`, called `name`. Measured values are compared by
    /// a ratio instead.
    #[must_use]
    pub fn within_of(self, share: f64, of: f64, name: &str) -> Row {
        let text = format!("within {} % of {name} ({})", number(100.0 * share), number(of));
        self.require_range(RequiredRange::within(share, of), text)
    }

    /// Requires our value to be at most `limit`, in the unit of our value.
    #[must_use]
    pub fn at_most(self, limit: f64) -> Row {
        let text = format!("at most {}", limit_words(limit, self.unit()));
        self.require_range(RequiredRange::at_most(limit), text)
    }

    /// Requires our value to be at least `limit`, in the unit of our value.
    #[must_use]
    pub fn at_least(self, limit: f64) -> Row {
        let text = format!("at least {}", limit_words(limit, self.unit()));
        self.require_range(RequiredRange::at_least(limit), text)
    }

    /// The verdict in words, with the number of roots or the parameter it depends on.
    #[must_use]
    pub fn verdict_words(&self) -> String {
        match (self.verdict, self.needed) {
            (Verdict::Inconclusive, Some(needed)) => {
                format!("inconclusive (about {} roots would decide)", rounded(needed))
            }
            (Verdict::Inconclusive, None) => {
                "inconclusive (the estimate lies on the limit)".to_owned()
            }
            (Verdict::Fitted, _) => format!("not judged: fitted ({})", self.fitted),
            (verdict, _) if self.fitted.is_empty() => verdict.name().to_owned(),
            _ => format!("fitted ({})", self.fitted),
        }
    }

    fn our_estimate(&self) -> Estimate {
        match &self.ours {
            Some(Value::Number { value, interval, .. }) => {
                let roots = self.roots.unwrap_or(0);
                // With too few roots the interval is unknown. Without roots its width is zero.
                let none = if roots > 0 { (f64::NAN, f64::NAN) } else { (*value, *value) };
                let (low, high) = interval.unwrap_or(none);
                Estimate { value: *value, low, high, roots }
            }
            _ => Estimate::exact(f64::NAN),
        }
    }

    fn unit(&self) -> &str {
        match &self.ours {
            Some(Value::Number { unit, .. }) => unit,
            _ => "",
        }
    }
}

/// A limit with six digits. Rounded to three digits, as measured values are, 1.001 would be 1.
fn limit_words(limit: f64, unit: &str) -> String {
    let digits = (5 - limit.abs().max(1.0).log10().floor() as i32).max(0) as usize;
    let text = format!("{limit:.digits$}");
    let short = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{short} {unit}").trim_end().to_owned()
}

/// Number of roots, rounded to two digits because it is an estimate.
fn rounded(needed: u64) -> u64 {
    let step = 10_u64.pow(needed.max(1).ilog10().saturating_sub(1));
    needed.div_ceil(step) * step
}

fn number_of(value: Option<&Value>) -> f64 {
    match value {
        Some(Value::Number { value, .. }) => *value,
        _ => f64::NAN,
    }
}
