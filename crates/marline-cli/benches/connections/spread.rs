//! Spread of a benchmark's results over several rounds.

/// Median, minimum and maximum.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    pub(crate) fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let median = values[values.len() / 2];
        Spread { median, least: values[0], most: values[values.len() - 1] }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = f.precision().unwrap_or(2);
        let Spread { median, least, most } = self;
        write!(f, "{median:.digits$} ({least:.digits$} to {most:.digits$})")
    }
}

/// Ratios, element by element.
pub(crate) fn ratios(ours: &[f64], theirs: &[f64]) -> Spread {
    Spread::of(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect())
}
