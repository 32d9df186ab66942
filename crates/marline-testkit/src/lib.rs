//! Marline.
