//! Rows of a reproduction: the published value, the measured one, the acceptance criterion, and
//! whether it is met.

use marline_lab::figure::number;
use serde::{Deserialize, Serialize};

use crate::value::Value;

/// Verdict on a row.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every requirement is met.
    Accepted,
    /// One is not.
    NotAccepted,
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
            Verdict::Shown => "",
        }
    }
}

/// A row of a [`Table`](super::Table). Requirements are chained and must all be met; a value that is
/// missing or not a number meets none.
///
/// ```
/// use marline_papers::{Row, Verdict};
/// let row = Row::new("peak, WiFi").paper(180.0, "ms").ours(172.0, "ms").within(0.25).at_most(200.0);
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
    pub fn paper_says(mut self, text: impl Into<String>) -> Row {
        self.paper = Some(Value::Text(text.into()));
        self
    }

    /// Our number and its unit.
    #[must_use]
    pub fn ours(mut self, value: f64, unit: &str) -> Row {
        self.ours = Some(Value::new(value, unit));
        self
    }

    /// Our number with an interval of confidence.
    #[must_use]
    pub fn ours_between(mut self, value: f64, interval: (f64, f64), unit: &str) -> Row {
        self.ours = Some(Value::between(value, interval, unit));
        self
    }

    /// Our finding, as text.
    #[must_use]
    pub fn ours_says(mut self, text: impl Into<String>) -> Row {
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

    /// A free-form requirement: `met` says whether it is met, `requirement` describes it.
    #[must_use]
    pub fn holds(mut self, met: bool, requirement: impl Into<String>) -> Row {
        if !self.requirement.is_empty() {
            self.requirement.push_str(", ");
        }
        self.requirement.push_str(&requirement.into());
        self.verdict = match (self.verdict, met) {
            (Verdict::NotAccepted, _) | (_, false) => Verdict::NotAccepted,
            (Verdict::Accepted | Verdict::Shown, true) => Verdict::Accepted,
        };
        self
    }

    /// Asks for ours to be within this share of the paper's.
    #[must_use]
    pub fn within(self, share: f64) -> Row {
        let (ours, paper) = (self.our_number(), number_of(self.paper.as_ref()));
        let met = (ours - paper).abs() <= share * paper.abs();
        self.holds(met, format!("within {} % of the paper", number(100.0 * share)))
    }

    /// Asks for ours to be within this share of `of`, called `name`.
    #[must_use]
    pub fn within_of(self, share: f64, of: f64, name: &str) -> Row {
        let met = (self.our_number() - of).abs() <= share * of.abs();
        let text = format!("within {} % of {name} ({})", number(100.0 * share), number(of));
        self.holds(met, text)
    }

    /// Asks for ours to be no more than `limit`, in the unit of ours.
    #[must_use]
    pub fn at_most(self, limit: f64) -> Row {
        let met = self.our_number() <= limit;
        let text = format!("at most {}", Value::new(limit, self.unit()));
        self.holds(met, text)
    }

    /// Asks for ours to be no less than `limit`, in the unit of ours.
    #[must_use]
    pub fn at_least(self, limit: f64) -> Row {
        let met = self.our_number() >= limit;
        let text = format!("at least {}", Value::new(limit, self.unit()));
        self.holds(met, text)
    }

    /// Asks for values that rise strictly from each to the next, and shows them as ours.
    #[must_use]
    pub fn rising(mut self, values: &[(&str, f64)], unit: &str) -> Row {
        let met = !values.is_empty() && values.windows(2).all(|pair| pair[0].1 < pair[1].1);
        let told = |sign: &str, numbers: bool| {
            let one = |(name, value): &(&str, f64)| match numbers {
                true => format!("{name} {}", Value::new(*value, unit)),
                false => (*name).to_owned(),
            };
            values.iter().map(one).collect::<Vec<_>>().join(sign)
        };
        self.ours = Some(Value::Text(told("; ", true)));
        self.holds(met, told(" < ", false))
    }

    fn our_number(&self) -> f64 {
        number_of(self.ours.as_ref())
    }

    fn unit(&self) -> &str {
        match &self.ours {
            Some(Value::Number { unit, .. }) => unit,
            _ => "",
        }
    }
}

fn number_of(value: Option<&Value>) -> f64 {
    match value {
        Some(Value::Number { value, .. }) => *value,
        _ => f64::NAN,
    }
}
