//! Paper description `papers/KEY.toml`: published values, and the assumptions of the reproduction.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The file of a paper. `P` is the type of its table `[published]`, which each key defines.
///
/// ```
/// #[derive(serde::Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct Published {
///     average_ms: f64,
/// }
/// let file = marline_papers::PaperFile::<Published>::parse(
///     r#"
///     title = "Echoes over two paths"
///     citation = "A. Author: Echoes. CONF 2015."
///     url = "https://example.org/echoes"
///     command = "marline-lab paper example"
///     accepted = "the average within 15 %"
/// buffers = ["200 KB stated, 400 KB used: Linux doubles the value"]
///     assumptions = ["The loss of the paths is independent."]
///     [published]
///     average_ms = 42.0
///     [tolerance]
///     average = 0.15
///     "#,
/// )
/// .unwrap();
/// assert_eq!(file.published.average_ms, 42.0);
/// assert_eq!(file.tolerance("average").unwrap(), 0.15);
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperFile<P> {
    /// One-line title.
    pub title: String,
    /// Authors, title, venue and year.
    pub citation: String,
    /// URL of the paper.
    #[serde(default)]
    pub url: String,
    /// Command that reproduces the paper.
    pub command: String,
    /// Acceptance criterion, as text.
    pub accepted: String,
    /// The buffers of the study and ours.
    #[serde(default)]
    pub buffers: Vec<String>,
    /// Assumptions about details that the paper does not state.
    #[serde(default)]
    pub assumptions: Vec<String>,
    /// The paper's statements, in its order. Empty for keys that judge our own defaults.
    #[serde(default, rename = "statement")]
    pub statements: Vec<Statement>,
    /// The paper's numbers.
    pub published: P,
    /// Tolerances by name. They are shares unless the name has a unit.
    #[serde(default)]
    pub tolerance: BTreeMap<String, f64>,
}

/// A statement of the paper. One row judges it ([`Row::statement`](crate::Row::statement)), unless nothing here can.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// Identifier, unique in the file.
    pub id: String,
    /// Where the paper makes it: section, figure, table or slide.
    pub place: String,
    /// The statement in one sentence.
    pub says: String,
    /// What stands in for a statement that no row can judge, such as one about a phone or an operator's network.
    #[serde(default)]
    pub stands_in: Option<String>,
    /// Identifier of an earlier statement that the paper contradicts by this one.
    #[serde(default)]
    pub contradicts: Option<String>,
    /// Mechanisms without which the statement must fail, by name ([`Mechanism`](crate::Mechanism)).
    #[serde(default)]
    pub claims: Vec<String>,
    /// Reasons why the statement may also fail without a mechanism that it does not claim, by mechanism.
    #[serde(default)]
    pub affected_by: BTreeMap<String, String>,
}

impl Statement {
    /// A statement that claims no mechanism.
    #[must_use]
    pub fn new(id: &str, place: &str, says: &str) -> Statement {
        let [id, place, says] = [id, place, says].map(str::to_owned);
        Statement { id, place, says, ..Statement::default() }
    }
}

impl<P: DeserializeOwned> PaperFile<P> {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// The file is malformed. The error gives the position.
    pub fn parse(text: &str) -> anyhow::Result<PaperFile<P>> {
        Ok(toml::from_str(text)?)
    }
}

impl<P> PaperFile<P> {
    /// The tolerance of this name.
    ///
    /// # Errors
    /// The file has no tolerance of this name.
    pub fn tolerance(&self, name: &str) -> anyhow::Result<f64> {
        self.tolerance.get(name).copied().with_context(|| format!("no [tolerance] {name}"))
    }
}
