//! Tests of the codec against bytes, properties and other decoders: one program, so that it is linked once.

mod common;
mod ip;
mod kernel;
mod properties;
mod smoltcp;
