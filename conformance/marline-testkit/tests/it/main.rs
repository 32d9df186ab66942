//! Tests of the test kit, and with it of the codec and the core: one program, so that it is linked once.

mod corpus;
mod experimental_vectors;
mod hostile;
mod script;
mod tshark;
