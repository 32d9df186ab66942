//! Tests of the test kit, and thereby of the codec and the core, in one program so that it is linked once.

mod corpus;
mod experimental_vectors;
mod hostile;
mod script;
mod tshark;
