//! Drawing with its file name and caption.

use serde::{Deserialize, Serialize};

/// A drawing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figure {
    /// File name: letters, digits, `-`.
    pub name: String,
    /// Title above the drawing.
    pub title: String,
    /// Caption below the drawing.
    pub caption: String,
    /// The drawing: an `<svg>` element.
    pub svg: String,
}

impl Figure {
    /// Creates a drawing with its name, title and caption.
    #[must_use]
    pub fn new(name: &str, title: &str, caption: &str, svg: String) -> Figure {
        Figure { name: name.to_owned(), title: title.to_owned(), caption: caption.to_owned(), svg }
    }
}
