//! Rows of a reproduction: the published value, the measured one with its interval, the acceptance
//! criterion, and the verdict.
//!
//! A criterion is met where the whole interval lies inside what is asked, missed where it lies
//! outside; in between the roots do not tell, and the row says about how many would.

use marline_lab::figure::number;
use serde::{Deserialize, Serialize};

use crate::estimate::{Asked, Estimate, MIN_ROOTS, Standing};
use crate::value::Value;

/// Verdict on a row.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every requirement is met.
    Accepted,
    /// One is not.
    NotAccepted,
    /// None is missed, but of one the roots do not tell.
    NotToldApart,
    /// Something is asked, but the roots are too few for a verdict.
    NotJudged,
    /// What is asked was used to choose a parameter of this scene: shown, not judged.
    Fitted,
    /// Nothing is asked.
    Shown,
}

impl Verdict {
    /// As text.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Verdict::Accepted => "accepted",
            Verdict::NotAccepted => "not accepted",
            Verdict::NotToldApart => "not told apart",
            Verdict::NotJudged => "not judged",
            Verdict::Fitted => "fitted",
            Verdict::Shown => "",
        }
    }

    /// Whether it counts among those of judged rows.
    #[must_use]
    pub const fn is_judged(self) -> bool {
        matches!(self, Verdict::Accepted | Verdict::NotAccepted | Verdict::NotToldApart)
    }
}

/// A row of a [`Table`](super::Table). Requirements are chained and must all be met; a value that is
/// missing or not a number meets none.
///
/// ```
/// use marline_papers::{Row, Samples, Verdict};
/// let peaks = Samples::new((0..20).map(|n| 168.0 + f64::from(n % 5)).collect(), 1);
/// let peak = peaks.mean(|peak| *peak);
/// let row = Row::new("peak, WiFi").paper(180.0, "ms").estimate(&peak, "ms");
/// let row = row.within(0.25).at_most(200.0);
/// assert_eq!(row.verdict, Verdict::Accepted);
/// assert_eq!(row.requirement, "within 25 % of the paper, at most 200 ms");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The metric.
    pub what: String,
    /// The paper's; `None`: it has none.
    pub paper: Option<Value>,
    /// Ours.
    pub ours: Option<Value>,
    /// Ours over what a clairvoyant sender would have reached on the same links, at least 1.
    pub bound_ratio: Option<f64>,
    /// The requirement, as text.
    pub requirement: String,
    /// Whether it is met.
    pub verdict: Verdict,
    /// Roots that the verdict rests on; 0: nothing in it is random. `None`: it was measured in real
    /// time, once.
    pub roots: Option<usize>,
    /// About so many roots would tell what these do not.
    pub needed: Option<u64>,
    /// Parameter that was fitted to this scene, and to what; empty: none.
    pub fitted: String,
    /// Remark, for instance the evidence why it cannot be met.
    pub remark: String,
}

impl Row {
    /// A row in which nothing is asked so far.
    #[must_use]
    pub fn new(what: impl Into<String>) -> Row {
        Row {
            what: what.into(),
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

    /// The paper's number and its unit.
    #[must_use]
    pub fn paper(mut self, value: f64, unit: &str) -> Row {
        self.paper = Some(Value::new(value, unit));
        self
    }

    /// The paper's claim, as text.
    #[must_use]
    pub fn paper_claim(mut self, text: impl Into<String>) -> Row {
        self.paper = Some(Value::Text(text.into()));
        self
    }

    /// Our number and its unit, measured once in real time, or only to be shown.
    #[must_use]
    pub fn ours(mut self, value: f64, unit: &str) -> Row {
        self.ours = Some(Value::new(value, unit));
        self
    }

    /// Our number over all roots.
    #[must_use]
    pub fn estimate(mut self, estimate: &Estimate, unit: &str) -> Row {
        let Estimate { value, low, high, roots } = *estimate;
        self.ours = Some(match roots {
            0 => Value::new(value, unit),
            _ => Value::between(value, (low, high), unit),
        });
        self.roots = Some(roots);
        self
    }

    /// Our finding, as text.
    #[must_use]
    pub fn our_finding(mut self, text: impl Into<String>) -> Row {
        self.ours = Some(Value::Text(text.into()));
        self
    }

    /// Ours over the clairvoyant bound.
    #[must_use]
    pub fn bound_ratio(mut self, ratio: f64) -> Row {
        self.bound_ratio = Some(ratio);
        self
    }

    /// Adds a remark.
    #[must_use]
    pub fn remark(mut self, text: impl Into<String>) -> Row {
        self.remark = text.into();
        self
    }

    /// Says which parameter of this scene was chosen by looking at what is asked here; the row is
    /// shown and no longer judged.
    #[must_use]
    pub fn fitted(mut self, what: impl Into<String>) -> Row {
        self.fitted = what.into();
        self.verdict = if self.requirement.is_empty() { Verdict::Shown } else { Verdict::Fitted };
        self
    }

    /// A requirement that needs no number: `met` says whether it is met in every run.
    #[must_use]
    pub fn holds(self, met: bool, requirement: impl Into<String>) -> Row {
        let standing = if met { Standing::Inside } else { Standing::Outside };
        self.combined(standing, requirement.into())
    }

    /// Asks for ours to lie in this range; `requirement` says so.
    #[must_use]
    pub fn asked(self, asked: Asked, requirement: impl Into<String>) -> Row {
        let ours = self.our_estimate();
        self.also(&ours, asked, requirement)
    }

    /// Asks something of another quantity, too.
    #[must_use]
    pub fn also(mut self, of: &Estimate, asked: Asked, requirement: impl Into<String>) -> Row {
        let standing = of.stands(asked);
        if (1..MIN_ROOTS).contains(&of.roots) {
            self = self.combined(standing, requirement.into());
            self.verdict = Verdict::NotJudged;
            return self;
        }
        self.combined(standing, requirement.into())
    }

    fn combined(mut self, standing: Standing, requirement: String) -> Row {
        if !self.requirement.is_empty() {
            self.requirement.push_str(", ");
        }
        self.requirement.push_str(&requirement);
        if matches!(self.verdict, Verdict::NotJudged | Verdict::Fitted) {
            return self;
        }
        match (self.verdict, standing) {
            (Verdict::NotAccepted, _) => {}
            (_, Standing::Outside) => (self.verdict, self.needed) = (Verdict::NotAccepted, None),
            (Verdict::NotToldApart, Standing::Undecided { needed }) => {
                self.needed = self.needed.zip(needed).map(|(a, b)| a.max(b));
            }
            (_, Standing::Undecided { needed }) => {
                (self.verdict, self.needed) = (Verdict::NotToldApart, needed);
            }
            (Verdict::Shown, Standing::Inside) => self.verdict = Verdict::Accepted,
            (_, Standing::Inside) => {}
        }
        self
    }

    /// Asks for ours to be within this share of the paper's.
    #[must_use]
    pub fn within(self, share: f64) -> Row {
        let asked = Asked::within(share, number_of(self.paper.as_ref()));
        self.asked(asked, format!("within {} % of the paper", number(100.0 * share)))
    }

    /// Asks for ours to be within this share of `of`, called `name`. `of` is a constant; what is
    /// measured, too, is compared by a ratio.
    #[must_use]
    pub fn within_of(self, share: f64, of: f64, name: &str) -> Row {
        let text = format!("within {} % of {name} ({})", number(100.0 * share), number(of));
        self.asked(Asked::within(share, of), text)
    }

    /// Asks for ours to be no more than `limit`, in the unit of ours.
    #[must_use]
    pub fn at_most(self, limit: f64) -> Row {
        let text = format!("at most {}", limit_words(limit, self.unit()));
        self.asked(Asked::at_most(limit), text)
    }

    /// Asks for ours to be no less than `limit`, in the unit of ours.
    #[must_use]
    pub fn at_least(self, limit: f64) -> Row {
        let text = format!("at least {}", limit_words(limit, self.unit()));
        self.asked(Asked::at_least(limit), text)
    }

    /// The verdict in words, with what it lacks.
    #[must_use]
    pub fn verdict_words(&self) -> String {
        match (self.verdict, self.needed) {
            (Verdict::NotToldApart, Some(needed)) => {
                format!("not told apart (about {} roots would tell)", rounded(needed))
            }
            (Verdict::NotToldApart, None) => "not told apart (it lies on the limit)".to_owned(),
            (Verdict::Fitted, _) => format!("not judged: fitted ({})", self.fitted),
            (verdict, _) if self.fitted.is_empty() => verdict.word().to_owned(),
            _ => format!("fitted ({})", self.fitted),
        }
    }

    fn our_estimate(&self) -> Estimate {
        match &self.ours {
            Some(Value::Number { value, interval, .. }) => {
                let roots = self.roots.unwrap_or(0);
                // Too few roots have no interval, which is not the same as one of no width.
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

/// A limit as it is, to six digits: rounded to three like what is measured, 1.001 would be 1.
fn limit_words(limit: f64, unit: &str) -> String {
    let digits = (5 - limit.abs().max(1.0).log10().floor() as i32).max(0) as usize;
    let text = format!("{limit:.digits$}");
    let short = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{short} {unit}").trim_end().to_owned()
}

/// A number of roots to two digits: more would pretend.
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
