//! Policy specs: textual form of a policy and its parameters.
//!
//! ```text
//! min-rtt                                    a name
//! blest,lambda=1.2,adapt=off                 with parameters
//! min-rtt+orp,penalize=paper                 with a wrapper around it (schedulers, congestion control)
//! ```
//! Wrappers apply from left to right: the last one is the outermost. A spec contains no spaces, so it is one word on a
//! command line.

use core::fmt;

use super::{ParameterError, PolicyKind, UnknownPolicy};

/// Error in a policy spec.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// No policy has this name.
    Unknown(UnknownPolicy),
    /// A parameter is wrong.
    Parameter(ParameterError),
    /// The text is not a valid spec.
    Syntax {
        /// Kind of policy that was requested.
        kind: PolicyKind,
        /// Text of the spec.
        text: String,
        /// Reason why the text is invalid.
        problem: &'static str,
    },
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyError::Unknown(error) => error.fmt(f),
            PolicyError::Parameter(error) => error.fmt(f),
            PolicyError::Syntax { kind, text, problem } => write!(f, "{kind} `{text}`: {problem}"),
        }
    }
}

impl core::error::Error for PolicyError {}

impl From<UnknownPolicy> for PolicyError {
    fn from(error: UnknownPolicy) -> Self {
        PolicyError::Unknown(error)
    }
}

impl From<ParameterError> for PolicyError {
    fn from(error: ParameterError) -> Self {
        PolicyError::Parameter(error)
    }
}

/// `name,key=value,...`: one policy or one wrapper of a spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part<'a> {
    pub(super) name: &'a str,
    pub(super) given: Vec<(&'a str, &'a str)>,
}

/// Splits a spec: the policy first, then its wrappers.
pub(super) fn parse(kind: PolicyKind, text: &str) -> Result<Vec<Part<'_>>, PolicyError> {
    let wrong = |problem| PolicyError::Syntax { kind, text: text.to_owned(), problem };
    if text.contains(char::is_whitespace) {
        return Err(wrong("spaces are not allowed"));
    }
    text.split('+').map(|part| parse_part(part).map_err(wrong)).collect()
}

fn parse_part(text: &str) -> Result<Part<'_>, &'static str> {
    let mut words = text.split(',');
    let name = words.next().unwrap_or_default();
    if name.contains('=') {
        return Err("begin with a name: `name,key=value`");
    }
    let pair = |word: &'_ str| match word.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok(()),
        _ => Err("after the name come parameters: `name,key=value,key=value`"),
    };
    let mut given = Vec::new();
    for word in words {
        pair(word)?;
        given.extend(word.split_once('='));
    }
    Ok(Part { name, given })
}
