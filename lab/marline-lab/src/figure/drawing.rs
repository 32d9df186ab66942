//! Drawing with its file name and caption.

use serde::{Deserialize, Serialize};

/// A drawing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figure {
    /// Name of its file: letters, digits, `-`.
    pub name: String,
    /// A line above it.
    pub title: String,
    /// What is to be seen, below it.
    pub caption: String,
    /// The drawing: an `<svg>` element.
    pub svg: String,
}

impl Figure {
    /// A drawing with its name, the line above it and the words below it.
    #[must_use]
    pub fn new(name: &str, title: &str, caption: &str, svg: String) -> Figure {
        Figure { name: name.to_owned(), title: title.to_owned(), caption: caption.to_owned(), svg }
    }
}
