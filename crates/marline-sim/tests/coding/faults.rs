//! What must hold whatever happens.
